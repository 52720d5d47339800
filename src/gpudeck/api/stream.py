"""GET /api/v1/stream: the fleet as server-sent events. A raw ASGI route: every viewer gets the very same bytes."""

import asyncio
from contextlib import suppress

from litestar.exceptions import HTTPException

from gpudeck.api.access import Policy
from gpudeck.api.asgi import SAFE, Receive, Scope, Send, read_headers, send_error
from gpudeck.auth.caller import Caller
from gpudeck.hub.hub import Hub
from gpudeck.hub.stream import GZIP_HEADER, Event, Viewer, deflate

MAX_VIEWERS = 2_000
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would otherwise hold events back until its buffer is full.
    (b"x-accel-buffering", b"no"),
    (b"vary", b"accept-encoding"),
    *SAFE,
]
_RETRY = b"retry: 2000\n\n"


class StreamRoute:
    def __init__(self, hub: Hub, policy: Policy) -> None:
        self._hub = hub
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await send_error(send, 405, "method_not_allowed", "the stream is read with GET", "", (b"allow", b"GET"))
            return
        caller: Caller = scope["caller"]
        try:
            self._policy.check("read", caller)
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
        viewer = self._hub.stream.watch(last_event_id, self._policy.sight(caller))
        try:
            await _serve(viewer, packed, receive, send)
        finally:
            self._hub.stream.unwatch(viewer)


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


async def _bytes_of(event: Event, packed: bool) -> bytes:
    """Compressing a snapshot of a large fleet takes tens of milliseconds: a thread does it, once for all viewers."""
    if not packed:
        return event.plain
    return event.deflated() if len(event.plain) < 65_536 else await asyncio.to_thread(event.deflated)


async def _close_on_disconnect(viewer: Viewer, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    viewer.close()
