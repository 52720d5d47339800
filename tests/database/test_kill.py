"""A hub that is killed in the middle of writing loses nothing that it has committed, and keeps no half of anything."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from sqlalchemy import select

from gpudeck.database.engine import open_database
from gpudeck.database.schema import audit

WRITER = Path(__file__).with_name("writer.py")
ROUNDS = 5
ROWS = 40


def test_nothing_committed_is_lost_by_kill_9(database_address: str | None, tmp_path: Path) -> None:
    said = [number for _ in range(ROUNDS) for number in write_and_kill(database_address, tmp_path)]
    rows = asyncio.run(read(database_address, tmp_path))
    assert len(said) >= ROUNDS * ROWS
    assert set(said) <= set(rows["writer"])
    assert rows["writer"] == rows["its twin"]


def write_and_kill(address: str | None, data_dir: Path) -> list[int]:
    """The numbers that it said, up to its death."""
    command = [sys.executable, str(WRITER), str(data_dir), *filter(None, [address])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(ROWS)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    return [int(line) for line in said if line.endswith("\n")]


async def read(address: str | None, data_dir: Path) -> dict[str, list[float]]:
    database = await open_database(address, data_dir)
    async with database.begin() as connection:
        rows = (await connection.execute(select(audit.c.who, audit.c.at).order_by(audit.c.at))).all()
    await database.close()
    return {name: [at for who, at in rows if who == name] for name in ("writer", "its twin")}
