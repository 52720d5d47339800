"""Commands on the hub's database: tables of an older gpudeck change only while no hub uses them."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from database_fixtures import connect
from gpudeck.database import migrations
from gpudeck.database.engine import Database, open_database
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.model.errors import UsageError
from gpudeck.ops.data_folder import lock_exclusively, lock_for_hub, use_database

OLDER = "0018"
RECORDED = Path(__file__).parents[1] / "captures" / "database" / f"{OLDER}.sql"


@pytest.fixture
def config(database_address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a hub whose tables are those of the version before this one."""
    if database_address is None:
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as recorded:
            recorded.executescript(RECORDED.read_text())
    else:
        monkeypatch.setattr(migrations, "NEWEST", OLDER)
        asyncio.run(open_and_close(database_address, tmp_path))
        monkeypatch.undo()
    file = tmp_path / "gpudeck.yaml"
    file.write_text(f"data_dir: {tmp_path}\ndatabase: {database_address or 'null'}\n")
    return file


def test_command_refuses_to_change_tables_below_a_running_hub(
    config: Path, database_address: str | None, tmp_path: Path
) -> None:
    with lock_for_hub(tmp_path), pytest.raises(UsageError) as raised:
        use_database(config, read_version)
    assert f"version {OLDER}" in str(raised.value)
    assert "Restart the hub with this gpudeck" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert asyncio.run(look(database_address, tmp_path)) == OLDER


def test_command_without_a_hub_brings_the_file_up_to_date(
    config: Path, database_address: str | None, tmp_path: Path
) -> None:
    if database_address is not None:
        # A hub on another machine may use the same server, and nobody here can see it.
        with pytest.raises(UsageError, match="Restart the hub with this gpudeck"):
            use_database(config, read_version)
        return
    assert use_database(config, read_version) == migrations.NEWEST
    assert len(list((tmp_path / "backups").iterdir())) == 1
    with lock_exclusively(tmp_path):
        """Nothing holds the lock any more."""


def test_command_makes_the_tables_of_an_empty_database(database_address: str | None, tmp_path: Path) -> None:
    config = tmp_path / "gpudeck.yaml"
    config.write_text(f"data_dir: {tmp_path}\ndatabase: {database_address or 'null'}\n")
    with lock_for_hub(tmp_path):
        assert use_database(config, read_version) == migrations.NEWEST


async def read_version(database: Database) -> str:
    async with database.begin() as connection:
        return str((await connection.execute(text(f"SELECT version_num FROM {migrations.VERSION_TABLE}"))).scalar())


async def open_and_close(address: str | None, folder: Path) -> None:
    await (await open_database(address, folder)).close()


async def look(address: str | None, folder: Path) -> str:
    """The version as it stands there, without bringing it up to date."""
    return await read_version(connect(address, folder))
