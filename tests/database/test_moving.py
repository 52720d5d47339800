"""The way from SQLite to PostgreSQL that docs/database.md tells, done as it stands there."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from fakes.postgres import PostgresServer, find_postgres
from gpudeck.database.engine import open_database
from gpudeck.database.schema import accounts, audit, events, metadata, sessions, tokens

PAGE = Path(__file__).parents[2] / "docs" / "database.md"
ROWS: list[tuple[Any, dict[str, object]]] = [
    (
        accounts,
        {"id": 3, "name": "alice", "role": "admin", "password_hash": "$argon2id$v=19$m=1,t=2$a", "created_at": 1.5},
    ),
    (accounts, {"id": 7, "name": "bob", "role": "user", "created_at": 1_790_000_000.12345}),
    (sessions, {"hash": "s", "account_id": 3, "created_at": 1.0, "seen_at": 2.0, "user_agent": 'a "browser", 1'}),
    (tokens, {"id": 4, "hash": "t", "name": "", "role": "agent", "created_at": 1.0, "account_id": 7, "hosts": "gpu*"}),
    (audit, {"id": 9, "at": 1.0, "who": "alice", "action": "add host", "details": "two\nlines, é; \\N"}),
    (
        events,
        {"fleet": "real", "id": "1a0", "at": 1.0, "kind": "xid", "severity": "info", "user": "bob", "title": "a, b"},
    ),
]


def test_everything_moves_from_sqlite_to_postgresql_as_the_page_says(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.make_database()
    before = asyncio.run(fill(tmp_path))
    asyncio.run(read(address, tmp_path))
    move(address, tmp_path)
    assert asyncio.run(read(address, tmp_path)) == before
    assert asyncio.run(add_account(address, tmp_path)) == 8
    assert list(tmp_path.glob("*.csv")) == []


def move(address: str, data_dir: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3 on this machine: run tests/system-packages.sh")
    (script,) = re.findall(r"^```sh\n(address=.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = script.replace("address=postgresql://gpudeck@db.example/gpudeck", f"address={address}")
    path = f"{find_postgres()}:/usr/local/bin:/usr/bin:/bin"
    subprocess.run(["bash", "-euc", script], cwd=data_dir, env={"PATH": path}, timeout=60, check=True)


async def fill(data_dir: Path) -> dict[str, list[object]]:
    database = await open_database(None, data_dir)
    async with database.begin() as connection:
        for table, row in ROWS:
            await connection.execute(insert(table).values(**row))
    await database.close()
    return await read(None, data_dir)


async def read(address: str | None, data_dir: Path) -> dict[str, list[object]]:
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        found = {name: (await connection.execute(select(table))).all() for name, table in metadata.tables.items()}
    await database.close()
    return {name: sorted(map(tuple, rows), key=repr) for name, rows in found.items()}


async def add_account(address: str, data_dir: Path) -> int:
    """The id that it gets."""
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        added = await connection.execute(insert(accounts).values(name="carol", role="user", created_at=1.0))
    await database.close()
    return int((added.inserted_primary_key or (0,))[0])
