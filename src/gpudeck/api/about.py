"""GET /api/v1/about (version, settings, counters of the hub), and /healthz and /readyz for supervisors and load
balancers. No secrets; only admins see where files and the database are."""

import asyncio
import platform
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.access import TheCaller, ThePolicy, access
from gpudeck.api.answers import TheHub
from gpudeck.api.history import HistoryQueries
from gpudeck.api.login import TheAuth
from gpudeck.api.services import ApiServices, HubPlace
from gpudeck.auth.auth import Auth
from gpudeck.events.store import EventStore
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.state import PARTS
from gpudeck.history.base import HistoryRefused
from gpudeck.model.cluster import Cluster
from gpudeck.model.errors import Temporary
from gpudeck.model.history import HistoryState
from gpudeck.model.view import DatabaseState, Totals

_REFUSED = "refused_"
_KEPT_SECONDS = 30.0
"""How long an answer of the history stands: measuring a large one takes a while."""
_UNPUBLISHED_SECONDS: Final = 10.0
_DATABASE_AWAY: Final = (
    "Live data, reports, the history, alerts and their messages go on. Logging in and changes of accounts, tokens, "
    "reservations, watches, mutes and the queue may be refused until it answers. Events, and with SQLite the state of "
    "alerts, are kept in memory meanwhile and are lost if the hub stops before it answers."
)


class SourceCount(Struct, frozen=True):
    """A source, and how many hosts report over it."""

    via: str
    hosts: int
    up: int
    late: int
    down: int
    never_seen: int


class IngestCounts(Struct, frozen=True):
    """Reports since the start. `reports_per_second` is of the last minute; null in the first two seconds."""

    reports_per_second: float | None
    reports_taken: int
    reports_outdated: int
    reports_other_source: int
    values_rejected: int
    poll_failures: int
    refused: dict[str, int]


class About(Struct, frozen=True):
    """`place` is null for all but admins, `cluster` where there is one hub. `limits_hit` counts what was refused for
    being too much, by limit."""

    version: str
    python: str
    system: str
    demo: bool
    time: float
    started_at: float
    tick_age_seconds: float
    viewers: int
    totals: Totals
    sources: list[SourceCount]
    ingest: IngestCounts
    database: DatabaseState
    history: HistoryState
    limits_hit: dict[str, int]
    problems: list[str]
    place: HubPlace | None
    cluster: Cluster | None = None


class HubAbout:
    """The state of the hub."""

    def __init__(self, services: ApiServices, history: HistoryQueries) -> None:
        self._services = services
        self._queries = history
        self._history: HistoryState | None = None
        self._history_at = 0.0

    async def collect(self, *, is_admin: bool) -> About:
        services, hub = self._services, self._services.hub
        return About(
            version=__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            demo=hub.fleet.is_simulated,
            time=hub.stream.time,
            started_at=hub.started_at,
            tick_age_seconds=round(hub.stream.tick_age(), 1),
            viewers=hub.stream.viewers,
            totals=hub.fleet.totals(),
            sources=_list_sources(hub),
            ingest=_count_reports(hub),
            database=await self._ask_database(),
            history=await self._ask_history(),
            limits_hit={kind: count for kind, count in sorted((services.hits or {}).items()) if count},
            problems=hub.fleet.problems,
            place=services.place if is_admin else None,
            cluster=None if services.cluster is None else services.cluster(),
        )

    async def _ask_database(self) -> DatabaseState:
        kind, trouble = self._services.auth.database.kind, self._services.auth.problem
        try:
            return DatabaseState(kind, await self._services.events.ask(EventStore.count), problem=trouble)
        except Temporary:
            # Its words name the place, which is not for everybody.
            return DatabaseState(kind, None, "the database does not answer", trouble)

    async def _ask_history(self) -> HistoryState:
        now = asyncio.get_running_loop().time()
        if self._history is None or now - self._history_at > _KEPT_SECONDS:
            self._history, self._history_at = await self._measure_history(), now
        return self._history

    async def _measure_history(self) -> HistoryState:
        try:
            stats = await self._queries.ask(lambda store: store.stats())
            return msgspec.convert(stats, HistoryState, from_attributes=True)
        except HistoryRefused:
            return HistoryState("off", reason="this hub keeps no history")
        except Temporary:
            return HistoryState("unknown", reason="the history does not answer now")


@get("/api/v1/about", opt=access("read"))
async def read_about(caller: TheCaller, about: NamedDependency[HubAbout]) -> About:
    """How the hub runs, what it takes in and what it keeps."""
    return await about.collect(is_admin=caller.is_at_least("admin"))


def _list_sources(hub: Hub) -> list[SourceCount]:
    counts = Counter((host.via, host.status) for host in hub.fleet.hosts.values())
    ways = sorted({via for via, _ in counts})
    return [
        SourceCount(
            via,
            sum(number for (way, _), number in counts.items() if way == via),
            *(counts[via, status] for status in ("up", "late", "down", "never_seen")),
        )
        for via in ways
    ]


def _count_reports(hub: Hub) -> IngestCounts:
    counted, pace = hub.fleet.counters, hub.report_rate.per_second
    refused = {name.removeprefix(_REFUSED): number for name, number in counted.items() if name.startswith(_REFUSED)}
    return IngestCounts(
        reports_per_second=None if pace is None else round(pace, 2),
        reports_taken=counted["reports_taken"],
        reports_outdated=counted["reports_outdated"],
        reports_other_source=counted["reports_other_source"],
        values_rejected=counted["values_rejected"],
        poll_failures=counted["poll_failures"],
        refused=dict(sorted(refused.items())),
    )


class HubHealth(Struct, frozen=True):
    """`demo`: all hosts are simulated."""

    status: str
    version: str
    demo: bool


class Check(Struct, frozen=True):
    """One part of the hub. `since` is when its trouble began, in Unix seconds, where that is known. `problem` and
    `effect`, what works without it and what does not, are empty while all is well, and for those who may not look."""

    name: str
    status: Literal["ok", "degraded"]
    since: float | None = None
    problem: str = ""
    effect: str = ""


class Readiness(Struct, frozen=True):
    """`degraded`: the fleet is served, and a part of the hub does not work: `checks` say which. `not publishing`: the
    hub is stuck. `catching up`: it has just started and reads what the other hubs of its cluster
    know. `tick_age_seconds` is how long ago the fleet was last published."""

    status: Literal["ready", "degraded", "not publishing", "catching up"]
    hosts: int | None
    viewers: int | None
    tick_age_seconds: float
    counters: dict[str, int]
    checks: list[Check]


@get("/healthz", opt=access("open"), sync_to_thread=False)
def read_health(hub: TheHub) -> HubHealth:
    """Answers as long as the process does."""
    return HubHealth("ok", __version__, hub.fleet.is_simulated)


_NOT_READY = ResponseSpec(
    Readiness, description="The fleet is not published, or not known yet", generate_examples=False
)


@get("/readyz", opt=access("open"), sync_to_thread=False, responses={503: _NOT_READY})
def read_readiness(caller: TheCaller, hub: TheHub, policy: ThePolicy, auth: TheAuth) -> Response[Readiness]:
    """200 while the fleet is being published, also where a part of the hub does not work, 503 while not. Counters and
    problems are for those who may look."""
    may_look = policy.is_readable or caller.is_at_least("viewer")
    age = hub.stream.tick_age()
    is_published, is_late = age < _UNPUBLISHED_SECONDS, hub.ingest.refusal is not None
    checks = [one if may_look else Check(one.name, one.status, one.since) for one in _check_parts(hub, auth)]
    is_whole = all(one.status == "ok" for one in checks)
    body = Readiness(
        status="not publishing"
        if not is_published
        else "catching up"
        if is_late
        else "ready"
        if is_whole
        else "degraded",
        hosts=len(hub.fleet.hosts) if may_look else None,
        viewers=hub.stream.viewers if may_look else None,
        tick_age_seconds=round(age, 1),
        counters=dict(hub.fleet.counters) if may_look else {},
        checks=checks,
    )
    return Response(body, status_code=200 if is_published and not is_late else 503)


def _check_parts(hub: Hub, auth: Auth) -> Iterator[Check]:
    away = auth.database.away
    for name in PARTS:
        said = auth.problem or "" if name == "database" else " ".join(hub.fleet.problems_of(name))
        if not said:
            yield Check(name, "ok")
        elif name == "database":
            yield Check(name, "degraded", None if away is None else away.since, said, _DATABASE_AWAY)
        else:
            yield Check(name, "degraded", problem=said)
