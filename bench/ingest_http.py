"""The hub as a process, with real connections: reports a CPU second, and how long a full answer takes.

The reference is the least that can take a POST on the same server software (bench/bare_server.py): what is above it is
ours, what is below it is the price of HTTP.
"""

import asyncio
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.processes import HubUnderTest, bare_server, cpu_seconds
from bench.reports import make_rounds
from bench.tables import best_of, print_table

HOSTS = 1_000
ROUNDS = 12
CONNECTIONS = 32


# All hosts come from one address here, far more often than the limits for one allow.
_CONFIG = "demo: never\nlocal: never\nlimits: {unlimited: [127.0.0.1]}\n"


def main() -> None:
    rounds, whole = make_rounds(HOSTS, ROUNDS, short=True), make_rounds(HOSTS, ROUNDS)
    with bare_server() as (pid, port):
        bare, _ = measure(pid, port, "none", rounds)
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), _CONFIG) as hub:
        token = (Path(folder) / "agent.token").read_text().strip()
        whole_cost, _ = measure(hub.process.pid, hub.port, token, whole)
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), _CONFIG) as hub:
        token = (Path(folder) / "agent.token").read_text().strip()
        cost, rate = measure(hub.process.pid, hub.port, token, rounds)
        # A kept document is thrown away with the next tick, a second later: each of these is made anew.
        fleet = best_of(8, lambda: fetch(f"{hub.url}/api/v1/fleet"), pause=1.05)
    print_table(
        f"Hub over HTTP: {HOSTS:,} eight-GPU hosts, {CONNECTIONS} connections, {os.cpu_count()} cores with the senders",
        f"a server that answers 202 and does nothing else, {bare * 1e6:.0f} µs of CPU a report",
        [
            ("hub's CPU for a short report", f"{cost * 1e6:.0f} µs", "≤ 200 µs", f"{cost / bare:.2f} ×"),
            ("hub's CPU for a whole report", f"{whole_cost * 1e6:.0f} µs", "", f"{whole_cost / bare:.2f} ×"),
            ("reports a second of one core", f"{1 / cost:,.0f}", "≥ 5,000", ""),
            ("reports a second by the clock", f"{rate:,.0f}", "", ""),
            ("GET /api/v1/fleet, 8,000 GPUs", f"{fleet * 1e3:.1f} ms", "≤ 50 ms", f"{fleet / bare:,.0f} ×"),
        ],
    )


def measure(pid: int, port: int, token: str, rounds: list[list[bytes]]) -> tuple[float, float]:
    """The server's CPU seconds for one report, and reports a second by the clock, each of the best round.

    The first round, which makes the hosts, is not counted.
    """
    asyncio.run(push(port, token, rounds[0]))
    costs, rates = [], []
    for bodies in rounds[1:]:
        before, start = cpu_seconds(pid), time.perf_counter()
        sent = asyncio.run(push(port, token, bodies))
        assert sent == HOSTS, f"only {sent} reports were taken"
        costs.append((cpu_seconds(pid) - before) / sent)
        rates.append(sent / (time.perf_counter() - start))
    return min(costs), max(rates)


async def push(port: int, token: str, bodies: list[bytes]) -> int:
    """Send all bodies over a few kept connections; returns how many were taken."""
    waiting = iter(bodies)
    return sum(await asyncio.gather(*(_send(port, token, waiting) for _ in range(CONNECTIONS))))


async def _send(port: int, token: str, waiting: Iterator[bytes]) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = 0
    for body in waiting:
        head = (
            f"POST /api/v1/reports HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/msgpack\r\nContent-Encoding: zstd\r\nGpudeck-Sent-At: {time.time()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        taken += answer.startswith(b"HTTP/1.1 202")
    writer.close()
    return taken


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())
