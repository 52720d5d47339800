"""GET /api/v1/runs and /runs/{run}: programs from their start to their end."""

import asyncio
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, answer_json, documented
from gpudeck.api.history import TheHistory
from gpudeck.api.parameters import AtMost, GpuUuid, HostName, MaybeTime, OnlyName, read_time
from gpudeck.api.verdicts import judge_runs
from gpudeck.events.service import EventLog
from gpudeck.fleet.visibility import HIDDEN, Visibility
from gpudeck.history.base import HistoryRefused, RunsQuery
from gpudeck.model.job import Run, Runs

_LARGEST = 2**63 - 1


@get(
    "/api/v1/runs",
    opt=access("read"),
    responses=documented(Runs, "The newest first; `next` is the `before` of the next page"),
)
async def list_runs(
    *,
    request: HubRequest,
    history: TheHistory,
    events: NamedDependency[EventLog],
    policy: ThePolicy,
    start: MaybeTime = None,
    end: MaybeTime = None,
    user: OnlyName = None,
    host: HostName = None,
    gpu: GpuUuid = None,
    now: Annotated[bool, QueryParameter(description="Only those that are there now")] = False,
    limit: AtMost = 100,
    before: Annotated[int | None, QueryParameter(ge=1, le=_LARGEST, description="Only runs older than this id")] = None,
    verdict: Annotated[bool, QueryParameter(description="Also the verdict on each run: takes longer")] = False,
) -> Response[bytes]:
    """Programs that were on a GPU at some time from `start` until `end`."""
    moment = history.now()
    first = None if start is None else read_time("start", start, moment)
    last = None if end is None else read_time("end", end, moment)
    query = RunsQuery(first, last, user, host, gpu, now, limit, before)
    visibility = policy.visibility(caller_of(request))
    found = await history.ask(lambda store: store.runs(query))
    if verdict:
        found.runs = await judge_runs(history, events, found.runs)
    return await answer_json(request, await asyncio.to_thread(_encode_page, found, visibility))


@get(
    "/api/v1/runs/{run:int}",
    opt=access("read"),
    responses=documented(Run, "The run"),
)
async def read_run(
    request: HubRequest,
    history: TheHistory,
    events: NamedDependency[EventLog],
    policy: ThePolicy,
    run: Annotated[int, PathParameter(description="A run's id")],
) -> Response[bytes]:
    """One program from its start to its end, with what it used and the verdict on it."""
    found = await history.ask(lambda store: store.run(run) if 0 < run <= _LARGEST else None)
    if found is None:
        raise HistoryRefused("unknown_run", f"the history knows no run {run}", "/api/v1/runs lists them.")
    (judged,) = await judge_runs(history, events, [found])
    return await answer_json(request, msgspec.json.encode(_as_seen(judged, policy.visibility(caller_of(request)))))


def _encode_page(runs: Runs, visibility: Visibility) -> bytes:
    return msgspec.json.encode(Runs([_as_seen(run, visibility) for run in runs.runs], runs.next))


def _as_seen(run: Run, visibility: Visibility) -> Run:
    """A run's command line is visible to the same callers as that of a process."""
    if run.command is None or visibility.shows_commands_of(run.user):
        return run
    return msgspec.structs.replace(run, command=None, command_reason=HIDDEN)
