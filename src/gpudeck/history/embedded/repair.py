"""`gpudeck history repair`: set damaged parts aside, so that the rest can be read. Nothing is deleted.

A file with damaged pages is copied row by row, as far as they can be read, and keeps its content under another name.
Damaged rows of a sound file are moved to its table `set_aside`. A single flipped bit is found by the row's checksum and
flipped back. Sums are made again from samples or quarter hours where these exist.
"""

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, field, structs

from gpudeck.history.accounting import run_parts
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.check import Damage, Where, check_file, condition, find_damage
from gpudeck.history.embedded.journal import time_of
from gpudeck.history.embedded.keys import KeyRegistry
from gpudeck.history.embedded.retention import set_aside
from gpudeck.history.embedded.seal import (
    NO_MODEL,
    USE_COLUMNS,
    USE_SUMS,
    uses_by_words,
    write_fleet_quarter,
    write_host_hour,
    write_quarters,
    write_uses,
)
from gpudeck.history.embedded.tables import (
    BY_HAND,
    DAMAGED,
    checked_columns,
    columns_of,
    correct,
    is_damage,
    key_of,
    lock_file,
    open_to_read,
    open_to_write,
    select,
    set_file_aside,
    split_key,
    tables_and_columns,
)
from gpudeck.history.hour import SECONDS, Hour, decode_hour
from gpudeck.history.rollup import Quarters, decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.totals import FLEET, StepTotals, add_totals
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_POSITIONS: Final = {"host_hours": "hour", "uses": "hour", "uses_of_all": "hour"}
"""By what the rows of a table are gone through, where that is not their number."""
_NAMES: Final = frozenset({"layouts", "words", "hosts", "gpus"})
_CALLED: Final = {
    "chunks": "samples",
    "quarters": "quarter hours",
    "host_hours": "hours",
    "fleet_quarters": "the fleet's quarter hours",
    "uses": "usage by host",
    "uses_of_all": "usage",
}
_ENTRIES: Final = (("id", "journal"), ("upto", "sealed"))
"""Where the numbers of journal entries are."""
_NEVER: Final = 1 << 62
_Place = tuple[str, int, int]
"""Table, host or FLEET, and hour."""
T = TypeVar("T")
_UNREADABLE: Final = (sqlite3.Error, TypeError, ValueError, OverflowError)


class RepairReport(Struct):
    """`aside` is the old file if its pages were damaged, `copied` the number of rows read from it. `found` are the
    damaged rows, `rebuilt` and `gone` the hours that are whole again and those that are not, `left` what is still
    damaged."""

    aside: Path | None = None
    copied: int = 0
    found: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def repair(path: Path, now: float) -> RepairReport:
    """The file must have no other writer. Raises UsageError where it has, sqlite3.Error, OSError and Temporary."""
    with lock_file(path):
        aside, copied = None, 0
        if _has_bad_pages(path):
            aside, copied = replace_file(path, now)
        with closing(open_to_write(path)) as connection:
            done = repair_rows(connection, now, is_copied=aside is not None)
            left = [damage.text for damage in find_damage(connection)] if done.found else []
    return structs.replace(done, aside=aside, copied=copied, left=left)


def replace_file(path: Path, now: float, min_free: int = 0) -> tuple[Path, int]:
    """Set a damaged file aside and begin a new one with its readable rows, or an empty one if the disk has no room for
    both. Returns the old file's new name, and how many rows were copied."""
    size = path.stat().st_size
    has_room = shutil.disk_usage(path.parent).free > size + min_free
    aside = set_file_aside(path, now)
    connection = open_to_write(path, keeps_crc=False)
    try:
        copied = _copy_all(aside, connection) if has_room else 0
    finally:
        connection.close()
    return aside, copied


def _has_bad_pages(path: Path) -> bool:
    try:
        with closing(open_to_read(path)) as connection:
            return any(True for _ in check_file(connection))
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
    columns = [name for name in tables_and_columns()[table] if name in columns_of(damaged, table)]
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
    """The largest numbers assigned: the number of a lost row must not be used again."""
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
        """The first position after that one. Raises one of `_UNREADABLE` where that page is damaged."""
        found = f"SELECT {position} FROM {table} WHERE {position} > ? ORDER BY {position} LIMIT 1"  # noqa: S608
        row = damaged.execute(found, (place,)).fetchone()
        if row is not None and int(row[0]) <= place:
            raise ValueError("pages that lead back to themselves")
        return None if row is None else int(row[0])

    place: int | None = -1
    while place is not None:
        begun, is_done = place, False
        try:
            question = f"SELECT {position}, {columns} FROM {table} WHERE {position} > ? ORDER BY {position}"  # noqa: S608
            here: set[tuple[Any, ...]] = set()
            for at, *values in damaged.execute(question, (place,)):
                row = tuple(values)
                if int(at) > place:
                    place, here = int(at), set()
                elif int(at) < place or row in here:
                    break  # pages that lead back to themselves
                here.add(row)
                yield row
            else:
                is_done = True
        except _UNREADABLE:
            pass
        if is_done:
            return
        if place == begun:
            place = _step_over(place, next_after)


def _step_over(place: int, next_after: Callable[[int], int | None]) -> int | None:
    """The position after which rows can be read again, where those after `place` cannot; None: there is none."""

    def is_readable(after: int) -> bool:
        try:
            next_after(after)
        except _UNREADABLE:
            return False
        return True

    if is_readable(place):
        # The row is found but cannot be read: another page of it is damaged.
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


def repair_rows(connection: sqlite3.Connection, now: float, *, is_copied: bool = False) -> RepairReport:
    """Set the damaged rows of a sound file aside and rebuild what can be, in one transaction. With `is_copied`, rows
    may be missing because they could not be read."""
    found = list(find_damage(connection))
    if not found and not is_copied:
        return RepairReport()
    connection.execute("BEGIN IMMEDIATE")
    try:
        fixing, left = _RowRepair(connection, now), found
        if fixing.correct(found):
            # References to names that are lost now are only found now.
            left = list(find_damage(connection))
        if is_copied:
            fixing.find_missing()
        fixing.run(left)
        if is_copied:
            fixing.find_gaps()
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    texts = dict.fromkeys(damage.text for damage in (*found, *left))
    rebuilt, gone = fixing.describe()
    return RepairReport(found=[*texts], rebuilt=rebuilt, gone=gone)


class _RowRepair:
    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._ask = connection.execute
        self._now = now
        self._damaged: set[_Place] = set()
        self._made: set[_Place] = set()
        self._sealed: dict[int, set[int]] = {}
        """The hosts of each sealed hour."""
        self._rebuilt: list[str] = []
        self._gone: list[str] = []

    def correct(self, found: list[Damage]) -> bool:
        """Flip single bits back, and set unreadable names aside; whether there were any such rows."""
        count = len(self._rebuilt) + len(self._gone)
        for damage in found:
            place = damage.text.partition(": the checksum")[0]
            if damage.is_changed and damage.table not in BY_HAND and self._correct(damage):
                self._rebuilt.append(f"{place}, by its checksum")
            elif damage.table in _NAMES and damage.lost is None and damage.where:
                self._set_aside(damage.table, damage.where, damage.text)
                self._gone.append(place)
        return len(self._rebuilt) + len(self._gone) > count

    def _correct(self, damage: Damage) -> bool:
        columns = checked_columns()[damage.table]
        where, values = condition(damage.where)
        row = self._ask(f"SELECT {select(columns)}, crc FROM {damage.table} WHERE {where}", values).fetchone()  # noqa: S608
        whole = None if row is None or row[-1] == DAMAGED else correct(row[:-1], row[-1])
        if whole is None:
            return False
        self._set_aside(damage.table, damage.where, damage.text)
        texts = [
            value.decode() if isinstance(value, bytes) and name != "body" else value
            for name, value in zip(columns, whole, strict=True)
        ]
        return self._insert(damage.table, dict(zip(columns, texts, strict=True))) == 1

    def _insert(self, table: str, values: Mapping[str, object]) -> int:
        marks = ", ".join("?" * len(values))
        statement = f"INSERT OR IGNORE INTO {table} ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        return self._ask(statement, (*values.values(),)).rowcount

    def run(self, found: list[Damage]) -> None:
        for damage in found:
            if damage.lost is not None:
                self._replace_lost(*damage.lost, self._host_of(damage))
            elif damage.table == "journal":
                self._move_entries(damage)
            elif damage.where:
                self._move(damage)
        self._keys = KeyRegistry(self._connection)
        self._restore_sealed()
        for (key,) in self._ask("SELECT key FROM sealed"):
            host, start = split_key(key)
            self._sealed.setdefault(start, set()).add(host)
        for host, start in sorted({(host, start) for _, host, start in self._damaged if host != FLEET}):
            self._make_hour(host, start)
        for start in sorted({start for _, _, start in self._damaged}):
            self._make_usage(start)
            self._make_fleet(start)
        for damage in found:
            if damage.table == "runs" and damage.lost is None:
                place = damage.text.partition(": ")[2].partition(":")[0]
                (self._rebuilt if self._make_run(dict(damage.where)["id"]) else self._gone).append(place)

    def find_missing(self) -> None:
        """Lost sums of hours whose samples are there, also where nothing older is left."""
        hours = {split_key(row[0]) for row in self._ask("SELECT key FROM chunks")}
        for host, start in hours - {*self._ask("SELECT host, hour FROM host_hours")}:
            self._damaged.add(("host_hours", host, start))

    def find_gaps(self) -> None:
        """Hours that one table has and another has lost, though it has older ones."""
        known = {row[0] for table in ("sealed", "chunks", "quarters") for row in self._ask(f"SELECT key FROM {table}")}  # noqa: S608
        known |= {key_of(host, hour) for host, hour in self._ask("SELECT host, hour FROM host_hours")}
        for table in ("chunks", "quarters"):
            kept = {row[0] for row in self._ask(f"SELECT key FROM {table}")}  # noqa: S608
            oldest = min((split_key(key)[1] for key in kept), default=_NEVER)
            lost = [split_key(key) for key in known - kept]
            self._damaged |= {(table, host, start) for host, start in lost if start >= oldest}
        fleet = {start // SECONDS * SECONDS for (start,) in self._ask("SELECT start FROM fleet_quarters")}
        missing = {split_key(key)[1] for key in known} - fleet
        self._damaged |= {("fleet_quarters", FLEET, start) for start in missing if start > min(fleet, default=_NEVER)}

    def describe(self) -> tuple[list[str], list[str]]:
        """What is rebuilt and what is gone; a sentence per table, host and span of hours."""
        spans = (self._describe(self._damaged & self._made), self._describe(self._damaged - self._made))
        return [*self._rebuilt, *spans[0]], [*self._gone, *spans[1]]

    def _describe(self, places: set[_Place]) -> list[str]:
        names = {key: host.name for key, host in self._keys.by_key.items()} | {FLEET: "all hosts"}
        spans: list[tuple[str, int, int, int]] = []
        for table, host, start in sorted(places):
            if spans and spans[-1][:2] == (table, host) and spans[-1][3] == start:
                spans[-1] = (*spans[-1][:3], start + SECONDS)
            else:
                spans.append((table, host, start, start + SECONDS))
        return [
            f"{_CALLED[table]} of {names.get(host, f'host {host}')} from {show_utc(start)} until {show_utc(end)}"
            for table, host, start, end in spans
        ]

    def _move(self, damage: Damage) -> None:
        table, named = damage.table, dict(damage.where)
        if table in {"chunks", "quarters"}:
            self._damaged.add((table, *split_key(named["key"])))
        elif table in _CALLED:
            start = named.get("hour", named.get("start", 0))
            self._damaged.add((table, named.get("host", FLEET), start // SECONDS * SECONDS))
        # Of a run that differs from its samples, only the sums are made again: the rest of the row is right.
        if table != "runs" or "by its samples" not in damage.text:
            self._set_aside(table, damage.where, damage.text)

    def _set_aside(self, table: str, where: Where, reason: str) -> None:
        set_aside(self._connection, table, *condition(where), reason=reason, now=self._now)

    def _move_entries(self, damage: Damage) -> None:
        numbers = [number for _, number in damage.where]
        if not numbers:
            return
        before, after = (
            self._ask(f"SELECT layout, body FROM journal WHERE id {order}", (number,)).fetchone()  # noqa: S608
            for order, number in (("< ? ORDER BY id DESC", numbers[0]), ("> ? ORDER BY id", numbers[-1]))
        )
        self._gone.append(
            f"samples of all hosts in {len(numbers)} entries of the journal, "
            f"from {self._time_of(before)} until {self._time_of(after)}"
        )
        for number in numbers:
            self._set_aside("journal", (("id", number),), damage.text)

    def _time_of(self, entry: tuple[int, bytes] | None) -> str:
        try:
            return "an unknown time" if entry is None else show_utc(time_of(self._connection, *entry))
        except Damaged:
            return "an unknown time"

    def _restore_sealed(self) -> None:
        """An hour with sums has to be known as sealed, or late samples would replace it. Pending journal entries count
        as part of it: better than counting them twice."""
        ask = self._ask
        numbers = [ask(f"SELECT max({name}) FROM {table}").fetchone()[0] for name, table in _ENTRIES]  # noqa: S608
        newest = max((number for number in numbers if isinstance(number, int)), default=0)
        sealed = {row[0] for row in ask("SELECT key FROM sealed")}
        since = min((split_key(key)[1] for key in sealed), default=0)
        hours = ask("SELECT host, hour FROM host_hours WHERE hour >= ?", (since,)).fetchall()
        for key in {key_of(host, hour) for host, hour in hours} - sealed:
            self._insert("sealed", {"key": key, "upto": newest})

    def _host_of(self, damage: Damage) -> int:
        """The host of the row; 0 if unknown."""
        named = dict(damage.where)
        if damage.table == "runs":
            row = self._ask("SELECT host FROM runs WHERE id = ?", (named["id"],)).fetchone()
            return 0 if row is None else int(row[0])
        return split_key(named["key"])[0] if "key" in named else named.get("host", 0)

    def _replace_lost(self, table: str, number: int, host: int) -> None:
        """A name for what is only known by its number, so that it can be asked for."""
        name, seen = f"lost-{number}", {"first": self._now, "last": self._now}
        rows: dict[str, dict[str, object]] = {
            "hosts": {"host_id": name, "name": name, **seen},
            "gpus": {"uuid": name, "host": host, "label": str(number), "model": NO_MODEL, **seen},
            "words": {"text": name},
        }
        self._insert(table, {"id": number, **rows[table]})

    def _hour(self, host: int, start: int) -> Hour | None:
        return self._decoded(decode_hour, "chunks", host, start)

    def _quarters(self, host: int, start: int) -> Quarters | None:
        """From the samples, or as they are kept."""
        hour = self._hour(host, start)
        return self._decoded(decode_quarters, "quarters", host, start) if hour is None else roll_up(hour)

    def _decoded(self, decode: Callable[[bytes], T], table: str, host: int, start: int) -> T | None:
        row = self._ask(f"SELECT body FROM {table} WHERE key = ?", (key_of(host, start),)).fetchone()  # noqa: S608
        try:
            return None if row is None else decode(row[0])
        except Damaged:
            return None

    def _make_hour(self, host: int, start: int) -> None:
        """The sums of a host's hour, as far as its samples or quarter hours are there."""
        hour, quarters = self._hour(host, start), self._quarters(host, start)
        if quarters is None:
            return
        if hour is not None:
            write_quarters(self._connection, key_of(host, start), quarters)
            write_uses(self._connection, start, host, uses_by_words(hour, self._keys, self._connection))
            self._made |= {("quarters", host, start), ("uses", host, start)}
        write_host_hour(self._connection, self._keys, host, hour_totals(quarters))
        self._made.add(("host_hours", host, start))

    def _hosts_at(self, start: int) -> set[int]:
        """Also those whose sums of that hour are gone."""
        found = {row[0] for row in self._ask("SELECT host FROM host_hours WHERE hour = ?", (start,))}
        gone = {host for table, host, hour in self._damaged if hour == start and table == "host_hours"}
        return found | gone | self._sealed.get(start, set())

    def _make_usage(self, start: int) -> None:
        """The usage of all hosts, if that of each is whole. Where samples are lost, only missing rows are added."""
        hosts = self._hosts_at(start)
        lost = {host for table, host, hour in self._damaged - self._made if hour == start and table == "uses"}
        if hosts and all(self._hour(host, start) is not None for host in hosts):
            self._ask("DELETE FROM uses_of_all WHERE hour = ?", (start,))
        elif lost or self._ask("SELECT 1 FROM uses WHERE hour = ?", (start,)).fetchone() is None:
            return
        self._ask(
            f"INSERT OR IGNORE INTO uses_of_all (hour, user, model, {USE_COLUMNS}) "  # noqa: S608
            f"SELECT hour, user, model, {USE_SUMS} FROM uses WHERE hour = ? GROUP BY user, model",
            (start,),
        )
        self._made.add(("uses_of_all", FLEET, start))

    def _make_fleet(self, start: int) -> None:
        parts = [self._quarters(host, start) for host in sorted(self._hosts_at(start))]
        wholes: dict[int, StepTotals] = {}
        for part in parts:
            if part is None:
                return
            for totals in quarter_totals(part):
                before = wholes.get(totals.start)
                wholes[totals.start] = totals if before is None else add_totals(before, totals)
        for whole in wholes.values():
            write_fleet_quarter(self._connection, self._keys, whole)
        if parts:
            self._made.add(("fleet_quarters", FLEET, start))

    def _make_run(self, run: int) -> bool:
        row = self._ask("SELECT host, first FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return False
        bounds = key_of(row[0], max(0.0, row[1])), key_of(row[0], 7e9)
        bodies = self._ask("SELECT body FROM chunks WHERE key BETWEEN ? AND ?", bounds).fetchall()
        parts = [part for (body,) in bodies if (part := run_parts(decode_hour(body)).get(run)) is not None]
        if parts:
            whole, *others = parts
            for part in others:
                whole.add(part)
            columns = ", ".join(f"{name} = ?" for name in whole.__struct_fields__)
            self._ask(f"UPDATE runs SET {columns} WHERE id = ?", (*structs.astuple(whole), run))  # noqa: S608
        return bool(parts)
