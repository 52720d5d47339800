"""Set damaged parts of a file aside, so that the rest can be read and new samples are kept. Nothing is thrown away.

A file whose pages are damaged is copied row by row, as far as they can be read; the damaged one keeps its content under
another name. Damaged rows in a sound file go to its table `set_aside`. What can be made again from samples or quarter
hours is.
"""

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from gpudeck.history import chunk, rollup
from gpudeck.history.accounting import run_parts
from gpudeck.history.base import Use
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.aside import set_aside
from gpudeck.history.embedded.check import Damage, find_damage, where_values
from gpudeck.history.embedded.keys import Keys
from gpudeck.history.embedded.seal import uses_of
from gpudeck.history.embedded.tables import (
    claim,
    is_damage,
    key_of,
    open_to_read,
    open_to_write,
    set_file_aside,
    split_key,
    tables_and_columns,
)
from gpudeck.history.hour import UNKNOWN, Hour
from gpudeck.history.rollup import Quarters

log = logging.getLogger(__name__)

_POSITIONS: Final = {"host_hours": "hour", "uses": "hour", "uses_of_all": "hour"}
"""By what the rows of a table are gone through, where that is not their number."""
_USE: Final = Use.__struct_fields__
_UNREADABLE: Final = (sqlite3.Error, TypeError, ValueError, OverflowError)


class Repaired(Struct):
    """`aside` is the file that was set aside, None where its pages are sound. `found` is what was damaged in the rows,
    `left` what still is, and `copied` how many rows of a damaged file could be read."""

    aside: Path | None
    copied: int
    found: list[str]
    left: list[str]


def repair(path: Path, now: float) -> Repaired:
    """The file must have no other writer. Raises UsageError where it has, sqlite3.Error, OSError and Temporary."""
    with claim(path):
        aside, copied = None, 0
        if _has_bad_pages(path):
            aside, copied = replace_file(path, now)
        with closing(open_to_write(path)) as connection:
            found = fix(connection, now)
            left = [damage.text for damage in find_damage(connection)] if found else []
    return Repaired(aside, copied, [damage.text for damage in found], left)


def replace_file(path: Path, now: float, min_free: int = 0) -> tuple[Path, int]:
    """Set a damaged file aside and begin a new one with all that can be read of it; where the disk has no room for
    that, an empty one. Returns the old file's name, and how many rows were copied."""
    size = path.stat().st_size
    has_room = shutil.disk_usage(path.parent).free > size + min_free
    aside = set_file_aside(path, now)
    connection = open_to_write(path)
    try:
        copied = _copy_all(aside, connection) if has_room else 0
    finally:
        connection.close()
    return aside, copied


def _has_bad_pages(path: Path) -> bool:
    try:
        with closing(open_to_read(path)) as connection:
            return any(not damage.table for damage in find_damage(connection))
    except sqlite3.Error as error:
        if is_damage(error):
            return True
        raise


def _copy_all(source: Path, connection: sqlite3.Connection) -> int:
    try:
        with closing(open_to_read(source, is_damaged=True)) as damaged:
            count = sum(_copy(damaged, connection, table) for table in tables_and_columns() if table != "meta")
            _copy_numbers(damaged, connection)
            return count
    except sqlite3.Error as error:
        log.warning("nothing can be read of %s: %s", source, error)
        return 0


def _copy(damaged: sqlite3.Connection, connection: sqlite3.Connection, table: str) -> int:
    columns = sorted(tables_and_columns()[table])
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    count = 0
    connection.execute("BEGIN IMMEDIATE")
    for row in _readable(damaged, table, ", ".join(columns), _POSITIONS.get(table, "rowid")):
        try:
            count += connection.execute(insert, row).rowcount
        except sqlite3.IntegrityError as error:
            log.warning("a row of %s is damaged and left out: %s", table, error)
    connection.execute("COMMIT")
    return count


def _copy_numbers(damaged: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    """The largest numbers that were given out: none of a row that is lost may be given out again."""
    with contextlib.suppress(sqlite3.Error):
        rows = damaged.execute("SELECT name, value FROM meta WHERE name LIKE 'newest_%'").fetchall()
        connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
    sealed = connection.execute("SELECT max(upto) FROM sealed").fetchone()[0]
    newest = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'journal'").fetchone()[0]
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
    connection.execute("INSERT INTO sqlite_sequence VALUES ('journal', ?)", (max(sealed or 0, newest or 0),))


def _readable(damaged: sqlite3.Connection, table: str, columns: str, position: str) -> Iterator[tuple[Any, ...]]:
    """The rows that can be read, in order of `position`; damaged pages are stepped over."""

    def next_after(place: int) -> int | None:
        """The first position after that one. Raises sqlite3.DatabaseError where that page is damaged."""
        found = f"SELECT {position} FROM {table} WHERE {position} > ? ORDER BY {position} LIMIT 1"  # noqa: S608
        row = damaged.execute(found, (place,)).fetchone()
        return None if row is None else int(row[0])

    place: int | None = -1
    while place is not None:
        begun, is_done = place, False
        try:
            question = f"SELECT {position}, {columns} FROM {table} WHERE {position} > ? ORDER BY {position}"  # noqa: S608
            for at, *row in damaged.execute(question, (place,)):
                yield tuple(row)
                place = int(at)
            is_done = True
        except _UNREADABLE:
            pass
        if is_done:
            return
        if place == begun:
            place = _step_over(place, next_after)


def _step_over(place: int, next_after: Callable[[int], int | None]) -> int | None:
    """Nothing after `place` can be read from there. After which position it can again; None: after none."""

    def is_readable(after: int) -> bool:
        try:
            next_after(after)
        except _UNREADABLE:
            return False
        return True

    if is_readable(place):
        # It is found but not read: what belongs to it elsewhere in the file is damaged.
        return next_after(place)
    bad, step = place, 1
    while not is_readable(bad + step):
        bad, step = bad + step, step * 2
        if step > 1 << 60:
            return None
    good = bad + step
    while good - bad > 1:
        middle = (good + bad) // 2
        bad, good = (bad, middle) if is_readable(middle) else (middle, good)
    return good


def fix(connection: sqlite3.Connection, now: float) -> list[Damage]:
    """Set the damaged rows of a sound file aside, and make again what can be; what was found. One transaction."""
    found = list(find_damage(connection))
    if found:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _Fix(connection, now).run(found)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return found


class _Fix:
    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._ask = connection.execute
        self._now = now
        self._hours: set[tuple[int, int]] = set()
        self._all_hours: set[int] = set()

    def run(self, found: list[Damage]) -> None:
        for damage in found:
            if damage.lost is not None:
                self._replace_lost(*damage.lost, self._host_of(damage))
            elif damage.table == "journal":
                for number in where_values(damage.where):
                    self._move("journal", (("id", number),), damage.text)
            elif damage.where:
                self._move(damage.table, damage.where, damage.text)
        self._keys = Keys(self._connection)
        for host, start in sorted(self._hours):
            self._make_hour(host, start)
        for start in sorted(self._all_hours | {start for _, start in self._hours}):
            self._make_usage(start)
            self._make_fleet(start)
        for damage in found:
            if damage.table == "runs" and damage.lost is None:
                self._make_run(where_values(damage.where)[0])

    def _move(self, table: str, where: tuple[tuple[str, int], ...], reason: str) -> None:
        named = dict(where)
        if table in {"chunks", "quarters"}:
            self._hours.add(split_key(named["key"]))
        elif table in {"host_hours", "uses"}:
            self._hours.add((named["host"], named["hour"]))
        elif table == "uses_of_all":
            self._all_hours.add(named["hour"])
        elif table == "fleet_quarters":
            self._all_hours.add(named["start"] // 3600 * 3600)
        if table == "runs" and "by its samples" in reason:
            return  # its sums are made again; the rest of the row is right
        condition = " AND ".join(f"{column} IS ?" for column in named)
        set_aside(self._connection, table, condition, where_values(where), reason=reason, now=self._now)

    def _host_of(self, damage: Damage) -> int:
        """Whose row it is; 0 where that says nothing."""
        named = dict(damage.where)
        if damage.table == "runs":
            row = self._ask("SELECT host FROM runs WHERE id = ?", (named["id"],)).fetchone()
            return 0 if row is None else int(row[0])
        return split_key(named["key"])[0] if "key" in named else named.get("host", 0)

    def _replace_lost(self, table: str, number: int, host: int) -> None:
        """A name for what is only known by its number, so that it can be asked for."""
        name = f"lost-{number}"
        if table == "hosts":
            row: tuple[object, ...] = (number, name, name, self._now, self._now)
            self._ask("INSERT OR IGNORE INTO hosts (id, host_id, name, first, last) VALUES (?, ?, ?, ?, ?)", row)
        elif table == "gpus":
            row = (number, name, host, str(number), "unknown model", self._now, self._now)
            self._ask("INSERT OR IGNORE INTO gpus VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        else:
            self._ask("INSERT OR IGNORE INTO words VALUES (?, ?)", (number, name))

    def _hour(self, host: int, start: int) -> Hour | None:
        row = self._ask("SELECT body FROM chunks WHERE key = ?", (key_of(host, start),)).fetchone()
        try:
            return None if row is None else chunk.decode(row[0])
        except Damaged:
            return None

    def _quarters(self, host: int, start: int) -> Quarters | None:
        """From the samples, or as they are kept."""
        hour = self._hour(host, start)
        if hour is not None:
            return rollup.quarters(hour)
        row = self._ask("SELECT body FROM quarters WHERE key = ?", (key_of(host, start),)).fetchone()
        try:
            return None if row is None else rollup.decode(row[0])
        except Damaged:
            return None

    def _make_hour(self, host: int, start: int) -> None:
        """The sums of a host's hour, as far as there is something to make them from."""
        hour, quarters = self._hour(host, start), self._quarters(host, start)
        if quarters is None:
            return
        if hour is not None:
            row = (key_of(host, start), quarters.count, rollup.encode(quarters))
            self._ask("INSERT OR REPLACE INTO quarters VALUES (?, ?, ?)", row)
            self._ask("DELETE FROM uses WHERE hour = ? AND host = ?", (start, host))
            marks = ", ".join("?" * (4 + len(_USE)))
            for (user, model), use in uses_of(hour, self._keys, self._connection).items():
                words = self._keys.word(user), self._keys.word(model)
                row_of_use = (start, host, *words, *structs.astuple(use))
                self._ask(f"INSERT INTO uses (hour, host, user, model, {', '.join(_USE)}) VALUES ({marks})", row_of_use)  # noqa: S608
        totals = rollup.hour_totals(quarters)
        body = rollup.encode_totals(totals, totals.names)
        self._ask(
            "INSERT OR REPLACE INTO host_hours VALUES (?, ?, ?, ?)",
            (start, host, self._keys.layout(totals.names), body),
        )

    def _hosts_at(self, start: int) -> list[int]:
        return [row[0] for row in self._ask("SELECT host FROM host_hours WHERE hour = ?", (start,))]

    def _make_usage(self, start: int) -> None:
        """That of all hosts together. Where samples of some are lost, what is kept is the best: only what is missing is
        added up."""
        hosts = self._hosts_at(start)
        if hosts and all(self._hour(host, start) is not None for host in hosts):
            self._ask("DELETE FROM uses_of_all WHERE hour = ?", (start,))
        sums = ", ".join(f"{'max' if name == 'peak' else 'sum'}({name})" for name in _USE)
        self._ask(
            f"INSERT OR IGNORE INTO uses_of_all (hour, user, model, {', '.join(_USE)}) "  # noqa: S608
            f"SELECT hour, user, model, {sums} FROM uses WHERE hour = ? GROUP BY user, model",
            (start,),
        )

    def _make_fleet(self, start: int) -> None:
        parts = [self._quarters(host, start) for host in self._hosts_at(start)]
        if not parts or any(part is None for part in parts):
            return
        wholes: dict[int, rollup.Totals] = {}
        for part in parts:
            for totals in rollup.quarter_totals(part) if part is not None else ():
                before = wholes.get(totals.start)
                wholes[totals.start] = totals if before is None else rollup.add(before, totals)
        for begin, whole in wholes.items():
            body = rollup.encode_totals(whole, whole.names)
            observed = float(whole.states[UNKNOWN + 1 :].sum())
            row = (begin, self._keys.layout(whole.names), observed, body)
            self._ask("INSERT OR REPLACE INTO fleet_quarters VALUES (?, ?, ?, ?)", row)

    def _make_run(self, run: int) -> None:
        row = self._ask("SELECT host, first FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return
        bounds = key_of(row[0], max(0.0, row[1])), key_of(row[0], 7e9)
        parts = []
        for (body,) in self._ask("SELECT body FROM chunks WHERE key BETWEEN ? AND ?", bounds).fetchall():
            part = run_parts(chunk.decode(body)).get(run)
            parts += [] if part is None else [part]
        if parts:
            whole, *others = parts
            for part in others:
                whole.add(part)
            columns = ", ".join(f"{name} = ?" for name in whole.__struct_fields__)
            self._ask(f"UPDATE runs SET {columns} WHERE id = ?", (*structs.astuple(whole), run))  # noqa: S608
