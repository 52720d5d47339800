"""Open the hub's tables, on SQLite or PostgreSQL, and speak with them in transactions.

A hub that runs has its database watched (`Database.watch`): while it is away every transaction is refused at once, and
its tables are brought up to date as soon as it answers, where that was not possible at the start.
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
"""How often a server is asked whether it answers, and how long it has for that."""
PROBE_FILE_SECONDS: Final = 2.0
"""How often a file is."""
RETRY_SECONDS: Final = 1.0
"""How often one is that did not."""


class Database:
    """The tables of `schema.py`, made by `open_database`; the caller closes it. `away` is why it cannot be used now,
    and since when. While one that `is_watched` is away, nothing else tries it."""

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
        """`migrating` may take as long as it needs; `probing` waits for no other transaction of this hub. `look` finds
        trouble that a transaction does not, in a thread."""
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
        """A transaction: kept when the block ends, undone when it raises. Short, and never inside another.

        Raises Temporary when the database does not answer. On SQLite transactions come one after another; on PostgreSQL
        one that looks first and then writes what depends on it locks those rows (`with_for_update`).
        """
        self._refuse_while_away()
        try:
            async with self._transaction(self.engine, self._refuse_while_away) as connection:
                yield connection
        except Unavailable as error:
            # One connection for which others wait says nothing about the file.
            if self.is_watched and self.kind == "sqlite" and isinstance(error.__cause__, DBAPIError):
                self._note_away(error.trouble, str(error))
            self._suspected.set()
            raise

    async def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """One statement as a transaction of its own, for each of `rows`. As `begin`."""
        async with self.begin() as connection:
            return await connection.execute(statement, rows)

    def insert(self, table: Table) -> "postgresql_dialect.Insert | sqlite_dialect.Insert":
        """An INSERT that can say what is done about a row that is there already."""
        return sqlite_dialect.insert(table) if self.kind == "sqlite" else postgresql_dialect.insert(table)

    async def watch(self) -> None:
        """For as long as the hub runs: keep `away` at what is so. One that is away when this ends stays so."""
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
        """Make and change the tables as this gpudeck has them. Raises Temporary, UsageError for a database that it does
        not understand, and Outdated for older tables that it may only make, not change."""
        async with self._transaction(self.engine) as connection:
            self._is_current = await connection.run_sync(is_newest, self.place)
            if not changes_tables:
                await connection.run_sync(refuse_older, self.place)
        if self._is_current:
            return
        async with self._transaction(self._migrating) as connection:
            # A PostgreSQL server has its own programs for that, and its owner decides where a copy goes.
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
        """`check` is called when it is this one's turn: those before it may have found the database away."""
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
        """Whether a transaction of this hub has the file: it finds out itself what is wrong, and may take its time."""
        return self.kind == "sqlite" and isinstance(self.engine.pool, QueuePool) and self.engine.pool.checkedout() > 0

    async def _probe(self, *, writes: bool) -> None:
        """`writes`: something failed, and whether it would again is seen only by writing."""
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
    """The database at a `postgresql://…` address, or the file `name` in the data folder; its tables are brought up to
    date, and the file as it was before is kept in the folder `backups`. Raises UsageError.

    With `may_be_away`, what may pass by itself is no error: its opener has to `watch` it. Without `changes_tables`,
    those of an older gpudeck raise Outdated.
    """
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
    """A database of these tables that lasts until it is closed."""
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
    # With the checks on, a table that a migration fills anew would take along all that refers to the old one.
    migrating = sqlite.make_engine(file, checks_foreign_keys=False, keeps_connection=False)
    engine = sqlite.make_engine(file, waits=waits)
    # Probed with the connection that there is: a new one would make a file where the hub's was moved away.
    look = partial(sqlite.find_trouble, file, sqlite.identify(file))
    return Database("sqlite", str(file), engine, sqlite.explain, migrating=migrating, look=look)


def _on_postgresql(address: str) -> Database:
    return Database(
        "postgresql",
        postgresql.name_place(address),
        postgresql.make_engine(address),
        postgresql.explain,
        # A migration, or one of another hub that it waits for, may take any time.
        migrating=postgresql.make_engine(address, keeps_connections=False, answers_in=None),
        probing=postgresql.make_engine(address, most=1, answers_in=PROBE_SECONDS, connects_in=PROBE_SECONDS),
    )


class FleetStore:
    """The rows of one fleet. All that asks the database raises Temporary where it does not answer."""

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
        """The fleet's rows of which all of `wanted` is true, as structs whose fields are columns of the table."""
        columns = [table.c[name] for name in kind.__struct_fields__]
        found = select(*columns).where(table.c.fleet == self._fleet, *wanted).order_by(*order).limit(limit)
        return [kind(**row) for row in (await self._database.execute(found)).mappings()]


async def delete_old(database: Database, table: Table, column: ColumnElement[Any], old: ColumnElement[bool]) -> int:
    """Delete the rows that are `old` by `column`, a time; how many there were. Raises Temporary. The caller takes the
    time from a `RetentionClock`."""
    async with database.begin() as connection:
        found = select(func.count(), func.min(column), func.max(column)).select_from(table).where(old)
        count, first, last = (await connection.execute(found)).one()
        if count:
            await connection.execute(delete(table).where(old))
            log.info(
                "retention deleted %d rows of %s, from %s until %s", count, table.name, show_utc(first), show_utc(last)
            )
    return int(count)
