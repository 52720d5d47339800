"""Reads the figures of digests from the history, the event log, the queue and the alerts.

    usage and waste of the period, newest runs of a user → UseSums, UserRuns
    usage, waste, reliability, queue, free GPUs → FleetFigures

Usage and waste are read once per period, for all recipients together.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from gpudeck.alerts.service import AlertManager
from gpudeck.api.events import ReliabilityRanking, rank_reliability
from gpudeck.api.history import HistoryQueries
from gpudeck.api.jobs import judge_runs
from gpudeck.api.waste import ask_waste
from gpudeck.digests.periods import DigestPeriod
from gpudeck.events.service import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import RunsQuery, SeriesQuery, Store, UsageQuery
from gpudeck.model.event import Reliability
from gpudeck.model.gpu_request import QueuePosition
from gpudeck.model.job import Run
from gpudeck.model.usage import Usage, UsageRow, Waste, WastedHours, WasteRow
from gpudeck.queueing.queue import WaitQueue
from gpudeck.schedulers.job_report import JobReporter

SHARE: Final = 0.6
"""The part of one processor that the queries of digests may use: nobody waits for them, and they run once a week."""
MAX_RUNS: Final = 300
"""The newest runs of each login that are evaluated."""
_MIN_SECONDS: Final = 600.0
_MIN_SHARE: Final = 0.1
"""The best run is one with at least this part of the GPU time of the longest."""
_MAX_RANKED: Final = 5


class PeriodFigures(Struct, frozen=True):
    """`before` is the usage of the period before, None if that was not recorded from its beginning."""

    usage: Usage
    before: Usage | None
    waste: Waste

    @property
    def is_known(self) -> bool:
        """Whether anything was monitored, so that missing use means none."""
        return bool(self.usage.coverage)


class UseSums(Struct, frozen=True):
    """The use of some logins together. None is unknown, also if it is unknown for one of them."""

    gpu_hours: float
    before: float | None
    active_hours: float | None
    measured_hours: float
    idle: WastedHours
    unused: WastedHours
    oversized: WastedHours
    cost: float | None
    energy_kwh: float | None

    @property
    def utilization(self) -> float | None:
        """0 to 1, of the time in which it was measured."""
        is_known = self.active_hours is not None and self.measured_hours > 0
        return (self.active_hours or 0.0) / self.measured_hours if is_known else None


class UserRuns(Struct, frozen=True):
    """The best and the worst run, with verdicts. `count` is None if there are more than were evaluated."""

    best: Run | None = None
    worst: Run | None = None
    count: int | None = 0


class FleetFigures(Struct, frozen=True):
    """`free_known` is the number of hours in which the number of free GPUs is known, `none_free` that of hours with
    less than one. `waiting` is None while the queue is not loaded."""

    reliability: Reliability
    waiting: list[QueuePosition] | None
    free_known: int
    none_free: int


class FigureReader(Struct, frozen=True):
    """All methods raise HistoryRefused and Temporary."""

    hub: Hub
    history: HistoryQueries
    jobs: JobReporter
    events: EventLog
    alerts: AlertManager
    queue: WaitQueue

    async def read_period(self, period: DigestPeriod) -> PeriodFigures:
        query = UsageQuery("user", period.start, period.end)
        usage, before, waste = await ask_waste(self.history, self.jobs, self.hub.fleet, query, period.before)
        is_comparable = before is not None and bool(before.coverage) and before.known_since is None
        return PeriodFigures(usage, before if is_comparable else None, waste)

    async def read_runs(self, period: DigestPeriod, logins: Sequence[Collection[str]]) -> list[UserRuns]:
        """The runs of each user, by their logins."""

        def find(store: Store) -> list[list[Run]]:
            return [[run for login in sorted(own) for run in _newest(store, period, login)] for own in logins]

        found = [(runs, *choose_runs(runs)) for runs in await self.history.ask(find)]
        wanted = {run.id: run for _, *chosen in found for run in chosen if run is not None}
        judged = {run.id: run for run in await judge_runs(self.history, self.events, list(wanted.values()))}

        def show(run: Run | None) -> Run | None:
            return None if run is None else judged[run.id]

        return [
            UserRuns(show(best), show(worst), len(runs) if len(runs) < MAX_RUNS else None)
            for runs, best, worst in found
        ]

    async def read_fleet(self, period: DigestPeriod) -> FleetFigures:
        ranking = ReliabilityRanking("gpu", period.start, period.end)
        reliability = await rank_reliability(ranking, self.events, self.alerts, self.hub.fleet, _MAX_RANKED)
        query = SeriesQuery("gpus_free", period.start, period.end, 1000, fleet=True)
        free = await self.history.ask(lambda store: store.series(query))
        hours: dict[int, list[float]] = {}
        for one in free.series:
            for at, mean, *_ in one.points:
                if mean is not None:
                    hours.setdefault(int(at // 3600), []).append(mean)
        none = sum(sum(means) / len(means) < 1 for means in hours.values())
        waiting = [one for one in self.queue.list() if one.granted is None] if self.queue.is_loaded else None
        return FleetFigures(reliability, waiting, len(hours), none)


def _newest(store: Store, period: DigestPeriod, login: str) -> list[Run]:
    return store.runs(RunsQuery(period.start, period.end, user=login, limit=MAX_RUNS)).runs


def choose_runs(runs: Iterable[Run]) -> tuple[Run | None, Run | None]:
    """The best: the highest utilization of the longer ones. The worst: the most GPU time without work."""
    known = [
        (run, run.mean_utilization_percent)
        for run in runs
        if run.mean_utilization_percent is not None and run.gpu_seconds >= _MIN_SECONDS
    ]
    if not known:
        return None, None
    least = _MIN_SHARE * max(run.gpu_seconds for run, _ in known)
    best, level = max(((run, level) for run, level in known if run.gpu_seconds >= least), key=lambda one: one[1])
    worst, _ = max(known, key=lambda one: one[0].gpu_seconds * (100 - one[1]))
    if best is worst:
        return (best, None) if level >= 50 else (None, worst)
    return best, worst


def sum_use(figures: PeriodFigures, logins: Collection[str]) -> UseSums | None:
    """None if none of these logins used, or was allocated, a GPU in the period."""
    rows = [row for row in figures.usage.rows if row.user in logins]
    wasted = [row for row in figures.waste.rows if row.name in logins]
    if not rows:
        return None
    before = None if figures.before is None else [row for row in figures.before.rows if row.user in logins]
    return describe_use(rows, wasted, before)


def describe_use(rows: Sequence[UsageRow], wasted: Sequence[WasteRow], before: Sequence[UsageRow] | None) -> UseSums:
    return UseSums(
        gpu_hours=sum(row.gpu_hours for row in rows),
        before=None if before is None else sum(row.gpu_hours for row in before),
        active_hours=_sum_known(row.active_hours for row in rows),
        measured_hours=sum(row.measured_hours for row in rows),
        idle=_sum_wasted([row.idle for row in wasted]),
        unused=_sum_wasted([row.unused for row in wasted]),
        oversized=_sum_wasted([row.oversized for row in wasted]),
        cost=_sum_known(row.cost for row in rows),
        energy_kwh=_sum_known(row.energy_kwh for row in rows),
    )


def _sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if nothing is measured, or nothing has a price."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_wasted(parts: Sequence[WastedHours]) -> WastedHours:
    hours, before = [one.hours for one in parts], [one.before for one in parts]
    return WastedHours(
        None if not hours or None in hours else sum(one or 0.0 for one in hours),
        _sum_known(one.cost for one in parts),
        None if not before or None in before else sum(one or 0.0 for one in before),
    )
