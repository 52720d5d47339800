"""/api/v1/runs and /runs/{run} (GET): programs from their start to their end. /api/v1/jobs, /jobs/{job} (GET) and
/jobs/import (POST): jobs of schedulers, their GPUs and their usage, and jobs that another monitor measured. Verdicts on
both come from the history, with the faults that the event log has of their GPUs."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct
from msgspec.structs import replace

from gpudeck.api.access import TheCaller, TheVisibility, access
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json
from gpudeck.api.history import HistoryQueries, TheHistory
from gpudeck.api.login import TheAuth, TheJobs
from gpudeck.api.parameters import TIME, TIME_SCHEMA, AtMost, GpuUuid, HostName, MaybeTime, OnlyName, read_time
from gpudeck.api.services import TheServices
from gpudeck.events.service import EventLog
from gpudeck.events.store import MAX_EVENTS, EventQuery
from gpudeck.fleet.visibility import HIDDEN, Visibility
from gpudeck.history.base import Fault, HistoryRefused, RunsQuery, VerdictQuery
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.job import MAX_IMPORTED, ImportedJob, JobImport, JobList, JobReport, JobReports, Run, Runs
from gpudeck.schedulers.job_report import add_stretches
from gpudeck.schedulers.job_store import JobQuery, import_jobs

MAX_JOBS: Final = 20
"""Only the newest tasks of a job array get a verdict."""
_CODE: Final = re.compile(r"XID (\d{1,4})\b")
_FaultsByGpu = dict[str, list[Fault]]


async def judge_runs(history: HistoryQueries, events: EventLog, runs: Sequence[Run]) -> list[Run]:
    """The same runs with their verdicts. Raises HistoryRefused, and Temporary."""
    if not runs:
        return []
    now = history.now()
    ends = [now if run.ended_at is None else run.ended_at for run in runs]
    faults = await _find_faults(events, min(run.seen_at for run in runs), max(ends))
    queries = [
        VerdictQuery(
            gpus=tuple(run.gpus),
            start=run.seen_at,
            end=end,
            run=run.id,
            is_over=run.ended_at is not None,
            command=run.command,
            faults=_faults_of(faults, run.gpus, run.seen_at, end),
        )
        for run, end in zip(runs, ends, strict=True)
    ]
    verdicts = await history.ask(lambda store: store.verdicts(queries))
    return [replace(run, verdict=verdict) for run, verdict in zip(runs, verdicts, strict=True)]


async def judge_jobs(history: HistoryQueries, events: EventLog, jobs: Sequence[JobReport]) -> None:
    """Write the verdicts into the first of these jobs. Where the history does not answer, they have none."""
    now, some = clock.wall(), jobs[:MAX_JOBS]
    ends = [now if job.ended_at is None else job.ended_at for job in some]
    faults = await _find_faults(events, min(job.start for job in some), max(ends)) if some else {}
    queries = [
        VerdictQuery(
            gpus=(uuids := tuple(gpu.uuid for gpu in job.gpus)),
            start=job.start,
            end=end,
            is_over=job.ended_at is not None,
            cpu_percent=_find_cpu(job),
            faults=_faults_of(faults, uuids, job.start, end),
        )
        for job, end in zip(some, ends, strict=True)
    ]
    with contextlib.suppress(HistoryRefused, Temporary):
        for job, verdict in zip(some, await history.ask(lambda store: store.verdicts(queries)), strict=True):
            job.verdict = verdict


def _find_cpu(job: JobReport) -> float | None:
    """How much of the cores that it may use, if that is known on all of its hosts."""
    used = [(node.cpu_mean_cores, node.cpu_limit_cores) for node in job.nodes]
    known = [(mean, limit) for mean, limit in used if mean is not None and limit]
    if not used or len(known) < len(used):
        return None
    return min(100.0, 100 * sum(mean for mean, _ in known) / sum(limit for _, limit in known))


async def _find_faults(events: EventLog, start: float, end: float) -> _FaultsByGpu:
    """The newest faults of that time; none if the event log does not answer."""
    found: _FaultsByGpu = {}
    with contextlib.suppress(Temporary):
        for event in await events.find(EventQuery(start=start, end=end, kinds=("xid",), limit=MAX_EVENTS)):
            code = _CODE.match(event.title)
            if event.gpu is not None and code is not None:
                found.setdefault(event.gpu, []).append(Fault(event.at, int(code[1])))
    return found


def _faults_of(faults: _FaultsByGpu, gpus: Sequence[str], start: float, end: float) -> tuple[Fault, ...]:
    return tuple(fault for gpu in gpus for fault in faults.get(gpu, ()) if start <= fault.at <= end)


@get("/api/v1/jobs", opt=access("read"))
async def list_jobs(
    *,
    request: HubRequest,
    jobs: TheJobs,
    user: OnlyName = None,
    account: OnlyName = None,
    partition: OnlyName = None,
    namespace: OnlyName = None,
    scheduler: OnlyName = None,
    job_state: Annotated[
        Literal["running", "ended"] | None,
        QueryParameter(name="state", description="`running`: those that have not ended"),
    ] = None,
    since: Annotated[
        str | None,
        QueryParameter(
            max_length=64, description=f"Only jobs that had not ended by then: {TIME}", schema_extra=TIME_SCHEMA
        ),
    ] = None,
    before: Annotated[
        float | None, QueryParameter(description="Only jobs that started before: `next` of a page")
    ] = None,
    limit: AtMost = 100,
) -> Response[JobList]:
    """Jobs that had GPUs of this fleet, with what of them was used."""
    now = clock.wall()
    ask = JobQuery(
        user=user,
        account=account,
        partition=partition,
        namespace=namespace,
        scheduler=scheduler,
        is_running=None if job_state is None else job_state == "running",
        since=None if since is None else read_time("since", since, now),
        before=before,
        limit=limit,
    )
    found = await jobs.search(ask, now)
    return await answer_json(request, JobList(found, found[-1].start if len(found) == limit else None))


@get(["/api/v1/jobs/{job:str}", "/api/v1/jobs/{namespace:str}/{job:str}"], opt=access("read"))
async def read_job(
    *,
    request: HubRequest,
    jobs: TheJobs,
    history: TheHistory,
    events: NamedDependency[EventLog],
    services: TheServices,
    job: Annotated[str, PathParameter(description="4711, 4711_3, SLURM_JOB_ID of a task, or the name of a pod")],
    namespace: Annotated[str | None, PathParameter(description="The namespace of a pod")] = None,
    scheduler: OnlyName = None,
) -> Response[JobReports]:
    """The report of a job, while it runs and afterwards: allocation, usage of each GPU, idle stretches, energy, cost,
    and a verdict. The id of an array has the reports of its tasks."""
    now, name = clock.wall(), job if namespace is None else f"{namespace}/{job}"
    found = await jobs.find(name, scheduler, now)
    if not found.jobs:
        hint = "`gpudeck jobs` and /api/v1/jobs list them."
        raise RequestRefused(404, "unknown_job", f"no job {name[:80]!r} is known here", hint)
    percent = services.hub.fleet.settings.availability.work_percent
    # Where the history does not answer, idle stretches are unknown.
    with contextlib.suppress(HistoryRefused, Temporary):
        await history.ask(lambda store: add_stretches(found.jobs[0], store, percent, now))
    await judge_jobs(history, events, found.jobs)
    return await answer_json(request, found)


class NewJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of one scheduler, which need not be configured."""

    scheduler: Annotated[str, Meta(min_length=1, max_length=256)]
    jobs: Annotated[list[ImportedJob], Meta(max_length=MAX_IMPORTED)]


@post("/api/v1/jobs/import", status_code=200, opt=access("admin"))
async def add_jobs(caller: TheCaller, jobs: TheJobs, auth: TheAuth, data: JSONBody[NewJobs]) -> JobImport:
    """Add jobs that have ended, as another monitor has measured them. Those whose GPUs are known here stay."""
    done = await import_jobs(jobs.service.store, data.scheduler, data.jobs, clock.wall())
    if done.imported:
        jobs.service.note_imported()
    await auth.audit.record(
        caller, "import jobs", data.scheduler, details=f"{len(done.imported)} of {len(data.jobs)} jobs"
    )
    return done


_LARGEST = 2**63 - 1


@get("/api/v1/runs", opt=access("read"))
async def list_runs(
    *,
    request: HubRequest,
    history: TheHistory,
    events: NamedDependency[EventLog],
    visibility: TheVisibility,
    start: MaybeTime = None,
    end: MaybeTime = None,
    user: OnlyName = None,
    host: HostName = None,
    gpu: GpuUuid = None,
    now: Annotated[bool, QueryParameter(description="Only those that are there now")] = False,
    limit: AtMost = 100,
    before: Annotated[int | None, QueryParameter(ge=1, le=_LARGEST, description="Only runs older than this id")] = None,
    verdict: Annotated[bool, QueryParameter(description="Also the verdict on each run: takes longer")] = False,
) -> Response[Runs]:
    """Programs that were on a GPU at some time from `start` until `end`."""
    moment = history.now()
    first = None if start is None else read_time("start", start, moment)
    last = None if end is None else read_time("end", end, moment)
    query = RunsQuery(first, last, user, host, gpu, now, limit, before)
    found = await history.ask(lambda store: store.runs(query))
    if verdict:
        found.runs = await judge_runs(history, events, found.runs)
    return await answer_json(request, await asyncio.to_thread(_encode_page, found, visibility))


@get("/api/v1/runs/{run:int}", opt=access("read"))
async def read_run(
    request: HubRequest,
    history: TheHistory,
    events: NamedDependency[EventLog],
    visibility: TheVisibility,
    run: Annotated[int, PathParameter(description="A run's id")],
) -> Response[Run]:
    """One program from its start to its end, with what it used and the verdict on it."""
    found = await history.ask(lambda store: store.run(run) if 0 < run <= _LARGEST else None)
    if found is None:
        raise HistoryRefused("unknown_run", f"the history knows no run {run}", "/api/v1/runs lists them.")
    (judged,) = await judge_runs(history, events, [found])
    return await answer_json(request, _as_seen(judged, visibility))


def _encode_page(runs: Runs, visibility: Visibility) -> bytes:
    return msgspec.json.encode(Runs([_as_seen(run, visibility) for run in runs.runs], runs.next))


def _as_seen(run: Run, visibility: Visibility) -> Run:
    """A run's command line is visible to the same callers as that of a process."""
    if run.command is None or visibility.shows_commands_of(run.user):
        return run
    return msgspec.structs.replace(run, command=None, command_reason=HIDDEN)
