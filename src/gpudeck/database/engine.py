"""Opens the hub's tables, on SQLite or PostgreSQL, and runs transactions.

A running hub monitors its database (`Database.watch`). While it is unavailable every transaction is refused at once. If
its tables could not be migrated at the start, they are as soon as it answers.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from sqlalchemy import ColumnElement, CursorResult, Executable, Table, delete, func, select, text
from sqlalchemy.dialects import postgresql as postgresql_dialect
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool

from gpudeck.database import DatabaseOutage, DatabaseTrouble, Unavailable, postgresql, sqlite
from gpudeck.database.migrations import VERSION_TABLE, is_newest, migrate, refuse_older
from gpudeck.database.schema import REAL, metadata
from gpudeck.database.sqlite import keep_before_migration
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

Kind = Literal["sqlite", "postgresql"]
T = TypeVar("T", bound=Struct)

PROBE_SECONDS: Final = 5.0
"""The interval and the timeout of probes of a server."""
PROBE_FILE_SECONDS: Final = 2.0
"""The interval of probes of a file."""
RETRY_SECONDS: Final = 1.0
"""The interval of probes while the database is unavailable."""


class Database:
    """The tables of `schema.py`, opened by `open_database`; the caller closes it. `away` is why it cannot be used now,
    and since when. While a database that `is_watched` is away, only its probes use it."""

    def __init__(
        self,
        kind: Kind,
        place: str,
        engine: AsyncEngine,
        explain: Callable[[BaseException], DatabaseTrouble | None],
        *,
        migrating: AsyncEngine | None = None,
        probing: AsyncEngine | None = None,
        look: Callable[[], DatabaseTrouble | None] = lambda: None,
    ) -> None:
        """`migrating` has no timeout; `probing` does not wait for other transactions of this hub. `look` finds trouble
        that transactions do not notice, in a thread."""
        self.kind: Kind = kind
        self.place = place
        self.away: DatabaseOutage | None = None
        self.engine = engine
        self._explain = explain
        self._migrating = migrating or engine
        self._probing = probing or engine
        self._look = look
        self._is_current = False
        self.is_watched = False
        self._suspected = asyncio.Event()

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed when the block ends, rolled back when it raises. Keep it short, and never nest it.
        Raises Temporary if the database does not answer. SQLite runs one transaction at a time; on PostgreSQL, lock
        rows that are read before a dependent write (`with_for_update`)."""
        self._refuse_while_away()
        try:
            async with self._transaction(self.engine, self._refuse_while_away) as connection:
                yield connection
        except Unavailable as error:
            # A timeout while waiting for the one connection says nothing about the file.
            if self.is_watched and self.kind == "sqlite" and isinstance(error.__cause__, DBAPIError):
                self._note_away(error.trouble, str(error))
            self._suspected.set()
            raise

    async def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """One statement in its own transaction, for each of `rows`. Raises as `begin`."""
        async with self.begin() as connection:
            return await connection.execute(statement, rows)

    def insert(self, table: Table) -> "postgresql_dialect.Insert | sqlite_dialect.Insert":
        """An INSERT that supports ON CONFLICT."""
        return sqlite_dialect.insert(table) if self.kind == "sqlite" else postgresql_dialect.insert(table)

    async def watch(self) -> None:
        """Keep `away` up to date until cancelled. Its last value stays."""
        self.is_watched = True
        while True:
            is_suspected = self._suspected.is_set() or self.away is not None
            self._suspected.clear()
            if self.away is not None or not self._is_in_use():
                await self._probe(writes=is_suspected and self.kind == "sqlite")
            pause = RETRY_SECONDS if self.away else PROBE_SECONDS if self.kind == "postgresql" else PROBE_FILE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspected.wait(), pause)

    async def bring_up_to_date(self, *, changes_tables: bool = True) -> None:
        """Create and migrate the tables. Raises Temporary, UsageError for a database of an unknown version, and
        Outdated for older tables if it may only create tables."""
        async with self._transaction(self.engine) as connection:
            self._is_current = await connection.run_sync(is_newest, self.place)
            if not changes_tables:
                await connection.run_sync(refuse_older, self.place)
        if self._is_current:
            return
        async with self._transaction(self._migrating) as connection:
            # A PostgreSQL server has its own backup tools, and its owner decides where backups go.
            keep = partial(keep_before_migration, Path(self.place)) if self.kind == "sqlite" else None
            await connection.run_sync(migrate, self.place, keep)
        self._is_current = True

    async def close(self) -> None:
        for engine in {self.engine, self._migrating, self._probing}:
            await engine.dispose()

    @contextlib.asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, check: Callable[[], None] = lambda: None
    ) -> AsyncIterator[AsyncConnection]:
        """`check` is called when this transaction gets its turn: an earlier one may have found the database away."""
        try:
            async with engine.connect() as connection:
                check()
                async with connection.begin():
                    yield connection
        except Exception as error:
            trouble = self._explain(error)
            if trouble is None:
                raise
            raise Unavailable(self.place, trouble) from error

    def _refuse_while_away(self) -> None:
        if self.away is not None and self.is_watched and self.away.trouble.stops_all:
            raise Unavailable(self.place, self.away.trouble)

    def _is_in_use(self) -> bool:
        """Whether a transaction of this hub uses the file: it reports problems itself, and may take long."""
        return self.kind == "sqlite" and isinstance(self.engine.pool, QueuePool) and self.engine.pool.checkedout() > 0

    async def _probe(self, *, writes: bool) -> None:
        """`writes`: a write failed, so only another write shows whether it would fail again."""
        change = f"UPDATE {VERSION_TABLE} SET version_num = version_num"  # noqa: S608
        try:
            async with self._transaction(self._probing) as connection:
                await connection.execute(text(change if writes and self._is_current else "SELECT 1"))
            if not self._is_current:
                await self.bring_up_to_date()
            trouble = await asyncio.to_thread(self._look)
        except Unavailable as error:
            self._note_away(error.trouble, str(error))
        except UsageError as error:
            self._note_away(DatabaseTrouble("cannot be used by this hub: see its log", error.hint), str(error))
        except Exception:
            log.exception("the database %s could not be asked whether it answers", self.place)
        else:
            if trouble is not None:
                self._note_away(trouble, str(Unavailable(self.place, trouble)))
                return
            if self.away is not None:
                log.warning("the database %s answers again", self.place)
            self.away = None

    def _note_away(self, trouble: DatabaseTrouble, told: str) -> None:
        if self.away is None or self.away.trouble.reason != trouble.reason:
            log.warning("%s The hub continues without it.", told)
        self.away = DatabaseOutage(trouble, time.time() if self.away is None else self.away.since)


async def open_database(
    address: str | None,
    data_dir: Path,
    *,
    may_be_away: bool = False,
    changes_tables: bool = True,
    name: str = sqlite.FILE_NAME,
) -> Database:
    """The database at a `postgresql://…` address, or the file `name` in the data folder. Its tables are migrated; a
    copy of the file is kept in the folder `backups`. Raises UsageError. With `may_be_away`, temporary problems raise
    nothing: the caller has to `watch` it. Without `changes_tables`, older tables raise Outdated."""
    waits = sqlite.LOCKED_SECONDS if may_be_away else sqlite.BUSY_SECONDS
    database = _on_postgresql(address) if address else _on_sqlite(data_dir / name, waits)
    database.is_watched = may_be_away
    try:
        await database.bring_up_to_date(changes_tables=changes_tables)
    except BaseException as error:
        if may_be_away and isinstance(error, Unavailable) and error.trouble.may_pass:
            database._note_away(error.trouble, str(error))
            return database
        await database.close()
        if isinstance(error, Temporary):
            raise UsageError(error.message, error.hint) from error
        raise
    return database


async def open_in_memory(*tables: Table) -> Database:
    """A database with these tables that exists until it is closed."""
    database = Database("sqlite", "in memory", sqlite.make_engine(Path(":memory:")), sqlite.explain)
    async with database.begin() as connection:
        await connection.run_sync(partial(metadata.create_all, tables=tables))
    return database


def _on_sqlite(file: Path, waits: float) -> Database:
    try:
        sqlite.make_file(file)
    except OSError as error:
        raise UsageError(
            f"the database {file} cannot be opened: {str(error.strerror).lower()}.", sqlite.GIVE_IT
        ) from error
    # With foreign keys enforced, a table that a migration refills would delete all rows that refer to it.
    migrating = sqlite.make_engine(file, checks_foreign_keys=False, keeps_connection=False)
    engine = sqlite.make_engine(file, waits=waits)
    # Probed with the existing connection: a new one would create a file if the hub's was moved away.
    look = partial(sqlite.find_problem, file, sqlite.identify(file))
    return Database("sqlite", str(file), engine, sqlite.explain, migrating=migrating, look=look)


def _on_postgresql(address: str) -> Database:
    return Database(
        "postgresql",
        postgresql.name_place(address),
        postgresql.make_engine(address),
        postgresql.explain,
        # A migration may take any time, and so may waiting for that of another hub.
        migrating=postgresql.make_engine(address, keeps_connections=False, answers_in=None),
        probing=postgresql.make_engine(address, most=1, answers_in=PROBE_SECONDS, connects_in=PROBE_SECONDS),
    )


class FleetStore:
    """The rows of one fleet. All queries raise Temporary if the database does not answer."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        self._database = database
        self._fleet = fleet

    @property
    def is_shared(self) -> bool:
        """Whether other hubs may write to the same tables."""
        return self._database.kind == "postgresql"

    async def select(
        self,
        kind: type[T],
        table: Table,
        *wanted: ColumnElement[bool],
        order: Sequence[Any] = (),
        limit: int | None = None,
    ) -> list[T]:
        """The fleet's rows for which all of `wanted` is true, as structs with the table's columns as fields."""
        columns = [table.c[name] for name in kind.__struct_fields__]
        found = select(*columns).where(table.c.fleet == self._fleet, *wanted).order_by(*order).limit(limit)
        return [kind(**row) for row in (await self._database.execute(found)).mappings()]


async def delete_old(database: Database, table: Table, column: ColumnElement[Any], old: ColumnElement[bool]) -> int:
    """Delete the rows whose time `column` is `old`; returns their number. Raises Temporary. The time comes from a
    `RetentionClock`."""
    async with database.begin() as connection:
        found = select(func.count(), func.min(column), func.max(column)).select_from(table).where(old)
        count, first, last = (await connection.execute(found)).one()
        if count:
            await connection.execute(delete(table).where(old))
            log.info(
                "retention deleted %d rows of %s, from %s until %s", count, table.name, show_utc(first), show_utc(last)
            )
    return int(count)
