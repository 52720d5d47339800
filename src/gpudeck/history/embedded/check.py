"""Is everything in the file readable, and does it fit together? Each place that is not is named with its reason.

the file          SQLite's own check of its pages and indexes
every row         its checksum; a row that an earlier version wrote has none
key tables        hosts, GPUs, words, layouts: rows that make sense, and that are there for all who refer to them
samples           the checksum of each hour
sums, usage, runs against the samples, as far as these are kept; else whether they make sense
journal           the checksum of each entry
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history.accounting import run_parts, uses
from gpudeck.history.base import UsageAmounts
from gpudeck.history.codec import Damaged, Floats
from gpudeck.history.embedded import journal
from gpudeck.history.embedded.keys import split_gpus
from gpudeck.history.embedded.seal import NO_MODEL, read_layout
from gpudeck.history.embedded.tables import (
    WRONG,
    check_tables,
    checked_columns,
    columns_of,
    find_wrong,
    key_of,
    keys_of,
    split_key,
)
from gpudeck.history.hour import Hour, decode_hour
from gpudeck.history.rollup import Quarters, decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.totals import StepTotals, decode_totals
from gpudeck.model.times import show_utc

_Where = tuple[tuple[str, int], ...]
_USE: Final = UsageAmounts.__struct_fields__
_LAST: Final = 7e9
_MOST_TOLD: Final = 100
"""Sentences about the file as a whole."""


class Damage(Struct, frozen=True):
    """`where` are the columns that name the row, empty where none can be set aside; for the journal, the numbers of all
    its damaged entries. `lost` is what the row refers to and is not there: the table and the number; told once.
    `is_changed`: the checksum of the row does not fit."""

    table: str
    where: _Where
    text: str
    lost: tuple[str, int] | None = None
    is_changed: bool = False


def find_damage(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Looks at every byte: takes some minutes for some gigabytes. What cannot be read is told, never raised."""
    is_sound = True
    for damage in check_file(connection):
        is_sound = False
        yield damage
    if is_sound:
        yield from _RowCheck(connection).run()


def check_file(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Its tables, pages and indexes."""
    try:
        check_tables(connection)
        for (sentence,) in connection.execute(f"PRAGMA integrity_check({_MOST_TOLD})"):
            if sentence != "ok":
                yield Damage("", (), f"the file: {' '.join(sentence.split())}")
    except sqlite3.Error as error:
        yield Damage("", (), f"the file: {error}")


def is_close(one: float, other: float) -> bool:
    """Samples are kept to the precision of their metric, so sums made from them again differ a little."""
    return abs(one - other) <= 1.0 + 0.01 * max(abs(one), abs(other))


class _RowCheck:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ask = connection.execute
        self._names: dict[int, str] = {}
        self._gpus: dict[int, str] = {}
        self._words: set[int] = set()
        self._layouts: dict[int, tuple[str, ...]] = {}
        self._fleet: dict[int, Floats] = {}
        self._hosts_at: Counter[int] = Counter()
        self._sealed_at: Counter[int] = Counter()
        self._run_seconds: dict[int, float] = defaultdict(float)
        self._unsure: set[int] = set()
        """Hosts some of whose samples cannot be read: their runs cannot be added up again."""
        self._changed: dict[tuple[str, _Where], None] = {}
        """Rows whose checksum does not fit: nothing else is said of them, and they are in no sum."""
        self._lost: set[tuple[str, int]] = set()

    def run(self) -> Iterator[Damage]:
        for table, columns in checked_columns().items():
            if "crc" in columns_of(self._connection, table):
                keys = keys_of(self._connection, table)
                for row in find_wrong(self._connection, table, columns):
                    self._changed[table, tuple(zip(keys, row, strict=True))] = None
        self._sealed_at.update(split_key(key)[1] for (key,) in self._ask("SELECT key FROM sealed"))
        of_keys = list(self._check_keys())
        for table, where in self._changed:
            yield Damage(table, where, f"{table}: {self._place(where)}: {WRONG}", is_changed=True)
        for damage in chain(
            of_keys,
            self._check_samples(),
            self._check_totals(),
            self._check_uses(),
            self._check_fleet(),
            self._check_runs(),
            self._check_journal(),
        ):
            if (damage.table, damage.where) not in self._changed:
                yield damage

    def _place(self, where: _Where) -> str:
        named = dict(where)
        if "id" in named:
            return f"number {named['id']}"
        if "start" in named:
            return f"the quarter hour from {show_utc(named['start'])}"
        host, start = split_key(named["key"]) if "key" in named else (named.get("host"), named["hour"])
        return f"the hour from {show_utc(start)}" + ("" if host is None else f" of {self._name(host)}")

    def _check_keys(self) -> Iterator[Damage]:
        for number, host_id, name, first, last in self._ask("SELECT id, host_id, name, first, last FROM hosts"):
            if not _are(str, host_id, name) or not _are_times(first, last):
                yield Damage("hosts", (("id", number),), f"hosts: number {number}: its row makes no sense")
            else:
                self._names[number] = name
        for number, uuid, host, label, model, first, last in self._ask(
            "SELECT id, uuid, host, label, model, first, last FROM gpus"
        ):
            if not _are(str, uuid, label, model) or not isinstance(host, int) or not _are_times(first, last):
                yield Damage("gpus", (("id", number),), f"gpus: number {number}: its row makes no sense")
                continue
            self._gpus[number] = model
            yield from self._refer("gpus", (("id", number),), f"gpus: {uuid}", host=host)
        for number, text in self._ask("SELECT id, text FROM words"):
            if isinstance(text, str):
                self._words.add(number)
            else:
                yield Damage("words", (("id", number),), f"words: number {number} is no text")
        for number, names in self._ask("SELECT id, names FROM layouts"):
            try:
                self._layouts[number] = read_layout(names)
            except (msgspec.DecodeError, TypeError) as error:
                yield Damage("layouts", (("id", number),), f"layouts: number {number}: {error}")

    def _refer(self, table: str, where: _Where, place: str, **numbers: int) -> Iterator[Damage]:
        known: dict[str, tuple[str, Any]] = {
            "host": ("hosts", self._names),
            "gpu": ("gpus", self._gpus),
            "user": ("words", self._words),
            "model": ("words", self._words),
        }
        for name, number in numbers.items():
            kind, there = known[name]
            # 0 stands for a user whom nobody knows.
            is_known = number in there or (name == "user" and number == 0) or (table, where) in self._changed
            if not is_known and (kind, number) not in self._lost:
                self._lost.add((kind, number))
                yield Damage(table, where, f"{place}: {name} {number} is missing in {kind}", (kind, number))

    def _check_samples(self) -> Iterator[Damage]:
        for key, body in self._ask("SELECT key, body FROM chunks ORDER BY key"):
            host, start = split_key(key)
            where, place = (("key", key),), f"chunks: the hour from {show_utc(start)} of {self._name(host)}"
            if ("chunks", where) in self._changed:
                self._unsure.add(host)
                continue
            yield from self._refer("chunks", where, place, host=host)
            try:
                hour = _decode_hour(body, start)
            except Damaged as error:
                self._unsure.add(host)
                yield Damage("chunks", where, f"{place}: {error}")
                continue
            for gpu in hour.gpus:
                yield from self._refer("chunks", where, place, gpu=gpu)
            yield from self._compare(host, hour)

    def _compare(self, host: int, hour: Hour) -> Iterator[Damage]:
        """The sums of an hour against its samples."""
        quarters = roll_up(hour)
        key, own = key_of(host, hour.start), f"the hour from {show_utc(hour.start)} of {self._name(host)}"
        where = ("hour", hour.start), ("host", host)
        row = self._ask("SELECT body FROM quarters WHERE key = ?", (key,)).fetchone()
        if row is None and self._is_kept("quarters", "key", key, key_of(host, 0)):
            yield Damage("quarters", (("key", key),), f"quarters: {own}: its row is missing")
        elif row is not None:
            found = _decoded_or_none(row[0])
            if found is not None and not _fit(found.states.sum(axis=1), quarters.states.sum(axis=1)):
                yield Damage("quarters", (("key", key),), f"quarters: {own}: other sums than its samples")
        found_at = "WHERE hour = ? AND host = ?", where_values(where)
        row = self._ask(f"SELECT layout, body FROM host_hours {found_at[0]}", found_at[1]).fetchone()  # noqa: S608
        if row is None and self._is_kept("host_hours", "hour", hour.start):
            yield Damage("host_hours", where, f"host_hours: {own}: its row is missing")
        totals = None if row is None else self._totals_or_none(*row)
        if totals is not None and not _fit(totals.states, hour_totals(quarters).states):
            yield Damage("host_hours", where, f"host_hours: {own}: other sums than its samples")
        held = sum(use.held for use in self._uses_of(hour).values())
        row = self._ask(f"SELECT total(held) FROM uses {found_at[0]}", found_at[1]).fetchone()  # noqa: S608
        if not is_close(held, row[0]):
            told = f"uses: {own}: {row[0] / 3600:.2f} GPU-hours, and {held / 3600:.2f} by its samples"
            yield Damage("uses", where, told)
        self._hosts_at[hour.start] += 1
        for part in quarter_totals(quarters):
            before = self._fleet.get(part.start)
            self._fleet[part.start] = part.states if before is None else before + part.states
        for run, run_part in run_parts(hour).items():
            self._run_seconds[run] += run_part.seconds

    def _is_kept(self, table: str, column: str, place: int, first: int = 0) -> bool:
        """Whether the table has something older: then nobody has deleted that row for its age."""
        question = f"SELECT 1 FROM {table} WHERE {column} >= ? AND {column} < ? LIMIT 1"  # noqa: S608
        return self._ask(question, (first, place)).fetchone() is not None

    def _uses_of(self, hour: Hour) -> dict[tuple[str | None, str], UsageAmounts]:
        return uses(hour, [self._gpus.get(gpu, NO_MODEL) for gpu in hour.gpus], {})

    def _check_totals(self) -> Iterator[Damage]:
        for key, body in self._ask("SELECT key, body FROM quarters ORDER BY key"):
            host, start = split_key(key)
            where, place = (("key", key),), f"quarters: the hour from {show_utc(start)} of {self._name(host)}"
            yield from self._refer("quarters", where, place, host=host)
            try:
                decode_quarters(body)
            except Damaged as error:
                yield Damage("quarters", where, f"{place}: {error}")
        for hour, host, layout, body in self._ask("SELECT hour, host, layout, body FROM host_hours"):
            own: _Where = (("hour", hour), ("host", host))
            place = f"host_hours: the hour from {show_utc(hour)} of {self._name(host)}"
            yield from self._refer("host_hours", own, place, host=host)
            yield from self._check_body("host_hours", own, place, layout, body)
        for start, layout, body, observed in self._ask("SELECT start, layout, body, observed FROM fleet_quarters"):
            own, place = (("start", start),), f"fleet_quarters: the quarter hour from {show_utc(start)}"
            yield from self._check_body("fleet_quarters", own, place, layout, body)
            totals = self._totals_or_none(layout, body)
            seen = 0.0 if totals is None else float(totals.states[2:].sum())
            if totals is not None and not (isinstance(observed, int | float) and is_close(observed, seen)):
                yield Damage("fleet_quarters", own, f"{place}: observed {observed} s, and {seen:.0f} s by its sums")

    def _check_body(self, table: str, where: _Where, place: str, layout: int, body: bytes) -> Iterator[Damage]:
        try:
            self._decode_totals(layout, body)
        except Damaged as error:
            yield Damage(table, where, f"{place}: {error}")

    def _decode_totals(self, layout: int, body: bytes) -> StepTotals:
        if layout not in self._layouts:
            raise Damaged(f"layout {layout} is missing")
        totals = decode_totals(body, self._layouts[layout])
        if not np.isfinite(totals.states).all() or (totals.states < -1).any():
            raise Damaged("its seconds make no sense")
        return totals

    def _totals_or_none(self, layout: int, body: bytes) -> StepTotals | None:
        try:
            return self._decode_totals(layout, body)
        except Damaged:
            return None

    def _check_uses(self) -> Iterator[Damage]:
        by_hour: dict[tuple[int, int, int], float] = defaultdict(float)
        partial: set[int] = set()
        columns = ", ".join(_USE)
        for hour, host, user, model, *numbers in self._ask(f"SELECT hour, host, user, model, {columns} FROM uses"):  # noqa: S608
            where: _Where = (("hour", hour), ("host", host), ("user", user), ("model", model))
            place = f"uses: the hour from {show_utc(hour)} of {self._name(host)}"
            yield from self._refer("uses", where, place, host=host, user=user, model=model)
            if ("uses", where) in self._changed:
                partial.add(hour)
            elif _are_amounts(numbers):
                by_hour[hour, user, model] += numbers[0]
            else:
                partial.add(hour)
                yield Damage("uses", where, f"{place}: its figures make no sense")
        for hour, user, model, *numbers in self._ask(f"SELECT hour, user, model, {columns} FROM uses_of_all"):  # noqa: S608
            where = (("hour", hour), ("user", user), ("model", model))
            place = f"uses_of_all: the hour from {show_utc(hour)}"
            yield from self._refer("uses_of_all", where, place, user=user, model=model)
            held = by_hour.pop((hour, user, model), None)
            if not _are_amounts(numbers):
                yield Damage("uses_of_all", where, f"{place}: its figures make no sense")
            elif held is None or hour in partial:
                continue
            elif not is_close(held, numbers[0]) and (held > numbers[0] or self._is_complete(hour)):
                told = f"{numbers[0] / 3600:.2f} GPU-hours, and {held / 3600:.2f} by its hosts"
                yield Damage("uses_of_all", where, f"{place}: {told}")
        for (hour, user, model), held in by_hour.items():
            if not is_close(held, 0.0):
                where = (("hour", hour), ("user", user), ("model", model))
                yield Damage("uses_of_all", where, f"uses_of_all: the hour from {show_utc(hour)}: a row is missing")

    def _check_fleet(self) -> Iterator[Damage]:
        """Where the samples of all hosts of an hour are there, they have to add up to the fleet's."""
        for start, states in self._fleet.items():
            question = "SELECT layout, body FROM fleet_quarters WHERE start = ?"
            row, why = self._ask(question, (start,)).fetchone(), ""
            totals = None if row is None else self._totals_or_none(*row)
            if not self._is_complete(start // 3600 * 3600):
                continue
            if row is None and self._is_kept("fleet_quarters", "start", start):
                why = "its row is missing"
            elif totals is not None and not _fit(totals.states, states):
                why = "other sums than its samples"
            if why:
                place = f"fleet_quarters: the quarter hour from {show_utc(start)}"
                yield Damage("fleet_quarters", (("start", start),), f"{place}: {why}")

    def _is_complete(self, hour: int) -> bool:
        """Whether the samples of all hosts of an hour are there: else the total knows more than they."""
        hosts = self._ask("SELECT count(*) FROM host_hours WHERE hour = ?", (hour,)).fetchone()[0]
        return bool(self._hosts_at[hour] == hosts > 0 and self._sealed_at[hour] <= hosts)

    def _check_runs(self) -> Iterator[Damage]:
        columns = "id, host, gpus, first, last, seconds, wall_seconds, memory_sum, memory_seconds, memory_peak"
        more = "utilization_sum, utilization_seconds, idle, joules, metered"
        for run, host, gpus, first, last, *numbers in self._ask(f"SELECT {columns}, {more} FROM runs"):  # noqa: S608
            where, place = (("id", run),), f"runs: number {run} on {self._name(host)}"
            if not isinstance(gpus, str) or not _are_times(first, last) or not _are_amounts(numbers):
                yield Damage("runs", where, f"{place}: its row makes no sense")
                continue
            yield from self._refer("runs", where, place, host=host)
            for gpu in split_gpus(gpus):
                yield from self._refer("runs", where, place, gpu=gpu)
            by_samples = self._run_seconds.get(run, 0.0)
            if not is_close(numbers[0], by_samples) and self._has_all_samples(host, first):
                told = f"{numbers[0] / 3600:.2f} GPU-hours, and {by_samples / 3600:.2f} by its samples"
                yield Damage("runs", where, f"{place}: {told}")

    def _has_all_samples(self, host: int, since: float) -> bool:
        if host in self._unsure:
            return False
        bounds = key_of(host, max(0.0, since)), key_of(host, _LAST)
        chunks, sealed = (
            self._ask(f"SELECT count(*) FROM {table} WHERE key BETWEEN ? AND ?", bounds).fetchone()[0]  # noqa: S608
            for table in ("chunks", "sealed")
        )
        oldest = self._ask("SELECT min(key) FROM chunks WHERE key BETWEEN ? AND ?", (key_of(host, 0), bounds[1]))
        first = oldest.fetchone()[0]
        return bool(chunks == sealed > 0 and first is not None and first <= bounds[0])

    def _check_journal(self) -> Iterator[Damage]:
        found = list(journal.find_damaged_entries(self._connection))
        sentences = iter(journal.summarize(found))
        for kind in (journal.NewerEntry, Damaged):
            numbers = tuple(entry for entry, error in found if type(error) is kind)
            if numbers:
                # What a newer gpudeck wrote is not damaged.
                where = () if kind is journal.NewerEntry else tuple(("id", number) for number in numbers)
                yield Damage("journal", where, f"journal: {next(sentences)}")

    def _name(self, host: int) -> str:
        return self._names.get(host, f"host {host}")


def where_values(where: _Where) -> tuple[int, ...]:
    return tuple(value for _, value in where)


def _decode_hour(body: bytes, start: int) -> Hour:
    hour = decode_hour(body)
    if hour.start != start:
        raise Damaged(f"it is of {show_utc(hour.start)}")
    return hour


def _decoded_or_none(body: bytes) -> Quarters | None:
    try:
        return decode_quarters(body)
    except Damaged:
        return None


def _fit(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and all(
        is_close(mine, its) for mine, its in zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
    )


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def _are_times(*values: object) -> bool:
    return all(isinstance(value, int | float) and 0 <= value < _LAST for value in values)


def _are_amounts(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and -1.0 <= value < 1e18 for value in values)
