"""A host's hour: its samples as numpy arrays, and as bytes. All roll-ups are made from it.

Time runs along the last axis; NaN is unknown. An hour has all samples with `start <= at < start + 3600`, in order. As
bytes, each metric is a block of its own; the host's metrics share one. Metrics that this release does not know are
kept. Runs are three tables with a row per run and GPU: presence, memory, utilization.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress
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
    index_names,
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
    """One run on one GPU: `gpu` is the row in the hour's arrays. Where `present` is False it was not there. `memory` is
    in bytes. NaN where it is not known, and where the run was not there."""

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
        """The seconds for which each GPU was really seen: a state of its own at a moment that is covered."""
        return np.where(self.states > UNKNOWN, self.covered, 0.0)

    def metric(self, name: str) -> Floats:
        found = self.metrics.get(name)
        return np.full(self.states.shape, np.nan) if found is None else found


class LazyTables(Mapping[str, Floats]):
    """Metrics of an hour, each decoded when it is asked for the first time. Raises Damaged then."""

    def __init__(self, blobs: dict[str, bytes], shape: tuple[int, int]) -> None:
        self._blobs, self._shape = blobs, shape
        self._tables: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        if name not in self._tables:
            self._tables[name] = read_matrix(self._blobs[name], *self._shape)
        return self._tables[name]

    def __contains__(self, name: object) -> bool:
        return name in self._blobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)


def cover(times: Floats, interval: "float | Floats", before: float | None) -> Floats:
    """How many seconds each sample stands for. `before` is the last sample of the hour before, if there was one. A
    sample after a gap of more than three beats stands for one beat: the gap itself was not observed."""
    if not len(times):
        return np.empty(0)
    first = times[0] - before if before is not None else np.inf
    steps = np.diff(times, prepend=times[0] - first)
    return cover_steps(steps, interval)


def cover_steps(steps: Floats, interval: "float | Floats") -> Floats:
    return np.where((steps > 3 * interval) | (steps <= 0), interval, steps)


def cut_hour(hour: Hour, until: float, since: int | None = None) -> Hour:
    """Its samples before `until`; of a longer span the hour that begins at `since`."""
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
    """One sample of an hour. `since` is when each GPU's state began, None where it is the same since the hour began."""

    at: float
    covered: float
    gpus: Sequence[int]
    states: list[int]
    since: list[float | None]
    values: list[Values]
    own: Values
    runs: list[RunMoment]


class _Runs(Struct, array_like=True, frozen=True):
    """`rows` are the GPUs' rows. The tables are each in as many parts as they need."""

    runs: list[int]
    rows: list[int]
    present: list[bytes]
    memory: list[bytes]
    utilization: list[bytes]


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
    """Values come back as exact as the catalog's precision says; memory of runs to the MiB."""
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
    """Only `metrics` (None: all), the host's with `host_` before their names. Raises Damaged. With `is_lazy` the tables
    of GPUs are decoded when they are asked for."""
    packed, millis, beyond = _unpack_times(body)
    times, covered = packed.start + millis / 1000, (beyond + _since_before(millis)) / 1000
    samples = len(times)
    states = _read_states(packed, samples)
    shape = states.shape
    hour = Hour(packed.start, times, covered, packed.gpus, states)
    names = unpack_names(packed.names)
    if len(names) != len(packed.metrics):
        raise Damaged(f"{len(names)} names of metrics, {len(packed.metrics)} metrics")
    tables = LazyTables({names[at]: packed.metrics[at] for at in split_wanted(metrics, names)}, (shape[0], shape[1]))
    hour.metrics = tables if is_lazy else dict(tables)
    names, precisions = unpack_names(packed.host_names), packed.host_precisions
    if len(names) != len(precisions):
        raise Damaged(f"{len(names)} names of the host's metrics, {len(precisions)} precisions")
    places = split_wanted(metrics, names, HOST_PREFIX)
    rows = read_matrix(packed.host, len(names), samples) if places else ()
    hour.host = {names[place]: from_steps(rows[place], precisions[place]) for place in places}
    if runs and packed.runs is not None:
        hour.runs = _unpack_runs(packed.runs, shape)
    return hour


def _unpack_times(body: bytes) -> tuple[_PackedHour, Floats, Floats]:
    """With the milliseconds of its samples since its start, and how much longer each covers than since the one before
    it."""
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
    bodies: Sequence[bytes], at: float, metrics: Collection[str] | None = None
) -> list[HourMoment | None]:
    """The last sample until `at` of each of these hours, as `find_moment` in a part of the time. Raises Damaged."""
    hours = [_unpack_times(body) for body in bodies]
    places = [int((hour.start + millis / 1000).searchsorted(at, side="right")) - 1 for hour, millis, _ in hours]
    found = iter(
        _decode_places(
            [one for one, place in zip(hours, places, strict=True) if place >= 0],
            [place for place in places if place >= 0],
            metrics,
        )
    )
    return [None if place < 0 else next(found) for place in places]


def _decode_places(
    hours: Sequence[tuple[_PackedHour, Floats, Floats]], places: Sequence[int], metrics: Collection[str] | None
) -> Iterator[HourMoment]:
    packed = [hour for hour, _, _ in hours]
    counts = [len(hour.gpus) for hour in packed]
    ends = np.cumsum([0, *counts]).tolist()
    states = np.nan_to_num(_read_columns([hour.states for hour in packed], places, counts)).astype(np.int64).tolist()
    values = make_values(_read_metrics(packed, places, counts, metrics), is_host=False)
    own = make_values(_read_own(packed, places, metrics), is_host=True)
    runs = _read_runs(packed, places)
    for row, ((hour, millis, beyond), place) in enumerate(zip(hours, places, strict=True)):
        mine = slice(ends[row], ends[row + 1])
        times = hour.start + millis / 1000
        since: list[float | None] = [None] * counts[row]
        if not is_constant(hour.states):
            since = find_since(times, _read_states(hour, len(times)), place)
        before = millis[place - 1] if place else 0.0
        covered = float((beyond[place] + (millis[place] - before)) / 1000)
        yield HourMoment(
            float(times[place]), covered, hour.gpus, states[mine], since, values[mine], own[row], runs[row]
        )


def _read_columns(blobs: Sequence[bytes], places: Sequence[int], rows: Sequence[int]) -> Floats:
    column = decode_columns(blobs, places)
    if len(column) != sum(rows):
        raise Damaged(f"tables have {len(column)} rows and not {sum(rows)}")
    return column


def _read_metrics(
    hours: Sequence[_PackedHour], places: Sequence[int], counts: Sequence[int], metrics: Collection[str] | None
) -> Floats:
    owner = np.repeat(np.arange(len(hours)), counts)
    table = np.full((len(owner), len(GPU_NAMES)), np.nan)
    known = [index_names(hour.names) for hour in hours]
    if any(len(names) != len(hour.metrics) for names, hour in zip(known, hours, strict=True)):
        raise Damaged("the names of metrics do not fit the metrics")
    for column, name in enumerate(GPU_NAMES):
        has = [name in names for names in known]
        if (metrics is None or name in metrics) and any(has):
            blobs = [hour.metrics[names[name]] for hour, names in compress(zip(hours, known, strict=True), has)]
            rows = slice(None) if all(has) else np.array(has)[owner]
            table[rows, column] = _read_columns(blobs, list(compress(places, has)), list(compress(counts, has)))
    return table


def _read_own(hours: Sequence[_PackedHour], places: Sequence[int], metrics: Collection[str] | None) -> Floats:
    table = np.full((len(hours), len(HOST_NAMES)), np.nan)
    wanted = [metrics is None or HOST_PREFIX + name in metrics for name in HOST_NAMES]
    if not any(wanted):
        return table
    known = [index_names(hour.host_names) for hour in hours]
    if any(len(names) != len(hour.host_precisions) for names, hour in zip(known, hours, strict=True)):
        raise Damaged("the names of the host's metrics do not fit the metrics")
    steps = _read_columns([hour.host for hour in hours], places, [len(names) for names in known])
    shorts = np.array([short for hour in hours for short in hour.host_precisions], np.float64)
    values = np.empty(len(steps))
    for short in np.unique(shorts).tolist():
        values[shorts == short] = from_steps(steps[shorts == short], short)
    first = 0
    for row, names in enumerate(known):
        for column, (name, is_wanted) in enumerate(zip(HOST_NAMES, wanted, strict=True)):
            if is_wanted and name in names:
                table[row, column] = values[first + names[name]]
        first += len(names)
    return table


def _read_runs(hours: Sequence[_PackedHour], places: Sequence[int]) -> list[list[RunMoment]]:
    found: list[list[RunMoment]] = [[] for _ in hours]
    some = [(row, hour.runs) for row, hour in enumerate(hours) if hour.runs is not None and hour.runs.runs]
    for row, runs in some:
        if len(runs.rows) != len(runs.runs) or not all(0 <= gpu < len(hours[row].gpus) for gpu in runs.rows):
            raise Damaged("the runs of an hour do not fit together")
    counts = [len(runs.runs) for _, runs in some]
    present, memory, utilization = (
        (
            or_none(
                _read_columns(
                    [part for parts in all_parts for part in parts],
                    [places[row] for (row, _), parts in zip(some, all_parts, strict=True) for _ in parts],
                    counts,
                )
            )
            for all_parts in zip(*((runs.present, runs.memory, runs.utilization) for _, runs in some), strict=True)
        )
        if some
        else ([], [], [])
    )
    owners = [(row, run, gpu) for row, runs in some for run, gpu in zip(runs.runs, runs.rows, strict=True)]
    for (row, run, gpu), is_there, bytes_, percent in zip(owners, present, memory, utilization, strict=True):
        if is_there:
            found[row].append(RunMoment(run, gpu, bytes_, percent))
    return found


def find_moment(hour: Hour, at: float) -> HourMoment | None:
    place = int(np.searchsorted(hour.times, at, side="right")) - 1
    if place < 0:
        return None
    nothing = np.full((len(hour.gpus), len(hour.times)), np.nan)
    table = np.array([hour.metrics.get(name, nothing)[:, place] for name in GPU_NAMES]).T
    own = np.array([[line[place] if (line := hour.host.get(name)) is not None else np.nan for name in HOST_NAMES]])
    return HourMoment(
        float(hour.times[place]),
        float(hour.covered[place]),
        hour.gpus,
        hour.states[:, place].tolist(),
        find_since(hour.times, hour.states, place),
        make_values(table, is_host=False),
        make_values(own, is_host=True)[0],
        [
            RunMoment(one.run, one.gpu, *or_none(np.array([one.memory[place], one.utilization[place]])))
            for one in hour.runs
            if one.present[place]
        ],
    )


def make_values(table: Floats, *, is_host: bool) -> list[Values]:
    return list(zip(*as_json(table, _IS_WHOLE[is_host]), strict=True))


def or_none(values: Floats) -> list[float | None]:
    found: list[float | None] = values.tolist()
    return [None if value != value else value for value in found]  # noqa: PLR0124 - NaN


def find_since(times: Floats, states: NDArray[Any], place: int) -> list[float | None]:
    """When the state of each GPU at `place` began; None where that was before the hour."""
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
    """In parts, because there may be more runs on a host than one table may have rows."""
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
    is_whole = [table.shape for table in tables] == [(len(packed.runs), samples)] * 3
    if not is_whole or len(packed.rows) != len(packed.runs) or not all(0 <= row < gpus for row in packed.rows):
        raise Damaged("the runs of an hour do not fit together")
    present, memory, utilization = tables
    return list(map(RunSlice, packed.runs, packed.rows, present > 0, memory, utilization))


def merge_hours(old: Hour, new: Hour) -> Hour:
    """Every moment once; of one that both have, the old. Samples that came between others shorten what these cover."""
    times, order = np.unique(np.concatenate([old.times, new.times]), return_index=True)
    covered = np.concatenate([old.covered, new.covered])[order]
    gpus = list(dict.fromkeys([*old.gpus, *new.gpus]))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    merged = Hour(
        start=old.start,
        times=times,
        covered=np.minimum(np.diff(times, prepend=-np.inf), covered),
        gpus=gpus,
        states=_side_by_side(old.states, new.states, old, new, rows, order, 0),
    )
    merged.metrics = {
        name: _side_by_side(old.metric(name), new.metric(name), old, new, rows, order, np.nan)
        for name in sorted({*old.metrics, *new.metrics})
    }
    for name in sorted({*old.host, *new.host}):
        values = [hour.host.get(name, np.full(len(hour.times), np.nan)) for hour in (old, new)]
        merged.host[name] = np.concatenate(values)[order]
    merged.runs = _merge_runs(old, new, rows, order)
    return merged


def _side_by_side(  # noqa: PLR0917 - one call for each of an hour's tables
    one: np.ndarray, other: np.ndarray, old: Hour, new: Hour, rows: dict[int, int], order: np.ndarray, blank: float
) -> np.ndarray:
    table = np.full((len(rows), len(old.times) + len(new.times)), blank, dtype=one.dtype)
    if old.gpus:
        table[[rows[gpu] for gpu in old.gpus], : len(old.times)] = one
    if new.gpus:
        table[[rows[gpu] for gpu in new.gpus], len(old.times) :] = other
    return table[:, order]


def _merge_runs(old: Hour, new: Hour, rows: dict[int, int], order: np.ndarray) -> list[RunSlice]:
    count = len(old.times) + len(new.times)
    slices: dict[tuple[int, int], RunSlice] = {}
    for hour, begin in ((old, 0), (new, len(old.times))):
        until = begin + len(hour.times)
        for part in hour.runs:
            key = (part.run, rows[hour.gpus[part.gpu]])
            if key not in slices:
                blank = np.zeros(count, dtype=bool), np.full(count, np.nan), np.full(count, np.nan)
                slices[key] = RunSlice(*key, *blank)
            whole = slices[key]
            whole.present[begin:until] = part.present
            whole.memory[begin:until] = part.memory
            whole.utilization[begin:until] = part.utilization
    return [
        RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order])
        for _, part in sorted(slices.items())
    ]
