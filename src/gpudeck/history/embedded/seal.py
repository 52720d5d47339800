"""Seals an hour: writes its samples, its quarter hours, and its part of all totals to the tables.

The sums are of many hosts, so an hour that late samples open again first takes out what it had added. Everything
happens inside the caller's transaction. `PastWriter` writes a past that is known all at once through the same sealing.
"""

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from gpudeck.history.accounting import RunPart, run_parts, uses
from gpudeck.history.base import UsageAmounts
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.keys import HostKeys, KeyRegistry
from gpudeck.history.embedded.open_hour import HourSummary, MatrixCache, OpenHour
from gpudeck.history.embedded.tables import is_sound, key_of, open_to_write, require_sound
from gpudeck.history.hour import SECONDS, UNKNOWN, Hour, cut_hour, decode_hour, encode_hour, merge_hours
from gpudeck.history.rollup import Quarters, encode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.sample import ProcessSample
from gpudeck.history.totals import (
    StepTotals,
    decode_totals,
    encode_totals,
    extend_totals,
    subtract_totals,
    sum_totals,
    utilization_of,
)
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_USE_COLUMNS: Final = ("held", "worked", *UsageAmounts.__struct_fields__[2:])
"""The file has these names for `used` and `active`."""
USE_COLUMNS: Final = ", ".join(_USE_COLUMNS)
USE_SUMS: Final = ", ".join(f"{'max' if name == 'peak' else 'sum'}({name})" for name in _USE_COLUMNS)
_ADD_USE: Final = (
    f"INSERT INTO uses_of_all (hour, user, model, {USE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _USE_COLUMNS[:-1])}, "
    "peak = max(peak, excluded.peak)"
)
_ADD_RUN: Final = (
    "UPDATE runs SET "  # noqa: S608
    + ", ".join(
        f"{name} = max({name}, ?)" if name == "memory_peak" else f"{name} = {name} + ?"
        for name in RunPart.__struct_fields__
    )
    + " WHERE id = ?"
)

_KEPT_QUARTERS: Final = 16
"""Of the fleet, in memory: those of the hours that are being sealed."""

NO_MODEL: Final = "unknown model"
"""Of a GPU whose row is lost."""

SUMMARIZED: Final = ("utilization_percent", "power_watts", "memory_used_bytes", "memory_total_bytes")
"""The metrics of a summary: what the overview shows, and what usage and observed time are made from."""


class HourSealer:
    """Without `keep_samples`, only sums and runs are kept (another store has the samples). Hours that end before
    `samples_since()` get no samples, because retention would delete them at once."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        keys: KeyRegistry,
        *,
        keep_samples: bool = True,
        samples_since: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._keep_samples = keep_samples
        self._samples_since = samples_since
        self._fleet: dict[int, StepTotals] = {}
        self._changed: set[int] = set()
        """Quarter hours of the fleet that the file does not have yet."""
        self._uses: dict[tuple[int, int, int], UsageAmounts] = {}

    def seal(self, host: HostKeys, open_hour: OpenHour, cache: MatrixCache) -> None:
        hour = open_hour.snapshot(cache=cache)
        if not len(hour.times):
            return
        old = self._sealed(host, open_hour.start) if open_hour.is_late else None
        self.add(
            host,
            hour if old is None else merge_hours(old, hour),
            open_hour.last_entry,
            old,
            # Of an hour whose samples are no longer kept, the quarter hours of all of them are better than of some.
            is_more=open_hour.is_late and old is None,
            keep_samples=open_hour.start + SECONDS > self._samples_since(),
        )

    def add(
        self,
        host: HostKeys,
        hour: Hour,
        last_entry: int = 0,
        old: Hour | None = None,
        *,
        is_more: bool = False,
        keep_samples: bool,
    ) -> None:
        """`old` is the hour as it was sealed before. `is_more`: it was sealed before, but its samples are gone; then
        the sums of this hour are added to the existing ones."""
        key, quarters = key_of(host.key, hour.start), roll_up(hour)
        query = self._connection.execute
        query("INSERT OR REPLACE INTO sealed (key, upto) VALUES (?, ?)", (key, last_entry))
        if self._keep_samples and not is_more:
            if keep_samples:
                query("INSERT OR REPLACE INTO chunks VALUES (?, ?)", (key, encode_hour(hour)))
            query("INSERT OR REPLACE INTO quarters VALUES (?, ?)", (key, encode_quarters(quarters)))
        self._write_host_hour(host, quarters, is_more=is_more)
        self._add_to_fleet(quarters, None if old is None else roll_up(old))
        self._write_uses(host, hour, is_more=is_more)
        runs, old_runs = run_parts(hour), {} if old is None else run_parts(old)
        for run in runs.keys() & old_runs.keys():
            runs[run].add(old_runs[run], -1.0)
        self._connection.executemany(_ADD_RUN, [(*structs.astuple(part), run) for run, part in runs.items()])
        self._see_gpus(hour)

    def _sealed(self, host: HostKeys, start: int) -> Hour | None:
        row = self._connection.execute("SELECT body FROM chunks WHERE key = ?", (key_of(host.key, start),)).fetchone()
        try:
            return None if row is None else decode_hour(row[0])
        except Damaged as error:
            log.warning("late samples of %s only add to the sums: its hour from %d on: %s", host.name, start, error)
            return None

    def _write_host_hour(self, host: HostKeys, quarters: Quarters, *, is_more: bool) -> None:
        totals = hour_totals(quarters)
        if is_more:
            columns = "hour, host, layout, body, utilization_sum, utilization_seconds, crc"
            question = f"SELECT {columns} FROM host_hours WHERE hour = ? AND host = ?"  # noqa: S608
            row = self._connection.execute(question, (quarters.start, host.key)).fetchone()
            try:
                if row is not None:
                    totals = extend_totals(self._read_totals(row, row[2:4], quarters.start, 3600), totals)
            except Damaged as error:
                _leave(f"the hour of {host.name}", quarters.start, error)
                return
        row = totals.start, host.key, self._keys.layout(totals.names), encode_totals(totals), *utilization_of(totals)
        columns = "hour, host, layout, body, utilization_sum, utilization_seconds"
        statement = f"INSERT OR REPLACE INTO host_hours ({columns}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._connection.execute(statement, row)

    def _add_to_fleet(self, quarters: Quarters, before: Quarters | None) -> None:
        taken_out = {totals.start: totals for totals in quarter_totals(before)} if before is not None else {}
        for totals in quarter_totals(quarters):
            try:
                whole = self._fleet_quarter(totals.start)
            except Damaged as error:
                _leave("the quarter hour of the fleet", totals.start, error)
                continue
            if whole is None:
                whole = totals
            else:
                if totals.start in taken_out:
                    whole = subtract_totals(whole, taken_out[totals.start])
                whole = sum_totals([whole, totals])
            self._fleet[totals.start] = whole
            self._changed.add(totals.start)

    def write_sums(self) -> None:
        for whole in map(self._fleet.__getitem__, self._changed):
            observed = float(whole.states[UNKNOWN + 1 :].sum())
            row = whole.start, self._keys.layout(whole.names), observed, encode_totals(whole)
            statement = "INSERT OR REPLACE INTO fleet_quarters (start, layout, observed, body) VALUES (?, ?, ?, ?)"
            self._connection.execute(statement, row)
        self._changed.clear()
        while len(self._fleet) > _KEPT_QUARTERS:
            del self._fleet[next(iter(self._fleet))]
        self._connection.executemany(_ADD_USE, [(*key, *structs.astuple(use)) for key, use in self._uses.items()])
        self._uses.clear()

    def _fleet_quarter(self, start: int) -> StepTotals | None:
        """The hour sealed before this one usually has the same quarter hours. Raises Damaged."""
        if start in self._fleet:
            return self._fleet[start]
        question = "SELECT start, layout, observed, body, crc FROM fleet_quarters WHERE start = ?"
        row = self._connection.execute(question, (start,)).fetchone()
        return None if row is None else self._read_totals(row, (row[1], row[3]), start, 900)

    def _read_totals(self, row: Sequence[Any], content: tuple[int, bytes], start: int, seconds: int) -> StepTotals:
        require_sound(row)
        layout, body = content
        found = self._connection.execute("SELECT names FROM layouts WHERE id = ?", (layout,)).fetchone()
        try:
            return decode_totals((0, start, layout, body), read_layout(found[0]), seconds)
        except (msgspec.DecodeError, TypeError) as error:
            raise Damaged(f"layout {layout} cannot be read") from error

    def forget(self) -> None:
        self._fleet.clear()
        self._changed.clear()
        self._uses.clear()

    def _write_uses(self, host: HostKeys, hour: Hour, *, is_more: bool) -> None:
        word, query = self._keys.word, self._connection.execute
        found = uses_of(hour, self._keys, self._connection)
        new = {(word(user), word(model)): use for (user, model), use in found.items()}
        question = f"SELECT hour, host, user, model, {USE_COLUMNS}, crc FROM uses WHERE hour = ? AND host = ?"  # noqa: S608
        rows = query(question, (hour.start, host.key)).fetchall()
        if not all(
            is_sound(row[:-1], row[-1]) and all(isinstance(one, int | float) for one in row[4:-1]) for row in rows
        ):
            _leave(f"the usage of {host.name}", hour.start, "its figures have changed since they were written")
            return
        old = {(user, model): UsageAmounts(*numbers) for _, _, user, model, *numbers, _ in rows}
        if is_more:
            for key, use in old.items():
                new.setdefault(key, UsageAmounts()).add(use)
        query("DELETE FROM uses WHERE hour = ? AND host = ?", (hour.start, host.key))
        self._connection.executemany(
            f"INSERT INTO uses (hour, host, user, model, {USE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            [(hour.start, host.key, *key, *structs.astuple(use)) for key, use in new.items()],
        )
        for key in {**old, **new}:
            change = structs.replace(new.get(key, UsageAmounts()))
            if key in old:
                # The peak stays the larger one: what was seen once was there.
                change.add(structs.replace(old[key], peak=0.0), -1.0)
            self._uses.setdefault((hour.start, *key), UsageAmounts()).add(change)

    def _see_gpus(self, hour: Hour) -> None:
        is_seen = hour.observed > 0
        for row, gpu in enumerate(hour.gpus):
            places = np.flatnonzero(is_seen[row])
            if len(places):
                self._keys.see_gpu(gpu, float(hour.times[places[0]]), float(hour.times[places[-1]]))


def summarize(
    open_hour: OpenHour, until: int, keys: KeyRegistry, connection: sqlite3.Connection, cache: MatrixCache
) -> HourSummary:
    """The hour without samples from `until` on. `cache` is shared with neighbours."""
    hour = cut_hour(open_hour.snapshot(SUMMARIZED, cache=cache), until)
    quarters = roll_up(hour)
    return HourSummary(hour_totals(quarters), quarter_totals(quarters), uses_of(hour, keys, connection))


def uses_of(
    hour: Hour, keys: KeyRegistry, connection: sqlite3.Connection
) -> dict[tuple[str | None, str], UsageAmounts]:
    """Usage in that hour by user and model. Thread-safe if each thread has its own connection."""
    known = keys.gpus
    models = [known[gpu].model if gpu in known else NO_MODEL for gpu in hour.gpus]
    runs = json.dumps(list({part.run for part in hour.runs}))
    question = "SELECT value, user FROM json_each(?) LEFT JOIN runs ON runs.id = value"
    return uses(hour, models, dict(connection.execute(question, (runs,)).fetchall()))


def _leave(what: str, start: int, why: object) -> None:
    """Damaged rows stay as they are, so that `gpudeck history verify` finds them."""
    log.warning("%s from %s on is damaged and stays as it is: %s", what, show_utc(start), why)


@cache
def read_layout(names: str) -> tuple[str, ...]:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(names, type=tuple[str, ...])


_RESERVED_RUNS: Final = 10_000_000


class PastSpan(NamedTuple):
    """When a run was first and last seen. If it is not over, it may continue with the first sample after the past."""

    first: float
    last: float
    is_over: bool


class PastWriter:
    """Writes a past beside a hub that has the file open: hours are committed by `flush`, the sums of all hosts by
    `close`. `reserve` sets numbers apart that the hub does not assign. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._connection = open_to_write(path)
        self.keys = KeyRegistry(self._connection)
        self._sealer = HourSealer(self._connection, self.keys)

    def reserve(self, words: Iterable[str]) -> None:
        """Call it before a hub opens the file. `words` are all users and models of the past."""
        for word in words:
            self.keys.word(word)
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('newest_runs', ?)", (_RESERVED_RUNS,))

    def add_run(self, key: int, host: HostKeys, process: ProcessSample, gpus: Iterable[int], seen: PastSpan) -> None:
        """Call it before adding the hours of the run, which add to its sums. `key` must be unique."""
        self._begin()
        self._connection.execute(
            "INSERT INTO runs (id, host, pid, started_at, user, command, container, job, gpus, first, last, ended) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (key, host.key, *process[:6], ",".join(map(str, sorted(gpus))), seen.first, seen.last, seen.is_over),
        )

    def extend_run(self, key: int, first: float) -> None:
        """A run of the file began earlier, at `first`."""
        self._begin()
        self._connection.execute("UPDATE runs SET first = min(first, ?) WHERE id = ?", (first, key))

    def add(self, host: HostKeys, hour: Hour, *, keep_samples: bool) -> None:
        self._begin()
        self._sealer.add(host, hour, keep_samples=keep_samples)

    def flush(self) -> None:
        self._begin()
        self.keys.write_new()
        for host in self.keys.by_key.values():
            if host.is_changed:
                self.keys.write_seen(host)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._begin()
        self._sealer.write_sums()
        self.flush()
        self._connection.close()

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
