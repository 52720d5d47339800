"""/api/v1/runs and /runs/{run} (GET): programs from their start to their end. /api/v1/jobs, /jobs/{job} (GET) and
/jobs/import (POST): jobs of schedulers, their GPUs and their usage, and jobs that another monitor measured."""

import asyncio
import contextlib
from typing import Annotated, Literal

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import TheCaller, TheVisibility, access
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json
from gpudeck.api.history import TheHistory
from gpudeck.api.login import TheAuth, TheJobs
from gpudeck.api.parameters import TIME, TIME_SCHEMA, AtMost, GpuUuid, HostName, MaybeTime, OnlyName, read_time
from gpudeck.api.services import TheServices
from gpudeck.api.verdicts import judge_jobs, judge_runs
from gpudeck.events.service import EventLog
from gpudeck.fleet.visibility import HIDDEN, Visibility
from gpudeck.history.base import HistoryRefused, RunsQuery
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.job import MAX_IMPORTED, ImportedJob, JobImport, JobList, JobReports, Run, Runs
from gpudeck.schedulers.job_report import add_stretches
from gpudeck.schedulers.job_store import JobQuery, import_jobs


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
