"""Jobs, their GPUs and the usage of these, in the database. Ids are hashes of the row's subject, and a row of
`job_usage` has the sums of its whole hour, so writing a row twice changes nothing."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Table, and_, bindparam, case, delete, exists, func, literal, or_, select, update

from gpudeck.database.engine import FleetStore, delete_old
from gpudeck.database.schema import job_gpus, job_hosts, job_usage, jobs
from gpudeck.model.job import ImportedGpu, ImportedJob, JobImport, JobNotImported
from gpudeck.model.text import clean
from gpudeck.schedulers.base import EndedJob

HOUR: Final = 3600
DAY: Final = 86_400
BY_HOUR_SECONDS: Final = 8 * DAY
"""How long usage is kept by the hour. After that it is kept by the day, in UTC."""
_AT_ONCE: Final = 250
PEAKS: Final = ("memory_peak", "utilization_peak")
AMOUNTS: Final = tuple(column.name for column in job_usage.c if not column.primary_key)

T = TypeVar("T")
_Record = TypeVar("_Record", bound=Struct)


class JobRecord(Struct, kw_only=True):
    """One start of a job. `start` is `since`, or `first_seen` where that is not known. `number` is the scheduler's own
    number of it where users know it by another id."""

    id: int
    scheduler: str
    job: str
    start: float
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    namespace: str | None = None
    labels: str | None = None
    since: float | None = None
    until: float | None = None
    is_suspended: int = 0
    first_seen: float
    last_seen: float
    ended_at: float | None = None
    outcome: str | None = None
    number: str | None = None


class JobGpuRecord(Struct, kw_only=True):
    """`host_id` is empty if another monitor has measured it: see `imported_jobs`."""

    id: int
    job_id: int
    uuid: str
    host: str
    host_id: str
    label: str
    model: str
    memory_bytes: int | None = None
    is_used: int = 0
    is_shared: int = 0


class JobHostRecord(Struct, kw_only=True):
    """A job on one host. `memory_sum` is of `memory_readings`; `read_at` is the last reading on the hub's clock."""

    job_id: int
    host: str
    read_at: float
    cpu_seconds: float | None = None
    cpu_peak_cores: float | None = None
    cpu_limit_cores: float | None = None
    memory_peak_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_sum: float = 0.0
    memory_readings: float = 0.0
    reason: str | None = None


class JobQuery(Struct, frozen=True, kw_only=True):
    """Filters of jobs: not ended by `since`, started before `before`."""

    user: str | None = None
    account: str | None = None
    partition: str | None = None
    namespace: str | None = None
    scheduler: str | None = None
    is_running: bool | None = None
    since: float | None = None
    before: float | None = None
    limit: int = 100


class UsageSum(NamedTuple):
    """Sums over some job-GPUs. `names` are the values grouped by. `amounts` are AMOUNTS and three more: the allocated
    seconds of GPUs that were `never_used`, the used seconds that another monitor measured (`imported`), and the
    allocated seconds of `shared` GPUs."""

    names: tuple[str | None, ...]
    amounts: dict[str, float]


def hash_id(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


class JobStore(FleetStore):
    """Jobs of one fleet. All methods raise Temporary if the database does not answer."""

    def make_id(self, scheduler: str, job: str, start: float) -> int:
        return hash_id(self._fleet, scheduler, job, start)

    async def write_jobs(self, records: Sequence[JobRecord]) -> None:
        """An end that the scheduler reported is not overwritten."""
        rows = ({"fleet": self._fleet} | _fit(jobs, asdict(one)) for one in records)
        await self._upsert(jobs, rows, keep={"id", "fleet", "first_seen"}, unless_told=("ended_at", "outcome"))

    async def write_gpus(self, records: Sequence[JobGpuRecord]) -> None:
        rows = (_fit(job_gpus, asdict(one)) for one in records)
        await self._upsert(job_gpus, rows, keep={"id", "job_id", "uuid"})

    async def write_hosts(self, records: Sequence[JobHostRecord]) -> None:
        rows = (_fit(job_hosts, asdict(one)) for one in records)
        await self._upsert(job_hosts, rows, keep={"job_id", "host"})

    async def hosts_of(self, job_ids: Sequence[int]) -> list[JobHostRecord]:
        return await self._select(JobHostRecord, job_hosts.c.job_id, job_ids)

    async def gpus_of(self, job_ids: Sequence[int]) -> list[JobGpuRecord]:
        found = await self._select(JobGpuRecord, job_gpus.c.job_id, job_ids)
        return sorted(found, key=lambda one: (one.host, len(one.label), one.label))

    async def write_usage(self, rows: Iterable[tuple[int, int, Sequence[float]]], span: int = HOUR) -> None:
        """Rows are the id of a job-GPU, an hour or UTC day (`span`), and its sums so far in the order of AMOUNTS.
        The larger of two sums is kept: time that a clock repeats, or that two hubs count, counts once."""
        made = (
            {"span": span, "start": start, "job_gpu_id": gpu, **dict(zip(AMOUNTS, amounts, strict=True))}
            for gpu, start, amounts in rows
        )
        await self._upsert(job_usage, made, keep={"span", "start", "job_gpu_id"}, larger=AMOUNTS)

    async def touch(self, job_ids: Iterable[int], now: float) -> None:
        """These jobs have their GPUs now. If the scheduler reported the end of one, it has just ended."""
        ended_at = case((jobs.c.outcome.is_not(None), jobs.c.ended_at), else_=None)
        for some in _batches(job_ids):
            wanted = jobs.c.id.in_(some)
            await self._database.execute(update(jobs).where(wanted).values(last_seen=now, ended_at=ended_at))

    async def note_ends(self, scheduler: str, ended: Sequence[EndedJob]) -> None:
        """Ends of jobs from the scheduler's accounting. Unknown jobs are ignored."""
        rows = (
            {"row": self.make_id(scheduler, one.job, one.start), "end": one.end, "word": one.outcome} for one in ended
        )
        values: dict[str, Any] = {"ended_at": bindparam("end"), "outcome": bindparam("word")}
        for some in _batches(rows):
            await self._database.execute(update(jobs).where(jobs.c.id == bindparam("row")).values(values), some)

    async def end_lost(self, before: float) -> None:
        """End jobs that were not seen since `before`, at the time they were last seen."""
        is_lost = and_(jobs.c.fleet == self._fleet, jobs.c.ended_at.is_(None), jobs.c.last_seen < before)
        await self._database.execute(update(jobs).where(is_lost).values(ended_at=jobs.c.last_seen))

    async def has_jobs(self) -> bool:
        found = await self._database.execute(select(jobs.c.id).where(jobs.c.fleet == self._fleet).limit(1))
        return found.first() is not None

    async def find_beginning(self) -> float | None:
        """When the first job was seen by this hub, among the oldest starts (a job without a start is one of them).
        Imported jobs do not count."""
        is_own = exists().where(job_gpus.c.job_id == jobs.c.id, job_gpus.c.host_id != "")
        oldest = select(jobs.c.first_seen).where(jobs.c.fleet == self._fleet, is_own).order_by(jobs.c.start)
        seen = select(func.min(oldest.limit(_AT_ONCE).subquery().c.first_seen))
        found: float | None = (await self._database.execute(seen)).scalar()
        return found

    async def open_jobs(self) -> list[JobRecord]:
        return await self._find_jobs(jobs.c.ended_at.is_(None))

    async def find(self, query: JobQuery) -> list[JobRecord]:
        named = {name: value for name in _FILTERS if (value := getattr(query, name)) is not None}
        wanted = [jobs.c.job != "", *(jobs.c[name] == clean(value) for name, value in named.items())]
        if query.is_running is not None:
            wanted.append(jobs.c.ended_at.is_(None) if query.is_running else jobs.c.ended_at.is_not(None))
        if query.since is not None:
            wanted.append(or_(jobs.c.ended_at.is_(None), jobs.c.ended_at > query.since))
        if query.before is not None:
            wanted.append(jobs.c.start < query.before)
        return await self._find_jobs(*wanted, limit=query.limit)

    async def find_starts(self, job: str, scheduler: str | None, limit: int) -> list[JobRecord]:
        """All starts of a job, the newest first. The id of an array finds its tasks. An id that no job has may be
        the number of a task (SLURM_JOB_ID)."""
        job = clean(job)
        of = [] if scheduler is None else [jobs.c.scheduler == clean(scheduler)]
        exact = await self._find_jobs(jobs.c.job == job, *of, limit=limit)
        if exact or not job.isdigit():
            return exact
        tasks = (jobs.c.job.startswith(f"{job}{sign}", autoescape=True) for sign in "_+")
        found = await self._find_jobs(or_(*tasks), *of, limit=limit)
        return found or await self._find_jobs(jobs.c.number == job, *of, limit=limit)

    async def amounts_of(self, gpu_ids: Sequence[int]) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for some in _batches(gpu_ids):
            wanted = select(job_usage.c.job_gpu_id, *_added()).where(job_usage.c.job_gpu_id.in_(some))
            rows = await self._database.execute(wanted.group_by(job_usage.c.job_gpu_id))
            found |= {row.job_gpu_id: {name: getattr(row, name) for name in AMOUNTS} for row in rows}
        return found

    async def usage_of_hour(self, hour: int) -> dict[int, list[float]]:
        columns = [job_usage.c[name] for name in AMOUNTS]
        wanted = select(job_usage.c.job_gpu_id, *columns).where(job_usage.c.span == HOUR, job_usage.c.start == hour)
        return {row[0]: list(row[1:]) for row in await self._database.execute(wanted)}

    async def sum_usage(
        self, start: float, end: float, now: float, by: Sequence[str], only: Mapping[str, str]
    ) -> list[UsageSum]:
        """The sums of a period, grouped by the columns `by`; `only` are required values of columns. An hour or day
        that lies partly in the period counts in proportion to time."""
        found: dict[tuple[str | None, ...], dict[str, float]] = {}
        for span, begin, stop, share in _cut(start, end, now):
            for row in await self._database.execute(self._select_sums(span, begin, stop, by, only)):
                names, values = tuple(row[: len(by)]), zip((*AMOUNTS, *_OF_GPUS), row[len(by) :], strict=True)
                amounts = {name: value if name in PEAKS else share * value for name, value in values}
                found[names] = add_amounts(found[names], amounts) if names in found else amounts
        return [UsageSum(names, amounts) for names, amounts in found.items()]

    async def join_days(self, before: float) -> None:
        """Merge the hours of days before `before` into UTC days, the oldest day first, each in its own transaction."""
        usage = job_usage.c
        oldest = select(func.min(usage.start)).where(usage.span == HOUR)
        while (first := (await self._database.execute(oldest)).scalar()) is not None:
            day = first // DAY * DAY
            if day + DAY > before:
                return
            is_old = and_(usage.span == HOUR, usage.start >= day, usage.start < day + DAY)
            sums = select(literal(DAY), literal(day), usage.job_gpu_id, *_added()).where(is_old)
            names = ["span", "start", "job_gpu_id", *AMOUNTS]
            put = self._database.insert(job_usage).from_select(names, sums.group_by(usage.job_gpu_id))
            async with self._database.begin() as connection:
                await connection.execute(put.on_conflict_do_update(set_=self._larger(put, AMOUNTS), **_KEY))
                await connection.execute(delete(job_usage).where(is_old))

    async def trim(self, before: float) -> None:
        await delete_old(self._database, jobs, jobs.c.last_seen, jobs.c.last_seen < before)
        await self._database.execute(delete(job_usage).where(job_usage.c.start < before - DAY))

    async def _select(self, kind: type[_Record], column: Any, ids: Sequence[int]) -> list[_Record]:
        columns = [column.table.c[name] for name in kind.__struct_fields__]
        found: list[_Record] = []
        for some in _batches(ids):
            rows = await self._database.execute(select(*columns).where(column.in_(some)))
            found += [kind(**row) for row in rows.mappings()]
        return found

    async def _find_jobs(self, *wanted: ColumnElement[bool], limit: int | None = None) -> list[JobRecord]:
        columns = [jobs.c[name] for name in JobRecord.__struct_fields__]
        query = select(*columns).where(jobs.c.fleet == self._fleet, *wanted)
        rows = await self._database.execute(query.order_by(jobs.c.start.desc(), jobs.c.id).limit(limit))
        return [JobRecord(**row) for row in rows.mappings()]

    def _select_sums(self, span: int, begin: int, stop: int, by: Sequence[str], only: Mapping[str, str]) -> Any:
        """Sums by GPU come first: there are few, so their names are looked up once."""
        usage = job_usage.c
        inside = and_(usage.span == span, usage.start >= begin, usage.start < stop)
        of = select(usage.job_gpu_id, *_added()).where(inside).group_by(usage.job_gpu_id).subquery().c
        columns = [_column(name) for name in by]
        # A host is named by its name or its id.
        conditions = [
            or_(*(_column(name) == clean(value) for name in (("host", "host_id") if key == "host" else (key,))))
            for key, value in only.items()
        ]
        sums = [(func.max if name in PEAKS else func.sum)(of[name]) for name in AMOUNTS]
        sums += [func.sum(case((is_one, of[name]), else_=0.0)) for is_one, name in _OF_GPUS.values()]
        wanted = (
            select(*columns, *sums)
            .join(job_gpus, of.job_gpu_id == job_gpus.c.id)
            .join(jobs, job_gpus.c.job_id == jobs.c.id)
            .where(jobs.c.fleet == self._fleet, *conditions)
        )
        return wanted.group_by(*columns)

    async def _upsert(
        self,
        table: Table,
        rows: Iterable[dict[str, Any]],
        *,
        keep: set[str],
        larger: Sequence[str] = (),
        unless_told: Sequence[str] = (),
    ) -> None:
        """In several transactions, so that other writers and the event loop run in between."""
        put = self._database.insert(table)
        names = [column.name for column in table.c if column.name not in keep]
        changed = {name: put.excluded[name] for name in names if name not in larger} | self._larger(put, larger)
        for name in unless_told:
            changed[name] = case((table.c.outcome.is_not(None), table.c[name]), else_=put.excluded[name])
        put = put.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=changed)
        for some in _batches(rows):
            await self._database.execute(put, some)

    def _larger(self, put: Any, names: Iterable[str]) -> dict[str, Any]:
        pick = func.max if self._database.kind == "sqlite" else func.greatest
        return {name: pick(put.table.c[name], put.excluded[name]) for name in names}


_OF_GPUS: Final = {
    "never_used": (job_gpus.c.is_used == 0, "allocated"),
    "imported": (job_gpus.c.host_id == "", "used"),
    "shared": (job_gpus.c.is_shared == 1, "allocated"),
}
"""Amounts of some GPUs only."""
_FILTERS: Final = ("user", "account", "partition", "namespace", "scheduler")
_KEY: Final[dict[str, Any]] = {"index_elements": list(job_usage.primary_key.columns)}


def _column(name: str) -> Any:
    return jobs.c[name] if name in jobs.c else job_gpus.c[name]


def _cut(start: float, end: float, now: float) -> Iterator[tuple[int, int, int, float]]:
    """The span of rows, the range of their starts, and the share of each that lies in the period. The current hour
    ends now."""
    for span, together in ((HOUR, DAY), (DAY, 14 * DAY)):
        at = int(start // span) * span
        while at < end:
            until = now if at < now < at + span else float(at + span)
            stop = at + span
            share = (min(until, end) - max(at, start)) / (until - at)
            if share == 1.0:
                stop = max(stop, min(at // together * together + together, int(end // span) * span))
            yield span, at, stop, share
            at = stop


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(rows)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def _added() -> list[Any]:
    return [(func.max if name in PEAKS else func.sum)(job_usage.c[name]).label(name) for name in AMOUNTS]


def add_amounts(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one[name], value) if name in PEAKS else one[name] + value for name, value in other.items()}


def write_labels(labels: Mapping[str, str] | None) -> str | None:
    return json.dumps(labels, sort_keys=True) if labels else None


def read_labels(text: str | None) -> dict[str, str]:
    return json.loads(text) if text else {}


def _fit(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    """Shorten text to its column and remove NUL characters, which PostgreSQL refuses."""
    for name, value in row.items():
        if isinstance(value, str):
            row[name] = clean(value)[: getattr(table.c[name].type, "length", None)]
    return row


_NO_START = "neither the import nor this hub knows when it started"
_MEASURED = "its GPUs are known here already"
_TWICE = "this start is listed twice"
_NOT_ENDED = "it ends in the future: it is not over, or a clock is wrong"
_TOO_LARGE = "its GPUs have too many days for one request with the jobs before it"
_SKEW_SECONDS = 60.0
"""Tolerated difference between the clocks of the hub and of the other monitor."""
_MAX_ROWS = 50_000
"""Days of GPUs in one request."""


async def import_jobs(store: JobStore, scheduler: str, jobs: Sequence[ImportedJob], now: float) -> JobImport:
    """Import each start of a job. A start whose GPUs are known here stays as it is. Raises Temporary."""
    done = JobImport([])
    records: dict[int, tuple[JobRecord, ImportedJob]] = {}
    rows = 0
    for one in jobs:
        record = await _find_record(store, scheduler, one)
        rows += len(one.gpus) * (2 + int(one.seconds // DAY))
        if record is None or record.last_seen > now + _SKEW_SECONDS or rows > _MAX_ROWS:
            why = _NO_START if record is None else _TOO_LARGE if rows > _MAX_ROWS else _NOT_ENDED
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
        start=start,
        since=start,
        first_seen=start,
        last_seen=start + one.seconds,
        ended_at=start + one.seconds,
        **{name: getattr(one, name) for name in ("job", "name", "user", "account", "partition", "qos", "outcome")},
    )


def _name(gpu: ImportedGpu) -> str:
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
