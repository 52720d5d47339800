"""The report of a job, and allocated time in usage reports (docs/accounting.md), by user, host or model, and by the
account, partition, namespace and label that only schedulers know.

JobStore and JobTracker (amounts) + history (idle stretches) → JobReport, Usage → API, page, `gpudeck job`"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from gpudeck.history.base import HistoryRefused, SeriesQuery, Store, UsageQuery
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import Period
from gpudeck.history.usage import find_groups, price_of
from gpudeck.model.errors import Temporary
from gpudeck.model.job import JobGpu, JobReport, JobReports, JobState, JobSummary
from gpudeck.model.usage import Day, Usage, UsageRow
from gpudeck.schedulers.job_hosts import show_nodes
from gpudeck.schedulers.job_store import (
    AMOUNTS,
    HOUR,
    JobGpuRecord,
    JobHostRecord,
    JobQuery,
    JobRecord,
    JobStore,
    UsageSum,
    add_amounts,
    read_labels,
)
from gpudeck.schedulers.jobs import JobService

JOB_NAMES: Final = ("account", "partition", "namespace", "label")
"""Names that only schedulers know."""
_COLUMNS: Final = {"group": "user", "label": "labels"}
"""The column of a row's name where it differs."""
_JOULES_A_KWH: Final = 3.6e6

DaySums = list[tuple[int, UsageSum]]
"""Each sum with the number of its day, or with 0."""
RowName = tuple[str | None, bool]
"""The name of a row, and whether it is the row of unknown users."""


class AllocatedSums(NamedTuple):
    """`since` is when the records of jobs begin. Imported jobs may be older."""

    days: DaySums
    since: float


async def read_sums(store: JobStore, query: UsageQuery, now: float, since: float = 0.0) -> AllocatedSums:
    """Sums of jobs for a usage report. Raises Temporary, and HistoryRefused for an invalid period."""
    is_daily = query.daily and query.by in JOB_NAMES
    period = Period(query.start, query.end, now, query.zone if is_daily else None)
    begins = [begin for _, begin in period.days] or [query.start]
    by = [_COLUMNS.get(query.by, query.by), "user", "model"]
    only = {name: value for name in ("user", "host") if (value := getattr(query, name)) is not None}
    days: DaySums = []
    for number, (begin, end) in enumerate(pairwise([*begins, query.end])):
        found = await store.sum_usage(max(begin, query.start), min(end, now), now, by, only)
        days += [(number, one) for one in found]
    return AllocatedSums(days, since)


def _add_up(found: Iterable[UsageSum]) -> dict[str, float]:
    nothing = dict.fromkeys((*AMOUNTS, "never_used", "imported", "shared"), 0.0)
    return reduce(add_amounts, [one.amounts for one in found], nothing)


def _unused(one: UsageSum) -> float:
    return max(0.0, one.amounts["allocated"] - one.amounts["used"])


def _allocated(one: UsageSum) -> float:
    """Seconds, monitored or not."""
    return one.amounts["allocated"] + one.amounts["unobserved"]


def base_query(query: UsageQuery) -> UsageQuery:
    """The query for the history, which does not know the names of schedulers and whose rows are not needed then."""
    return replace(query, by="user", daily=False, label=None) if query.by in JOB_NAMES else query


MAX_STARTS: Final = 100
"""Starts of one job, or tasks of one array, in an answer."""
MAX_STRETCH_GPUS: Final = 32
_SEEN_SECONDS: Final = 180.0
"""A job that another hub saw this recently is running."""
_STRETCH_SECONDS: Final = 600.0
_STRETCH_POINTS: Final = 2000
_NOTHING: Final = dict.fromkeys(AMOUNTS, 0.0)
_Gpu = tuple[JobGpuRecord, Mapping[str, float]]


class JobReporter:
    """Finds jobs and describes them, and adds allocated time to usage. `groups` returns the group of users who are in
    no group of the settings."""

    def __init__(
        self,
        service: JobService,
        settings: UsageSettings | None = None,
        groups: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self.service = service
        self.settings = settings or UsageSettings()
        self._find_group = find_groups(self.settings, groups)

    async def read_sums(self, query: UsageQuery, now: float) -> AllocatedSums | None:
        """Sums for `add_allocated`; None if no job is recorded until the end of the period. Raises Temporary and
        HistoryRefused."""
        is_by_job = query.by in JOB_NAMES
        if is_by_job and not self.service.has_jobs:
            why = f"no scheduler has given a GPU to a job here, so there is no {query.by}"
            hint = "Rows are by user, group, host or model where the hub reads no scheduler. See docs/slurm.md."
            raise HistoryRefused("no_jobs", why, hint)
        if (query.by == "label") != (query.label is not None):
            hint = "Ask with by=label&label=team, or `--by label:team`."
            raise HistoryRefused("bad_label", "by=label needs the name of a label, and only that has one", hint)
        if not self.service.has_jobs:
            return None
        # In their first minute jobs and their usage are not written yet.
        await self.service.settle()
        await self.service.settle_usage(self.service.tracker.list_unwritten())
        since = await self.service.find_beginning()
        sums = await read_sums(self.service.store, query, now, now if since is None else since)
        if query.end > sums.since or sums.days:
            return sums
        if not is_by_job:
            return None
        known = f"no job is recorded before {datetime.fromtimestamp(sums.since, UTC):%Y-%m-%d %H:%M} UTC"
        hint = "Ask about a period that ends later, or by user, group, host or model."
        raise HistoryRefused("no_jobs", f"{known}, so the usage by {query.by} is not known in this period", hint)

    def add_allocated(self, history: Store, query: UsageQuery, sums: AllocatedSums | None, now: float) -> Usage:
        usage = history.usage(base_query(query))
        return usage if sums is None else self.add_sums(usage, query, sums, now)

    def add_sums(self, usage: Usage, query: UsageQuery, sums: AllocatedSums, now: float) -> Usage:
        """For rows that only schedulers know, `usage` is the history's usage by user. May block."""
        usage.allocated_since = sums.since if sums.since > query.start else None
        wanted = [(day, one) for day, one in sums.days if self._is_wanted(query, one)]
        by_row: dict[RowName, DaySums] = defaultdict(list)
        for day, one in wanted:
            by_row[self._name_row(query, one)].append((day, one))
        if query.by in JOB_NAMES:
            period = Period(query.start, query.end, now, query.zone if query.daily else None)
            monitored = usage.monitored_gpu_hours * HOUR
            rows = {name: self._row(found, monitored, period) for name, found in by_row.items()}
            usage.by, usage.total = query.by, self._row(wanted, monitored, period)
        else:
            rows = {(row.name_by(query.by), row.unknown): row for row in usage.rows}
            for name in (name for name in by_row if name not in rows):
                # Nobody used what was allocated there.
                rows[name] = UsageRow(0.0, 0.0, None, 0.0, 0.0 if usage.coverage else None, None, None)
            for name, row in rows.items():
                self._set_hours(row, [one for _, one in by_row.get(name, ())])
            self._set_hours(usage.total, [one for _, one in wanted])
        for (row_name, is_unknown), row in rows.items():
            row.unknown = is_unknown
            setattr(row, query.by, row_name)
        usage.rows = list(rows.values())
        if query.by in JOB_NAMES:
            usage.rows.sort(key=lambda row: (-(row.allocated_hours or 0.0), row.unknown, row.name_by(query.by) or ""))
        return usage

    def _row(self, days: DaySums, monitored: float, period: Period) -> UsageRow:
        found = [one for _, one in days]
        sums = _add_up(found)
        imported = sums["imported"]
        # What another monitor has measured was not monitored here.
        seen = sums["used"] - imported
        row = UsageRow(
            gpu_hours=sums["used"] / HOUR,
            measured_hours=sums["measured"] / HOUR,
            active_hours=sums["active"] / HOUR if sums["measured"] > 0 else None,
            idle_hours=None if imported > 0 else sums["idle"] / HOUR,
            share=min(1.0, seen / monitored) if monitored > 0 and (seen > 0 or not imported) else None,
            peak_memory_bytes=sums["memory_peak"] or None,
            energy_kwh=sums["joules"] / _JOULES_A_KWH if sums["metered"] > 0 else None,
            cost=self._cost(found, _allocated),
            idle_cost=None if imported > 0 else self._cost(found, lambda one: one.amounts["idle"]),
        )
        self._set_hours(row, found)
        by_day: dict[int, list[Mapping[str, float]]] = defaultdict(list)
        for day, one in days if period.days else ():
            if _allocated(one):
                by_day[day].append(one.amounts)
        for day, amounts in by_day.items():
            hours, active = (sum(one[name] for one in amounts) / HOUR for name in ("used", "active"))
            is_measured = any(one["measured"] for one in amounts)
            row.days.append(Day(*period.days[day], hours, active if is_measured else None))
        return row

    def _cost(self, found: Sequence[UsageSum], seconds: Callable[[UsageSum], float]) -> float | None:
        prices = [(price_of(one.names[-1] or "", self.settings.prices), seconds(one)) for one in found]
        costs = [price * part / HOUR for price, part in prices if price is not None]
        return sum(costs) if costs else None

    def _set_hours(self, row: UsageRow, found: Sequence[UsageSum]) -> None:
        sums = _add_up(found)
        allocated, used, total = sums["allocated"], sums["used"], sums["allocated"] + sums["unobserved"]
        row.allocated_hours = total / HOUR
        row.unmonitored_hours = sums["unobserved"] / HOUR
        row.unused_hours = max(0.0, allocated - used) / HOUR if allocated or not total else None
        row.unused_cost = None if row.unused_hours is None else self._cost(found, _unused)
        row.never_used_hours = sums["never_used"] / HOUR
        row.shared_hours = sums["shared"] / HOUR

    def _is_wanted(self, query: UsageQuery, one: UsageSum) -> bool:
        _, user, model = one.names
        return (query.model is None or query.model.lower() in (model or "").lower()) and (
            query.group is None or self._find_group(user) == query.group
        )

    def _name_row(self, query: UsageQuery, one: UsageSum) -> RowName:
        name, user, _ = one.names
        if query.by == "group":
            return self._find_group(user), user is None
        if query.by == "label":
            return read_labels(name).get(query.label or ""), False
        return name, name is None and query.by == "user"

    async def search(self, query: JobQuery, now: float) -> list[JobSummary]:
        await self.service.settle()
        records = await self.service.store.find(query)
        found = await self._read_gpus(records)
        return [JobSummary(**self._describe(one, found.get(one.id, []), now)) for one in records]

    async def find(self, job: str, scheduler: str | None, now: float) -> JobReports:
        """The newest starts of a job, without idle stretches and verdicts. Raises Temporary."""
        await self.service.settle()
        records = await self.service.store.find_starts(job, scheduler, MAX_STARTS + 1)
        others = {one.scheduler for one in records} - {one.scheduler for one in records[:1]}
        if others:
            records = await self.service.store.find_starts(job, records[0].scheduler, MAX_STARTS + 1)
        has_more, records = len(records) > MAX_STARTS, records[:MAX_STARTS]
        found = await self._read_gpus(records)
        hosts = await self.service.store.hosts_of([record.id for record in records])
        reports = [self._report(one, found.get(one.id, []), hosts, now) for one in records]
        return JobReports(reports, has_more, sorted(others))

    async def _read_gpus(self, records: Sequence[JobRecord]) -> dict[int, list[_Gpu]]:
        gpus = await self.service.store.gpus_of([record.id for record in records])
        await self.service.settle_usage({gpu.id for gpu in gpus})
        amounts = await self.service.store.amounts_of([gpu.id for gpu in gpus])
        found: dict[int, list[_Gpu]] = {}
        for gpu in gpus:
            found.setdefault(gpu.job_id, []).append((gpu, amounts.get(gpu.id, _NOTHING)))
        return found

    def _report(self, record: JobRecord, gpus: list[_Gpu], hosts: Sequence[JobHostRecord], now: float) -> JobReport:
        wall = _wall(record, now)
        shown = [
            JobGpu(
                **self._amounts([(gpu, amounts)], wall),
                host=gpu.host,
                label=gpu.label,
                uuid=gpu.uuid,
                model=gpu.model,
                memory_total_bytes=gpu.memory_bytes,
                is_shared=bool(gpu.is_shared),
            )
            for gpu, amounts in gpus
        ]
        facts = self._describe(record, gpus, now)
        known = {one.host: one for one in hosts if one.job_id == record.id} | self.service.tracker.hosts.of(record.id)
        nodes = show_nodes(facts["hosts"], known, record.start)
        return JobReport(**facts, gpus=shown, nodes=nodes, currency=self.settings.currency)

    def _describe(self, record: JobRecord, gpus: list[_Gpu], now: float) -> dict[str, Any]:
        wall = _wall(record, now)
        names = ("scheduler", "job", "name", "user", "account", "partition", "qos", "namespace")
        return {
            **{name: getattr(record, name) for name in (*names, "outcome", "start", "until", "ended_at", "last_seen")},
            **self._amounts(gpus, wall * len(gpus)),
            "labels": read_labels(record.labels),
            "state": (state := self._state(record, now)),
            "state_reason": self._find_reason(gpus) if state == "unknown" else None,
            "wall_seconds": wall,
            "gpu_count": len(gpus),
            "hosts": list(dict.fromkeys(gpu.host for gpu, _ in gpus)),
        }

    def _state(self, record: JobRecord, now: float) -> JobState:
        if record.ended_at is not None:
            return "ended"
        if not self.service.tracker.is_seen(record.id) and now - record.last_seen > _SEEN_SECONDS:
            return "unknown"
        return "suspended" if record.is_suspended else "running"

    def _find_reason(self, gpus: list[_Gpu]) -> str:
        for one, _ in gpus:
            host = self.service.fleet.hosts.get(one.host_id)
            gpu = None if host is None else host.gpus.get(one.uuid)
            if gpu is None or host is None:
                return f"{one.host}:{one.label} is not reported"
            if why := gpu.scheduling.unknown or (gpu.availability_reason if gpu.availability == "unknown" else None):
                return why
            if host.status != "up":
                return f"{one.host} is {host.status}"
        return "it has not been seen since the last reading"

    def _amounts(self, parts: Sequence[_Gpu], wall: float) -> dict[str, Any]:
        sums = reduce(add_amounts, [part for _, part in parts], _NOTHING)
        allocated, used, measured = sums["allocated"], sums["used"], sums["measured"]
        # An unused GPU does no work: that needs no measurement.
        known = measured + allocated - used
        active = sums["active"] if measured > 0 or (allocated > 0 and used == 0) else None
        prices = [(price_of(gpu.model, self.settings.prices), part) for gpu, part in parts]
        costs = [price * (part["allocated"] + part["unobserved"]) / HOUR for price, part in prices if price is not None]
        total, is_known = allocated + sums["unobserved"], allocated > 0 or sums["unobserved"] == 0
        return {
            "allocated_hours": total / HOUR,
            "unmonitored_hours": sums["unobserved"] / HOUR,
            "used_hours": used / HOUR if is_known else None,
            "unused_hours": max(0.0, allocated - used) / HOUR if is_known else None,
            "idle_hours": None if not all(gpu.host_id for gpu, _ in parts) else sums["idle"] / HOUR,
            "active_hours": None if active is None else active / HOUR,
            "utilization_percent": None if active is None or known <= 0 else 100 * active / known,
            "utilization_peak_percent": sums["utilization_peak"]
            if active == 0 or sums["utilization_peak"] > 0
            else None,
            "memory_mean_bytes": sums["memory_sum"] / sums["memory_seconds"] if sums["memory_seconds"] > 0 else None,
            "memory_peak_bytes": sums["memory_peak"] if sums["memory_seconds"] > 0 or sums["memory_peak"] > 0 else None,
            "energy_kwh": sums["joules"] / _JOULES_A_KWH if sums["metered"] > 0 else None,
            "cost": sum(costs) if costs else None,
            "coverage": min(1.0, allocated / wall) if wall > 0 else None,
        }


def _wall(record: JobRecord, now: float) -> float:
    end = record.ended_at if record.ended_at is not None else max(now, record.last_seen)
    return max(0.0, end - record.start)


def add_stretches(report: JobReport, store: Store, work_percent: float, now: float) -> None:
    """Adds the times of ten minutes and more in which each GPU was monitored and did not work."""
    end = now if report.ended_at is None else report.ended_at
    points = int(min(_STRETCH_POINTS, max(1.0, (end - report.start) / 60)))
    for gpu in report.gpus[:MAX_STRETCH_GPUS]:
        query = SeriesQuery("utilization_percent", report.start, max(end, report.start + 1), points, gpu=gpu.uuid)
        try:
            answer = store.series(query)
        except (HistoryRefused, Temporary):
            gpu.idle_stretches = None
            continue
        found: list[tuple[float, float]] = []
        for at, _, _, most in answer.series[0].points if answer.series else ():
            begin, stop = max(at, report.start), min(at + answer.step, end)
            if most is None or most >= work_percent:
                continue
            if found and found[-1][1] >= begin:
                found[-1] = found[-1][0], stop
            elif stop > begin:
                found.append((begin, stop))
        gpu.idle_stretches = [(begin, stop) for begin, stop in found if stop - begin >= _STRETCH_SECONDS]
