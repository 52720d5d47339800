"""Ports for servers that take a number rather than a socket."""

import atexit
import contextlib
import socket

_held = contextlib.ExitStack()
atexit.register(_held.close)


def free_port() -> int:
    """A port of loopback on which nothing listens, and which no other process gets while this one runs.

    It stays bound here. A server that sets SO_REUSEADDR, as all do, binds it a second time and listens; the kernel
    gives it to no other bind to port 0 and to no outgoing connection, which a port that is let go of may well be.
    """
    held = _held.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])
