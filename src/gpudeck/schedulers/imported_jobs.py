"""Jobs that another monitor has measured, written to the tables of jobs as if they had been seen here."""

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict

from gpudeck.model.job import ImportedGpu, ImportedJob, JobImport
from gpudeck.schedulers.job_store import AMOUNTS, DAY, JobGpuRecord, JobHostRecord, JobRecord, JobStore, hash_id

_NO_START = "neither the import nor this hub knows when it started"
_MEASURED = "its GPUs are known here already"
_TOO_LARGE = "its GPUs have too many days for one request with the jobs before it"
_MOST_ROWS = 50_000
"""Days of GPUs in one request."""


async def import_jobs(store: JobStore, scheduler: str, jobs: Sequence[ImportedJob]) -> JobImport:
    """A job whose GPUs are known here stays as it is. Raises Temporary."""
    found = [record for one in jobs if (record := await _find_record(store, scheduler, one)) is not None]
    measured = {gpu.job_id for gpu in await store.gpus_of([record.id for record in found])}
    records = {record.job: record for record in found}
    there = {one.job: _MEASURED for one in jobs if one.job in records and records[one.job].id in measured}
    refused = {one.job: _NO_START for one in jobs if one.job not in records}
    new: list[ImportedJob] = []
    rows = 0
    for one in jobs:
        if one.job in there or one.job in refused:
            continue
        rows += len(one.gpus) * (2 + int(one.seconds // DAY))
        if rows > _MOST_ROWS:
            refused[one.job] = _TOO_LARGE
        else:
            new.append(one)
    await store.write_jobs([records[one.job] for one in new])
    await store.write_gpus([_make_gpu(records[one.job], gpu) for one in new for gpu in one.gpus])
    hosts = ((records[one.job], node) for one in new for node in one.nodes)
    await store.write_hosts(
        [JobHostRecord(job_id=job.id, read_at=job.last_seen, **asdict(node)) for job, node in hosts]
    )
    usage = (
        (hash_id(records[one.job].id, _name(gpu)), day, _measure(gpu, seconds))
        for one in new
        for day, seconds in _split(records[one.job].start, one.seconds)
        for gpu in one.gpus
    )
    await store.write_usage(usage, DAY)
    return JobImport([one.job for one in new], there, refused)


async def _find_record(store: JobStore, scheduler: str, one: ImportedJob) -> JobRecord | None:
    start = one.start
    if start is None:
        known = await store.find_starts(one.job, scheduler, 1)
        if not known or known[0].job != one.job:
            return None
        start = known[0].start
    return JobRecord(
        id=store.make_id(scheduler, one.job, start),
        scheduler=scheduler,
        job=one.job,
        start=start,
        name=one.name,
        user=one.user,
        account=one.account,
        partition=one.partition,
        qos=one.qos,
        since=start,
        first_seen=start,
        last_seen=start + one.seconds,
        ended_at=start + one.seconds,
        outcome=one.outcome,
    )


def _name(gpu: ImportedGpu) -> str:
    """In place of a UUID, which is not known."""
    return f"{gpu.host}:{gpu.label}"


def _make_gpu(record: JobRecord, gpu: ImportedGpu) -> JobGpuRecord:
    return JobGpuRecord(
        id=hash_id(record.id, _name(gpu)),
        job_id=record.id,
        uuid=_name(gpu),
        host=gpu.host,
        host_id="",
        label=gpu.label,
        model="",
        memory_bytes=None if gpu.memory_total_bytes is None else int(gpu.memory_total_bytes),
        is_used=int(bool(gpu.utilization_percent or gpu.memory_peak_bytes)),
    )


def _split(start: float, seconds: float) -> Iterator[tuple[int, float]]:
    """Each UTC day with the part of the job that lies in it."""
    end, day = start + seconds, int(start // DAY) * DAY
    while day < end:
        yield day, min(end, day + DAY) - max(start, day)
        day += DAY


def _measure(gpu: ImportedGpu, seconds: float) -> list[float]:
    known = {
        "allocated": seconds,
        "used": seconds * bool(gpu.utilization_percent or gpu.memory_peak_bytes),
        "active": seconds * (gpu.utilization_percent or 0.0) / 100,
        "measured": seconds * (gpu.utilization_percent is not None),
        "memory_peak": gpu.memory_peak_bytes or 0.0,
    }
    return [known.get(name, 0.0) for name in AMOUNTS]
