"""Tracks jobs, their GPUs and usage: counted every few seconds, written every minute.

    fleet (columns of allocated GPUs) → JobTracker (sums of this hour) → JobStore (jobs, job_gpus, job_usage)

Allocations come from the fleet, for all schedulers alike. A job has ended when each of its GPUs is known to be free or
another job's. While its scheduler cannot be read, a job is neither counted nor ended.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.database.background import BackgroundWriter
from gpudeck.fleet.columns import BUSY, IDLE, NONE, UNKNOWN, GpuColumns
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable
from gpudeck.model import clock
from gpudeck.model.allocation import KUBERNETES, Allocation
from gpudeck.model.clock import Clock
from gpudeck.model.cluster import Duty
from gpudeck.model.gpu_state import STUCK_SECONDS
from gpudeck.schedulers.base import EndedJob
from gpudeck.schedulers.job_hosts import JobHosts
from gpudeck.schedulers.job_store import (
    AMOUNTS,
    BY_HOUR_SECONDS,
    DAY,
    HOUR,
    PEAKS,
    JobGpuRecord,
    JobHostRecord,
    JobRecord,
    JobStore,
    hash_id,
    write_labels,
)

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 60.0
LATE_SECONDS: Final = 60.0
"""A job that is first seen within this time after its start is counted from its start."""
LOST_SECONDS: Final = float(DAY)
"""A job that was not seen for this long, because nothing could be read, counts as ended."""
TAKEOVER_SECONDS: Final = 150.0
"""The longest time between the last write of one hub and the first count of the hub that takes over."""
_TRIM_SECONDS: Final = 3600.0
_MAX_WAITING: Final = 400_000
_NAMES: Final = ("name", "user", "account", "partition", "qos", "namespace", "until")
_PEAK_PLACES: Final = [AMOUNTS.index(name) for name in PEAKS]
_UNOBSERVED: Final = AMOUNTS.index("unobserved")

Amounts = NDArray[np.float64]
_Key = tuple[str, str, float | None]


class JobTracker:
    """Jobs and usage that are not written yet. Not thread-safe: used on one event loop. `open` are the jobs that
    have not ended."""

    def __init__(self, store: JobStore, now: Clock = clock.wall, monotonic: Clock = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self.open: dict[_Key, JobRecord] = {}
        self.hosts = JobHosts()
        self._gpus_of: dict[int, dict[str, JobGpuRecord]] = {}
        """Of each job by UUID."""
        self._seen: set[_Key] = set()
        self._last: tuple[float, float] | None = None
        self._first = self._first_at = math.inf
        self._hour = 0
        self._places: list[tuple[GpuState, Allocation]] = []
        self._counted: list[tuple[_Key, JobGpuRecord]] = []
        """The jobs and job-GPUs of `_places`."""
        self._shared: list[int] = []
        """Places of GPUs that are shared or have a conflict."""
        self._is_certain: NDArray[np.bool_] = np.zeros(0, bool)
        self._amounts: Amounts = np.zeros((0, len(AMOUNTS)))
        self._row_of: dict[int, int] = {}
        """The row in `_amounts` of each GPU of a job that was counted in this hour."""
        self._rows = np.zeros(0, np.int64)
        """The rows of `_counted`."""
        self._left: set[int] = set()
        """Job-GPUs that are no longer allocated, and not written since."""
        self._waiting: dict[tuple[int, int], Amounts] = {}
        self._changed_jobs: dict[int, JobRecord] = {}
        self._changed_gpus: dict[int, JobGpuRecord] = {}

    def tick(self, table: FleetTable) -> None:
        now, moment = self._now(), self._monotonic()
        elapsed = 0.0 if self._last is None else moment - self._last[1]
        if elapsed > STUCK_SECONDS:
            elapsed = 0.0  # the hub was away, and what happened meanwhile is not known
        if self._last is None:
            self._first, self._first_at = moment, now
        self._begin_hour(int((now - elapsed / 2) // HOUR) * HOUR)
        gpus = table.gpus
        rows = np.flatnonzero(gpus.is_allocated[: gpus.end])
        found = (gpu for row in rows.tolist() if (gpu := table.gpu_at[row]) is not None)
        places = [(gpu, allocation) for gpu in found if (allocation := gpu.scheduling.allocation) is not None]
        seconds = np.full(len(places), elapsed)
        if places != self._places:
            before = {gpu.uuid for gpu, _ in self._places}
            self._regroup(table, places, now)
            self._count_start(seconds, before, now, elapsed)
        if len(self._seen) < len(self.open):
            self._end_jobs(table, now)
        if places:
            self._count(gpus, np.array([gpu.row for gpu, _ in places]), seconds)
            self.hosts.update(table, lambda allocation: self.open.get(self._key(allocation)), now)
        self._last = now, moment

    def adopt(
        self,
        records: Collection[JobRecord],
        gpus: Iterable[JobGpuRecord],
        hosts: Collection[JobHostRecord],
        hour: dict[int, list[float]],
    ) -> None:
        self.hosts.adopt(hosts)
        for record in records:
            known = self.open.setdefault((record.scheduler, record.job, record.since), record)
            known.first_seen = record.first_seen
        for gpu in gpus:
            self._gpus_of.setdefault(gpu.job_id, {}).setdefault(gpu.uuid, gpu)
        if self._hour == 0:
            self._hour = int(self._now() // HOUR) * HOUR
        rows = self._find_rows(hour)
        if len(rows):
            self._add(rows, np.array(list(hour.values())))
        self._count_takeover(records)

    def _count_takeover(self, records: Collection[JobRecord]) -> None:
        """Another hub counted until its last write. Since then these jobs had their GPUs, but their usage is
        unknown."""
        last_seen = {job.id: job.last_seen for job in records}
        for place, (_, gpu) in enumerate(self._counted):
            gap = self._first_at - last_seen.get(gpu.job_id, self._first_at)
            if 0 < gap <= TAKEOVER_SECONDS and self._is_certain[place]:
                self._amounts[self._rows[place], _UNOBSERVED] += gap

    async def write(self) -> None:
        """Write everything that is not written. Raises Temporary, and keeps what is not written."""
        await self.write_jobs()
        waiting, self._waiting = self._waiting, {}
        left, self._left = self._left, set()
        seen, seen_at = [self.open[key].id for key in self._seen], self._last
        usage = self._list_usage(left.union(gpu.id for _, gpu in self._counted))
        try:
            if seen_at is not None:
                # First: a hub that takes over counts from here on, and nothing twice.
                await self._store.touch(seen, seen_at[0])
            await self._store.write_usage((gpu, hour, row.tolist()) for (gpu, hour), row in waiting.items())
            await self._store.write_usage(usage)
            await self.hosts.write(self._store, {job.id for job in self.open.values()})
        except BaseException:
            self._waiting = waiting | self._waiting
            self._left |= left
            raise

    async def write_jobs(self) -> None:
        """Write new and changed jobs and their GPUs. As `write`."""
        jobs, self._changed_jobs = self._changed_jobs, {}
        gpus, self._changed_gpus = self._changed_gpus, {}
        try:
            await self._store.write_jobs(list(jobs.values()))
            await self._store.write_gpus(list(gpus.values()))
        except BaseException:
            self._changed_jobs = jobs | self._changed_jobs
            self._changed_gpus = gpus | self._changed_gpus
            raise

    async def write_usage(self, gpus: Collection[int]) -> None:
        """Write the usage of these job-GPUs, whose jobs are written. As `write`."""
        before = [(gpu, hour, row.tolist()) for (gpu, hour), row in self._waiting.items() if gpu in gpus]
        await self._store.write_usage([*before, *self._list_usage(gpus)])

    def _list_usage(self, gpus: Collection[int]) -> list[tuple[int, int, list[float]]]:
        """Usage of the current hour. Not a generator: the hour may change while rows are written."""
        amounts = self._amounts.tolist()
        return [(gpu, self._hour, amounts[row]) for gpu, row in self._row_of.items() if gpu in gpus]

    def list_unwritten(self) -> set[int]:
        """Job-GPUs whose usage may not be written at all: their jobs are new, or have just ended."""
        after = self._now() - 2 * WRITE_SECONDS
        new = (job.id for job in self.open.values() if job.first_seen > after)
        of_new = {gpu.id for job in new for gpu in self._gpus_of.get(job, {}).values()}
        return {gpu for gpu, _ in self._waiting} | self._left | of_new

    def is_seen(self, job_id: int) -> bool:
        return any(self.open[key].id == job_id for key in self._seen)

    def _begin_hour(self, hour: int) -> None:
        if hour == self._hour:
            return
        self._waiting |= {(gpu, self._hour): self._amounts[row] for gpu, row in self._row_of.items()}
        while len(self._waiting) > _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._amounts, self._row_of, self._hour = np.zeros_like(self._amounts), {}, hour
        self._rows = self._find_rows(gpu.id for _, gpu in self._counted)

    def _regroup(self, table: FleetTable, places: list[tuple[GpuState, Allocation]], now: float) -> None:
        """Match jobs with the GPUs that are allocated now. Unchanged allocations are not evaluated again."""
        last_seen = now if self._last is None else self._last[0]
        known = {
            gpu: (allocation, counted)
            for (gpu, allocation), counted in zip(self._places, self._counted, strict=True)
            if counted[0] in self.open
        }
        before, left, self._places, self._counted = self._seen, self._counted, places, []
        for gpu, allocation in places:
            old, counted = known.get(gpu, (None, None))
            if counted is None or old is not allocation:
                job = self._find_job(allocation, now)
                counted = self._key(allocation), self._find_gpu(job, gpu, table)
            self._counted.append(counted)
        self._seen = {key for key, _ in self._counted}
        for job in [self.open[key] for key in before - self._seen if key in self.open]:
            job.last_seen = last_seen
        slots = [gpu.id for _, gpu in self._counted]
        self._left |= {gpu.id for _, gpu in left}.difference(slots)
        self._rows = self._find_rows(slots)
        self._shared = [at for at, (_, one) in enumerate(places) if one.conflict is not None or one.shared_with]
        # Of a host that does not report, Slurm knows what is allocated; its pods are not known.
        self._is_certain = np.array([one.scheduler != KUBERNETES for _, one in places], bool)
        for place in self._shared:
            record = self._counted[place][1]
            if not record.is_shared:
                record.is_shared = 1
                self._changed_gpus[record.id] = record

    def _find_rows(self, slots: Iterable[int]) -> NDArray[np.int64]:
        """The rows of job-GPUs. New ones get a row."""
        rows = np.array([self._row_of.setdefault(slot, len(self._row_of)) for slot in slots], np.int64)
        if (missing := len(self._row_of) - len(self._amounts)) > 0:
            self._amounts = np.concatenate([self._amounts, np.zeros((missing, len(AMOUNTS)))])
        return rows

    def _add(self, rows: NDArray[np.int64], more: Amounts) -> None:
        known = self._amounts[rows]
        sums = known + more
        sums[:, _PEAK_PLACES] = np.maximum(known[:, _PEAK_PLACES], more[:, _PEAK_PLACES])
        self._amounts[rows] = sums

    def _count_start(self, seconds: Amounts, before: set[str], now: float, elapsed: float) -> None:
        """Count a new job from its start, but no GPU twice."""
        running = self._monotonic() - self._first
        for place, (key, _) in enumerate(self._counted):
            job = self.open[key]
            if job.first_seen == now and job.since is not None and now - job.since <= LATE_SECONDS:
                most = elapsed if self._places[place][0].uuid in before else running
                seconds[place] = min(max(0.0, now - job.since), most)

    def _count(self, gpus: GpuColumns, rows: NDArray[np.int64], seconds: Amounts) -> None:
        states = gpus.availability[rows]
        is_seen = (states != UNKNOWN) & (states != NONE)
        is_used = (states == BUSY) | (states == IDLE)
        utilization, power, memory = (
            np.where(is_seen, gpus.metric(name)[rows], np.nan)
            for name in ("utilization_percent", "power_watts", "memory_used_bytes")
        )
        for place in self._shared:
            gpu, allocation = self._places[place]
            if allocation.conflict is not None and not any(
                allocation.is_of(one.job, one.user) for one in gpu.reported_processes or ()
            ):
                is_used[place] = False
                for values in (utilization, power, memory):
                    values[place] = np.nan
        added = np.stack(
            [
                seconds * is_seen,
                seconds * (~is_seen & self._is_certain),
                seconds * is_used,
                seconds * is_used * np.nan_to_num(utilization) / 100,
                seconds * (is_used & ~np.isnan(utilization)),
                seconds * (states == IDLE),
                seconds * np.nan_to_num(power),
                seconds * ~np.isnan(power),
                seconds * np.nan_to_num(memory),
                seconds * ~np.isnan(memory),
                np.nan_to_num(memory),
                np.nan_to_num(utilization) * is_used,
            ],
            axis=1,
        )
        self._add(self._rows, added)
        for place in np.flatnonzero(is_used & (seconds > 0)).tolist():
            record = self._counted[place][1]
            if not record.is_used:
                record.is_used = 1
                self._changed_gpus[record.id] = record

    def _key(self, allocation: Allocation) -> _Key:
        """A job whose start is unknown, or was when it was first seen, exists once at a time."""
        key = allocation.scheduler, allocation.job, allocation.since
        unknown = allocation.scheduler, allocation.job, None
        return key if key in self.open or unknown not in self.open else unknown

    def _find_job(self, allocation: Allocation, now: float) -> JobRecord:
        key = self._key(allocation)
        job = self.open.get(key)
        facts = {name: getattr(allocation, name) for name in _NAMES}
        facts["is_suspended"] = int(allocation.is_suspended)
        facts["labels"] = write_labels(allocation.labels)
        facts["number"] = None if allocation.number == allocation.job else allocation.number
        if job is None:
            # All jobs that a scheduler does not name are one, which has no start.
            start = 0.0 if not allocation.job else now if allocation.since is None else allocation.since
            job = JobRecord(
                id=self._store.make_id(allocation.scheduler, allocation.job, start),
                scheduler=allocation.scheduler,
                job=allocation.job,
                start=start,
                since=allocation.since,
                first_seen=now,
                last_seen=now,
                **facts,
            )
            self.open[key] = self._changed_jobs[job.id] = job
        elif any(getattr(job, name) != value for name, value in facts.items()):
            for name, value in facts.items():
                setattr(job, name, value)
            self._changed_jobs[job.id] = job
        return job

    def _find_gpu(self, job: JobRecord, gpu: GpuState, table: FleetTable) -> JobGpuRecord:
        known = self._gpus_of.setdefault(job.id, {})
        if gpu.uuid not in known:
            host = table.host_at[table.gpus.host[gpu.row]]
            memory = gpu.value("memory_total_bytes")
            record = JobGpuRecord(
                id=hash_id(job.id, gpu.uuid),
                job_id=job.id,
                uuid=gpu.uuid,
                host="" if host is None else host.name,
                host_id="" if host is None else host.id,
                label=gpu.label,
                model=gpu.name,
                memory_bytes=None if memory is None else int(memory),
            )
            known[gpu.uuid] = self._changed_gpus[record.id] = record
        return known[gpu.uuid]

    def _end_jobs(self, table: FleetTable, now: float) -> None:
        known = {gpu.uuid: gpu for gpu in table.gpu_at if gpu is not None}
        for key in [key for key in self.open if key not in self._seen]:
            job = self.open[key]
            is_over = all(_is_given_back(job, known.get(uuid)) for uuid in self._gpus_of.get(job.id, {}))
            if is_over and job.job:
                # Of one that ended while the hub was away it is not known when.
                job.ended_at = now if now - job.last_seen <= LATE_SECONDS else job.last_seen
                self._changed_jobs[job.id] = job
            if is_over or now - job.last_seen > LOST_SECONDS:
                del self.open[key]
                self._gpus_of.pop(job.id, None)


def _is_given_back(job: JobRecord, gpu: GpuState | None) -> bool:
    """Whether a GPU is known not to be allocated to the job any more."""
    if gpu is None or gpu.scheduling.unknown is not None:
        return False
    return job.scheduler != KUBERNETES or gpu.availability != "unknown"


class JobService(Service):
    """The jobs of a hub's fleet. `has_jobs`: some scheduler has ever given a GPU to one. `is_expected`: the hub reads a
    scheduler."""

    name = "jobs"

    def __init__(
        self,
        hub: Hub,
        store: JobStore,
        *,
        keep: float,
        now: Clock = clock.wall,
        monotonic: Clock = time.monotonic,
        duty: Duty | None = None,
        is_expected: bool = False,
    ) -> None:
        """`keep` is the seconds for which jobs are kept after their end. Of several hubs, the one with the `duty`
        counts usage."""
        self.is_expected = is_expected
        self._duty = duty or Duty("schedulers")
        self._has_duty = duty is None
        self._hub = hub
        self._keep = keep
        self._now = now
        self._monotonic = monotonic
        self.store = store
        self.tracker = JobTracker(store, now, monotonic)
        self._is_loaded = self._is_started = False
        self._had_jobs = False
        self._beginning: float | None = None
        """Finding it reads all imported jobs, so it is kept between two deletions."""
        self._ticked_at = self._trimmed_at = -math.inf
        self._writer = BackgroundWriter(
            self._write,
            failing="what jobs use waits to be written: %s",
            recovered="what jobs use is in the database again",
            every=WRITE_SECONDS,
            housekeeping=self._trim,
        )

    @property
    def has_jobs(self) -> bool:
        return self._had_jobs or bool(self.tracker.open)

    @property
    def fleet(self) -> FleetState:
        return self._hub.fleet

    async def open(self) -> None:
        self._had_jobs = await self.store.has_jobs()
        if self._has_duty:
            await self._load()

    async def _load(self) -> None:
        records = await self.store.open_jobs()
        gpus = await self.store.gpus_of([record.id for record in records])
        hosts = await self.store.hosts_of([record.id for record in records])
        hour = await self.store.usage_of_hour(int(self._now() // HOUR) * HOUR)
        self.tracker.adopt(records, gpus, hosts, hour)
        self._is_loaded = True

    def start(self) -> None:
        self._writer.start()
        self._is_started = True

    def on_second(self) -> None:
        if not self._duty.is_held:
            self._has_duty = self._is_loaded = False
            return
        if not self._has_duty:
            # Go on with what the hub that had the duty before has written.
            self._has_duty, self.tracker = True, JobTracker(self.store, self._now, self._monotonic)
            self._writer.wake()
        if self._monotonic() - self._ticked_at >= TICK_SECONDS:
            self._tick()

    async def find_beginning(self) -> float | None:
        if self._beginning is None:
            self._beginning = await self.store.find_beginning()
        return self._beginning

    def note_imported(self) -> None:
        self._had_jobs = True

    async def note_ended(self, scheduler: str, ended: Sequence[EndedJob]) -> None:
        """Record the ends of jobs that a scheduler reported. Raises Temporary."""
        async with self._writer.lock:
            await self.store.note_ends(scheduler, ended)

    async def settle(self) -> None:
        """Count until now, and write the jobs that are new or changed, so that they are found. Raises Temporary."""
        if self._is_loaded:
            self._tick()
            async with self._writer.lock:
                await self.tracker.write_jobs()

    async def settle_usage(self, gpus: Collection[int]) -> None:
        if self._is_loaded:
            async with self._writer.lock:
                await self.tracker.write_usage(gpus)

    async def close(self) -> None:
        if self._is_started and self._has_duty:
            self._tick()
            problem = await self._writer.stop()
            if problem is not None:
                log.warning("what jobs used in the last minute is lost: %s", problem)

    def _tick(self) -> None:
        self._ticked_at = self._monotonic()
        self._hub.fleet.settle()
        self.tracker.tick(self._hub.fleet.table)

    async def _write(self) -> None:
        if not self._is_loaded and self._has_duty and self._is_started:
            await self._load()
        if self._is_loaded:
            await self.tracker.write()

    async def _trim(self) -> None:
        if not (self._is_loaded and self._duty.is_held) or self._monotonic() - self._trimmed_at < _TRIM_SECONDS:
            return
        self._trimmed_at = self._monotonic()
        now = self._now()
        await self.store.end_lost(now - LOST_SECONDS)
        certain = self._hub.retention.deletion_time()
        if certain is not None:
            await self.store.join_days(certain - BY_HOUR_SECONDS)
            await self.store.trim(certain - self._keep)
            self._beginning = None
