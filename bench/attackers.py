"""Two hundred clients that mean no good, of eight kinds, each kind at addresses of its own (127.1.KIND.NUMBER)."""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import zstandard

EACH = 25
_ADDRESSES = 5
"""How many addresses the clients of one kind share."""
_GET = b"GET /api/v1/fleet HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_COSTLY = [
    _GET,
    b"GET /api/v1/fleet HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n",
    b"GET /api/v1/gpus HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /api/v1/usage HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /api/v1/history?fleet=1&metric=power_watts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /api/v1/history/heat?metric=power_watts HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]

Attack = Callable[["Attacker"], Awaitable[None]]


class Attacker:
    """One client. What it gets is counted by its kind: answers by their status, connections that were cut off."""

    def __init__(self, kind: int, number: int, port: int, token: str, told: Counter[str]) -> None:
        self._source = f"127.1.{kind}.{1 + number % _ADDRESSES}"
        self._port = port
        self.token = token
        self._told = told
        self.name = ATTACKS[kind].__name__

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._told[f"{self.name} connections"] += 1
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(self._source, 0))

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> None:
        """Send a request and read its answer. Raises OSError or IncompleteReadError when cut off."""
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or b"0"))
        self._told[f"{self.name} {head[9:12].decode()}"] += 1

    def post(self, body: bytes, token: str, encoding: str = "zstd") -> bytes:
        head = (
            f"POST /api/v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Encoding: "
            f"{encoding}\r\nContent-Type: application/msgpack\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def run(self, attack: Attack, until: float) -> None:
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    await attack(self)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                self._told[f"{self.name} cut off"] += 1
                await asyncio.sleep(0.01)


async def _flood(attacker: Attacker, make: Callable[[], bytes]) -> None:
    reader, writer = await attacker.connect()
    with contextlib.closing(writer):
        while True:
            await attacker.exchange(reader, writer, make())


async def flood(attacker: Attacker) -> None:
    """The largest answers and the hardest questions, over and over on one connection."""
    await _flood(attacker, lambda: random.choice(_COSTLY))


async def reconnect(attacker: Attacker) -> None:
    """The same with a new connection each time."""
    reader, writer = await attacker.connect()
    with contextlib.closing(writer):
        await attacker.exchange(reader, writer, _GET)


async def _drip(attacker: Attacker, start: bytes, drop: bytes) -> None:
    _, writer = await attacker.connect()
    with contextlib.closing(writer):
        writer.write(start)
        while True:
            await asyncio.sleep(1)
            writer.write(drop)
            await writer.drain()


async def slow_head(attacker: Attacker) -> None:
    await _drip(attacker, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X: y\r\n")


async def slow_body(attacker: Attacker) -> None:
    await _drip(attacker, attacker.post(bytes(1_000_000), attacker.token)[:400], b"x")


async def half_open(attacker: Attacker) -> None:
    reader, writer = await attacker.connect()
    with contextlib.closing(writer):
        await reader.readexactly(1)


async def bomb(attacker: Attacker) -> None:
    """With a token that is good, or it would not even be looked at."""
    await _flood(attacker, lambda: attacker.post(_BOMB, attacker.token))


async def guess(attacker: Attacker) -> None:
    await _flood(attacker, lambda: attacker.post(bytes(500), f"guess-{random.random()}"))


async def giant_head(attacker: Attacker) -> None:
    _, writer = await attacker.connect()
    with contextlib.closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        while True:
            writer.write(b"X-Filler: " + b"a" * 8_000 + b"\r\n")
            await writer.drain()


ATTACKS: tuple[Attack, ...] = (flood, reconnect, slow_head, slow_body, half_open, bomb, guess, giant_head)
_BOMB = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(512 * 1024 * 1024))


async def main(port: int, token: str, seconds: float) -> Counter[str]:
    told: Counter[str] = Counter()
    until = time.monotonic() + seconds
    attackers = [
        (Attacker(kind, number, port, token, told), attack)
        for kind, attack in enumerate(ATTACKS)
        for number in range(EACH)
    ]
    await asyncio.gather(*(attacker.run(attack, until) for attacker, attack in attackers))
    return told


if __name__ == "__main__":
    # Attackers bring machines of their own: here they must not take the processor from those they attack.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    import msgspec
    import uvloop

    counted = uvloop.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
    print(msgspec.json.encode(counted).decode())
