"""The hub's database for tests, on SQLite and on a real PostgreSQL: each test gets an empty one of its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.postgres import PostgresServer, running_postgres
from fakes.tables import borrow_tables, open_file, put_tables
from gpudeck.database import postgresql
from gpudeck.database.engine import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; skips those where PostgreSQL is not installed. A test that kills it starts its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_address(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """What `open_database` takes, beside `tmp_path`: None for SQLite, or the address of an empty database. For a test
    that asks for `database`, too, it has its tables."""
    with _ADDRESSES[request.param](request) as address:
        yield address


@pytest.fixture
def database(database_address: str | None, tmp_path: Path) -> Database:
    """An empty database with its tables. Unlike a hub's it connects anew for each transaction, so that a test may use
    it from several calls of `asyncio.run`."""
    if database_address is None:
        put_tables(tmp_path)
    return connect(database_address, tmp_path)


def connect(address: str | None, folder: Path) -> Database:
    if address is None:
        return open_file(folder)
    engine = postgresql.make_engine(address, keeps_connections=False)
    return Database("postgresql", postgresql.name_place(address), engine, postgresql.explain)


@contextlib.contextmanager
def _make_address(request: pytest.FixtureRequest) -> Iterator[str]:
    server = request.getfixturevalue("postgres")
    if "database" not in request.fixturenames:
        yield server.make_schema()
        return
    with borrow_tables(server) as address:
        yield address


_ADDRESSES = {"sqlite": lambda _: contextlib.nullcontext(None), "postgresql": _make_address}
