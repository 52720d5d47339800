"""Logs in users with a name and a password of the directory (LDAP), and ends sessions of users whom the directory no
longer accepts."""

import asyncio
import logging
from typing import Final

from msgspec.structs import replace
from sqlalchemy import Executable, exists, or_, select

from gpudeck.auth.accounts import Account, read_account
from gpudeck.auth.caller import Caller
from gpudeck.auth.claims import map_user
from gpudeck.auth.identities import HUB, Identities, ProviderUser, has_token, role_of_new
from gpudeck.auth.ldap import DirectoryUser, LdapDirectory
from gpudeck.auth.login import DirectoryUnavailable
from gpudeck.auth.settings import LdapSettings
from gpudeck.auth.trials import Trial
from gpudeck.database import schema
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Refused, Temporary, UsageError, Wrong

log = logging.getLogger(__name__)

PROVIDER: Final = "ldap"
CHECK_SECONDS: Final = 10.0
_AT_ONCE: Final = 50
_NO_ENTRY: Final = "no entry fits the name, the password is wrong, or the user is disabled there"
_ASK = "Ask an admin: the hub's log has the reason."
_table, _blocks = schema.identities, schema.provider_blocks
_accounts, _sessions = schema.accounts, schema.sessions


class LdapLogins:
    """The directory of the configuration. `start`, later `close`."""

    def __init__(self, settings: LdapSettings, identities: Identities) -> None:
        """Raises UsageError for a file that cannot be read."""
        self.directory = LdapDirectory(settings, identities.now)
        self._settings = settings
        self._identities = identities
        self._database = identities.database
        self._audit = identities.audit
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        await cancel_tasks(self._task)
        self.directory.close()

    async def log_in(self, name: str, password: str, address: str, user_agent: str) -> tuple[Account, str] | None:
        """The account and the secret of its new session. None where the directory does not take name and password.
        Raises Refused, in words for the user, and DirectoryUnavailable."""
        try:
            found = await self.directory.authenticate(name, password)
        except Wrong as error:
            label = self._settings.label
            raise DirectoryUnavailable(
                f"the directory {label} cannot be asked: its configuration is wrong.", _ASK
            ) from error
        if found is None:
            return None
        try:
            user = _map(self._settings, found)
        except Refused as error:
            caller, details = Caller(address=address), f"by {self._settings.label}: {error.message}"
            line = f"log in through {self._settings.label} from {address} is refused: {error.message}"
            await self._audit.refuse_login(caller, "log in", name, details, line)
            raise
        return await self._identities.log_in(user, address, user_agent)

    async def check_users(self) -> None:
        """Ask the directory about users who are logged in or have tokens, and have not been asked about for `refresh`.
        While it does not answer they stay. Raises Temporary."""
        can_ask = self.directory.can_look_up
        before = self._identities.now() - (self._settings.refresh if can_ask else self._settings.expire)
        is_live = or_(
            exists().where(_sessions.c.account_id == _accounts.c.id),
            has_token(self._identities.now()),
        )
        wanted = (
            select(_accounts, _table.c.subject)
            .join_from(_table, _accounts)
            .where(_table.c.provider == PROVIDER, _table.c.checked_at <= before, is_live)
            .where(_accounts.c.is_disabled == 0, ~exists().where(_blocks.c.account_id == _accounts.c.id))
            .order_by(_table.c.checked_at)
            .limit(_AT_ONCE)
        )
        rows = (await self._database.execute(wanted)).all()
        if not rows:
            return
        found = await self.directory.look_up([row.subject for row in rows]) if can_ask else {}
        for row in rows:
            await self._check(read_account(row), found.get(row.subject))

    async def _check(self, account: Account, found: DirectoryUser | None) -> None:
        if found is None:
            why = (
                "the directory no longer lets this user in"
                if self.directory.can_look_up
                else "there was no login with the password lately"
            )
            await self._block(account, why)
            return
        try:
            user = _map(self._settings, found)
        except Refused as error:
            await self._block(account, error.message)
            return
        await self._identities.confirm(user)

    async def _block(self, account: Account, why: str) -> None:
        """Log an account out everywhere; their tokens are worth nothing until they log in again with the password."""
        details = f"{self._settings.label}: {why}"
        row = {"at": self._identities.now(), "reason": why[:256]}

        def also(blocked: Account) -> list[Executable]:
            return [
                self._database.insert(_blocks).values(account_id=blocked.id, **row),
                self._audit.entry(HUB, "disable account", blocked.name, details=details),
            ]

        log.info("%s is logged out: %s", account.name, details)
        try:
            await self._identities.accounts.change(account.name, is_disabled=True, also=also)
        except UsageError as error:
            # The last admin: the account stays, and nothing that could be used with it.
            log.warning("%s Their sessions and tokens end.", error.message)
            await self._identities.suspend(account.id, details)

    async def _watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check_users()
            except (Temporary, Wrong) as error:
                log.debug("users of the directory cannot be checked: %s", error)  # the directory logs why, once
            except Exception:
                log.exception("users of the directory could not be checked")


async def try_login(
    directory: LdapDirectory, trial: Trial, name: str, password: str | None, identities: Identities | None
) -> Trial:
    """Dry run of a login: returns the mapped user, opens no session. Without `identities`, the user counts as one
    without an account. Raises Temporary and Wrong."""
    found = await (directory.find(name) if password is None else directory.authenticate(name, password))
    if found is None:
        return replace(trial, state="refused", problem=_NO_ENTRY)
    trial = replace(trial, claims={"dn": found.dn, **found.claims}, problem=found.problem)
    try:
        user = _map(directory.settings, found)
        trial = trial.with_user(user.mapped)
        if identities is None:
            return trial.end(user.mapped.name, role_of_new(user))
        return trial.end(*await identities.foresee(user))
    except Refused as error:
        return trial.refuse(error)


def _map(settings: LdapSettings, found: DirectoryUser) -> ProviderUser:
    """Raises Refused for a user who may not log in."""
    mapped = map_user(found.claims, settings.mapping)
    return ProviderUser(PROVIDER, found.subject, settings.label, mapped, settings.mapping.link_accounts)
