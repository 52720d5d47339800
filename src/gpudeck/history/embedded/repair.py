"""`gpudeck history verify` and `repair`: find what is damaged, and set it aside, so that the rest can be read.

Damaged rows are moved to the table `set_aside`; a file with damaged pages is copied row by row, and keeps its content
under another name. Roll-ups are made again from samples. Nothing is deleted.
"""

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, field, structs

from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.journal import find_damaged_entries
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
    HOURS_A_ROW,
    WRONG,
    check_tables,
    checked_columns,
    columns_of,
    find_wrong,
    is_damage,
    key_of,
    keys_between,
    keys_of,
    lock_file,
    open_to_read,
    open_to_write,
    set_file_aside,
    split_key,
    tables_and_columns,
)
from gpudeck.history.hour import SECONDS, Hour, decode_hour
from gpudeck.history.rollup import Quarters, cut_quarters, decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.totals import FLEET, StepTotals, add_totals
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

Where = tuple[tuple[str, int], ...]
"""The columns that name a row; empty: no single row."""
_POSITIONS: Final = {"host_hours": "hour", "uses": "hour", "uses_of_all": "hour"}
"""By what the rows of a table are gone through, where that is not their number."""
_CALLED: Final = {
    "chunks": "samples",
    "quarters": "quarter hours",
    "host_hours": "hours",
    "fleet_quarters": "the fleet's quarter hours",
    "uses": "usage by host",
    "uses_of_all": "usage",
}
_MAX_TOLD: Final = 100
_Place = tuple[str, int, int]
T = TypeVar("T")
_UNREADABLE: Final = (sqlite3.Error, TypeError, ValueError, OverflowError)


class Damage(Struct, frozen=True):
    table: str
    where: Where
    text: str


def find_damage(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Reads every byte: minutes for gigabytes. Unreadable parts are reported, never raised."""
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
    found: dict[tuple[str, Where], str] = {}
    for table, columns in checked_columns().items():
        keys = keys_of(connection, table)
        for row in find_wrong(connection, table, columns):
            found[table, tuple(zip(keys, row, strict=True))] = WRONG
        if "layout" in columns:
            question = f"SELECT layout, {', '.join(keys)} FROM {table} WHERE layout NOT IN (SELECT id FROM layouts)"  # noqa: S608
            for layout, *row in connection.execute(question):
                found.setdefault((table, tuple(zip(keys, row, strict=True))), f"layout {layout} is missing")
    for (table, where), why in found.items():
        yield Damage(table, where, f"{table}: {_describe_row(where, names)}: {why}")
    for entry, error in find_damaged_entries(connection):
        yield Damage("journal", (("id", entry),), f"journal: entry {entry}: {error}")


def _describe_row(where: Where, names: dict[int, str]) -> str:
    named = dict(where)
    if "id" in named:
        return f"number {named['id']}"
    if "start" in named:
        return f"the quarter hour from {show_utc(named['start'])}"
    host, start = split_key(named["key"]) if "key" in named else (named.get("host"), named["hour"])
    return f"the hour from {show_utc(start)}" + ("" if host is None else f" of {names.get(host, f'host {host}')}")


class RepairReport(Struct):
    """`aside` is the old file if its pages were damaged, `copied` the number of rows read from it. `rebuilt` and `gone`
    are the hours that are whole again and those that are not, `left` what is still damaged."""

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
        repairing = _RowRepair(connection, now)
        repairing.run(found, is_copied=is_copied)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return RepairReport(found=[damage.text for damage in found], rebuilt=repairing.rebuilt, gone=repairing.gone)


class _RowRepair:
    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self.rebuilt: list[str] = []
        self.gone: list[str] = []
        self._connection = connection
        self._ask = connection.execute
        self._now = now
        self._damaged: set[_Place] = set()
        self._made: set[_Place] = set()

    def run(self, found: list[Damage], *, is_copied: bool) -> None:
        while found:
            for damage in found:
                self._set_aside(damage)
            # Totals of a layout that is now missing are found only now.
            found = list(_check_rows(self._connection)) if any(damage.table == "layouts" for damage in found) else []
        if is_copied:
            self._find_missing()
        self._name_lost()
        self._restore_sealed()
        self._keys = KeyRegistry(self._connection)
        for host, start in sorted({(host, start) for _, host, start in self._damaged if host != FLEET}):
            self._make_hour(host, start)
        for start in sorted({start for _, _, start in self._damaged}):
            self._make_usage(start)
            self._make_fleet(start)
        self._keys.write_new()
        self.rebuilt += self._describe(self._damaged & self._made)
        self.gone += self._describe(self._damaged - self._made)

    def _set_aside(self, damage: Damage) -> None:
        table, named = damage.table, dict(damage.where)
        where = " AND ".join(f"{column} IS ?" for column in named)
        set_aside(self._connection, table, where, (*named.values(),), reason=damage.text, now=self._now)
        if "key" in named and table in _CALLED:
            self._damaged.add((table, *split_key(named["key"])))
        elif table in _CALLED:
            start = named.get("hour", named.get("start", 0))
            self._damaged.add((table, named.get("host", FLEET), start // SECONDS * SECONDS))
        elif table != "sealed":
            self.gone.append(damage.text.rpartition(": ")[0])

    def _find_missing(self) -> None:
        """Hours that one table has and another has lost, though it has older ones or the samples are there."""
        chunks = self._hours("SELECT key FROM chunks")
        hours = f"max(4, min(count, {4 * HOURS_A_ROW})) / 4"
        rows = self._ask(f"SELECT key, {hours} FROM quarters")  # noqa: S608
        quarters = {split_key(key + hour) for key, size in rows for hour in range(size)}
        totals = {*self._ask("SELECT host, hour FROM host_hours").fetchall()}
        known = chunks | quarters | totals | self._hours("SELECT key FROM sealed")
        for table, there in (("chunks", chunks), ("quarters", quarters), ("host_hours", totals)):
            oldest = min((start for _, start in there), default=None)
            lost = known - there
            self._damaged |= {
                (table, *hour) for hour in lost if hour in chunks or (oldest is not None and hour[1] >= oldest)
            }
        fleet = {start // SECONDS * SECONDS for (start,) in self._ask("SELECT start FROM fleet_quarters")}
        lost_hours = {start for _, start in known} - fleet
        self._damaged |= {("fleet_quarters", FLEET, start) for start in lost_hours if fleet and start > min(fleet)}

    def _hours(self, question: str) -> set[tuple[int, int]]:
        return {split_key(key) for (key,) in self._ask(question)}

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

    def _restore_sealed(self) -> None:
        """An hour with sums has to be known as sealed, or late samples would replace it. Pending journal entries count
        as part of it: better than counting them twice."""
        newest = "max((SELECT coalesce(max(id), 0) FROM journal), (SELECT coalesce(max(upto), 0) FROM sealed))"
        (upto,) = self._ask(f"SELECT {newest}").fetchone()
        sealed = {key for (key,) in self._ask("SELECT key FROM sealed")}
        since = min((split_key(key)[1] for key in sealed), default=0)
        hours = self._ask("SELECT host, hour FROM host_hours WHERE hour >= ?", (since,)).fetchall()
        missing = {key_of(host, hour) for host, hour in hours} - sealed
        self._connection.executemany("INSERT INTO sealed (key, upto) VALUES (?, ?)", [(key, upto) for key in missing])

    def _name_lost(self) -> None:
        """A name for what is only known by its number, so that it can be asked for."""
        hosts = {host for host, _ in self._hours("SELECT key FROM sealed UNION SELECT key FROM quarters")}
        words = {word for (word,) in self._ask("SELECT user FROM uses_of_all UNION SELECT model FROM uses_of_all")}
        gpus: dict[int, int] = {}
        for key, body in self._ask("SELECT key, body FROM quarters"):
            with contextlib.suppress(Damaged):
                gpus |= dict.fromkeys(decode_quarters(body, ()).gpus, split_key(key)[0])
        at = self._now
        rows: dict[str, list[tuple[object, ...]]] = {
            "hosts (id, host_id, name, first, last)": [(n, f"lost-{n}", f"lost-{n}", at, at) for n in hosts],
            "gpus (id, uuid, host, label, model, first, last)": [
                (n, f"lost-{n}", host, str(n), NO_MODEL, at, at) for n, host in gpus.items()
            ],
            "words (id, text)": [(n, f"lost-{n}") for n in words - {0}],
        }
        for table, found in rows.items():
            marks = ", ".join("?" * (table.count(",") + 1))
            self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", found)  # noqa: S608

    def _hour(self, host: int, start: int) -> Hour | None:
        return self._decoded(decode_hour, "chunks", host, start)

    def _quarters(self, host: int, start: int) -> Quarters | None:
        hour = self._hour(host, start)
        if hour is not None:
            return roll_up(hour)
        first, last = keys_between(host, start - (HOURS_A_ROW - 1) * SECONDS, start + 1)
        rows = self._ask("SELECT key FROM quarters WHERE key BETWEEN ? AND ? ORDER BY key DESC", (first, last))
        parts = (self._decoded(decode_quarters, "quarters", *split_key(key)) for (key,) in rows.fetchall())
        return next((cut for part in parts if part is not None and (cut := cut_quarters(part, start))), None)

    def _decoded(self, decode: Callable[[bytes], T], table: str, host: int, start: int) -> T | None:
        row = self._ask(f"SELECT body FROM {table} WHERE key = ?", (key_of(host, start),)).fetchone()  # noqa: S608
        try:
            return None if row is None else decode(row[0])
        except Damaged:
            return None

    def _make_hour(self, host: int, start: int) -> None:
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
        found = {row[0] for row in self._ask("SELECT host FROM host_hours WHERE hour = ?", (start,))}
        gone = {host for table, host, hour in self._damaged if hour == start and table == "host_hours"}
        sealed = self._ask("SELECT key FROM sealed WHERE key & ? = ?", (key_of(1, 0) - 1, key_of(0, start)))
        return found | gone | {split_key(key)[0] for (key,) in sealed}

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
