"""Verdicts on runs and jobs: what the history is asked, with the faults that the event log has of their GPUs."""

import contextlib
import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gpudeck.api.history import HistoryQueries
from gpudeck.events.service import EventLog
from gpudeck.events.store import MAX_EVENTS, EventQuery
from gpudeck.history.base import Fault, HistoryRefused, VerdictQuery
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.job import JobReport, Run

MAX_JOBS: Final = 20
"""Of an array's tasks the newest are judged."""
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
    """Of that time the newest; none where the log does not answer."""
    found: _FaultsByGpu = {}
    with contextlib.suppress(Temporary):
        for event in await events.find(EventQuery(start=start, end=end, kinds=("xid",), limit=MAX_EVENTS)):
            code = _CODE.match(event.title)
            if event.gpu is not None and code is not None:
                found.setdefault(event.gpu, []).append(Fault(event.at, int(code[1])))
    return found


def _faults_of(faults: _FaultsByGpu, gpus: Sequence[str], start: float, end: float) -> tuple[Fault, ...]:
    return tuple(fault for gpu in gpus for fault in faults.get(gpu, ()) if start <= fault.at <= end)
