"""Logins through OIDC providers: begun with a redirect, finished at the callback, refreshed and ended by the provider.

What a login needs between its two ends is in an encrypted cookie of the browser that began it. So a callback that
another browser was made to open does nothing, an answer of one provider cannot be used for another, and thousands of
begun logins cost no memory. The keys for this come from the clients' secrets, which all hubs of a fleet know. Tokens of
providers are in the database, encrypted with a key of the hub's own: they outlive a new secret of the client.
"""

import asyncio
import base64
import contextlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Executable, and_, delete, exists, insert, or_, select, update

from gpudeck.auth.accounts import Account, hash_secret, make_secret
from gpudeck.auth.caller import Caller
from gpudeck.auth.claims import MappedUser, find_claim, map_user, merge_claims
from gpudeck.auth.identities import HUB, Identities, ProviderUser, has_token
from gpudeck.auth.oidc import GrantEnded, OidcProvider, ProviderAnswer, redirect_uri
from gpudeck.auth.settings import OidcSettings
from gpudeck.auth.trials import Trial, Trials, hide_secrets
from gpudeck.database import schema
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError, Refused, Temporary
from gpudeck.model.text import clean

log = logging.getLogger(__name__)

BEGUN_SECONDS: Final = 600
"""So long a login may take between its two ends."""
MOST_AT_ONCE: Final = 32
"""Callbacks under way. More are refused at once, and may be tried again."""
MAX_USED: Final = 20_000
MAX_PLACE: Final = 2_000
CHECK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 60.0
"""After so long a provider that did not answer is asked again about a login."""
_CHECKS_AT_ONCE: Final = 8
_MAX_CHECKS: Final = 200
_NO_REFRESH: Final = (
    "the provider gives no refresh token, so sessions and personal tokens end `expire` after a login; most providers "
    "give one with the scope offline_access."
)
_sessions, _table, _keys = schema.sessions, schema.provider_grants, schema.own_keys
_accounts, _identities = schema.accounts, schema.identities


class _Begun(Struct, frozen=True):
    """What the cookie holds."""

    provider: str
    state: str
    nonce: str
    verifier: str
    place: str = ""
    trial: str = ""


class _Sealed(Struct, frozen=True):
    """The tokens of a session, as they are kept."""

    refresh_token: str | None = None
    id_token: str | None = None


class FinishedLogin(Struct, frozen=True):
    """`place` is where on the page the user wanted to go; `secret` is for the cookie, and None for a trial."""

    place: str
    account: Account | None = None
    secret: str | None = None


class OidcLogins:
    """All providers of the configuration. `start`, later `close`."""

    def __init__(
        self, settings: Sequence[OidcSettings], public_url: str, identities: Identities, trials: Trials
    ) -> None:
        """Raises UsageError for a file that cannot be read."""
        self.public_url = public_url.rstrip("/")
        self._now = identities.now
        self.providers = {
            one.name: OidcProvider(one, redirect_uri(public_url, one.name), self._now) for one in settings
        }
        self.trials = trials
        self._identities = identities
        self._database = identities.database
        self._audit = identities.audit
        self._boxes = {name: _make_box(provider.secret) for name, provider in self.providers.items()}
        self._grant_box: Fernet | None = None
        self._used: dict[str, float] = {}
        self._under_way = 0
        self._unconfirmed: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        await cancel_tasks(self._task)
        for provider in self.providers.values():
            await provider.close()

    async def begin(self, name: str, place: str = "", trial: str = "") -> tuple[str, str]:
        """The address to send the browser to, and what its cookie keeps. Raises Temporary where the provider cannot be
        used now."""
        provider = self.providers[name]
        begun = _Begun(name, make_secret(), make_secret(), secrets.token_urlsafe(48), check_place(place), trial)
        url = await provider.authorization_url(begun.state, begun.nonce, begun.verifier)
        return url, self._seal(name, begun)

    async def finish(
        self, name: str, cookie: str, answer: Mapping[str, str], address: str, user_agent: str
    ) -> FinishedLogin:
        """`answer` are the parameters of the callback. Raises Refused and Temporary, in words for the user."""
        provider = self.providers[name]
        if self._under_way >= MOST_AT_ONCE:
            raise Temporary("too many users are logging in right now.", "Try again in a few seconds.")
        self._under_way += 1
        begun = None
        try:
            begun = self._check(name, cookie, answer)
            read = await self._read_answer(provider, begun, answer)
            if begun.trial:
                return await self._finish_trial(begun.trial, provider, read)
            mapped = map_user(merge_claims(read.id_claims, read.userinfo), provider.settings.mapping)
            account, secret = await self._enter(provider, read, mapped, address, user_agent)
            return FinishedLogin(begun.place, account, secret)
        except GpudeckError as error:
            await self._note_refusal(provider, begun, error, address)
            raise
        finally:
            self._under_way -= 1

    def place_of(self, name: str, cookie: str) -> str:
        """Where on the page to go after a login that did not succeed: where its link pointed, if that is known."""
        begun = self._unseal(name, cookie)
        return "" if begun is None or begun.provider != name else begun.place

    async def make_trial(self, name: str) -> Trial:
        """A login to be tried; its address can be opened in any browser."""
        return await self.trials.make(name, f"{self.public_url}/api/v1/login/oidc/{name}")

    async def _finish_trial(self, id_: str, provider: OidcProvider, read: ProviderAnswer) -> FinishedLogin:
        trial = await self.trials.find(id_)
        if trial is None or trial.state != "waiting":
            raise Refused("this trial was used, or is too old.", "Begin another one.")
        claims, userinfo = hide_secrets(read.id_claims), hide_secrets(read.userinfo)
        problems = [read.userinfo_problem, "" if read.refresh_token else _NO_REFRESH]
        trial = replace(trial, claims=claims, userinfo=userinfo, problem=" ".join(filter(None, problems)))
        try:
            mapped = map_user(merge_claims(read.id_claims, read.userinfo), provider.settings.mapping)
            trial = trial.with_user(mapped)
            trial = trial.end(*await self._identities.foresee(_user(provider, read.subject, mapped)))
        except Refused as error:
            await self.trials.write(trial.refuse(error))
            raise
        await self.trials.write(trial)
        return FinishedLogin("")

    async def find_provider(self, secret: str) -> tuple[OidcProvider, str | None] | None:
        """The provider that began a session, and the ID token of then; None for a session of another kind."""
        row = (await self._database.execute(select(_table).where(_table.c.hash == hash_secret(secret)))).one_or_none()
        provider = None if row is None else self._of_issuer(row.provider)
        if row is None or provider is None:
            return None
        sealed = await self._open(row.sealed)
        return provider, None if sealed is None else sealed.id_token

    async def end_sessions(self, name: str, logout_token: str, address: str) -> int:
        """Back-channel logout: end what the provider says. Returns how many sessions. Raises Refused."""
        provider = self.providers[name]
        try:
            subject, sid = await self._read_logout(provider, logout_token)
        except Refused as error:
            line = f"a logout by {name} from {address} is refused: {error.message}"
            await self._audit.refuse_login(Caller(address=address), "logout", "", error.message, line)
            raise
        which = _table.c.provider == provider.settings.issuer
        if sid is not None:
            which &= _table.c.sid == sid
        if subject is not None:
            which &= _table.c.subject == subject
        # What the provider gave out may still count, as a logout there ends no account: it is asked at once.
        await self._database.execute(update(_table).where(which).values(due_at=self._now()))
        return await self._end_sessions(provider, which, "the provider has logged the user out")

    async def _read_logout(self, provider: OidcProvider, logout_token: str) -> tuple[str | None, str | None]:
        subject, sid, token_id = await provider.read_logout_token(logout_token)
        if not self._use(f"logout {token_id}"):
            raise Refused("the logout token was used before.")
        return subject, sid

    def _check(self, name: str, cookie: str, answer: Mapping[str, str]) -> _Begun:
        """What was begun, if this is its answer. Raises Refused."""
        begun = self._unseal(name, cookie)
        if begun is None:
            raise Refused(
                f"this login was not begun in this browser within the last {BEGUN_SECONDS // 60} minutes, or another "
                "one was begun since (no valid cookie).",
                "Log in again.",
            )
        if begun.provider != name:
            raise Refused("this login was begun with another provider.", "Log in again.")
        if not hmac.compare_digest(begun.state.encode(), answer.get("state", "").encode("utf-8", "replace")):
            raise Refused("this is the answer to another login (state).", "Log in again.")
        if not self._use(begun.state):
            raise Refused("this login was finished before (state).", "Log in again.")
        return begun

    def _use(self, mark: str) -> bool:
        """Whether it is used for the first time."""
        now = self._now()
        while self._used and (len(self._used) >= MAX_USED or next(iter(self._used.values())) < now - BEGUN_SECONDS):
            del self._used[next(iter(self._used))]
        if mark in self._used:
            return False
        self._used[mark] = now
        return True

    async def _read_answer(self, provider: OidcProvider, begun: _Begun, answer: Mapping[str, str]) -> ProviderAnswer:
        await provider.check_issuer(answer.get("iss"))
        if code := answer.get("error"):
            if code == "access_denied":
                raise Refused(f"{provider.label} says that the login was cancelled or is not allowed.", "Log in again.")
            raise Refused(f"{provider.label} refuses the login ({clean(code[:40])}).", "Ask an admin of this hub.")
        code = answer.get("code", "")
        if not 0 < len(code) <= 4096:
            raise Refused("the answer of the provider has no code.", "Log in again.")
        try:
            return await provider.redeem(code, begun.verifier, begun.nonce)
        except GrantEnded as error:
            raise Refused("the provider does not accept the code of this login.", "Log in again.") from error

    async def _enter(
        self, provider: OidcProvider, read: ProviderAnswer, mapped: MappedUser, address: str, user_agent: str
    ) -> tuple[Account, str]:
        settings = provider.settings
        sid = read.id_claims.get("sid")
        values = {
            "provider": settings.issuer,
            "subject": read.subject,
            "sid": sid if isinstance(sid, str) and len(sid) <= 255 else None,
            **await self._tokens(provider, read, None),
        }

        def also(session_hash: str, account: Account) -> Executable:
            return insert(_table).values(hash=session_hash, account_id=account.id, **values)

        user = _user(provider, read.subject, mapped)
        return await self._identities.log_in(user, address, user_agent, also)

    async def _tokens(self, provider: OidcProvider, read: ProviderAnswer, before: _Sealed | None) -> dict[str, object]:
        """The columns that change with each answer of the provider."""
        kept = before or _Sealed()
        sealed = _Sealed(read.refresh_token or kept.refresh_token, read.id_token or kept.id_token)
        settings = provider.settings
        wait = settings.expire if sealed.refresh_token is None else settings.refresh
        body = (await self._load_grant_box()).encrypt(msgspec.json.encode(sealed)).decode()
        return {"sealed": body, "due_at": self._now() + wait}

    async def _open(self, sealed: str) -> _Sealed | None:
        """None where it was sealed with another key."""
        try:
            return msgspec.json.decode((await self._load_grant_box()).decrypt(sealed.encode()), type=_Sealed)
        except (InvalidToken, msgspec.DecodeError):
            return None

    async def _load_grant_box(self) -> Fernet:
        """With the key that all hubs of a database have; the first one makes it."""
        if self._grant_box is None:
            name = "provider_grants"
            new = self._database.insert(_keys).values(name=name, key=Fernet.generate_key().decode())
            await self._database.execute(new.on_conflict_do_nothing())
            found = await self._database.execute(select(_keys.c.key).where(_keys.c.name == name))
            self._grant_box = Fernet(found.scalar_one())
        return self._grant_box

    def _of_issuer(self, issuer: str) -> OidcProvider | None:
        return next((one for one in self.providers.values() if one.settings.issuer == issuer), None)

    async def _note_refusal(
        self, provider: OidcProvider, begun: _Begun | None, error: GpudeckError, address: str
    ) -> None:
        """In the log; in the audit log only what a browser has begun here, as anybody can send callbacks."""
        line = f"a login through {provider.settings.name} from {address} is refused: {error.message}"
        subject = provider.label if begun is not None and not begun.trial else ""
        details = f"by {provider.settings.name}: {error.message}"
        await self._audit.refuse_login(Caller(address=address), "log in", subject, details, line)
        if begun is not None and begun.trial:
            trial = await self.trials.find(begun.trial)
            if trial is not None and trial.state == "waiting":
                await self.trials.write(replace(trial, state="refused", problem=str(error)))

    def _seal(self, name: str, begun: _Begun) -> str:
        return self._boxes[name].encrypt_at_time(msgspec.json.encode(begun), int(self._now())).decode()

    def _unseal(self, name: str, cookie: str) -> _Begun | None:
        """None for what was not sealed here lately. The key is that of one provider: the cookie of another is None."""
        try:
            body = self._boxes[name].decrypt_at_time(cookie.encode(), BEGUN_SECONDS, int(self._now()))
            return msgspec.json.decode(body, type=_Begun)
        except (InvalidToken, msgspec.DecodeError, UnicodeError):
            return None

    async def _watch(self) -> None:
        """Until it is cancelled."""
        while True:
            for provider in self.providers.values():
                with contextlib.suppress(Temporary):  # it is shown with the provider
                    await provider.document()
            try:
                await self.check_grants()
            except Temporary as error:
                log.debug("logins of providers cannot be checked: %s", error)
            except Exception:
                log.exception("logins of providers could not be checked")
            await asyncio.sleep(CHECK_SECONDS)

    async def check_grants(self) -> None:
        """Ask the providers about all users who are due, and have a session or tokens. Raises Temporary."""
        due = select(_table, *self._uses()).where(_table.c.due_at <= self._now())
        rows = (await self._database.execute(due.order_by(_table.c.due_at).limit(_MAX_CHECKS))).all()
        turns = asyncio.Semaphore(_CHECKS_AT_ONCE)

        async def check(row: Any) -> None:
            async with turns:
                await self._check_grant(row)

        await asyncio.gather(*map(check, rows))
        for provider in self.providers.values():
            await self._suspend_unasked(provider)

    def _uses(self) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        """Of a grant: whether its session goes on; and whether it is the one that answers for the account's tokens, as
        no other is left that could."""
        other, owner = _table.alias("other"), _accounts.alias("owner")
        goes_on = exists().where(_sessions.c.hash == other.c.hash)
        answers = ~exists().where(
            other.c.account_id == _table.c.account_id,
            other.c.provider == _table.c.provider,
            or_(other.c.hash > _table.c.hash, and_(other.c.hash != _table.c.hash, goes_on)),
        )
        has_tokens = exists().where(
            owner.c.id == _table.c.account_id, owner.c.is_disabled == 0, has_token(self._now(), owner)
        )
        return (
            exists().where(_sessions.c.hash == _table.c.hash).label("has_session"),
            and_(has_tokens, answers).label("is_for_tokens"),
        )

    async def _check_grant(self, row: Any) -> None:
        """Of several hubs one asks: a refresh token may count only once."""
        is_it = _table.c.hash == row.hash
        claim = update(_table).where(is_it, _table.c.due_at == row.due_at)
        async with self._database.begin() as connection:
            claimed = await connection.execute(claim.values(due_at=self._now() + RETRY_SECONDS))
        if not claimed.rowcount:
            return
        if not row.has_session and not row.is_for_tokens:
            await self._database.execute(delete(_table).where(is_it))
            return
        provider = self._of_issuer(row.provider)
        if provider is None:
            await self._end(None, row, "its provider is no longer configured")
            return
        sealed = await self._open(row.sealed)
        if sealed is None:
            await self._end(provider, row, "the hub has lost the key of its refresh token")
            return
        if sealed.refresh_token is None:
            await self._end(provider, row, "the provider has given no refresh token, so it cannot be asked")
            return
        name = provider.settings.name
        try:
            read = await provider.refresh(sealed.refresh_token, row.subject)
            if not await self._follow(provider, read):
                await self._end(provider, row, "the account is disabled or gone")
                return
        except GrantEnded as error:
            await self._end(provider, row, error.message)
        except Refused as error:
            log.warning("a login through %s is not confirmed, and tried again: %s", name, error)
        except Temporary as error:
            if name not in self._unconfirmed:
                log.warning("a login through %s is not confirmed, and tried again; users stay in: %s", name, error)
            self._unconfirmed.add(name)
        else:
            if name in self._unconfirmed:
                log.info("logins through %s are confirmed again", name)
            self._unconfirmed.discard(name)
            await self._database.execute(update(_table).where(is_it).values(await self._tokens(provider, read, sealed)))

    async def _follow(self, provider: OidcProvider, read: ProviderAnswer) -> bool:
        """Role, group and mail address of now; False for an account that is disabled. Raises GrantEnded for a user who
        may no longer log in."""
        claims = merge_claims(read.id_claims, read.userinfo)
        if find_claim(claims, provider.settings.mapping.name_claim) is None:
            # An answer without claims says no more than that the session goes on.
            return True
        try:
            mapped = map_user(claims, provider.settings.mapping)
        except Refused as error:
            raise GrantEnded(error.message) from error
        return await self._identities.confirm(_user(provider, read.subject, mapped)) is not None

    async def _end(self, provider: OidcProvider | None, row: Any, why: str) -> None:
        """The provider no longer answers for a login: its session ends, and with the last login the tokens."""
        is_it = _table.c.hash == row.hash
        await self._end_sessions(provider, is_it, why)
        is_left = select(_table.c.hash).where(_table.c.account_id == row.account_id).limit(1)
        async with self._database.begin() as connection:
            await connection.execute(delete(_table).where(is_it))
            left = (await connection.execute(is_left)).one_or_none()
            has_tokens = select(_accounts.c.id).where(_accounts.c.id == row.account_id, has_token(self._now()))
            is_last = left is None and (await connection.execute(has_tokens)).one_or_none() is not None
        if is_last:
            await self._identities.suspend(row.account_id, f"{_name_of(provider)}: {why}")

    async def _suspend_unasked(self, provider: OidcProvider) -> None:
        """Users with tokens of whom this provider can no longer be asked, and who have not logged in for `expire`."""
        identity, settings = _identities.c, provider.settings
        is_recent = identity.checked_at > self._now() - settings.expire
        blocks = schema.provider_blocks.c
        wanted = select(_accounts.c.id).where(
            _accounts.c.is_disabled == 0,
            exists().where(identity.account_id == _accounts.c.id, identity.provider == settings.issuer),
            ~exists().where(identity.account_id == _accounts.c.id, is_recent),
            ~exists().where(_table.c.account_id == _accounts.c.id),
            ~exists().where(blocks.account_id == _accounts.c.id),
            has_token(self._now()),
        )
        for account_id in (await self._database.execute(wanted.limit(_MAX_CHECKS))).scalars().all():
            why = "there was no login lately, and the provider cannot be asked"
            await self._identities.suspend(account_id, f"{settings.name}: {why}")

    async def _end_sessions(self, provider: OidcProvider | None, which: ColumnElement[bool], why: str) -> int:
        """Returns how many there were."""
        wanted = select(_table.c.hash, _accounts.c.name).join_from(_table, _accounts)
        wanted = wanted.where(which, exists().where(_sessions.c.hash == _table.c.hash))
        rows = (await self._database.execute(wanted)).all()
        name = _name_of(provider)
        async with self._database.begin() as connection:
            for row in rows:
                await connection.execute(delete(_sessions).where(_sessions.c.hash == row.hash))
                await connection.execute(self._audit.entry(HUB, "end session", row.name, details=f"{name}: {why}"))
        self._identities.sessions.forget()
        for row in rows:
            log.info("a session of %s through %s has ended: %s", row.name, name, why)
        return len(rows)


def _name_of(provider: OidcProvider | None) -> str:
    return "a provider" if provider is None else provider.settings.name


def check_place(place: str) -> str:
    """Where on the page to go after the login: a query and a fragment, never another page or site. Anything else
    becomes the page's beginning."""
    if not place:
        return ""
    is_inside = place[0] in "?#" and len(place) <= MAX_PLACE and place.isascii() and place.isprintable()
    if not is_inside or " " in place or "\\" in place:
        log.warning("a login leads to %s, which is not on this page: it goes to its beginning", repr(clean(place[:80])))
        return ""
    return place


def _make_box(secret: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.digest(secret.encode(), b"gpudeck oidc login", "sha256")))


def _user(provider: OidcProvider, subject: str, mapped: MappedUser) -> ProviderUser:
    settings = provider.settings
    return ProviderUser(settings.issuer, subject, settings.name, mapped, settings.mapping.link_accounts)
