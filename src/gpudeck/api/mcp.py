"""POST /mcp: the tools of `gpudeck.mcp` over streamable HTTP.

A tool asks the hub's own routes with the headers of the caller: who it is, what it may, limits and the audit log are
those of HTTP. No session is kept, and the hub sends nothing by itself, so that GET is refused.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx
import msgspec

from gpudeck.api.access import Policy
from gpudeck.api.answers import RequestRefused, send_refusal
from gpudeck.auth.caller import Caller
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.plugins import is_installed
from gpudeck.server.asgi import App, ErrorBody, Receive, Scope, Send, send_error

PATH: Final = "/mcp"
_KEPT_HEADERS: Final = frozenset(
    {b"authorization", b"cookie", b"host", b"origin", b"sec-fetch-site", b"user-agent", b"forwarded", b"via"}
)


class McpApp:
    """`app` with /mcp in front of it, below `prefix` or without it."""

    def __init__(
        self, app: App, policy: Policy, identify: Callable[[Scope], Awaitable[Caller]], prefix: str = ""
    ) -> None:
        self._app = app
        self._policy = policy
        self._identify = identify
        self._paths = {PATH, prefix.rstrip("/") + PATH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        try:
            self._policy.check("read", await self._identify(scope))
        except (RequestRefused, Temporary) as error:
            await send_refusal(send, error)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            hint = "Send POST: this server keeps no sessions and sends nothing by itself."
            await send_error(send, 405, "method_not_allowed", "/mcp is for POST", hint, (b"allow", b"POST"))
        elif not is_installed("mcp"):
            hint = "An admin can install gpudeck[mcp] on the hub's machine."
            await send_error(send, 501, "not_installed", "this hub does not serve MCP", hint)
        else:
            # Importing it takes a second, at the first request.
            server = await asyncio.to_thread(importlib.import_module, "gpudeck.mcp.server")
            await server.serve_request(_OwnRoutes(self._app, scope), scope, receive, send)


class _OwnRoutes:
    """The routes of this hub, asked for the caller of a request."""

    def __init__(self, app: App, scope: Scope) -> None:
        self._app = app
        self._scope = scope
        self._headers = [
            (name, value)
            for name, value in scope["headers"]
            if name in _KEPT_HEADERS or name.startswith((b"x-forwarded-", b"x-real-"))
        ]
        self.has_token = any(name == b"authorization" for name, _ in self._headers)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        kind = {} if body is None else {"content-type": "application/json"}
        request = httpx.Request(
            method,
            f"http://hub{path}",
            headers=[*self._headers, (b"accept", b"application/json"), *httpx.Headers(kind).raw],
            content=None if body is None else msgspec.json.encode(body),
        )
        response = await httpx.ASGITransport(self._as_caller).handle_async_request(request)
        answer = await response.aread()
        if response.status_code >= 400:
            raise _read_refusal(response.status_code, answer)
        return answer

    async def _as_caller(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = {name: self._scope[name] for name in ("client", "scheme", "server") if name in self._scope}
        # The framework keeps what it has parsed of a request in `state`.
        await self._app(self._scope | scope | kept | {"state": {}}, receive, send)  # type: ignore[operator]


def _read_refusal(status: int, body: bytes) -> GpudeckError:
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.DecodeError:
        return GpudeckError(f"the hub answered {status}.")
    return GpudeckError(f"{error.message.rstrip('.')}.", error.hint)
