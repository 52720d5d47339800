"""A host's hour while it is still being written.

Rows are written into preallocated arrays. In a large fleet every few rows are packed into smaller numbers
(`PackedRows`), because an hour of doubles takes five times the memory. Readers get a snapshot as an `Hour`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar, cast

import numpy as np
from msgspec import Struct

from gpudeck.history.codec import Bytes, Flags, Floats
from gpudeck.history.embedded.journal import MOMENT, MetricLayout, SampleRow, precisions_of
from gpudeck.history.hour import Hour, RunSlice, cover

_SMALL: Final = (np.uint8, np.uint16, np.uint32)
ROWS_IN_PIECE: Final = 60
MOST_CACHED: Final = 8
"""Answers about one open hour that are kept."""

T = TypeVar("T")


class RunValues(Struct):
    """Runs on GPUs in some rows in a row, from the one at `begin` on. `rows` has the memory of each run, in bytes, and
    after those the utilization of each."""

    who: list[tuple[int, int]]
    begin: int
    rows: Floats


class LooseRows(Struct):
    """Some rows in a row, of the same GPUs, as they came. `table` is (samples, GPUs, values)."""

    times: Floats
    intervals: Floats
    gpus: tuple[int, ...]
    states: Bytes
    layout: MetricLayout
    table: Floats
    host: Floats
    run_values: list[RunValues]

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.gpu if self.gpus else ()

    @property
    def host_names(self) -> tuple[str, ...]:
        return self.layout.host

    def tables(self, names: Sequence[str]) -> Floats:
        """(names, GPUs, samples)."""
        return _pick(self.table.transpose(2, 1, 0), self.layout.gpu, names)

    def host_tables(self, names: Sequence[str]) -> Floats:
        return _pick(self.host.T, self.layout.host, names)


class _Numbers(Struct):
    """In a small type: `(base + places) * step`; the type's highest place is NaN. Or one number for all."""

    base: float
    step: float
    places: np.ndarray | None

    def unpack(self) -> "Floats | float":
        if self.places is None:
            return self.base * self.step
        numbers = self.places.astype(np.float64)
        numbers[self.places == np.iinfo(self.places.dtype).max] = np.nan
        numbers += self.base
        numbers *= self.step
        return numbers


class PackedRows(Struct):
    """The same in a fifth of the room. A metric without readings is left out."""

    times: Floats
    intervals: Floats
    gpus: tuple[int, ...]
    states: Bytes
    metrics: dict[str, _Numbers | Floats]
    host: dict[str, _Numbers | Floats]
    run_values: list[RunValues]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(self.host)

    def tables(self, names: Sequence[str]) -> Floats:
        """(names, GPUs, samples)."""
        return _unpack(self.metrics, names, (len(self.gpus), len(self.times)))

    def host_tables(self, names: Sequence[str]) -> Floats:
        return _unpack(self.host, names, (len(self.times),))


Piece = LooseRows | PackedRows


def pack(piece: LooseRows) -> PackedRows:
    gpu_steps, host_steps = precisions_of(piece.layout)
    return PackedRows(
        times=piece.times.copy(),
        intervals=piece.intervals.copy(),
        gpus=piece.gpus,
        states=piece.states.copy(),
        metrics=_pack_all(piece.layout.gpu, piece.table.transpose(2, 1, 0), gpu_steps),
        host=_pack_all(piece.layout.host, piece.host.T, host_steps),
        run_values=[RunValues(one.who, one.begin, one.rows.copy()) for one in piece.run_values],
    )


def _pack_all(names: Sequence[str], table: Floats, precisions: Floats) -> dict[str, _Numbers | Floats]:
    """Each metric in steps of its precision."""
    if not table.size:
        return {}
    steps = np.rint(table.reshape(len(names), -1) / precisions[:, None])
    lows, highs = np.fmin.reduce(steps, axis=1), np.fmax.reduce(steps, axis=1)
    has_gaps: Flags = np.asarray(np.isnan(steps).any(axis=1))
    return {
        names[place]: _pack_one(steps[place].reshape(table.shape[1:]), precisions[place], has_gaps[place])
        if has_gaps[place] or lows[place] != highs[place]
        else _Numbers(float(lows[place]), float(precisions[place]), None)
        for place in np.flatnonzero(~np.isnan(lows)).tolist()
    }


def _pack_one(steps: Floats, precision: float, has_gaps: bool) -> _Numbers | Floats:
    low, high = np.fmin.reduce(steps, axis=None), np.fmax.reduce(steps, axis=None)
    kind = next((kind for kind in _SMALL if high - low < np.iinfo(kind).max), None)
    if kind is None:
        return np.asarray(steps * precision)
    places = steps - low
    if has_gaps:
        places[np.isnan(places)] = np.iinfo(kind).max
    return _Numbers(float(low), precision, places.astype(kind))


def _unpack(kept: dict[str, _Numbers | Floats], names: Sequence[str], shape: tuple[int, ...]) -> Floats:
    tables = np.full((len(names), *shape), np.nan)
    for place, name in enumerate(names):
        if name in kept:
            numbers = kept[name]
            tables[place] = numbers.unpack() if isinstance(numbers, _Numbers) else numbers
    return tables


def _pick(tables: Floats, layout: Sequence[str], names: Sequence[str]) -> Floats:
    """Those of `names` out of tables in the order of the layout."""
    if tuple(names) == layout:
        return tables
    if all(name in layout for name in names):
        return tables[[layout.index(name) for name in names]]
    found = np.full((len(names), *tables.shape[1:]), np.nan)
    places = [place for place, name in enumerate(names) if name in layout]
    found[places] = tables[[layout.index(names[place]) for place in places]]
    return found


def assemble(
    start: int, pieces: Sequence[Piece], before: float | None, metrics: Collection[str] | None, *, runs: bool
) -> Hour:
    """One hour out of pieces: in order of time, every moment once, of all GPUs that any of them has."""
    times = np.concatenate([piece.times for piece in pieces]) if pieces else np.empty(0)
    intervals = np.concatenate([piece.intervals for piece in pieces]) if pieces else np.empty(0)
    order = _order(times)
    gpus = list(dict.fromkeys(gpu for piece in pieces for gpu in piece.gpus))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    spans = _spans(pieces)
    among = [[rows[gpu] for gpu in piece.gpus] if list(piece.gpus) != gpus else slice(None) for piece in pieces]
    names = [name for name in _union([piece.names for piece in pieces]) if metrics is None or name in metrics]
    own = _union([piece.host_names for piece in pieces])
    host_names = [name for name in own if metrics is None or f"host_{name}" in metrics]
    states = np.zeros((len(gpus), len(times)), dtype=np.uint8)
    is_whole = all(isinstance(where, slice) for where in among)
    tables = (np.empty if is_whole else _blank)((len(names), len(gpus), len(times)))
    hosts = np.empty((len(host_names), len(times)))
    for piece, span, where in zip(pieces, spans, among, strict=True):
        states[where, span] = piece.states
        if names and piece.gpus:
            tables[:, where, span] = piece.tables(names)
        if host_names:
            hosts[:, span] = piece.host_tables(host_names)
    if order is not None:
        times, intervals = times[order], intervals[order]
        states, tables, hosts = states[:, order], tables[:, :, order], hosts[:, order]
    return Hour(
        start=start,
        times=times,
        covered=cover(times, intervals, before),
        gpus=gpus,
        states=states,
        metrics=dict(zip(names, tables, strict=True)),
        host=dict(zip(host_names, hosts, strict=True)),
        runs=_lay_out_runs(pieces, spans, rows, order, spans[-1].stop if spans else 0) if runs else [],
    )


def _union(names: Iterable[tuple[str, ...]]) -> list[str]:
    """Each once, in the order in which they come: pieces of the same layout need no other."""
    return list(dict.fromkeys(chain.from_iterable(dict.fromkeys(names))))


def _order(times: Floats) -> np.ndarray | None:
    """The places in order of time, each moment once; None where they are in order."""
    if bool((times[1:] > times[:-1]).all()):
        return None
    order: np.ndarray = np.unique(times, return_index=True)[1]
    return order


def _spans(pieces: Sequence[Piece]) -> list[slice]:
    ends = np.cumsum([len(piece.times) for piece in pieces]).tolist()
    return [slice(end - len(piece.times), end) for piece, end in zip(pieces, ends, strict=True)]


def _blank(shape: tuple[int, ...]) -> Floats:
    return np.full(shape, np.nan)


def _lay_out_runs(
    pieces: Sequence[Piece], spans: list[slice], rows: dict[int, int], order: np.ndarray | None, count: int
) -> list[RunSlice]:
    slices: dict[tuple[int, int], RunSlice] = {}
    for piece, span in zip(pieces, spans, strict=True):
        for run_values in piece.run_values:
            begin = span.start + run_values.begin
            here = slice(begin, begin + len(run_values.rows))
            columns = run_values.rows.T
            for number, key in enumerate(run_values.who):
                part = slices.get(key)
                if part is None:
                    blank = np.zeros(count, dtype=bool), np.full(count, np.nan), np.full(count, np.nan)
                    part = slices[key] = RunSlice(key[0], rows[key[1]], *blank)
                part.present[here] = True
                part.memory[here] = columns[number]
                part.utilization[here] = columns[len(run_values.who) + number]
    found = [part for _, part in sorted(slices.items())]
    if order is None:
        return found
    return [
        RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order]) for part in found
    ]


class _RunRows:
    """The runs on a host's GPUs while none comes or goes: from the row `begin` on, `count` rows."""

    def __init__(self, runs: tuple[tuple[int, ...] | None, ...], begin: int, rows: Floats) -> None:
        self.runs = runs
        self.begin = begin
        self.count = 0
        self.rows = rows

    def snapshot(self, gpus: Sequence[int], upto: int) -> RunValues:
        count = min(self.count, upto - self.begin)
        who = [(run, gpu) for gpu, runs in zip(gpus, self.runs, strict=True) for run in runs or ()]
        return RunValues(who, self.begin, self.rows[:count])

    def trim(self) -> None:
        self.rows = self.rows[: self.count].copy()


class _RowBuffer:
    """Consecutive rows of the same GPUs. Readers go by `count`, which changes last."""

    def __init__(self, row: SampleRow, layout: MetricLayout, room: int) -> None:
        gpus, width = row.table.shape
        self.gpus = row.gpu_runs.gpus
        self.layout = layout
        self.room = room
        self.count = 0
        self._own: Floats = np.empty((room, len(row.own)))
        self._states: Bytes = np.empty((room, gpus), dtype=np.uint8)
        self._table: Floats = np.empty((room, gpus, width))
        self._run_rows: list[_RunRows] = []

    def append(self, row: SampleRow) -> None:
        place = self.count
        self._own[place] = row.own
        # Without GPUs the width of the table is unknown.
        if self.gpus:
            self._states[place] = row.states
            self._table[place] = row.table
        if len(row.run_values):
            self._append_runs(row, place)
        self.count = place + 1

    def _append_runs(self, row: SampleRow, place: int) -> None:
        last = self._run_rows[-1] if self._run_rows else None
        runs = row.gpu_runs.runs
        if last is None or last.begin + last.count != place or (last.runs is not runs and last.runs != runs):
            if last is not None:
                last.trim()
            last = _RunRows(runs, place, np.empty((self.room - place, len(row.run_values))))
            self._run_rows.append(last)
        last.rows[last.count] = row.run_values
        last.count += 1

    def snapshot(self) -> LooseRows:
        count = self.count
        return LooseRows(
            times=self._own[:count, 0],
            intervals=self._own[:count, 1],
            gpus=self.gpus,
            states=self._states[:count].T,
            layout=self.layout,
            table=self._table[:count],
            host=self._own[:count, MOMENT:],
            run_values=[one.snapshot(self.gpus, count) for one in list(self._run_rows) if one.begin < count],
        )

    def trim(self) -> None:
        """Release unused memory."""
        self.room = count = self.count
        self._own, self._table = self._own[:count].copy(), self._table[:count].copy()
        self._states = self._states[:count].copy()
        if self._run_rows:
            self._run_rows[-1].trim()


class OpenHour:
    """`before` is when the host was last sampled before this hour. `first_entry` is the oldest journal entry in it.
    `is_late`: the hour was sealed before; what is here comes on top of that. After every `rows_in_piece` rows they are
    packed."""

    def __init__(
        self,
        start: int,
        before: float | None,
        first_entry: int,
        *,
        is_late: bool = False,
        rows_in_piece: int = ROWS_IN_PIECE,
    ) -> None:
        self._rows_in_piece = rows_in_piece
        self.start = start
        self.before = before
        self.first_entry = self.last_entry = first_entry
        self.is_late = is_late
        self.touched_at = 0.0
        self.newest = 0.0
        self._layout = MetricLayout()
        self._rows = 0
        self._stretches: list[_RowBuffer] = []
        self._pieces: list[PackedRows] = []
        self._appended = 0
        self._cached: dict[Hashable, tuple[int, Any]] = {}

    def append(self, row: SampleRow, at: float, entry: int, layout: MetricLayout | None = None) -> None:
        """`layout` is that of the row, if an earlier version wrote it."""
        if layout is not None:
            self._layout = layout
        stretch = self._stretches[-1] if self._stretches else None
        if stretch is None or stretch.count == stretch.room or not self._is_like(stretch, row):
            stretch = self._begin(row, stretch)
        stretch.append(row)
        self.newest = max(self.newest, at)
        self.last_entry = entry
        self._rows += 1
        self._appended += 1
        if self._rows >= self._rows_in_piece:
            self._pack()

    def cached(self, what: Hashable, work: Callable[[], T]) -> T:
        """What `work` makes of the hour so far: kept until the next row, so that many questions in a row cost one. May
        be called from any thread. `what` names it."""
        rows, kept = self._appended, self._cached.get(what)
        if kept is not None and kept[0] == rows:
            return cast("T", kept[1])
        if len(self._cached) >= MOST_CACHED:
            self._cached = {}
        made = work()
        self._cached[what] = rows, made
        return made

    def snapshot(self, metrics: Collection[str] | None = None, *, runs: bool = True) -> Hour:
        """The hour so far. `metrics` are the names wanted (`host_…` for the host's own); None: all of them. May be
        called from any thread."""
        # The stretches first: what is packed in between is then there twice, which the order of times takes out again.
        loose = [stretch.snapshot() for stretch in list(self._stretches)]
        pieces: list[Piece] = [*self._pieces, *loose]
        return assemble(self.start, pieces, self.before, metrics, runs=runs)

    def _is_like(self, stretch: _RowBuffer, row: SampleRow) -> bool:
        gpus = row.gpu_runs.gpus
        return (stretch.gpus is gpus or stretch.gpus == gpus) and stretch.layout == self._layout

    def _begin(self, row: SampleRow, before: _RowBuffer | None) -> _RowBuffer:
        if before is not None and before.count < before.room:
            before.trim()
        stretch = _RowBuffer(row, self._layout, min(ROWS_IN_PIECE, self._rows_in_piece))
        self._stretches.append(stretch)
        return stretch

    def _pack(self) -> None:
        # Readers find the rows either way, perhaps both ways, never neither.
        self._pieces = [*self._pieces, *(pack(stretch.snapshot()) for stretch in self._stretches)]
        self._stretches = []
        self._rows = 0
