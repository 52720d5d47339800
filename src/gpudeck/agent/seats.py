"""Who may keep a connection to this agent open: a bounded number of callers, the idlest of whom makes room."""

import contextlib
import socket
import threading
import time

MOST = 16
GRACE_SECONDS = 0.25
"""How long a caller may take to ask before somebody else may have its seat."""
FULL_SECONDS = 1.0
"""How long a newcomer waits for a seat."""


class Seats:
    """The open connections. A connection is waiting for its caller's question, or busy with the answer."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting_since: dict[socket.socket, float | None] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def take(self, connection: socket.socket) -> bool:
        """Whether there is a seat for it, at once or within a second."""
        deadline = time.monotonic() + FULL_SECONDS
        with self._changed:
            while len(self._waiting_since) >= self._most and not self._is_closed:
                if time.monotonic() > deadline:
                    return False
                self._ask_one_to_leave()
                self._changed.wait(0.05)
            self._waiting_since[connection] = time.monotonic()
            return not self._is_closed

    def await_question(self, connection: socket.socket) -> None:
        """The next question of that caller is awaited from now on."""
        with self._changed:
            self._waiting_since[connection] = time.monotonic()

    def begin_answer(self, connection: socket.socket) -> bool:
        """The question has come. False when the caller was told to leave in that moment."""
        with self._changed:
            was_waiting = self._waiting_since.get(connection) is not None
            self._waiting_since[connection] = None
            return was_waiting

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._waiting_since.pop(connection, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Tell everybody to leave, and let nobody in any more."""
        with self._changed:
            self._is_closed = True
            for connection in self._waiting_since:
                _hang_up(connection)
            self._changed.notify_all()

    def _ask_one_to_leave(self) -> None:
        waiting = [(since, connection) for connection, since in self._waiting_since.items() if since is not None]
        since, idlest = min(waiting, key=lambda pair: pair[0], default=(0.0, None))
        if idlest is not None and time.monotonic() - since >= GRACE_SECONDS:
            self._waiting_since[idlest] = None
            _hang_up(idlest)


def _hang_up(connection: socket.socket) -> None:
    """Its thread wakes up, finds the connection at its end, and leaves."""
    with contextlib.suppress(OSError):
        # Not the TLS socket's own: that would take away what its thread is reading from.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
