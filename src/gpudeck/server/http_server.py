"""uvicorn behind connection limits, with TLS if there is a certificate.

Connections are accepted by our own listener and not by uvicorn: a caller counts from the moment it connects, not only
after a TLS handshake, which it may never complete. The listener starts as many at a time as the event loop can take.
See docs/limits.md.
"""

import asyncio
import contextlib
import logging
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from gpudeck.model.address import cannot_listen
from gpudeck.model.settings import Address
from gpudeck.server.admission import HOLD_SECONDS
from gpudeck.server.connections import (
    Connection,
    ConnectionLimiter,
    DirectRoute,
    FirstReports,
    with_connection,
)
from gpudeck.server.tls import Tls

log = logging.getLogger(__name__)

_TLS_SHUTDOWN_SECONDS = 3.0


class LimitedServer(uvicorn.Server):
    """A server of `app` with limits. With `tls` it accepts nothing else, and reloads changed certificates."""

    def __init__(
        self,
        app: Any,
        limiter: ConnectionLimiter,
        tls: Tls | None = None,
        *,
        plain: Sequence[socket.socket] = (),
        direct: DirectRoute | None = None,
        hold: float = HOLD_SECONDS,
        when_started: Callable[[], None] = lambda: None,
        before_end: Callable[[], Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        """`direct` serves reports without the application. `plain` are sockets without TLS, such as the one for the
        hub's own agent: a certificate is for the name by which others know the hub. `hold`: see ConnectionListener.
        `before_end` is awaited before connections are closed. `options` are those of uvicorn.Config."""
        super().__init__(
            uvicorn.Config(
                with_connection(app),
                http="httptools",
                timeout_keep_alive=int(max(1.0, limiter.settings.idle_time)),
                lifespan="off",
                ws="none",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                log_level="error",  # callers could fill the log with what they send
                server_header=False,
                **options,
            )
        )
        self._limiter = limiter
        self._tls = tls
        self._plain = list(plain)
        self._direct, self._first = direct, FirstReports()
        self._hold = hold
        self._listeners: list[ConnectionListener] = []
        self._renewal: asyncio.Task[None] | None = None
        self._when_started = when_started
        self._before_end = before_end
        self.is_signalled = False

    def end(self) -> None:
        """Stop as on SIGTERM."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.is_signalled = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # without a socket to accept from
        if self._tls is not None:
            self._renewal = asyncio.create_task(self._tls.keep_fresh())
        pairs = [*((opened, self._tls) for opened in sockets or ()), *((opened, None) for opened in self._plain)]
        for opened, tls in pairs:
            listener = ConnectionListener(opened, self._limiter, partial(self._connect, tls), hold=self._hold)
            try:
                listener.open(self.config.backlog)
            except OSError as error:  # another program was bound there as well, and listened first
                raise cannot_listen(Address(*opened.getsockname()[:2]), error) from error
            self._listeners.append(listener)
        if self.started:
            self._when_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which raises the signal again at the end: that would end the process while the hub's services
        still write data."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._before_end is not None:
            await self._before_end()
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        if self._renewal is not None:
            self._renewal.cancel()
        if self._limiter.answering:
            await asyncio.wait(self._limiter.answering, timeout=self.config.timeout_graceful_shutdown)
        for connection in list(self._limiter.without_protocol):
            connection.close()
        await super().shutdown([*(sockets or ()), *self._plain])

    async def _connect(self, tls: Tls | None, accepted: socket.socket, connection: Connection) -> None:
        """Returns when the connection is made, including the TLS handshake."""
        options: dict[str, Any] = {}
        if tls is not None:
            options = {
                "ssl": tls.context,
                "ssl_handshake_timeout": self._limiter.settings.head_time,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS,
            }
        protocol: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        connection.pass_to(partial(protocol, config=self.config, **state), self._direct, self._first)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **options)
        except BaseException as error:
            connection.release()
            accepted.close()
            if not isinstance(error, OSError):
                raise
            # No TLS, none that both can speak, no certificate, too slow, or gone.
            if tls is not None:
                self._limiter.hits["handshakes"] += 1
            log.debug("%s is not connected: %s", connection.caller, error)


ACCEPTED_PER_TURN, TURN_SECONDS, MAX_ACCEPTED = 8, 0.005, 128
"""asyncio's own server would begin all connections that wait in one turn of the event loop: a flood of them would delay
everything else by many milliseconds. After a turn that took longer than this, in proportion more are begun: where
thousands of agents come back at once, those that are connected keep the event loop busy, and the kernel's queue for the
others is short."""
MAX_HELD = 512
"""Refused connections that are kept open for a while; beyond that the oldest is closed at once."""
_RETRY_SECONDS = 0.1


class ConnectionListener:
    """Accepts connections from a listening socket, begins a few in each turn of the event loop, and passes those that
    are admitted to `serve`, which closes and releases them. Refused ones are closed only about `hold` seconds later:
    clients that are disconnected at once come back at once."""

    def __init__(
        self,
        listening: socket.socket,
        limiter: ConnectionLimiter,
        serve: Callable[[socket.socket, Connection], Coroutine[Any, Any, None]],
        *,
        hold: float = HOLD_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listening = listening
        self._limiter = limiter
        self._serve = serve
        self._hold = hold
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._served: set[asyncio.Task[None]] = set()
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        self._accepted_at = now()

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
        turns = max(1.0, (self._now() - self._accepted_at) / TURN_SECONDS)
        for _ in range(min(int(ACCEPTED_PER_TURN * turns), MAX_ACCEPTED)):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                # Probably too many open files: others must be closed first.
                log.debug("a connection was not accepted: %s", error)
                self._close_held()
                self._loop.remove_reader(self._listening)
                self._loop.call_later(_RETRY_SECONDS, self._watch)
                break
            accepted.setblocking(False)
            self._begin(accepted, peer[0] if isinstance(peer, tuple) else "")
        self._accepted_at = self._now()

    def _begin(self, accepted: socket.socket, address: str) -> None:
        connection = self._limiter.admit(accepted, address, self._loop.time())
        if connection is None:
            self._hold_back(accepted)
            return
        task = self._loop.create_task(self._serve(accepted, connection))
        self._served.add(task)
        task.add_done_callback(partial(self._end_serving, accepted, connection))

    def _end_serving(self, accepted: socket.socket, connection: Connection, task: asyncio.Task[None]) -> None:
        self._served.discard(task)
        if task.cancelled():  # perhaps before it began: a client would wait for a response until its own timeout
            connection.release()
            accepted.close()

    def _hold_back(self, refused: socket.socket) -> None:
        if len(self._held) >= MAX_HELD:
            self._close(next(iter(self._held)))
        # With jitter: clients that came together would otherwise retry together.
        seconds = self._hold * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        self._held[refused] = self._loop.call_later(seconds, self._close, refused)

    def _close(self, refused: socket.socket) -> None:
        self._held.pop(refused).cancel()
        refused.close()

    def _close_held(self) -> None:
        for refused in list(self._held):
            self._close(refused)
