"""The hub's HTTP front door: two raw routes first, the framework for the rest, everything below an optional prefix."""

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig

from gpudeck import __version__
from gpudeck.api import fleet, gpus, hosts, page, probes
from gpudeck.api.asgi import SAFE, App, Message, Receive, Scope, Send, send_json
from gpudeck.api.errors import on_bug, on_http_error
from gpudeck.api.host_book import HostBook
from gpudeck.api.reports import FindGrant, ReportsRoute
from gpudeck.api.schema import CompleteSchema
from gpudeck.api.stream import StreamRoute
from gpudeck.api.text import TextViews
from gpudeck.api.writing import Writers
from gpudeck.hub.hub import Hub


def build_framework(hub: Hub, writers: Writers, book: HostBook) -> Litestar:
    texts = TextViews()
    return Litestar(
        route_handlers=[
            fleet.read_fleet,
            # Before the handlers of the same paths: else the framework makes its own.
            hosts.allow_hosts,
            hosts.allow_host,
            hosts.list_hosts,
            hosts.read_host,
            hosts.add_host,
            hosts.remove_host,
            gpus.list_gpus,
            probes.read_health,
            probes.read_readiness,
            page.read_page,
            page.read_asset,
        ],
        dependencies={
            "hub": Provide(lambda: hub, sync_to_thread=False),
            "texts": Provide(lambda: texts, sync_to_thread=False),
            "book": Provide(lambda: book, sync_to_thread=False),
        },
        exception_handlers={HTTPException: on_http_error, Exception: on_bug},
        openapi_config=OpenAPIConfig(
            title="gpudeck", version=__version__, path="/schema", render_plugins=[CompleteSchema(path="/openapi.json")]
        ),
        logging_config=None,
        state=State({"writers": writers}),
        signature_types=[Hub, TextViews, HostBook],
    )


class FrontDoor:
    """The ASGI application.

    `prefix` ("/gpus") is taken off the path; a path without it is taken as it comes, so both a proxy that strips the
    prefix and one that does not will do.
    """

    def __init__(self, hub: Hub, find_grant: FindGrant, prefix: str = "", *, writers: Writers, book: HostBook) -> None:
        self._framework: App = build_framework(hub, writers, book)  # type: ignore[assignment]
        self._raw: dict[str, App] = {
            "/api/v1/reports": ReportsRoute(hub, find_grant),
            "/api/v1/stream": StreamRoute(hub),
        }
        self._prefix = prefix.rstrip("/")

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
        raw = self._raw.get(path)
        if raw is not None:
            await raw(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # As GET; the server itself leaves the body out.
            scope = {**scope, "method": "GET"}
        await self._framework(scope, receive, _with_safe_headers(send))


def _with_safe_headers(send: Send) -> Send:
    async def send_safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SAFE]
        await send(message)

    return send_safely
