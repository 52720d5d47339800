"""A consistent view of the file and the open hours, from which queries are answered."""

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from types import GenericAlias
from typing import Any, Final, TypeVar, get_args

import msgspec
import numpy as np

from gpudeck.history.accounting import RunPart
from gpudeck.history.base import KnownGpu, KnownHost, KnownRun, UsageAmounts, UseKey
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.keys import KeyRegistry, split_gpus
from gpudeck.history.embedded.open_hour import HourPart, HourSummary, OpenHour
from gpudeck.history.embedded.open_moments import find_open_moments
from gpudeck.history.embedded.seal import NO_MODEL, USE_SUMS, read_layout, uses_of
from gpudeck.history.embedded.tables import WRONG, convert_rows, is_sound, key_of, keys_between, split_key
from gpudeck.history.hour import (
    QUARTER,
    SECONDS,
    UNKNOWN,
    Hour,
    HourMoment,
    decode_hour,
    decode_moments,
)
from gpudeck.history.rollup import Quarters, decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.sample import STATES
from gpudeck.history.totals import (
    FLEET,
    UTILIZATION,
    StepTotals,
    TotalsRow,
    TotalsStack,
    decode_stack,
    decode_totals,
    join_stacks,
    stack_totals,
    sum_totals,
)
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_MOST: Final = 10_000
T = TypeVar("T")
_RUN: Final = "id, host, pid, started_at, user, command, container, job, gpus, first, last, ended"
_Text = str | None
_RunRow = tuple[int, int, int, float | None, _Text, _Text, _Text, _Text, str, float, float, int]
_SUMS: Final = RunPart.__struct_fields__
_RunSumsRow: Final = GenericAlias(tuple, (*get_args(_RunRow), *[float] * len(_SUMS)))
_RUNS_AT_ONCE: Final = 256
_FOR_USES: Final = ("utilization_percent", "power_watts", "memory_used_bytes")
_BATCH: Final = 5_000
"""Totals that are in memory at once as they are in the file: about 1 KB each."""
_Place = tuple[int, int]


class DamageLog:
    """Damage found while queries are answered. Each place is logged once and counted. Thread-safe."""

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._lock = threading.Lock()

    def note(self, place: str, why: object) -> None:
        """`place` names the part that is left out of answers: the table or kind, the host, the hour."""
        with self._lock:
            if place in self._places or len(self._places) >= _MOST:
                return
            self._places.add(place)
        log.warning("%s cannot be read and is left out: %s", place, why)

    @property
    def problem(self) -> str | None:
        if not self._places:
            return None
        return (
            f"parts of the history cannot be read ({len(self._places)}) and are left out of charts: stop the hub, then "
            "run `gpudeck history repair`; `gpudeck history verify` names them"
        )


class HistoryView:
    """A consistent view of the file and the open hours, in the store's own numbers. Open hours are included like sealed
    ones; late samples of a sealed hour appear when it is sealed again, some seconds later. Hours come in order of time.
    `metrics` are the wanted names (host metrics with the prefix `host_`); nothing else is decoded."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        keys: KeyRegistry,
        open_hours: dict[_Place, OpenHour],
        damage: DamageLog | None = None,
        until: int | None = None,
    ) -> None:
        """With `until`, open hours count as summarized until then."""
        self.connection = connection
        self.damage = damage or DamageLog()
        self._keys = keys
        self._until = until
        self._loose: tuple[float, dict[int, tuple[float, HourPart]]] | None = None
        self._open_hours = {
            key: one for key, one in open_hours.items() if not one.is_late and (until is None or until in one.summaries)
        }

    def gpus(self) -> dict[int, KnownGpu]:
        return dict(self._keys.gpus)

    def hosts(self) -> dict[int, KnownHost]:
        return {**self._keys.by_key}

    def gpu(self, key: int) -> KnownGpu | None:
        return self._keys.gpus.get(key)

    def host(self, key: int) -> KnownHost | None:
        return self._keys.by_key.get(key)

    def run(self, key: int) -> KnownRun | None:
        return next(self.runs("id = ?", (key,)), None)

    def runs_of(self, keys: Collection[int]) -> Iterator[KnownRun]:
        return self.runs("id IN (SELECT value FROM json_each(?))", (json.dumps([*keys]),))

    def runs_between(self, start: float, end: float) -> Iterator[KnownRun]:
        """Those that were there at some time from `start` until before `end`."""
        return self.runs("first < ? AND (last >= ? OR NOT ended)", (end, start))

    def runs(self, where: str, values: Sequence[object]) -> Iterator[KnownRun]:
        """Damaged rows are noted and left out."""
        question = f"SELECT {_RUN} FROM runs WHERE {where}"  # noqa: S608
        return map(self._make_run, self._read_runs(_RunRow, question, values))

    def runs_with_sums(self, where: str, values: Sequence[object]) -> Iterator[tuple[KnownRun, RunPart]]:
        """As `runs`, with the sums of each run over sealed hours."""
        question = f"SELECT {_RUN}, {', '.join(_SUMS)} FROM runs WHERE {where}"  # noqa: S608
        for row in self._read_runs(_RunSumsRow, question, values):
            yield self._make_run(row[: -len(_SUMS)]), RunPart(*row[-len(_SUMS) :])

    def _read_runs(self, kind: Any, question: str, values: Sequence[object]) -> Iterator[Any]:
        found = self.connection.execute(question, values)
        while rows := found.fetchmany(_RUNS_AT_ONCE):
            yield from convert_rows(rows, kind, lambda run, error: self.damage.note(f"run {run}", error))

    def _make_run(self, row: _RunRow) -> KnownRun:
        """The run as it is in the file, or in memory while it goes on."""
        key, host_key, pid, started_at, user, command, container, job, gpus, first, last, ended = row
        host = self._keys.by_key.get(host_key)
        live = None if host is None else host.runs.get(pid)
        seen = split_gpus(gpus), first, last, False
        if host is not None and live is not None and live.key == key:
            seen = tuple(sorted(live.gpus)), live.first, host.last, not ended
        return KnownRun(key, host_key, pid, started_at, user, command, container, job, *seen)

    def raw_since(self, hosts: Iterable[int]) -> float:
        question = "SELECT min(key) FROM chunks WHERE key BETWEEN ? AND ?"
        wanted = list(hosts)
        found = [one.start for host in wanted for one in self.open_hours_of(host)]
        for host in wanted:
            (key,) = self.connection.execute(question, keys_between(host, 0, 7e9)).fetchone()
            found += [] if key is None else [split_key(key)[1]]
        return float(min(found, default=0))

    def hours(
        self,
        host: int,
        start: float,
        end: float,
        metrics: Collection[str],
        *,
        runs: bool = False,
        is_lazy: bool = False,
    ) -> Iterator[Hour]:
        """With `is_lazy` as `decode_hour`."""
        read = partial(decode_hour, metrics=metrics, runs=runs, is_lazy=is_lazy)
        open_hours = self._open(host, start, end)
        for key, body in checkpointed(self._bodies("chunks", host, start, end)):
            begin = split_key(key)[1]
            # Of a backlog, a later hour may be sealed first.
            while open_hours and open_hours[0].start < begin:
                yield open_hours.pop(0).snapshot(metrics, runs=runs)
            hour = self._read_or_note("samples", host, begin, partial(read, body))
            if hour is not None:
                yield hour
        for open_hour in checkpointed(open_hours):
            yield open_hour.snapshot(metrics, runs=runs)

    def moments(self, hosts: Sequence[int], at: float, metrics: frozenset[str] | None) -> dict[int, HourMoment]:
        """The last sample of each of these hosts until `at`, of those that have one."""
        opened = [one for host in hosts for one in self.open_hours_of(host) if one.start <= at]
        found = find_open_moments(opened, at, metrics, self._loose_at(at, opened))
        left = dict.fromkeys((host for host in hosts if host not in found), at)
        while left:
            bodies = self._newest_bodies(left)
            found |= self._sealed_moments(bodies, at, metrics)
            left = {host: begin - 1.0 for host, (begin, _) in bodies.items() if host not in found}
        return found

    def _sealed_moments(
        self, bodies: Mapping[int, tuple[int, bytes]], at: float, metrics: frozenset[str] | None
    ) -> dict[int, HourMoment]:
        """All together; if one is damaged, one by one."""
        try:
            moments = decode_moments([body for _, body in bodies.values()], at, metrics)
        except Damaged:
            read = self._read_or_note
            alone = [
                read("samples", host, begin, partial(decode_moments, [body], at, metrics))
                for host, (begin, body) in bodies.items()
            ]
            moments = [None if one is None else one[0] for one in alone]
        return {host: moment for host, moment in zip(bodies, moments, strict=True) if moment is not None}

    def _newest_bodies(self, hosts: Mapping[int, float]) -> dict[int, tuple[int, bytes]]:
        keys = [key_of(host, max(until, 0)) for host, until in hosts.items()]
        question = f"SELECT key, body FROM chunks WHERE key IN ({', '.join('?' * len(keys))})"  # noqa: S608
        rows = self.connection.execute(question, keys).fetchall()
        there = {key for key, _ in rows}
        question = "SELECT key, body FROM chunks WHERE key >= ? AND key <= ? ORDER BY key DESC LIMIT 1"
        for key in [key for key in keys if key not in there]:
            rows += self.connection.execute(question, (key_of(split_key(key)[0], 0), key)).fetchall()
        return {host: (start, body) for key, body in rows for host, start in [split_key(key)]}

    def _loose_at(self, at: float, hours: Sequence[OpenHour]) -> dict[int, tuple[float, HourPart]]:
        if hours and (self._loose is None or self._loose[0] != at):
            self._loose = at, hours[0].loose.newest_until(at)
        return {} if self._loose is None else self._loose[1]

    def quarters(self, host: int, start: float, end: float, metrics: Collection[str]) -> Iterator[Quarters]:
        for key, body in checkpointed(self._bodies("quarters", host, start, end)):
            read = partial(decode_quarters, body, metrics)
            found = self._read_or_note("quarter hours", host, split_key(key)[1], read)
            if found is not None:
                yield found
        for open_hour in checkpointed(self._open(host, start, end)):
            yield roll_up(open_hour.snapshot(metrics, runs=False))

    def host_hours(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        more = {key: self._totals(one, metrics)[0] for key, one in checkpointed(self._open_between(start, end))}
        rows = self._sound_rows("host_hours", "hour", start, end)
        found = ((host, hour, layout, body) for hour, host, layout, body, *_ in rows)
        return self._stack(found, more, metrics, SECONDS)

    def host_utilization(self, start: int, end: int, step: int) -> TotalsStack:
        """The sums and seconds of the utilization of each host, by steps that are a whole number of hours."""
        # A question a column: one for all of them would have to sort what the index has in order.
        question = (
            "SELECT host, sum(utilization_sum), sum(utilization_seconds) FROM host_hours INDEXED BY host_utilization "
            "WHERE host IN (SELECT id FROM hosts) AND hour >= ? AND hour < ? GROUP BY host"
        )
        begins = range(start, end, step)
        columns = [self.connection.execute(question, (at, at + step)).fetchall() for at in checkpointed(begins)]
        rows = np.concatenate([np.empty((0, 3)), *(np.array(column, np.float64) for column in columns if column)])
        starts = np.repeat(np.array(begins), [len(column) for column in columns])
        tables = np.full((len(rows), 1, 5), np.nan)
        tables[:, 0, :2] = np.nan_to_num(rows[:, 1:])
        states = np.zeros((len(rows), len(STATES)))
        sealed = TotalsStack(step, (UTILIZATION,), rows[:, 0].astype(np.int64), starts, tables, states)
        open_hours = self._open_between(start, end)
        more = {key: self._totals(open_hour, (UTILIZATION,))[0] for key, open_hour in checkpointed(open_hours)}
        return join_stacks([sealed, stack_totals(more, (UTILIZATION,), step)])

    def fleet_quarters(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        parts: dict[_Place, list[StepTotals]] = {}
        for _, open_hour in checkpointed(self._open_between(start - SECONDS + 1, end)):
            for totals in self._totals(open_hour, metrics)[1]:
                parts.setdefault((FLEET, totals.start), []).append(totals)
        more = {key: sum_totals(some) for key, some in parts.items() if start <= key[1] < end}
        rows = self._sound_rows("fleet_quarters", "start", start, end)
        return self._stack(((FLEET, at, layout, body) for at, layout, _, body in rows), more, metrics, QUARTER)

    def uses(
        self, start: int, end: int, *, by_host: bool = False, hourly: bool = False
    ) -> Iterator[tuple[UseKey, UsageAmounts]]:
        """Sums over the whole hours from `start` until before `end`, perhaps in several parts; the key's hour is
        `start`, or with `hourly` the hour itself. Without `by_host` the key's host is empty: much less to read."""
        table, host = ("uses", "host") if by_host else ("uses_of_all", "0")
        hour, by = ("hour", "hour, ") if hourly else (str(start), "")
        question = (
            f"SELECT {hour}, {host}, user, model, {USE_SUMS} FROM {table} "  # noqa: S608
            f"WHERE hour >= ? AND hour < ? GROUP BY {by}{'host, ' if by_host else ''}user, model"
        )
        names = {key: known.host_id for key, known in list(self._keys.by_key.items())} if by_host else {}
        for at, of, user, model, *numbers in checkpointed(self.connection.execute(question, (start, end))):
            key = at, names.get(of, ""), self._words.get(user), self._words.get(model, NO_MODEL)
            yield key, UsageAmounts(*numbers)
        for (of, at), open_hour in checkpointed(self._open_between(start, end)):
            summary = self._summary(open_hour)
            found = open_hour.cached("uses", partial(self._uses_of, open_hour)) if summary is None else summary.uses
            for (owner, name), use in found.items():
                yield (at if hourly else start, names.get(of, ""), owner, name), use

    def observed(self, start: int, end: int) -> float:
        question = "SELECT total(observed) FROM fleet_quarters WHERE start >= ? AND start < ?"
        seconds: float = self.connection.execute(question, (start, end)).fetchone()[0]
        for _, open_hour in checkpointed(self._open_between(start - SECONDS + 1, end)):
            quarters = self._totals(open_hour, ())[1]
            seconds += sum(float(one.states[UNKNOWN + 1 :].sum()) for one in quarters if start <= one.start < end)
        return seconds

    def owner(self, run: int) -> str | None:
        row = self.connection.execute("SELECT user FROM runs WHERE id = ?", (run,)).fetchone()
        return None if row is None else row[0]

    def open_hours_of(self, host: int) -> list[OpenHour]:
        return self._open_by_host.get(host, [])

    @cached_property
    def _open_by_host(self) -> dict[int, list[OpenHour]]:
        found: dict[int, list[OpenHour]] = {}
        for (host, _), open_hour in sorted(self._open_hours.items(), key=lambda one: one[0]):
            found.setdefault(host, []).append(open_hour)
        return found

    @cached_property
    def _open_by_start(self) -> dict[int, list[tuple[tuple[int, int], OpenHour]]]:
        found: dict[int, list[tuple[tuple[int, int], OpenHour]]] = {}
        for key, open_hour in self._open_hours.items():
            found.setdefault(key[1], []).append((key, open_hour))
        return found

    def _open_between(self, start: int, end: int) -> list[tuple[tuple[int, int], OpenHour]]:
        return [one for begin, some in self._open_by_start.items() if start <= begin < end for one in some]

    def _open(self, host: int, start: float, end: float) -> list[OpenHour]:
        return [one for one in self.open_hours_of(host) if start - SECONDS < one.start < end]

    def _summary(self, open_hour: OpenHour) -> HourSummary | None:
        return None if self._until is None else open_hour.summaries.get(self._until)

    def _totals(self, open_hour: OpenHour, metrics: Collection[str]) -> tuple[StepTotals, list[StepTotals]]:
        """Totals of the hour, and of its quarter hours."""
        summary = self._summary(open_hour)
        if summary is not None:
            return summary.hour, summary.quarters
        return open_hour.cached(("totals", *sorted(metrics)), partial(_roll_up, open_hour, metrics))

    def _uses_of(self, open_hour: OpenHour) -> dict[tuple[str | None, str], UsageAmounts]:
        return uses_of(open_hour.snapshot(_FOR_USES), self._keys, self.connection)

    @cached_property
    def _words(self) -> dict[int, str]:
        return dict(self.connection.execute("SELECT id, text FROM words").fetchall())

    @cached_property
    def _layouts(self) -> dict[int, tuple[str, ...]]:
        """Without damaged layouts; totals that need these are left out too."""
        found = {}
        for number, names in self.connection.execute("SELECT id, names FROM layouts").fetchall():
            with contextlib.suppress(msgspec.DecodeError, TypeError):
                found[number] = read_layout(names)
        return found

    def _bodies(self, table: str, host: int, start: float, end: float) -> Iterator[tuple[int, bytes]]:
        """Key and bytes of that host's hours, in order."""
        question = f"SELECT key, body FROM {table} WHERE key BETWEEN ? AND ? ORDER BY key"  # noqa: S608
        yield from self.connection.execute(question, keys_between(host, start, end))

    def _sound_rows(self, table: str, column: str, start: int, end: int) -> Iterator[Any]:
        """Rows of totals whose `column` lies in that time, without their checksums."""
        rows = self.connection.execute(f"SELECT * FROM {table} WHERE {column} >= ? AND {column} < ?", (start, end))  # noqa: S608
        for *row, crc in rows:
            if is_sound(row, crc):
                yield row
            else:
                self.damage.note(f"a row of {table} from {show_utc(row[0])} on", WRONG)

    def _stack(
        self, rows: Iterator[TotalsRow], more: dict[_Place, StepTotals], metrics: Collection[str], seconds: int
    ) -> TotalsStack:
        """Joins sealed totals with `more`, the totals of open hours."""
        known, sealed = (row for row in rows if row[2] in self._layouts), []
        while batch := list(islice(known, _BATCH)):
            for row in [row for row in batch if row[:2] in more]:
                totals = decode_totals(row, self._layouts[row[2]], seconds)
                more[row[:2]] = sum_totals([more[row[:2]], totals])
            alone = [row for row in batch if row[:2] not in more]
            sealed.append(decode_stack(alone, self._layouts, metrics, seconds))
        return join_stacks([*sealed, stack_totals(more, metrics, seconds)])

    def _read_or_note(self, what: str, host: int, start: int, read: Callable[[], T]) -> T | None:
        """None if the hour is damaged: it becomes a gap, and other hours are shown."""
        try:
            return read()
        except Damaged as error:
            known = self.host(host)
            name = f"host {host}" if known is None else known.name
            self.damage.note(f"the {what} of {name} from {show_utc(start)} on", error)
            return None


def _roll_up(open_hour: OpenHour, metrics: Collection[str]) -> tuple[StepTotals, list[StepTotals]]:
    quarters = roll_up(open_hour.snapshot(metrics, runs=False))
    return hour_totals(quarters), quarter_totals(quarters)
