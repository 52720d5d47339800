"""One HTTP connection: timeouts of each part, requests that it serves itself, and requests that it passes to uvicorn's
protocol. See docs/limits.md.

Reports are served without the ASGI application, which would cost several times as much as their work. Only a request in
its usual form is: `POST` of the one path, with headers that are known here, each at most once, a body of the stated
length, and nothing behind it. Everything else goes to the application, which serves the same path with the same
responses.
"""

import asyncio
import contextlib
import http
import logging
import os
import select
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from email.utils import formatdate
from functools import cached_property, lru_cache, partial
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
    encode_error,
    safe_headers,
    send_error,
)
from gpudeck.server.rate_limits import ConcurrencyLimiter, RateLimiter

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Requests that a client may send on one connection beyond the one that is being answered."""
STALL_SECONDS, MIN_READ_BYTES = 10.0, 16 * 1024
"""What a client has to read of a waiting response in that time: what it does not read fills the hub's memory."""
MAX_DIRECT_BYTES: Final = 256 * 1024
"""A request that is larger is left to the application, which reads it in pieces."""
MAX_DIRECT_HEAD_BYTES: Final = 8 * 1024
"""The same for one whose head is larger than this."""
MAX_DIRECT_PIECES: Final = 8
"""The same for one that comes in more pieces: they are put together anew with each."""
_HEADERS: Final = frozenset(
    b"host authorization content-type content-encoding content-length gpudeck-sent-at gpudeck-wire-version "
    b"user-agent accept accept-encoding connection x-forwarded-for".split()
)
_REPEATED: Final = _HEADERS - {b"authorization", b"gpudeck-sent-at"}
"""Headers that are the same in most requests. Secrets are not kept where they need not be."""
MAX_KEPT_LINES, _MAX_KEPT_BYTES = 4096, 200
PAUSE_SECONDS: Final = 0.02
MIN_CONNECTIONS: Final = 500
"""With fewer connections each is read by itself: then a report seldom finds others to wait for."""
_MAX_READ, READ_SECONDS, BUSY_READ_SECONDS = 256, 0.006, 0.03
"""Others have their turn after so much time. It is a third of the event loop's, and more, also while large answers and
a tick are made, which take as much each: reports come first. While more connections wait than are looked up at once, as
after a restart with thousands of agents, it is most of it."""
_READ_BYTES: Final = 64 * 1024
_MAX_WAITING_BYTES: Final = 16 * 1024
"""A first report that is larger does not wait for its turn: thousands of them would fill the memory."""
_NO_PROTOCOL: Final = asyncio.Protocol()
_NOT_HTTP = "this is no HTTP request that this hub understands"


class DirectRequest(Struct):
    """`headers` by their names in lower case. `peer` is the address of the other end of the connection, and `refund`
    gives it back what opening the connection cost. `scheme` is what is spoken on the connection."""

    headers: dict[bytes, bytes]
    body: bytes
    peer: str
    scheme: str
    refund: Callable[[], None]


class DirectRoute(Protocol):
    paths: Sequence[str]

    def is_known(self, request: DirectRequest) -> bool:
        """Whether the sender is one whose request may be waited for; its body is not there yet."""
        ...

    def serve(self, request: DirectRequest) -> "Response | Awaitable[Response] | None":
        """None where the application has to serve it: nothing was done with it then."""
        ...


class BatchReader:
    """Reads the connections of many agents together, every few milliseconds.

    A report that wakes the hub by itself costs several times as much as one that follows another. Where many agents are
    connected, their reports wait for each other, `PAUSE_SECONDS` at most.

    Connections whose `transport`s have paused reading, by their sockets' descriptors. One event loop owns it.

    `least` is how many connections there have to be before any is read like this.
    """

    def __init__(self, least: float = MIN_CONNECTIONS) -> None:
        self.least = least if hasattr(select, "epoll") else inf  # Linux has it
        self._connections: dict[int, Connection] = {}
        self._ready: OrderedDict[int, None] = OrderedDict()
        """Descriptors with something to read, in the order in which they are served."""
        self._received: dict[int, bytes] = {}
        self._is_reading = False

    @cached_property
    def _poller(self) -> "select.epoll":
        return select.epoll()

    def add(self, descriptor: int, connection: "Connection") -> None:
        self._poller.register(descriptor, select.EPOLLIN)
        self._connections[descriptor] = connection
        if not self._is_reading:
            self._is_reading = True
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._read)

    def put(self, descriptor: int, data: bytes) -> None:
        """What was read from an added connection before it was added."""
        self._received[descriptor] = data
        self._ready[descriptor] = None

    def remove(self, descriptor: int) -> None:
        """Before the socket is closed, or its connection is read in another way."""
        del self._connections[descriptor]
        self._ready.pop(descriptor, None)
        self._received.pop(descriptor, None)
        with contextlib.suppress(OSError):  # closed: then it is gone from there
            self._poller.unregister(descriptor)

    def _read(self) -> None:
        found = self._poller.poll(0, _MAX_READ)
        self._ready.update(dict.fromkeys(descriptor for descriptor, _ in found))
        end = time.perf_counter() + (READ_SECONDS if len(self._ready) <= _MAX_READ else BUSY_READ_SECONDS)
        while self._ready and time.perf_counter() < end:
            descriptor, _ = self._ready.popitem(last=False)
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            try:
                data = self._received.pop(descriptor, None) or _read_some(descriptor)
                if data:
                    connection.receive(data)
                elif data is not None:
                    connection.leave_batch()
            except Exception:
                log.exception("a connection could not be read")
                connection.abort()
        self._is_reading = bool(self._connections)
        if self._is_reading:
            loop = asyncio.get_running_loop()
            is_rest = bool(self._ready) or len(found) == _MAX_READ
            loop.call_later(0.0 if is_rest else PAUSE_SECONDS, self._read)


def _read_some(descriptor: int) -> bytes | None:
    """None where nothing has come after all; empty at the end of a connection, and after an error of its."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class RequestReader:
    """Finds direct requests among what connections receive. `batches` reads connections that have sent one."""

    def __init__(self, route: DirectRoute, batches: BatchReader | None = None) -> None:
        self.route = route
        self.batches = batches or BatchReader()
        self._starts = tuple(f"POST {path} HTTP/1.1\r\n".encode() for path in route.paths)
        self._kept_lines: dict[bytes, Header] = {}

    def may_begin(self, data: bytes) -> bool:
        return data.startswith(self._starts)

    def read(self, data: bytes) -> tuple[dict[bytes, bytes], bytes, bool] | bool:
        """The headers and the body of the request that `data` is, and whether the body is whole. True: a part of the
        head is still missing. False: it is for the application."""
        head, end, body = data.partition(b"\r\n\r\n")
        if not end or len(head) > MAX_DIRECT_HEAD_BYTES:
            return len(head) < MAX_DIRECT_HEAD_BYTES
        headers = self._read_headers(head)
        if headers is None:
            return False
        length = int(headers[b"content-length"])
        return (headers, body, len(body) == length) if len(body) <= length <= MAX_DIRECT_BYTES else False

    def _read_headers(self, head: bytes) -> dict[bytes, bytes] | None:
        """None where a strict parser could read them in another way, or would refuse them."""
        headers: dict[bytes, bytes] = {}
        for line in head.split(b"\r\n")[1:]:
            header = self._kept_lines.get(line) or self._read_line(line)
            if header is None or header[0] in headers:
                return None
            headers[header[0]] = header[1]
        return headers if b"host" in headers and b"content-length" in headers else None

    def _read_line(self, line: bytes) -> Header | None:
        """Nearly all lines are those of the request before, and so are kept."""
        header = _parse_line(line)
        if header is not None and header[0] in _REPEATED and len(line) <= _MAX_KEPT_BYTES:
            if len(self._kept_lines) >= MAX_KEPT_LINES:
                self._kept_lines.clear()
            self._kept_lines[line] = header
        return header


def _parse_line(line: bytes) -> Header | None:
    name, colon, value = line.partition(b":")
    name, value = name.lower(), value.lstrip()
    # Parsers disagree about blanks at the end of a line.
    is_plain = line.isascii() and line.decode("ascii").isprintable() and not line.endswith(b" ")
    if not colon or name not in _HEADERS or not is_plain:
        return None
    if name == b"content-length":
        return (name, value) if value.isdigit() and len(value) < 8 else None
    if name == b"host":
        return (name, value) if find_host_problem([value], "1.1") is None else None
    return None if name == b"connection" and value.lower() != b"keep-alive" else (name, value)


def encode_response(response: Response, scheme: str) -> bytes:
    """The response as it is sent, with the headers that every response has."""
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
    """How many connections there are and how often they are opened, per address and in all. `hits` counts refusals by
    limit. `proxies` bring many callers each: limits for one address do not hold for them."""

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
        """Responses to direct requests that are being made."""
        self.unused: dict[Connection, None] = {}
        """Connections that have sent no request yet, the oldest first."""
        self.without_protocol: set[Connection] = set()
        """Connections that have sent nothing but direct requests: the HTTP server does not know them."""
        self._openings = RateLimiter("openings", self.settings.requests_per_second, self.settings.requests_burst)
        self._unlimited = Networks([*self.settings.unlimited, *proxies])

    def admit(self, accepted: socket.socket, address: str, now: float) -> "Connection | None":
        """None where the connection is refused; otherwise it counts until it is `release`d."""
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
        """The caller may open so many fewer connections for a while; below 0: so many more."""
        self._openings.charge(caller, asyncio.get_running_loop().time(), number)


class Connection(asyncio.Protocol):
    """An accepted connection: it passes what it receives on to the HTTP server's own protocol.

    It parses requests itself to know what it waits for, and ends when a part of a request takes too long or is too
    large, or when a response is not read.
    """

    _make_protocol: Callable[[], asyncio.Protocol]
    _direct: RequestReader | None

    def __init__(self, limiter: ConnectionLimiter, caller: str, accepted: socket.socket) -> None:
        self.caller = caller
        self.unanswered = 0
        self.abort: Callable[[], None] = partial(_shut_down, accepted)
        self._limiter = limiter
        self._is_released = self._is_refunded = False
        self._parser: Any = None
        self._protocol = _NO_PROTOCOL
        self._awaited = "head_time"
        """The setting that limits, and the hit that counts, what the client is expected to send next."""
        self._head_bytes = 0
        self._url = b""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_between_requests = True
        self._held = b""
        """The beginning of a request that may be served directly, which came in `_held_pieces`."""
        self._held_pieces = 0
        self._answering: asyncio.Future[Response] | None = None
        self._served_at = -inf
        self._is_unread = False
        """Whether nothing is read because responses to direct requests are not."""
        self._has_keepalive = False
        self._batched: int | None = None
        """The socket, while it is read together with others."""

    def release(self) -> None:
        """The connection is closed. May be called twice."""
        if not self._is_released:
            self._is_released = True
            self._limiter.open.release(self.caller)
            self._limiter.unused.pop(self, None)
            self._limiter.without_protocol.discard(self)

    def refund(self) -> None:
        """Opening it costs the caller nothing. May be called twice."""
        if not self._is_refunded:
            self._is_refunded = True
            self._limiter.charge_openings(self.caller, -1)

    def pass_to(self, make_protocol: Callable[[], asyncio.Protocol], direct: RequestReader | None) -> None:
        """The protocol that gets what is received, but for what `direct` finds. Before the connection is made."""
        self._make_protocol, self._direct = make_protocol, direct

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.abort = transport.abort
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._limiter.without_protocol.add(self)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("deadline", "stall")
        self.leave_batch()
        self.release()
        self._protocol.connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()
        # Both refer to this object: without them nothing is left for the garbage collector to do.
        self._parser, self._protocol = None, _NO_PROTOCOL

    def data_received(self, data: bytes) -> None:
        """What the event loop has read. It reads everything that has come before it does anything else: where thousands
        of agents come back after a restart, their first reports would be seconds of work. They wait for their turn."""
        direct, is_first = self._direct, self in self._limiter.unused
        if direct is not None and is_first and len(data) <= _MAX_WAITING_BYTES and direct.may_begin(data):
            descriptor = self._join_batch(direct.batches)
            if descriptor is not None:
                self._stop("deadline")
                direct.batches.put(descriptor, data)
                return
        self.receive(data)

    def receive(self, data: bytes) -> None:
        direct = self._direct
        if self._answering is not None:
            self._held += data
        elif direct is not None and (
            self._held or (self._is_between_requests and not self.unanswered and direct.may_begin(data))
        ):
            data, self._held = self._held + data, b""
            self._serve_directly(direct, data)
        else:
            self._pass_on(data)

    def _serve_directly(self, direct: RequestReader, data: bytes) -> None:
        """Or pass it on to the application, or wait for the rest of it."""
        found = direct.read(data)
        if found is True:
            self._hold("head_time", data)
            return
        response = None
        if found is not False:
            headers, body, is_whole = found
            request = DirectRequest(headers, body, self._peer, self._scheme, self.refund)
            if not is_whole and direct.route.is_known(request):
                self._limiter.unused.pop(self, None)
                self._hold("body_time", data)
                return
            response = direct.route.serve(request) if is_whole else None
        self._held_pieces = 0
        if response is None:
            self._pass_on(data)
            return
        self._end_keepalive()
        if isinstance(response, Response):
            self._respond(response)
            self._join_batch(direct.batches)
        else:
            self._stop("deadline")
            self._limiter.unused.pop(self, None)
            self.leave_batch()
            self._transport.pause_reading()
            self._answering = asyncio.ensure_future(response)
            self._limiter.answering.add(self._answering)
            self._answering.add_done_callback(self._respond_later)

    def _join_batch(self, batches: BatchReader) -> int | None:
        """From here on it is read together with others, where there are many; returns its descriptor then. TLS cannot
        be read like this."""
        if self._limiter.open.total < batches.least or self._scheme != "http":
            return None
        if self._batched is None and not self._transport.is_closing() and not self._is_unread:
            self._batched = self._transport.get_extra_info("socket").fileno()
            self._transport.pause_reading()
            batches.add(self._batched, self)
        return self._batched

    def leave_batch(self) -> None:
        """The event loop reads it again, and finds its end or its error."""
        if self._batched is not None and self._direct is not None:
            self._direct.batches.remove(self._batched)
            self._batched = None
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _hold(self, awaited: str, data: bytes) -> None:
        """Wait for the rest of a request, if it does not come in too many pieces."""
        if self._held_pieces >= MAX_DIRECT_PIECES:
            self._held_pieces = 0
            self._pass_on(data)
            return
        self._held, self._held_pieces = data, self._held_pieces + 1
        self._end_keepalive()
        if awaited != self._awaited or "deadline" not in self._timers:
            self._await(awaited)
            self._set_deadline()

    def _end_keepalive(self) -> None:
        """uvicorn's own timer for idle connections ends with any data."""
        if self._has_keepalive:
            self._protocol.data_received(b"")
            self._has_keepalive = False

    def _respond(self, response: Response) -> None:
        self._transport.write(encode_response(response, self._scheme))
        self._limiter.unused.pop(self, None)
        self._served_at = asyncio.get_running_loop().time()
        if self._awaited != "idle_time":
            self._await("idle_time")
        if (b"connection", b"close") in response.headers:
            self._transport.close()
        elif "deadline" not in self._timers:
            self._set_deadline()

    def _respond_later(self, done: asyncio.Future[Response]) -> None:
        self._answering = None
        self._limiter.answering.discard(done)
        if done.cancelled() or self._transport.is_closing():
            return
        self._respond(done.result())
        if not self._is_unread:
            self._transport.resume_reading()
            if self._direct is not None:
                self._join_batch(self._direct.batches)
        if self._held:
            data, self._held = self._held, b""
            self.receive(data)

    def close(self) -> None:
        """Once everything that was written is sent."""
        self._transport.close()

    def _make_parsers(self) -> None:
        """Agents need none, and there may be thousands of them."""
        self._limiter.without_protocol.discard(self)
        self._parser = httptools.HttpRequestParser(self)
        # As uvicorn's own parser: a request that follows one with `Connection: close` is ignored, not an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self._transport)

    def _pass_on(self, data: bytes) -> None:
        """To the HTTP server's own protocol."""
        self.leave_batch()
        if self._parser is None:
            self._make_parsers()
        self._has_keepalive = True
        if self._awaited == "head_time":
            self._head_bytes += len(data)
            # A large piece may hold the end of the head and a body, whose own limit comes later.
            if self._head_bytes > MAX_HEAD_BYTES + len(data) or len(data) > 16 * MAX_HEAD_BYTES:
                self._limiter.charge_openings(self.caller, COSTLY_REPORT)
                self._give_up("head_size")
                return
        elif self._awaited == "idle_time":
            self._url = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is served as if it asked for no other protocol
        except httptools.HttpParserError:
            too_many = self.unanswered > MAX_PIPELINED + 1
            self._reject("too many requests are sent ahead" if too_many else "Invalid HTTP request received.")
            return
        token = _connection.set(self)
        self._protocol.data_received(data)
        # The transport keeps this context: without the reset the two would refer to each other for ever.
        _connection.reset(token)
        # A request in one piece needs no deadline. Empty lines do: they end uvicorn's own for idle connections.
        is_whole = self._awaited == "idle_time" and self._url
        if "deadline" not in self._timers and not is_whole and not self._transport.is_closing():
            self._set_deadline()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()
        if not self.unanswered:
            # The application waits by itself before it writes more.
            self.leave_batch()
            self._is_unread = True
            self._transport.pause_reading()
        self._check_reading(inf)

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
        self._stop("stall")
        if self._is_unread:
            self._is_unread = False
            self._transport.resume_reading()

    def on_message_begin(self) -> None:
        self._is_between_requests = False
        self._await("head_time")
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        self._await("body_time")
        self._limiter.unused.pop(self, None)
        # Raises for what uvicorn would refuse in words of its own.
        httptools.parse_url(self._url).path.decode("ascii")
        self.unanswered += 1
        if self.unanswered > MAX_PIPELINED + 1:
            self._limiter.hits["requests_ahead"] += 1
            raise ValueError

    def on_message_complete(self) -> None:
        self._is_between_requests = True
        self._await("idle_time")

    def _await(self, what: str) -> None:
        self._awaited, self._head_bytes = what, 0
        if self._timers:
            self._stop("deadline")

    def _set_deadline(self) -> None:
        self._start("deadline", getattr(self._limiter.settings, self._awaited), self._expire)

    def _expire(self) -> None:
        left = self._served_at + self._limiter.settings.idle_time - asyncio.get_running_loop().time()
        if self._awaited != "idle_time":
            self._give_up(self._awaited)
        elif self.unanswered:
            self._set_deadline()
        elif left > 0:
            self._start("deadline", left, self._expire)
        else:
            self._give_up(self._awaited)

    def _check_reading(self, before: float) -> None:
        unread = self._transport.get_write_buffer_size()
        if before - unread < MIN_READ_BYTES:
            self._give_up("answer_time")
        else:
            self._start("stall", STALL_SECONDS, self._check_reading, unread)

    def _start(self, timer: str, seconds: float, call: Callable[..., None], *args: float) -> None:
        self._timers[timer] = asyncio.get_running_loop().call_later(seconds, call, *args)

    def _stop(self, *timers: str) -> None:
        for timer in timers:
            if handle := self._timers.pop(timer, None):
                handle.cancel()

    def _give_up(self, limit: str) -> None:
        """Ends the connection at once, with whatever is still to be sent."""
        self._limiter.hits[limit] += 1
        self._stop("deadline", "stall")
        self._transport.abort()

    def _reject(self, problem: str) -> None:
        body = encode_error("bad_request", _NOT_HTTP, problem)
        headers = b"".join(b"%b: %b\r\n" % header for header in SAFE_HEADERS)
        self._transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n%bcontent-length: %d"
            b"\r\n\r\n%b" % (headers, len(body), body)
        )
        self._transport.close()


_connection: ContextVar[Connection] = ContextVar("connection")
"""Whose data is being processed: uvicorn's tasks for its requests take it over."""


def with_connection(app: App) -> App:
    """`app` for the requests of these connections: the Host header is checked, and each connection knows how many of
    its requests are not answered yet."""

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
            connection.unanswered -= 1

    return serve


def _shut_down(accepted: socket.socket) -> None:
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
