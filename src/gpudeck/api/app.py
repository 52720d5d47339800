"""The hub as an ASGI application below a prefix: identifies the caller, serves two raw routes itself, and passes all
others to the framework."""

import functools
import importlib
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.types import Scope as LitestarScope

from gpudeck import __version__
from gpudeck.api.about import HubAbout
from gpudeck.api.access import Authenticator, caller_of, check_access, check_one_token, policy_of
from gpudeck.api.answers import (
    RequestRefused,
    on_bug,
    on_depth,
    on_http_error,
    on_refused,
    on_usage_error,
)
from gpudeck.api.ask import AskLimits
from gpudeck.api.history import HistoryQueries, note_asker, on_history_refused
from gpudeck.api.metrics import MetricsPage
from gpudeck.api.page import answer_refused
from gpudeck.api.reports import FindToken, ReportsRoute
from gpudeck.api.reservations import ReservationHandler
from gpudeck.api.schema import CompleteSchema, name_operation
from gpudeck.api.services import ApiServices
from gpudeck.api.stream import StreamRoute
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import HistoryRefused
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.reservations.requests import ReservationRefused
from gpudeck.server.addresses import count_as
from gpudeck.server.asgi import App, Receive, Scope, Send, live, send_json

REPORTS, STREAM = "/api/v1/reports", "/api/v1/stream"
MOST_BODY_BYTES = 256 * 1024
"""The limit of a request body: a reservation of 5,000 GPUs by UUID. Reports have their own limit."""
HEALTH, READINESS = "/healthz", "/readyz"


RESOURCES = (
    *("fleet", "hosts", "history", "jobs", "events", "alerts", "maintenance", "reservations", "login", "accounts"),
    *("queue", "metrics", "ask", "about", "install", "badge", "reference", "page"),
    *("waste", "idle_policy", "oidc", "export", "digests"),
)
"""All routes in these modules are served."""


@functools.cache
def read_routes() -> Litestar:
    """All routes, as the framework reads them. That takes a tenth of a second, and so is done once in a process: which
    hub a request is for, `Framework` says."""
    return Litestar(
        route_handlers=_find_routes(),
        guards=[check_access],
        dependencies={name: _provide(name) for name in _DEPENDENCIES}
        | {
            "caller": Provide(_find_caller, sync_to_thread=False),
            "visibility": Provide(_find_visibility, sync_to_thread=False),
        },
        exception_handlers={
            HTTPException: on_http_error,
            HistoryRefused: on_history_refused,
            ReservationRefused: _on_reservation_refused,
            RequestRefused: on_refused,
            UsageError: on_usage_error,
            Temporary: on_refused,
            RecursionError: on_depth,
            Exception: on_bug,
        },
        openapi_config=OpenAPIConfig(
            title="gpudeck",
            version=__version__,
            path="/schema",
            render_plugins=[CompleteSchema(path="/openapi.json")],
            use_handler_docstrings=True,
            operation_id_creator=name_operation,
        ),
        request_max_body_size=MOST_BODY_BYTES,
        logging_config=None,
    )


def _find_routes() -> list[HTTPRouteHandler]:
    modules = [importlib.import_module(f"gpudeck.api.{name}") for name in RESOURCES]
    return [value for module in modules for value in vars(module).values() if isinstance(value, HTTPRouteHandler)]


class Framework:
    """The routes of one hub: an ASGI application."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._dependencies = _make_dependencies(services)
        self._routes: App = read_routes()  # type: ignore[assignment]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        scope["services"], scope["dependencies"] = self._services, self._dependencies
        await self._routes(scope, receive, send)


_DEPENDENCIES = (
    *("hub", "auth", "policy", "services", "host_admin", "metrics", "history", "about", "installer"),
    *("events", "jobs", "maintenance", "notes", "reservations", "queue", "alerts", "watches", "mutes", "ask_limits"),
)
"""The dependencies of handlers, by the name of the parameter."""


def _make_dependencies(services: ApiServices) -> dict[str, Any]:
    hub, auth, queries = services.hub, services.auth, HistoryQueries(services.history)
    made = {name: getattr(services, name, None) for name in _DEPENDENCIES}
    return made | {
        "services": services,
        "installer": services.host_admin.installer,
        "metrics": MetricsPage(hub, services.hits, services.outbox, services.alerts, services.cluster),
        "history": queries,
        "about": HubAbout(services, queries),
        "ask_limits": AskLimits(),
        "reservations": ReservationHandler(hub, auth, services.reservations),
    }


def _provide(name: str) -> Provide:
    def find(scope: LitestarScope) -> Any:
        service = scope["dependencies"][name]  # type: ignore[typeddict-item]
        if not getattr(service, "is_loaded", True):
            raise Temporary(f"{name}: the hub's database does not answer.", "Try again later.")
        return service

    return Provide(find, sync_to_thread=False)


def _find_caller(request: Request[Any, Any, Any]) -> Caller:
    return caller_of(request)


def _find_visibility(request: Request[Any, Any, Any]) -> Visibility:
    return policy_of(request).visibility(caller_of(request))


def _on_reservation_refused(request: Request[Any, Any, Any], error: ReservationRefused) -> Response[bytes]:
    handler: ReservationHandler = request.scope["dependencies"]["reservations"]  # type: ignore[typeddict-item]
    return handler.answer_refusal(request, error)


class ForeignRoutes(Protocol):
    """Paths that are not of our own interface, and whose callers our tokens do not know: it checks them itself."""

    def takes(self, path: str, query: bytes) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ApiApp:
    """The ASGI application.

    `prefix` ("/gpus") is taken off the path; a path without it is taken as it comes, so both a proxy that strips the
    prefix and one that does not will do.
    """

    def __init__(
        self,
        services: ApiServices,
        find_agent: FindToken,
        keeper: Authenticator,
        compat_routes: Sequence[ForeignRoutes] = (),
    ) -> None:
        """`compat_routes` are asked in their order, before anything of our own."""
        self._prefix = services.prefix.rstrip("/")
        self._framework = Framework(services)
        self.reports = ReportsRoute(services.hub, find_agent)
        self._stream = StreamRoute(services.hub, services.policy, keeper.identify)
        self._authenticator = keeper
        self._compat_routes = tuple(compat_routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        path = scope["path"]
        is_side = any(route.takes(path, scope["query_string"]) for route in self._compat_routes)
        if self._prefix and path == self._prefix and not is_side:
            # The page's addresses are relative: without the last slash they would miss the prefix.
            query = b"?" + scope["query_string"] if scope.get("query_string") else b""
            await send_json(send, 308, b"", (b"location", f"{self._prefix}/".encode() + query))
            return
        if self._prefix and path.startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        for route in self._compat_routes:
            if route.takes(path, scope["query_string"]):
                await route(scope, receive, send)
                return
        try:
            if path == REPORTS:
                check_one_token(scope)
                await self.reports(scope, receive, send)
                return
            scope["caller"] = caller = await self._identify(path, scope)
            note_asker(_as_asker(caller, scope))
        except (RequestRefused, Temporary) as error:
            await answer_refused(scope, path, send, error)
            return
        await self._pass_on(path, scope, receive, send)

    async def _identify(self, path: str, scope: Scope) -> Caller:
        """Probes are answered for every caller and without the database: otherwise a supervisor would end the hub."""
        if path == HEALTH:
            return NOBODY
        try:
            return await self._authenticator.identify(scope)
        except (RequestRefused, Temporary):
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
    """The key by which history queries are limited: the account, else the token, else the address."""
    if caller.account_id is not None or caller.token_id is not None:
        return caller.account_id, caller.token_id if caller.account_id is None else None
    return count_as(scope["client"][0]) if scope.get("client") else None
