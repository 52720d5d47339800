"""Log in with a name and a password: slow for whoever guesses, and silent about what was wrong."""

import contextlib
import math
from collections.abc import AsyncIterator
from typing import TypeVar

from gpudeck.auth.accounts import Account, Accounts
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.auth.passwords import Passwords
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import read_name
from gpudeck.auth.throttle import Throttle
from gpudeck.model.errors import GpudeckError, UsageError

MOST_AT_ONCE = 32
"""Logins under way. More would only wait for each other: two passwords are compared at a time."""
_BUSY_SECONDS = 2.0
_T = TypeVar("_T")


class LoginRefused(GpudeckError):
    """Nobody was logged in. `retry_after` is in seconds, 0 when the name and the password were looked at."""

    def __init__(self, message: str, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class Login:
    """Logs people in. Makes `sessions` forget at once what it knows of an account that `accounts` changes."""

    def __init__(
        self, accounts: Accounts, sessions: Sessions, passwords: Passwords, throttle: Throttle, audit: Audit
    ) -> None:
        self._accounts = accounts
        self._sessions = sessions
        self._passwords = passwords
        self._throttle = throttle
        self._audit = audit
        self._under_way = 0
        accounts.watch(sessions.forget)

    async def log_in(self, name: str, password: str, address: str, user_agent: str) -> tuple[Account, str]:
        """The account, and the secret for the cookie of its new session.

        Raises LoginRefused, with the same text and after the same work for a name that nobody has, a wrong password,
        an account without one, and a disabled account; Temporary when the database does not answer.
        """
        async with self._turn(name, address) as tried:
            account, password_hash = await self._compare(tried, password)
            started = None
            if account is not None and password_hash is not None:
                started = await self._start(account, password_hash, password, address, user_agent)
            await self._record("log in", account, address, is_done=started is not None)
            return self._pass(started, tried, address)

    async def change_password(self, name: str, old: str, new: str, address: str) -> Account:
        """The account with its new password, and without any session.

        Raises UsageError for a new one that will not do, before the old one is looked at, and LoginRefused and
        Temporary as `log_in` does. Then everything stays as it was.
        """
        self._accounts.check_password(name, new)
        async with self._turn(name, address) as tried:
            account, password_hash = await self._compare(tried, old)
            changed = None
            if account is not None and password_hash is not None:
                changed = await self._accounts.replace_password(account, password_hash, new)
            await self._record("change password", account, address, is_done=changed is not None)
            return self._pass(changed, tried, address)

    @contextlib.asynccontextmanager
    async def _turn(self, name: str, address: str) -> AsyncIterator[str]:
        """One try, under the name as it is counted: it is a failure until it has passed. Raises LoginRefused."""
        tried = read_name(name) or name
        self._check_turn(tried, address)
        self._throttle.note_failure(tried, address)
        self._under_way += 1
        try:
            yield tried
        finally:
            self._under_way -= 1

    def _check_turn(self, name: str, address: str) -> None:
        """Raises LoginRefused when it is not this address's turn to try that name, or nobody's."""
        wait = self._throttle.wait_before(name, address)
        if wait > 0:
            hint = f"Try again in {describe_wait(wait)}."
            raise LoginRefused("there were too many failed tries to log in.", hint, retry_after=wait)
        if self._under_way >= MOST_AT_ONCE:
            hint = f"Try again in {describe_wait(_BUSY_SECONDS)}."
            raise LoginRefused("too many people log in at this moment.", hint, retry_after=_BUSY_SECONDS)

    async def _compare(self, name: str, password: str) -> tuple[Account | None, str | None]:
        """Who has that name; and the hash of the password, if it is that one and they may use it. The same work for
        everybody."""
        account, password_hash = await self._accounts.find_with_hash(name)
        is_right = await self._passwords.verify(password_hash, password)
        return account, password_hash if is_right and account is not None and not account.is_disabled else None

    def _pass(self, done: _T | None, name: str, address: str) -> _T:
        if done is None:
            raise LoginRefused("the name or the password is wrong.", "Ask an admin of this hub if you cannot log in.")
        self._throttle.note_success(name, address)
        return done

    async def _start(
        self, account: Account, password_hash: str, password: str, address: str, user_agent: str
    ) -> tuple[Account, str] | None:
        """None when the account changed while its password was compared: that password counts no more."""
        renewed = await self._passwords.hash(password) if self._passwords.is_outdated(password_hash) else None
        try:
            secret = await self._sessions.start(account, address, user_agent)
        except UsageError:
            return None
        # Only now is it asked whether the password still counts: a change of it ends all sessions that it finds.
        seen = await self._accounts.note_login(account, password_hash, renewed)
        if seen is None:
            await self._sessions.end(secret)
            return None
        return seen, secret

    async def _record(self, action: str, account: Account | None, address: str, *, is_done: bool) -> None:
        """Names that nobody has are left out: people type their password there by mistake."""
        caller = Caller(address=address)
        if account is not None and is_done:
            caller = Caller("account", account.role, account.name, account.id, address=address)
        subject = account.name if account is not None else "a name that nobody has"
        await self._audit.record(caller, action, subject, outcome="done" if is_done else "refused")


def describe_wait(seconds: float) -> str:
    """Rounded up: whoever waits so long may go."""
    whole = math.ceil(seconds)
    if whole >= 120:
        return f"{math.ceil(whole / 60)} minutes"
    return "1 second" if whole == 1 else f"{whole} seconds"
