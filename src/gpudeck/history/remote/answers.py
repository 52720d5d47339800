"""Questions about the past, answered from a Prometheus-compatible store: the same answers as history.answers gives.

Steps, names and the way in which devices become one are those of the embedded store; what differs is who does the sums.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gpudeck.history.answers import check_ask
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
from gpudeck.history.folds import make_points, tell
from gpudeck.history.heat import cut_map
from gpudeck.history.measures import Measure, Subject, find_measure
from gpudeck.history.remote.ledger import Ledger
from gpudeck.history.remote.names import OBSERVED
from gpudeck.history.remote.people import memory_by_user, user_series
from gpudeck.history.remote.promql import Stats, any_of, of_all, of_each, over, select
from gpudeck.history.remote.reach import choose_for_all, spread_out
from gpudeck.history.remote.read import MOST_STEPS, Found, Reader
from gpudeck.history.remote.roster import Roster
from gpudeck.history.steps import HOUR, QUARTER, Grid, check_points, check_range, choose
from gpudeck.model.catalog import Rollup

MOST_VALUES: Final = 100_000
"""Points of all series together: with many series each gets fewer."""


class Answers:
    """Asks `reader`. `ledger` knows the runs; without one there are none."""

    def __init__(self, reader: Reader, roster: Roster, ledger: Ledger | None) -> None:
        self._reader = reader
        self._roster = roster
        self._ledger = ledger

    def series(self, ask: Ask, now: float) -> Answer:
        check_range(ask.start, ask.end)
        check_points(ask.points)
        subject, measure = check_ask(ask)
        if subject == "user":
            return _answer(ask, measure, *user_series(self._reader, ask), "hour")
        if ask.by == "user":
            return _answer(ask, measure, *memory_by_user(self._reader, self._roster, ask, measure))
        return self._of_devices(ask, subject, measure, now)

    def heat(self, ask: HeatAsk) -> Heat:
        check_range(ask.start, ask.end)
        measure = find_measure(ask.metric, "host")
        grid = cut_map(ask)
        names = self._names_within(grid)
        stats = {"mean": of_all(measure, {}, _fine(measure, grid, HOUR).step, by="host_id")["mean"]}
        found = {one.labels.get("host_id", ""): one.mean for one in self._ask_whole(measure, stats, grid, HOUR)}
        nothing = np.full(grid.count, np.nan)
        rows = [
            HeatRow(host_id, name, tell(found.get(host_id, nothing), measure.digits))
            for host_id, name in sorted(names.items(), key=lambda item: (item[1], item[0]))
        ]
        return Heat(measure.name, measure.unit, grid.step, grid.times(), rows)

    def _of_devices(self, ask: Ask, subject: Subject, measure: Measure, now: float) -> Answer:
        if subject == "gpu":
            label = self._roster.find_gpu(ask.gpu or "")
            grid = choose(ask.start, ask.end, ask.points)
            hosts = self._roster.hosts_of([ask.gpu or ""])
            found = self._stats(measure, of_each(measure, {"gpu": ask.gpu or ""}, grid.step), grid, hosts)
            series = [Series(_points(one, grid, measure), gpu=ask.gpu, label=label) for one in found]
            return _answer(ask, measure, grid, series)
        if subject == "host":
            return self._of_host(ask, measure)
        if subject == "run":
            return self._of_run(ask, measure, now)
        grid = choose_for_all(self._reader, ask.start, ask.end, ask.points)
        stats = of_all(measure, {}, _fine(measure, grid, QUARTER).step)
        found = self._ask_whole(measure, stats, grid, QUARTER)
        return _answer(ask, measure, grid, [Series(_points_of_one(found, grid, measure), fleet=True)])

    def _of_host(self, ask: Ask, measure: Measure) -> Answer:
        host = self._roster.find_host(ask.host or "")
        where = {"host_id": host.host_id}
        if ask.by == "gpu":
            count = self._roster.count_gpus(host.host_id)
            return self._by_gpu(ask, measure, where, among=count, hosts=[host.host_id])
        grid = choose(ask.start, ask.end, ask.points)
        stats = (of_each if measure.is_of_host else of_all)(measure, where, grid.step)
        points = _points_of_one(self._stats(measure, stats, grid, [host.host_id]), grid, measure)
        return _answer(ask, measure, grid, [Series(points, host=host.host_id, label=host.name)])

    def _of_run(self, ask: Ask, measure: Measure, now: float) -> Answer:
        """Its GPUs, in the steps of which it was there for at least a part."""
        run = self._find_run(ask.run or 0)
        its_gpus, hosts = any_of("gpu", run.gpus), self._roster.hosts_of(run.gpus)
        within = (run.seen_at, now if run.ended_at is None else run.ended_at)
        if ask.by == "gpu":
            return self._by_gpu(ask, measure, {}, its_gpus, among=len(run.gpus), hosts=hosts, within=within)
        grid = choose(ask.start, ask.end, ask.points)
        stats = (of_each if len(run.gpus) == 1 else of_all)(measure, {}, grid.step, its_gpus)
        points = _points_of_one(self._stats(measure, stats, grid, hosts), grid, measure)
        return _answer(ask, measure, grid, [Series(_only(points, grid, within), run=run.id)])

    def _by_gpu(
        self,
        ask: Ask,
        measure: Measure,
        where: Mapping[str, str],
        *more: str,
        among: int,
        hosts: Sequence[str],
        within: tuple[float, float] | None = None,
    ) -> Answer:
        if among > MOST_SERIES:
            count = f"{among:,} GPUs are too many to be told apart"
            raise HistoryRefused("too_many_series", count, f"At most {MOST_SERIES} can be; ask for some.")
        grid = choose(ask.start, ask.end, min(ask.points, MOST_VALUES // max(1, among)))
        asked = of_each(measure, where, grid.step, *more)
        found = {one.labels["gpu"]: one for one in self._stats(measure, asked, grid, hosts)}
        labels = self._roster.labels_of(found)
        named = sorted((labels.get(uuid, ""), uuid) for uuid in found)
        return _answer(
            ask,
            measure,
            grid,
            [
                Series(_only(_points(found[uuid], grid, measure), grid, within), gpu=uuid, label=label)
                for label, uuid in named
            ],
        )

    def _stats(self, measure: Measure, asked: Stats, grid: Grid, hosts: Sequence[str] = ()) -> list[Found]:
        """`hosts` are those whose samples are asked for, where a step may be shorter than the time between two."""
        found = spread_out(self._reader, asked, grid, hosts)
        if measure.state is not None:
            # That no GPU was in a state all the time, or at all, is a number too.
            for one in found:
                is_seen = ~np.isnan(one.mean)
                one.low, one.high = (np.where(is_seen, np.nan_to_num(band), np.nan) for band in (one.low, one.high))
        return found

    def _ask_whole(self, measure: Measure, stats: Stats, grid: Grid, part: int) -> list[Found]:
        """Of what is added up over devices a long step is the mean of its parts, so that a device that was there for
        some of them counts for these only."""
        fine = _fine(measure, grid, part)
        return [_fold(one, fine, grid) for one in self._stats(measure, stats, fine)]

    def _names_within(self, grid: Grid) -> dict[str, str]:
        """The hosts that were seen, with the last name of each."""
        seen = f"count by (host_id, host) (count_over_time({over(select(OBSERVED), grid.step)}))"
        found = [(labels, np.flatnonzero(~np.isnan(values))) for labels, values in self._reader.values(seen, grid)]
        found.sort(key=lambda one: int(one[1][-1]) if len(one[1]) else -1)
        return {labels["host_id"]: labels.get("host", "") for labels, _ in found}

    def _find_run(self, key: int) -> Run:
        run = self._ledger.run(key) if self._ledger is not None and 0 < key < 2**63 else None
        if run is None:
            raise HistoryRefused("unknown_run", f"the history knows no run {key}", "/api/v1/runs lists them.")
        return run


def _answer(ask: Ask, measure: Measure, grid: Grid, series: list[Series], resolution: Resolution = "raw") -> Answer:
    return Answer(measure.name, measure.unit, grid.step, ask.start, ask.end, resolution, series)


def _points(found: Found, grid: Grid, measure: Measure) -> list[Point]:
    return make_points(grid, found.mean, found.low, found.high, measure.digits)


def _points_of_one(found: list[Found], grid: Grid, measure: Measure) -> list[Point]:
    return _points(found[0], grid, measure) if found else []


def _only(points: list[Point], grid: Grid, within: tuple[float, float] | None) -> list[Point]:
    if within is None:
        return points
    first, last = within
    return [point for point in points if first < point[0] + grid.step and point[0] <= last]


def _fine(measure: Measure, grid: Grid, part: int) -> Grid:
    """The steps in which it is asked for: parts of the grid's where that matters and is not too much."""
    if measure.rollup is not Rollup.SUM or grid.step <= part or (grid.end - grid.start) // part > MOST_STEPS:
        return grid
    return Grid(grid.start, part, (grid.end - grid.start) // part)


def _fold(found: Found, fine: Grid, grid: Grid) -> Found:
    if fine is grid:
        return found
    rows = [values.reshape(grid.count, -1) for values in (found.mean, found.low, found.high)]
    count = (~np.isnan(rows[0])).sum(axis=1)
    mean = np.divide(np.nansum(rows[0], axis=1), count, out=np.full(grid.count, np.nan), where=count > 0)
    return Found(found.labels, mean, np.fmin.reduce(rows[1], axis=1), np.fmax.reduce(rows[2], axis=1))
