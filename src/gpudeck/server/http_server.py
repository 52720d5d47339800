"""uvicorn behind the limits for connections, with TLS where there is a certificate.

Connections are accepted by our own listener and not by uvicorn: a caller counts from the moment it connects, and not
only after a TLS handshake, which it may never complete.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from gpudeck.server.admission import HOLD_SECONDS
from gpudeck.server.connections import (
    LEAST_CONNECTIONS,
    BatchReader,
    Connection,
    ConnectionLimiter,
    DirectRoute,
    RequestReader,
    with_connection,
)
from gpudeck.server.listener import ConnectionListener
from gpudeck.server.tls import Tls

log = logging.getLogger(__name__)

_TLS_SHUTDOWN_SECONDS = 3.0


class LimitedServer(uvicorn.Server):
    """A server of `app` with limits. With `tls` it speaks nothing else, and watches the certificate's files."""

    def __init__(
        self,
        app: Any,
        limiter: ConnectionLimiter,
        tls: Tls | None = None,
        *,
        plain: Sequence[socket.socket] = (),
        direct: DirectRoute | None = None,
        batch_from: int = LEAST_CONNECTIONS,
        hold: float = HOLD_SECONDS,
        **options: Any,
    ) -> None:
        """`direct` serves a path without the application; with `batch_from` connections, those that use it are
        read together. `plain` are sockets without TLS all the same, such as the one
        for the hub's own agent: a certificate is for the name by which others know the hub. `hold`: see
        ConnectionListener. `options` are those of uvicorn.Config."""
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
        self._direct = None if direct is None else RequestReader(direct, BatchReader(batch_from))
        self._hold = hold
        self._listeners: list[ConnectionListener] = []
        self._renewal: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # without a socket to accept from
        if self._tls is not None:
            self._renewal = asyncio.create_task(self._tls.keep_fresh())
        pairs = [*((opened, self._tls) for opened in sockets or ()), *((opened, None) for opened in self._plain)]
        for opened, tls in pairs:
            listener = ConnectionListener(opened, self._limiter, partial(self._connect, tls), hold=self._hold)
            listener.open(self.config.backlog)
            self._listeners.append(listener)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which raises the signal once more at the end: that would end the process while the hub's
        services still write what they know."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        if self._renewal is not None:
            self._renewal.cancel()
        if self._limiter.answering:
            await asyncio.wait(self._limiter.answering, timeout=self.config.timeout_graceful_shutdown)
        for connection in list(self._limiter.without_protocol):
            connection.close()
        await super().shutdown([*(sockets or ()), *self._plain])

    async def _connect(self, tls: Tls | None, accepted: socket.socket, connection: Connection) -> None:
        """Returns when the connection is made, with the handshake of TLS where there is one."""
        options: dict[str, Any] = {}
        if tls is not None:
            options = {
                "ssl": tls.context,
                "ssl_handshake_timeout": self._limiter.settings.head_time,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS,
            }
        protocol: Any = self.config.http_protocol_class
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        connection.pass_to(partial(protocol, config=self.config, **state), self._direct)
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
