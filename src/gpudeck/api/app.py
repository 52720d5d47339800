"""The hub's HTTP front door: who is it? Then two raw routes, and the framework for all others, below a prefix."""

from collections.abc import Mapping

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig

from gpudeck import __version__
from gpudeck.api import (
    about,
    accounts,
    audit,
    calendar,
    events,
    fleet,
    gpus,
    hosts,
    login,
    metrics,
    page,
    probes,
    queue,
    reservations,
    runs,
    tokens,
    usage,
)
from gpudeck.api.access import Policy, check_access
from gpudeck.api.asgi import App, Receive, Scope, Send, send_error, send_json
from gpudeck.api.booking_desk import BookingDesk
from gpudeck.api.callers import Doorkeeper, Refusal, check_one_token
from gpudeck.api.errors import on_bug, on_depth, on_http_error, on_trouble
from gpudeck.api.history import read_heat, read_history
from gpudeck.api.host_book import HostBook
from gpudeck.api.metrics import MetricsPage
from gpudeck.api.questions import Questions, on_refused
from gpudeck.api.reports import FindGrant, ReportsRoute
from gpudeck.api.schema import CompleteSchema
from gpudeck.api.stream import StreamRoute
from gpudeck.api.text import TextViews
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.auth.parts import Auth
from gpudeck.events.log import Events
from gpudeck.history.base import HistoryRefused, Store
from gpudeck.hub.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.queueing.queue import Queue
from gpudeck.reservations.calendar import Reservations
from gpudeck.reservations.refusals import ReservationRefused

REPORTS, STREAM = "/api/v1/reports", "/api/v1/stream"
HEALTH, READINESS = "/healthz", "/readyz"


def build_framework(
    hub: Hub,
    auth: Auth,
    policy: Policy,
    book: HostBook,
    *,
    prefix: str = "",
    hits: Mapping[str, int] | None = None,
    history: Store | None = None,
    kept_events: Events | None = None,
    kept_reservations: Reservations | None = None,
    place: about.HubPlace | None = None,
    waiting: Queue | None = None,
) -> Litestar:
    """`hits` are what the limits refused, for those who read the hub's metrics. `place` is for its admins."""
    texts, numbers, questions = TextViews(), MetricsPage(hub, hits), Questions(history)
    desk = events.EventDesk(kept_events)
    bookings = BookingDesk(hub, auth, kept_reservations)
    line = queue.QueueDesk(waiting)
    mirror = about.Mirror(hub, auth, desk, questions, hits=hits, place=place)
    return Litestar(
        route_handlers=[
            fleet.read_fleet,
            # Before the handlers of the same paths: else the framework makes its own.
            hosts.allow_hosts,
            hosts.allow_host,
            accounts.allow_accounts,
            accounts.allow_account,
            tokens.allow_tokens,
            reservations.allow_reservations,
            reservations.allow_reservation,
            queue.allow_queue,
            queue.allow_queue_place,
            hosts.list_hosts,
            hosts.list_origins,
            hosts.read_host,
            hosts.add_host,
            hosts.remove_host,
            gpus.list_gpus,
            read_history,
            read_heat,
            usage.read_usage,
            usage.read_usage_csv,
            runs.list_runs,
            runs.read_run,
            events.list_events,
            about.read_about,
            reservations.list_reservations,
            reservations.book,
            reservations.find_next,
            reservations.read_reservation,
            reservations.change_reservation,
            reservations.release,
            calendar.read_calendar,
            login.read_me,
            login.log_in,
            login.log_out,
            login.log_out_everywhere,
            login.list_sessions,
            login.change_password,
            login.make_first_admin,
            accounts.list_accounts,
            accounts.add_account,
            accounts.change_account,
            accounts.remove_account,
            tokens.list_tokens,
            tokens.create_token,
            tokens.revoke_token,
            queue.list_queue,
            queue.join_queue,
            queue.ask_queue,
            queue.leave_queue,
            audit.read_audit,
            metrics.read_metrics,
            probes.read_health,
            probes.read_readiness,
            page.read_page,
            page.read_asset,
        ],
        guards=[check_access],
        dependencies={
            "hub": Provide(lambda: hub, sync_to_thread=False),
            "texts": Provide(lambda: texts, sync_to_thread=False),
            "auth": Provide(lambda: auth, sync_to_thread=False),
            "policy": Provide(lambda: policy, sync_to_thread=False),
            "metrics": Provide(lambda: numbers, sync_to_thread=False),
            "book": Provide(lambda: book, sync_to_thread=False),
            "questions": Provide(lambda: questions, sync_to_thread=False),
            "desk": Provide(lambda: desk, sync_to_thread=False),
            "mirror": Provide(lambda: mirror, sync_to_thread=False),
            "bookings": Provide(lambda: bookings, sync_to_thread=False),
            "line": Provide(lambda: line, sync_to_thread=False),
        },
        exception_handlers={
            HTTPException: on_http_error,
            HistoryRefused: on_refused,
            ReservationRefused: bookings.answer_refusal,
            queue.QueueRefused: queue.on_queue_refused,
            Temporary: on_trouble,
            RecursionError: on_depth,
            Exception: on_bug,
        },
        openapi_config=OpenAPIConfig(
            title="gpudeck", version=__version__, path="/schema", render_plugins=[CompleteSchema(path="/openapi.json")]
        ),
        logging_config=None,
        state=State({"policy": policy, "prefix": prefix}),
        signature_types=[
            Hub,
            TextViews,
            MetricsPage,
            HostBook,
            Auth,
            Policy,
            Questions,
            events.EventDesk,
            about.Mirror,
            BookingDesk,
            queue.QueueDesk,
        ],
    )


class FrontDoor:
    """The ASGI application.

    `prefix` ("/gpus") is taken off the path; a path without it is taken as it comes, so both a proxy that strips the
    prefix and one that does not will do.
    """

    def __init__(
        self,
        hub: Hub,
        find_grant: FindGrant,
        prefix: str = "",
        *,
        keeper: Doorkeeper,
        policy: Policy,
        auth: Auth,
        book: HostBook,
        hits: Mapping[str, int] | None = None,
        history: Store | None = None,
        events: Events | None = None,
        reservations: Reservations | None = None,
        place: about.HubPlace | None = None,
        waiting: Queue | None = None,
    ) -> None:
        self._prefix = prefix.rstrip("/")
        self._framework: App = build_framework(  # type: ignore[assignment]
            hub,
            auth,
            policy,
            book,
            prefix=self._prefix,
            hits=hits,
            history=history,
            kept_events=events,
            kept_reservations=reservations,
            place=place,
            waiting=waiting,
        )
        self._reports = ReportsRoute(hub, find_grant)
        self._stream = StreamRoute(hub, policy, keeper.identify)
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        path = scope["path"]
        if self._prefix and path == self._prefix:
            # The page's addresses are relative: without the last slash they would miss the prefix.
            query = b"?" + scope["query_string"] if scope.get("query_string") else b""
            await send_json(send, 308, b"", (b"location", f"{self._prefix}/".encode() + query))
            return
        if self._prefix and path.startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        try:
            if path == REPORTS:
                check_one_token(scope)
                await self._reports(scope, receive, send)
                return
            scope["caller"] = await self._identify(path, scope)
        except Refusal as refusal:
            await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint)
            return
        except Temporary as error:
            await send_error(send, 503, "unavailable", error.message, error.hint, (b"retry-after", b"5"))
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
