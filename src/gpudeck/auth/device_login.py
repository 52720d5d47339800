"""Logging in programs such as `gpudeck login`, in the shape of the device authorization grant (RFC 8628): the program
shows a code, a user who is logged in on the page confirms it, and the program gets a personal token. It works with
every way of logging in, because the page has done that.

With a `port` the confirmation also goes to a listener of the program on the machine of the browser, and the token is
given out only together with what arrives there: a code that another user began is worth nothing to them then.
"""

import hmac
import secrets
from collections.abc import Callable
from time import monotonic
from typing import Final, Literal

from msgspec import Struct
from sqlalchemy import delete, func, insert, select, update

from gpudeck.auth.accounts import hash_secret, make_secret
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller, check_token
from gpudeck.auth.tokens import Token, Tokens
from gpudeck.database import schema
from gpudeck.model.errors import RequestRefused, UsageError
from gpudeck.model.text import clean
from gpudeck.server.addresses import count_as
from gpudeck.server.rate_limits import RateLimiter

VALID_SECONDS: Final = 600.0
POLL_SECONDS: Final = 2.0
"""How long a program waits between two questions."""
MAX_PENDING: Final = 1000
CODE_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that no code is a word, and nothing that looks like a digit."""
CODE_LENGTH: Final = 8
_table, _accounts = schema.device_logins, schema.accounts


class DeviceLogin(Struct, frozen=True):
    """A login that a program has begun. `device_code` is the program's secret; the user compares `user_code` at
    `verification_uri`. Without `public_url` that is null: the page is where the program has reached the hub. Seconds.
    """

    device_code: str
    user_code: str
    verification_uri: str | None
    expires_in: float
    interval: float


class PendingLogin(Struct, frozen=True):
    """What the user sees before they confirm: `name` is what the program calls itself, `address` where it asked from.
    Times are Unix seconds; the token would be valid for `token_seconds`."""

    user_code: str
    name: str
    address: str
    created_at: float
    expires_at: float
    token_seconds: float


Refusal = Literal["authorization_pending", "slow_down", "access_denied", "expired_token"]


class DeviceRefused(RequestRefused):
    """No token yet, or none at all; `code` is one of RFC 8628."""

    def __init__(self, code: Refusal, message: str, hint: str = "") -> None:
        super().__init__(400, code, message, hint)


class TooManyLogins(RequestRefused):
    """Wait for `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(429, "too_many", f"{message} Try again later.", retry_after=retry_after)


class DeviceLogins:
    """All that are under way. They are in the database: another hub may be asked next. Everything raises Temporary when
    the database does not answer. `monotonic` is a clock in seconds for the limits."""

    def __init__(self, tokens: Tokens, audit: Audit, now: Callable[[], float] = monotonic) -> None:
        self._tokens = tokens
        self._database = tokens.database
        self._audit = audit
        self._monotonic = now
        self._begins = RateLimiter("device logins of an address", 1 / 30, 10)
        self._polls = RateLimiter("questions about a device login", 2 / POLL_SECONDS, 5)
        self._tries = RateLimiter("device codes tried by an account", 1 / 10, 10)

    async def begin(
        self, name: str, token_seconds: float, address: str, port: int | None = None, public_url: str | None = None
    ) -> DeviceLogin:
        """Raises UsageError for a name that no token can have, and TooManyLogins."""
        now, wall = self._monotonic(), self._tokens.now()
        check_token(name, "viewer", None, None, wall)
        if wait := self._begins.take(count_as(address), now):
            raise TooManyLogins("too many logins were begun from this address.", wait)
        device_code = make_secret()
        user_code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        values = {
            "hash": hash_secret(device_code),
            "user_code": user_code,
            "name": name,
            "address": clean(address[:64]),
            "created_at": wall,
            "expires_at": wall + VALID_SECONDS,
            "token_seconds": token_seconds,
            "port": port,
        }
        async with self._database.begin() as connection:
            await connection.execute(delete(_table).where(_table.c.expires_at <= wall))
            pending = (await connection.execute(select(func.count()).select_from(_table))).scalar_one()
            if pending >= MAX_PENDING:
                raise TooManyLogins("too many logins wait for their confirmation.", VALID_SECONDS / 10)
            await connection.execute(insert(_table).values(values))
        page = None if public_url is None else f"{public_url.rstrip('/')}/#/device"
        return DeviceLogin(device_code, show_code(user_code), page, VALID_SECONDS, POLL_SECONDS)

    async def find(self, user_code: str, account_id: int) -> PendingLogin | None:
        """What waits under that code, however it is typed. Raises TooManyLogins for an account that tries many."""
        row = await self._find(user_code, account_id)
        return None if row is None else row[0]

    async def decide(self, user_code: str, caller: Caller, *, is_approved: bool) -> str | None:
        """Confirm or deny a login, as an account. Returns the address to which the browser goes with the confirmation;
        empty where the program asks by itself; None where nothing waits under that code. Raises as `find` does."""
        if caller.account_id is None:
            raise UsageError("only an account can confirm a login.", "Log in with an account.")
        found = await self._find(user_code, caller.account_id)
        if found is None:
            return None
        pending, port = found
        code = make_secret() if is_approved and port is not None else None
        values = {
            "account_id": caller.account_id,
            "is_denied": int(not is_approved),
            "code_hash": None if code is None else hash_secret(code),
        }
        action = "confirm login" if is_approved else "deny login"
        details = f"begun from {pending.address or 'an unknown address'}"
        is_open = (_table.c.user_code == _bare(user_code)) & _table.c.account_id.is_(None)
        async with self._database.begin() as connection:
            changed = await connection.execute(update(_table).where(is_open).values(values))
            if not changed.rowcount:
                return None
            await connection.execute(self._audit.entry(caller, action, pending.name, details=details))
        if port is None:
            return ""
        return f"http://127.0.0.1:{port}/?" + ("denied=1" if code is None else f"code={code}")

    async def redeem(self, device_code: str, code: str, address: str) -> tuple[Token, str]:
        """The token of a login that was confirmed, and its secret: once. `code` is what arrived at the program's
        listener, if it has one. Raises DeviceRefused."""
        hashed, wall = hash_secret(device_code), self._tokens.now()
        if self._polls.take(hashed, self._monotonic()):
            raise DeviceRefused("slow_down", "the program asks too often.", "Ask less often.")
        wanted = select(_table, _accounts.c.role, _accounts.c.name.label("account"))
        row = (
            await self._database.execute(
                wanted.select_from(_table.outerjoin(_accounts)).where(
                    _table.c.hash == hashed, _table.c.expires_at > wall
                )
            )
        ).one_or_none()
        if row is None:
            raise DeviceRefused("expired_token", "this login has expired, or was used.", "Run `gpudeck login` again.")
        if row.account_id is None:
            raise DeviceRefused("authorization_pending", "the login is not confirmed yet.")
        is_right = row.code_hash is None or hmac.compare_digest(row.code_hash, hash_secret(code))
        async with self._database.begin() as connection:
            taken = await connection.execute(delete(_table).where(_table.c.hash == hashed))
        if row.is_denied or not is_right or not taken.rowcount:
            raise DeviceRefused("access_denied", "the login was denied on the page.", "Run `gpudeck login` again.")
        caller = Caller("account", row.role, row.account, row.account_id, address=address)
        return await self._tokens.create(
            row.name,
            row.role,
            expires_at=wall + row.token_seconds,
            account_id=row.account_id,
            created_by=row.account,
            also=lambda made: self._audit.token_entry(
                caller, "create token", made, f"role {made.role}, by a confirmed login"
            ),
        )

    async def _find(self, user_code: str, account_id: int) -> tuple[PendingLogin, int | None] | None:
        if wait := self._tries.take(account_id, self._monotonic()):
            raise TooManyLogins("too many codes were tried.", wait)
        is_it = (_table.c.user_code == _bare(user_code)) & _table.c.account_id.is_(None)
        wanted = select(_table).where(is_it, _table.c.expires_at > self._tokens.now())
        row = (await self._database.execute(wanted)).one_or_none()
        if row is None:
            return None
        # A right code costs no try.
        self._tries.charge(account_id, self._monotonic(), -1)
        shown = show_code(row.user_code)
        return PendingLogin(shown, row.name, row.address, row.created_at, row.expires_at, row.token_seconds), row.port


def show_code(user_code: str) -> str:
    """BCDF-GHJK."""
    half = CODE_LENGTH // 2
    return f"{user_code[:half]}-{user_code[half:]}"


def _bare(typed: str) -> str:
    """A code without what people type between its letters. Text that can be none finds none."""
    return "".join(letter for letter in typed[:64].upper() if letter in CODE_LETTERS)[: CODE_LENGTH + 1]
