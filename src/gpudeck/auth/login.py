"""Logging in with a name and a password: slow for an attacker who guesses, without saying which of the two was wrong.

The first account of a hub is created with a link that the hub prints at its start.
"""

import asyncio
import contextlib
import hmac
import math
import unicodedata
from collections.abc import AsyncIterator, Callable, Sized
from time import monotonic
from typing import Protocol, TypeVar

from msgspec import Struct
from sqlalchemy import Executable

from gpudeck.auth.accounts import Account, Accounts, Also, Passwords, hash_secret, make_secret
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import read_name
from gpudeck.model import clock
from gpudeck.model.backoff import pause_after
from gpudeck.model.errors import Refused, RequestRefused, Temporary
from gpudeck.server.addresses import count_as
from gpudeck.server.rate_limits import FairQueue, RateLimiter

FREE_TRIES = 5
"""Of one name from one address, before any wait."""
MAX_WAIT = 300.0
FORGET_AFTER = 3600.0
"""How long after the last failure of a name from one address nothing is left of it."""
ADDRESS_BURST = 20
ADDRESS_REFILL_SECONDS = 90.0
"""Each so often an address gets another try: 60 within any hour, all names together."""
NAME_BURST = 100
NAME_REFILL_SECONDS = 30.0
NAME_WAIT = 3.0
TURN_SECONDS = 30.0
"""How long it is remembered at least that an address has waited for a name."""
MAX_KEPT = 10_000
"""Of each kind of counter. When there are more, that which changed longest ago goes."""

_ROUNDING = 0.001
_Pair = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Streak(Struct):
    """Failures one after another."""

    count: int
    at: float


class LoginThrottle:
    """How long to wait after failed logins: long enough against guessing, never so long that an attacker locks out
    the account's owner. `now` is a monotonic clock in seconds.

    Three things are counted, all in memory. A name from one address: after a few tries each failure doubles the wait.
    An address, whatever the names: a number of tries an hour. A name, wherever the tries come from: past a great number
    of them an address that is new to it waits a few seconds, once for each try, whatever others do meanwhile. An
    address from which a name logged in before answers for that name alone.

    Between `wait_before` and `note_failure` nothing may be awaited: of many tries at once each has to count before the
    next is let through. So a try is noted as a failure when it begins, and `note_success` takes that back.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._streaks: dict[_Pair, _Streak] = {}
        self._addresses = RateLimiter(
            "failed logins of an address", 1 / ADDRESS_REFILL_SECONDS, ADDRESS_BURST, max_callers=MAX_KEPT
        )
        self._names = RateLimiter("failed logins of a name", 1 / NAME_REFILL_SECONDS, NAME_BURST, max_callers=MAX_KEPT)
        self._told: dict[_Pair, float] = {}
        self._friends: dict[_Pair, None] = {}

    def __len__(self) -> int:
        """Entries of its longest table."""
        tables: tuple[Sized, ...] = (self._streaks, self._addresses, self._names, self._told, self._friends)
        return max(len(table) for table in tables)

    def wait_before(self, name: str, address: str) -> float:
        """Seconds until that name may be tried from that address; 0: now."""
        pair, now = _pair_of(name, address), self._now()
        wait = self._wait_of_pair(pair, now)
        if pair not in self._friends:
            wait = max(wait, self._addresses.wait(pair[1], now))
            wait = wait or self._wait_of_name(pair, now)
        return wait if wait > _ROUNDING else 0.0

    def note_failure(self, name: str, address: str) -> None:
        pair, now = _pair_of(name, address), self._now()
        streak = self._live_streak(pair, now)
        _put(self._streaks, pair, _Streak(streak.count + 1 if streak else 1, now))
        self._addresses.charge(pair[1], now, 1)
        self._names.charge(pair[0], now, 1)
        self._told.pop(pair, None)

    def note_success(self, name: str, address: str) -> None:
        """Takes back the failure that this try was noted as. Others of the same address stay: an attacker with an
        account could otherwise erase failed guesses at other names with it."""
        pair = _pair_of(name, address)
        self._streaks.pop(pair, None)
        self._addresses.charge(pair[1], self._now(), -1)
        self._names.charge(pair[0], self._now(), -1)
        _put(self._friends, pair, None)

    def _wait_of_pair(self, pair: _Pair, now: float) -> float:
        streak = self._live_streak(pair, now)
        if streak is None or streak.count < FREE_TRIES:
            return 0.0
        wait = pause_after(streak.count - FREE_TRIES + 1, 1.0, MAX_WAIT)
        return max(0.0, streak.at + wait - now)

    def _live_streak(self, pair: _Pair, now: float) -> _Streak | None:
        streak = self._streaks.get(pair)
        if streak is None or now - streak.at >= FORGET_AFTER:
            return None
        return streak

    def _wait_of_name(self, pair: _Pair, now: float) -> float:
        """A caller who waited as asked may try, even if a thousand others failed meanwhile."""
        if not self._names.wait(pair[0], now):
            return 0.0
        until = self._told.get(pair)
        if until is not None:
            return min(NAME_WAIT, max(0.0, until - now))
        if not self._may_record_failure(now):
            return 0.0
        self._told[pair] = now + NAME_WAIT
        return NAME_WAIT

    def _may_record_failure(self, now: float) -> bool:
        """No turn is forgotten to note another one: in such a flood a name's own limit is of no use any more."""
        while len(self._told) >= MAX_KEPT:
            oldest = next(iter(self._told))
            if self._told[oldest] > now - TURN_SECONDS:
                return False
            del self._told[oldest]
        return True


def _pair_of(name: str, address: str) -> _Pair:
    return name[:64].lower(), count_as(address[:64])


def _put(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Puts it behind all others; the first goes when there are too many."""
    kept.pop(key, None)
    if len(kept) >= MAX_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


AT_ONCE = 8
"""Logins under way. More would only wait for each other: two passwords are compared at a time."""
MAX_WAITING = 24
"""When more wait, that of the address with the most attempts lately is refused."""
_ATTEMPT_SECONDS = 30.0
"""After so long without another one an attempt no longer makes an address wait behind others."""
_BUSY_SECONDS = 2.0
REFUSAL_SECONDS = 1.0
_T = TypeVar("_T")
VALID_SECONDS = 3600.0
_NO_LINK = (
    "this link does not work: it was used, is older than an hour, or the hub was restarted since. The hub prints a new "
    "link at each start. Or run `gpudeck account add NAME --role admin` on its machine."
)


class LoginRefused(RequestRefused):
    """The login was refused. `retry_after` is 0 when the name and the password were compared."""

    def __init__(self, message: str, hint: str = "", retry_after: float = 0.0) -> None:
        status, code = (429, "too_many") if retry_after else (401, "login_refused")
        # The page shows the message only.
        super().__init__(status, code, f"{message} {hint}".rstrip(), retry_after=retry_after)


class DirectoryUnavailable(Temporary):
    """The directory of users cannot be asked."""


class Directory(Protocol):
    """Where else names and passwords are known: LDAP."""

    async def log_in(self, name: str, password: str, address: str, user_agent: str) -> tuple[Account, str] | None:
        """The account and the secret of its new session. None where name and password do not fit. Raises Refused, in
        words for the user, and DirectoryUnavailable."""


class Login:
    """Logs people in. Makes `sessions` forget at once what it knows of an account that `accounts` changes. What the
    hub itself does not know, `directory` is asked."""

    def __init__(
        self,
        accounts: Accounts,
        sessions: Sessions,
        passwords: Passwords,
        throttle: LoginThrottle,
        audit: Audit,
        *,
        takes_passwords: bool = True,
        directory: Directory | None = None,
    ) -> None:
        self._accounts = accounts
        self._directory = directory
        self._sessions = sessions
        self._passwords = passwords
        self.throttle = throttle
        self._audit = audit
        self._takes_passwords = takes_passwords
        self._attempts = RateLimiter("attempts to log in of an address", 1 / _ATTEMPT_SECONDS, 1)
        busy = "too many users are logging in right now."
        self._queue = FairQueue(self._attempts, MAX_WAITING, slots=AT_ONCE, refusal=busy)
        accounts.watch(sessions.forget)

    async def log_in(self, name: str, password: str, address: str, user_agent: str) -> tuple[Account, str]:
        """The account, and the secret for the cookie of its new session.

        Raises LoginRefused, with the same text and after the same work for an unknown name, a wrong password,
        an account without one, and a disabled account; Temporary when the database does not answer.
        """
        began = monotonic()
        try:
            return await self._log_in(name, password, address, user_agent)
        except LoginRefused as refusal:
            if self._directory is not None and not refusal.retry_after:
                # How long a directory takes depends on the name: refusals take whole seconds.
                await asyncio.sleep((began - monotonic()) % REFUSAL_SECONDS)
            raise

    async def _log_in(self, name: str, password: str, address: str, user_agent: str) -> tuple[Account, str]:
        async with self._turn(name, address) as counted:
            account, password_hash = await self._compare(name, password)
            started, away = None, None
            if account is not None and password_hash is not None:
                started = await self._start(account, password_hash, password, address, user_agent)
            elif self._directory is not None:
                # Also a name that no account can have, such as a mail address with +: the entry names the account.
                asked = read_name(name) or name
                try:
                    started = await self._directory.log_in(asked, password, address, user_agent)
                except Refused as error:
                    raise LoginRefused(error.message, error.hint) from error
                except DirectoryUnavailable as error:
                    away = error
            return await self._pass("log in", started, account, counted, address, away=away)

    async def change_password(
        self, name: str, old: str, new: str, address: str, user_agent: str
    ) -> tuple[Account, str]:
        """The account with its new password, and the secret for the cookie of its only session.

        Raises UsageError for a new one that will not do, before the old one is looked at, and LoginRefused and
        Temporary as `log_in` does. Then everything stays as it was.
        """
        self._passwords.check(new, name)
        async with self._turn(name, address) as counted:
            account, password_hash = await self._compare(name, old)
            changed = None
            if account is not None and password_hash is not None:
                secret, also = self.begin("change password", address, user_agent)
                replaced = await self._accounts.replace_password(account, password_hash, new, also)
                changed = None if replaced is None else (replaced, secret)
            return await self._pass("change password", changed, account, counted, address)

    @contextlib.asynccontextmanager
    async def _turn(self, name: str, address: str) -> AsyncIterator[str]:
        """One try, under the name as it is counted: it is a failure until it has passed. Raises LoginRefused."""
        counted, caller = fold_name(name), count_as(address[:64])
        self._check_turn(counted, address)
        self._attempts.charge(caller, monotonic(), 1)
        try:
            await self._queue.acquire(caller)
        except Temporary as error:
            hint = f"Try again in {describe_wait(_BUSY_SECONDS)}."
            raise LoginRefused(error.message, hint, retry_after=_BUSY_SECONDS) from error
        try:
            # Others of this name or address may have failed meanwhile.
            self._check_turn(counted, address)
            self.throttle.note_failure(counted, address)
            yield counted
        finally:
            self._queue.release()

    def _check_turn(self, name: str, address: str) -> None:
        """Raises LoginRefused when this address may not try that name now."""
        if not self._takes_passwords and self._directory is None:
            raise LoginRefused("this hub takes no passwords.", "Log in through one of its providers.")
        wait = self.throttle.wait_before(name, address)
        if wait > 0:
            hint = f"Try again in {describe_wait(wait)}."
            raise LoginRefused("too many failed logins.", hint, retry_after=wait)

    async def _compare(self, name: str, password: str) -> tuple[Account | None, str | None]:
        """Who has that name; and the hash of the password, if it is that one and they may use it. The same work for
        everybody."""
        account, password_hash = await self._accounts.find_with_hash(name)
        is_right = await self._passwords.verify(password_hash, password) and self._takes_passwords
        return account, password_hash if is_right and account is not None and not account.is_disabled else None

    async def _pass(
        self,
        action: str,
        done: _T | None,
        account: Account | None,
        name: str,
        address: str,
        *,
        away: DirectoryUnavailable | None = None,
    ) -> _T:
        """Raises LoginRefused where it was not done. Unknown names are left out of the audit log: people type their
        password there by mistake. `away` is why the directory could not be asked."""
        if done is None:
            subject = account.name if account is not None else "a name that nobody has"
            details = "" if away is None else away.message
            line = f"{action} as {subject} from {address} is refused: {details or 'the name or the password is wrong'}"
            await self._audit.refuse_login(Caller(address=address), action, subject, details, line)
            if away is not None:
                raise LoginRefused(
                    f"the name or the password is wrong, or {away.message}", away.hint if self._takes_passwords else ""
                )
            raise LoginRefused("the name or the password is wrong.", "Try again, or ask an admin for a new password.")
        self.throttle.note_success(name, address)
        return done

    async def _start(
        self, account: Account, password_hash: str, password: str, address: str, user_agent: str
    ) -> tuple[Account, str] | None:
        """None when the account changed while its password was compared: that password counts no more."""
        renewed = await self._passwords.hash(password) if self._passwords.is_outdated(password_hash) else None
        secret, also = self.begin("log in", address, user_agent)
        seen = await self._accounts.note_login(account, password_hash, renewed, also)
        self._sessions.forget(account.id)
        return None if seen is None else (seen, secret)

    def begin(self, action: str, address: str, user_agent: str) -> tuple[str, Also]:
        """The secret of a new session, and what starts it, with an entry in the audit log, when it is written with a
        change of the account."""
        secret, start = self._sessions.begin(address, user_agent)

        def also(account: Account) -> list[Executable]:
            caller = Caller("account", account.role, account.name, account.id, address=address)
            return [*start(account), self._audit.entry(caller, action, account.name)]

        return secret, also


def fold_name(name: str) -> str:
    """One text for all spellings of a name that a directory may take for the same (case, spaces, width, accents): each
    would have attempts of its own."""
    return read_name(name) or "".join(filter(str.isalnum, unicodedata.normalize("NFKD", name).casefold()))


def describe_wait(seconds: float) -> str:
    """Rounded up, so that waiting so long is enough."""
    whole = math.ceil(seconds)
    if whole >= 120:
        return f"{math.ceil(whole / 60)} minutes"
    return "1 second" if whole == 1 else f"{whole} seconds"


class FirstAdmin:
    """A secret that makes one admin, once. It is in memory as its hash, and gone when the hub ends."""

    def __init__(self, accounts: Accounts, now: clock.Clock = clock.wall) -> None:
        self._accounts = accounts
        self._now = now
        self._hash: str | None = None
        self._made_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a secret that was not used and is not too old."""
        return self._hash is not None and 0 <= self._now() - self._made_at <= VALID_SECONDS

    async def make(self, secret: str | None = None) -> str | None:
        """The secret, which replaces an earlier one; None where there is any account already. `secret` is one that was
        printed before: it is valid for another hour."""
        if await self._accounts.count():
            self._hash = None
            return None
        secret = secret or make_secret()
        self._hash, self._made_at = hash_secret(secret), self._now()
        return secret

    async def redeem(self, secret: str, name: str, password: str, also: Also) -> Account:
        """The new admin; `also` starts their session. Raises RequestRefused for a secret that is wrong, used or old,
        and if there is an account by now, and UsageError for a bad name or password: then it can be used again."""
        taken = self._hash
        if taken is None or not self.is_open or not hmac.compare_digest(taken, hash_secret(secret)):
            raise RequestRefused(403, "forbidden", _NO_LINK)
        # Of two requests at once the second is refused.
        self._hash = None
        try:
            has_accounts = await self._accounts.count() > 0
            account = None if has_accounts else await self._accounts.add(name, "admin", password, also, logs_in=True)
        except BaseException:
            self._hash = taken
            raise
        if account is None:
            raise RequestRefused(403, "forbidden", "this hub has accounts by now. Log in with one of them.")
        return account
