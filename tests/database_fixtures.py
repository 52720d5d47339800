"""The hub's database for tests, on SQLite and on a real PostgreSQL: each test gets an empty one of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.postgres import PostgresServer, running_postgres
from gpudeck.database import postgresql, sqlite
from gpudeck.database.engine import Database, open_database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; skips those where PostgreSQL is not installed. A test that kills it starts its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_address(request: pytest.FixtureRequest) -> str | None:
    """What `open_database` takes, beside `tmp_path`: None for SQLite, or the address of an empty database."""
    return _ADDRESSES[request.param](request)


@pytest.fixture
def database(database_address: str | None, tmp_path: Path) -> Database:
    """An empty database with its tables. Unlike a hub's it connects anew for each transaction, so that a test may use
    it from several calls of `asyncio.run`."""
    asyncio.run(_make_tables(database_address, tmp_path))
    return _connect(database_address, tmp_path)


_ADDRESSES = {
    "sqlite": lambda request: None,
    "postgresql": lambda request: request.getfixturevalue("postgres").make_schema(),
}


async def _make_tables(address: str | None, data_dir: Path) -> None:
    await (await open_database(address, data_dir)).close()


def _connect(address: str | None, data_dir: Path) -> Database:
    if address is None:
        file = data_dir / sqlite.FILE_NAME
        return Database("sqlite", str(file), sqlite.make_engine(file, keeps_connection=False), sqlite.explain)
    engine = postgresql.make_engine(address, keeps_connections=False)
    return Database("postgresql", postgresql.name_place(address), engine, postgresql.explain)
