"""The questions of `history.base`, answered by a Prometheus-compatible store exactly as by the embedded one.

The store has a value only in steps with a sample. How much time a sample covers is a series of its own (`OBSERVED`), so
steps between two samples of a slowly sampled host are filled (lookback) and gaps stay gaps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history.aggregation import as_json, divide, make_points, sum_of_known
from gpudeck.history.answers import check_ask, heat_grid
from gpudeck.history.base import (
    MOST_SERIES,
    Answer,
    Ask,
    Heat,
    HeatAsk,
    HeatRow,
    HistoryRefused,
    Point,
    Resolution,
    Run,
    Series,
)
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.metrics import HistoryMetric, Subject, find_metric, suggest
from gpudeck.history.remote.client import MOST_STEPS, PromReader, SeriesStats
from gpudeck.history.remote.promql import (
    HELD,
    OBSERVED,
    OF_USERS,
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
from gpudeck.history.sample import HostSample
from gpudeck.history.time_range import HOUR, QUARTER, Grid, check_points, check_range, choose_grid
from gpudeck.model.catalog import Rollup
from gpudeck.model.clock import Clock

_FARTHEST: Final = 600
"""Seconds: a sample so long after the end of a range may cover its last steps."""
_ALIKE: Final = 1.2
"""Samples of one host are so far apart at most as they are usually: more is a pause of its own."""
_DAY = 86_400.0
_COUNTER = "by (host_id, host, model)"
MOST_VALUES: Final = 100_000
"""Points of all series together: with many series each gets fewer."""


class DeviceDirectory:
    """One thread notes samples, others ask."""

    def __init__(self, reader: PromReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._names: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._hosts: dict[str, set[str]] = {}

    def note(self, sample: HostSample) -> None:
        # The newest comes last, so that of two hosts of one name the one that is there is found.
        self._names.pop(sample.host_id, None)
        self._names[sample.host_id] = sample.name
        for gpu in sample.gpus:
            self._labels[gpu.uuid] = gpu.label
            if sample.host_id not in (hosts := self._hosts.setdefault(gpu.uuid, set())):
                self._hosts[gpu.uuid] = {*hosts, sample.host_id}

    def find_host(self, name: str) -> tuple[str, str]:
        """Id and name of a host, by either. Raises HistoryRefused for an unknown one."""
        known = dict(self._names)
        if name in known:
            return name, known[name]
        named = [host_id for host_id, shown in known.items() if shown == name]
        if named:
            return named[-1], name
        found = self._ask([select(OBSERVED, {"host_id": name}), select(OBSERVED, {"host": name})])
        found.sort(key=lambda labels: labels.get("host_id") == name)
        if not found:
            hint = suggest(name, known.values(), "It knows")
            raise HistoryRefused("unknown_host", f"the history knows no host {name[:80]!r}", hint)
        return found[-1]["host_id"], found[-1].get("host", "")

    def find_gpu(self, uuid: str) -> str:
        """Its label. Raises HistoryRefused for one that was never there."""
        label = self.labels_of([uuid]).get(uuid)
        if label is None:
            hint = suggest(uuid, dict(self._labels), "It knows")
            raise HistoryRefused("unknown_gpu", f"the history knows no GPU {uuid[:80]!r}", hint)
        return label

    def labels_of(self, uuids: Iterable[str]) -> dict[str, str]:
        """The labels of those that were ever there."""
        wanted = list(uuids)
        found = {uuid: self._labels[uuid] for uuid in wanted if uuid in self._labels}
        missing = [uuid for uuid in wanted if uuid not in found]
        if missing:
            for labels in self._ask([select(STATE, {}, any_of("gpu", missing))]):
                found[labels["gpu"]] = labels.get("index", "")
        return found

    def hosts_of(self, uuids: Iterable[str]) -> list[str]:
        """The ids of the hosts that these GPUs are in, or were before the hub started."""
        wanted = list(uuids)
        missing = [uuid for uuid in wanted if uuid not in self._hosts]
        if missing:
            for labels in self._ask([select(STATE, {}, any_of("gpu", missing))]):
                known = self._hosts.get(labels["gpu"], set())
                self._hosts[labels["gpu"]] = {*known, labels.get("host_id", "")}
        return sorted({host for uuid in wanted for host in self._hosts.get(uuid, ())})

    def count_gpus(self, host_id: str) -> int:
        """How many GPUs the host ever had."""
        return len({labels.get("gpu") for labels in self._ask([select(STATE, {"host_id": host_id})])})

    def _ask(self, selectors: list[str]) -> list[dict[str, str]]:
        return self._reader.labels(selectors, 1.0, self._clock() + _DAY)


class RemoteAnswers:
    """Asks `reader`. `usage_store` knows the runs; without one there are none."""

    def __init__(self, reader: PromReader, devices: DeviceDirectory, usage_store: EmbeddedStore | None) -> None:
        self._reader = reader
        self._devices = devices
        self._usage_store = usage_store

    def series(self, ask: Ask, now: float) -> Answer:
        check_range(ask.start, ask.end)
        check_points(ask.points)
        subject, metric = check_ask(ask)
        if subject == "user":
            return _answer(ask, metric, *user_series(self._reader, ask), "hour")
        if ask.by == "user":
            return _answer(ask, metric, *memory_by_user(self._reader, self._devices, ask, metric))
        return self._of_devices(ask, subject, metric, now)

    def heat(self, ask: HeatAsk) -> Heat:
        check_range(ask.start, ask.end)
        metric = find_metric(ask.metric, "host")
        grid = heat_grid(ask)
        names = self._names_within(grid)
        stats = {"mean": of_all(metric, {}, _fine(metric, grid, HOUR).step, by="host_id")["mean"]}
        found = {one.labels.get("host_id", ""): one.mean for one in self._ask_whole(metric, stats, grid, HOUR)}
        nothing = np.full(grid.count, np.nan)
        rows = [
            HeatRow(host_id, name, as_json(found.get(host_id, nothing), metric.digits))
            for host_id, name in sorted(names.items(), key=lambda item: (item[1], item[0]))
        ]
        return Heat(metric.name, metric.unit, grid.step, grid.times(), rows)

    def _of_devices(self, ask: Ask, subject: Subject, metric: HistoryMetric, now: float) -> Answer:
        if subject == "gpu":
            label = self._devices.find_gpu(ask.gpu or "")
            grid = choose_grid(ask.start, ask.end, ask.points)
            hosts = self._devices.hosts_of([ask.gpu or ""])
            found = self._stats(metric, of_each(metric, {"gpu": ask.gpu or ""}, grid.step), grid, hosts)
            series = [Series(_points(one, grid, metric), gpu=ask.gpu, label=label) for one in found]
            return _answer(ask, metric, grid, series)
        if subject == "host":
            return self._of_host(ask, metric)
        if subject == "run":
            return self._of_run(ask, metric, now)
        grid = choose_for_all(self._reader, ask.start, ask.end, ask.points)
        stats = of_all(metric, {}, _fine(metric, grid, QUARTER).step)
        found = self._ask_whole(metric, stats, grid, QUARTER)
        return _answer(ask, metric, grid, [Series(_points_of_one(found, grid, metric), fleet=True)])

    def _of_host(self, ask: Ask, metric: HistoryMetric) -> Answer:
        host_id, name = self._devices.find_host(ask.host or "")
        where = {"host_id": host_id}
        if ask.by == "gpu":
            count = self._devices.count_gpus(host_id)
            return self._by_gpu(ask, metric, where, among=count, hosts=[host_id])
        grid = choose_grid(ask.start, ask.end, ask.points)
        stats = (of_each if metric.is_of_host else of_all)(metric, where, grid.step)
        points = _points_of_one(self._stats(metric, stats, grid, [host_id]), grid, metric)
        return _answer(ask, metric, grid, [Series(points, host=host_id, label=name)])

    def _of_run(self, ask: Ask, metric: HistoryMetric, now: float) -> Answer:
        """Its GPUs, in steps in which it was present."""
        run = self._find_run(ask.run or 0)
        its_gpus, hosts = any_of("gpu", run.gpus), self._devices.hosts_of(run.gpus)
        within = (run.seen_at, now if run.ended_at is None else run.ended_at)
        if ask.by == "gpu":
            return self._by_gpu(ask, metric, {}, its_gpus, among=len(run.gpus), hosts=hosts, within=within)
        grid = choose_grid(ask.start, ask.end, ask.points)
        stats = (of_each if len(run.gpus) == 1 else of_all)(metric, {}, grid.step, its_gpus)
        points = _points_of_one(self._stats(metric, stats, grid, hosts), grid, metric)
        return _answer(ask, metric, grid, [Series(_only(points, grid, within), run=run.id)])

    def _by_gpu(
        self,
        ask: Ask,
        metric: HistoryMetric,
        where: Mapping[str, str],
        *more: str,
        among: int,
        hosts: Sequence[str],
        within: tuple[float, float] | None = None,
    ) -> Answer:
        if among > MOST_SERIES:
            count = f"{among:,} GPUs are too many to be told apart"
            raise HistoryRefused("too_many_series", count, f"At most {MOST_SERIES} can be; ask for some.")
        grid = choose_grid(ask.start, ask.end, min(ask.points, MOST_VALUES // max(1, among)))
        asked = of_each(metric, where, grid.step, *more)
        found = {one.labels["gpu"]: one for one in self._stats(metric, asked, grid, hosts)}
        labels = self._devices.labels_of(found)
        named = sorted((labels.get(uuid, ""), uuid) for uuid in found)
        return _answer(
            ask,
            metric,
            grid,
            [
                Series(_only(_points(found[uuid], grid, metric), grid, within), gpu=uuid, label=label)
                for label, uuid in named
            ],
        )

    def _stats(self, metric: HistoryMetric, asked: Stats, grid: Grid, hosts: Sequence[str] = ()) -> list[SeriesStats]:
        """`hosts` are those whose samples are asked for, where a step may be shorter than the time between two."""
        found = stats_with_lookback(self._reader, asked, grid, hosts)
        if metric.state is not None:
            # That no GPU was in a state all the time, or at all, is a number too.
            for one in found:
                is_seen = ~np.isnan(one.mean)
                one.low, one.high = (np.where(is_seen, np.nan_to_num(band), np.nan) for band in (one.low, one.high))
        return found

    def _ask_whole(self, metric: HistoryMetric, stats: Stats, grid: Grid, part: int) -> list[SeriesStats]:
        """Of what is added up over devices a long step is the mean of its parts, so that a device that was there for
        some of them counts for these only."""
        fine = _fine(metric, grid, part)
        return [_fold(one, fine, grid) for one in self._stats(metric, stats, fine)]

    def _names_within(self, grid: Grid) -> dict[str, str]:
        """The hosts that were seen, with the last name of each."""
        seen = f"count by (host_id, host) (count_over_time({over(select(OBSERVED), grid.step)}))"
        found = [(labels, np.flatnonzero(~np.isnan(values))) for labels, values in self._reader.values(seen, grid)]
        found.sort(key=lambda one: int(one[1][-1]) if len(one[1]) else -1)
        return {labels["host_id"]: labels.get("host", "") for labels, _ in found}

    def _find_run(self, key: int) -> Run:
        run = self._usage_store.run(key) if self._usage_store is not None and 0 < key < 2**63 else None
        if run is None:
            raise HistoryRefused("unknown_run", f"the history knows no run {key}", "/api/v1/runs lists them.")
        return run


def stats_with_lookback(reader: PromReader, asked: Stats, grid: Grid, hosts: Sequence[str]) -> list[SeriesStats]:
    """As `PromReader.stats`, of devices of these hosts, with the steps that a later sample covers."""
    longer, told_by = find_lookback(reader, grid, hosts)
    return [
        SeriesStats(one.labels, one.mean[told_by], one.low[told_by], one.high[told_by])
        for one in reader.stats(asked, longer)
    ]


def find_lookback(reader: PromReader, grid: Grid, hosts: Sequence[str]) -> tuple[Grid, NDArray[np.int64]]:
    """A grid that is long enough to be asked for, and for each step of `grid` the one in that whose values it has."""
    if grid.step >= QUARTER or not hosts:
        return grid, np.arange(grid.count)
    longer = Grid(grid.start, grid.step, grid.count + math.ceil(_FARTHEST / grid.step))
    stood_for = over(select(OBSERVED, {}, any_of("host_id", list(hosts))), grid.step)
    found = [values for _, values in reader.values(f"max(max_over_time({stood_for}))", longer)]
    return longer, lookback_steps(found[0], grid.step)[: grid.count] if found else np.arange(grid.count)


def lookback_steps(seconds: Floats, step: int) -> NDArray[np.int64]:
    """For each step the one whose sample covers it: itself, or a later one. `seconds` are what samples stand for."""
    places = np.arange(len(seconds))
    is_sampled = ~np.isnan(seconds)
    following = np.minimum.accumulate(np.where(is_sampled, places, len(places))[::-1])[::-1]
    back = np.append(np.ceil(np.where(is_sampled, seconds, 0.0) / step) - 1, -1.0)
    return np.where(following - places <= back[following], following, places)


def choose_for_all(reader: PromReader, start: float, end: float, points: int) -> Grid:
    """As `choose_grid`, with steps in which every host has a sample: a host without one would be missing in a sum."""
    grid = choose_grid(start, end, points)
    if grid.step >= QUARTER:
        return grid
    hours = choose_grid(start, end, points, HOUR)
    usual = f"max(quantile_over_time(0.5, {over(select(OBSERVED), hours.step)}))"
    found = [float(np.nanmax(values)) for _, values in reader.values(usual, hours) if not np.isnan(values).all()]
    beat = max(found, default=0.0)
    return grid if beat <= grid.step * _ALIKE else choose_grid(start, end, points, math.ceil(beat / _ALIKE))


def user_series(reader: PromReader, ask: Ask) -> tuple[Grid, list[Series]]:
    """Hour by hour. An hour that was observed and in which they had nothing is a zero."""
    grid = choose_grid(ask.start, ask.end, ask.points, HOUR)
    hours = Grid(grid.start, HOUR, (grid.end - grid.start) // HOUR)
    user = ask.user or ""
    held, amounts = (_grown(reader, name, user, hours) for name in (HELD, OF_USERS[ask.metric]))
    amounts = np.where(np.isnan(amounts) & ~(held > 0), 0.0, amounts)
    seconds = np.where(np.isnan(amounts), 0.0, _observed(reader, hours))
    values = divide(amounts, seconds)
    total, weight = (_by_step(np.nansum, rows, grid) for rows in (np.where(seconds > 0, amounts, 0.0), seconds))
    means = divide(total, weight)
    lows, highs = (_by_step(fold, values, grid) for fold in (np.fmin.reduce, np.fmax.reduce))
    points = make_points(grid, means, lows, highs, find_metric(ask.metric, "user").digits)
    return grid, [Series(points, user=ask.user)]


def memory_by_user(
    reader: PromReader, devices: DeviceDirectory, ask: Ask, metric: HistoryMetric
) -> tuple[Grid, list[Series]]:
    """Moments at which the GPU was observed without a user count as 0 bytes of that user."""
    label = devices.find_gpu(ask.gpu or "")
    grid = choose_grid(ask.start, ask.end, ask.points)
    where = {"gpu": ask.gpu or ""}
    longer, told_by = find_lookback(reader, grid, devices.hosts_of([ask.gpu or ""]))
    at = over(select(USER_MEMORY, where), grid.step)
    asked = at_once({stat: f"{over} by (user) ({of}_over_time({at}))" for stat, over, of in _OF_MEMORY})
    users: dict[str, dict[str, Floats]] = {}
    for labels, values in reader.values(asked, longer):
        users.setdefault(labels.get("user", ""), {})[labels["stat"]] = values[told_by]
    known = over(select(STATE, where, 'state!="unknown"'), grid.step)
    seen = _first(reader.values(f"sum by (gpu) (count_over_time({known}))", longer), longer)[told_by]
    order = sorted(users, key=lambda user: (not user, user))
    points = {user: _memory_of(users[user], seen, grid, metric) for user in order}
    return grid, [Series(points[user], gpu=ask.gpu, label=label, user=user or None) for user in order]


_OF_MEMORY = (("sum", "sum", "sum"), ("count", "sum", "count"), ("low", "min", "min"), ("high", "max", "max"))


def _memory_of(found: dict[str, Floats], seen: Floats, grid: Grid, metric: HistoryMetric) -> list[Point]:
    nothing = np.full(grid.count, np.nan)
    total, count, low, high = (found.get(stat, nothing) for stat, _, _ in _OF_MEMORY)
    moments = np.fmax(seen, count)
    mean = divide(total, moments)
    points = make_points(grid, mean, np.where(count < moments, 0.0, low), high, metric.digits)
    return [point for point in points if point[3]]


def _grown(reader: PromReader, counter: str, user: str, hours: Grid) -> Floats:
    """By how much a user's counters grew in each hour, added up; NaN while there was none. The hour before the first is
    asked for too, to know where the first began."""
    earlier = Grid(hours.start - HOUR, HOUR, hours.count + 1)
    at = over(select(counter, {"user": user}), HOUR)
    found = reader.stats(
        {"mean": f"max {_COUNTER} (last_over_time({at}))", "low": f"min {_COUNTER} (min_over_time({at}))"}, earlier
    )
    grown = [_differences(one.mean, one.low)[1:] for one in found]
    return sum_of_known(np.array(grown).reshape(-1, hours.count))


def _differences(lasts: Floats, firsts: Floats) -> Floats:
    """A counter that is smaller than before began again from 0."""
    grown, before = np.full(len(lasts), np.nan), np.nan
    for hour in np.flatnonzero(~np.isnan(lasts)).tolist():
        base = firsts[hour] if np.isnan(before) else before
        grown[hour] = lasts[hour] - base if lasts[hour] >= base else lasts[hour]
        before = lasts[hour]
    return grown


def _observed(reader: PromReader, hours: Grid) -> Floats:
    """For how long the hosts were observed in each hour, on average."""
    quarters = Grid(hours.start, QUARTER, hours.count * (HOUR // QUARTER))
    asked = f"avg(sum by (host_id) (sum_over_time({over(select(OBSERVED), QUARTER)})))"
    seconds = np.fmin(np.nan_to_num(_first(reader.values(asked, quarters), quarters)), QUARTER)
    return _by_step(np.nansum, seconds, hours)


def _by_step(fold: np.ufunc | object, rows: Floats, grid: Grid) -> Floats:
    return fold(rows.reshape(grid.count, -1), axis=1)  # type: ignore[operator,no-any-return]


def _first(found: Iterable[tuple[dict[str, str], Floats]], grid: Grid) -> Floats:
    return next((values for _, values in found), np.full(grid.count, np.nan))


def _answer(
    ask: Ask, metric: HistoryMetric, grid: Grid, series: list[Series], resolution: Resolution = "raw"
) -> Answer:
    return Answer(metric.name, metric.unit, grid.step, ask.start, ask.end, resolution, series)


def _points(found: SeriesStats, grid: Grid, metric: HistoryMetric) -> list[Point]:
    return make_points(grid, found.mean, found.low, found.high, metric.digits)


def _points_of_one(found: list[SeriesStats], grid: Grid, metric: HistoryMetric) -> list[Point]:
    return _points(found[0], grid, metric) if found else []


def _only(points: list[Point], grid: Grid, within: tuple[float, float] | None) -> list[Point]:
    if within is None:
        return points
    first, last = within
    return [point for point in points if first < point[0] + grid.step and point[0] <= last]


def _fine(metric: HistoryMetric, grid: Grid, part: int) -> Grid:
    """The steps in which it is asked for: parts of the grid's where that matters and is not too much."""
    if metric.rollup is not Rollup.SUM or grid.step <= part or (grid.end - grid.start) // part > MOST_STEPS:
        return grid
    return Grid(grid.start, part, (grid.end - grid.start) // part)


def _fold(found: SeriesStats, fine: Grid, grid: Grid) -> SeriesStats:
    if fine is grid:
        return found
    rows = [values.reshape(grid.count, -1) for values in (found.mean, found.low, found.high)]
    count = (~np.isnan(rows[0])).sum(axis=1)
    mean = divide(np.nansum(rows[0], axis=1), count.astype(np.float64))
    return SeriesStats(found.labels, mean, np.fmin.reduce(rows[1], axis=1), np.fmax.reduce(rows[2], axis=1))
