"""Open the hub's tables, on SQLite or PostgreSQL, and speak with them in transactions."""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gpudeck.database import postgresql, sqlite
from gpudeck.database.copies import keep_before_migration
from gpudeck.database.migrating import is_newest, migrate
from gpudeck.database.trouble import Trouble
from gpudeck.model.errors import Temporary, UsageError

Kind = Literal["sqlite", "postgresql"]


class Database:
    """The tables of `schema.py`, as new as this gpudeck. Made by `open_database`; whoever opened it closes it."""

    def __init__(
        self, kind: Kind, place: str, engine: AsyncEngine, explain: Callable[[BaseException], Trouble | None]
    ) -> None:
        self.kind: Kind = kind
        self.place = place
        self._engine = engine
        self._explain = explain

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: kept when the block ends, undone when it raises. Short, and never inside another: others wait.

        Raises Temporary when the database does not answer, and leaves errors such as IntegrityError to the caller. On
        SQLite transactions come one after another; on PostgreSQL several run at once, and one that looks first and then
        writes what depends on it locks those rows (`with_for_update`, which SQLite leaves out).
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except Exception as error:
            trouble = self._explain(error)
            if trouble is None:
                raise
            raise Temporary(f"the database {self.place} {trouble.reason}.", trouble.next_step) from error

    async def close(self) -> None:
        await self._engine.dispose()


async def open_database(address: str | None, data_dir: Path) -> Database:
    """The database at a `postgresql://…` address, or the file in the data folder; its tables are brought up to date.

    The file as it was before that is kept in the folder `backups`. Raises UsageError that names the place and the next
    step.
    """
    try:
        database, migrating = _on_postgresql(address) if address else _on_sqlite(data_dir / sqlite.FILE_NAME)
        try:
            await _bring_up_to_date(database, migrating)
        except BaseException:
            await database.close()
            raise
    except Temporary as error:
        raise UsageError(error.message, error.hint) from error
    return database


def _on_sqlite(file: Path) -> tuple[Database, Database]:
    try:
        sqlite.make_file(file)
    except OSError as error:
        raise UsageError(
            f"the database {file} cannot be opened: {str(error.strerror).lower()}.", sqlite.GIVE_IT
        ) from error
    # With the checks on, a table that a migration fills anew would take along all that refers to the old one.
    migrating = sqlite.make_engine(file, checks_foreign_keys=False, keeps_connection=False)
    return (
        Database("sqlite", str(file), sqlite.make_engine(file), sqlite.explain),
        Database("sqlite", str(file), migrating, sqlite.explain),
    )


def _on_postgresql(address: str) -> tuple[Database, Database]:
    place = postgresql.name_place(address)
    # Nobody knows how long a migration takes, or the one of another hub that it waits for.
    migrating = postgresql.make_engine(address, keeps_connections=False, answers_in=None)
    return (
        Database("postgresql", place, postgresql.make_engine(address), postgresql.explain),
        Database("postgresql", place, migrating, postgresql.explain),
    )


async def _bring_up_to_date(database: Database, migrating: Database) -> None:
    async with database.begin() as connection:
        if await connection.run_sync(is_newest, database.place):
            return
    async with migrating.begin() as connection:
        # Whoever runs a PostgreSQL server has its own programs for that, and its owner decides where a copy goes.
        keep = partial(keep_before_migration, Path(database.place)) if database.kind == "sqlite" else None
        await connection.run_sync(migrate, migrating.place, keep)
