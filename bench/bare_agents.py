"""Many hosts that are asked for their report, each on a port of its own: the least that can answer, kept alive."""

import asyncio
import random
import sys
import time

from bench.reports import make_envelope
from gpudeck.wire import encode


class BareAgent(asyncio.Protocol):
    """Answers every question with the same report, so many seconds later; with None never."""

    def __init__(self, body: bytes, after: float | None) -> None:
        self._body = body
        self._after = after

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"\r\n\r\n") or self._after is None:
            return
        if self._after:
            asyncio.get_running_loop().call_later(self._after, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Encoding: zstd\r\n"
            f"Gpudeck-Sent-At: {time.time()}\r\nContent-Length: {len(self._body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + self._body)


async def serve(first: int, hosts: int, after: float | None) -> None:
    """Serve until standard input closes; the ports are printed on one line, in the order of the hosts."""
    loop, rng, ports = asyncio.get_running_loop(), random.Random(first), []
    for host in range(first, first + hosts):
        body = encode(make_envelope(host, 1, rng))
        server = await loop.create_server(lambda body=body: BareAgent(body, after), "127.0.0.1", 0)  # type: ignore[misc]
        ports.append(server.sockets[0].getsockname()[1])
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), None if sys.argv[3] == "never_seen" else float(sys.argv[3])))
