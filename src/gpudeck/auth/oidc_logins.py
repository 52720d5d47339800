"""Logins through OIDC providers: begun with a redirect, finished at the callback, refreshed and ended by the provider.

What a login needs between its two ends is in an encrypted cookie of the browser that began it. So a callback that
another browser was made to open does nothing, an answer of one provider cannot be used for another, and thousands of
begun logins cost no memory. The keys for this come from the clients' secrets, which all hubs of a fleet know.
"""

import asyncio
import base64
import contextlib
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Executable, delete, insert, select, update

from gpudeck.auth.accounts import Account, hash_secret, make_secret
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.auth.claims import MappedUser, Reason, find_claim, map_user, merge_claims
from gpudeck.auth.identities import Identities, ProviderUser
from gpudeck.auth.oidc import GrantEnded, OidcProvider, ProviderAnswer, redirect_uri
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AccountRole, OidcSettings
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model import clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError, Refused, Temporary
from gpudeck.model.text import clean

log = logging.getLogger(__name__)

BEGUN_SECONDS: Final = 600
"""So long a login may take between its two ends."""
MOST_AT_ONCE: Final = 32
"""Callbacks under way. More are refused at once, and may be tried again."""
MAX_USED: Final = 20_000
MAX_TRIALS: Final = 20
MAX_PLACE: Final = 2_000
CHECK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 60.0
"""After so long a provider that did not answer is asked again about a session."""
_CHECKS_AT_ONCE: Final = 8
_MAX_CHECKS: Final = 200
_HIDDEN = frozenset({"at_hash", "c_hash", "s_hash", "nonce", "jti", "sid"})
_sessions, _table = schema.sessions, schema.provider_sessions


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


class Trial(Struct, frozen=True):
    """One login that an admin tries: nobody is logged in by it. `claims` and `userinfo` are as the provider sent them,
    without those that are secret."""

    id: str
    provider: str
    url: str
    created_at: float
    state: Literal["waiting", "done", "refused"] = "waiting"
    problem: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    role: AccountRole | None = None
    group: str | None = None
    mail: str | None = None
    reasons: list[Reason] = field(default_factory=list)


class FinishedLogin(Struct, frozen=True):
    """`place` is where on the page the user wanted to go; `secret` is for the cookie, and None for a trial."""

    place: str
    account: Account | None = None
    secret: str | None = None


class OidcLogins:
    """All providers of the configuration. `start`, later `close`."""

    def __init__(
        self,
        settings: Sequence[OidcSettings],
        public_url: str,
        *,
        database: Database,
        identities: Identities,
        sessions: Sessions,
        audit: Audit,
        now: clock.Clock = clock.wall,
    ) -> None:
        """Raises UsageError for a file that cannot be read."""
        self.public_url = public_url.rstrip("/")
        self.providers = {one.name: OidcProvider(one, redirect_uri(public_url, one.name), now) for one in settings}
        self.trials: deque[Trial] = deque(maxlen=MAX_TRIALS)
        self._database = database
        self._identities = identities
        self._sessions_store = sessions
        self._audit = audit
        self._now = now
        self._boxes = {name: _make_box(provider.secret) for name, provider in self.providers.items()}
        self._used: dict[str, float] = {}
        self._under_way = 0
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
                self._show_claims(begun.trial, read)
            mapped = map_user(merge_claims(read.id_claims, read.userinfo), provider.settings.mapping)
            if begun.trial:
                self._show_user(begun.trial, mapped)
                return FinishedLogin("")
            account, secret = await self._enter(provider, read, mapped, address, user_agent)
            return FinishedLogin(begun.place, account, secret)
        except GpudeckError as error:
            await self._note_refusal(provider, begun, error, address)
            raise
        finally:
            self._under_way -= 1

    def make_trial(self, name: str) -> Trial:
        """A login to be tried; its address can be opened in any browser."""
        id_ = make_secret()
        url = f"{self.public_url}/api/v1/login/oidc/{name}?trial={id_}"
        trial = Trial(id_, name, url, self._now())
        self.trials.appendleft(trial)
        return trial

    def find_trial(self, id_: str) -> Trial | None:
        """None for one that never was, or is too old."""
        found = next((trial for trial in self.trials if hmac.compare_digest(trial.id.encode(), id_.encode())), None)
        return found if found is not None and self._now() - found.created_at < 2 * BEGUN_SECONDS else None

    async def find_provider(self, secret: str) -> tuple[OidcProvider, str | None] | None:
        """The provider that began a session, and the ID token of then; None for a session of another kind."""
        row = (await self._database.execute(select(_table).where(_table.c.hash == hash_secret(secret)))).one_or_none()
        provider = None if row is None else self._of_issuer(row.provider)
        if row is None or provider is None:
            return None
        return provider, self._open(provider, row.sealed).id_token

    async def end_sessions(self, name: str, logout_token: str) -> int:
        """Back-channel logout: end what the provider says. Returns how many sessions. Raises Refused."""
        provider = self.providers[name]
        subject, sid, token_id = await provider.read_logout_token(logout_token)
        if not self._use(f"logout {token_id}"):
            raise Refused("the logout token was used before.")
        which = _table.c.provider == provider.settings.issuer
        if sid is not None:
            which &= _table.c.sid == sid
        if subject is not None:
            which &= _table.c.subject == subject
        return await self._end(provider, which, "the provider has logged the user out")

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
            **self._tokens(provider, read, None),
        }

        def also(session_hash: str) -> Executable:
            return insert(_table).values(hash=session_hash, **values)

        user = _user(provider, read.subject, mapped)
        return await self._identities.log_in(user, address, user_agent, also)

    def _tokens(self, provider: OidcProvider, read: ProviderAnswer, before: _Sealed | None) -> dict[str, object]:
        """The columns that change with each answer of the provider."""
        kept = before or _Sealed()
        sealed = _Sealed(read.refresh_token or kept.refresh_token, read.id_token or kept.id_token)
        settings = provider.settings
        wait = settings.expire if sealed.refresh_token is None else settings.refresh
        body = self._boxes[settings.name].encrypt(msgspec.json.encode(sealed)).decode()
        return {"sealed": body, "due_at": self._now() + wait}

    def _open(self, provider: OidcProvider, sealed: str) -> _Sealed:
        """Empty where it was sealed with another secret of the client."""
        try:
            return msgspec.json.decode(self._boxes[provider.settings.name].decrypt(sealed.encode()), type=_Sealed)
        except (InvalidToken, msgspec.DecodeError):
            return _Sealed()

    def _of_issuer(self, issuer: str) -> OidcProvider | None:
        return next((one for one in self.providers.values() if one.settings.issuer == issuer), None)

    async def _note_refusal(
        self, provider: OidcProvider, begun: _Begun | None, error: GpudeckError, address: str
    ) -> None:
        """In the log; in the audit log only what a browser has begun here, as anybody can send callbacks."""
        log.warning("a login through %s from %s is refused: %s", provider.settings.name, address, error.message)
        if begun is not None and not begun.trial:
            caller = Caller(address=address)
            details = f"by {provider.settings.name}: {error.message}"
            await self._audit.record(caller, "log in", provider.label, outcome="refused", details=details)
        if begun is not None and begun.trial:
            self._change_trial(begun.trial, state="refused", problem=str(error))

    def _change_trial(self, id_: str, **changes: Any) -> None:
        self.trials = deque(
            (replace(trial, **changes) if trial.id == id_ else trial for trial in self.trials), maxlen=MAX_TRIALS
        )

    def _show_claims(self, id_: str, read: ProviderAnswer) -> None:
        problem = read.userinfo_problem
        self._change_trial(id_, claims=_shown(read.id_claims), userinfo=_shown(read.userinfo), problem=problem)

    def _show_user(self, id_: str, user: MappedUser) -> None:
        role = user.role or user.role_if_new
        told = {"name": user.name, "role": role, "group": user.group, "mail": user.mail, "reasons": list(user.reasons)}
        self._change_trial(id_, state="done", **told)

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
                await self.check_sessions()
            except Temporary as error:
                log.debug("sessions of providers cannot be checked: %s", error)
            except Exception:
                log.exception("sessions of providers could not be checked")
            await asyncio.sleep(CHECK_SECONDS)

    async def check_sessions(self) -> None:
        """Ask the providers about all sessions that are due. Raises Temporary."""
        due = select(_table).where(_table.c.due_at <= self._now()).order_by(_table.c.due_at).limit(_MAX_CHECKS)
        rows = (await self._database.execute(due)).all()
        turns = asyncio.Semaphore(_CHECKS_AT_ONCE)

        async def check(row: Any) -> None:
            async with turns:
                await self._check_session(row)

        await asyncio.gather(*map(check, rows))

    async def _check_session(self, row: Any) -> None:
        """Of several hubs one asks: a refresh token may count only once."""
        is_it = _table.c.hash == row.hash
        claim = update(_table).where(is_it, _table.c.due_at == row.due_at)
        async with self._database.begin() as connection:
            claimed = await connection.execute(claim.values(due_at=self._now() + RETRY_SECONDS))
        if not claimed.rowcount:
            return
        provider = self._of_issuer(row.provider)
        if provider is None:
            await self._end(None, is_it, "its provider is no longer configured")
            return
        sealed = self._open(provider, row.sealed)
        if sealed.refresh_token is None:
            await self._end(provider, is_it, "the provider has given no refresh token, so it cannot be asked")
            return
        try:
            read = await provider.refresh(sealed.refresh_token, row.subject)
            if not await self._follow(provider, read):
                await self._end(provider, is_it, "the account is disabled or gone")
                return
        except GrantEnded as error:
            await self._end(provider, is_it, error.message)
        except (Temporary, Refused) as error:
            log.warning("a session of %s is not confirmed, and tried again: %s", provider.settings.name, error)
        else:
            await self._database.execute(update(_table).where(is_it).values(self._tokens(provider, read, sealed)))

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

    async def _end(self, provider: OidcProvider | None, which: ColumnElement[bool], why: str) -> int:
        accounts = schema.accounts
        wanted = select(_table.c.hash, accounts.c.name).join_from(_table, _sessions).join(accounts).where(which)
        rows = (await self._database.execute(wanted)).all()
        name = "a provider" if provider is None else provider.settings.name
        async with self._database.begin() as connection:
            for row in rows:
                await connection.execute(delete(_sessions).where(_sessions.c.hash == row.hash))
                await connection.execute(self._audit.entry(_HUB, "end session", row.name, details=f"{name}: {why}"))
        self._sessions_store.forget()
        for row in rows:
            log.info("a session of %s through %s has ended: %s", row.name, name, why)
        return len(rows)


_HUB = Caller(kind="local", role="admin", name="the hub")


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


def _shown(claims: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "(hidden)" if name in _HIDDEN else value for name, value in claims.items()}
