"""One HTTP connection: timeouts of each part, requests that it serves itself, and requests that it passes to uvicorn's
protocol. See docs/limits.md.

One parser reads all input, so the connection knows what it waits for. A complete report is served without the ASGI
application, which would cost several times as much as the work itself; everything else goes to the application, which
serves the same path with the same responses.
"""

import asyncio
import contextlib
import http
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from email.utils import formatdate
from functools import lru_cache, partial
from math import inf
from typing import Any, Final, Protocol

import httptools
from msgspec import Struct

from gpudeck.model.address import find_host_problem
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.addresses import Networks, count_as
from gpudeck.server.admission import CONNECTION, COSTLY_REPORT
from gpudeck.server.asgi import (
    SAFE_HEADERS,
    App,
    Header,
    Receive,
    Response,
    Scope,
    Send,
    make_error,
    safe_headers,
    send_error,
)
from gpudeck.server.rate_limits import ConcurrencyLimiter, RateLimiter

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Requests that a client may pipeline behind the one that is being answered."""
STALL_SECONDS, MIN_READ_BYTES = 10.0, 16 * 1024
"""A client must read this much of a pending response within this time: unread data fill the hub's memory."""
MAX_DIRECT_BYTES: Final = 256 * 1024
"""Larger requests go to the application, which reads them in pieces."""
_UNUSUAL: Final = frozenset({b"expect", b"transfer-encoding", b"x-forwarded-proto"})
"""Requests with these headers go to the application."""
READ_SECONDS, BUSY_READ_SECONDS, MANY_WAITING = 0.006, 0.03, 256
"""How long first reports are read per turn of the event loop: a third of it, or most of it while many wait, as after a
restart with thousands of agents."""
_NO_PROTOCOL: Final = asyncio.Protocol()
_NOT_HTTP = "this is no HTTP request that this hub understands"


class DirectRequest(Struct):
    """`headers` have lower-case names. `peer` is the address of the other end of the connection, and `refund` returns
    the cost of opening the connection to it."""

    headers: dict[bytes, bytes]
    body: bytes
    peer: str
    refund: Callable[[], None]


class DirectRoute(Protocol):
    """`starts` are the request lines of its requests."""

    starts: tuple[bytes, ...]

    def is_known(self, request: DirectRequest) -> bool:
        """Whether the sender is known, so that the incomplete request may be awaited."""
        ...

    def serve(self, request: DirectRequest) -> "Response | Awaitable[Response] | None":
        """None if the application must serve it: then nothing was done."""
        ...


class FirstReports:
    """The queue of first reports of connections. The event loop reads all input before it does anything else: when
    thousands of agents return after a restart, that would be seconds of work."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Connection, bytes]] = deque()

    def add(self, connection: "Connection", data: bytes) -> None:
        """`data` was read from the connection, which reads no more until its turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        self._waiting.append((connection, data))

    def _serve(self) -> None:
        end = time.perf_counter() + (READ_SECONDS if len(self._waiting) < MANY_WAITING else BUSY_READ_SECONDS)
        while self._waiting and time.perf_counter() < end:
            connection, data = self._waiting.popleft()
            try:
                connection.receive_first(data)
            except Exception:
                log.exception("a report could not be read")
                connection.abort()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)


def encode_response(response: Response, scheme: str) -> bytes:
    """The response as bytes, with the headers that every response has."""
    length = b"content-length: %d\r\n\r\n" % len(response.body)
    return _encode_head(response.status, response.headers, scheme) + _date(int(time.time())) + length + response.body


@lru_cache(64)
def _encode_head(status: int, headers: tuple[Header, ...], scheme: str) -> bytes:
    line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n".encode()
    return line + b"".join(b"%b: %b\r\n" % header for header in (*headers, *safe_headers(scheme)))


@lru_cache(1)
def _date(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


class ConnectionLimiter:
    """Limits the number of connections and the rate at which they are opened, per address and in total. `hits` counts
    refusals by limit. `proxies` carry many callers each: limits per address do not apply to them."""

    def __init__(
        self,
        settings: LimitsSettings | None = None,
        *,
        proxies: Sequence[str] = (),
        hits: Counter[str] | None = None,
    ) -> None:
        self.settings = settings or LimitsSettings()
        self.hits: Counter[str] = Counter() if hits is None else hits
        self.open = ConcurrencyLimiter(self.settings.connections_per_address, self.settings.connections)
        self.answering: set[asyncio.Future[Response]] = set()
        """Pending responses to direct requests."""
        self.unused: dict[Connection, None] = {}
        """Connections without a request so far, the oldest first."""
        self.without_protocol: set[Connection] = set()
        """Connections that have sent only direct requests: the HTTP server does not know them."""
        self._openings = RateLimiter("openings", self.settings.requests_per_second, self.settings.requests_burst)
        self._unlimited = Networks([*self.settings.unlimited, *proxies])

    def admit(self, accepted: socket.socket, address: str, now: float) -> "Connection | None":
        """None if the connection is refused; otherwise it counts until it is `release`d."""
        caller = count_as(address)
        if not self._unlimited.has(address):
            if not self.open.has_room_for(caller):
                self.hits["connections_per_address"] += 1
                return None
            if self._openings.take(caller, now):
                self.hits["connections_per_second"] += 1
                return None
        if self.open.is_full:
            self.hits["connections"] += 1
            oldest = next(iter(self.unused), None)
            if oldest is None:
                return None
            oldest.abort()
            oldest.release()
        self.open.acquire(caller)
        connection = Connection(self, caller, accepted)
        self.unused[connection] = None
        return connection

    def charge_openings(self, caller: str, number: float) -> None:
        """Charge the caller for this many openings; a negative number is a refund."""
        self._openings.charge(caller, asyncio.get_running_loop().time(), number)


class Connection(asyncio.Protocol):
    """An accepted connection: it serves reports, and passes everything else to the HTTP server's own protocol. It ends
    when a part of a request takes too long or is too large, or when a response is not read."""

    def __init__(self, limiter: ConnectionLimiter, caller: str, accepted: socket.socket) -> None:
        self.caller = caller
        self.unanswered = 0
        self.abort: Callable[[], None] = partial(_shut_down, accepted)
        self._limiter = limiter
        self._is_released = self._is_refunded = False
        self._protocol = _NO_PROTOCOL
        self._awaited, self._due = "head_time", inf
        """The setting and the counter for what the client must send next, and the deadline for it."""
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._url = b""
        self._is_between_requests = True
        self._kept: bytearray | None = None
        """All bytes of a request that may be served directly, from which `_headers` and `_body` come."""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._has_head = self._is_usual = False
        self._host: bytes | None = None
        self._early = b""
        """The bytes after a report that is being answered."""
        self._answering: asyncio.Future[Response] | None = None
        self._is_unread = False
        """Whether reading is paused because the client does not read the responses to direct requests."""

    def release(self) -> None:
        """The connection is closed. Idempotent."""
        if not self._is_released:
            self._is_released = True
            self._limiter.open.release(self.caller)
            self._limiter.unused.pop(self, None)
            self._limiter.without_protocol.discard(self)

    def refund(self) -> None:
        """Refund the cost of opening it to the caller. Idempotent."""
        if not self._is_refunded:
            self._is_refunded = True
            self._limiter.charge_openings(self.caller, -1)

    def pass_to(
        self, make_protocol: Callable[[], asyncio.Protocol], direct: DirectRoute | None, first: FirstReports
    ) -> None:
        """Set the protocol that gets everything that `direct` does not serve. Called before the connection is made."""
        self._make_protocol, self._direct, self._first = make_protocol, direct, first
        self._starts = () if direct is None else direct.starts

    def connection_made(self, transport: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self.abort = transport.abort
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._limiter.without_protocol.add(self)
        self._parser: Any = httptools.HttpRequestParser(self)
        # As uvicorn's own parser: a request after one with `Connection: close` is ignored.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._await("head_time")
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self.release()
        self._protocol.connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()
        # Both refer to this object: breaking the cycle leaves nothing for the garbage collector.
        self._parser, self._protocol = None, _NO_PROTOCOL

    def data_received(self, data: bytes) -> None:
        if self in self._limiter.unused and self._starts and data.startswith(self._starts):
            # It waits for its turn; this time does not count against the sender.
            self._due = inf
            self._transport.pause_reading()
            self._first.add(self, data)
        else:
            self.receive(data)

    def receive_first(self, data: bytes) -> None:
        """Read what waited in the queue."""
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self.receive(data)

    def receive(self, data: bytes) -> None:
        if self._answering is not None:
            self._early += data
            return
        if self._is_between_requests and not self.unanswered and self._starts and data.startswith(self._starts):
            self._kept, self._headers, self._body = bytearray(), {}, bytearray()
            self._has_head = self._is_usual = False
        if self._kept is not None:
            self._kept += data
        if not self._parse(data):
            return
        if self._kept is None:
            self._pass_on(data)
        elif not self._serve_directly(self._kept):
            data, self._kept = bytes(self._kept), None
            self._pass_on(data)
        self._watch()

    def _parse(self, data: bytes) -> bool:
        """Returns whether the connection continues."""
        if self._awaited == "head_time":
            self._head_bytes += len(data)
            # A large chunk may contain the end of the head and a body, which has its own limit later.
            if self._head_bytes > MAX_HEAD_BYTES + len(data) or len(data) > 16 * MAX_HEAD_BYTES:
                self._limiter.charge_openings(self.caller, COSTLY_REPORT)
                self._give_up("head_size")
                return False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is served as if it asked for no other protocol
        except httptools.HttpParserError:
            too_many = self.unanswered > MAX_PIPELINED + 1
            self._reject("too many requests are sent ahead" if too_many else "Invalid HTTP request received.")
            return False
        return True

    def _serve_directly(self, kept: bytearray) -> bool:
        """False if the application must serve the request. Otherwise it is served, or waits for the rest."""
        direct = self._direct
        if direct is None or len(kept) > MAX_DIRECT_BYTES or not (self._is_usual or not self._has_head):
            return False
        if not self._has_head:
            return True
        request = DirectRequest(self._headers, bytes(self._body), self._peer, self.refund)
        if not self._is_between_requests:
            return direct.is_known(request)
        response = direct.serve(request)
        if response is None:
            return False
        self._kept = None
        self.unanswered -= 1
        # uvicorn's own timer for idle connections ends with any data.
        self._protocol.data_received(b"")
        if isinstance(response, Response):
            self._respond(response)
        else:
            self._transport.pause_reading()
            self._answering = asyncio.ensure_future(response)
            self._limiter.answering.add(self._answering)
            self._answering.add_done_callback(self._respond_later)
        return True

    def _respond(self, response: Response) -> None:
        self._await("idle_time")
        self._transport.write(encode_response(response, self._scheme))
        if (b"connection", b"close") in response.headers:
            self._transport.close()

    def _respond_later(self, done: asyncio.Future[Response]) -> None:
        self._answering = None
        self._limiter.answering.discard(done)
        if done.cancelled() or self._transport.is_closing():
            return
        self._respond(done.result())
        if not self._is_unread:
            self._transport.resume_reading()
        if self._early:
            data, self._early = self._early, b""
            self.receive(data)

    def close(self) -> None:
        """Close once all written data are sent."""
        self._transport.close()

    def _pass_on(self, data: bytes) -> None:
        """Pass data to the HTTP server's own protocol, which agents do not need."""
        if self._protocol is _NO_PROTOCOL:
            self._limiter.without_protocol.discard(self)
            self._protocol = self._make_protocol()
            self._protocol.connection_made(self._transport)
        token = _connection.set(self)
        self._protocol.data_received(data)
        # The transport keeps this context: without the reset the two would form a reference cycle.
        _connection.reset(token)

    def note_answered(self) -> None:
        """The application has answered one of its requests."""
        self.unanswered -= 1
        if self._is_between_requests:
            self._await("idle_time")

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()
        if not self.unanswered:
            # The application itself waits before it writes more.
            self._is_unread = True
            self._transport.pause_reading()
        self._check_reading(inf)

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._is_unread:
            self._is_unread = False
            self._transport.resume_reading()

    def on_message_begin(self) -> None:
        # A pipelined request behind one that may be served directly: the application serves both, in order.
        self._is_usual = False
        self._is_between_requests = False
        self._await("head_time")
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._kept is not None:
            name = name.lower()
            # With two, a proxy may use one and the hub the other.
            self._headers[name] = value if name not in self._headers else b"\0"

    def on_headers_complete(self) -> None:
        self._await("body_time")
        self._limiter.unused.pop(self, None)
        # Raises for what uvicorn would refuse with its own error.
        httptools.parse_url(self._url).path.decode("ascii")
        self.unanswered += 1
        if self.unanswered > MAX_PIPELINED + 1:
            self._limiter.hits["requests_ahead"] += 1
            raise ValueError
        if self._kept is not None and not self._has_head:
            self._has_head, self._is_usual = True, self._is_usual_head()

    def _is_usual_head(self) -> bool:
        headers, parser = self._headers, self._parser
        if headers.get(b"host", b"\0") != self._host:  # the host of the request before is known to be valid
            if find_host_problem([headers[b"host"]] if b"host" in headers else [], "1.1") is not None:
                return False
            self._host = headers[b"host"]
        is_plain = headers.keys().isdisjoint(_UNUSUAL) and b"\0" not in headers.values()
        return is_plain and bool(parser.should_keep_alive()) and not parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        if self._kept is not None:
            self._body += body

    def on_message_complete(self) -> None:
        self._is_between_requests = True
        self._await("idle_time")

    def _await(self, what: str) -> None:
        self._awaited, self._head_bytes = what, 0
        self._due = self._loop.time() + getattr(self._limiter.settings, what)

    def _watch(self) -> None:
        """One timer serves all deadlines: it is set again only if it would fire too late."""
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._due < inf and not self._transport.is_closing():
            self._timer = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._answering is not None or (self._awaited == "idle_time" and self.unanswered):
            self._await("idle_time")
        if self._due <= self._loop.time():
            self._give_up(self._awaited)
        else:
            self._watch()

    def _check_reading(self, before: float) -> None:
        unread = self._transport.get_write_buffer_size()
        if before - unread < MIN_READ_BYTES:
            self._give_up("answer_time")
        else:
            self._stall_timer = self._loop.call_later(STALL_SECONDS, self._check_reading, unread)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None

    def _give_up(self, limit: str) -> None:
        """Ends the connection at once, dropping unsent data."""
        self._limiter.hits[limit] += 1
        self._stop_timers()
        self._transport.abort()

    def _reject(self, problem: str) -> None:
        response = make_error(400, "bad_request", _NOT_HTTP, problem, (b"connection", b"close"))
        self._transport.write(encode_response(response, self._scheme))
        self._transport.close()


_connection: ContextVar[Connection] = ContextVar("connection")
"""The connection whose data are being processed; inherited by uvicorn's tasks for its requests."""


def with_connection(app: App) -> App:
    """`app` for the requests of these connections: checks the Host header, and counts the unanswered requests of each
    connection."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        connection = _connection.get()
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        try:
            if problem := find_host_problem(hosts, scope["http_version"]):
                close = (b"connection", b"close")
                await send_error(send, 400, "bad_request", _NOT_HTTP, problem, *SAFE_HEADERS, close)
            else:
                scope["extensions"] = {CONNECTION: {"refund": connection.refund}}
                await app(scope, receive, send)
        finally:
            connection.note_answered()

    return serve


def _shut_down(accepted: socket.socket) -> None:
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
