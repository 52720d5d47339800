"""The report of a job: usage of its GPUs, and idle stretches.

JobStore and JobTracker (amounts) + history (idle stretches) → JobReport → API, page, `gpudeck job`
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from gpudeck.history.base import HistoryRefused, SeriesQuery, Store, UsageQuery
from gpudeck.history.settings import UsageSettings
from gpudeck.history.usage import price_of
from gpudeck.model.errors import Temporary
from gpudeck.model.job import JobGpu, JobReport, JobReports, JobState, JobSummary
from gpudeck.model.usage import Usage
from gpudeck.schedulers.job_hosts import show_nodes
from gpudeck.schedulers.job_store import (
    AMOUNTS,
    HOUR,
    JobGpuRecord,
    JobHostRecord,
    JobQuery,
    JobRecord,
    add_amounts,
    read_labels,
)
from gpudeck.schedulers.job_usage import AllocatedSums, AllocatedTime, base_query, check_query, check_sums, read_sums
from gpudeck.schedulers.jobs import JobService

MAX_STARTS: Final = 100
"""Starts of one job, or tasks of one array, in an answer."""
MAX_STRETCH_GPUS: Final = 32
_SEEN_SECONDS: Final = 180.0
"""A job that another hub has seen so recently is running."""
_STRETCH_SECONDS: Final = 600.0
_STRETCH_POINTS: Final = 2000
_JOULES_A_KWH: Final = 3.6e6
_NOTHING: Final = dict.fromkeys(AMOUNTS, 0.0)
_Gpu = tuple[JobGpuRecord, Mapping[str, float]]


class JobReporter(Struct):
    """Finds jobs and describes them. `groups` returns the group of users that are in none of the settings."""

    service: JobService
    settings: UsageSettings = UsageSettings()
    groups: Callable[[str], str | None] = lambda _: None

    async def read_sums(self, query: UsageQuery, now: float) -> AllocatedSums | None:
        """What `add_allocated` needs; None where no job is recorded until the end of the period. Raises Temporary and
        HistoryRefused."""
        check_query(query, has_jobs=self.service.has_jobs)
        if not self.service.has_jobs:
            return None
        # In their first minute jobs and their usage are not written yet.
        await self.service.settle()
        await self.service.settle_usage(self.service.tracker.list_unwritten())
        since = await self.service.find_beginning()
        return check_sums(query, await read_sums(self.service.store, query, now, now if since is None else since))

    def add_allocated(self, history: Store, query: UsageQuery, sums: AllocatedSums | None, now: float) -> Usage:
        usage = history.usage(base_query(query))
        return usage if sums is None else AllocatedTime(self.settings, self.groups).add(usage, query, sums, now)

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
                **_amounts([(gpu, amounts)], wall, self._price(gpu.model)),
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
        costs = [(self._price(gpu.model), amounts["allocated"] + amounts["unobserved"]) for gpu, amounts in gpus]
        priced = [price * seconds / HOUR for price, seconds in costs if price is not None]
        names = ("scheduler", "job", "name", "user", "account", "partition", "qos", "namespace")
        return {
            **{name: getattr(record, name) for name in (*names, "outcome", "start", "until", "ended_at", "last_seen")},
            **_amounts(gpus, wall * len(gpus), None),
            "cost": sum(priced) if priced else None,
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

    def _price(self, model: str) -> float | None:
        return price_of(model, self.settings.prices)


def _wall(record: JobRecord, now: float) -> float:
    end = record.ended_at if record.ended_at is not None else max(now, record.last_seen)
    return max(0.0, end - record.start)


def _amounts(parts: Sequence[_Gpu], wall: float, price: float | None) -> dict[str, Any]:
    sums = _NOTHING
    for _, part in parts:
        sums = add_amounts(sums, part)
    allocated, used, measured = sums["allocated"], sums["used"], sums["measured"]
    # An unused GPU does no work: that needs no measurement.
    known = measured + allocated - used
    active = sums["active"] if measured > 0 or (allocated > 0 and used == 0) else None
    total, is_known = allocated + sums["unobserved"], allocated > 0 or sums["unobserved"] == 0
    return {
        "allocated_hours": total / HOUR,
        "unmonitored_hours": sums["unobserved"] / HOUR,
        "used_hours": used / HOUR if is_known else None,
        "unused_hours": max(0.0, allocated - used) / HOUR if is_known else None,
        "idle_hours": None if any(gpu.is_imported for gpu, _ in parts) else sums["idle"] / HOUR,
        "active_hours": None if active is None else active / HOUR,
        "utilization_percent": None if active is None or known <= 0 else 100 * active / known,
        "utilization_peak_percent": sums["utilization_peak"] if active == 0 or sums["utilization_peak"] > 0 else None,
        "memory_mean_bytes": sums["memory_sum"] / sums["memory_seconds"] if sums["memory_seconds"] > 0 else None,
        "memory_peak_bytes": sums["memory_peak"] if sums["memory_seconds"] > 0 or sums["memory_peak"] > 0 else None,
        "energy_kwh": sums["joules"] / _JOULES_A_KWH if sums["metered"] > 0 else None,
        "cost": None if price is None else price * total / HOUR,
        "coverage": min(1.0, allocated / wall) if wall > 0 else None,
    }


def add_stretches(report: JobReport, store: Store, work_percent: float, now: float) -> None:
    end = now if report.ended_at is None else report.ended_at
    for gpu in report.gpus[:MAX_STRETCH_GPUS]:
        try:
            gpu.idle_stretches = find_stretches(store, gpu.uuid, report.start, end, work_percent)
        except (HistoryRefused, Temporary):
            gpu.idle_stretches = None


def find_stretches(store: Store, uuid: str, start: float, end: float, work_percent: float) -> list[tuple[float, float]]:
    """From when until when a GPU was seen and did not work for ten minutes and more. Raises HistoryRefused."""
    points = int(min(_STRETCH_POINTS, max(1.0, (end - start) / 60)))
    answer = store.series(SeriesQuery("utilization_percent", start, max(end, start + 1), points, gpu=uuid))
    found: list[tuple[float, float]] = []
    for at, _, _, most in answer.series[0].points if answer.series else ():
        if most is None or most >= work_percent:
            continue
        begin, stop = max(at, start), min(at + answer.step, end)
        if found and found[-1][1] >= begin:
            found[-1] = found[-1][0], stop
        elif stop > begin:
            found.append((begin, stop))
    return [(begin, stop) for begin, stop in found if stop - begin >= _STRETCH_SECONDS]
