"""The file of SQLite: how it is made, and what keeps it from being used, in words that name it and the next step."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from fakes.tables import open_file
from fakes.waiting import until
from gpudeck.database import engine, sqlite
from gpudeck.database.engine import Database, open_database
from gpudeck.database.schema import audit
from gpudeck.model.errors import Temporary, UsageError


def test_file_is_set_up_for_readers_beside_a_writer_and_for_references(tmp_path: Path) -> None:
    async def playing() -> list[object]:
        database = await open_database(None, tmp_path)
        async with database.begin() as connection:
            pragmas = ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
            found = [(await connection.execute(text(f"PRAGMA {pragma}"))).scalar() for pragma in pragmas]
        await database.close()
        return found

    assert asyncio.run(playing()) == ["wal", 1, 10_000, 1]


def test_only_the_owner_can_read_the_file_and_those_beside_it(tmp_path: Path) -> None:
    async def playing() -> dict[str, int]:
        database = await open_database(None, tmp_path)
        modes = modes_in(tmp_path)
        await database.close()
        return modes

    assert asyncio.run(playing()) == dict.fromkeys(["gpudeck.db", "gpudeck.db-wal", "gpudeck.db-shm"], 0o600)


def test_file_from_a_backup_is_readable_by_its_owner_alone_again(tmp_path: Path) -> None:
    make(tmp_path).chmod(0o644)
    asyncio.run(open_and_close(tmp_path))
    assert stat.S_IMODE((tmp_path / "gpudeck.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a?b=c", "a#b", "50%20", "%41", "with space", "ünï", "a:b@c"])
def test_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    asyncio.run(open_and_close(folder))
    assert [file.name for file in folder.iterdir()] == ["gpudeck.db"]


def test_closed_database_is_one_file_that_can_be_copied(tmp_path: Path) -> None:
    make(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["gpudeck.db"]


def test_whoever_is_cancelled_while_it_is_opened_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    begun, before = threading.Event(), set(threading.enumerate())
    connect = sqlite3.connect

    def connect_slowly(*place: Any, **options: Any) -> sqlite3.Connection:
        begun.set()
        time.sleep(0.1)
        return connect(*place, **options)

    async def playing() -> set[threading.Thread]:
        writing = asyncio.create_task(write(open_file(tmp_path)))
        await asyncio.to_thread(begun.wait, 20)
        threads = {thread for thread in threading.enumerate() if thread.name.endswith("(_connection_worker_thread)")}
        writing.cancel()
        assert isinstance((await asyncio.gather(writing, return_exceptions=True))[0], asyncio.CancelledError)
        return threads - before

    monkeypatch.setattr(sqlite3, "connect", connect_slowly)
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: failed.append(failure.exc_value))
    (thread,) = asyncio.run(playing())
    thread.join(20)
    assert not thread.is_alive()
    assert failed == []


def test_copy_made_while_the_hub_runs_is_whole(tmp_path: Path) -> None:
    async def playing() -> None:
        database = await open_database(None, tmp_path)
        await write(database)
        (tmp_path / "copy").mkdir()
        with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db")) as original:
            original.execute("VACUUM INTO ?", (str(tmp_path / "copy" / "gpudeck.db"),))
        await database.close()

    asyncio.run(playing())
    assert asyncio.run(count(tmp_path / "copy")) == 1


def test_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.db").write_text("not a database at all, but a text\n" * 100)
    assert refusal(tmp_path) == (
        f"the database {tmp_path}/gpudeck.db is not a database. "
        "Put a backup in its place, or move it away: the hub then starts with an empty one."
    )
    assert (tmp_path / "gpudeck.db").read_text().startswith("not a database at all")


def test_damaged_file_is_named(tmp_path: Path) -> None:
    file = make(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * 3996 + content[4096:])
    assert refusal(tmp_path).startswith(f"the database {file} is damaged. Put a backup in its place")


def test_folder_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.db").mkdir()
    assert refusal(tmp_path).startswith(f"the database {tmp_path}/gpudeck.db cannot be opened: is a directory. Give")


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no").startswith(
        f"the database {tmp_path}/no/gpudeck.db cannot be opened: no such file or directory. Give"
    )


def test_file_that_another_process_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(make(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert refusal(tmp_path) == (
            f"the database {tmp_path}/gpudeck.db is locked by another process. "
            "End what else has it open (`fuser` shows it). A folder that machines share over a network cannot hold it."
        )


def test_running_hub_says_that_another_process_locks_the_file_and_goes_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)

    async def playing() -> None:
        database = await open_database(None, tmp_path)
        with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Temporary, match="is locked by another process"):
                await write(database)
        await write(database)
        await database.close()

    asyncio.run(playing())
    assert asyncio.run(count(tmp_path)) == 1


def test_folder_of_somebody_else_is_named(ordinary_folder: Path) -> None:
    ordinary_folder.chmod(0o500)
    with as_ordinary_user():
        assert refusal(ordinary_folder) == (
            f"the database {ordinary_folder}/gpudeck.db cannot be opened: permission denied. Give the file and its "
            "folder to the user that runs the hub, or choose another folder with data_dir in gpudeck.yaml."
        )


def test_file_in_a_folder_that_takes_no_new_files_is_named(ordinary_folder: Path) -> None:
    with as_ordinary_user():
        make(ordinary_folder)
        ordinary_folder.chmod(0o500)
        assert refusal(ordinary_folder).startswith(f"the database {ordinary_folder}/gpudeck.db cannot be ")
        assert "Give the file and its folder to the user that runs the hub" in refusal(ordinary_folder)


def test_disk_without_room_is_named_at_the_start(small_disk: Path) -> None:
    fill(small_disk)
    assert refusal(small_disk) == (
        f"the database {small_disk}/gpudeck.db has no room on its disk. "
        "Make room there, or choose another folder with data_dir in gpudeck.yaml."
    )


def test_disk_that_fills_up_loses_nothing_and_the_hub_goes_on_once_there_is_room(small_disk: Path) -> None:
    async def playing() -> None:
        database = await open_database(None, small_disk)
        await write(database)
        fill(small_disk)
        with pytest.raises(Temporary, match="has no room on its disk"):
            await write(database, "x" * 500_000)
        (small_disk / "filler").unlink()
        await write(database)
        await database.close()

    asyncio.run(playing())
    assert asyncio.run(count(small_disk)) == 2


def test_watched_file_that_is_locked_is_away_before_anybody_asks_and_back_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    make(tmp_path)

    async def playing(database: Database) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await until(lambda: reason(database) == "is locked by another process")
            with pytest.raises(Temporary, match="is locked by another process"):
                await write(database)
        await until(lambda: database.away is None)
        await write(database)

    asyncio.run(watching(tmp_path, playing))


def test_own_transaction_that_takes_long_is_no_lock_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    make(tmp_path)

    async def playing(database: Database) -> None:
        async with database.begin() as connection:
            await connection.execute(insert(audit).values(at=1.0, who="me", action="test", details=""))
            for _ in range(20):
                await asyncio.sleep(0.02)
                assert database.away is None

    asyncio.run(watching(tmp_path, playing))


def test_watched_file_on_a_full_disk_says_so_and_can_still_be_read(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(sqlite, "MIN_FREE_BYTES", 1 << 17)
    make(small_disk)

    async def playing(database: Database) -> None:
        assert database.away is None
        fill(small_disk)
        await until(lambda: reason(database) == "has no room on its disk")
        async with database.begin() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM audit"))).scalar() == 0
        (small_disk / "filler").unlink()
        await until(lambda: database.away is None)

    asyncio.run(watching(small_disk, playing))


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCKED_SECONDS", 0.05)
    for name in ("PROBE_FILE_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(engine, name, 0.02)


async def watching(folder: Path, play: Callable[[Database], Awaitable[None]]) -> None:
    """As a hub has it."""
    database = await open_database(None, folder, may_be_away=True)
    watch = asyncio.create_task(database.watch())
    try:
        await play(database)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await database.close()


def reason(database: Database) -> str | None:
    return database.away and database.away.trouble.reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "gpudeck-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root that may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder of the user of `as_ordinary_user`, to which that user can also get."""
    with tempfile.TemporaryDirectory(prefix="gpudeck-") as folder:
        shutil.chown(folder, _ordinary_user())
        yield Path(folder)
        Path(folder).chmod(0o700)


def _ordinary_user() -> int:
    return os.geteuid() or 65_534


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """For root, whom no mode of a file stops."""
    before = os.geteuid()
    os.seteuid(_ordinary_user())
    try:
        yield
    finally:
        os.seteuid(before)


def fill(folder: Path) -> None:
    """Leave no room."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def modes_in(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def make(data_dir: Path) -> Path:
    asyncio.run(open_and_close(data_dir))
    return data_dir / "gpudeck.db"


def refusal(data_dir: Path) -> str:
    with pytest.raises(UsageError) as raised:
        asyncio.run(open_and_close(data_dir))
    return str(raised.value)


async def open_and_close(data_dir: Path) -> None:
    await (await open_database(None, data_dir)).close()


async def write(database: Database, details: str = "") -> None:
    async with database.begin() as connection:
        await connection.execute(insert(audit).values(at=1.0, who="me", action="test", details=details))


async def count(data_dir: Path) -> int:
    database = await open_database(None, data_dir)
    async with database.begin() as connection:
        found = (await connection.execute(text("SELECT count(*) FROM audit"))).scalar_one()
    await database.close()
    return int(found)


def test_a_file_that_is_replaced_below_a_running_hub_is_found(tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.db"
    file.write_bytes(b"old")
    opened = sqlite.identify(file)
    file.write_bytes(b"new and longer")
    assert sqlite.find_problem(file, opened) is None
    shutil.copy(file, tmp_path / "backup")
    (tmp_path / "backup").replace(file)
    found = sqlite.find_problem(file, opened)
    assert found is not None
    assert found.reason.startswith("was replaced while the hub runs")
    assert not found.stops_all
