"""The file: its tables, their version, and how a connection to it is made.

Every write is one transaction: a hub that is killed leaves whole ones only. Times of hours are in `key`: the host's
number and the hour's, so that a host's hours stand together in the file.
"""

import errno
import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO, Final

from gpudeck.model.errors import UsageError

VERSION: Final = 1
_HOUR_BITS: Final = 21

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE layouts (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE);
CREATE TABLE words (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE hosts (id INTEGER PRIMARY KEY, host_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, first REAL, last REAL);
CREATE TABLE gpus (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, host INTEGER NOT NULL, label TEXT NOT NULL, model TEXT NOT NULL,
    first REAL, last REAL
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, host INTEGER NOT NULL, pid INTEGER NOT NULL, started_at REAL, user TEXT, command TEXT,
    container TEXT, job TEXT, gpus TEXT NOT NULL, first REAL NOT NULL, last REAL NOT NULL, ended INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0, wall_seconds REAL NOT NULL DEFAULT 0, memory_sum REAL NOT NULL DEFAULT 0,
    memory_seconds REAL NOT NULL DEFAULT 0, memory_peak REAL NOT NULL DEFAULT 0,
    utilization_sum REAL NOT NULL DEFAULT 0, utilization_seconds REAL NOT NULL DEFAULT 0, idle REAL NOT NULL DEFAULT 0,
    joules REAL NOT NULL DEFAULT 0, metered REAL NOT NULL DEFAULT 0
);
CREATE INDEX runs_by_process ON runs (host, pid);
CREATE INDEX runs_by_end ON runs (last);
CREATE INDEX runs_by_begin ON runs (first, id);
CREATE INDEX runs_by_user ON runs (user, last);
CREATE INDEX runs_open ON runs (host) WHERE NOT ended;
CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, layout INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE sealed (key INTEGER PRIMARY KEY, upto INTEGER NOT NULL);
CREATE TABLE chunks (key INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE quarters (key INTEGER PRIMARY KEY, count INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE host_hours (
    hour INTEGER NOT NULL, host INTEGER NOT NULL, layout INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (hour, host)
) WITHOUT ROWID;
CREATE TABLE fleet_quarters (
    start INTEGER PRIMARY KEY, layout INTEGER NOT NULL, observed REAL NOT NULL, body BLOB NOT NULL
);
CREATE TABLE uses (
    hour INTEGER NOT NULL, host INTEGER NOT NULL, user INTEGER NOT NULL, model INTEGER NOT NULL,
    held REAL NOT NULL, worked REAL NOT NULL, idle REAL NOT NULL, measured REAL NOT NULL, metered REAL NOT NULL,
    joules REAL NOT NULL, peak REAL NOT NULL, PRIMARY KEY (hour, host, user, model)
) WITHOUT ROWID;
CREATE TABLE uses_of_all (
    hour INTEGER NOT NULL, user INTEGER NOT NULL, model INTEGER NOT NULL,
    held REAL NOT NULL, worked REAL NOT NULL, idle REAL NOT NULL, measured REAL NOT NULL, metered REAL NOT NULL,
    joules REAL NOT NULL, peak REAL NOT NULL, PRIMARY KEY (hour, user, model)
) WITHOUT ROWID;
"""


def key_of(host: int, start: float) -> int:
    """The key of that host's hour that begins at `start`."""
    return (host << _HOUR_BITS) + int(start) // 3600


def keys_between(host: int, start: float, end: float) -> tuple[int, int]:
    """The first and the last key of that host's hours that overlap the span from `start` until before `end`."""
    return key_of(host, max(start, 0)), key_of(host, max(end - 1e-6, 0))


def split_key(key: int) -> tuple[int, int]:
    """The host, and when the hour begins."""
    return key >> _HOUR_BITS, (key & ((1 << _HOUR_BITS) - 1)) * 3600


def claim(path: Path) -> IO[bytes]:
    """The right to write that file, until what is returned is closed. Raises UsageError where another hub has it: both
    would seal the same hours, and everything would count twice."""
    lock = os.fdopen(os.open(path.with_name(f"{path.name}-lock"), os.O_CREAT | os.O_RDWR, 0o600), "r+b")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system that knows no locks is no reason to keep nothing.
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            lock.close()
            raise UsageError(
                f"another hub writes the history in {path}.",
                "Stop it, or give this one a folder of its own: data_dir, or $GPUDECK_DATA_DIR.",
            ) from error
    return lock


def open_to_write(path: Path) -> sqlite3.Connection:
    """The one connection that writes; the file is made if there is none. Raises UsageError where it is not ours."""
    try:
        connection = _connect(path)
        _prepare(connection, path)
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"the history in {path} cannot be opened: {error}.",
            "Look at it with `gpudeck history verify`, or move it away: the hub then begins a new one.",
        ) from error
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA busy_timeout = 5000")
    connection.execute("PRAGMA cache_size = -4000")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA page_size = 2048")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA busy_timeout = 10000")
    connection.execute("PRAGMA cache_size = -4000")
    # Some builds of SQLite overwrite with zeros whatever is deleted: the journal of every hour would be written twice.
    connection.execute("PRAGMA secure_delete = 0")
    connection.execute("PRAGMA journal_size_limit = 16000000")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    found = version_of(connection)
    if found is None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
        connection.execute("COMMIT")
    elif found > VERSION:
        raise UsageError(
            f"the history in {path} is of version {found}, and this gpudeck knows {VERSION}.",
            "Install the gpudeck that wrote it, or a newer one.",
        )


def version_of(connection: sqlite3.Connection) -> int | None:
    """None for an empty file. Raises sqlite3.DatabaseError for a file that is something else."""
    with closing(connection.execute("SELECT count(*) FROM sqlite_master")) as cursor:
        if not cursor.fetchone()[0]:
            return None
    row = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("it says no version")
    return int(row[0])
