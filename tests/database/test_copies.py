"""Before the tables of a file change, a copy of it is kept; a copy is whole whatever others write meanwhile."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from gpudeck.database import migrations, sqlite
from gpudeck.database.engine import open_database
from gpudeck.database.sqlite import FILE_NAME, copy_file, keep_before_migration
from gpudeck.model.errors import UsageError

OLD = "0018"
RECORDED = Path(__file__).parents[1] / "captures" / "database" / f"{OLD}.sql"


def make_old_database(folder: Path) -> Path:
    """A file as a hub of a while ago left it, with an account in it."""
    file = folder / FILE_NAME
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(RECORDED.read_text())
        connection.execute("INSERT INTO accounts (name, role, created_at) VALUES ('alice', 'admin', 1.0)")
        connection.commit()
    return file


def open_and_close(folder: Path) -> None:
    async def run() -> None:
        await (await open_database(None, folder)).close()

    asyncio.run(run())


def ask(file: Path, question: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(question).fetchall()


VERSION = f"SELECT version_num FROM {migrations.VERSION_TABLE}"


def test_the_file_is_copied_before_its_tables_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = make_old_database(tmp_path)
    with caplog.at_level(logging.INFO, "gpudeck"):
        open_and_close(tmp_path)
    (copy,) = (tmp_path / sqlite.BACKUP_FOLDER).iterdir()
    assert (ask(copy, VERSION), ask(file, VERSION)) == ([(OLD,)], [(migrations.NEWEST,)])
    assert ask(copy, "SELECT name FROM accounts") == [("alice",)]
    assert sqlite.COPIED % (OLD, copy) in caplog.messages
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_a_copy_put_back_is_migrated_again(tmp_path: Path) -> None:
    file = make_old_database(tmp_path)
    open_and_close(tmp_path)
    (copy,) = (tmp_path / sqlite.BACKUP_FOLDER).iterdir()
    copy.replace(file)
    open_and_close(tmp_path)
    assert ask(file, VERSION) == [(migrations.NEWEST,)]
    assert ask(file, "SELECT name FROM accounts") == [("alice",)]


def test_a_new_database_and_one_that_is_up_to_date_need_no_copy(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    open_and_close(tmp_path)
    assert not (tmp_path / sqlite.BACKUP_FOLDER).exists()


def test_where_no_copy_can_be_made_nothing_changes(tmp_path: Path) -> None:
    file = make_old_database(tmp_path)
    (tmp_path / sqlite.BACKUP_FOLDER).write_text("a file stands where the folder should")
    with pytest.raises(
        UsageError, match=r"cannot be copied to .*backups before its tables change: .* Nothing was changed"
    ):
        open_and_close(tmp_path)
    assert ask(file, VERSION) == [(OLD,)]


def test_the_last_three_are_kept(tmp_path: Path) -> None:
    file = make_old_database(tmp_path)
    made = []
    for number in range(5):
        made.append(keep_before_migration(file, f"{number:04}"))
        os.utime(made[-1], (number, number))
    bystander = tmp_path / sqlite.BACKUP_FOLDER / "gpudeck-by-hand.db"
    bystander.touch()
    last = keep_before_migration(file, "0009")
    assert sorted((tmp_path / sqlite.BACKUP_FOLDER).iterdir()) == sorted([*made[-2:], last, bystander])


def test_the_newest_is_kept_also_where_the_clock_is_behind(tmp_path: Path) -> None:
    file = make_old_database(tmp_path)
    for number in range(3):
        os.utime(keep_before_migration(file, f"{number:04}"), (9e9 + number, 9e9 + number))
    assert keep_before_migration(file, "0009").exists()
    assert len(list((tmp_path / sqlite.BACKUP_FOLDER).iterdir())) == 3


def test_a_copy_is_whole_while_others_write(tmp_path: Path) -> None:
    """Each transaction writes two rows: a copy that has one of them was torn."""
    source = tmp_path / "source.db"
    ended = threading.Event()
    with contextlib.closing(sqlite3.connect(source)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE pairs (number INTEGER)")

    def write() -> None:
        with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as connection:
            while not ended.is_set():
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO pairs VALUES (1)")
                connection.execute("INSERT INTO pairs VALUES (2)")
                connection.execute("COMMIT")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(10):
            copy_file(source, tmp_path / f"{number}.db")
    finally:
        ended.set()
        writer.join()
    counts = [
        ask(tmp_path / f"{number}.db", "SELECT sum(number = 1), sum(number = 2) FROM pairs") for number in range(10)
    ]
    assert all(ones == twos for ((ones, twos),) in counts)
    assert not list(tmp_path.glob("[0-9].db-*"))


def test_no_copy_is_left_of_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x" * 5000)
    with pytest.raises(sqlite3.DatabaseError):
        copy_file(tmp_path / "notes", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
