"""GET /api/v1/export/samples, /runs, /usage and /events: what was recorded as one table, sent while it
is read.

The table is read in parts. Each part is a question of its own to the history, or to the database: others are answered
in between, and the limits of questions hold for exports too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import cramjam
import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream
from msgspec.structs import replace

from gpudeck.api.access import TheVisibility, access
from gpudeck.api.answers import HubRequest, takes_gzip
from gpudeck.api.history import TheHistory
from gpudeck.api.login import TheJobs
from gpudeck.api.parameters import GpuUuid, HostName, OnlyName, Time, Zone, read_past
from gpudeck.events.service import EventLog
from gpudeck.events.store import MAX_EVENTS, EventQuery
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import RunsQuery, SamplePage, SamplesQuery, Store, UsageQuery
from gpudeck.history.export import Column, Field, Format, Kind, TableEncoder, make_encoder, sample_fields
from gpudeck.history.sample import GPU_NAMES
from gpudeck.history.time_range import Period, check_range, load_zone
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.job import Run
from gpudeck.model.usage import By, Usage

ESTIMATE: Final = "X-Estimated-Bytes"
"""About how long the whole will be, judged by its first part: for progress bars."""
PART_BYTES: Final = 200_000
"""Small enough that sending it does not count against the caller's address: the queries have limits of their own."""
_RUNS_AT_ONCE: Final = 500
_TRIES, _PAUSE_SECONDS = 30, 1.0
"""Retries of one part while the hub is busy or its database does not answer."""
T = TypeVar("T")


def _fields(text: str) -> list[Field]:
    """Reads `name` and `name:kind`; the default kind is text."""
    named = (word.partition(":") for word in text.split())
    return [Field(name, msgspec.convert(kind or "text", Kind)) for name, _, kind in named]


_RUN_FIELDS: Final = _fields(
    "id:integer host pid:integer user command container job gpus labels model started_at:time seen_at:time "
    "ended_at:time gpu_seconds:number idle_seconds:number mean_utilization_percent:number mean_memory_bytes:number "
    "peak_memory_bytes:number energy_joules:number"
)
_USAGE_NUMBERS: Final = (
    *("gpu_hours", "measured_hours", "active_hours", "idle_hours", "share", "peak_memory_bytes", "energy_kwh", "cost"),
    *("idle_cost", "allocated_hours", "unused_hours", "never_used_hours", "unmonitored_hours", "shared_hours"),
)
_EVENT_FIELDS: Final = _fields("time:time unix_seconds:number severity kind host gpu label user title detail id")
_FILE: Final = {200: ResponseSpec(str, description="A file", generate_examples=False, media_type="text/csv")}
_Part = tuple[bytes, float]
"""Bytes of the file, and roughly the part of the table that has been read with them."""


class _Page(NamedTuple):
    """Rows, the time of the last one, and the `before` of the next page."""

    rows: list[list[object]]
    last: float
    next: int | str | None


_Format = Annotated[
    Format, QueryParameter(name="format", description="CSV, or Parquet where the hub has gpudeck[export]")
]


@get("/api/v1/export/samples", opt=access("read"), responses=_FILE)
async def export_samples(
    *,
    request: HubRequest,
    history: TheHistory,
    start: Time = "-24h",
    end: Time = "now",
    form: _Format = "csv",
    host: HostName = None,
    gpu: GpuUuid = None,
    metric: Annotated[
        str | None, QueryParameter(max_length=4096, description="Only these metrics, with commas")
    ] = None,
) -> Stream:
    """The samples of GPUs as a file: a row a GPU and moment, host by host. Times are in UTC; the header
    X-Estimated-Bytes is about how long the file is."""
    history.check_kept()
    begin, until = read_past(start, end, history.now())
    check_range(begin, until)
    metrics = GPU_NAMES if metric is None else tuple(filter(None, map(str.strip, metric.split(","))))
    hosts, gpus = (() if name is None else (name,) for name in (host, gpu))
    query = SamplesQuery(begin, until, metrics, hosts, gpus)
    encoder = make_encoder(form, sample_fields(metrics))

    async def read() -> AsyncIterator[_Part]:
        page = SamplePage([], None, 0.0)

        def ask(store: Store) -> tuple[bytes, SamplePage]:
            found = store.samples(replace(query, after=page.next))
            # Here, so that the budget of questions holds for it.
            return encoder.add(found.columns), found

        while page.share < 1.0:
            data, page = await _persist(lambda: history.ask(ask))
            yield data, page.share

    return await _send(request, f"samples.{form}", encoder, read())


@get("/api/v1/export/runs", opt=access("read"), responses=_FILE)
async def export_runs(
    *,
    request: HubRequest,
    history: TheHistory,
    visibility: TheVisibility,
    start: Time = "-24h",
    end: Time = "now",
    form: _Format = "csv",
    host: HostName = None,
    gpu: GpuUuid = None,
    user: OnlyName = None,
) -> Stream:
    """Runs as a file, the newest first: programs that were on a GPU at some time from `start` until `end`."""
    history.check_kept()
    begin, until = read_past(start, end, history.now())
    encoder = make_encoder(form, _RUN_FIELDS)
    query = RunsQuery(begin, until, user, host, gpu, limit=_RUNS_AT_ONCE)

    async def ask(before: int | None) -> _Page:
        found = await history.ask(lambda store: store.runs(replace(query, before=before)))
        last = found.runs[-1].seen_at if found.runs else begin
        return _Page([_run_row(run, visibility) for run in found.runs], last, found.next)

    return await _send(request, f"runs.{form}", encoder, _read_pages(encoder, (begin, until), ask))


@get("/api/v1/export/usage", opt=access("read"), responses=_FILE)
async def export_usage(
    *,
    request: HubRequest,
    history: TheHistory,
    jobs: TheJobs,
    start: Time = "-30d",
    end: Time = "now",
    form: _Format = "csv",
    by: Annotated[By, QueryParameter(description="What a row stands for")] = "user",
    host: HostName = None,
    user: OnlyName = None,
    zone: Zone = "UTC",
) -> Stream:
    """Usage by day as a file: a row a day and user, group, host or model, with the coverage of the day."""
    history.check_kept()
    now = history.now()
    begin, until = read_past(start, end, now, load_zone(zone))
    period = Period(begin, until, now, zone)
    ends = [*(at for _, at in period.days[1:]), until]
    texts = (Field("day"), Field("start", "time"), Field("end", "time"), Field(by), Field("unknown", "flag"))
    encoder = make_encoder(form, [*texts, *(Field(name, "number") for name in (*_USAGE_NUMBERS, "coverage"))])

    async def ask(query: UsageQuery) -> Usage:
        sums = await jobs.read_sums(query, now)
        return await history.ask(lambda store: jobs.add_allocated(store, query, sums, now))

    async def read() -> AsyncIterator[_Part]:
        for number, ((day, first), last) in enumerate(zip(period.days, ends, strict=True), 1):
            span = max(first, begin), last
            usage = await _persist(partial(ask, UsageQuery(by, *span, user, host)))
            rows = [
                [day, *span, row.name_by(by), row.unknown, *(getattr(row, name) for name in _USAGE_NUMBERS)]
                for row in usage.rows
            ]
            columns = _turn([[*row, usage.coverage] for row in rows])
            yield await asyncio.to_thread(encoder.add, columns), number / len(ends)

    return await _send(request, f"usage.{form}", encoder, read())


@get("/api/v1/export/events", opt=access("read"), responses=_FILE)
async def export_events(
    *,
    request: HubRequest,
    events: NamedDependency[EventLog],
    start: Time = "-24h",
    end: Time = "now",
    form: _Format = "csv",
    host: HostName = None,
    gpu: GpuUuid = None,
    user: OnlyName = None,
) -> Stream:
    """Events as a file, the newest first."""
    begin, until = read_past(start, end, clock.wall())
    query = EventQuery(start=begin, end=until, host=host, gpu=gpu, user=user, limit=MAX_EVENTS)
    encoder = make_encoder(form, _EVENT_FIELDS)

    async def ask(before: str | None) -> _Page:
        found = await events.find(replace(query, before=before))
        last = found[-1].at if found else begin
        return _Page([_event_row(one) for one in found], last, found[-1].id if len(found) == MAX_EVENTS else None)

    return await _send(request, f"events.{form}", encoder, _read_pages(encoder, (begin, until), ask))


async def _send(request: HubRequest, name: str, encoder: TableEncoder, parts: AsyncIterator[_Part]) -> Stream:
    # What fails at once is answered as an error.
    first, share = await anext(parts, (b"", 1.0))
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}"'}
    if first and share > 0:
        headers[ESTIMATE] = str(round(len(first) / share))

    async def send() -> AsyncIterator[bytes]:
        yield first
        async for part, _ in parts:
            yield part
        yield await asyncio.to_thread(encoder.finish)

    body = _cut(send())
    if takes_gzip(request) and name.endswith(".csv"):
        headers["Content-Encoding"], body = "gzip", _pack(body)
    return Stream(body, media_type=encoder.media_type, headers=headers)


def _run_row(run: Run, visibility: Visibility) -> list[object]:
    is_shown = visibility.shows_commands_of(run.user)
    own = {
        "host": run.host_name,
        "command": run.command if is_shown else None,
        "gpus": " ".join(run.gpus),
        "labels": " ".join(run.labels),
    }
    return [own[field.name] if field.name in own else getattr(run, field.name) for field in _RUN_FIELDS]


def _event_row(event: Event) -> list[object]:
    own = {"time": event.at, "unix_seconds": event.at}
    return [own[field.name] if field.name in own else getattr(event, field.name) for field in _EVENT_FIELDS]


def _turn(rows: Sequence[Sequence[object]]) -> list[Column]:
    return [list(column) for column in zip(*rows, strict=True)]


async def _read_pages(
    encoder: TableEncoder, span: tuple[float, float], ask: Callable[[Any], Awaitable[_Page]]
) -> AsyncIterator[_Part]:
    """A table whose newest rows come first."""
    page = await _persist(partial(ask, None))
    while True:
        length = span[1] - span[0]
        share = 1.0 if page.next is None or not length else min(1.0, max(0.001, (span[1] - page.last) / length))
        yield await asyncio.to_thread(encoder.add, _turn(page.rows)), share
        if page.next is None:
            return
        page = await _persist(partial(ask, page.next))


async def _persist(ask: Callable[[], Awaitable[T]]) -> T:
    """An export takes long: it does not end because the hub has too much to do for a moment."""
    for _ in range(_TRIES):
        try:
            return await ask()
        except Temporary:
            await asyncio.sleep(_PAUSE_SECONDS)
    return await ask()


async def _cut(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        for begin in range(0, len(part), PART_BYTES):
            yield part[begin : begin + PART_BYTES]


async def _pack(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = cramjam.gzip.Compressor(1)
    async for part in parts:
        packer.compress(part)
        yield bytes(packer.flush())
    yield bytes(packer.finish())
