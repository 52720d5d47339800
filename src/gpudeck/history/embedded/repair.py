"""`gpudeck history verify` and `repair`: find what is damaged, and set it aside, so that the rest can be read.

Damaged rows are moved to the table `set_aside`; a file with damaged pages is copied row by row, and keeps its content
under another name. Nothing is deleted.
"""

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from gpudeck.history.codec import Damaged, strip_checksum
from gpudeck.history.embedded.journal import find_damaged_entries
from gpudeck.history.embedded.retention import set_aside
from gpudeck.history.embedded.tables import (
    WRONG,
    check_tables,
    checked_columns,
    columns_of,
    find_wrong,
    is_damage,
    keys_of,
    lock_file,
    open_to_read,
    open_to_write,
    set_file_aside,
    split_key,
    tables_and_columns,
)
from gpudeck.history.hour import HOUR_VERSION
from gpudeck.history.rollup import QUARTERS_VERSION
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

Where = tuple[tuple[str, int], ...]
"""The columns that name a row; empty: no single row."""
_BODIES: Final = {"chunks": HOUR_VERSION, "quarters": QUARTERS_VERSION}
_MAX_TOLD: Final = 100
_UNREADABLE: Final = (sqlite3.Error, TypeError, ValueError, OverflowError)


class Damage(Struct, frozen=True):
    table: str
    where: Where
    text: str


def find_damage(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Reads every byte, which takes minutes for gigabytes. Damage is reported and never raised."""
    is_sound = True
    for damage in check_file(connection):
        is_sound = False
        yield damage
    if is_sound:
        yield from _check_rows(connection)


def check_file(connection: sqlite3.Connection) -> Iterator[Damage]:
    try:
        check_tables(connection)
        for (sentence,) in connection.execute(f"PRAGMA integrity_check({_MAX_TOLD})"):
            if sentence != "ok":
                yield Damage("", (), f"the file: {' '.join(sentence.split())}")
    except sqlite3.Error as error:
        yield Damage("", (), f"the file: {error}")


def _check_rows(connection: sqlite3.Connection) -> Iterator[Damage]:
    names = dict(connection.execute("SELECT id, name FROM hosts").fetchall())
    found: dict[tuple[str, Where], object] = {}
    for table, columns in checked_columns().items():
        keys = keys_of(connection, table)
        for row in find_wrong(connection, table, columns):
            found[table, tuple(zip(keys, row, strict=True))] = WRONG
        if "layout" in columns:
            question = f"SELECT layout, {', '.join(keys)} FROM {table} WHERE layout NOT IN (SELECT id FROM layouts)"  # noqa: S608
            for layout, *row in connection.execute(question):
                found.setdefault((table, tuple(zip(keys, row, strict=True))), f"layout {layout} is missing")
    for table, version in _BODIES.items():
        for key, body in connection.execute(f"SELECT key, body FROM {table}"):  # noqa: S608
            try:
                strip_checksum(version, body)
            except Damaged as error:
                found[table, (("key", key),)] = error
    for (table, where), why in found.items():
        yield Damage(table, where, f"{table}: {_describe_row(where, names)}: {why}")
    for entry, reason in find_damaged_entries(connection):
        yield Damage("journal", (("id", entry),), f"journal: entry {entry}: {reason}")


def _describe_row(where: Where, names: dict[int, str]) -> str:
    named = dict(where)
    if "id" in named:
        return f"number {named['id']}"
    if "start" in named:
        return f"the quarter hour from {show_utc(named['start'])}"
    host, start = split_key(named["key"]) if "key" in named else (named.get("host"), named["hour"])
    return f"the hour from {show_utc(start)}" + ("" if host is None else f" of {names.get(host, f'host {host}')}")


class RepairReport(Struct):
    """`aside` is the old file if its pages were damaged, `copied` the number of rows copied from it. `found` describes
    the damaged rows that were set aside."""

    aside: Path | None = None
    copied: int = 0
    found: list[str] = field(default_factory=list)


def repair(path: Path, now: float) -> RepairReport:
    """Raises UsageError if another process writes the file; sqlite3.Error, OSError and Temporary."""
    done = RepairReport()
    with lock_file(path):
        if _has_bad_pages(path):
            done.aside, done.copied = replace_file(path, now)
        with closing(open_to_write(path)) as connection:
            # Totals of a layout that is set aside are found only then.
            while found := list(find_damage(connection)):
                connection.execute("BEGIN IMMEDIATE")
                for damage in found:
                    named = dict(damage.where)
                    where = " AND ".join(f"{column} IS ?" for column in named)
                    set_aside(connection, damage.table, where, (*named.values(),), reason=damage.text, now=now)
                connection.execute("COMMIT")
                done.found += [damage.text for damage in found]
    return done


def replace_file(path: Path, now: float, min_free: int = 0) -> tuple[Path, int]:
    """Set a damaged file aside and start a new one with its readable rows, or an empty one if the disk has no room for
    both. Returns the new name of the old file, and the number of rows copied."""
    size = path.stat().st_size
    has_room = shutil.disk_usage(path.parent).free > size + min_free
    aside = set_file_aside(path, now)
    with closing(open_to_write(path, keeps_crc=False)) as connection:
        return aside, _copy_all(aside, connection) if has_room else 0


def _has_bad_pages(path: Path) -> bool:
    try:
        with closing(open_to_read(path)) as connection:
            return any(True for _ in check_file(connection))
    except sqlite3.Error as error:
        if is_damage(error):
            return True
        raise


def _copy_all(source: Path, connection: sqlite3.Connection) -> int:
    count = 0
    try:
        with closing(open_to_read(source, is_damaged=True)) as damaged:
            for table, known in tables_and_columns().items():
                there = columns_of(damaged, table)
                if table != "meta" and there:
                    count += _copy(damaged, connection, table, [name for name in known if name in there])
            _copy_numbers(damaged, connection)
    except sqlite3.Error as error:
        log.warning("nothing more can be read of %s: %s", source, error)
    return count


def _copy(damaged: sqlite3.Connection, connection: sqlite3.Connection, table: str, columns: list[str]) -> int:
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    count = 0
    connection.execute("BEGIN IMMEDIATE")
    for row in _readable(damaged, table, columns):
        with contextlib.suppress(sqlite3.IntegrityError):
            count += connection.execute(insert, row).rowcount
    connection.execute("COMMIT")
    return count


def _readable(damaged: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """The rows before the first damaged page, and those after the last one."""
    keys = keys_of(damaged, table)
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{key} {direction}" for key in keys)
        before: tuple[Any, ...] | None = None
        try:
            question = f"SELECT {', '.join(keys)}, {', '.join(columns)} FROM {table} ORDER BY {order}"  # noqa: S608
            for row in damaged.execute(question):
                key = row[: len(keys)]
                if before is not None and (key > before) is not (direction == "ASC"):
                    break  # pages that lead back to themselves
                before = key
                yield row[len(keys) :]
            else:
                return
        except _UNREADABLE:
            continue


def _copy_numbers(damaged: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        rows = damaged.execute("SELECT name, value FROM meta WHERE name LIKE 'newest_%'").fetchall()
        connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
    sealed = connection.execute("SELECT max(upto) FROM sealed").fetchone()[0]
    newest = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'journal'").fetchone()[0]
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
    connection.execute("INSERT INTO sqlite_sequence VALUES ('journal', ?)", (max(sealed or 0, newest or 0),))
