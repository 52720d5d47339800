"""GET /api/v1/about: the hub about itself: how it runs, what it takes in, what it keeps.

Numbers that help whoever wonders why something is missing, and nothing secret. Where its files and its database are
is for admins.
"""

import asyncio
import platform
from collections import Counter
from collections.abc import Mapping

from litestar import get
from litestar.di import NamedDependency
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import HubRequest
from gpudeck.api.events import EventDesk
from gpudeck.api.questions import Questions
from gpudeck.auth.parts import Auth
from gpudeck.history.base import HistoryRefused, StoreStats
from gpudeck.hub.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.model.view import Totals

_REFUSED = "refused_"
_KEPT_SECONDS = 30.0
"""How long an answer of the history stands: measuring a large one takes a while."""


class HubPlace(Struct, frozen=True):
    """Where a hub keeps things, for its admins. None is what this hub does not have."""

    listen: str
    data_dir: str
    config: str | None
    database: str


class Source(Struct, frozen=True):
    """One way in, and how many hosts are read on it."""

    via: str
    hosts: int
    up: int
    late: int
    down: int
    never: int


class Ingest(Struct, frozen=True):
    """Reports since the start. `reports_per_second` is of the last minute; null in the first two seconds."""

    reports_per_second: float | None
    reports_taken: int
    reports_outdated: int
    reports_second_way: int
    values_rejected: int
    poll_failures: int
    refused: dict[str, int]


class HistoryState(Struct, frozen=True):
    """`kind` is `off` where none is kept. `reason` is why its figures are not known. Times are Unix seconds."""

    kind: str
    size_bytes: int | None = None
    oldest: float | None = None
    newest: float | None = None
    samples_taken: int | None = None
    samples_dropped: int | None = None
    samples_late: int | None = None
    behind_seconds: float | None = None
    problem: str | None = None
    reason: str | None = None


class DatabaseState(Struct, frozen=True):
    """`events` is how many are kept; null with the `reason` where the database does not say."""

    kind: str
    events: int | None
    reason: str | None = None
    problem: str | None = None


class About(Struct, frozen=True):
    """`place` is null for all but admins. `limits_hit` counts what was refused for being too much, by limit."""

    version: str
    python: str
    system: str
    demo: bool
    time: float
    started_at: float
    tick_age_seconds: float
    viewers: int
    totals: Totals
    sources: list[Source]
    ingest: Ingest
    database: DatabaseState
    history: HistoryState
    limits_hit: dict[str, int]
    problems: list[str]
    place: HubPlace | None


class Mirror:
    """What the hub says about itself. `place` is None where nobody told it, `hits` are what limits refused."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        desk: EventDesk,
        questions: Questions,
        *,
        hits: Mapping[str, int] | None = None,
        place: HubPlace | None = None,
    ) -> None:
        self._hub = hub
        self._auth = auth
        self._desk = desk
        self._questions = questions
        self._hits = Counter() if hits is None else hits
        self._place = place
        self._history: HistoryState | None = None
        self._history_at = 0.0

    async def look(self, *, is_admin: bool) -> About:
        hub = self._hub
        return About(
            version=__version__,
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            demo=hub.stream.demo,
            time=hub.stream.time,
            started_at=hub.started_at,
            tick_age_seconds=round(hub.stream.tick_age(), 1),
            viewers=hub.stream.viewers,
            totals=hub.fleet.totals(),
            sources=_list_sources(hub),
            ingest=_count_reports(hub),
            database=await self._ask_database(),
            history=await self._ask_history(),
            limits_hit={kind: count for kind, count in sorted(self._hits.items()) if count},
            problems=hub.fleet.problems,
            place=self._place if is_admin else None,
        )

    async def _ask_database(self) -> DatabaseState:
        kind, trouble = self._auth.database.kind, self._auth.problem
        try:
            return DatabaseState(kind, await self._desk.count(), problem=trouble)
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
            return _show(await self._questions.ask(lambda store: store.stats()))
        except HistoryRefused:
            return HistoryState("off", reason="this hub keeps no history")
        except Temporary:
            return HistoryState("unknown", reason="the history does not answer now")


@get("/api/v1/about", opt=access("read"))
async def read_about(request: HubRequest, mirror: NamedDependency[Mirror]) -> About:
    """How the hub runs, what it takes in and what it keeps."""
    return await mirror.look(is_admin=caller_of(request).is_at_least("admin"))


def _list_sources(hub: Hub) -> list[Source]:
    counts = Counter((host.via, host.status) for host in hub.fleet.hosts.values())
    ways = sorted({via for via, _ in counts})
    return [
        Source(
            via,
            sum(number for (way, _), number in counts.items() if way == via),
            *(counts[via, status] for status in ("up", "late", "down", "never")),
        )
        for via in ways
    ]


def _count_reports(hub: Hub) -> Ingest:
    counted, pace = hub.fleet.counters, hub.pace.per_second
    refused = {name.removeprefix(_REFUSED): number for name, number in counted.items() if name.startswith(_REFUSED)}
    return Ingest(
        reports_per_second=None if pace is None else round(pace, 2),
        reports_taken=counted["reports_taken"],
        reports_outdated=counted["reports_outdated"],
        reports_second_way=counted["reports_second_way"],
        values_rejected=counted["values_rejected"],
        poll_failures=counted["poll_failures"],
        refused=dict(sorted(refused.items())),
    )


def _show(stats: StoreStats) -> HistoryState:
    return HistoryState(
        kind=stats.kind,
        size_bytes=stats.size_bytes,
        oldest=stats.oldest,
        newest=stats.newest,
        samples_taken=stats.samples_taken,
        samples_dropped=stats.samples_dropped,
        samples_late=stats.samples_late,
        behind_seconds=stats.behind_seconds,
        problem=stats.problem,
    )


ROUTES = [read_about]
