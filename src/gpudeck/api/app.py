"""The hub's HTTP front door: who is it? Then two raw routes, and the framework for all others, below a prefix."""

import functools
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.types import Scope as LitestarScope

from gpudeck import __version__
from gpudeck.api import (
    about,
    accounts,
    alerts,
    audit,
    calendar,
    events,
    fleet,
    gpus,
    history,
    hosts,
    login,
    metrics,
    mutes,
    page,
    people,
    probes,
    queue,
    reservations,
    runs,
    sd,
    tokens,
    usage,
    watches,
)
from gpudeck.api.access import Policy, check_access
from gpudeck.api.booking_desk import BookingDesk
from gpudeck.api.callers import Doorkeeper, Refusal, check_one_token
from gpudeck.api.errors import describe_trouble, on_bug, on_depth, on_http_error, on_trouble
from gpudeck.api.host_book import HostBook
from gpudeck.api.host_removal import HostRemoval
from gpudeck.api.house import House
from gpudeck.api.metrics import MetricsPage
from gpudeck.api.questions import Questions, note_asker, on_refused
from gpudeck.api.reports import FindGrant, ReportsRoute
from gpudeck.api.schema import CompleteSchema
from gpudeck.api.stream import StreamRoute
from gpudeck.api.terminals import tell_refusal
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.auth.parts import Auth
from gpudeck.history.base import HistoryRefused
from gpudeck.hub.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.reservations.rules import ReservationRefused
from gpudeck.server.addresses import count_as
from gpudeck.server.asgi import App, Receive, Scope, Send, live, send_json

REPORTS, STREAM = "/api/v1/reports", "/api/v1/stream"
MOST_BODY_BYTES = 256 * 1024
"""Of a request: a reservation of 5,000 GPUs by their UUIDs. Reports have a limit of their own."""
HEALTH, READINESS = "/healthz", "/readyz"


RESOURCES = (
    fleet,
    hosts,
    gpus,
    people,
    history,
    usage,
    runs,
    events,
    alerts,
    about,
    reservations,
    calendar,
    login,
    accounts,
    tokens,
    queue,
    watches,
    mutes,
    audit,
    metrics,
    sd,
    probes,
    page,
)
"""Each has its `ROUTES`. One that says which methods a path allows stands before those of that path: else the framework
makes its own."""


@functools.cache
def read_routes() -> Litestar:
    """All routes, as the framework reads them. That takes a tenth of a second, and so is done once in a process: which
    house a request is in, `Framework` tells it."""
    return Litestar(
        route_handlers=[route for resource in RESOURCES for route in resource.ROUTES],
        guards=[check_access],
        dependencies={name: _provide(name) for name in _DESKS},
        exception_handlers={
            HTTPException: on_http_error,
            HistoryRefused: on_refused,
            ReservationRefused: _on_reservation_refused,
            queue.QueueRefused: queue.on_queue_refused,
            alerts.AlertRefused: alerts.on_alert_refused,
            watches.WatchRefused: watches.on_watch_refused,
            Temporary: on_trouble,
            RecursionError: on_depth,
            Exception: on_bug,
        },
        openapi_config=OpenAPIConfig(
            title="gpudeck",
            version=__version__,
            path="/schema",
            render_plugins=[CompleteSchema(path="/openapi.json")],
            use_handler_docstrings=True,
        ),
        request_max_body_size=MOST_BODY_BYTES,
        logging_config=None,
        signature_types=list(_DESKS.values()),
    )


class Framework:
    """The routes in one house: an ASGI application."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._desks = _make_desks(house)
        self._routes: App = read_routes()  # type: ignore[assignment]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        scope["house"], scope["desks"] = self._house, self._desks
        await self._routes(scope, receive, send)


_DESKS: dict[str, type] = {
    "hub": Hub,
    "auth": Auth,
    "policy": Policy,
    "book": HostBook,
    "removal": HostRemoval,
    "metrics": MetricsPage,
    "questions": Questions,
    "desk": events.EventDesk,
    "mirror": about.Mirror,
    "bookings": BookingDesk,
    "line": queue.QueueDesk,
    "alarm": alerts.AlertDesk,
    "lookout": watches.WatchDesk,
    "agents": sd.Agents,
    "silence": mutes.MuteDesk,
}
"""What handlers ask for, by the name of the parameter."""


def _make_desks(house: House) -> dict[str, Any]:
    hub, auth, questions, desk = house.hub, house.auth, Questions(house.history), events.EventDesk(house.events)
    return {
        "hub": hub,
        "auth": auth,
        "policy": house.policy,
        "book": house.book,
        "removal": HostRemoval(hub, house.book, auth.tokens, house.alerts, house.memory),
        "metrics": MetricsPage(hub, house.hits, house.outbox, house.alerts),
        "questions": questions,
        "desk": desk,
        "mirror": about.Mirror(hub, auth, desk, questions, hits=house.hits, place=house.place),
        "bookings": BookingDesk(hub, auth, house.reservations),
        "line": queue.QueueDesk(house.waiting),
        "alarm": alerts.AlertDesk(house.alerts),
        "lookout": watches.WatchDesk(house.watches, house.reaches),
        "agents": sd.Agents(hub.fleet, house.agent_port),
        "silence": mutes.MuteDesk(house.mutes),
    }


def _provide(name: str) -> Provide:
    def find(scope: LitestarScope) -> Any:
        return scope["desks"][name]  # type: ignore[typeddict-item]

    return Provide(find, sync_to_thread=False)


def _on_reservation_refused(request: Request[Any, Any, Any], error: ReservationRefused) -> Response[bytes]:
    bookings: BookingDesk = request.scope["desks"]["bookings"]  # type: ignore[typeddict-item]
    return bookings.answer_refusal(request, error)


class SideDoor(Protocol):
    """Paths that are not of our own interface, and whose callers our tokens do not know: it checks them itself."""

    def takes(self, path: str, query: bytes) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class FrontDoor:
    """The ASGI application.

    `prefix` ("/gpus") is taken off the path; a path without it is taken as it comes, so both a proxy that strips the
    prefix and one that does not will do.
    """

    def __init__(
        self, house: House, find_grant: FindGrant, keeper: Doorkeeper, side_doors: Sequence[SideDoor] = ()
    ) -> None:
        """`side_doors` are asked in their order, before anything of our own."""
        self._prefix = house.prefix.rstrip("/")
        self._framework = Framework(house)
        self._reports = ReportsRoute(house.hub, find_grant)
        self._stream = StreamRoute(house.hub, house.policy, keeper.identify)
        self._keeper = keeper
        self._side_doors = tuple(side_doors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        path = scope["path"]
        is_side = any(side_door.takes(path, scope["query_string"]) for side_door in self._side_doors)
        if self._prefix and path == self._prefix and not is_side:
            # The page's addresses are relative: without the last slash they would miss the prefix.
            query = b"?" + scope["query_string"] if scope.get("query_string") else b""
            await send_json(send, 308, b"", (b"location", f"{self._prefix}/".encode() + query))
            return
        if self._prefix and path.startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        for side_door in self._side_doors:
            if side_door.takes(path, scope["query_string"]):
                await side_door(scope, receive, send)
                return
        try:
            if path == REPORTS:
                check_one_token(scope)
                await self._reports(scope, receive, send)
                return
            scope["caller"] = caller = await self._identify(path, scope)
            note_asker(_as_asker(caller, scope))
        except Refusal as refusal:
            await tell_refusal(scope, path, send, refusal)
            return
        except Temporary as error:
            trouble = Refusal(503, "unavailable", *describe_trouble(error))
            await tell_refusal(scope, path, send, trouble, (b"retry-after", b"5"))
            return
        await self._pass_on(path, scope, receive, send)

    async def _identify(self, path: str, scope: Scope) -> Caller:
        """A probe is answered whoever asks, and whatever the database does: a supervisor would end the hub else."""
        if path == HEALTH:
            return NOBODY
        try:
            return await self._keeper.identify(scope)
        except (Refusal, Temporary):
            if path != READINESS:
                raise
            return NOBODY

    async def _pass_on(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path == STREAM:
            await self._stream(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # As GET; the server itself leaves the body out.
            scope = {**scope, "method": "GET"}
        await self._framework(scope, receive, send)


def _as_asker(caller: Caller, scope: Scope) -> Hashable:
    """Whose questions are counted together: an account's, a token's, and else those of an address."""
    if caller.account_id is not None or caller.token_id is not None:
        return caller.account_id, caller.token_id if caller.account_id is None else None
    return count_as(scope["client"][0]) if scope.get("client") else None
