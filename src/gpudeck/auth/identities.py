"""Users whom a provider (OIDC, LDAP) identifies: which account each has, and what the provider last said about them.

A user is known by the provider's own, unchangeable id; the name counts only when the account is made. So renaming
a user at the provider, or giving a name to another user, gives no one another's account.
"""

import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Executable, delete, exists, func, or_, select

from gpudeck.auth.accounts import Account, Accounts, hash_secret, read_account
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.auth.claims import MappedUser
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AccountRole, UserSettings
from gpudeck.auth.tokens import Tokens
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model import clock
from gpudeck.model.errors import Refused, UsageError

log = logging.getLogger(__name__)

SUBJECT_LENGTH = 255
HUB = Caller(kind="local", role="admin", name="the hub")
_table, _accounts = schema.identities, schema.accounts
_blocks, _sessions = schema.provider_blocks, schema.sessions
_MARK = select(func.count(), func.max(_table.c.checked_at))
_KNOWN = select(_accounts.c.name, _table.c.user_group, _table.c.mail).join_from(_table, _accounts)


class ProviderUser(Struct, frozen=True):
    """`provider` is the issuer of an OIDC provider, or "ldap"; `subject` is the id that never changes there. `shown` is
    what the configuration calls the provider."""

    provider: str
    subject: str
    shown: str
    mapped: MappedUser
    link_accounts: bool = False


class Identities:
    """All of them. Everything raises Temporary when the database does not answer."""

    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        sessions: Sessions,
        tokens: Tokens,
        audit: Audit,
        *,
        learn: Callable[[dict[str, UserSettings]], None],
        now: clock.Clock = clock.wall,
    ) -> None:
        """`learn` takes group and mail address of all accounts that a provider knows, whenever one has changed."""
        self.database = database
        self.accounts = accounts
        self.sessions = sessions
        self.audit = audit
        self.now = now
        self._tokens = tokens
        self._learn = learn
        self._mark: object = None

    async def log_in(
        self,
        user: ProviderUser,
        address: str,
        user_agent: str,
        also: Callable[[str, Account], Executable] | None = None,
    ) -> tuple[Account, str]:
        """The account, made if need be, and the secret of its new session. `also` is written with it; it gets the hash
        of the session. Ends what `suspend` did. Raises Refused, in words for the user."""
        secret, start = self.sessions.begin(address, user_agent)

        def begin(account: Account) -> list[Executable]:
            entry = self._entry(account, "log in", user.shown, address)
            extra = [] if also is None else [also(hash_secret(secret), account)]
            return [self._write(user, account), *start(account), *extra, entry]

        try:
            account = await self._find_usable(user)
            if account is None:
                return await self._add(user, address, begin), secret
            account = await self._resume(account, user.shown)
            account = await self._change_role(account, user)
            entered = await self.accounts.note_login(account, None, also=begin)
            self.sessions.forget(account.id)
            if entered is None:
                raise _disabled(account)
        except Refused as error:
            caller, details = Caller(address=address), f"by {user.shown}: {error.message}"
            await self.audit.refuse_login(caller, "log in", user.mapped.name, details)
            raise
        await self.refresh()
        return entered, secret

    async def foresee(self, user: ProviderUser) -> tuple[str, AccountRole]:
        """The account and the role that `log_in` would give now; nothing changes. Raises Refused as that does."""
        account = await self._find_usable(user)
        if account is None:
            return user.mapped.name, role_of_new(user)
        role = _role_of(account, user)
        is_last = role != "admin" and await self.accounts.is_last_admin(account)
        return account.name, "admin" if is_last else role

    async def confirm(self, user: ProviderUser) -> Account | None:
        """The provider still knows this user: role, group and mail address follow it. None: no account is theirs."""
        account = await self._find(user)
        if account is None or account.is_disabled:
            return None
        account = await self._change_role(account, user)
        async with self.database.begin() as connection:
            await connection.execute(self._write(user, account))
        await self.refresh()
        return account

    async def suspend(self, account_id: int, why: str) -> None:
        """Log a user out everywhere; their tokens count for nothing until they log in again through a provider. An
        account that is disabled stays as it is."""
        row = {"at": self.now(), "reason": why[:256]}
        block = self.database.insert(_blocks).values(account_id=account_id, **row)
        # Locked: a user whom an admin disables meanwhile must not be enabled by their next login.
        enabled = select(_accounts.c.name).where(_accounts.c.id == account_id, _accounts.c.is_disabled == 0)
        async with self.database.begin() as connection:
            name = (await connection.execute(enabled.with_for_update())).scalar()
            if name is None:
                return
            await connection.execute(delete(_sessions).where(_sessions.c.account_id == account_id))
            await connection.execute(block.on_conflict_do_update(index_elements=[_blocks.c.account_id], set_=row))
            await connection.execute(self.audit.entry(HUB, "suspend account", name, details=why))
        self.sessions.forget(account_id)
        self._tokens.forget_account(account_id)
        log.info("%s is logged out, and their tokens do not count until their next login: %s", name, why)

    async def _resume(self, account: Account, shown: str) -> Account:
        """The account without what `suspend` did, or LDAP did by disabling it."""
        if not await self._is_blocked(account):
            return account

        def also(changed: Account) -> list[Executable]:
            return [self.audit.entry(HUB, "enable account", changed.name, details=f"by {shown}")]

        return await self.accounts.change(account.name, is_disabled=False, also=also)

    async def _is_blocked(self, account: Account) -> bool:
        """By its provider, not by an admin."""
        wanted = select(_blocks.c.at).where(_blocks.c.account_id == account.id)
        return (await self.database.execute(wanted)).one_or_none() is not None

    async def refresh(self) -> None:
        """See what any hub has learned from a provider."""
        mark = (await self.database.execute(_MARK)).one()
        if mark == self._mark:
            return
        rows = await self.database.execute(_KNOWN.order_by(_table.c.checked_at))
        self._learn({row.name: UserSettings(mail=row.mail, group=row.user_group) for row in rows})
        self._mark = mark

    async def _find(self, user: ProviderUser) -> Account | None:
        is_it = (_table.c.provider == user.provider) & (_table.c.subject == user.subject)
        row = (await self.database.execute(select(_accounts).join_from(_table, _accounts).where(is_it))).one_or_none()
        return None if row is None else read_account(row)

    async def _find_usable(self, user: ProviderUser) -> Account | None:
        """The user's account, or one of that name to link; None: there is none yet. Raises Refused where it must not be
        taken over, and where an admin disabled it."""
        if not 0 < len(user.subject) <= SUBJECT_LENGTH:
            raise Refused(f"{user.shown} sends no usable id of the user.")
        account = await self._find(user)
        if account is None:
            account = await self.accounts.find(user.mapped.name)
            if account is not None and not user.link_accounts:
                raise await self._taken(account, user)
        if account is not None and account.is_disabled and not await self._is_blocked(account):
            raise _disabled(account)
        return account

    async def _taken(self, account: Account, user: ProviderUser) -> Refused:
        of_it = select(_table.c.subject).where(_table.c.account_id == account.id, _table.c.provider == user.provider)
        if (await self.database.execute(of_it.limit(1))).one_or_none() is not None:
            return Refused(
                f"the account {account.name} belongs to another user of {user.shown}, who had this name before.",
                "If that user is gone, an admin can remove the account.",
            )
        return Refused(
            f"there is an account {account.name} already that is not of {user.shown}.",
            "An admin can remove it, or set `link_accounts` for this provider.",
        )

    async def _add(self, user: ProviderUser, address: str, begin: Callable[[Account], list[Executable]]) -> Account:
        role = role_of_new(user)

        def also(account: Account) -> list[Executable]:
            return [self._entry(account, "add account", user.shown, address), *begin(account)]

        try:
            account = await self.accounts.add(user.mapped.name, role, None, also, logs_in=True)
        except UsageError as error:
            # Of two first logins at once the other one made it.
            raise Refused("this account was made a moment ago.", "Log in again.") from error
        await self.refresh()
        return account

    async def _change_role(self, account: Account, user: ProviderUser) -> Account:
        role = _role_of(account, user)
        if role == account.role:
            return account

        def also(changed: Account) -> list[Executable]:
            return [self._entry(changed, "change account", f"{user.shown}: {account.role} to {role}", "")]

        try:
            return await self.accounts.change(account.name, role=role, also=also)
        except UsageError as error:
            log.warning("%s keeps the role %s: %s", account.name, account.role, error)
            return account

    def _write(self, user: ProviderUser, account: Account) -> Executable:
        """A mail address that the provider does not send stays, and so does a group where it sends no groups at all."""
        mapped, now = user.mapped, self.now()
        told: dict[str, object] = {"checked_at": now}
        told |= {} if mapped.mail is None else {"mail": mapped.mail}
        told |= {} if mapped.groups is None else {"user_group": mapped.group}
        own = {"provider": user.provider, "subject": user.subject, "account_id": account.id, "created_at": now}
        row = self.database.insert(_table).values(**own, **told)
        return row.on_conflict_do_update(index_elements=[_table.c.provider, _table.c.subject], set_=told)

    def _entry(self, account: Account, action: str, details: str, address: str) -> Executable:
        caller = Caller("account", account.role, account.name, account.id, address=address)
        return self.audit.entry(caller, action, account.name, details=f"by {details}")


def role_of_new(user: ProviderUser) -> AccountRole:
    """Of a user without an account. Raises Refused."""
    role = user.mapped.role or user.mapped.role_if_new
    if role is None:
        raise Refused(f"{user.mapped.name} has no role on this hub.", "Ask an admin of this hub.")
    return role


def _role_of(account: Account, user: ProviderUser) -> AccountRole:
    role = user.mapped.role
    if user.mapped.is_named_admin and user.mapped.name != account.name:
        role = None  # renamed at the provider: the name of an admin gives nobody else that role
    return role or account.role


def _disabled(account: Account) -> Refused:
    return Refused(f"the account {account.name} is disabled.", "Ask an admin of this hub.")


def has_token(now: float, account: Any = _accounts) -> ColumnElement[bool]:
    """Of a row of `account`: whether it has a personal token that is neither revoked nor expired."""
    tokens = schema.tokens.c
    is_live = or_(tokens.expires_at.is_(None), tokens.expires_at > now)
    return exists().where(tokens.account_id == account.c.id, tokens.revoked_at.is_(None), is_live)
