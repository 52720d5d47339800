"""The SQLite file: its tables, their version, row checksums, and how a connection is made.

The column `crc` is the CRC-32 of the row's other columns. Triggers of the writing connection maintain it, except for
rows that are inserted with it. A row that was damaged before it is changed gets `DAMAGED`, which never matches.
"""

import fcntl
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from gpudeck.history.codec import Damaged
from gpudeck.model.errors import Temporary, UsageError

DAMAGED: Final = -1

_pack = msgspec.msgpack.Encoder().encode
VERSION: Final = 3
HOUR_BITS: Final = 21
"""Of the key of a host's hour: the hours since 1970, below the number of the host."""

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
CREATE TABLE quarters (key INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE host_hours (
    hour INTEGER NOT NULL, host INTEGER NOT NULL, layout INTEGER NOT NULL, body BLOB NOT NULL,
    utilization_sum REAL, utilization_seconds REAL, PRIMARY KEY (hour, host)
) WITHOUT ROWID;
CREATE INDEX host_utilization ON host_hours (host, hour, utilization_sum, utilization_seconds);
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
_OTHERS: Final = frozenset({"meta", "journal", "chunks", "quarters"})
_CHECKED: Final = tuple(name for name in re.findall(r"CREATE TABLE (\w+)", _SCHEMA) if name not in _OTHERS)
"""The tables whose rows have a checksum in the column `crc`, which is added to `_SCHEMA`. The bodies of journal, chunks
and quarters have one inside; `meta` only has the version and upper limits of numbers."""
WRONG: Final = "the checksum does not fit: the row has changed since it was written"


def checksum(*row: object) -> int:
    """`row` are all columns but `crc`, in the order of the table, with text as bytes: damaged text may not be valid."""
    return zlib.crc32(_pack(row))


def is_sound(row: Sequence[Any], crc: object) -> bool:
    return crc == checksum(*row)


def require_sound(row: Sequence[Any]) -> None:
    if not is_sound(row[:-1], row[-1]):
        raise Damaged(WRONG)


def convert_rows(rows: Iterable[Any], kind: Any, note: Callable[[str, Exception], None]) -> Iterator[Any]:
    """The rows as tuples of that type. Damaged rows are left out, and `note` is called with the number of each."""
    wanted = list(rows)
    try:
        yield from msgspec.convert(wanted, list[kind])
    except msgspec.ValidationError:
        for row in wanted:
            try:
                yield msgspec.convert(row, kind)
            except msgspec.ValidationError as error:
                note(str(row[0]), error)


def select(columns: Sequence[str], prefix: str = "") -> str:
    """A column list in the form that `checksum` needs. SQL functions cannot take damaged text."""
    return ", ".join(
        f"CASE typeof({prefix}{name}) WHEN 'text' THEN CAST({prefix}{name} AS BLOB) ELSE {prefix}{name} END"
        for name in columns
    )


def keep_checksums(connection: sqlite3.Connection, tables: dict[str, tuple[str, ...]]) -> None:
    """Make the connection maintain the checksums of these tables. `tables` has their columns."""
    connection.create_function("row_crc", -1, checksum, deterministic=True)
    connection.execute("PRAGMA temp_store = MEMORY")
    for table, columns in tables.items():
        new, old = (f"row_crc({select(columns, prefix)})" for prefix in ("new.", "old."))
        same = " AND ".join(f"{name} IS new.{name}" for name in keys_of(connection, table))
        was_sound = f"old.crc IS NULL OR old.crc = {old}"  # NULL: before the trigger of the INSERT
        changed = f"CASE WHEN {was_sound} THEN {new} ELSE {DAMAGED} END"
        # A row that is inserted with a checksum keeps it.
        for event, crc in (("INSERT", new), ("UPDATE", changed)):
            when = "WHEN new.crc IS NULL " if event == "INSERT" else ""
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} {when}"  # noqa: S608
                f"BEGIN UPDATE {table} SET crc = {crc} WHERE {same}; END"
            )


def keys_of(connection: sqlite3.Connection, table: str) -> list[str]:
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [row[1] for row in sorted(found, key=lambda row: row[5]) if row[5]]


def find_wrong(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The keys of rows with a wrong checksum. Raises sqlite3.Error if the table has no checksums."""
    keys = keys_of(connection, table)
    question = f"SELECT {', '.join(keys)}, {select(columns)}, crc FROM {table}"  # noqa: S608
    for row in connection.execute(question):
        if not is_sound(row[len(keys) : -1], row[-1]):
            yield row[: len(keys)]


def key_of(host: int, start: float) -> int:
    return (host << HOUR_BITS) + int(start) // 3600


def keys_between(host: int, start: float, end: float) -> tuple[int, int]:
    """The first and last key of hours of that host that overlap the span from `start` until before `end`."""
    return key_of(host, max(start, 0)), key_of(host, max(end - 1e-6, 0))


def split_key(key: int) -> tuple[int, int]:
    return key >> HOUR_BITS, (key & ((1 << HOUR_BITS) - 1)) * 3600


def lock_file(path: Path) -> IO[bytes]:
    """Lock the file for writing until the returned object is closed. Raises UsageError if another hub has the lock:
    both would seal the same hours, and everything would count twice."""
    lock = os.fdopen(os.open(path.with_name(f"{path.name}-lock"), os.O_CREAT | os.O_RDWR, 0o600), "r+b")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        lock.close()
        raise UsageError(
            f"another hub writes the history in {path}.",
            "Stop it, or give this one a folder of its own: data_dir, or $GPUDECK_DATA_DIR.",
        ) from error
    except OSError:
        pass  # a file system that knows no locks is no reason to keep nothing
    return lock


class DamagedFile(sqlite3.DatabaseError):
    """The file cannot be read as a history. The text is the reason."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the content of the file is the cause, and not a disk, a permission or a lock."""
    if isinstance(error, DamagedFile):
        return True
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        connection.close()
        if isinstance(error, UnicodeDecodeError):
            # What SQLite says of damaged names of tables is no text.
            raise DamagedFile("the names of its tables are damaged") from error
        raise


def open_to_write(path: Path, *, keeps_crc: bool = True) -> sqlite3.Connection:
    """The only connection that writes. Creates the file if necessary. Raises DamagedFile, UsageError if it is not a
    history of this version, and Temporary if it cannot be used at the moment."""
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with _closed_on_error(connection):
            _prepare(connection, path)
            if keeps_crc:
                keep_checksums(connection, checked_columns())
    except (sqlite3.Error, OSError) as error:
        raise _explain(error, path) from error
    return connection


def _explain(error: sqlite3.Error | OSError, path: Path) -> Exception:
    if isinstance(error, sqlite3.Error) and is_damage(error):
        return DamagedFile(str(error))
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) is None:
        return UsageError(f"the history in {path} cannot be used: {error}.", "Move it away, or name another data_dir.")
    return Temporary(
        f"the history in {path} cannot be opened: {error}.",
        "Check the permissions and the disk. Nothing of it is changed; it is tried again every half minute.",
    )


def set_file_aside(path: Path, now: float) -> Path:
    """Rename the file and its -wal and -shm files, and return the new name. Raises OSError."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    names = (f"{path.stem}-damaged-{stamp}{count}{path.suffix}" for count in ("", *(f"-{n}" for n in range(1, 1000))))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    # What was not moved into the file yet goes first: without it, the file alone is at least one of its states.
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def open_to_read(path: Path, *, is_damaged: bool = False) -> sqlite3.Connection:
    """Raises sqlite3.Error. With `is_damaged`, also opens a file that is shorter than its header says."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = _read_text
    first = "writable_schema = 1" if is_damaged else "query_only = 1"
    with _closed_on_error(connection):
        for setting in (first, "busy_timeout = 5000", "cache_size = -4000"):
            connection.execute(f"PRAGMA {setting}")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.text_factory = _read_text
    found = version_of(connection)  # before anything is changed: it may be the file of something else
    settings = ("page_size = 2048", "journal_mode = WAL", "synchronous = NORMAL", "busy_timeout = 10000")
    # Some builds of SQLite overwrite with zeros whatever is deleted: the journal of every hour would be written twice.
    for setting in (*settings, "cache_size = -4000", "secure_delete = 0", "journal_size_limit = 16000000"):
        connection.execute(f"PRAGMA {setting}")
    if found is None:
        connection.execute("BEGIN IMMEDIATE")
        _make_tables(connection)
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('version', ?)", (VERSION,))
        connection.execute("COMMIT")
    elif found == VERSION:
        check_tables(connection)
    else:
        raise UsageError(
            f"the history in {path} is of version {found}, and this gpudeck knows {VERSION}.",
            "Install the gpudeck that wrote it, or move the file away.",
        )


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    for table in _CHECKED:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")


def check_tables(connection: sqlite3.Connection) -> None:
    for table, columns in tables_and_columns().items():
        missing = {*columns} - {*columns_of(connection, table)}
        if missing:
            raise DamagedFile(f"the table {table} is missing, or its column {min(missing)}")


@cache
def tables_and_columns() -> dict[str, tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        _make_tables(connection)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: columns_of(connection, name) for name in names if not name.startswith("sqlite_")}


@cache
def checked_columns() -> dict[str, tuple[str, ...]]:
    return {table: tables_and_columns()[table][:-1] for table in _CHECKED}


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))


def version_of(connection: sqlite3.Connection) -> int | None:
    """None for an empty file. Raises sqlite3.DatabaseError for another kind of database, DamagedFile for a history
    without a version."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return None
    if not names & {"journal", "chunks", "uses", "runs"}:
        raise sqlite3.DatabaseError("it is a database of something else")
    if "meta" not in names:
        raise DamagedFile("the table meta is missing")
    row = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise DamagedFile("it says no version")
    return row[0]


def _read_text(data: bytes) -> str:
    """Tolerates invalid text: one damaged name must not hide the others."""
    return data.decode(errors="replace")
