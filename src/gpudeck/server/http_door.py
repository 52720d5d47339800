"""Where connections come in: each is let in or turned away before anything is made for it.

The event loop's own server takes all that wait in one turn: hundreds of them at once, as a flood brings them, keep
everybody else waiting for many milliseconds. Here a turn takes a few; and whoever is turned away is not told so for a
while, since those who are cut off at once come back at once.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

from gpudeck.api.limits import HOLD_SECONDS
from gpudeck.server.http_limits import Visit, Wall

log = logging.getLogger(__name__)

Welcome = Callable[[socket.socket, Visit], Coroutine[None, None, None]]

MOST_A_TURN = 8
MOST_TURNED_AWAY = 512
"""Connections that are kept for a while though they were turned away: beyond that the oldest is closed at once."""
_PAUSE_SECONDS = 0.1


class Door:
    """Accepts what comes to a listening socket. Who is let in goes to `welcome`, which has to close the connection and
    end the visit where it makes nothing of them; it is cancelled when the door is closed."""

    def __init__(self, listening: socket.socket, wall: Wall, welcome: Welcome, *, hold: float = HOLD_SECONDS) -> None:
        self._listening = listening
        self._wall = wall
        self._welcome = welcome
        self._loop = asyncio.get_running_loop()
        self._welcomed: set[asyncio.Task[None]] = set()
        self._turned_away = _Porch(self._loop, hold)

    def open(self, backlog: int) -> None:
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._watch()

    async def close(self) -> None:
        """The listening socket is left to whoever has opened it."""
        self._loop.remove_reader(self._listening)
        self._turned_away.clear()
        for task in self._welcomed:
            task.cancel()
        await asyncio.gather(*self._welcomed, return_exceptions=True)

    def _watch(self) -> None:
        # One that was closed meanwhile has no number any more.
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._take_a_few)

    def _take_a_few(self) -> None:
        for _ in range(MOST_A_TURN):
            try:
                connection, peer = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(error)
                return
            self._take(connection, peer[0] if isinstance(peer, tuple) else "")

    def _take(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        visit = self._wall.admit(address, self._loop.time(), partial(_hang_up, connection))
        if visit is None:
            self._turned_away.keep(connection)
            return
        task = self._loop.create_task(self._welcome(connection, visit))
        self._welcomed.add(task)
        task.add_done_callback(self._welcomed.discard)

    def _rest(self, error: OSError) -> None:
        """Too many files are open, most likely: others have to close some first."""
        log.debug("a connection was not accepted: %s", error)
        self._turned_away.clear()
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_PAUSE_SECONDS, self._watch)


class _Porch:
    """Connections that were turned away, until they are closed. Nothing is read from them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._waiting: deque[tuple[float, socket.socket]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, connection: socket.socket) -> None:
        if len(self._waiting) >= MOST_TURNED_AWAY:
            self._close_oldest()
        self._waiting.append((self._loop.time() + self._seconds, connection))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._close_due)

    def clear(self) -> None:
        while self._waiting:
            self._close_oldest()

    def _close_due(self) -> None:
        now = self._loop.time()
        for _ in range(MOST_A_TURN):
            if not self._waiting or self._waiting[0][0] > now:
                break
            self._close_oldest()
        # Those who came together are not sent away together: they would all be back in one moment.
        pause = max(0.002, self._waiting[0][0] - now) if self._waiting else None
        self._timer = None if pause is None else self._loop.call_later(pause, self._close_due)

    def _close_oldest(self) -> None:
        self._waiting.popleft()[1].close()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
