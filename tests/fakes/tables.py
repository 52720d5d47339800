"""The hub's tables as its migrations make them, for each test anew: migrated once in each process, and copied then."""

import asyncio
import functools
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fakes.postgres import PostgresServer
from gpudeck.database import sqlite
from gpudeck.database.engine import Database, open_database


def put_tables(folder: Path) -> None:
    """What `open_database` leaves in an empty folder. A file that is there already stays as it is."""
    file = folder / sqlite.FILE_NAME
    if not file.exists():
        sqlite.make_file(file)
        file.write_bytes(_migrated_file())


def fill(server: PostgresServer, address: str) -> None:
    """What `open_database` leaves at the address of a schema that `server` made."""
    server.execute(_migrated_schema(server).replace(_TEMPLATE, address.rpartition("=")[2]))


def open_file(folder: Path) -> Database:
    """Unlike a hub's it connects anew for each transaction, so that a test may use it from several calls of
    `asyncio.run`."""
    file = folder / sqlite.FILE_NAME
    return Database("sqlite", str(file), sqlite.make_engine(file, keeps_connection=False), sqlite.explain)


def run(work: Coroutine[Any, Any, None]) -> None:
    """To its end, also where the caller is in an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


_TEMPLATE = "template_of_tests"


@functools.cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        run(_migrate(None, Path(folder)))
        return (Path(folder) / sqlite.FILE_NAME).read_bytes()


@functools.cache
def _migrated_schema(server: PostgresServer) -> str:
    """The statements that make it again. Lines with a backslash are for PostgreSQL's own terminal."""
    server.execute(f"CREATE SCHEMA {_TEMPLATE}")
    run(_migrate(f"{server.address()}?search_path={_TEMPLATE}", Path("/nowhere")))
    lines = server.dump(_TEMPLATE).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\", "CREATE SCHEMA", "--")))


async def _migrate(address: str | None, data_dir: Path) -> None:
    await (await open_database(address, data_dir)).close()
