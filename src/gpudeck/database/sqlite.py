"""The hub's tables in one file of its data folder. The library is part of Python: there is nothing to set up."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import aiosqlite
from sqlalchemy import URL, Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from gpudeck.database import DatabaseTrouble
from gpudeck.model.errors import UsageError

FILE_NAME = "gpudeck.db"
LOCAL_NAME = "local.db"
"""With a PostgreSQL server: what has to go on while that is away (alerts, messages, events that it did not take)."""
BUSY_SECONDS = 10.0
"""How long to wait for others: within the hub, and another process, such as the command line, that is writing."""
LOCKED_SECONDS = 3.0
"""How long a running hub waits for another process: `/readyz` and the messages of alerts wait for this."""
MIN_ROOM_BYTES = 1 << 20
"""With less on its disk the database counts as one that cannot be written: small changes may still find a place."""

# On DEBUG it writes every statement with its values, and there are hashes of passwords among them.
logging.getLogger("aiosqlite").setLevel(logging.WARNING)

_ANOTHER_FOLDER = "choose another folder with data_dir in gpudeck.yaml"
GIVE_IT = f"Give the file and its folder to the user that runs the hub, or {_ANOTHER_FOLDER}."
_RESTORE = "Put a backup in its place, or move it away: the hub then starts with an empty one."
_LOCKED = DatabaseTrouble(
    "is locked by another process",
    "End what else has it open (`fuser` shows it). A folder that machines share over a network cannot hold it.",
)
_FULL = DatabaseTrouble("has no room on its disk", f"Make room there, or {_ANOTHER_FOLDER}.", stops_all=False)
_TROUBLES = {
    sqlite3.SQLITE_NOTADB: DatabaseTrouble("is not a database", _RESTORE, may_pass=False),
    sqlite3.SQLITE_CORRUPT: DatabaseTrouble("is damaged", _RESTORE, may_pass=False),
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: DatabaseTrouble(
        "cannot be read or written", f"Look at its disk, which may be full, or {_ANOTHER_FOLDER}.", stops_all=False
    ),
    sqlite3.SQLITE_READONLY: DatabaseTrouble("cannot be written", GIVE_IT, may_pass=False),
    sqlite3.SQLITE_PERM: DatabaseTrouble("cannot be written", GIVE_IT, may_pass=False),
    sqlite3.SQLITE_CANTOPEN: DatabaseTrouble("cannot be opened", GIVE_IT, may_pass=False),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
}
_ONE_CONNECTION: dict[str, Any] = {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0}
log = logging.getLogger(__name__)

_GONE = DatabaseTrouble(
    "is gone, and what is changed now will be lost: put it back, or start the hub again", "", stops_all=False
)
_REPLACED = DatabaseTrouble(
    "was replaced while the hub runs, and what is changed now will be lost: start the hub again", "", stops_all=False
)
BACKUP_FOLDER = "backups"
"""In the data folder: the database as it was before each of the last migrations."""
BACKUPS_KEPT = 3
COPIED = "the database as it was with version %s is kept in %s"


def make_engine(
    file: Path, *, checks_foreign_keys: bool = True, keeps_connection: bool = True, waits: float | None = None
) -> AsyncEngine:
    """Connections to the file: one, for which all wait in turn, or a new one each time. Another process that writes is
    waited for up to `waits` seconds. Each transaction is the only one from its beginning: one that reads first and then
    writes would otherwise fail when another wrote in between."""
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(file)),  # not from text: a folder may have ? and # in its name
        async_creator=lambda: _connect(file, BUSY_SECONDS if waits is None else min(waits, BUSY_SECONDS)),
        hide_parameters=True,
        **(_ONE_CONNECTION | {"pool_timeout": BUSY_SECONDS} if keeps_connection else {"poolclass": NullPool}),
    )

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # Python begins no transaction by itself: `begin` below does
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"foreign_keys = {int(checks_foreign_keys)}"):
            connection.execute(f"PRAGMA {pragma}").close()

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", begin)
    return engine


async def _connect(file: Path, waits: float) -> aiosqlite.Connection:
    """Each connection has a thread of its own. A caller that is cancelled meanwhile waits until it is closed again:
    else the thread would return it to an event loop that may be gone."""
    connection = _make_connection(file, waits)
    opening = asyncio.ensure_future(_open(connection))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await connection.close()
        raise


def _make_connection(file: Path, waits: float) -> aiosqlite.Connection:
    """A process ends without waiting for its thread: a thread that is made in a daemon is one, too."""
    made: list[aiosqlite.Connection] = []
    maker = Thread(target=lambda: made.append(aiosqlite.connect(file, timeout=waits)), daemon=True)
    maker.start()
    maker.join()
    return made[0]


async def _open(connection: aiosqlite.Connection) -> aiosqlite.Connection:
    opened = await connection
    # A text that is damaged must not hide the rows around it.
    opened.text_factory = partial(str, encoding="utf-8", errors="replace")
    return opened


def make_file(file: Path) -> None:
    """Make the file if it is not there. Only its owner can read it: there are hashes of passwords in it. SQLite gives
    the same mode to the two files that it creates next to it. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # One that was copied back from a backup is often readable by everybody.
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def identify(file: Path) -> tuple[int, int] | None:
    """Which file it is; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def find_trouble(file: Path, opened: tuple[int, int] | None) -> DatabaseTrouble | None:
    """That it is not the file any more that was `opened`, or that its disk has no room left. Blocks."""
    now = identify(file)
    if now != opened:
        return _GONE if now is None else _REPLACED
    try:
        found = os.statvfs(file)
    except OSError:
        return None
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return _FULL if free * found.f_frsize < MIN_ROOM_BYTES else None


def explain(error: BaseException) -> DatabaseTrouble | None:
    """What keeps the database from answering; None for a mistake of ours, such as a column that does not exist."""
    if isinstance(error, PoolTimeout):
        return DatabaseTrouble(f"is busy: others in the hub used it for {BUSY_SECONDS:g} s", "Try again.")
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else _TROUBLES.get(code & 0xFF)


def copy_file(source: Path, target: Path) -> None:
    """A new file `target`, which only its owner can read, with all that was committed in `source` when this began. One
    step of SQLite's own backup: writers go on meanwhile. The copy is one file, with no second file. Blocks. Raises
    sqlite3.Error and OSError; then there is no target."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(open_to_read(source)) as opened, contextlib.closing(sqlite3.connect(target)) as copy:
            opened.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").close()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection that cannot write. The caller closes it. Raises sqlite3.Error where there is no file."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def keep_before_migration(file: Path, version: str) -> Path:
    """A copy in the folder of backups; the oldest of more than KEPT go. Raises UsageError: then nothing may change."""
    folder = file.with_name(BACKUP_FOLDER)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    copy = folder / f"{file.stem}-{version}-{stamp}{file.suffix}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        copy.unlink(missing_ok=True)  # of a migration that failed within the same second
        copy_file(file, copy)
        _belong_to_owner_of(file, folder, copy)
        _forget_oldest(folder, f"{file.stem}-[0-9]*{file.suffix}", newest=copy)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"the database {file} cannot be copied to {folder} before its tables change: {error}.",
            "Nothing was changed. Make room there, or give the folder to the user that runs the hub.",
        ) from error
    log.info(COPIED, version, copy)
    return copy


def _belong_to_owner_of(file: Path, *made: Path) -> None:
    """What root makes, with a command, is the hub's to clear away."""
    owner = file.stat()
    if os.geteuid() == 0:
        for path in made:
            os.chown(path, owner.st_uid, owner.st_gid)


def _forget_oldest(folder: Path, pattern: str, newest: Path) -> None:
    """`newest` stays, also where the clock says that it is the oldest."""
    others = (path for path in folder.glob(pattern) if path != newest)
    by_age = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in by_age[: 1 - BACKUPS_KEPT]:
        path.unlink()
