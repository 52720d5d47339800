"""The hours that are being written, in memory.

New batches are kept unchanged (`LooseBatches`) until there are many. Then they are packed into pieces of some hosts
each (`Piece`): one compressed matrix per metric, with the differences between samples. All hosts are packed together,
because a numpy call costs more than the numbers of one host.
"""

import math
import sqlite3
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

import numpy as np
import zstandard
from msgspec import Struct, field
from numpy.typing import NDArray

from gpudeck.history.base import KnownHost, UsageAmounts
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.journal import (
    GPU_STEPS,
    HOST_STEPS,
    RUN_STEPS,
    GpuRuns,
    SampleBatch,
    Whole,
    pick,
    read_journal,
    scale,
    unpack_steps,
)
from gpudeck.history.embedded.tables import key_of
from gpudeck.history.hour import SECONDS, Hour, RunSlice, blank_run, cover
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, HOST_PREFIX
from gpudeck.history.totals import StepTotals

HOST_BITS: Final = 4
"""Hosts whose numbers differ in these bits only share pieces."""
_MAX_BATCHES: Final = 200
_MAX_LOOSE: Final = 4_000_000
"""GPU samples in loose batches: about 25 bytes each."""
MAX_CACHED: Final = 8
"""Answers about one open hour that are kept."""
_NARROW: Final = (np.dtype("<i1"), np.dtype("<i2"), np.dtype("<i4"), np.dtype("<i8"))
MOMENT, OF_HOST, OF_GPU, STATE, OF_RUN = range(5)
"""The kinds of matrices: times and intervals, metrics of the host, of GPUs, states, runs."""
TIMES, INTERVALS = range(2)
MatrixKey = tuple[int, int]
"""A matrix of a piece: its kind, and which of them it is: a metric's place in the layout."""
_STEPS: Final[dict[MatrixKey, float]] = {
    **{(MOMENT, place): 0.001 for place in (TIMES, INTERVALS)},
    **{(OF_HOST, place): step for place, step in enumerate(HOST_STEPS.tolist())},
    **{(OF_GPU, place): step for place, step in enumerate(GPU_STEPS.tolist())},
    **{(OF_RUN, place): step for place, step in enumerate(RUN_STEPS.tolist())},
    (STATE, 0): 1.0,
}
"""The numbers in a matrix are multiples of its step."""
_Matrix = tuple[int, np.dtype[Any], np.dtype[Any], bytes] | float
"""Rows, the type of its numbers and of their differences, and the bytes; or one number for all."""
MatrixCache = dict[int, dict[MatrixKey, "Floats | float"]]
"""What was decoded, by the id of its piece."""
Indexes = NDArray[np.int64]
HourKey = tuple[int, int]
"""The host and the start."""
_local = threading.local()

T = TypeVar("T")


class Piece(Struct):
    """Samples of some hosts, with one row or more each. All matrices are `width` samples wide; the last sample of a
    shorter row is repeated."""

    rows: int
    width: int
    matrices: dict[MatrixKey, _Matrix]

    def read(self, key: MatrixKey, index: Any = ...) -> "Floats | float":
        """The values at `index` (row, sample), or one number if all are equal."""
        packed = self.matrices.get(key, np.nan)  # of no rows there is none
        if isinstance(packed, float):
            return scale(packed, _STEPS[key])
        return unpack_steps(_decode(packed, self.width)[index], _STEPS[key])


def read_batch(batch: SampleBatch, key: MatrixKey, rows: slice | Indexes) -> "Floats | float":
    kind, place = key
    if kind == MOMENT:
        return (batch.times if place == TIMES else batch.intervals)[rows]
    if kind == STATE:
        return batch.states[rows].astype(np.float64)
    table = batch.own if kind == OF_HOST else batch.table if kind == OF_GPU else batch.runs
    return table.column(place, rows, _STEPS[key])


class HourPart(Struct, frozen=True):
    """Some samples of one host with the same GPUs and runs: `count` in a piece, or one in a batch. The rows of the host
    there begin at `row`, those of its GPUs at `gpu`, of its runs at `run`."""

    source: Piece | SampleBatch
    gpu_runs: GpuRuns
    count: int
    row: int
    gpu: int
    run: int

    def rows(self, kind: int) -> slice:
        if kind <= OF_HOST:
            return slice(self.row, self.row + 1)
        if kind == OF_RUN:
            return slice(self.run, self.run + len(self.gpu_runs.pairs))
        return slice(self.gpu, self.gpu + len(self.gpu_runs.gpus))

    def read(self, key: MatrixKey, cache: MatrixCache) -> "Floats | float":
        """A row per GPU or run and a column per sample, or one number if all are equal. `cache` keeps the matrices of
        pieces."""
        if isinstance(self.source, SampleBatch):
            values = read_batch(self.source, key, self.rows(key[0]))
            return values if isinstance(values, float) else values[:, None]
        known = cache.setdefault(id(self.source), {})
        matrix = known.get(key)
        if matrix is None:
            matrix = known[key] = self.source.read(key)
        return matrix if isinstance(matrix, float) else matrix[self.rows(key[0]), : self.count]


def _part_of_batch(batch: SampleBatch, place: int) -> HourPart:
    starts = int(batch.gpu_starts[place]), int(batch.run_starts[place])
    return HourPart(batch, batch.gpu_runs[place], 1, place, *starts)


class _Assembly:
    """Joins parts to one hour: in order of time, each moment once, with the GPUs of all parts."""

    def __init__(self, parts: Sequence[HourPart], cache: MatrixCache | None) -> None:
        self._parts = parts
        self._cache: MatrixCache = {} if cache is None else cache
        ends = np.cumsum([0, *(part.count for part in parts)]).tolist()
        self._count: int = ends[-1]
        self._spans = [slice(*of) for of in pairwise(ends)]
        self._times = self._line((MOMENT, TIMES))
        is_ordered = bool((self._times[1:] > self._times[:-1]).all())
        self._order: Indexes | slice = slice(None) if is_ordered else np.unique(self._times, return_index=True)[1]
        self._gpus = list(dict.fromkeys(gpu for part in parts for gpu in part.gpu_runs.gpus))
        self._rows = {gpu: row for row, gpu in enumerate(self._gpus)}
        every = tuple(self._gpus)
        self._is_even = bool(parts) and all(part.gpu_runs.gpus == every for part in parts)
        self._where = [
            slice(None) if part.gpu_runs.gpus == every else [self._rows[gpu] for gpu in part.gpu_runs.gpus]
            for part in parts
        ]

    def hour(self, start: int, before: float | None, metrics: Collection[str] | None, *, runs: bool) -> Hour:
        times, intervals = self._times[self._order], self._line((MOMENT, INTERVALS))[self._order]
        return Hour(
            start=start,
            times=times,
            covered=cover(times, intervals, before),
            gpus=self._gpus,
            states=self._table((STATE, 0), 0.0).astype(np.uint8),
            metrics={name: self._table(key, np.nan) for name, key in metrics_of(OF_GPU, metrics)} if self._gpus else {},
            host={name: self._line(key)[self._order] for name, key in metrics_of(OF_HOST, metrics)},
            runs=self._runs() if runs else [],
        )

    def _line(self, key: MatrixKey) -> Floats:
        line = np.empty(self._count)
        for span, values in zip(self._spans, self._read(key), strict=True):
            line[span] = values
        return line

    def _table(self, key: MatrixKey, blank: float) -> Floats:
        found = self._read(key)
        shape = len(self._gpus), self._count
        if self._is_even and _are_alike(found):
            return np.full(shape, found[0])[:, self._order]
        table = np.full(shape, blank)
        for span, where, values in zip(self._spans, self._where, found, strict=True):
            table[where, span] = values
        return table[:, self._order]

    def _read(self, key: MatrixKey) -> "list[Floats | float]":
        return [part.read(key, self._cache) for part in self._parts]

    def _runs(self) -> list[RunSlice]:
        slices: dict[tuple[int, int], RunSlice] = {}
        for part, span in zip(self._parts, self._spans, strict=True):
            pairs = part.gpu_runs.pairs
            if not pairs:
                continue
            memory, use = part.read((OF_RUN, 0), self._cache), part.read((OF_RUN, 1), self._cache)
            for number, key in enumerate(pairs):
                mine = slices.get(key)
                if mine is None:
                    mine = slices[key] = blank_run(key[0], self._rows[key[1]], self._count)
                mine.present[span] = True
                mine.memory[span] = memory if isinstance(memory, float) else memory[number]
                mine.utilization[span] = use if isinstance(use, float) else use[number]
        order = self._order
        return [
            RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order])
            for _, part in sorted(slices.items())
        ]


def _are_alike(found: "list[Floats | float]") -> bool:
    first = found[0]
    if not isinstance(first, float):
        return False
    is_unknown = math.isnan(first)
    return all(isinstance(one, float) and (one == first or (is_unknown and math.isnan(one))) for one in found)


def metrics_of(kind: int, wanted: Collection[str] | None) -> Iterator[tuple[str, MatrixKey]]:
    """The wanted metrics of GPUs (OF_GPU) or hosts (OF_HOST)."""
    names, prefix = (GPU_NAMES, "") if kind == OF_GPU else (HOST_NAMES, HOST_PREFIX)
    for place, name in enumerate(names):
        if wanted is None or prefix + name in wanted:
            yield name, (kind, place)


class LooseBatches:
    """The newest batches. One thread appends and packs; others read. `oldest` is the time of the oldest sample."""

    def __init__(self) -> None:
        self.batches: list[SampleBatch] = []
        self.oldest = math.inf
        self._rows = 0

    def append(self, batch: SampleBatch) -> None:
        self.batches.append(batch)
        self.oldest = min(self.oldest, float(batch.times.min(initial=math.inf)))
        self._rows += max(batch.table.rows, len(batch.hosts))

    @property
    def is_full(self) -> bool:
        return len(self.batches) >= _MAX_BATCHES or self._rows >= _MAX_LOOSE

    def pack(self) -> Iterator[tuple[int, int, HourPart]]:
        """Host, hour and part for each of the new pieces. The batches stay until `clear`."""
        if self.batches:
            yield from _PiecePacker(self.batches).run()

    def clear(self) -> None:
        self.batches, self.oldest, self._rows = [], math.inf, 0

    def newest_until(self, at: float) -> dict[int, tuple[float, HourPart]]:
        """The last sample of each host until then, and its time."""
        found: dict[int, tuple[float, SampleBatch, int]] = {}
        for batch in list(self.batches):
            for place in np.flatnonzero(batch.times <= at).tolist():
                host, time = int(batch.hosts[place]), float(batch.times[place])
                if host not in found or found[host][0] < time:
                    found[host] = time, batch, place
        return {host: (time, _part_of_batch(batch, place)) for host, (time, batch, place) in found.items()}

    def samples(self, host: int, start: int) -> Iterator[HourPart]:
        for batch in self.batches:
            for place in np.flatnonzero(batch.hosts == host).tolist():
                if start <= batch.times[place] < start + SECONDS:
                    yield _part_of_batch(batch, place)


class _Segment(Struct):
    """A piece that is being packed, and the indexes of its samples, GPUs and runs in all batches together."""

    piece: Piece
    samples: Indexes
    gpus: Indexes
    runs: Indexes


class _PiecePacker:
    def __init__(self, batches: list[SampleBatch]) -> None:
        self._batches = batches
        self._gpu_runs = [one for batch in batches for one in batch.gpu_runs]
        self._compress = zstandard.ZstdCompressor(level=1).compress

    def run(self) -> list[tuple[int, int, HourPart]]:
        segments, slices = self._divide()
        batches = self._batches
        for place, name in ((TIMES, "times"), (INTERVALS, "intervals")):
            moments = np.concatenate([getattr(batch, name) for batch in batches])
            self._fill(segments, (MOMENT, place), "samples", np.rint(moments * 1000).astype(np.int64))
        states = np.concatenate([batch.states for batch in batches]).astype(np.int16)
        self._fill(segments, (STATE, 0), "gpus", states)
        for kind, table, rows in ((OF_HOST, "own", "samples"), (OF_GPU, "table", "gpus"), (OF_RUN, "runs", "runs")):
            packed = [getattr(batch, table) for batch in batches]
            for place in range(len(packed[0].columns)):
                column = _join([(one.columns[place], one.rows) for one in packed if one.rows])
                self._fill(segments, (kind, place), rows, column)
        return slices

    def _divide(self) -> tuple[list[_Segment], list[tuple[int, int, HourPart]]]:
        """Samples of a host with the same GPUs and runs make a row; neighbours share a piece."""
        batches = self._batches
        hosts = np.concatenate([batch.hosts for batch in batches])
        times = np.concatenate([batch.times for batch in batches])
        kinds = np.array([id(one) for one in self._gpu_runs], np.int64)
        starts = (times // SECONDS).astype(np.int64)
        order = np.lexsort((times, kinds, hosts, starts))
        sorted_keys = np.stack([starts[order], hosts[order] >> HOST_BITS, hosts[order], kinds[order]])
        is_other = np.any(sorted_keys[:, 1:] != sorted_keys[:, :-1], axis=0)
        begins = np.flatnonzero(np.concatenate([[True], is_other]))
        counts = np.diff(begins, append=len(order))
        groups = sorted_keys[:2, begins]
        is_next = np.any(groups[:, 1:] != groups[:, :-1], axis=0)
        cuts = [0, *(np.flatnonzero(is_next) + 1).tolist(), len(begins)]
        gpu_starts, gpu_counts = self._offsets("gpu_starts")
        run_starts, run_counts = self._offsets("run_starts")
        segments: list[_Segment] = []
        slices: list[tuple[int, int, HourPart]] = []
        for first, end in pairwise(cuts):
            mine = counts[first:end]
            width = int(mine.max())
            samples = order[begins[first:end, None] + np.minimum(np.arange(width), mine[:, None] - 1)]
            gpus, gpu_rows = _spread(samples, gpu_starts, gpu_counts)
            runs, run_rows = _spread(samples, run_starts, run_counts)
            piece = Piece(len(mine), width, {})
            segments.append(_Segment(piece, samples, gpus, runs))
            for row, (sample, count) in enumerate(zip(samples[:, 0].tolist(), mine.tolist(), strict=True)):
                found = HourPart(piece, self._gpu_runs[sample], count, row, gpu_rows[row], run_rows[row])
                slices.append((int(hosts[sample]), int(starts[sample]) * SECONDS, found))
        return segments, slices

    def _offsets(self, name: str) -> tuple[Indexes, Indexes]:
        all_starts = [getattr(batch, name) for batch in self._batches]
        ends = np.cumsum([0, *(starts[-1] for starts in all_starts)])
        begins = [starts[:-1] + end for starts, end in zip(all_starts, ends, strict=False)]
        return np.concatenate(begins), np.concatenate([np.diff(starts) for starts in all_starts])

    def _fill(self, segments: list[_Segment], key: MatrixKey, rows: str, column: Whole | float) -> None:
        for segment in segments:
            index = getattr(segment, rows)
            if isinstance(column, float):
                segment.piece.matrices[key] = column
            elif len(index):
                segment.piece.matrices[key] = self._encode(column[index])

    def _encode(self, matrix: Whole) -> _Matrix:
        first = matrix[0, 0]
        if (matrix == first).all():
            return np.nan if first == np.iinfo(matrix.dtype).min else float(first)
        steps = matrix[:, 1:] - matrix[:, :-1]  # what is too large wraps, and wraps back
        low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
        narrow = next(kind for kind in _NARROW if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
        # All first bytes, then all second ones: those are nearly always the same.
        planes = steps.astype(narrow).view(np.uint8).reshape(-1, narrow.itemsize).T
        return len(matrix), matrix.dtype, narrow, self._compress(matrix[:, 0].tobytes() + planes.tobytes())


def _decode(packed: tuple[int, np.dtype[Any], np.dtype[Any], bytes], width: int) -> Whole:
    rows, kind, narrow, body = packed
    # One a thread: to make one takes longer than to use it.
    if not hasattr(_local, "decompress"):
        _local.decompress = zstandard.ZstdDecompressor().decompress
    plain = _local.decompress(body)
    matrix = np.empty((rows, width), kind)
    matrix[:, 0] = np.frombuffer(plain, kind, rows)
    planes = np.frombuffer(plain, np.uint8, offset=rows * kind.itemsize).reshape(narrow.itemsize, -1)
    matrix[:, 1:] = np.ascontiguousarray(planes.T).view(narrow).reshape(rows, width - 1)
    return np.cumsum(matrix, axis=1, dtype=kind, out=matrix)


def _spread(samples: Indexes, starts: Indexes, counts: Indexes) -> tuple[Indexes, list[int]]:
    """The indexes of the GPUs or runs of samples (rows, width), one row each, and the first row of each sample."""
    mine = counts[samples[:, 0]]
    first = np.cumsum(mine) - mine
    owner = np.repeat(np.arange(len(mine)), mine)
    within = np.arange(len(owner)) - first[owner]
    return starts[samples[owner]] + within[:, None], first.tolist()


def _join(columns: list[tuple[Whole | float, int]]) -> Whole | float:
    alone = {column if column == column else None for column, _ in columns if isinstance(column, float)}  # noqa: PLR0124
    arrays = [column for column, _ in columns if not isinstance(column, float)]
    if not arrays and len(alone) <= 1:
        return next((np.nan if one is None else one for one in alone), np.nan)
    most = max((abs(one) for one in alone if one is not None), default=0.0)
    kinds = {column.dtype for column in arrays} | {next(kind for kind in _NARROW[1:] if most < np.iinfo(kind).max)}
    kind = max(kinds, key=lambda one: one.itemsize)
    unknown = np.iinfo(kind).min
    joined = np.empty(sum(rows for _, rows in columns), kind)
    end = 0
    for column, rows in columns:
        begin, end = end, end + rows
        if isinstance(column, float):
            joined[begin:end] = unknown if column != column else column  # noqa: PLR0124 - NaN
        else:
            joined[begin:end] = column
            if column.dtype != kind:
                joined[begin:end][column == np.iinfo(column.dtype).min] = unknown
    return joined


class HourSummary(Struct, frozen=True):
    """Totals (of the metrics that overviews need) and usage by user and model of an open hour, until the end of a
    quarter hour."""

    hour: StepTotals
    quarters: list[StepTotals]
    uses: dict[tuple[str | None, str], UsageAmounts]


class OpenHour(Struct, eq=False):
    """The current hour of one host. `before` is the time of its last sample before this hour, `first_entry` the oldest
    journal entry with samples of it, `samples` their number. `is_late`: the hour has been sealed before, and these
    samples are added to it. `summaries` are by the end of the summarized time."""

    host: int
    start: int
    before: float | None
    first_entry: int
    loose: LooseBatches
    is_late: bool = False
    last_entry: int = 0
    touched_at: float = 0.0
    newest: float = 0.0
    samples: int = 0
    parts: list[HourPart] = field(default_factory=list)
    summaries: dict[int, HourSummary] = field(default_factory=dict)
    _cached: dict[Hashable, tuple[int, Any]] = field(default_factory=dict)

    def keep_summary(self, until: int, summary: HourSummary) -> None:
        """Also keeps the previous summary, which views may still use."""
        self.summaries = {**dict(sorted(self.summaries.items())[-1:]), until: summary}

    def note(self, at: float, entry: int, now: float) -> None:
        self.newest = max(self.newest, at)
        self.last_entry = entry
        self.touched_at = now
        self.samples += 1

    def cached(self, what: Hashable, work: Callable[[], T]) -> T:
        """The result of `work` on the hour so far, kept until the next sample. `what` is its key. Thread-safe."""
        rows, kept = self.samples, self._cached.get(what)
        if kept is not None and kept[0] == rows:
            return cast("T", kept[1])
        if len(self._cached) >= MAX_CACHED:
            self._cached = {}
        made = work()
        self._cached[what] = rows, made
        return made

    def snapshot(
        self, metrics: Collection[str] | None = None, *, runs: bool = True, cache: MatrixCache | None = None
    ) -> Hour:
        """The hour so far. `metrics` are the wanted names (host metrics with the prefix `host_`); None: all. `cache` is
        for hours of neighbours. Thread-safe."""
        # The loose ones first: what is packed in between is then there twice, which the order of times takes out again.
        loose = list(self.loose.samples(self.host, self.start))
        return _Assembly([*self.parts, *loose], cache).hour(self.start, self.before, metrics, runs=runs)


class OpenHours(dict[HourKey, OpenHour]):
    """All open hours by host and start. One thread appends and packs; others read. `connection` is that of the file,
    which lists sealed hours."""

    def __init__(self, connection: sqlite3.Connection, hosts: Iterable[KnownHost]) -> None:
        super().__init__()
        self.loose = LooseBatches()
        self.sealed_until = {host.key: host.last for host in hosts}
        """When each host was last sampled in a sealed hour."""
        self._connection = connection

    def append(self, batch: SampleBatch, entry: int, now: float) -> int:
        """Returns the number of samples of hours that were sealed before."""
        self.loose.append(batch)
        late = 0
        for host, at in zip(batch.hosts.tolist(), batch.times.tolist(), strict=True):
            key = host, int(at // SECONDS) * SECONDS
            open_hour = self.get(key) or self._begin(*key, entry)
            open_hour.note(at, entry, now)
            late += open_hour.is_late
        if self.loose.is_full:
            self.pack()
        return late

    def recover(self, hosts: Mapping[int, KnownHost], note: Callable[[str, str], None], now: float) -> None:
        """Append the samples of the journal. `note` is called with each part that is left out, and the reason."""
        for batch, entry in read_journal(self._connection):
            known = np.isin(batch.hosts, list(hosts))
            for host in set(batch.hosts[~known].tolist()):
                note(f"the journal of host {host}", "its row in hosts is missing")
            self.append(batch if known.all() else pick(batch, np.flatnonzero(known)), entry, now)
        for (key, _), open_hour in self.items():
            hosts[key].last = max(hosts[key].last, open_hour.newest)

    def pack(self) -> None:
        # Readers find samples either way, perhaps both ways, never neither.
        for host, start, part in self.loose.pack():
            self[host, start].parts.append(part)
        self.loose.clear()

    def _begin(self, host: int, start: int, entry: int) -> OpenHour:
        found = self._connection.execute("SELECT 1 FROM sealed WHERE key = ?", (key_of(host, start),)).fetchone()
        previous, last = self.get((host, start - SECONDS)), self.sealed_until.get(host, math.inf)
        before = previous.newest if previous is not None else last if last < start else None
        self[host, start] = OpenHour(host, start, before, entry, self.loose, is_late=found is not None)
        return self[host, start]


def group_neighbours(keys: Iterable[HourKey]) -> list[list[HourKey]]:
    """Hours that share pieces, in order of time."""
    ordered = sorted(keys, key=itemgetter(1, 0))
    return [list(some) for _, some in groupby(ordered, lambda key: (key[1], key[0] >> HOST_BITS))]
