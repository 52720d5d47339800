"""The hub's server on a thread, with an application that a test brings: the limiter alone, on real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import uvloop

from fakes.waiting import wait_until
from gpudeck.server.admission import HOLD_SECONDS
from gpudeck.server.connections import ConnectionLimiter, DirectRoute
from gpudeck.server.http_server import LimitedServer
from gpudeck.server.tls import Tls


async def say_hello(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, then answers with its length and the scheme."""
    message = await receive()
    size = len(message.get("body", b""))
    while message.get("more_body"):
        message = await receive()
        size += len(message.get("body", b""))
    body = f"{scope['scheme']} {size}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(LimitedServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        """A thread gets none."""
        yield


@contextlib.contextmanager
def serving(
    limiter: ConnectionLimiter,
    app: Any = say_hello,
    tls: Tls | None = None,
    plain: Sequence[socket.socket] = (),
    hold: float = HOLD_SECONDS,
    direct: DirectRoute | None = None,
) -> Iterator[int]:
    """The port of a server behind that limiter."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _Server(app, limiter, tls, plain=plain, direct=direct, hold=hold, timeout_graceful_shutdown=2)
        thread = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            wait_until(lambda: server.started, "the server starts")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
