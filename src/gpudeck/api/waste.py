"""GET /api/v1/waste: idle, unused and over-sized GPUs, in hours and money."""

from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter
from msgspec.structs import replace

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest
from gpudeck.api.history import HistoryQueries, TheHistory, answer_past
from gpudeck.api.login import TheJobs
from gpudeck.api.parameters import HostName, JobLabel, OnlyName, Zone, ZonedTime, read_span
from gpudeck.api.services import TheServices
from gpudeck.fleet.state import SIMULATED_PAST, FleetState
from gpudeck.history.base import ModelSize, Store, UsageQuery
from gpudeck.history.time_range import load_zone
from gpudeck.history.waste import describe_waste, is_comparable, previous_period_start
from gpudeck.model.usage import Usage, UsageBy, Waste
from gpudeck.schedulers.job_report import JOB_NAMES, JobReporter


@get("/api/v1/waste", opt=access("read"))
async def read_waste(
    *,
    request: HubRequest,
    history: TheHistory,
    jobs: TheJobs,
    services: TheServices,
    by: Annotated[UsageBy, QueryParameter(description="What a row stands for, as of `/api/v1/usage`")] = "user",
    label: JobLabel = None,
    start: ZonedTime = "-30d",
    end: ZonedTime = "now",
    user: OnlyName = None,
    host: HostName = None,
    model: OnlyName = None,
    group: OnlyName = None,
    zone: Zone = "UTC",
) -> Response[Waste]:
    """GPU-hours that were idle, allocated and not used, or on a larger GPU than needed, their cost, the same hours in
    the period before, and what could have been released after an hour. Without a range, the last 30 days."""
    history.check_kept()
    now, where = history.now(), load_zone(zone)
    query = UsageQuery(by, *read_span(start, end, now, where), user, host, model, group, zone=zone, label=label)
    *_, found = await ask_waste(history, jobs, services.hub.fleet, query, previous_period_start(query.start, query.end))
    return await answer_past(request, found, is_over=query.end <= now and found.problem is None)


async def ask_waste(
    history: HistoryQueries, jobs: JobReporter, fleet: FleetState, query: UsageQuery, since: float
) -> tuple[Usage, Usage | None, Waste]:
    """The usage of a period and of the one before, which begins at `since`, and the waste. Raises HistoryRefused, and
    Temporary."""
    now, before = history.now(), replace(query, start=since, end=query.start)
    sums = await jobs.read_sums(query, now)
    is_before = sums is not None and before.start >= sums.since
    earlier = await jobs.read_sums(before, now) if is_before else None
    sizes, incomplete = find_sizes(fleet), fleet.problems_of(SIMULATED_PAST)

    def describe(store: Store) -> tuple[Usage, Usage | None, Waste]:
        then = None if query.by in JOB_NAMES and earlier is None else jobs.add_allocated(store, before, earlier, now)
        usage = jobs.add_allocated(store, query, sums, now)
        saved_before = store.waste(before, sizes) if is_comparable(then) else None
        found = describe_waste(usage, then, store.waste(query, sizes), saved_before)
        found.problem = " ".join([*incomplete, *filter(None, [found.problem])]) or None
        return usage, then, found

    return await history.ask(describe)


def find_sizes(fleet: FleetState) -> dict[str, ModelSize]:
    """The models that the fleet has, by name, with the smallest memory that one of them reports."""
    found: dict[str, ModelSize] = {}
    for host in fleet.hosts.values():
        for gpu in host.gpus.values():
            memory = gpu.value("memory_total_bytes")
            if memory and (gpu.name not in found or memory < found[gpu.name].memory_bytes):
                found[gpu.name] = ModelSize(memory, gpu.vendor)
    return found
