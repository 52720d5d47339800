"""uvicorn behind the wall, with TLS where there is a certificate.

Connections are accepted by our own door and not by uvicorn: a caller counts from the moment it connects, and not only
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

from gpudeck.api.limits import HOLD_SECONDS
from gpudeck.server.http_door import Door
from gpudeck.server.http_limits import LimitedProtocol, Visit, Wall
from gpudeck.server.tls import Tls

log = logging.getLogger(__name__)

_GOODBYE_SECONDS = 3.0


class LimitedServer(uvicorn.Server):
    """A server of `app` behind `wall`. With `tls` it speaks nothing else, and looks after the certificate's files."""

    def __init__(
        self,
        app: Any,
        wall: Wall,
        tls: Tls | None = None,
        *,
        plain: Sequence[socket.socket] = (),
        hold: float = HOLD_SECONDS,
        **options: Any,
    ) -> None:
        """`plain` are sockets that get no TLS all the same, such as one for the hub's own agent: a certificate is for
        the name by which others know the hub. `hold` is how long those who are turned away are not told so; `options`
        are those of uvicorn.Config that others decide about."""
        super().__init__(
            uvicorn.Config(
                app,
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
        self._hold = hold
        self._doors: list[Door] = []
        self._renewal: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # It gets nothing to accept from.
        await super().startup([])
        if self._tls is not None:
            self._renewal = asyncio.create_task(self._tls.keep_fresh())
        for opened in sockets or ():
            self._open_door(opened, self._tls)
        for opened in self._plain:
            self._open_door(opened, None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without uvicorn's raising of the signal once more: that would end the process while the rooms behind the door
        still write what they know."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.gather(*(door.close() for door in self._doors))
        if self._renewal is not None:
            self._renewal.cancel()
        await super().shutdown([*(sockets or ()), *self._plain])

    def _open_door(self, listening: socket.socket, tls: Tls | None) -> None:
        welcome = self._greet if tls is None else partial(self._shake_hands, tls)
        door = Door(listening, self._wall, welcome, hold=self._hold)
        door.open(self.config.backlog)
        self._doors.append(door)

    async def _greet(self, connection: socket.socket, visit: Visit) -> None:
        try:
            await self._connect(connection, visit)
        except OSError as error:
            log.debug("%s has gone again: %s", visit.caller, error)

    async def _shake_hands(self, tls: Tls, connection: socket.socket, visit: Visit) -> None:
        try:
            await self._connect(
                connection,
                visit,
                ssl=tls.context,
                ssl_handshake_timeout=self._wall.settings.head_time,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as error:
            # No TLS, none that both can speak, no certificate, too slow, or gone.
            self._wall.hits["handshakes"] += 1
            log.debug("no TLS with %s: %s", visit.caller, error)

    async def _connect(self, connection: socket.socket, visit: Visit, **tls: Any) -> None:
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
            await asyncio.get_running_loop().connect_accepted_socket(make, connection, **tls)
        except BaseException:
            visit.leave()
            connection.close()
            raise
