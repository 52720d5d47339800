"""The hub's database for tests, on SQLite and on a real PostgreSQL: each test gets an empty one of its own."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from fakes.postgres import PostgresServer, running_postgres
from fakes.tables import borrow_tables, open_file, put_tables
from gpudeck.database import postgresql, sqlite
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
def database(
    database_address: str | None, tmp_path: Path, one_loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """An empty database with its tables. All calls of `asyncio.run` in the test share one event loop, so that they also
    share the connections: to connect costs more CPU time than most tests."""
    monkeypatch.setattr(asyncio, "run", functools.partial(_run, one_loop))
    if database_address is not None:
        place = postgresql.name_place(database_address)
        yield Database("postgresql", place, _engine(database_address), postgresql.explain)
        return
    put_tables(tmp_path)
    file = tmp_path / sqlite.FILE_NAME
    database = Database("sqlite", str(file), sqlite.make_engine(file), sqlite.explain)
    yield database
    one_loop.run(database.close())


@pytest.fixture(scope="session")
def one_loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner
        for engine in _engines.values():
            runner.run(engine.dispose())


_engines: dict[str, AsyncEngine] = {}


def _engine(address: str) -> AsyncEngine:
    """Connections of earlier tests with the same tables are used again."""
    if address not in _engines:
        _engines[address] = postgresql.make_engine(address)
    return _engines[address]


_run_anew = asyncio.run


def _run(runner: asyncio.Runner, work: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`: what is still running at the end is cancelled."""
    if threading.current_thread() is not threading.main_thread():
        return _run_anew(work)
    try:
        return runner.run(work)
    finally:
        runner.run(_cancel_tasks())


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
