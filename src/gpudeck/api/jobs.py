"""GET /api/v1/jobs and /api/v1/jobs/{job}: jobs of schedulers, their GPUs and their usage. POST /api/v1/jobs/import:
jobs that another monitor measured."""

import contextlib
from typing import Annotated, Literal

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json, documented
from gpudeck.api.history import TheHistory
from gpudeck.api.login import TheAuth, TheJobs
from gpudeck.api.parameters import TIME, TIME_SCHEMA, AtMost, OnlyName, read_time
from gpudeck.api.services import TheServices
from gpudeck.api.verdicts import judge_jobs
from gpudeck.events.service import EventLog
from gpudeck.history.base import HistoryRefused
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.job import MAX_IMPORTED, ImportedJob, JobImport, JobList, JobReports
from gpudeck.schedulers.job_report import add_stretches
from gpudeck.schedulers.job_store import JobQuery, import_jobs


@get(
    "/api/v1/jobs",
    opt=access("read"),
    responses=documented(JobList, "The newest first; empty where no scheduler is read"),
)
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
) -> Response[bytes]:
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
    return await answer_json(
        request, msgspec.json.encode(JobList(found, found[-1].start if len(found) == limit else None))
    )


@get(
    ["/api/v1/jobs/{job:str}", "/api/v1/jobs/{namespace:str}/{job:str}"],
    opt=access("read"),
    responses=documented(JobReports, "The starts of the job, the newest first"),
)
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
) -> Response[bytes]:
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
    return await answer_json(request, msgspec.json.encode(found))


class NewJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of one scheduler, which need not be configured."""

    scheduler: Annotated[str, Meta(min_length=1, max_length=256)]
    jobs: Annotated[list[ImportedJob], Meta(max_length=MAX_IMPORTED)]


@post(
    "/api/v1/jobs/import",
    status_code=200,
    opt=access("admin"),
    responses=documented(JobImport, "What was imported, and what was not"),
)
async def add_jobs(request: HubRequest, jobs: TheJobs, auth: TheAuth, data: JSONBody[NewJobs]) -> JobImport:
    """Add jobs that have ended, as another monitor has measured them. Those whose GPUs are known here stay."""
    done = await import_jobs(jobs.service.store, data.scheduler, data.jobs, clock.wall())
    if done.imported:
        jobs.service.note_imported()
    await auth.audit.record(
        caller_of(request), "import jobs", data.scheduler, details=f"{len(done.imported)} of {len(data.jobs)} jobs"
    )
    return done
