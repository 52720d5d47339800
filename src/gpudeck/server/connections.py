"""Which connections are accepted, and how long each may take: in front of uvicorn's protocol. See docs/limits.md."""

import asyncio
import contextlib
import logging
import random
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import Any

import httptools

from gpudeck.model.http_host import find_host_problem
from gpudeck.model.limits_settings import LimitsSettings
from gpudeck.server.addresses import Networks, count_as
from gpudeck.server.admission import CONNECTION, COSTLY_REPORT, HOLD_SECONDS
from gpudeck.server.asgi import App, Receive, Scope, Send, encode_error, send_error
from gpudeck.server.headers import SAFE_HEADERS
from gpudeck.server.rate_limits import ConcurrencyLimiter, RateLimiter

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Requests that a client may send on one connection beyond the one that is being answered."""
STALL_SECONDS, MIN_READ_BYTES = 10.0, 16 * 1024
"""What a client has to read of a waiting response in that time: what it does not read fills the hub's memory."""
ACCEPTED_PER_TURN = 8
"""asyncio's own server would accept all connections that wait in one turn of the event loop: a flood of them would
delay everything else by many milliseconds."""
MAX_HELD = 512
"""Refused connections that are kept open for a while; beyond that the oldest is closed at once."""
_RETRY_SECONDS = 0.1
_NOT_HTTP = "this is no HTTP request that this hub understands"


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
        self.unused: dict[Connection, None] = {}
        """Connections that have sent no request yet, the oldest first."""
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

    _protocol: asyncio.Protocol

    def __init__(self, limiter: ConnectionLimiter, caller: str, accepted: socket.socket) -> None:
        self.caller = caller
        self.unanswered = 0
        self.abort: Callable[[], None] = partial(_shut_down, accepted)
        self._limiter = limiter
        self._is_released = self._is_refunded = False
        self._parser: Any = None
        self._awaited = "head_time"
        """The setting that limits, and the hit that counts, what the client is expected to send next."""
        self._head_bytes = 0
        self._url = b""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def release(self) -> None:
        """The connection is closed. May be called twice."""
        if not self._is_released:
            self._is_released = True
            self._limiter.open.release(self.caller)
            self._limiter.unused.pop(self, None)

    def refund(self) -> None:
        """Opening it costs the caller nothing. May be called twice."""
        if not self._is_refunded:
            self._is_refunded = True
            self._limiter.charge_openings(self.caller, -1)

    def pass_to(self, protocol: asyncio.Protocol) -> None:
        """The protocol that gets what is received. Before the connection is made."""
        self._protocol = protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.abort = transport.abort
        self._parser = httptools.HttpRequestParser(self)
        # As uvicorn's own parser: a request that follows one with `Connection: close` is ignored, not an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._protocol.connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("deadline", "stall")
        self.release()
        self._protocol.connection_lost(exc)
        # Both refer to this object: without them nothing is left for the garbage collector to do.
        self._parser = None
        self._protocol = asyncio.Protocol()

    def data_received(self, data: bytes) -> None:
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
        self._check_reading(inf)

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
        self._stop("stall")

    def on_message_begin(self) -> None:
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
        self._await("idle_time")

    def _await(self, what: str) -> None:
        self._awaited, self._head_bytes = what, 0
        if self._timers:
            self._stop("deadline")

    def _set_deadline(self) -> None:
        self._start("deadline", getattr(self._limiter.settings, self._awaited), self._expire)

    def _expire(self) -> None:
        if self._awaited == "idle_time" and self.unanswered:
            self._set_deadline()
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


class ConnectionListener:
    """Accepts connections from a listening socket, a few in each turn of the event loop, and passes those that are
    admitted to `serve`, which closes and releases them. Refused ones are closed only about `hold` seconds later:
    clients that are disconnected at once come back at once."""

    def __init__(
        self,
        listening: socket.socket,
        limiter: ConnectionLimiter,
        serve: Callable[[socket.socket, Connection], Coroutine[Any, Any, None]],
        *,
        hold: float = HOLD_SECONDS,
    ) -> None:
        self._listening = listening
        self._limiter = limiter
        self._serve = serve
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._served: set[asyncio.Task[None]] = set()
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}

    def open(self, backlog: int) -> None:
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._watch()

    async def close(self) -> None:
        """Cancels `serve` where it is not done. The listening socket is left open."""
        self._loop.remove_reader(self._listening)
        self._close_held()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def _watch(self) -> None:
        if self._listening.fileno() >= 0:  # else it was closed meanwhile
            self._loop.add_reader(self._listening, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely too many files are open: others have to be closed first.
                log.debug("a connection was not accepted: %s", error)
                self._close_held()
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_RETRY_SECONDS, self._watch)
                return
            accepted.setblocking(False)
            address = peer[0] if isinstance(peer, tuple) else ""
            connection = self._limiter.admit(accepted, address, self._loop.time())
            if connection is None:
                self._hold_back(accepted)
                continue
            task = self._loop.create_task(self._serve(accepted, connection))
            self._served.add(task)
            task.add_done_callback(self._served.discard)

    def _hold_back(self, refused: socket.socket) -> None:
        if len(self._held) >= MAX_HELD:
            self._close(next(iter(self._held)))
        # With jitter: clients that came together would else all be back in one moment.
        seconds = self._hold * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        self._held[refused] = self._loop.call_later(seconds, self._close, refused)

    def _close(self, refused: socket.socket) -> None:
        self._held.pop(refused).cancel()
        refused.close()

    def _close_held(self) -> None:
        for refused in list(self._held):
            self._close(refused)


def _shut_down(accepted: socket.socket) -> None:
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
