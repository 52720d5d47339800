"""The hub's tables as its migrations make them, for each test anew: migrated once in each process, and copied then."""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fakes.postgres import PostgresServer
from gpudeck.database import sqlite
from gpudeck.database.engine import Database, open_database
from gpudeck.database.migrations import VERSION_TABLE


def put_tables(folder: Path, content: bytes | None = None) -> None:
    """What `open_database` leaves in an empty folder, or a file of that content. A file that is there already stays as
    it is."""
    file = folder / sqlite.FILE_NAME
    if not file.exists():
        sqlite.make_file(file)
        file.write_bytes(content or _migrated_file())


@contextlib.contextmanager
def borrow_tables(server: PostgresServer) -> Iterator[str]:
    """The address of what `open_database` leaves in an empty schema. The next borrower gets it, emptied: to make fifty
    tables and indexes takes the server far longer."""
    free = _emptied(server)
    address = free.pop() if free else _fill(server)
    yield address
    schema = address.rpartition("=")[2]
    with contextlib.suppress(Exception):  # a test may have changed or locked the tables themselves
        server.execute(_EMPTY.format(schema=schema, template=_TEMPLATE, version=VERSION_TABLE))
        free.append(address)


def open_file(folder: Path) -> Database:
    """Unlike a hub's it connects anew for each transaction, so that a test may use it from several calls of
    `asyncio.run`."""
    file = folder / sqlite.FILE_NAME
    return Database("sqlite", str(file), sqlite.make_engine(file, keeps_connection=False), sqlite.explain)


def run(work: Coroutine[Any, Any, None]) -> None:
    """To its end, also where the caller is in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


_TEMPLATE = "template_of_tests"
_EMPTY = """
SET session_replication_role = replica;
SET lock_timeout = '1s';
DO $$
DECLARE one record;
BEGIN
  IF (SELECT array_agg(c.relname || '.' || a.attname ORDER BY c.relname, a.attname)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
      WHERE c.relnamespace = '{schema}'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped) IS DISTINCT FROM
     (SELECT array_agg(c.relname || '.' || a.attname ORDER BY c.relname, a.attname)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
      WHERE c.relnamespace = '{template}'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped) THEN
    RAISE EXCEPTION 'the tables of {schema} were changed';
  END IF;
  FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' LOOP
    EXECUTE format('DELETE FROM {schema}.%I', one.tablename);
  END LOOP;
  FOR one IN SELECT sequencename FROM pg_sequences WHERE schemaname = '{schema}' AND last_value IS NOT NULL LOOP
    EXECUTE format('ALTER SEQUENCE {schema}.%I RESTART', one.sequencename);
  END LOOP;
  INSERT INTO {schema}.{version} SELECT * FROM {template}.{version};
END $$;
"""


@functools.cache
def _emptied(server: PostgresServer) -> list[str]:
    return []


def _fill(server: PostgresServer) -> str:
    address = server.make_schema()
    server.execute(_migrated_schema(server).replace(_TEMPLATE, address.rpartition("=")[2]))
    return address


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
