"""A host's hour: its samples as numpy arrays, and as bytes. All roll-ups are made from it.

Time runs along the last axis; NaN is unknown. An hour has all samples with `start <= at < start + 3600`, in order. As
bytes, each metric is a block of its own; the host's metrics share one. Metrics that this release does not know are
kept. Runs are three tables with a row per run and GPU: presence, memory, utilization.
"""

from collections import UserDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpudeck.fleet.columns import as_json
from gpudeck.history.codec import (
    MAX_VALUES,
    Bytes,
    Damaged,
    Flags,
    Floats,
    add_checksum,
    decode_columns,
    decode_matrix,
    encode_matrix,
    find_precision,
    from_steps,
    is_constant,
    pack_names,
    read_matrix,
    short_precision,
    split_wanted,
    strip_checksum,
    to_steps,
    unpack_names,
)
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, HOST_PREFIX, STATE_NUMBERS, Values
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB

SECONDS: Final = 3600
QUARTER: Final = 900
ABSENT, UNKNOWN, FREE, BUSY, IDLE, RESERVED, DRAINED, ALLOCATED = STATE_NUMBERS.values()
HOUR_VERSION: Final = 1
_PRESENT: Final = 1.0
_PERCENT: Final = 1.0
_IS_WHOLE: Final = [
    np.array([metric.precision >= 1 for metric in catalog.values()]) for catalog in (GPU_METRICS, HOST_METRICS)
]


class RunSlice(Struct):
    """One run on one GPU, which is a row of the arrays of the hour. `present` is False while the run was absent.
    `memory` is in bytes. NaN: unknown, or the run was absent."""

    run: int
    gpu: int
    present: Flags
    memory: Floats
    utilization: Floats


class Hour(Struct):
    """`gpus` are keys of the store, one a row of `states` and of each of `metrics`. `covered` is how many seconds each
    sample stands for: those since the sample before it, unless there was a gap."""

    start: int
    times: Floats
    covered: Floats
    gpus: list[int]
    states: Bytes
    metrics: Mapping[str, Floats] = field(default_factory=dict)
    host: dict[str, Floats] = field(default_factory=dict)
    runs: list[RunSlice] = field(default_factory=list)

    @property
    def observed(self) -> Floats:
        """The seconds for which each GPU was observed: it had a known state at a covered moment."""
        return np.where(self.states > UNKNOWN, self.covered, 0.0)

    def metric(self, name: str) -> Floats:
        found = self.metrics.get(name)
        return np.full(self.states.shape, np.nan) if found is None else found


class LazyTables(UserDict[str, Any]):
    """Metrics of an hour, each decoded at its first use. Raises Damaged then."""

    def __init__(self, blobs: dict[str, bytes], shape: tuple[int, int]) -> None:
        super().__init__(blobs)
        self._shape = shape

    def __getitem__(self, name: str) -> Floats:
        if isinstance(self.data[name], bytes):
            self.data[name] = read_matrix(self.data[name], *self._shape)
        table: Floats = self.data[name]
        return table


def cover(times: Floats, interval: "float | Floats", before: float | None) -> Floats:
    """The seconds that each sample represents. `before` is the last sample of the previous hour, if any. A sample after
    a gap of more than three intervals represents one interval: the gap was not observed."""
    if not len(times):
        return np.empty(0)
    first = times[0] - before if before is not None else np.inf
    steps = np.diff(times, prepend=times[0] - first)
    return cover_steps(steps, interval)


def cover_steps(steps: Floats, interval: "float | Floats") -> Floats:
    return np.where((steps > 3 * interval) | (steps <= 0), interval, steps)


def cut_hour(hour: Hour, until: float, since: int | None = None) -> Hour:
    """The samples before `until`. With `since`, those of the hour that begins then, of a longer span."""
    start = hour.start if since is None else since
    mine = slice(*np.searchsorted(hour.times, [start, until]).tolist())
    return Hour(
        start,
        hour.times[mine],
        hour.covered[mine],
        hour.gpus,
        hour.states[:, mine],
        {name: table[:, mine] for name, table in hour.metrics.items()},
        {name: line[mine] for name, line in hour.host.items()},
        [
            RunSlice(one.run, one.gpu, one.present[mine], one.memory[mine], one.utilization[mine])
            for one in hour.runs
            if one.present[mine].any()
        ],
    )


class RunMoment(NamedTuple):
    """A run on one GPU at one moment: as RunSlice."""

    run: int
    gpu: int
    memory: float | None
    utilization: float | None


class HourMoment(Struct):
    """One sample of an hour. `since` is when the state of each GPU began; None: before the hour."""

    at: float
    covered: float
    gpus: Sequence[int]
    states: list[int]
    since: list[float | None]
    values: list[Values]
    own: Values
    runs: list[RunMoment]


class _Runs(Struct, array_like=True, frozen=True):
    """`rows` are the rows of the GPUs. Each table is split into as many parts as necessary."""

    runs: list[int]
    rows: list[int]
    present: list[bytes]
    memory: list[bytes]
    utilization: list[bytes]


_NO_RUNS: Final = _Runs([], [], [], [], [])


class _PackedHour(Struct, array_like=True, frozen=True):
    start: int
    gpus: list[int]
    moments: bytes
    states: bytes
    names: bytes
    metrics: list[bytes]
    host_names: bytes
    host_precisions: list[int | float]
    host: bytes
    runs: _Runs | None


_unpack = msgspec.msgpack.Decoder(_PackedHour).decode


def encode_hour(hour: Hour) -> bytes:
    """Values keep the catalog's precision; memory of runs is stored in MiB."""
    times, covered = np.rint((hour.times - hour.start) * 1000), np.rint(hour.covered * 1000)
    precisions = [short_precision(find_precision(HOST_METRICS, name)) for name in hour.host]
    host = [to_steps(row.reshape(-1), short) for row, short in zip(hour.host.values(), precisions, strict=True)]
    packed = _PackedHour(
        hour.start,
        hour.gpus,
        encode_matrix(np.stack([times, covered - _since_before(times)]), 1.0),
        encode_matrix(hour.states.astype(np.float64), 1.0),
        pack_names(tuple(hour.metrics)),
        [encode_matrix(values, find_precision(GPU_METRICS, name)) for name, values in hour.metrics.items()],
        pack_names(tuple(hour.host)),
        precisions,
        encode_matrix(np.stack(host) if host else np.empty((0, len(hour.times))), 1.0),
        _pack_runs(hour.runs) if hour.runs else None,
    )
    return add_checksum(HOUR_VERSION, msgspec.msgpack.encode(packed))


def decode_hour(
    body: bytes, metrics: Collection[str] | None = None, *, runs: bool = True, is_lazy: bool = False
) -> Hour:
    """Decodes only `metrics` (None: all; host metrics with the prefix `host_`). With `is_lazy`, tables of GPUs are
    decoded at their first use. Raises Damaged."""
    packed, millis, beyond = _unpack_times(body)
    times, covered = packed.start + millis / 1000, (beyond + _since_before(millis)) / 1000
    samples = len(times)
    states = _read_states(packed, samples)
    shape = states.shape
    hour = Hour(packed.start, times, covered, packed.gpus, states)
    _check_names(packed)
    names = unpack_names(packed.names)
    tables = LazyTables({names[at]: packed.metrics[at] for at in split_wanted(metrics, names)}, (shape[0], shape[1]))
    hour.metrics = tables if is_lazy else dict(tables)
    names, precisions = unpack_names(packed.host_names), packed.host_precisions
    places = split_wanted(metrics, names, HOST_PREFIX)
    rows = read_matrix(packed.host, len(names), samples) if places else ()
    hour.host = {names[place]: from_steps(rows[place], precisions[place]) for place in places}
    if runs and packed.runs is not None:
        hour.runs = _unpack_runs(packed.runs, shape)
    return hour


def _unpack_times(body: bytes) -> tuple[_PackedHour, Floats, Floats]:
    """Also returns the milliseconds from the start of the hour to each sample, and by how many each sample covers more
    than the time since the previous one."""
    try:
        packed = _unpack(strip_checksum(HOUR_VERSION, body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of an hour are damaged: {error}") from error
    moments = decode_matrix(packed.moments)
    if len(moments) != 2:
        raise Damaged(f"the moments of an hour are {len(moments)} rows")
    return packed, moments[0], moments[1]


def _read_states(packed: _PackedHour, samples: int) -> Bytes:
    with np.errstate(invalid="ignore"):
        return read_matrix(packed.states, len(packed.gpus), samples).astype(np.uint8)


def decode_moments(
    bodies: Sequence[bytes], at: float, metrics: frozenset[str] | None = None
) -> list[HourMoment | None]:
    """The last sample until `at` of each hour; None for an hour that begins later. Raises Damaged."""
    hours = [_unpack_times(body) for body in bodies]
    places = [int((hour.start + millis / 1000).searchsorted(at, side="right")) - 1 for hour, millis, _ in hours]
    there = [(*hour, place) for hour, place in zip(hours, places, strict=True) if place >= 0]
    found = iter(_read_moments(there, metrics))
    return [None if place < 0 else next(found) for place in places]


def _read_moments(
    hours: Sequence[tuple[_PackedHour, Floats, Floats, int]], metrics: frozenset[str] | None
) -> Iterator[HourMoment]:
    packed, places = [hour for hour, *_ in hours], [place for *_, place in hours]
    for hour in packed:
        _check_names(hour)
    shown = [_find_shown(hour.names, metrics, GPU_NAMES) for hour in packed]
    shown_own = [_find_shown(hour.host_names, metrics, HOST_NAMES, HOST_PREFIX) for hour in packed]
    runs = [hour.runs or _NO_RUNS for hour in packed]
    gpus, run_counts = [len(hour.gpus) for hour in packed], [len(of.runs) for of in runs]
    precisions = [hour.host_precisions if of else [] for hour, (of, _) in zip(packed, shown_own, strict=True)]
    states, table, steps, *of_runs = _decode_kinds(
        places,
        [
            ([[hour.states] for hour in packed], gpus),
            (
                [[hour.metrics[at] for at in of] for hour, (of, _) in zip(packed, shown, strict=True)],
                [count * len(of) for count, (of, _) in zip(gpus, shown, strict=True)],
            ),
            (
                [[hour.host] if of else [] for hour, (of, _) in zip(packed, shown_own, strict=True)],
                [*map(len, precisions)],
            ),
            *(([getattr(of, kind) for of in runs], run_counts) for kind in ("present", "memory", "utilization")),
        ],
    )
    all_states = np.nan_to_num(states).astype(np.int64).tolist()
    own_values = from_steps(steps, np.array([short for some in precisions for short in some], np.float64))
    run_values = zip(*map(or_none, of_runs), strict=True)
    ends, cells, own_cells = list(accumulate(gpus, initial=0)), 0, 0
    all_values, own = np.full((ends[-1], len(GPU_NAMES)), np.nan), np.full((len(hours), len(HOST_NAMES)), np.nan)
    for row, ((of_gpus, columns), (of_host, own_columns)) in enumerate(zip(shown, shown_own, strict=True)):
        cell_end = cells + gpus[row] * len(of_gpus)
        all_values[ends[row] : ends[row + 1], columns] = table[cells:cell_end].reshape(len(of_gpus), gpus[row]).T
        own[row, own_columns] = own_values[[own_cells + place for place in of_host]]
        cells, own_cells = cell_end, own_cells + len(precisions[row])
    shown_values, shown_own_values = make_values(all_values, is_host=False), make_values(own, is_host=True)
    for row, (hour, millis, beyond, place) in enumerate(hours):
        times, mine = hour.start + millis / 1000, slice(ends[row], ends[row + 1])
        since: list[float | None] = [None] * gpus[row]
        if not is_constant(hour.states):
            since = find_since(times, _read_states(hour, len(times)), place)
        covered = float((beyond[place] + (millis[place] - (millis[place - 1] if place else 0.0))) / 1000)
        _check_runs(runs[row], gpus[row])
        pairs = zip(runs[row].runs, runs[row].rows, strict=True)
        there = [RunMoment(*pair, *of) for pair, (is_there, *of) in zip(pairs, run_values, strict=False) if is_there]
        yield HourMoment(
            *(float(times[place]), covered, hour.gpus, all_states[mine], since, shown_values[mine]),
            shown_own_values[row],
            there,
        )


def _decode_kinds(places: Sequence[int], kinds: Sequence[tuple[list[list[bytes]], list[int]]]) -> list[Floats]:
    """Decodes tables of all hours together: a numpy call costs more than the numbers of one host. Each kind has the
    tables of each hour, and the number of their rows."""
    blobs = [blob for tables, _ in kinds for some in tables for blob in some]
    all_places = [place for tables, _ in kinds for some, place in zip(tables, places, strict=True) for _ in some]
    values, rows = decode_columns(blobs, all_places)
    found = iter(rows)
    for tables, counts in kinds:
        if any(sum(islice(found, len(some))) != count for some, count in zip(tables, counts, strict=True)):
            raise Damaged("the tables of an hour do not fit together")
    return np.split(values, np.cumsum([sum(counts) for _, counts in kinds])[:-1])


@lru_cache(maxsize=256)
def _find_shown(
    packed: bytes, metrics: frozenset[str] | None, shown: tuple[str, ...], prefix: str = ""
) -> tuple[list[int], list[int]]:
    """The indexes of the wanted metrics among the names of an hour, and their indexes among the names of this
    release."""
    names = unpack_names(packed)
    known = [place for place in split_wanted(metrics, names, prefix) if names[place] in shown]
    return known, [shown.index(names[place]) for place in known]


def _check_names(packed: _PackedHour) -> None:
    for names, values in ((packed.names, packed.metrics), (packed.host_names, packed.host_precisions)):
        if len(unpack_names(names)) != len(values):
            raise Damaged("the names of metrics do not fit the metrics")


def _check_runs(runs: _Runs, gpus: int) -> None:
    if len(runs.rows) != len(runs.runs) or not all(0 <= row < gpus for row in runs.rows):
        raise Damaged("the runs of an hour do not fit together")


def make_values(table: Floats, *, is_host: bool) -> list[Values]:
    return list(zip(*as_json(table, _IS_WHOLE[is_host]), strict=True))


def or_none(values: Floats) -> list[float | None]:
    known: list[float | None] = values.tolist()
    return [None if value != value else value for value in known] if np.isnan(values).any() else known  # noqa: PLR0124


def find_since(times: Floats, states: NDArray[Any], place: int) -> list[float | None]:
    """When the state of each GPU at `place` began; None: before the hour."""
    since: list[float | None] = [None] * len(states)
    for row in np.flatnonzero((states[:, : place + 1] != states[:, place : place + 1]).any(axis=1)).tolist():
        differs = np.flatnonzero(states[row, :place] != states[row, place])
        since[row] = float(times[differs[-1] + 1])
    return since


def _since_before(times: Floats) -> Floats:
    # np.diff with `prepend` takes seven times as long.
    steps = times.copy()
    steps[1:] -= times[:-1]
    return steps


def _pack_runs(runs: list[RunSlice]) -> _Runs:
    """In parts: a host may have more runs than a table can have rows."""
    each = max(1, MAX_VALUES // max(1, len(runs[0].present)))
    parts = [runs[place : place + each] for place in range(0, len(runs), each)]
    return _Runs(
        [part.run for part in runs],
        [part.gpu for part in runs],
        [encode_matrix(np.stack([run.present for run in part]).astype(np.float64), _PRESENT) for part in parts],
        [encode_matrix(np.stack([run.memory for run in part]), MIB) for part in parts],
        [encode_matrix(np.stack([run.utilization for run in part]), _PERCENT) for part in parts],
    )


def _unpack_runs(packed: _Runs, shape: tuple[int, int]) -> list[RunSlice]:
    gpus, samples = shape
    tables = [
        np.concatenate([decode_matrix(part) for part in parts])
        for parts in (packed.present, packed.memory, packed.utilization)
        if parts
    ]
    _check_runs(packed, gpus)
    if [table.shape for table in tables] != [(len(packed.runs), samples)] * 3:
        raise Damaged("the runs of an hour do not fit together")
    present, memory, utilization = tables
    return list(map(RunSlice, packed.runs, packed.rows, present > 0, memory, utilization))


def merge_hours(old: Hour, new: Hour) -> Hour:
    """Each moment once; if both hours have it, the sample of the old one. Samples between others shorten the time that
    these cover."""
    hours = old, new
    times, order = np.unique(np.concatenate([old.times, new.times]), return_index=True)
    covered = np.concatenate([old.covered, new.covered])[order]
    gpus = list(dict.fromkeys([*old.gpus, *new.gpus]))
    rows = [[hour.gpus.index(gpu) if gpu in hour.gpus else -1 for gpu in gpus] for hour in hours]

    def join(tables: Sequence[NDArray[Any]], blank: float) -> NDArray[Any]:
        """Side by side. The last row, which is blank, is that of a GPU that the hour does not have."""
        padded = [np.pad(table, ((0, 1), (0, 0)), constant_values=blank) for table in tables]
        return np.concatenate([table[of] for table, of in zip(padded, rows, strict=True)], axis=1)[:, order]

    merged = Hour(
        start=old.start,
        times=times,
        covered=np.minimum(np.diff(times, prepend=-np.inf), covered),
        gpus=gpus,
        states=join([hour.states for hour in hours], ABSENT),
    )
    names = sorted({*old.metrics, *new.metrics})
    merged.metrics = {name: join([hour.metric(name) for hour in hours], np.nan) for name in names}
    for name in sorted({*old.host, *new.host}):
        values = [hour.host.get(name, np.full(len(hour.times), np.nan)) for hour in hours]
        merged.host[name] = np.concatenate(values)[order]
    merged.runs = _merge_runs(hours, gpus, order)
    return merged


def _merge_runs(hours: Sequence[Hour], gpus: list[int], order: NDArray[np.int64]) -> list[RunSlice]:
    parts = [{(part.run, gpus.index(hour.gpus[part.gpu])): part for part in hour.runs} for hour in hours]
    merged: list[RunSlice] = []
    for key in sorted({key for some in parts for key in some}):
        both = [some.get(key) or blank_run(*key, len(hour.times)) for some, hour in zip(parts, hours, strict=True)]
        lines = (
            np.concatenate([getattr(part, name) for part in both])[order]
            for name in ("present", "memory", "utilization")
        )
        merged.append(RunSlice(*key, *lines))
    return merged


def blank_run(run: int, gpu: int, samples: int) -> RunSlice:
    """A run that was absent all the time."""
    return RunSlice(run, gpu, np.zeros(samples, np.bool_), np.full(samples, np.nan), np.full(samples, np.nan))
