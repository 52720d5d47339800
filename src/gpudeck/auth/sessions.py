"""Login sessions. A session is a random secret in a cookie; the hub's database stores its hash."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Executable, delete, insert, or_, select, true, update

from gpudeck.auth.accounts import SECRET_LENGTH, Account, Also, hash_secret, make_secret, read_account
from gpudeck.auth.settings import AuthSettings
from gpudeck.database import schema
from gpudeck.database.engine import Database, delete_old
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.text import clean

CACHE_SECONDS = 2.0
"""How long an answer of the database is believed: what another process changes counts so much later."""
AWAY_SECONDS = 3600.0
"""The same while the database does not answer: logged-in users still see the fleet."""
SEEN_SECONDS = 60.0
"""How exactly the last use is known: writing it down at each request would cost more than the request."""
MAX_EACH = 50
"""Sessions of one account: past that many the one that was used least lately ends."""
_MAX_CACHED = 10_000
_ID_LENGTH = 16
"""Of the characters of its hash; 64 random bits."""

_table = schema.sessions


class Session(Struct, frozen=True):
    """A browser that is logged in, to be shown to its owner and to admins. `id` identifies the session and is no
    secret. `seen_at` is up to a minute old. Times are Unix seconds. `is_this`: the session of the caller."""

    id: str
    account: str
    created_at: float
    seen_at: float
    address: str
    user_agent: str
    is_this: bool


class _Cached(Struct, frozen=True):
    account: Account
    created_at: float
    seen_at: float
    read_at: float


class Sessions:
    """All sessions. Raises Temporary when the database does not answer."""

    def __init__(self, database: Database, settings: AuthSettings, now: clock.Clock = clock.wall) -> None:
        self.database = database
        self._settings = settings
        self._now = now
        self._cache: dict[str, _Cached] = {}
        self._forgotten = 0

    def begin(self, address: str, user_agent: str) -> tuple[str, Also]:
        """A new secret for the cookie, and what starts its session when it is written with a change of the account."""
        secret, now = make_secret(), self._now()
        values = {"hash": hash_secret(secret), "created_at": now, "seen_at": now}
        # Text of an unverified request: PostgreSQL takes none that is too long, and no character 0.
        shown = {"address": clean(address[:64]), "user_agent": clean(user_agent[:256])}

        def start(account: Account) -> list[Executable]:
            return [insert(_table).values(account_id=account.id, **values, **shown), _end_of_surplus(account.id)]

        return secret, start

    async def find(self, secret: str) -> Account | None:
        """Who is behind a cookie; None for everything that is not the secret of a session that still counts. One that
        was known lately counts while the database does not answer: nothing can be changed then."""
        if len(secret) != SECRET_LENGTH:
            return None
        secret_hash, now = hash_secret(secret), self._now()
        cached = self._cache.get(secret_hash)
        if cached is None or not 0 <= now - cached.read_at < CACHE_SECONDS:
            try:
                cached = await self._read(secret_hash, now)
            except Temporary:
                if cached is None or not 0 <= now - cached.read_at < AWAY_SECONDS:
                    raise
        return cached.account if cached is not None and self._counts(cached, now) else None

    async def end(self, secret: str, *also: Executable) -> None:
        """Log out, and write `also` with it. Does nothing where no session has that secret."""
        await self._delete(_table.c.hash == hash_secret(secret), *also)

    async def end_all(self, account_id: int, *also: Executable) -> None:
        """End all sessions of an account, and write `also` with it."""
        await self._delete(_table.c.account_id == account_id, *also)

    async def end_one(self, session_id: str, also: Callable[[str], Executable], account_id: int | None = None) -> bool:
        """End the session with that id, and write `also` of its account's name with it. False where no session of that
        account, or of any, has it."""
        if len(session_id) != _ID_LENGTH or not session_id.isalnum() or not session_id.isascii():
            return False
        accounts = schema.accounts
        wanted = select(_table.c.hash, accounts.c.name).join_from(_table, accounts)
        wanted = wanted.where(_table.c.hash.startswith(session_id), _is_of(account_id))
        row = (await self.database.execute(wanted)).first()
        if row is not None:
            await self._delete(_table.c.hash == row.hash, also(row.name))
        return row is not None

    async def list(self, account_id: int | None = None, own: str = "") -> list[Session]:
        """Those of an account, or all, that still count, the one used last first. `own` is the caller's secret."""
        accounts, own_hash = schema.accounts, hash_secret(own)
        wanted = select(_table, accounts.c.name).join_from(_table, accounts)
        wanted = wanted.where(_is_of(account_id), ~self._is_over(self._now()))
        rows = await self.database.execute(wanted.order_by(_table.c.seen_at.desc(), _table.c.hash))
        return [
            Session(
                id=row.hash[:_ID_LENGTH],
                account=row.name,
                created_at=row.created_at,
                seen_at=row.seen_at,
                address=row.address,
                user_agent=row.user_agent,
                is_this=row.hash == own_hash,
            )
            for row in rows
        ]

    async def trim(self, now: float) -> int:
        """Delete what counts no more at that time. Returns how many."""
        return await delete_old(self.database, _table, _table.c.seen_at, self._is_over(now))

    def forget(self, account_id: int | None = None) -> None:
        """Ask the database again about an account's sessions, or about all, however short ago that was done."""
        self._forgotten += 1  # also what is being read right now: it may be from before the change
        kept = {} if account_id is None else self._cache
        self._cache = {key: cached for key, cached in kept.items() if cached.account.id != account_id}

    async def _delete(self, which: ColumnElement[bool], *also: Executable) -> None:
        try:
            async with self.database.begin() as connection:
                for statement in (delete(_table).where(which), *also):
                    await connection.execute(statement)
        finally:
            self.forget()

    async def _read(self, secret_hash: str, now: float) -> _Cached | None:
        """What the database says of a session, or None; its last use is written there once a minute."""
        forgotten = self._forgotten
        accounts = schema.accounts
        wanted = (
            select(accounts, _table.c.created_at.label("started_at"), _table.c.seen_at)
            .join_from(_table, accounts)
            .where(_table.c.hash == secret_hash, accounts.c.is_disabled == 0)
        )
        async with self.database.begin() as connection:
            row = (await connection.execute(wanted)).one_or_none()
            read = None if row is None else _Cached(read_account(row), row.started_at, row.seen_at, now)
            if read is not None and self._counts(read, now) and now - read.seen_at >= SEEN_SECONDS:
                # Another hub may have seen them later.
                is_older = (_table.c.hash == secret_hash) & (_table.c.seen_at < now)
                await connection.execute(update(_table).where(is_older).values(seen_at=now))
                read = _Cached(read.account, read.created_at, now, now)
        self._keep(secret_hash, read, forgotten)
        return read

    def _keep(self, secret_hash: str, read: _Cached | None, forgotten: int) -> None:
        self._cache.pop(secret_hash, None)
        if read is None or forgotten != self._forgotten:
            return
        if len(self._cache) >= _MAX_CACHED:
            del self._cache[next(iter(self._cache))]  # that read longest ago
        self._cache[secret_hash] = read

    def _counts(self, session: _Cached, now: float) -> bool:
        return now - session.seen_at <= self._settings.idle and now - session.created_at <= self._settings.expire

    def _is_over(self, now: float) -> ColumnElement[bool]:
        return or_(_table.c.seen_at < now - self._settings.idle, _table.c.created_at < now - self._settings.expire)


def _is_of(account_id: int | None) -> ColumnElement[bool]:
    return true() if account_id is None else _table.c.account_id == account_id


def _end_of_surplus(account_id: int) -> Any:
    own = _table.c.account_id == account_id
    latest = select(_table.c.hash).where(own).order_by(_table.c.seen_at.desc(), _table.c.created_at.desc())
    return delete(_table).where(own, _table.c.hash.not_in(latest.limit(MAX_EACH)))
