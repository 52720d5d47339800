"""`gpudeck history verify`: whether everything in the file is readable and consistent.

the file          SQLite's own check of its pages and indexes
every row         its checksum; a row that an earlier version wrote has none
key tables        hosts, GPUs, words, layouts: rows that make sense, and that are there for all who refer to them
samples           the checksum of each hour
sums, usage, runs against the samples, as far as these are kept; else whether they make sense
journal           the checksum of each entry
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history.accounting import RunPart, run_parts, uses
from gpudeck.history.codec import Damaged, Floats
from gpudeck.history.embedded.journal import NewerEntry, find_damaged_entries, summarize
from gpudeck.history.embedded.keys import split_gpus
from gpudeck.history.embedded.seal import NO_MODEL, USE_COLUMNS, read_layout
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
from gpudeck.history.rollup import decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.totals import StepTotals, decode_totals
from gpudeck.model.times import show_utc

Where = tuple[tuple[str, int], ...]
_LAST: Final = 7e9
_MOST_TOLD: Final = 100
"""Sentences about the file as a whole."""
_Lost = tuple[str, int]
"""A table, and the number that is missing in it."""
_NONSENSE: Final = "its row makes no sense"
_NO_FIGURES: Final = "its figures make no sense"
_MISSING: Final = "its row is missing"
_OTHER_SUMS: Final = "other sums than its samples"
T = TypeVar("T")


class Damage(Struct, frozen=True):
    """`where` are the columns that name the row, empty where none can be set aside; for the journal, the numbers of all
    its damaged entries. `lost` is what the row refers to and is not there: the table and the number; told once.
    `is_changed`: the checksum of the row does not fit."""

    table: str
    where: Where
    text: str
    lost: tuple[str, int] | None = None
    is_changed: bool = False


def find_damage(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Reads every byte: minutes for gigabytes. Unreadable parts are reported, never raised."""
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
        self._changed: dict[tuple[str, Where], None] = {}
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
            yield self._damage(table, where, WRONG, is_changed=True)
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

    def _damage(
        self,
        table: str,
        where: Where,
        why: str,
        place: str = "",
        lost: _Lost | None = None,
        *,
        is_changed: bool = False,
    ) -> Damage:
        return Damage(table, where, f"{table}: {place or self._place(where)}: {why}", lost, is_changed)

    def _place(self, where: Where) -> str:
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
                yield self._damage("hosts", (("id", number),), _NONSENSE)
            else:
                self._names[number] = name
        question = "SELECT id, uuid, host, label, model, first, last FROM gpus"
        for number, uuid, host, label, model, first, last in self._ask(question):
            if not _are(str, uuid, label, model) or not isinstance(host, int) or not _are_times(first, last):
                yield self._damage("gpus", (("id", number),), _NONSENSE)
                continue
            self._gpus[number] = model
            yield from self._refer("gpus", (("id", number),), uuid, host=host)
        for number, text in self._ask("SELECT id, text FROM words"):
            if isinstance(text, str):
                self._words.add(number)
            else:
                yield Damage("words", (("id", number),), f"words: number {number} is no text")
        for number, names in self._ask("SELECT id, names FROM layouts"):
            try:
                self._layouts[number] = read_layout(names)
            except (msgspec.DecodeError, TypeError) as error:
                yield self._damage("layouts", (("id", number),), str(error))

    def _refer(self, table: str, where: Where, place: str = "", **numbers: int) -> Iterator[Damage]:
        known: dict[str, tuple[str, Any]] = {
            "host": ("hosts", self._names),
            "gpu": ("gpus", self._gpus),
            "user": ("words", self._words),
            "model": ("words", self._words),
        }
        for name, number in numbers.items():
            kind, there = known[name]
            # User 0 is an unknown user.
            is_known = number in there or (name == "user" and number == 0) or (table, where) in self._changed
            if not is_known and (kind, number) not in self._lost:
                self._lost.add((kind, number))
                yield self._damage(table, where, f"{name} {number} is missing in {kind}", place, (kind, number))

    def _check_samples(self) -> Iterator[Damage]:
        for key, body in self._ask("SELECT key, body FROM chunks ORDER BY key"):
            host, start = split_key(key)
            where = (("key", key),)
            if ("chunks", where) in self._changed:
                self._unsure.add(host)
                continue
            yield from self._refer("chunks", where, host=host)
            try:
                hour = _decode_hour(body, start)
            except Damaged as error:
                self._unsure.add(host)
                yield self._damage("chunks", where, str(error))
                continue
            for gpu in hour.gpus:
                yield from self._refer("chunks", where, gpu=gpu)
            yield from self._compare(host, hour)

    def _compare(self, host: int, hour: Hour) -> Iterator[Damage]:
        """The sums of an hour against its samples."""
        quarters = roll_up(hour)
        key, where = key_of(host, hour.start), (("hour", hour.start), ("host", host))
        of_hour, values = condition(where)
        row = self._ask("SELECT body FROM quarters WHERE key = ?", (key,)).fetchone()
        if row is None and self._is_kept("quarters", "key", key, key_of(host, 0)):
            yield self._damage("quarters", (("key", key),), _MISSING)
        elif row is not None:
            found = _or_none(decode_quarters, row[0])
            if found is not None and not _fit(found.states.sum(axis=1), quarters.states.sum(axis=1)):
                yield self._damage("quarters", (("key", key),), _OTHER_SUMS)
        row = self._ask(f"SELECT layout, body FROM host_hours WHERE {of_hour}", values).fetchone()  # noqa: S608
        if row is None and self._is_kept("host_hours", "hour", hour.start):
            yield self._damage("host_hours", where, _MISSING)
        totals = None if row is None else _or_none(self._decode_totals, *row)
        if totals is not None and not _fit(totals.states, hour_totals(quarters).states):
            yield self._damage("host_hours", where, _OTHER_SUMS)
        models = [self._gpus.get(gpu, NO_MODEL) for gpu in hour.gpus]
        held = sum(use.held for use in uses(hour, models, {}).values())
        row = self._ask(f"SELECT total(held) FROM uses WHERE {of_hour}", values).fetchone()  # noqa: S608
        if not is_close(held, row[0]):
            yield self._damage("uses", where, _hours_differ(row[0], held, "samples"))
        self._hosts_at[hour.start] += 1
        for part in quarter_totals(quarters):
            before = self._fleet.get(part.start)
            self._fleet[part.start] = part.states if before is None else before + part.states
        for run, run_part in run_parts(hour).items():
            self._run_seconds[run] += run_part.seconds

    def _is_kept(self, table: str, column: str, place: int, first: int = 0) -> bool:
        """Whether the table has older rows: then that row was not deleted for its age."""
        question = f"SELECT 1 FROM {table} WHERE {column} >= ? AND {column} < ? LIMIT 1"  # noqa: S608
        return self._ask(question, (first, place)).fetchone() is not None

    def _check_totals(self) -> Iterator[Damage]:
        for key, body in self._ask("SELECT key, body FROM quarters ORDER BY key"):
            yield from self._refer("quarters", (("key", key),), host=split_key(key)[0])
            yield from self._try("quarters", (("key", key),), decode_quarters, body)
        for hour, host, layout, body in self._ask("SELECT hour, host, layout, body FROM host_hours"):
            where = (("hour", hour), ("host", host))
            yield from self._refer("host_hours", where, host=host)
            yield from self._try("host_hours", where, self._decode_totals, layout, body)
        for start, layout, body, observed in self._ask("SELECT start, layout, body, observed FROM fleet_quarters"):
            yield from self._try("fleet_quarters", (("start", start),), self._decode_totals, layout, body)
            totals = _or_none(self._decode_totals, layout, body)
            seen = 0.0 if totals is None else float(totals.states[2:].sum())
            if totals is not None and not (isinstance(observed, int | float) and is_close(observed, seen)):
                why = f"observed {observed} s, and {seen:.0f} s by its sums"
                yield self._damage("fleet_quarters", (("start", start),), why)

    def _try(self, table: str, where: Where, decode: Callable[..., object], *content: object) -> Iterator[Damage]:
        try:
            decode(*content)
        except Damaged as error:
            yield self._damage(table, where, str(error))

    def _decode_totals(self, layout: int, body: bytes) -> StepTotals:
        if layout not in self._layouts:
            raise Damaged(f"layout {layout} is missing")
        totals = decode_totals(body, self._layouts[layout])
        if not np.isfinite(totals.states).all() or (totals.states < -1).any():
            raise Damaged("its seconds make no sense")
        return totals

    def _check_uses(self) -> Iterator[Damage]:
        by_hour: dict[tuple[int, int, int], float] = defaultdict(float)
        partial: set[int] = set()
        for hour, host, user, model, *numbers in self._ask(f"SELECT hour, host, user, model, {USE_COLUMNS} FROM uses"):  # noqa: S608
            where: Where = (("hour", hour), ("host", host), ("user", user), ("model", model))
            yield from self._refer("uses", where, host=host, user=user, model=model)
            if ("uses", where) in self._changed:
                partial.add(hour)
            elif _are_amounts(numbers):
                by_hour[hour, user, model] += numbers[0]
            else:
                partial.add(hour)
                yield self._damage("uses", where, _NO_FIGURES)
        for hour, user, model, *numbers in self._ask(f"SELECT hour, user, model, {USE_COLUMNS} FROM uses_of_all"):  # noqa: S608
            where = (("hour", hour), ("user", user), ("model", model))
            yield from self._refer("uses_of_all", where, user=user, model=model)
            held = by_hour.pop((hour, user, model), None)
            if not _are_amounts(numbers):
                yield self._damage("uses_of_all", where, _NO_FIGURES)
            elif held is None or hour in partial:
                continue
            elif not is_close(held, numbers[0]) and (held > numbers[0] or self._is_complete(hour)):
                yield self._damage("uses_of_all", where, _hours_differ(numbers[0], held, "hosts"))
        for (hour, user, model), held in by_hour.items():
            if not is_close(held, 0.0):
                where = (("hour", hour), ("user", user), ("model", model))
                yield self._damage("uses_of_all", where, "a row is missing")

    def _check_fleet(self) -> Iterator[Damage]:
        """Where the samples of all hosts of an hour are there, they have to add up to the fleet's."""
        for start, states in self._fleet.items():
            if not self._is_complete(start // 3600 * 3600):
                continue
            row = self._ask("SELECT layout, body FROM fleet_quarters WHERE start = ?", (start,)).fetchone()
            totals = None if row is None else _or_none(self._decode_totals, *row)
            if row is None and self._is_kept("fleet_quarters", "start", start):
                yield self._damage("fleet_quarters", (("start", start),), _MISSING)
            elif totals is not None and not _fit(totals.states, states):
                yield self._damage("fleet_quarters", (("start", start),), _OTHER_SUMS)

    def _is_complete(self, hour: int) -> bool:
        """Whether the samples of all hosts of an hour are there: else the total knows more than they."""
        hosts = self._ask("SELECT count(*) FROM host_hours WHERE hour = ?", (hour,)).fetchone()[0]
        return bool(self._hosts_at[hour] == hosts > 0 and self._sealed_at[hour] <= hosts)

    def _check_runs(self) -> Iterator[Damage]:
        sums = ", ".join(RunPart.__struct_fields__)
        question = f"SELECT id, host, gpus, first, last, {sums} FROM runs"  # noqa: S608
        for run, host, gpus, first, last, *numbers in self._ask(question):
            where, place = (("id", run),), f"number {run} on {self._name(host)}"
            if not isinstance(gpus, str) or not _are_times(first, last) or not _are_amounts(numbers):
                yield self._damage("runs", where, _NONSENSE, place)
                continue
            yield from self._refer("runs", where, place, host=host)
            for gpu in split_gpus(gpus):
                yield from self._refer("runs", where, place, gpu=gpu)
            seconds = self._run_seconds.get(run, 0.0)
            if not is_close(numbers[0], seconds) and self._has_all_samples(host, first):
                yield self._damage("runs", where, _hours_differ(numbers[0], seconds, "samples"), place)

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
        found = list(find_damaged_entries(self._connection))
        sentences = iter(summarize(found))
        for kind in (NewerEntry, Damaged):
            numbers = tuple(entry for entry, error in found if type(error) is kind)
            if numbers:
                # What a newer gpudeck wrote is not damaged.
                where = () if kind is NewerEntry else tuple(("id", number) for number in numbers)
                yield Damage("journal", where, f"journal: {next(sentences)}")

    def _name(self, host: int) -> str:
        return self._names.get(host, f"host {host}")


def condition(where: Where) -> tuple[str, tuple[int, ...]]:
    """As SQL, and its values."""
    return " AND ".join(f"{column} IS ?" for column, _ in where), tuple(value for _, value in where)


def _decode_hour(body: bytes, start: int) -> Hour:
    hour = decode_hour(body)
    if hour.start != start:
        raise Damaged(f"it is of {show_utc(hour.start)}")
    return hour


def _hours_differ(kept: float, found: float, source: str) -> str:
    return f"{kept / 3600:.2f} GPU-hours, and {found / 3600:.2f} by its {source}"


def _or_none(decode: Callable[..., T], *content: object) -> T | None:
    try:
        return decode(*content)
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
