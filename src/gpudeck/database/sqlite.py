"""The hub's tables in one file of its data folder. SQLite is part of Python: there is nothing to set up."""

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
"""Used with a PostgreSQL server, for what continues while that is unavailable: alerts and their messages."""
BUSY_SECONDS = 10.0
"""How long to wait for other writers: within the hub, or another process such as the command line."""
LOCKED_SECONDS = 3.0
"""How long a running hub waits for another process: `/readyz` and alert messages wait for this."""
MIN_FREE_BYTES = 1 << 20
"""With less free space the database counts as not writable, although small changes may still fit."""

# At DEBUG it logs every statement with its values, among them password hashes.
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
"""In the data folder: copies of the database from before the last migrations."""
BACKUPS_KEPT = 3
COPIED = "the database as it was with version %s is kept in %s"


def make_engine(
    file: Path, *, checks_foreign_keys: bool = True, keeps_connection: bool = True, waits: float | None = None
) -> AsyncEngine:
    """Connections to the file: one that is shared in turn, or a new one each time. Other processes that write are
    waited for up to `waits` seconds. Transactions are exclusive from their beginning: otherwise one that reads before
    it writes fails if another wrote in between."""
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
    """Each connection has its own thread. A caller that is cancelled meanwhile waits until it is closed: otherwise the
    thread would return it to an event loop that may be gone."""
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
    """The process must not wait for the connection's thread at exit: a thread that is started by a daemon thread is a
    daemon, too."""
    made: list[aiosqlite.Connection] = []
    maker = Thread(target=lambda: made.append(aiosqlite.connect(file, timeout=waits)), daemon=True)
    maker.start()
    maker.join()
    return made[0]


async def _open(connection: aiosqlite.Connection) -> aiosqlite.Connection:
    opened = await connection
    # Damaged text must not hide the rows around it.
    opened.text_factory = partial(str, encoding="utf-8", errors="replace")
    return opened


def make_file(file: Path) -> None:
    """Create the file if it is not there, readable only by its owner, because it contains password hashes. SQLite gives
    its two other files the same mode. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A file that was restored from a backup is often world-readable.
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def identify(file: Path) -> tuple[int, int] | None:
    """The identity of the file; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def find_problem(file: Path, opened: tuple[int, int] | None) -> DatabaseTrouble | None:
    """Whether the file is no longer the one that was `opened`, or its disk is full. Blocks."""
    now = identify(file)
    if now != opened:
        return _GONE if now is None else _REPLACED
    try:
        found = os.statvfs(file)
    except OSError:
        return None
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return _FULL if free * found.f_frsize < MIN_FREE_BYTES else None


def explain(error: BaseException) -> DatabaseTrouble | None:
    """Why the database does not answer; None for a bug of ours, such as a column that does not exist."""
    if isinstance(error, PoolTimeout):
        return DatabaseTrouble(f"is busy: others in the hub used it for {BUSY_SECONDS:g} s", "Try again.")
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else _TROUBLES.get(code & 0xFF)


def copy_file(source: Path, target: Path) -> None:
    """Copy everything committed in `source` to a new file `target`, readable only by its owner, while others write
    (SQLite's online backup, in one step). The copy is a single file. Blocks. Raises sqlite3.Error and OSError; then
    there is no target."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(open_to_read(source)) as opened, contextlib.closing(sqlite3.connect(target)) as copy:
            opened.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").close()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def open_to_read(file: Path) -> sqlite3.Connection:
    """A read-only connection. The caller closes it. Raises sqlite3.Error if there is no file."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def keep_before_migration(file: Path, version: str) -> Path:
    """Copy the file to the backup folder, and delete the oldest if there are more than KEPT. Raises UsageError: then
    nothing may change."""
    folder = file.with_name(BACKUP_FOLDER)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    copy = folder / f"{file.stem}-{version}-{stamp}{file.suffix}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        copy.unlink(missing_ok=True)  # left by a migration that failed within the same second
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
    """Files that root creates with a command must belong to the hub."""
    owner = file.stat()
    if os.geteuid() == 0:
        for path in made:
            os.chown(path, owner.st_uid, owner.st_gid)


def _forget_oldest(folder: Path, pattern: str, newest: Path) -> None:
    """`newest` stays, even if the clock says that it is the oldest."""
    others = (path for path in folder.glob(pattern) if path != newest)
    by_age = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in by_age[: 1 - BACKUPS_KEPT]:
        path.unlink()
