"""Samples in columns, and the journal: each batch of them as one row of the file, until its hours are sealed.

Values are whole steps of their metric's precision, in the smallest type that has room; what all GPUs share is one
number. An entry is the version, the CRC-32 of what follows, and msgpack in zstd.
"""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import zstandard
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.fleet.columns import rows_of
from gpudeck.history.codec import Bytes, Damaged, Floats, add_checksum, strip_checksum
from gpudeck.history.embedded.tables import key_of
from gpudeck.history.hour import SECONDS
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB

log = logging.getLogger(__name__)

Whole = NDArray[Any]
_VERSION: Final = 1
_TYPES: Final = (np.dtype("<i2"), np.dtype("<i4"), np.dtype("<i8"))
_LARGEST: Final = 2.0**62
_MAX_BYTES: Final = 1 << 28
"""In an entry: much more than the samples that may wait to be written."""
_LAST: Final = 7e9
RUN_STEPS: Final = np.array([MIB, 1.0])
_RUN_NAMES: Final = ("memory", "utilization")
_Runs = tuple[tuple[int, ...], tuple[tuple[int, ...] | None, ...]]
_Column = float | tuple[int, bytes] | None
"""One number of steps for all rows, None where that is unknown; or the bytes of each type's number."""


class MetricLayout(NamedTuple):
    """The names of the values of a sample in the version that wrote it. Values are read in the order of this
    version."""

    gpu: tuple[str, ...] = GPU_NAMES
    host: tuple[str, ...] = HOST_NAMES


CURRENT: Final = MetricLayout()
GPU_STEPS: Final = np.array([metric.precision for metric in GPU_METRICS.values()])
HOST_STEPS: Final = np.array([metric.precision for metric in HOST_METRICS.values()])
"""The smallest step worth keeping of each metric."""


class GpuRuns(NamedTuple):
    """The GPUs of a host and the runs on each. None: the runs are unknown."""

    gpus: tuple[int, ...]
    runs: tuple[tuple[int, ...] | None, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(run, gpu) for gpu, runs in zip(self.gpus, self.runs, strict=True) for run in runs or ()]


class StepTable(Struct):
    """Columns of values as multiples of a step. A column is an array, or one number for all rows; NaN: all are
    unknown."""

    rows: int
    columns: list[Whole | float]

    @classmethod
    def pack(cls, table: Floats, steps: Floats) -> "StepTable":
        if not len(table):
            return cls(0, [np.nan] * table.shape[1])
        bits = np.ascontiguousarray(table).view(np.int64)  # an unknown is like another then
        is_same = (bits == bits[0]).all(axis=0)
        places = np.flatnonzero(~is_same)
        with np.errstate(over="ignore"):
            alone = np.rint(table[0] / steps)
            columns: list[Whole | float] = np.where(np.abs(alone) < _LARGEST, alone, np.nan).tolist()
            counts = np.rint(table.T[places] / steps[places, None])
        is_known = np.abs(counts) < _LARGEST
        if not is_known.all():
            counts[~is_known] = np.nan
        lows, highs = np.fmin.reduce(counts, axis=1), np.fmax.reduce(counts, axis=1)
        for place, row, known, low, high in zip(places.tolist(), counts, is_known, lows, highs, strict=True):
            columns[place] = _narrow(row, known, max(-low, high))
        return cls(len(table), columns)

    def column(self, place: int, rows: slice | NDArray[np.int64], step: float) -> "Floats | float":
        found = self.columns[place]
        return scale(found, step) if isinstance(found, float) else unpack_steps(found[rows], step)


def _narrow(counts: Floats, known: NDArray[np.bool_], most: float) -> "Whole | float":
    if most != most:  # noqa: PLR0124 - NaN: nothing is known
        return np.nan
    kind = next(kind for kind in _TYPES if most < np.iinfo(kind).max)
    if known.all():
        return counts.astype(kind)
    whole = np.where(known, counts, 0.0).astype(kind)
    whole[~known] = np.iinfo(kind).min
    return whole


def unpack_steps(whole: Whole, step: float) -> Floats:
    values = whole.astype(np.float64)
    values[whole == np.iinfo(whole.dtype).min] = np.nan
    return scale(values, step)


Number = TypeVar("Number", float, Floats)


def scale(steps: Number, step: float) -> Number:
    return steps if step == 1 else steps * step if step > 1 else steps / round(1 / step)


class SampleBatch(Struct):
    """Samples of hosts. `states` and `table` have a row for each GPU, `runs` one for each run on a GPU: its memory and
    utilization. Those of sample `n` begin at `gpu_starts[n]` and `run_starts[n]`."""

    hosts: NDArray[np.int64]
    times: Floats
    intervals: Floats
    gpu_runs: list[GpuRuns]
    states: Bytes
    own: StepTable
    table: StepTable
    runs: StepTable
    gpu_starts: NDArray[np.int64]
    run_starts: NDArray[np.int64]


def make_batch(
    hosts: Sequence[int],
    moments: Floats,
    gpu_runs: list[GpuRuns],
    states: bytes,
    tables: tuple[Floats, Floats, Floats],
) -> SampleBatch:
    """`moments` is time and interval of each sample, kept in milliseconds; `tables` are of hosts, GPUs and runs."""
    own, table, runs = tables
    moments = np.rint(moments * 1000) / 1000
    return SampleBatch(
        np.array(hosts, np.int64),
        moments[:, 0],
        moments[:, 1],
        gpu_runs,
        np.frombuffer(states, np.uint8),
        StepTable.pack(own, HOST_STEPS),
        StepTable.pack(table, GPU_STEPS),
        StepTable.pack(runs, RUN_STEPS),
        *_find_starts(gpu_runs),
    )


def _find_starts(gpu_runs: list[GpuRuns]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    gpus = [len(one.gpus) for one in gpu_runs]
    runs = [sum([len(some) for some in one.runs if some]) for one in gpu_runs]
    return np.cumsum([0, *gpus]), np.cumsum([0, *runs])


class _PackedEntry(Struct, array_like=True, frozen=True):
    hosts: bytes
    times: bytes
    intervals: bytes
    gpu_runs: Sequence[_Runs]
    states: bytes
    own: list[_Column]
    table: list[_Column]
    runs: list[_Column]


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_PackedEntry).decode


def encode_entry(batch: SampleBatch) -> bytes:
    packed = _PackedEntry(
        batch.hosts.tobytes(),
        batch.times.tobytes(),
        batch.intervals.tobytes(),
        batch.gpu_runs,
        batch.states.tobytes(),
        *([_pack_column(column) for column in table.columns] for table in (batch.own, batch.table, batch.runs)),
    )
    return add_checksum(_VERSION, zstandard.ZstdCompressor(level=1).compress(_pack(packed)))


def _pack_column(column: Whole | float) -> _Column:
    if isinstance(column, float):
        return None if column != column else column  # noqa: PLR0124 - NaN
    return column.itemsize, column.tobytes()


def decode_entry(body: bytes, layout: MetricLayout = CURRENT) -> SampleBatch:
    """Raises Damaged."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(
            strip_checksum(_VERSION, body), max_output_size=_MAX_BYTES, allow_extra_data=False
        )
        return _decode(_unpack(plain), layout)
    except (msgspec.DecodeError, zstandard.ZstdError, RecursionError, ValueError) as error:
        raise Damaged(f"an entry of the journal is damaged: {error}") from error


def _decode(packed: _PackedEntry, layout: MetricLayout) -> SampleBatch:
    gpu_runs = [_same_runs(*one) for one in packed.gpu_runs]
    gpu_starts, run_starts = _find_starts(gpu_runs)
    samples, gpus, runs = len(gpu_runs), int(gpu_starts[-1]), int(run_starts[-1])
    states = np.frombuffer(packed.states, np.uint8)
    if len(states) != gpus or any(len(one.gpus) != len(one.runs) for one in gpu_runs):
        raise Damaged("states, GPUs and runs do not fit together")
    return SampleBatch(
        _read(packed.hosts, "<i8", samples),
        _read(packed.times, "<f8", samples),
        _read(packed.intervals, "<f8", samples),
        gpu_runs,
        states,
        _read_table(packed.own, samples, layout.host, HOST_NAMES),
        _read_table(packed.table, gpus, layout.gpu, GPU_NAMES),
        _read_table(packed.runs, runs, _RUN_NAMES, _RUN_NAMES),
        gpu_starts,
        run_starts,
    )


@cache
def _same_runs(gpus: tuple[int, ...], runs: tuple[tuple[int, ...] | None, ...]) -> GpuRuns:
    return GpuRuns(gpus, runs)


def _read_table(columns: list[_Column], rows: int, names: tuple[str, ...], wanted: tuple[str, ...]) -> StepTable:
    """The columns in the order of `wanted`, by their names. Missing columns are unknown."""
    if len(columns) != len(names):
        raise Damaged(f"{len(columns)} columns are not {len(names)}")
    found = {name: _read_column(column, rows) for name, column in zip(names, columns, strict=True)}
    return StepTable(rows, [found.get(name, np.nan) for name in wanted])


def _read_column(column: _Column, rows: int) -> Whole | float:
    if not isinstance(column, tuple):
        return np.nan if column is None else float(column)
    kind = next((kind for kind in _TYPES if kind.itemsize == column[0]), None)
    if kind is None:
        raise Damaged(f"numbers of {column[0]} bytes")
    return _read(column[1], kind, rows)


def _read(numbers: bytes, kind: "str | np.dtype[Any]", count: int) -> NDArray[Any]:
    found = np.frombuffer(numbers, kind)
    if len(found) != count:
        raise Damaged(f"{len(numbers)} bytes are not {count} numbers")
    return found


def read_journal(connection: sqlite3.Connection) -> Iterator[tuple[SampleBatch, int]]:
    """Batch and number of each entry, in order, without the samples of sealed hours. A damaged entry is left out; the
    log has one line about all of them, at the end."""
    sealed: dict[int, int] = {}
    left_out: list[tuple[int, Damaged]] = []
    for entry, layout, body in connection.execute("SELECT id, layout, body FROM journal ORDER BY id").fetchall():
        try:
            batch = _decode_row(connection, layout, body)
        except Damaged as error:
            left_out.append((entry, error))
            continue
        keys = [
            key_of(*of) for of in zip(batch.hosts.tolist(), (batch.times // SECONDS * SECONDS).tolist(), strict=True)
        ]
        for key in keys:
            if key not in sealed:
                # The last entry that is in that sealed hour.
                row = connection.execute("SELECT upto FROM sealed WHERE key = ?", (key,)).fetchone()
                sealed[key] = row[0] if row is not None and isinstance(row[0], int) else -1
        is_open = np.array([entry > sealed[key] for key in keys], np.bool_)
        yield batch if is_open.all() else pick(batch, np.flatnonzero(is_open)), entry
    _same_runs.cache_clear()
    if left_out:
        more = f" and {len(left_out) - 1} more up to {left_out[-1][0]}" if len(left_out) > 1 else ""
        log.warning("left out of the history's journal: entry %d%s: %s", left_out[0][0], more, left_out[0][1])


def pick(batch: SampleBatch, samples: NDArray[np.int64]) -> SampleBatch:
    gpu_runs = [batch.gpu_runs[place] for place in samples.tolist()]
    gpus, runs = (
        rows_of([slice(starts[place], starts[place + 1]) for place in samples.tolist()])
        for starts in (batch.gpu_starts, batch.run_starts)
    )
    own, table, run_values = (
        StepTable(len(rows), [one if isinstance(one, float) else one[rows] for one in table.columns])
        for table, rows in ((batch.own, samples), (batch.table, gpus), (batch.runs, runs))
    )
    moments = batch.hosts[samples], batch.times[samples], batch.intervals[samples]
    starts = _find_starts(gpu_runs)
    return SampleBatch(*moments, gpu_runs, batch.states[gpus], own, table, run_values, *starts)


def find_damaged_entries(connection: sqlite3.Connection) -> Iterator[tuple[int, Damaged]]:
    for entry, layout, body in connection.execute("SELECT id, layout, body FROM journal ORDER BY id"):
        try:
            _decode_row(connection, layout, body)
        except Damaged as error:
            yield entry, error


def _decode_row(connection: sqlite3.Connection, layout: int, body: bytes) -> SampleBatch:
    batch = decode_entry(body, _find_layout(connection, layout))
    if not ((batch.times >= 0) & (batch.times < _LAST)).all():
        raise Damaged("an entry of the journal is damaged: it is of no time")
    return batch


def _find_layout(connection: sqlite3.Connection, key: int) -> MetricLayout:
    """Raises Damaged if the layout is missing or damaged."""
    row = connection.execute("SELECT names FROM layouts WHERE id = ?", (key,)).fetchone()
    if row is None:
        raise Damaged(f"layout {key} is missing")
    try:
        names = msgspec.json.decode(row[0], type=list[str])
        middle = names.index("")
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Damaged(f"layout {key} cannot be read: {error}") from error
    return MetricLayout(tuple(names[:middle]), tuple(names[middle + 1 :]))
