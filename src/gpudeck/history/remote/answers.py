"""The questions of `history.base`, answered by a Prometheus-compatible store exactly as by the embedded one.

The store has a value only in steps with a sample. How much time a sample covers is a series of its own (`OBSERVED`), so
steps between two samples of a slowly sampled host are filled (lookback) and gaps stay gaps.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudeck.history.aggregation import divide, make_points
from gpudeck.history.answers import check_query, find_gpu, find_host, find_run, make_answer
from gpudeck.history.base import MAX_SERIES, HistoryRefused, MomentQuery, PastHost, SeriesQuery
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.embedded.view import HistoryView
from gpudeck.history.metrics import HistoryMetric
from gpudeck.history.remote.client import MAX_STEPS, PromReader, SeriesStats
from gpudeck.history.remote.promql import (
    GPU_SERIES,
    HOST_SERIES,
    OBSERVED,
    STATE,
    USER_MEMORY,
    Stats,
    any_of,
    at_once,
    of_all,
    of_each,
    over,
    select,
)
from gpudeck.history.sample import (
    GPU_NAMES,
    HOST_NAMES,
    HOST_PREFIX,
    NOTHING,
    STATE_NUMBERS,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.history.time_range import HOUR, QUARTER, Grid, check_points, check_range, choose_grid
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Rollup
from gpudeck.model.exposition import ExposedMetric
from gpudeck.model.history import Answer, Point, Series

_LOOKAHEAD_SECONDS: Final = 600
"""A sample up to this long after the end of a range may cover its last steps."""
_GAP_FACTOR: Final = 1.2
"""A distance between samples of over 1.2 times the usual interval is a gap."""
_DAY = 86_400.0
MAX_VALUES: Final = 100_000


class _Devices(Struct):
    """The subject of a query: `series` is its answer as one series, `labels` are those of its GPUs by UUID, `matcher`
    selects its series, and `hosts` are the ids of its hosts. `within` is the time of a run."""

    series: Series
    labels: dict[str, str]
    matcher: str
    hosts: list[str]
    is_one: bool = True
    within: tuple[float, float] | None = None


class RemoteAnswers:
    """Queries `reader`. `usage_store` has the hosts, their GPUs, the runs, and the usage of each user."""

    def __init__(self, reader: PromReader, usage_store: EmbeddedStore) -> None:
        self._reader = reader
        self._usage_store = usage_store

    def series(self, query: SeriesQuery, now: float) -> Answer:
        check_range(query.start, query.end)
        check_points(query.points)
        subject, metric = check_query(query)
        if subject == "user":
            return self._usage_store.series(query)
        if subject == "fleet":
            grid = choose_for_all(self._reader, query.start, query.end, query.points)
            points = _points_of_one(self._ask_whole(metric, grid), grid, metric)
            return make_answer(query, metric, grid, [Series(points, fleet=True)], "raw")
        with self._usage_store.view() as view:
            devices = _find_devices(view, query, metric, now)
        if query.by == "user":
            return make_answer(query, metric, *memory_by_user(self._reader, devices, query, metric), "raw")
        return self._by_gpu(query, devices, metric) if query.by == "gpu" else self._as_one(query, devices, metric)

    def _as_one(self, query: SeriesQuery, devices: _Devices, metric: HistoryMetric) -> Answer:
        grid, series = choose_grid(query.start, query.end, query.points), devices.series
        asked = (of_each if devices.is_one else of_all)(metric, grid.step, devices.matcher)
        found = self._stats(metric, asked, grid, devices.hosts)
        series.points = _only(_points_of_one(found, grid, metric), grid, devices.within)
        return make_answer(query, metric, grid, [series] if found or query.gpu is None else [], "raw")

    def _by_gpu(self, query: SeriesQuery, devices: _Devices, metric: HistoryMetric) -> Answer:
        labels = devices.labels
        if len(labels) > MAX_SERIES:
            count = f"{len(labels):,} GPUs are too many for a series each"
            raise HistoryRefused("too_many_series", count, f"At most {MAX_SERIES} can be; ask for some.")
        grid = choose_grid(query.start, query.end, min(query.points, MAX_VALUES // max(1, len(labels))))
        asked = of_each(metric, grid.step, devices.matcher)
        found = {one.labels["uuid"]: one for one in self._stats(metric, asked, grid, devices.hosts)}
        series = [
            Series(_only(_points(found[uuid], grid, metric), grid, devices.within), gpu=uuid, label=label)
            for label, uuid in sorted((labels.get(uuid, ""), uuid) for uuid in found)
        ]
        return make_answer(query, metric, grid, series, "raw")

    def _stats(self, metric: HistoryMetric, asked: Stats, grid: Grid, hosts: Sequence[str] = ()) -> list[SeriesStats]:
        """`hosts` are those whose samples are asked for, where a step may be shorter than the time between two: steps
        that a later sample covers have its values."""
        longer, told_by = find_lookback(self._reader, grid, hosts)
        found = self._reader.stats(asked, longer)
        for one in found:
            one.mean, one.low, one.high = one.mean[told_by], one.low[told_by], one.high[told_by]
            if metric.state is not None:
                # That no GPU was in a state all the time, or at all, is a number too.
                is_seen = ~np.isnan(one.mean)
                one.low, one.high = (np.where(is_seen, np.nan_to_num(band), np.nan) for band in (one.low, one.high))
        return found

    def _ask_whole(self, metric: HistoryMetric, grid: Grid) -> list[SeriesStats]:
        """All devices. In a sum, a long step is the mean of its quarter hours, so that a device counts only for those
        in which it was there."""
        count = (grid.end - grid.start) // QUARTER
        if metric.rollup is not Rollup.SUM or grid.step <= QUARTER or count > MAX_STEPS:
            return self._stats(metric, of_all(metric, grid.step), grid)
        found = self._stats(metric, of_all(metric, QUARTER), Grid(grid.start, QUARTER, count))
        return [_fold(one, grid) for one in found]


def _find_devices(view: HistoryView, query: SeriesQuery, metric: HistoryMetric, now: float) -> _Devices:
    """Raises HistoryRefused."""
    if query.host is not None:
        of = find_host(view, query.host)
        labels = {gpu.uuid: gpu.label for gpu in view.gpus().values() if gpu.host == of.key}
        series, matcher = Series([], host=of.host_id, label=of.name), any_of("host_id", [of.host_id])
        return _Devices(series, labels, matcher, [of.host_id], metric.is_of_host)
    if query.gpu is not None:
        gpu = find_gpu(view, query.gpu)
        gpus, host, series, within = [gpu], view.host(gpu.host), Series([], gpu=gpu.uuid, label=gpu.label), None
    else:
        run = find_run(view, query.run or 0)
        gpus, host = [gpu for gpu in map(view.gpu, run.gpus) if gpu is not None], view.host(run.host)
        series, within = Series([], run=run.key), (run.first, now if run.is_live else run.last)
    labels = {gpu.uuid: gpu.label for gpu in gpus}
    hosts = [] if host is None else [host.host_id]
    return _Devices(series, labels, any_of("uuid", [*labels]), hosts, len(gpus) == 1, within)


def find_lookback(reader: PromReader, grid: Grid, hosts: Sequence[str]) -> tuple[Grid, NDArray[np.int64]]:
    """Returns the extended grid to query, and for each step of `grid` the index in the extended grid of its values."""
    if grid.step >= QUARTER or not hosts:
        return grid, np.arange(grid.count)
    longer = Grid(grid.start, grid.step, grid.count + math.ceil(_LOOKAHEAD_SECONDS / grid.step))
    stood_for = over(select(OBSERVED, {}, any_of("host_id", list(hosts))), grid.step)
    found = [values for _, values in reader.values(f"max(max_over_time({stood_for}))", longer)]
    return longer, lookback_steps(found[0], grid.step)[: grid.count] if found else np.arange(grid.count)


def lookback_steps(seconds: Floats, step: int) -> NDArray[np.int64]:
    """Returns for each step the index of the step whose sample covers it: itself or a later one. `seconds` has the
    duration that each sample covers."""
    places = np.arange(len(seconds))
    is_sampled = ~np.isnan(seconds)
    following = np.minimum.accumulate(np.where(is_sampled, places, len(places))[::-1])[::-1]
    back = np.append(np.ceil(np.where(is_sampled, seconds, 0.0) / step) - 1, -1.0)
    return np.where(following - places <= back[following], following, places)


def choose_for_all(reader: PromReader, start: float, end: float, points: int) -> Grid:
    """As `choose_grid`, but with at least one sample of every host per step: a host without one would be missing in
    sums."""
    grid = choose_grid(start, end, points)
    if grid.step >= QUARTER:
        return grid
    hours = choose_grid(start, end, points, HOUR)
    usual = f"max(quantile_over_time(0.5, {over(select(OBSERVED), hours.step)}))"
    found = [float(np.nanmax(values)) for _, values in reader.values(usual, hours) if not np.isnan(values).all()]
    interval = max(found, default=0.0)
    return (
        grid
        if interval <= grid.step * _GAP_FACTOR
        else choose_grid(start, end, points, math.ceil(interval / _GAP_FACTOR))
    )


def memory_by_user(
    reader: PromReader, gpu: _Devices, query: SeriesQuery, metric: HistoryMetric
) -> tuple[Grid, list[Series]]:
    """Moments at which the GPU was observed without a user count as 0 bytes of that user."""
    grid = choose_grid(query.start, query.end, query.points)
    longer, told_by = find_lookback(reader, grid, gpu.hosts)
    at = over(select(USER_MEMORY, None, gpu.matcher), grid.step)
    asked = at_once({stat: f"{over} by (user) ({of}_over_time({at}))" for stat, over, of in _OF_MEMORY})
    users: dict[str, dict[str, Floats]] = {}
    for labels, values in reader.values(asked, longer):
        users.setdefault(labels.get("user", ""), {})[labels["stat"]] = values[told_by]
    known = over(select(STATE, None, gpu.matcher, 'state!="unknown"'), grid.step)
    moments = [values for _, values in reader.values(f"sum by (uuid) (count_over_time({known}))", longer)]
    seen = (moments[0] if moments else np.full(longer.count, np.nan))[told_by]
    order = sorted(users, key=lambda user: (not user, user))
    points = {user: _memory_of(users[user], seen, grid, metric) for user in order}
    return grid, [replace(gpu.series, points=points[user], user=user or None) for user in order]


_OF_MEMORY = (("sum", "sum", "sum"), ("count", "sum", "count"), ("low", "min", "min"), ("high", "max", "max"))


def _memory_of(found: dict[str, Floats], seen: Floats, grid: Grid, metric: HistoryMetric) -> list[Point]:
    nothing = np.full(grid.count, np.nan)
    total, count, low, high = (found.get(stat, nothing) for stat, _, _ in _OF_MEMORY)
    moments = np.fmax(seen, count)
    mean = divide(total, moments)
    points = make_points(grid, mean, np.where(count < moments, 0.0, low), high, metric.digits)
    return [point for point in points if point[3]]


def _points(found: SeriesStats, grid: Grid, metric: HistoryMetric) -> list[Point]:
    return make_points(grid, found.mean, found.low, found.high, metric.digits)


def _points_of_one(found: list[SeriesStats], grid: Grid, metric: HistoryMetric) -> list[Point]:
    return _points(found[0], grid, metric) if found else []


def _only(points: list[Point], grid: Grid, within: tuple[float, float] | None) -> list[Point]:
    if within is None:
        return points
    first, last = within
    return [point for point in points if first < point[0] + grid.step and point[0] <= last]


def _fold(found: SeriesStats, grid: Grid) -> SeriesStats:
    rows = [values.reshape(grid.count, -1) for values in (found.mean, found.low, found.high)]
    count = (~np.isnan(rows[0])).sum(axis=1)
    mean = divide(np.nansum(rows[0], axis=1), count.astype(np.float64))
    return SeriesStats(found.labels, mean, np.fmin.reduce(rows[1], axis=1), np.fmax.reduce(rows[2], axis=1))


_LOOKBACK: Final = 900.0
"""Seconds: a host that was silent for longer is known from the hub's own file alone."""
_SHORTEST: Final = 60.0
_AT_ONCE: Final = 4
_TICK: Final = 0.01
"""Sample times are multiples of 0.01 s."""
_UNKNOWN: Final = STATE_NUMBERS["unknown"]

_Gpu = tuple[str, str]
"""Host's id and UUID; of the host itself the UUID is empty."""


class _Found(Struct):
    """`at` has name, time of the last sample, and the seconds that it represents, by id of the host."""

    at: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    gpus: dict[str, dict[str, tuple[str, str, int]]] = field(default_factory=dict)
    values: dict[_Gpu, dict[str, float]] = field(default_factory=dict)
    memory: dict[_Gpu, dict[str, float]] = field(default_factory=dict)


def find_hosts(reader: PromReader, usage_store: EmbeddedStore, query: MomentQuery) -> Iterator[PastHost]:
    """Each host that either store knows from then. Raises HistoryRefused and Temporary before the first host."""
    known = {past.sample.host_id: past for past in usage_store.moment(query)}
    found = _ask(reader, query)
    processes = _find_processes(usage_store, query.at, found)
    for host_id in {**known, **found.at}:
        past, remote = known.get(host_id), found.at.get(host_id)
        is_newer = remote is not None and (past is None or not past.is_recorded or past.sample.at < remote[1])
        if is_newer:
            sample = _make_sample(host_id, found, processes)
            yield PastHost(sample, [None] * len(sample.gpus))
        elif past is not None:
            yield past


def _ask(reader: PromReader, query: MomentQuery) -> _Found:
    found, end = _Found(), query.at + _TICK
    for labels, samples in reader.samples(select(OBSERVED), query.at - _LOOKBACK, end):
        if samples and "host_id" in labels:
            at, seconds = samples[-1]
            if at > found.at.get(labels["host_id"], ("", 0.0, 0.0))[1]:
                found.at[labels["host_id"]] = labels.get("host", ""), at, seconds
    window = min(_LOOKBACK, max(_SHORTEST, 2 * max((seconds for _, _, seconds in found.at.values()), default=0.0)))

    def last(series: str) -> list[tuple[dict[str, str], float]]:
        rows = reader.samples(select(series), query.at - window, end)
        return [
            (labels, samples[-1][1])
            for labels, samples in rows
            if samples and samples[-1][0] == found.at.get(labels.get("host_id", ""), ("", 0.0, 0.0))[1]
        ]

    wanted = [
        (one.name, is_host)
        for catalog, names, is_host in ((GPU_SERIES, GPU_NAMES, False), (HOST_SERIES, HOST_NAMES, True))
        for one, name in zip(catalog, names, strict=True)
        if query.metrics is None or (HOST_PREFIX if is_host else "") + name in query.metrics
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        states, memory, *values = threads.map(last, [STATE, USER_MEMORY, *(name for name, _ in wanted)])
    for labels, _ in states:
        gpus = found.gpus.setdefault(labels["host_id"], {})
        state = STATE_NUMBERS.get(labels.get("state", ""), _UNKNOWN)
        gpus[labels.get("uuid", "")] = labels.get("gpu", ""), labels.get("model", ""), state
    for labels, size in memory:
        found.memory.setdefault((labels["host_id"], labels.get("uuid", "")), {})[labels.get("user", "")] = size
    for (name, is_host), rows in zip(wanted, values, strict=True):
        for labels, value in rows:
            device = labels["host_id"], "" if is_host else labels.get("uuid", "")
            found.values.setdefault(device, {})[name] = value
    return found


def _find_processes(usage_store: EmbeddedStore, at: float, found: _Found) -> dict[str, list[ProcessSample]]:
    """Processes by UUID of the GPU. Memory is known only for the single process of a user on a GPU."""
    processes: dict[str, list[ProcessSample]] = {}
    with usage_store.view() as view:
        for run in view.runs_between(at, at + 1):
            own = run.pid, run.started_at, run.user, run.command, run.container, run.job
            for gpu in map(view.gpu, run.gpus if run.first <= at else ()):
                if gpu is not None:
                    processes.setdefault(gpu.uuid, []).append(ProcessSample(*own, None, None))
    for (_, uuid), users in found.memory.items():
        there = processes.get(uuid, [])
        counts = [one.user for one in there]
        processes[uuid] = [
            one._replace(memory_bytes=int(users[one.user or ""]))
            if counts.count(one.user) == 1 and (one.user or "") in users
            else one
            for one in there
        ]
    return processes


def _make_sample(host_id: str, found: _Found, processes: Mapping[str, list[ProcessSample]]) -> HostSample:
    name, at, seconds = found.at[host_id]
    own = _values(HOST_SERIES, HOST_METRICS, found.values.get((host_id, ""), {}))
    gpus = []
    for uuid, (label, model, state) in sorted(found.gpus.get(host_id, {}).items(), key=lambda one: _order(one[1][0])):
        if state == _UNKNOWN:
            gpus.append(GpuSample(uuid, label, model, state, NOTHING, None))
            continue
        values = _values(GPU_SERIES, GPU_METRICS, found.values.get((host_id, uuid), {}))
        gpus.append(GpuSample(uuid, label, model, state, values, tuple(processes.get(uuid, ()))))
    return HostSample(host_id, name, at, seconds, own, tuple(gpus))


def _values(series: tuple[ExposedMetric, ...], catalog: Mapping[str, Metric], values: Mapping[str, float]) -> Values:
    found = [(one, metric, values.get(one.name)) for one, metric in zip(series, catalog.values(), strict=True)]
    return tuple(None if value is None else metric.round(value * one.per / one.times) for one, metric, value in found)


def _order(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in label.split(".")]
