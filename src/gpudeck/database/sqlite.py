"""The hub's tables in one file of its data folder. The library is part of Python: there is nothing to set up."""

import os
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from gpudeck.database.trouble import Trouble

FILE_NAME = "gpudeck.db"
BUSY_SECONDS = 10.0
"""How long to wait for another process, such as the command line, that is writing."""

_ANOTHER_FOLDER = "choose another folder with data_dir in gpudeck.yaml"
GIVE_IT = f"Give the file and its folder to the user that runs the hub, or {_ANOTHER_FOLDER}."
_RESTORE = "Put a backup in its place, or move it away: the hub then starts with an empty one."
_TROUBLES = {
    sqlite3.SQLITE_NOTADB: Trouble("is not a database", _RESTORE),
    sqlite3.SQLITE_CORRUPT: Trouble("is damaged", _RESTORE),
    sqlite3.SQLITE_FULL: Trouble("has no room on its disk", f"Make room there, or {_ANOTHER_FOLDER}."),
    sqlite3.SQLITE_IOERR: Trouble(
        "cannot be read or written: the disk failed", f"Look at the disk, or {_ANOTHER_FOLDER}."
    ),
    sqlite3.SQLITE_READONLY: Trouble("cannot be written", GIVE_IT),
    sqlite3.SQLITE_CANTOPEN: Trouble("cannot be opened", GIVE_IT),
    sqlite3.SQLITE_BUSY: Trouble(
        "is locked by another process",
        "End whatever else has it open: `fuser` shows it. A folder that is shared over a network cannot hold it.",
    ),
}
_TROUBLES[sqlite3.SQLITE_LOCKED] = _TROUBLES[sqlite3.SQLITE_PROTOCOL] = _TROUBLES[sqlite3.SQLITE_BUSY]
_TROUBLES[sqlite3.SQLITE_PERM] = _TROUBLES[sqlite3.SQLITE_READONLY]


def make_engine(file: Path, *, checks_foreign_keys: bool = True, keeps_connection: bool = True) -> AsyncEngine:
    """Connections to the file: one, for which those who write wait in turn, or a new one each time.

    Each transaction is the only one from its beginning: one that only reads first and then writes would otherwise fail
    when another wrote in between.
    """
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{file}",
        connect_args={"timeout": BUSY_SECONDS},
        **_POOLS[keeps_connection],
    )

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # Python begins no transactions by itself: `begin` below does
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"foreign_keys = {int(checks_foreign_keys)}"):
            connection.execute(f"PRAGMA {pragma}").close()

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", prepare)
    event.listen(engine.sync_engine, "begin", begin)
    return engine


_POOLS: dict[bool, dict[str, object]] = {
    True: {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": BUSY_SECONDS},
    False: {"poolclass": NullPool},
}


def make_file(file: Path) -> None:
    """Make the file if it is not there. Only its owner can read it: there are the hashes of passwords in it.

    SQLite gives the same mode to the two files that it puts beside it. Raises OSError.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # One that was copied back from a backup is often readable by everybody.
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def explain(error: BaseException) -> Trouble | None:
    """None for a mistake of ours, such as a column that does not exist."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return _TROUBLES.get(code & 0xFF) if code is not None else None
