"""Jobs that another monitor has measured, written to the tables of jobs as if they had been seen here."""

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict

from gpudeck.model.job import ImportedGpu, ImportedJob, JobImport, JobNotImported
from gpudeck.schedulers.job_store import AMOUNTS, DAY, JobGpuRecord, JobHostRecord, JobRecord, JobStore, hash_id

_NO_START = "neither the import nor this hub knows when it started"
_MEASURED = "its GPUs are known here already"
_TWICE = "this start is listed twice"
_NOT_ENDED = "it ends in the future: it is not over, or a clock is wrong"
_TOO_LARGE = "its GPUs have too many days for one request with the jobs before it"
_SKEW_SECONDS = 60.0
"""So far the clocks of the hub and of the other monitor may differ."""
_MOST_ROWS = 50_000
"""Days of GPUs in one request."""


async def import_jobs(store: JobStore, scheduler: str, jobs: Sequence[ImportedJob], now: float) -> JobImport:
    """Each start of a job is one of its own. One whose GPUs are known here stays as it is. Raises Temporary."""
    done = JobImport([])
    records: dict[int, tuple[JobRecord, ImportedJob]] = {}
    rows = 0
    for one in jobs:
        record = await _find_record(store, scheduler, one)
        rows += len(one.gpus) * (2 + int(one.seconds // DAY))
        if record is None or record.last_seen > now + _SKEW_SECONDS or rows > _MOST_ROWS:
            why = _NO_START if record is None else _TOO_LARGE if rows > _MOST_ROWS else _NOT_ENDED
            done.refused.append(JobNotImported(one.job, one.start, why))
        elif record.id in records:
            done.there.append(JobNotImported(one.job, record.start, _TWICE))
        else:
            records[record.id] = record, one
    for known in {gpu.job_id for gpu in await store.gpus_of(list(records))}:
        record, _ = records.pop(known)
        done.there.append(JobNotImported(record.job, record.start, _MEASURED))
    new = list(records.values())
    await store.write_jobs([record for record, _ in new])
    await store.write_gpus([_make_gpu(record, gpu) for record, one in new for gpu in one.gpus])
    hosts = ((record, node) for record, one in new for node in one.nodes)
    await store.write_hosts(
        [JobHostRecord(job_id=job.id, read_at=job.last_seen, **asdict(node)) for job, node in hosts]
    )
    usage = (
        (hash_id(record.id, _name(gpu)), day, _measure(gpu, seconds))
        for record, one in new
        for day, seconds in _split(record.start, one.seconds)
        for gpu in one.gpus
    )
    await store.write_usage(usage, DAY)
    done.imported.extend(record.job for record, _ in new)
    return done


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
    if gpu.utilization_percent is None and gpu.memory_peak_bytes is None:
        return [seconds * (name == "unobserved") for name in AMOUNTS]
    known = {
        "allocated": seconds,
        "used": seconds * bool(gpu.utilization_percent or gpu.memory_peak_bytes),
        "active": seconds * (gpu.utilization_percent or 0.0) / 100,
        "measured": seconds * (gpu.utilization_percent is not None),
        "memory_peak": gpu.memory_peak_bytes or 0.0,
    }
    return [known.get(name, 0.0) for name in AMOUNTS]
