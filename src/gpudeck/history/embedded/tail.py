"""A host's hour while it is still being written.

Rows come in as the tuples that the journal keeps. Every few of them are packed into small arrays, because an hour of
tuples takes ten times the room. Whoever asks gets a picture of the moment as an ordinary `Hour`.
"""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from gpudeck.history.hour import Bytes, Flags, Floats, Hour, RunSlice, cover
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, Values
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

ROWS_IN_PIECE: Final = 60
_SMALL: Final = (np.uint8, np.uint16, np.uint32)


GpuRow = tuple[int, int, Values, tuple[int, ...] | None, list[int | None], list[float | None]]
"""The GPU, its state and values; the runs on it, None when nobody knows; their memories in bytes and utilizations.

A plain tuple, because a hub makes thousands of them a second."""


class Row(NamedTuple):
    """A sample as the journal keeps it."""

    at: float
    interval: float
    values: Values
    gpus: list[GpuRow]


class Layout(NamedTuple):
    """The names of a row's values: those of the version that wrote it."""

    gpu: tuple[str, ...] = GPU_NAMES
    host: tuple[str, ...] = HOST_NAMES


@cache
def precisions_of(layout: Layout) -> tuple[Floats, Floats]:
    """The smallest step worth keeping of each metric; of one that is no longer in the catalog, a millionth."""
    return (
        np.array([GPU_METRICS[name].precision if name in GPU_METRICS else 1e-6 for name in layout.gpu]),
        np.array([HOST_METRICS[name].precision if name in HOST_METRICS else 1e-6 for name in layout.host]),
    )


class _Packed(Struct):
    """Numbers in a small type: `(base + places) * step`; the type's highest place is NaN. Or one number for all."""

    base: float
    step: float
    places: np.ndarray | None

    def unpack(self, shape: tuple[int, ...]) -> Floats:
        if self.places is None:
            return np.full(shape, self.base * self.step)
        numbers = self.places.astype(np.float64)
        numbers[self.places == np.iinfo(self.places.dtype).max] = np.nan
        numbers += self.base
        numbers *= self.step
        return numbers


class _Stay(Struct):
    """A run on a GPU in some rows in a row, from the one at `place` on."""

    place: int
    memory: Floats
    utilization: Floats


class _Piece(Struct):
    """Some rows in a row, of the same GPUs. `runs` is by run and GPU."""

    times: Floats
    intervals: Floats
    gpus: tuple[int, ...]
    states: Bytes
    metrics: dict[str, _Packed | Floats]
    host: dict[str, _Packed | Floats]
    runs: dict[tuple[int, int], list[_Stay]]

    def metric(self, name: str) -> Floats:
        return _unpack(self.metrics.get(name), (len(self.gpus), len(self.times)))

    def of_host(self, name: str) -> Floats:
        numbers: Floats = _unpack(self.host.get(name), (1, len(self.times)))[0]
        return numbers


Present = tuple[tuple[int, ...] | None, list[int | None], list[float | None]]
"""The runs on a GPU, their memories and utilizations."""


class Loose(NamedTuple):
    """A row as an open hour keeps it. `states`, the lines of `table` and `present` are in the order of `gpus`."""

    at: float
    interval: float
    values: Values
    gpus: tuple[int, ...]
    states: bytes
    table: Floats
    present: list[Present]


class Tail:
    """`before` is when the host was last sampled before this hour. `first_entry` is the oldest journal entry in it.

    `is_late`: the hour was sealed before; what is here comes on top of that. After every `rows_in_piece` rows they are
    packed.
    """

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
        self._rows: list[Loose] = []
        self._layout = Layout()
        self._pieces: list[_Piece] = []

    def append(self, row: Loose, entry: int, layout: Layout | None = None) -> None:
        """`layout` is that of the row, if an earlier version wrote it."""
        if layout is not None and layout != self._layout:
            self._pack()
            self._layout = layout
        self._rows.append(row)
        self.newest = max(self.newest, row.at)
        self.last_entry = entry
        if len(self._rows) >= self._rows_in_piece:
            self._pack()

    def picture(self, metrics: Collection[str] | None = None, *, runs: bool = True) -> Hour:
        """The hour so far. `metrics` are the names wanted (`host_…` for the host's own); None: all of them.

        May be called from any thread.
        """
        # The rows first: what is packed in between is then there twice, which the order of times takes out again.
        rows, layout = self._rows, self._layout
        pieces = list(self._pieces)
        loose = _make_pieces(rows[:], layout, pack=False)
        return assemble(self.start, [*pieces, *loose], self.before, metrics, runs=runs)

    def _pack(self) -> None:
        if self._rows:
            # Whoever looks meanwhile finds the rows either way, perhaps both ways, never neither.
            self._pieces = [*self._pieces, *_make_pieces(self._rows, self._layout, pack=True)]
            self._rows = []


def loosen(rows: Sequence[Row]) -> list[Loose]:
    """Rows of one layout with their values as arrays: made of all of them at once, which costs a third."""
    flat = [gpu[2] for row in rows for gpu in row.gpus]
    # A host without GPUs has no values, and no width either.
    table = np.array(flat, dtype=np.float64).reshape(len(flat), len(flat[0]) if flat else 0)
    loose, begin = [], 0
    for at, interval, values, gpus in rows:
        end = begin + len(gpus)
        keys, states, present = (
            tuple([gpu[0] for gpu in gpus]),
            bytes([gpu[1] for gpu in gpus]),
            [gpu[3:] for gpu in gpus],
        )
        loose.append(Loose(at, interval, values, keys, states, table[begin:end], present))
        begin = end
    return loose


def _make_pieces(rows: list[Loose], layout: Layout, *, pack: bool) -> list[_Piece]:
    """A piece for each stretch of rows with the same GPUs."""
    pieces, begin = [], 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place].gpus != rows[begin].gpus:
            pieces.append(_make_piece(rows[begin:place], layout, pack=pack))
            begin = place
    return pieces


def _make_piece(loose: list[Loose], layout: Layout, *, pack: bool) -> _Piece:
    gpus = loose[0].gpus
    table = np.stack([one.table for one in loose], axis=-1).transpose(1, 0, 2) if gpus else np.empty((0, 0, 0))
    host = np.array([one.values for one in loose], dtype=np.float64).T
    keep = _pack_all if pack else _keep_all
    gpu_steps, host_steps = precisions_of(layout)
    return _Piece(
        times=np.array([one.at for one in loose]),
        intervals=np.array([one.interval for one in loose]),
        gpus=gpus,
        states=np.frombuffer(b"".join([one.states for one in loose]), dtype=np.uint8).reshape(len(loose), -1).T,
        metrics=keep(layout.gpu, table, gpu_steps),
        host=keep(layout.host, host[:, None, :], host_steps),
        runs=_gather_runs(loose),
    )


def _gather_runs(loose: list[Loose]) -> dict[tuple[int, int], list[_Stay]]:
    """Who is on a GPU hardly ever changes: each stretch with the same runs is taken at once."""
    stays: dict[tuple[int, int], list[_Stay]] = {}
    for place, gpu in enumerate(loose[0].gpus):
        column = [one.present[place] for one in loose]
        begin = 0
        for end in range(1, len(column) + 1):
            runs = column[begin][0]
            if end < len(column) and (column[end][0] is runs or column[end][0] == runs):
                continue
            if runs:
                memory = np.array([one[1] for one in column[begin:end]], dtype=np.float64)
                utilization = np.array([one[2] for one in column[begin:end]], dtype=np.float64)
                for number, run in enumerate(runs):
                    stay = _Stay(begin, memory[:, number], utilization[:, number])
                    stays.setdefault((run, gpu), []).append(stay)
            begin = end
    return stays


def _keep_all(names: Sequence[str], table: Floats, precisions: Floats) -> dict[str, _Packed | Floats]:
    return dict(zip(names, table, strict=True)) if table.size else {}


def _pack_all(names: Sequence[str], table: Floats, precisions: Floats) -> dict[str, _Packed | Floats]:
    """Each metric in steps of its precision. One that nobody knows at all is left out."""
    if not table.size:
        return {}
    steps = np.rint(table / precisions[:, None, None]).reshape(len(names), -1)
    lows, highs = np.fmin.reduce(steps, axis=1), np.fmax.reduce(steps, axis=1)
    has_gaps: Flags = np.asarray(np.isnan(steps).any(axis=1))
    return {
        names[place]: _pack_one(steps[place].reshape(table.shape[1:]), precisions[place], has_gaps[place])
        if has_gaps[place] or lows[place] != highs[place]
        else _Packed(float(lows[place]), float(precisions[place]), None)
        for place in np.flatnonzero(~np.isnan(lows)).tolist()
    }


def _pack_one(steps: Floats, precision: float, has_gaps: bool) -> _Packed | Floats:
    low, high = np.fmin.reduce(steps, axis=None), np.fmax.reduce(steps, axis=None)
    kind = next((kind for kind in _SMALL if high - low < np.iinfo(kind).max), None)
    if kind is None:
        return np.asarray(steps * precision)
    places = steps - low
    if has_gaps:
        places[np.isnan(places)] = np.iinfo(kind).max
    return _Packed(float(low), precision, places.astype(kind))


def _unpack(kept: _Packed | Floats | None, shape: tuple[int, ...]) -> Floats:
    if kept is None:
        return np.full(shape, np.nan)
    return kept.unpack(shape) if isinstance(kept, _Packed) else kept


def assemble(
    start: int, pieces: list[_Piece], before: float | None, metrics: Collection[str] | None, *, runs: bool
) -> Hour:
    """One hour out of pieces: in order of time, every moment once, of all GPUs that any of them has."""
    times = np.concatenate([piece.times for piece in pieces]) if pieces else np.empty(0)
    intervals = np.concatenate([piece.intervals for piece in pieces]) if pieces else np.empty(0)
    order: np.ndarray = np.unique(times, return_index=True)[1]
    gpus = list(dict.fromkeys(gpu for piece in pieces for gpu in piece.gpus))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    begins = np.cumsum([0, *(len(piece.times) for piece in pieces)]).tolist()
    places = [
        (piece, begin, None if list(piece.gpus) == gpus else np.array([rows[gpu] for gpu in piece.gpus], dtype=int))
        for piece, begin in zip(pieces, begins, strict=False)
    ]
    is_sorted = len(order) == len(times) and bool((order[1:] > order[:-1]).all())

    def lay_out(name: str) -> Floats:
        if len(pieces) == 1 and is_sorted:
            return pieces[0].metric(name)
        table = np.full((len(gpus), len(times)), np.nan)
        for piece, begin, among in places:
            table[slice(None) if among is None else among, begin : begin + len(piece.times)] = piece.metric(name)
        return table if is_sorted else table[:, order]

    states = np.zeros((len(gpus), len(times)), dtype=np.uint8)
    for piece, begin, among in places:
        states[slice(None) if among is None else among, begin : begin + len(piece.times)] = piece.states
    names = {name for piece in pieces for name in piece.metrics}
    host_names = {name for piece in pieces for name in piece.host}
    hour = Hour(
        start=start,
        times=times[order],
        covered=cover(times[order], intervals[order], before),
        gpus=gpus,
        states=states[:, order],
        metrics={name: lay_out(name) for name in sorted(names) if metrics is None or name in metrics},
        host={
            name: np.concatenate([piece.of_host(name) for piece in pieces])[order]
            for name in sorted(host_names)
            if metrics is None or f"host_{name}" in metrics
        },
    )
    if runs:
        hour.runs = _lay_out_runs(pieces, begins, rows, order, len(times))
    return hour


def _lay_out_runs(
    pieces: list[_Piece], begins: list[int], rows: dict[int, int], order: np.ndarray, count: int
) -> list[RunSlice]:
    slices: dict[tuple[int, int], RunSlice] = {}
    for piece, begin in zip(pieces, begins, strict=False):
        for key, stays in piece.runs.items():
            part = slices.get(key)
            if part is None:
                blank = np.zeros(count, dtype=bool), np.full(count, np.nan), np.full(count, np.nan)
                part = slices[key] = RunSlice(key[0], rows[key[1]], *blank)
            for stay in stays:
                span = slice(begin + stay.place, begin + stay.place + len(stay.memory))
                part.present[span] = True
                part.memory[span] = stay.memory
                part.utilization[span] = stay.utilization
    return [
        RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order])
        for _, part in sorted(slices.items())
    ]
