"""GET /api/v1/stream: the fleet as server-sent events. A raw ASGI route: every viewer gets the very same bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from litestar.exceptions import HTTPException

from gpudeck.api.access import Policy
from gpudeck.api.callers import Refusal
from gpudeck.auth.caller import Caller
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import Sight
from gpudeck.hub.stream import GZIP_HEADER, PublishedEvent, Viewer, deflate
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error

MAX_VIEWERS = 2_000
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would otherwise hold events back until its buffer is full.
    (b"x-accel-buffering", b"no"),
    (b"vary", b"accept-encoding"),
]
_RETRY = b"retry: 2000\n\n"


CHECK_SECONDS = 10.0
"""How long somebody who was logged out elsewhere may still look."""
Identify = Callable[[Scope], Awaitable[Caller]]


class StreamRoute:
    """`identify` says who a caller is now: a session may end, or a role change, while a stream is open."""

    def __init__(self, hub: Hub, policy: Policy, identify: Identify, every: float = CHECK_SECONDS) -> None:
        self._hub = hub
        self._policy = policy
        self._identify = identify
        self._every = every

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await send_error(send, 405, "method_not_allowed", "the stream is read with GET", "", (b"allow", b"GET"))
            return
        caller: Caller = scope["caller"]
        try:
            self._policy.check("read", caller)
        except Temporary as error:
            await send_error(send, 503, "unavailable", error.message, error.hint, (b"retry-after", b"5"))
            return
        except HTTPException as error:
            code = "unauthorized" if error.status_code == 401 else "forbidden"
            await send_error(send, error.status_code, code, str(error.detail))
            return
        if self._hub.stream.viewers >= MAX_VIEWERS:
            await send_error(
                send, 503, "too_many", f"{MAX_VIEWERS} streams are open", "Try again.", (b"retry-after", b"10")
            )
            return
        last_event_id, accepted = read_headers(scope, b"last-event-id", b"accept-encoding")
        packed = "gzip" in accepted.lower()
        headers = [*_HEADERS, (b"content-encoding", b"gzip")] if packed else _HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        sight = self._policy.sight(caller)
        viewer = self._hub.stream.watch(last_event_id, sight)
        checking = asyncio.create_task(self._close_when_not_allowed(viewer, scope, sight))
        try:
            await _serve(viewer, packed, receive, send)
        finally:
            checking.cancel()
            self._hub.stream.unwatch(viewer)

    async def _close_when_not_allowed(self, viewer: Viewer, scope: Scope, sight: Sight) -> None:
        """Whoever may see less than at the beginning, or more, has to come again."""
        while True:
            await asyncio.sleep(self._every)
            try:
                caller = await self._identify(scope)
                self._policy.check("read", caller)
            except (HTTPException, Refusal):
                viewer.close()
                return
            except Temporary:
                continue  # a database that is away ends no stream
            if caller.kind == "unverified":
                continue
            if self._policy.sight(caller) != sight:
                viewer.close()
                return


async def _serve(viewer: Viewer, packed: bool, receive: Receive, send: Send) -> None:
    goodbye = asyncio.create_task(_close_on_disconnect(viewer, receive))
    try:
        first = GZIP_HEADER + deflate(_RETRY) if packed else _RETRY
        await send({"type": "http.response.body", "body": first, "more_body": True})
        while (event := await viewer.next()) is not None:
            await send({"type": "http.response.body", "body": await _bytes_of(event, packed), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        goodbye.cancel()
        with suppress(asyncio.CancelledError):
            await goodbye


async def _bytes_of(event: PublishedEvent, packed: bool) -> bytes:
    """Compressing a snapshot of a large fleet takes tens of milliseconds: a thread does it, once for all viewers."""
    if not packed:
        return event.plain
    return event.deflated() if len(event.plain) < 65_536 else await asyncio.to_thread(event.deflated)


async def _close_on_disconnect(viewer: Viewer, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    viewer.close()
