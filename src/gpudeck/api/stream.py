"""GET /api/v1/stream: the fleet as server-sent events. A raw ASGI route: every viewer gets the very same bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import unquote_to_bytes

from gpudeck.api.access import Policy
from gpudeck.api.answers import RequestRefused, send_refusal
from gpudeck.auth.caller import Caller
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.stream import GZIP_HEADER, Hosts, PublishedEvent, Viewer, deflate
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error

MAX_VIEWERS = 2_000
MAX_SUBSCRIBED = 200
"""Hosts in one request: proxies refuse addresses of more than 8 kB."""
_MAX_ID_LENGTH = 512
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # nginx would otherwise hold events back until its buffer is full.
    (b"x-accel-buffering", b"no"),
    (b"vary", b"accept-encoding"),
]
_HINT = (
    "Give ids of hosts with commas between them, as /api/v1/hosts lists them: ?hosts=ID,ID. Empty: totals only. "
    "?shape=overview has all hosts in short."
)
_RETRY = b"retry: 2000\n\n"


CHECK_SECONDS = 10.0
"""How long a stream stays open after its session has ended."""
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
        except (RequestRefused, Temporary) as error:
            await send_refusal(send, error)
            return
        if self._hub.stream.viewers >= MAX_VIEWERS:
            await send_error(
                send, 503, "too_many", f"{MAX_VIEWERS} streams are open", "Try again.", (b"retry-after", b"10")
            )
            return
        try:
            hosts = read_hosts(scope["query_string"])
        except ValueError as error:
            await send_error(send, 400, "bad_request", str(error), _HINT)
            return
        last_event_id, accepted = read_headers(scope, b"last-event-id", b"accept-encoding")
        packed = "gzip" in accepted.lower()
        headers = [*_HEADERS, (b"content-encoding", b"gzip")] if packed else _HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        visibility = self._policy.visibility(caller)
        viewer = await self._hub.stream.watch_in_steps(last_event_id, visibility, hosts)
        checking = asyncio.create_task(self._close_when_not_allowed(viewer, scope, visibility))
        try:
            await _serve(viewer, packed, receive, send)
        finally:
            checking.cancel()
            self._hub.stream.unwatch(viewer)

    async def _close_when_not_allowed(self, viewer: Viewer, scope: Scope, visibility: Visibility) -> None:
        """Close the stream when the caller's visibility changes: the client connects again."""
        while True:
            await asyncio.sleep(self._every)
            try:
                caller = await self._identify(scope)
                self._policy.check("read", caller)
            except RequestRefused:
                viewer.close()
                return
            except Temporary:
                continue  # a database that is away ends no stream
            if caller.kind == "unverified":
                continue
            if self._policy.visibility(caller) != visibility:
                viewer.close()
                return


def read_hosts(query: bytes) -> Hosts:
    """The ids of the hosts that are asked for, None for all; raises ValueError. A comma in an id is written as %2C."""
    parameters = [part.partition(b"=") for part in query.split(b"&") if part]
    if query == b"shape=overview":
        return "overview"
    if any(name == b"shape" for name, _, _ in parameters):
        raise ValueError("shape goes with no other parameter, and has to be overview")
    if unknown := next((name for name, _, _ in parameters if name != b"hosts"), None):
        raise ValueError(f"there is no parameter {unknown[:40].decode(errors='replace')!r}; did you mean hosts?")
    values = [value for _, _, value in parameters]
    ids = [host_id for value in values if value for host_id in value.split(b",")]
    if len(ids) > MAX_SUBSCRIBED:
        raise ValueError(f"{len(ids)} ids are given, and a stream takes at most {MAX_SUBSCRIBED}")
    try:
        hosts = frozenset(unquote_to_bytes(host_id.replace(b"+", b" ")).decode() for host_id in ids)
    except UnicodeDecodeError:
        raise ValueError("an id is not UTF-8") from None
    for host_id in hosts:
        if not 0 < len(host_id) <= _MAX_ID_LENGTH:
            raise ValueError(f"an id has {len(host_id)} characters; 1 to {_MAX_ID_LENGTH} are possible")
    return hosts if values else None


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
