"""CPU and memory of jobs on their hosts, from the cgroups of jobs that agents report.

fleet (`HostState.job_cgroups`) → JobHosts (sums of each job on each host) → JobStore (job_hosts)
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import asdict

from gpudeck.fleet.table import FleetTable
from gpudeck.model.allocation import Allocation
from gpudeck.model.job import JobNode
from gpudeck.model.report import JobCgroup
from gpudeck.schedulers.job_store import JobHostRecord, JobRecord, JobStore

_MIN_SECONDS: Final = 5.0
"""Cores in use are not computed from two readings that are closer together."""
_UNREAD: Final = "no agent has read the job's cgroup there: it reads those of processes that are on GPUs"
_Key = tuple[int, str]


class JobHosts:
    """CPU and memory of jobs that have not ended. Not thread-safe: used on one event loop."""

    def __init__(self) -> None:
        self._last: dict[_Key, JobCgroup] = {}
        self._records: dict[_Key, JobHostRecord] = {}
        self._changed: set[_Key] = set()

    def adopt(self, records: Collection[JobHostRecord]) -> None:
        self._records = {(one.job_id, one.host): one for one in records} | self._records

    def update(self, table: FleetTable, find: Callable[[Allocation], JobRecord | None], now: float) -> None:
        for host in table.host_at:
            if host is None or not host.job_cgroups:
                continue
            allocations = [gpu.scheduling.allocation for gpu in host.gpus.values()]
            # Processes have Slurm's own number of a job.
            named = {one.number or one.job: one for one in allocations if one is not None and one.job}
            for cgroup in host.job_cgroups:
                job = find(named[cgroup.job]) if cgroup.job in named else None
                if job is not None:
                    self._add(job.id, host.name, cgroup, now)

    def of(self, job_id: int) -> dict[str, JobHostRecord]:
        return {host: one for (job, host), one in self._records.items() if job == job_id}

    async def write(self, store: JobStore, running: Collection[int]) -> None:
        """Write changes, then forget all jobs but `running`. Raises Temporary, and keeps what is not written."""
        changed, self._changed = self._changed, set()
        try:
            await store.write_hosts([self._records[key] for key in changed])
        except BaseException:
            self._changed |= changed
            raise
        for key in self._records.keys() - self._changed:
            if key[0] not in running:
                del self._records[key]
                self._last.pop(key, None)

    def _add(self, job_id: int, host: str, new: JobCgroup, now: float) -> None:
        key = job_id, host
        last = self._last.get(key)
        if last is not None and new.read_at == last.read_at:
            return
        self._last[key] = new
        self._changed.add(key)
        known = self._records.setdefault(key, JobHostRecord(job_id=job_id, host=host, read_at=now))
        known.read_at, known.reason = now, "; ".join(dict.fromkeys(new.reasons.values())) or None
        known.cpu_limit_cores, known.memory_limit_bytes = new.cpu_limit_cores, new.memory_limit_bytes
        if new.cpu_seconds is not None:
            known.cpu_seconds = max(known.cpu_seconds or 0.0, new.cpu_seconds)
            elapsed = 0.0 if last is None else new.read_at - last.read_at
            if last is not None and last.cpu_seconds is not None and elapsed >= _MIN_SECONDS:
                cores = max(0.0, new.cpu_seconds - last.cpu_seconds) / elapsed
                known.cpu_peak_cores = max(known.cpu_peak_cores or 0.0, cores)
        if new.memory_used_bytes is not None:
            known.memory_sum += new.memory_used_bytes
            known.memory_readings += 1
            known.memory_peak_bytes = max(known.memory_peak_bytes or 0, new.memory_used_bytes)


def show_nodes(hosts: Sequence[str], known: Mapping[str, JobHostRecord], start: float) -> list[JobNode]:
    shown = []
    for host in hosts:
        one = known.get(host)
        if one is None:
            shown.append(JobNode(host=host, reason=_UNREAD))
            continue
        wall = one.read_at - start
        facts = {name: value for name, value in asdict(one).items() if name in JobNode.__struct_fields__}
        mean = None if one.cpu_seconds is None or wall <= 0 else one.cpu_seconds / wall
        memory = one.memory_sum / one.memory_readings if one.memory_readings else None
        shown.append(JobNode(**facts, cpu_mean_cores=mean, memory_mean_bytes=memory))
    return shown
