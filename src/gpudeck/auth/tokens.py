"""API tokens of agents, scripts and calendars: created, looked up, revoked.

A hub asks for a token with every report, thousands of times a second. So all tokens that are worth something are kept
in memory by the hash of their secret; the database is read when another process may have changed it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct, structs
from sqlalchemy import ColumnElement, Executable, and_, bindparam, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck.auth.accounts import hash_secret, make_secret
from gpudeck.auth.caller import RANKS, Role, check_token
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model.clock import Clock
from gpudeck.model.errors import Temporary, UsageError

log = logging.getLogger(__name__)

FLUSH_SECONDS = 60.0
SECRET_LENGTH = 1024
"""Nothing longer is a token: it is not even hashed."""
_CREATED_BY_LENGTH = 128
_AT_ONCE = 500
_HIGHEST_ID = 2**63 - 1

_table, _accounts = schema.tokens, schema.accounts
_IS_SUSPENDED = exists().where(schema.provider_blocks.c.account_id == _accounts.c.id)
_FIELDS = ("id", "name", "role", "hosts", "account_id", "created_at", "created_by", "expires_at", "last_used_at")
_EVERYTHING = select(
    _table.c.hash,
    _accounts.c.role.label("account_role"),
    *(_table.c[name] for name in (*_FIELDS, "revoked_at")),
    _accounts.c.name.label("account"),
    or_(func.coalesce(_accounts.c.is_disabled, 0) != 0, _IS_SUSPENDED),
).select_from(_table.outerjoin(_accounts))
"""The hash and the account's role, then the fields of `Token` in their order."""
# Different whenever a row was added, removed, revoked, or got another secret (which changes `created_at`).
_MARK = select(func.count(), func.max(_table.c.id), func.count(_table.c.revoked_at), func.sum(_table.c.created_at))
_OWNERS = (
    select(_accounts.c.id, _accounts.c.role, _accounts.c.is_disabled, _IS_SUSPENDED)
    .where(_accounts.c.id.in_(select(_table.c.account_id)))
    .order_by(_accounts.c.id)
)
# Several hubs may know of uses of one token: the latest counts.
_USE = (
    update(_table)
    .where(_table.c.id == bindparam("used_id"))
    .where(or_(_table.c.last_used_at.is_(None), _table.c.last_used_at < bindparam("used_at")))
    .values(last_used_at=bindparam("used_at"))
)


class Token(Struct, frozen=True):
    """A token without its secret. Times are Unix seconds.

    `hosts` is the host, or the pattern of names, that an agent may report as; None: any. `account` is the name of
    `account_id`; the token of an account never has a higher `role` than the account, and is worth nothing while
    `is_disabled` is true of it: disabled, or suspended by its provider.
    """

    id: int
    name: str
    role: Role
    hosts: str | None
    account_id: int | None
    created_at: float
    created_by: str
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    account: str | None = None
    is_disabled: bool = False

    def is_live(self, now: float) -> bool:
        is_over = self.expires_at is not None and self.expires_at <= now
        return not (is_over or self.is_disabled or self.revoked_at is not None)


class Tokens:
    """The tokens of a hub. `load` once before anything is found; then `refresh` and `flush` every few seconds.

    `confirmed_at` is when the database last said which count, in Unix seconds; None: not since the start.
    """

    def __init__(self, database: Database, now: Clock) -> None:
        self.database = database
        self.now = now
        self._live: dict[bytes, Token] = {}
        self._mark: object = None
        self.confirmed_at: float | None = None
        self._uses: dict[int, float] = {}
        self._flushed_at = float("-inf")
        # What was read before a change and arrives after it would bring a revoked token back.
        self._changing = asyncio.Lock()
        self._is_failing = False

    async def load(self) -> None:
        """Read everything. Raises Temporary."""
        async with self._changing, self.database.begin() as connection:
            await self._read(connection, await _read_mark(connection))
        self.confirmed_at = self.now()

    @property
    def live(self) -> dict[bytes, Token]:
        """Those that count, by the SHA-256 of their secrets: another object whenever one is other than before."""
        return self._live

    def adopt(self, live: dict[bytes, Token]) -> None:
        """What counts until the database can be read."""
        self._live, self._mark = live, None

    async def refresh(self) -> None:
        """See what other processes changed. While the database does not answer, what was known before still counts."""
        async with self._tolerating("read"), self._changing, self.database.begin() as connection:
            mark = await _read_mark(connection)
            if mark != self._mark:
                await self._read(connection, mark)
            self.confirmed_at = self.now()

    def find(self, secret: str) -> Token | None:
        """The token with that secret; None where there is none, or it is expired or revoked. Never waits.

        Looking a hash up in a dictionary leaks nothing: callers cannot choose what their secret's hash begins
        with.
        """
        if len(secret) > SECRET_LENGTH or not secret.isascii():
            return None
        token = self._live.get(sha256(secret.encode()).digest())
        if token is None or (token.expires_at is not None and token.expires_at <= self.now()):
            return None
        return token

    def find_agent(self, secret: str) -> Token | None:
        """The same for a report, which no other kind of token is good for. The use is noted."""
        token = self.find(secret)
        if token is None or token.role != "agent":
            return None
        self.note_use(token)
        return token

    async def create(
        self,
        name: str,
        role: Role,
        *,
        hosts: str | None = None,
        expires_at: float | None = None,
        account_id: int | None = None,
        created_by: str = "",
        is_only: bool = False,
        also: Callable[[Token], Executable] | None = None,
    ) -> tuple[Token, str]:
        """A new token and its secret, which is kept nowhere. Raises UsageError for what makes no sense, Temporary.

        With `is_only` it takes the place of the agents' tokens for the same hosts: those are revoked with it, or none.
        `also`, such as its entry in the audit log, is written with it or not at all.
        """
        now = self.now()
        check_token(name, role, hosts, expires_at, now)
        secret = f"gd_{role}_{make_secret()}"
        values = {
            "hash": hash_secret(secret),
            "name": name,
            "role": role,
            "hosts": hosts,
            "account_id": account_id,
            "created_at": now,
            "created_by": created_by[:_CREATED_BY_LENGTH],
            "expires_at": expires_at,
        }
        async with self._changing:
            self._mark = None
            async with self.database.begin() as connection:
                if account_id is not None:
                    await _check_account(connection, account_id, role)
                ended = await self._end(connection, _is_of_agent(hosts)) if is_only and hosts else frozenset()
                added = await connection.execute(insert(_table).values(values).returning(_table.c.id))
                token = await _read_token(connection, added.scalar_one())
                if also is not None:
                    await connection.execute(also(token))
            self._forget(ended)
            self._live = {**self._live, bytes.fromhex(hash_secret(secret)): token}
        return token, secret

    async def revoke(
        self,
        id: int,  # noqa: A002 - the word that the column and the API have
        also: Callable[[Token], Executable] | None = None,
    ) -> Token | None:
        """Take a token back, for ever: here at once, elsewhere at the next `refresh`. None where none has that id.

        Raises Temporary, and then it may not have been taken back.
        """
        if not 0 < id <= _HIGHEST_ID:
            return None
        async with self._changing:
            self._live = {digest: token for digest, token in self._live.items() if token.id != id}
            self._mark = None
            async with self.database.begin() as connection:
                is_it = (_table.c.id == id) & _table.c.revoked_at.is_(None)
                await connection.execute(update(_table).where(is_it).values(revoked_at=self.now()))
                row = (await connection.execute(_EVERYTHING.where(_table.c.id == id))).one_or_none()
                token = None if row is None else self._with_use(_token_of(row))
                if token is not None and also is not None:
                    await connection.execute(also(token))
        return token

    async def revoke_of_hosts(self, names: Collection[str]) -> frozenset[int]:
        """Take back all tokens of agents that are for exactly one of those hosts, or none of them. Returns their ids.

        Raises Temporary, and then they may not have been taken back.
        """
        # No token is for a host whose name cannot be shown, and PostgreSQL takes no character 0.
        known = [name for name in names if name.isprintable()]
        ended: frozenset[int] = frozenset()
        async with self._changing:
            self._mark = None
            async with self.database.begin() as connection:
                for start in range(0, len(known), _AT_ONCE):
                    ended |= await self._end(connection, _is_of_agent(*known[start : start + _AT_ONCE]))
            self._forget(ended)
        return ended

    async def _end(self, connection: AsyncConnection, which: ColumnElement[bool]) -> frozenset[int]:
        ending = update(_table).where(which, _table.c.revoked_at.is_(None)).values(revoked_at=self.now())
        return frozenset((await connection.execute(ending.returning(_table.c.id))).scalars())

    def _forget(self, ids: frozenset[int]) -> None:
        self._live = (
            {digest: token for digest, token in self._live.items() if token.id not in ids} if ids else self._live
        )

    def forget_account(self, account_id: int) -> None:
        """What changes an account calls this: its tokens are worth nothing until the next `refresh` has read why."""
        self._live = {digest: token for digest, token in self._live.items() if token.account_id != account_id}
        self._mark = None

    async def list(self) -> list[Token]:
        """Every token that there ever was, oldest first. Raises Temporary."""
        rows = (await self.database.execute(_EVERYTHING.order_by(_table.c.id))).all()
        return [self._with_use(_token_of(row)) for row in rows]

    def note_use(self, token: Token) -> None:
        self._uses[token.id] = self.now()

    async def flush(self, *, at_once: bool = False) -> None:
        """Write down when tokens were last used, once a minute or, at the hub's end, at once."""
        now = self.now()
        if not self._uses or (not at_once and 0 <= now - self._flushed_at < FLUSH_SECONDS):
            return
        self._flushed_at = now
        uses = dict(self._uses)
        async with self._tolerating("written"):
            await self.database.execute(_USE, [{"used_id": id_, "used_at": at} for id_, at in uses.items()])
            self._uses = {id_: at for id_, at in self._uses.items() if uses.get(id_) != at}

    async def _read(self, connection: AsyncConnection, mark: object) -> None:
        rows = (await connection.execute(_EVERYTHING.where(*_is_worth_something(self.now())))).all()
        self._live = {bytes.fromhex(row[0]): _token_of(row) for row in rows}
        self._mark = mark

    def _with_use(self, token: Token) -> Token:
        used_at = max(self._uses.get(token.id, 0.0), token.last_used_at or 0.0)
        return structs.replace(token, last_used_at=used_at or None)

    @contextlib.asynccontextmanager
    async def _tolerating(self, what: str) -> AsyncIterator[None]:
        """A failure is logged when it begins and when it ends, and costs nothing but news."""
        try:
            yield
        except Temporary as error:
            if not self._is_failing:
                log.warning("tokens cannot be %s, and those known already still count: %s", what, error)
            self._is_failing = True
            return
        if self._is_failing:
            log.info("tokens can be %s again", what)
        self._is_failing = False


def _is_of_agent(*hosts: str) -> ColumnElement[bool]:
    return (_table.c.role == "agent") & _table.c.hosts.in_(hosts)


def _is_worth_something(now: float) -> list[ColumnElement[bool]]:
    return [
        _table.c.revoked_at.is_(None),
        or_(_table.c.expires_at.is_(None), _table.c.expires_at > now),
        or_(_table.c.account_id.is_(None), and_(_accounts.c.is_disabled == 0, ~_IS_SUSPENDED)),
    ]


async def _read_mark(connection: AsyncConnection) -> object:
    """Equal to the one before as long as nothing that counts has changed; a few milliseconds for 10,000 tokens."""
    return (await connection.execute(_MARK)).one(), (await connection.execute(_OWNERS)).all()


async def _read_token(connection: AsyncConnection, id_: int) -> Token:
    return _token_of((await connection.execute(_EVERYTHING.where(_table.c.id == id_))).one())


async def _check_account(connection: AsyncConnection, id_: int, role: Role) -> None:
    wanted = select(_accounts, _IS_SUSPENDED.label("is_suspended")).where(_accounts.c.id == id_)
    account = (await connection.execute(wanted)).one_or_none()
    if account is None:
        raise UsageError("there is no such account.", "`gpudeck account list` shows all.")
    if account.is_disabled or account.is_suspended:
        state = "suspended until its next login" if account.is_suspended else "disabled"
        raise UsageError(f"the account {account.name} is {state}, and a token of theirs would be worth nothing.")
    if RANKS[role] > RANKS[account.role]:
        raise UsageError(
            f"{account.name} is {account.role}, and a token of theirs cannot be {role}.",
            f"Choose --role {account.role}, or leave the account out.",
        )


def _token_of(row: Sequence[Any]) -> Token:
    account_role, token = row[1], Token(*row[2:])
    if account_role is not None and RANKS[token.role] > RANKS[account_role]:
        return structs.replace(token, role=account_role)
    return token
