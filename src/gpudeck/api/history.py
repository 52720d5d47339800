"""GET /api/v1/history, /history/overview, /history/heat and /usage: what was measured, who used it.

`HistoryQueries` runs one query at a time, in a thread, so that heavy ones never starve the live fleet. Two at once
would not be answered sooner, and would delay the event loop three times as much. Others wait in a fair queue, see
docs/limits.md.
"""

import asyncio
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import partial
from time import monotonic, thread_time
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, answer_csv, answer_json, respond
from gpudeck.api.login import TheJobs
from gpudeck.api.parameters import GpuUuid, HostName, JobLabel, OnlyName, Time, Zone, ZonedTime, read_span
from gpudeck.history.base import (
    MAX_POINTS,
    Heat,
    HeatQuery,
    HistoryRefused,
    Overview,
    OverviewQuery,
    SeriesQuery,
    Store,
    UsageQuery,
)
from gpudeck.history.time_range import load_zone
from gpudeck.history.usage import to_csv
from gpudeck.model import clock
from gpudeck.model.cpu_budget import CpuBudget, checkpoint
from gpudeck.model.history import Answer
from gpudeck.model.usage import By, Usage, UsageBy
from gpudeck.server.admission import exclude_wait
from gpudeck.server.rate_limits import FairQueue, RateLimiter

MAX_WAITING: Final = 32
SHARE, AT_FULL_SPEED = 0.25, 0.5
"""The part of one processor that questions have when they do not end, and the seconds of work for which they have all
of it: pages with a dozen charts do not notice, and a flood of questions is not noticed by the live fleet."""
FORGOTTEN_PER_SECOND, MAX_DEBT = 0.01, 2.0
"""How much of the work of its questions an asker is forgiven in each second, and for how many seconds of work it comes
after other askers at most."""
CACHED_SECONDS: Final = 60
"""Seconds for which a client may keep an answer about the past."""
_NOT_FOUND: Final = {"no_history", "unknown_gpu", "unknown_host", "unknown_run"}

T = TypeVar("T")
A = TypeVar("A", bound=Response[Any])
_asker: ContextVar[Hashable] = ContextVar("asker", default=None)
_Metric = Annotated[str, QueryParameter(max_length=128, description="Such as utilization_percent or host_cpu_percent")]


def note_asker(asker: Hashable) -> None:
    """Set the key by which the queries of this request are limited."""
    _asker.set(asker)


class HistoryQueries:
    """The way to the store. One event loop owns it. `store` is None where the hub keeps no history."""

    def __init__(self, store: Store | None, now: clock.Clock = clock.wall, share: float = SHARE) -> None:
        self._store = store
        self.now = now
        self._usage = RateLimiter(
            "seconds of work", FORGOTTEN_PER_SECOND, 1, max_debt_seconds=MAX_DEBT / FORGOTTEN_PER_SECOND
        )
        busy = "too many questions about the past are waiting."
        self._queue = FairQueue(self._usage, MAX_WAITING, refusal=busy)
        self._budget = CpuBudget(share, AT_FULL_SPEED)

    def check_kept(self) -> Store:
        """Raises HistoryRefused where there is no past to ask about."""
        if self._store is None:
            raise HistoryRefused("no_history", "this hub keeps no history", "Its setting history.kind is off.")
        return self._store

    async def ask(self, question: Callable[[Store], T]) -> T:
        """Run a query in a thread. Raises HistoryRefused, and Temporary if too many queries wait."""
        store, asker, asked = self.check_kept(), _asker.get(), monotonic()
        await self._queue.acquire(asker)
        # A thread cannot be cancelled: the slot is free when it ends, not when the asker disconnects.
        answer = asyncio.ensure_future(asyncio.to_thread(self._work, question, store))
        answer.add_done_callback(partial(self._end_turn, asker, monotonic()))
        found, seconds = await asyncio.shield(answer)
        # A page asks for a dozen charts at once: the time that each waits for the others costs nothing.
        exclude_wait(monotonic() - asked - seconds)
        return found

    def _end_turn(self, asker: Hashable, began: float, answer: "asyncio.Future[Any]") -> None:
        self._usage.charge(asker, monotonic(), monotonic() - began)
        self._queue.release()
        if not answer.cancelled():
            # Read, so that asyncio does not log an error whose asker has disconnected.
            answer.exception()

    def _work(self, question: Callable[[Store], T], store: Store) -> tuple[T, float]:
        """Returns the answer and the CPU seconds it took."""
        began = thread_time()
        self._budget.apply()
        found = question(store)
        # What it did since its last checkpoint counts too.
        checkpoint()
        return found, thread_time() - began


TheHistory = NamedDependency[HistoryQueries]


def on_history_refused(_: Request[Any, Any, Any], error: HistoryRefused) -> Response[bytes]:
    """404 where the thing asked for is not there, 400 where the question makes no sense."""
    return respond(404 if error.code in _NOT_FOUND else 400, error.code, error.message, error.hint)


async def answer_past(request: HubRequest, body: object, *, is_over: bool) -> Response[Any]:
    return keep_past(await answer_json(request, body), is_over=is_over)


def keep_past(answer: A, *, is_over: bool) -> A:
    """`is_over`: the range lies in the past, so that a client may keep the answer for a while."""
    if is_over:
        answer.headers["Cache-Control"] = f"private, max-age={CACHED_SECONDS}"
        # What one may read another may not, in the same browser.
        answer.headers["Vary"] = "Accept-Encoding, Authorization, Cookie"
    return answer


@get("/api/v1/history", opt=access("read"))
async def read_history(
    *,
    request: HubRequest,
    history: TheHistory,
    metric: _Metric,
    start: Time = "-24h",
    end: Time = "now",
    points: Annotated[
        int,
        QueryParameter(
            description=f"About so many points, at most {MAX_POINTS}: the step is a round one",
            schema_extra={"minimum": 1, "maximum": MAX_POINTS},
        ),
    ] = 500,
    gpu: GpuUuid = None,
    host: HostName = None,
    user: OnlyName = None,
    run: Annotated[int | None, QueryParameter(description="The id of a run")] = None,
    fleet: Annotated[bool, QueryParameter(description="All hosts together")] = False,
    by: Annotated[
        Literal["gpu", "user"] | None,
        QueryParameter(description="`gpu` splits a host or a run, `user` the memory of one GPU"),
    ] = None,
) -> Response[Answer]:
    """A metric over time of one of: a GPU, a host, a user, a run, the fleet. Without a range, the last 24 hours."""
    now = history.now()
    query = SeriesQuery(
        metric, *read_span(start, end, now), points, gpu=gpu, host=host, user=user, run=run, fleet=fleet, by=by
    )
    body = await history.ask(lambda store: msgspec.json.encode(store.series(query)))
    return await answer_past(request, body, is_over=query.end <= now)


@get("/api/v1/history/overview", opt=access("read"))
async def read_overview(
    *,
    request: HubRequest,
    history: TheHistory,
    start: ZonedTime = "-7d",
    end: ZonedTime = "now",
    by: Annotated[By, QueryParameter(description="What a row of the usage stands for")] = "user",
    points: Annotated[
        int,
        QueryParameter(
            description=f"About so many points of each curve, at most {MAX_POINTS}",
            schema_extra={"minimum": 1, "maximum": MAX_POINTS},
        ),
    ] = 300,
    zone: Zone = "UTC",
    heat: Annotated[bool, QueryParameter(description="Also utilization as a map of hosts × time")] = True,
) -> Response[Overview]:
    """The fleet in a period, as the History page shows it: GPUs by state, utilization, power, usage by `by` with the
    days of the total, and a map of the hosts. Without a range, the last seven days. Of a large fleet the figures end
    with the last quarter hour that is over."""
    history.check_kept()
    now, where = history.now(), load_zone(zone)
    query = OverviewQuery(*read_span(start, end, now, where), by, points, zone, heat=heat)
    body = await history.ask(lambda store: msgspec.json.encode(store.overview(query)))
    return await answer_past(request, body, is_over=query.end <= now)


@get("/api/v1/history/heat", opt=access("read"))
async def read_heat(
    *,
    request: HubRequest,
    history: TheHistory,
    metric: _Metric,
    start: Time = "-7d",
    end: Time = "now",
    step: Annotated[
        int,
        QueryParameter(
            description="Seconds a column, a whole number of hours", schema_extra={"minimum": 3600, "multipleOf": 3600}
        ),
    ] = 3600,
) -> Response[Heat]:
    """A metric as a map of hosts × time. Without a range, the last seven days."""
    now = history.now()
    query = HeatQuery(metric, *read_span(start, end, now), step)
    body = await history.ask(lambda store: msgspec.json.encode(store.heat(query)))
    return await answer_past(request, body, is_over=query.end <= now)


@get("/api/v1/usage", opt=access("read"))
async def read_usage(
    *,
    request: HubRequest,
    history: TheHistory,
    jobs: TheJobs,
    by: Annotated[
        UsageBy,
        QueryParameter(description="What a row stands for. Accounts, partitions, namespaces and labels are of jobs"),
    ] = "user",
    label: JobLabel = None,
    start: ZonedTime = "-30d",
    end: ZonedTime = "now",
    user: OnlyName = None,
    host: HostName = None,
    model: OnlyName = None,
    group: OnlyName = None,
    daily: Annotated[bool, QueryParameter(description="Also each day by itself")] = False,
    zone: Zone = "UTC",
    format: Annotated[Literal["json", "csv"], QueryParameter(description="JSON, or CSV for spreadsheets")] = "json",  # noqa: A002
) -> Response[Usage]:
    """GPU-hours, active hours, idle hours, energy and cost; with a scheduler also allocated time. Without a range, the
    last 30 days. CSV with `daily` has a line a row and day."""
    history.check_kept()
    now, where = history.now(), load_zone(zone)
    query = UsageQuery(by, *read_span(start, end, now, where), user, host, model, group, daily, zone, label)
    sums = await jobs.read_sums(query, now)
    if format == "csv":
        text = await history.ask(lambda store: to_csv(jobs.add_allocated(store, query, sums, now), daily=daily))
        return answer_csv(text, f"usage-by-{by}.csv")
    body = await history.ask(lambda store: msgspec.json.encode(jobs.add_allocated(store, query, sums, now)))
    return await answer_past(request, body, is_over=query.end <= now)
