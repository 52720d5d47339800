"""uvicorn behind the wall, with TLS where there is a certificate.

With TLS connections are accepted here and not by uvicorn: a caller counts from the moment it connects, and not only
after a handshake that it may never end.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from gpudeck.app.http_limits import LimitedProtocol, Threshold, Visit, Wall
from gpudeck.app.tls import Tls

log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 3.0
_PAUSE_SECONDS = 0.1


class LimitedServer(uvicorn.Server):
    """A server of `app` behind `wall`. With `tls` it speaks nothing else, and looks after the certificate's files."""

    def __init__(
        self, app: Any, wall: Wall, tls: Tls | None = None, *, plain: Sequence[socket.socket] = (), **options: Any
    ) -> None:
        """`plain` are sockets that get no TLS all the same, such as one for the hub's own agent: a certificate is for
        the name by which others know the hub. `options` are those of uvicorn.Config that others decide about."""
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Threshold, wall),  # type: ignore[arg-type]  # it only calls it
                timeout_keep_alive=int(max(1.0, wall.settings.idle_time)),
                lifespan="off",
                ws="none",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                **options,
            )
        )
        self._wall = wall
        self._tls = tls
        self._plain = list(plain)
        self._doors: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([*(sockets or ()), *self._plain] if self._tls is None else self._plain)
        if self._tls is not None:
            self._doors = [asyncio.create_task(self._accept_forever(opened, self._tls)) for opened in sockets or ()]
            self._doors.append(asyncio.create_task(self._tls.keep_fresh()))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without uvicorn's raising of the signal once more: that would end the process while the rooms behind the door
        still write what they know."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for door in self._doors:
            door.cancel()
        await asyncio.gather(*self._doors, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept_forever(self, listening: socket.socket, tls: Tls) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        handshakes: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:
                # The caller has gone again, or too many files are open: then others have to close some first.
                log.debug("a connection was not accepted: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            visit = self._wall.admit(peer[0], loop.time(), partial(_hang_up, connection))
            if visit is None:
                connection.close()
                continue
            handshake = asyncio.create_task(self._shake_hands(connection, visit, tls))
            handshakes.add(handshake)
            handshake.add_done_callback(handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, visit: Visit, tls: Tls) -> None:
        loop = asyncio.get_running_loop()
        make = partial(
            LimitedProtocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            wall=self._wall,
            visit=visit,
        )
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                make,
                connection,
                ssl=tls.context,
                ssl_handshake_timeout=self._wall.settings.head_time,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as error:
            # No TLS, none that both can speak, no certificate, too slow, or gone.
            self._wall.hits["handshakes"] += 1
            visit.leave()
            log.debug("no TLS with %s: %s", visit.caller, error)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
