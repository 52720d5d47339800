"""The file and the open hours at one moment, as `history.answers` and `history.usage` read them."""

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from gpudeck.history.base import KnownGpu, KnownHost, KnownRun, PastRun, RunSpan, UsageAmounts, UseKey
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.keys import KeyRegistry, OpenRun, split_gpus
from gpudeck.history.embedded.open_hour import HourSummary, LooseSample, OpenHour
from gpudeck.history.embedded.open_moments import OpenMoments
from gpudeck.history.embedded.seal import NO_MODEL, USE_SUMS, read_layout, uses_of
from gpudeck.history.embedded.tables import HOURS_A_ROW, WRONG, is_damage, is_sound, key_of, keys_between, split_key
from gpudeck.history.hour import (
    QUARTER,
    SECONDS,
    UNKNOWN,
    Hour,
    HourMoment,
    decode_hour,
    decode_moments,
    find_moment,
    merge_hours,
)
from gpudeck.history.rollup import Quarters, decode_quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.sample import ALL_NAMES, STATES
from gpudeck.history.totals import (
    FLEET,
    UTILIZATION,
    StepTotals,
    TotalsStack,
    add_totals,
    decode_stack,
    decode_totals,
    extend_totals,
    join_stacks,
    stack_totals,
    subtract_totals,
    sum_totals,
)
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_MOST: Final = 10_000
T = TypeVar("T")
_RunRow = tuple[int, int, str, str | None, float, float, int]
_PastRunRow = tuple[int, int, int, float | None, str | None, str | None, str | None, str | None, str]
_PAST_RUNS: Final = list[_PastRunRow]
_RunSpanRow = tuple[int, int, int, str, str | None, str | None, float, float]
_RUNS_AT_ONCE: Final = 256
_FOR_USES: Final = ("utilization_percent", "power_watts", "memory_used_bytes")
_BATCH: Final = 5_000
"""Totals that are in memory at once as they are in the file: about 1 KB each."""
_MAX_SECONDS: Final = 1e18
_Place = tuple[int, int]


class DamageLog:
    """Damage found while questions are answered: each place is logged once and counted. Thread-safe."""

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._lock = threading.Lock()

    def note(self, place: str, why: object) -> None:
        """`place` names what is left out of answers: the table or kind, the host, the hour."""
        with self._lock:
            if place in self._places or len(self._places) >= _MOST:
                return
            self._places.add(place)
        log.warning("%s cannot be read and is left out: %s", place, why)

    @property
    def problem(self) -> str | None:
        count = len(self._places)
        if not count:
            return None
        parts = "1 part" if count == 1 else f"{count} parts"
        return (
            f"{parts} of the history cannot be read and are left out of charts: stop the hub, then run "
            "`gpudeck history repair`; `gpudeck history verify` names them"
        )


class HistoryView:
    """What answers are made from, by the store's own numbers. Open hours are part of it like sealed ones. Hours come in
    order of time. `metrics` are the names wanted, the host's own with `host_` before them: nothing else is decoded."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        keys: KeyRegistry,
        open_hours: dict[tuple[int, int], OpenHour],
        damage: DamageLog | None = None,
        until: int | None = None,
    ) -> None:
        """With `until`, open hours are as they were summarized until then, and late samples are left out."""
        self.connection = connection
        self.damage = damage or DamageLog()
        self._keys = keys
        self._until = until
        self._loose: tuple[float, dict[int, LooseSample]] | None = None
        self._open_hours = (
            open_hours
            if until is None
            else {key: one for key, one in open_hours.items() if one.summary(until) is not None}
        )

    def gpus(self) -> dict[int, KnownGpu]:
        return dict(self._keys.gpus)

    def hosts(self) -> dict[int, KnownHost]:
        return {**self._keys.by_key}

    def run(self, key: int) -> KnownRun | None:
        row = self.connection.execute(
            "SELECT id, host, gpus, user, first, last, pid FROM runs WHERE id = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        try:
            _, host, gpus, user, first, last, pid = msgspec.convert(row, _RunRow)
        except msgspec.ValidationError as error:
            self.damage.note(f"run {key}", error)
            return None
        live = self.live_run(host, pid, key)
        if live is not None:
            return KnownRun(key, host, tuple(sorted(live.gpus)), user, live.first, self._keys.by_key[host].last)
        return KnownRun(key, host, split_gpus(gpus), user, first, last)

    def raw_since(self, hosts: Iterable[int]) -> float:
        wanted = set(hosts)
        found = [self._oldest(host) for host in wanted]
        found += [one.start for host in wanted for one in self.open_hours_of(host)]
        return float(min((start for start in found if start is not None), default=0))

    def _oldest(self, host: int) -> int | None:
        for table in ("chunks", "sealed"):
            with self._noting_damage(f"a part of the file, with the first hours of host {host},"):
                row = self.connection.execute(
                    f"SELECT min(key) FROM {table} WHERE key BETWEEN ? AND ?",  # noqa: S608
                    keys_between(host, 0, 7e9),
                ).fetchone()
                return None if row[0] is None else split_key(row[0])[1]
        return None

    def hours(
        self, host: int, start: float, end: float, metrics: Collection[str], *, runs: bool = False
    ) -> Iterator[Hour]:
        open_hours = self._open(host, start, end)
        for key, body in checkpointed(self._bodies("chunks", host, start, end)):
            begin = split_key(key)[1]
            for earlier in [at for at in open_hours if at < begin]:
                yield open_hours.pop(earlier).snapshot(metrics, runs=runs)
            open_hour = open_hours.pop(begin, None)
            late = None if open_hour is None else open_hour.snapshot(metrics, runs=runs)
            hour = self._read_or_note("samples", host, begin, partial(decode_hour, body, metrics, runs=runs))
            found = merge_hours(hour, late) if hour is not None and late is not None else hour or late
            if found is not None:
                yield found
        for open_hour in checkpointed(open_hours.values()):
            yield open_hour.snapshot(metrics, runs=runs)

    def moments(self, hosts: Sequence[int], at: float, metrics: Collection[str] | None) -> dict[int, HourMoment]:
        """The last sample of each of these hosts until `at`, of those that have one."""
        found: dict[int, HourMoment] = {}
        left = dict.fromkeys(hosts, at)
        while left:
            sealed = self._newest_bodies(left)
            alone, opened, begins = list[int](), list[OpenHour](), dict[int, int]()
            for host, until in left.items():
                open_hour = next((one for one in reversed(self.open_hours_of(host)) if one.start <= until), None)
                begin = max(-1 if open_hour is None else open_hour.start, sealed[host][0] if host in sealed else -1)
                if begin < 0:
                    continue
                begins[host] = begin
                if open_hour is None or open_hour.start < begin:
                    alone.append(host)
                elif host in sealed and sealed[host][0] == begin:
                    found |= self._late_moment(host, begin, at, metrics)
                else:
                    opened.append(open_hour)
            found |= self._sealed_moments({host: sealed[host] for host in alone}, at, metrics)
            some = OpenMoments(at, metrics, self._loose_at(at, opened)).find(opened)
            found |= {one.host: moment for one, moment in zip(opened, some, strict=True) if moment is not None}
            left = {host: begin - 1.0 for host, begin in begins.items() if host not in found}
        return found

    def _late_moment(self, host: int, begin: int, at: float, metrics: Collection[str] | None) -> dict[int, HourMoment]:
        hours = self.hours(host, begin, begin + SECONDS, ALL_NAMES if metrics is None else metrics, runs=True)
        found = next((moment for hour in hours if (moment := find_moment(hour, at)) is not None), None)
        return {} if found is None else {host: found}

    def _sealed_moments(
        self, bodies: Mapping[int, tuple[int, bytes]], at: float, metrics: Collection[str] | None
    ) -> dict[int, HourMoment]:
        """All at once; where one is damaged, each by itself."""
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
        rows: list[tuple[int, bytes]] = []
        with self._noting_damage("a part of the file, with hours of several hosts,"):
            rows = self.connection.execute(question, keys).fetchall()
        there = {key for key, _ in rows}
        question = "SELECT key, body FROM chunks WHERE key >= ? AND key <= ? ORDER BY key DESC LIMIT 1"
        for key in [key for key in keys if key not in there]:
            with self._noting_damage(f"a part of the file, with hours of host {split_key(key)[0]},"):
                rows += self.connection.execute(question, (key_of(split_key(key)[0], 0), key)).fetchall()
        return {host: (start, body) for key, body in rows for host, start in [split_key(key)]}

    def _loose_at(self, at: float, hours: Sequence[OpenHour]) -> dict[int, LooseSample]:
        if hours and (self._loose is None or self._loose[0] != at):
            self._loose = at, hours[0].loose.newest_until(at)
        return {} if self._loose is None else self._loose[1]

    def runs_of(self, keys: Collection[int]) -> Iterator[PastRun]:
        """Without their GPUs: a moment says which they were on."""
        wanted = sorted(keys)
        for place in range(0, len(wanted), _BATCH):
            some = wanted[place : place + _BATCH]
            yield from self._past_runs(f"id IN ({', '.join('?' * len(some))})", some, gpus="''")

    def runs_between(self, start: float, end: float) -> Iterator[PastRun]:
        return self._past_runs("first < ? AND (last >= ? OR NOT ended)", (end, start))

    def run_spans(self, start: float, end: float) -> Iterator[RunSpan]:
        """Those that were there at some time from `start` until before `end`, with their first and last sample."""
        columns = "id, host, pid, gpus, user, job, first, last"
        question = f"SELECT {columns} FROM runs WHERE first < ? AND (last >= ? OR NOT ended)"  # noqa: S608
        for row in checkpointed(self.connection.execute(question, (end, start)).fetchall()):
            try:
                key, host, pid, gpus, user, job, first, last = msgspec.convert(row, _RunSpanRow)
            except msgspec.ValidationError as error:
                self.damage.note(f"run {row[0]}", error)
                continue
            live = self.live_run(host, pid, key)
            there = split_gpus(gpus) if live is None else tuple(live.gpus)
            yield RunSpan(host, there, user, job, first, last if live is None else self._keys.by_key[host].last)

    def _past_runs(self, where: str, values: Sequence[object], gpus: str = "gpus") -> Iterator[PastRun]:
        columns = f"id, host, pid, started_at, user, command, container, job, {gpus}"
        found = self.connection.execute(f"SELECT {columns} FROM runs WHERE {where}", values)  # noqa: S608
        while rows := found.fetchmany(_RUNS_AT_ONCE):
            # All at once takes a third of the time; where one of them is damaged, each by itself.
            with contextlib.suppress(msgspec.ValidationError):
                yield from [
                    PastRun._make((*row[:-1], split_gpus(row[-1]))) for row in msgspec.convert(rows, _PAST_RUNS)
                ]
                continue
            for row in rows:
                try:
                    sound = msgspec.convert(row, _PastRunRow)
                except msgspec.ValidationError as error:
                    self.damage.note(f"run {row[0]}", error)
                else:
                    yield PastRun._make((*sound[:-1], split_gpus(sound[-1])))

    def quarters(self, host: int, start: float, end: float, metrics: Collection[str]) -> Iterator[Quarters]:
        open_hours = self._open(host, start, end)
        for key, body in checkpointed(self._bodies("quarters", host, start, end)):
            begin = split_key(key)[1]
            if begin not in open_hours:
                found = self._read_or_note("quarter hours", host, begin, partial(decode_quarters, body, metrics))
                if found is not None:
                    yield found
        for begin, open_hour in checkpointed(open_hours.items()):
            if open_hour.is_late:
                for hour in self.hours(host, begin, begin + SECONDS, metrics):
                    yield roll_up(hour)
            else:
                yield roll_up(open_hour.snapshot(metrics, runs=False))

    def host_hours(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        more, sealed_too = {}, set()
        for key, open_hour in checkpointed(self._open_between(start, end)):
            late = self._late_hour(*key, open_hour, metrics)
            sealed_too |= {key} if late is None else set()
            more[key] = self._hour_of(open_hour, metrics) if late is None else hour_totals(roll_up(late[1]))
        columns = "host, hour, layout, body, crc, utilization_sum, utilization_seconds"
        question = f"SELECT {columns} FROM host_hours WHERE hour >= ? AND hour < ? ORDER BY hour"  # noqa: S608
        rows = self._span(question, start, end, SECONDS, column=1)

        def join_late(sealed: StepTotals, key: _Place) -> StepTotals:
            return extend_totals(more[key], sealed) if key in sealed_too else more[key]

        whole = self._only_sound(rows, lambda host, hour, *more: (hour, host, *more))
        return self._stack(whole, more, join_late, metrics, SECONDS)

    def host_utilization(self, start: int, end: int, step: int) -> TotalsStack:
        """The sums and seconds of the utilization of each host, by steps that are a whole number of hours."""
        open_hours = self._open_between(start, end)
        if any(open_hour.is_late for _, open_hour in open_hours):
            return self.host_hours(start, end, (UTILIZATION,))
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
        more = {key: self._hour_of(open_hour, (UTILIZATION,)) for key, open_hour in checkpointed(open_hours)}
        return join_stacks([sealed, stack_totals(more, (UTILIZATION,), step)])

    def fleet_quarters(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        of_hosts: dict[_Place, list[StepTotals]] = {}
        were: dict[_Place, list[StepTotals]] = {}
        for (host, hour), open_hour in checkpointed(self._open_between(start - SECONDS + 1, end)):
            late = self._late_hour(host, hour, open_hour, metrics)
            _sort_in(of_hosts, self._quarters_of(open_hour, metrics) if late is None else _quarters_in(late[1]))
            if late is not None:
                _sort_in(were, _quarters_in(late[0]))
        more = {key: sum_totals(parts) for key, parts in of_hosts.items() if start <= key[1] < end}
        less = {key: sum_totals(parts) for key, parts in were.items()}
        columns = f"{FLEET}, start, layout, body, crc, observed"
        question = f"SELECT {columns} FROM fleet_quarters WHERE start >= ? AND start < ? ORDER BY start"  # noqa: S608
        rows = self._span(question, start, end, QUARTER, column=1)

        def join_late(sealed: StepTotals, key: _Place) -> StepTotals:
            return add_totals(more[key], subtract_totals(sealed, less[key]) if key in less else sealed)

        whole = self._only_sound(rows, lambda _, begin, layout, body, observed: (begin, layout, observed, body))
        return self._stack(whole, more, join_late, metrics, QUARTER)

    def _late_hour(
        self, host: int, start: int, open_hour: OpenHour, metrics: Collection[str]
    ) -> tuple[Hour, Hour] | None:
        """An hour that was sealed and got late samples since: as it was, and as it is with them. None where it was not
        sealed, or where its samples are no longer kept."""
        if not open_hour.is_late:
            return None
        body = next((body for _, body in self._bodies("chunks", host, start, start + 1)), None)
        read = partial(decode_hour, body, metrics, runs=False) if body is not None else None
        sealed = None if read is None else self._read_or_note("samples", host, start, read)
        return None if sealed is None else (sealed, merge_hours(sealed, open_hour.snapshot(metrics, runs=False)))

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
        for at, of, user, model, *numbers in checkpointed(self._span(question, start, end, SECONDS)):
            if all(isinstance(number, int | float) and abs(number) < _MAX_SECONDS for number in numbers):
                key = at, names.get(of, ""), self._words.get(user), self._words.get(model, NO_MODEL)
                yield key, UsageAmounts(*numbers)
            else:
                place = f"usage from {show_utc(start)} until {show_utc(end)}"
                self.damage.note(place, "its figures are no numbers any more")
        for (of, at), open_hour in checkpointed(self._open_between(start, end)):
            summary = self._summary(open_hour)
            found = open_hour.cached("uses", partial(self._uses_of, open_hour)) if summary is None else summary.uses
            for (owner, name), use in found.items():
                yield (at if hourly else start, names.get(of, ""), owner, name), use

    def observed(self, start: int, end: int) -> float:
        question = "SELECT total(observed) FROM fleet_quarters WHERE start >= ? AND start < ?"
        seconds = sum(float(row[0]) for row in self._span(question, start, end, QUARTER))
        for _, open_hour in checkpointed(self._open_between(start - SECONDS + 1, end)):
            if (summary := self._summary(open_hour)) is not None:
                seconds += sum(
                    float(one.states[UNKNOWN + 1 :].sum()) for one in summary.quarters if start <= one.start < end
                )
                continue
            snapshot = open_hour.cached("observed", partial(open_hour.snapshot, (), runs=False))
            is_inside = (snapshot.times >= start) & (snapshot.times < end)
            seconds += float((snapshot.observed * is_inside).sum())
        return seconds

    def owner(self, run: int) -> str | None:
        row = self.connection.execute("SELECT user FROM runs WHERE id = ?", (run,)).fetchone()
        return None if row is None else row[0]

    def live_run(self, host: int, pid: int, key: int) -> OpenRun | None:
        known = self._keys.by_key.get(host)
        run = None if known is None else known.runs.get(pid)
        return run if run is not None and run.key == key else None

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

    def _open(self, host: int, start: float, end: float) -> dict[int, OpenHour]:
        return {one.start: one for one in self.open_hours_of(host) if start - SECONDS < one.start < end}

    def _summary(self, open_hour: OpenHour) -> HourSummary | None:
        return None if self._until is None else open_hour.summary(self._until)

    def _hour_of(self, open_hour: OpenHour, metrics: Collection[str]) -> StepTotals:
        summary = self._summary(open_hour)
        return summary.hour if summary is not None else _hour_of(open_hour, metrics)

    def _quarters_of(self, open_hour: OpenHour, metrics: Collection[str]) -> list[StepTotals]:
        summary = self._summary(open_hour)
        return summary.quarters if summary is not None else _quarters_of(open_hour, metrics)

    def _uses_of(self, open_hour: OpenHour) -> dict[tuple[str | None, str], UsageAmounts]:
        return uses_of(open_hour.snapshot(_FOR_USES), self._keys, self.connection)

    @cached_property
    def _words(self) -> dict[int, str]:
        return dict(self.connection.execute("SELECT id, text FROM words").fetchall())

    @cached_property
    def _layouts(self) -> dict[int, tuple[str, ...]]:
        """One that is damaged is missing: so are the totals that need it."""
        found = {}
        for number, names in self.connection.execute("SELECT id, names FROM layouts").fetchall():
            with contextlib.suppress(msgspec.DecodeError, TypeError):
                found[number] = read_layout(names)
        return found

    def _bodies(self, table: str, host: int, start: float, end: float) -> Iterator[tuple[int, bytes]]:
        """Key and bytes of that host's hours, in order. Where a part of the file is damaged, the others come."""
        first, last = keys_between(host, start, end)
        also = ""
        if table == "quarters":
            # Of a row that begins earlier, those of the span may be the last.
            first, also = first - HOURS_A_ROW + 1, f"key + (count + 3) / 4 > {first} AND "
        question = f"SELECT key, body FROM {table} WHERE {also}key >= ? AND key < ? ORDER BY key"  # noqa: S608
        yield from self._span(question, first, last + 1, 1, column=0)

    def _span(self, question: str, start: int, end: int, step: int, column: int | None = None) -> Iterator[Any]:
        """The rows of a question from `start` until before `end`, in order of `column`; None: of no order. Where the
        file is damaged it goes on step by step: then what is damaged costs its own steps alone."""
        begin, place = start, f"a part of the file, asked for from {start} until {end},"
        is_damaged = True
        with self._noting_damage(place):
            for row in self.connection.execute(question, (start, end)):
                if column is not None:
                    begin = row[column] + step
                yield row
            is_damaged = False
        for at in range(begin, end, step) if is_damaged else ():
            with self._noting_damage(place):
                yield from self.connection.execute(question, (at, min(at + step, end))).fetchall()

    @contextlib.contextmanager
    def _noting_damage(self, place: str) -> Iterator[None]:
        """What the file's damage keeps from being read is noted and left out."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.damage.note(place, error)

    def _only_sound(self, rows: Iterator[Any], order: Callable[..., Sequence[Any]]) -> Iterator[Any]:
        """`rows` are host, start, layout, bytes, checksum and more; `order` is that of the table's columns."""
        for row in rows:
            if is_sound(order(*row[:4], *row[5:]), row[4]):
                yield row[:4]
            else:
                self._note_damage("hours", row[0], row[1], WRONG)

    def _stack(
        self,
        rows: Iterator[Any],
        more: dict[_Place, StepTotals],
        join_late: Callable[[StepTotals, _Place], StepTotals],
        metrics: Collection[str],
        seconds: int,
    ) -> TotalsStack:
        """Sealed totals, and `more` of hours that are open. `join_late` combines both."""
        sealed = []
        while batch := list(islice(rows, _BATCH)):
            for row in [row for row in batch if row[:2] in more]:
                totals = self._read_or_note("hours", row[0], row[1], partial(self._totals, row, metrics))
                if totals is not None:
                    more[row[:2]] = join_late(totals, row[:2])
            alone = [row for row in batch if row[:2] not in more]
            sealed.append(self._decode(alone, metrics, seconds))
        return join_stacks([*sealed, stack_totals(more, metrics, seconds)])

    def _totals(self, row: Any, metrics: Collection[str] | None) -> StepTotals:
        if row[2] not in self._layouts:
            raise Damaged(f"layout {row[2]} is missing")
        return decode_totals(row[3], self._layouts[row[2]], metrics)

    def _decode(self, rows: Sequence[Any], metrics: Collection[str], seconds: int) -> TotalsStack:
        """All at once; where one is damaged, those that are not."""
        try:
            return decode_stack(rows, self._layouts, metrics, seconds)
        except (Damaged, KeyError, TypeError, ValueError):
            whole = [
                row
                for row in rows
                if self._read_or_note("hours", row[0], row[1], partial(self._totals, row, None)) is not None
            ]
            return decode_stack(whole, self._layouts, metrics, seconds)

    def _read_or_note(self, what: str, host: int, start: int, read: Callable[[], T]) -> T | None:
        """None where it is damaged: that hour is a gap then, and the others are shown."""
        try:
            return read()
        except Damaged as error:
            self._note_damage(what, host, start, error)
            return None

    def _note_damage(self, what: str, host: int, start: int, why: object) -> None:
        known = self._keys.by_key.get(host)
        name = "the fleet" if host == FLEET else f"host {host}" if known is None else known.name
        self.damage.note(f"the {what} of {name} from {show_utc(start)} on", why)


def _hour_of(open_hour: OpenHour, metrics: Collection[str]) -> StepTotals:
    return open_hour.cached(
        ("hour", *sorted(metrics)), lambda: hour_totals(roll_up(open_hour.snapshot(metrics, runs=False)))
    )


def _quarters_of(open_hour: OpenHour, metrics: Collection[str]) -> list[StepTotals]:
    return open_hour.cached(
        ("quarters", *sorted(metrics)), lambda: _quarters_in(open_hour.snapshot(metrics, runs=False))
    )


def _quarters_in(hour: Hour) -> list[StepTotals]:
    return quarter_totals(roll_up(hour))


def _sort_in(found: dict[_Place, list[StepTotals]], quarters: Iterable[StepTotals]) -> None:
    for totals in quarters:
        found.setdefault((FLEET, totals.start), []).append(totals)
