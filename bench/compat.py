"""A hub as a server of vesta, with real connections: posts a CPU second, and /states/ of 64 hosts a CPU second.

The reference is the least that can take a POST on the same server software (bench/bare_server.py), asked the same way
in the same run.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.ingest_http import fetch
from bench.processes import HubUnderTest, cpu_seconds
from bench.tables import print_table

HOSTS = 64
GPUS = 8
ROUNDS = 8
POSTS = 1_024
READS = 512
CONNECTIONS = 16
_TOKEN = "bench-token"
# All senders come from one address here, far more often than the limits for one allow.
_CONFIG = f"demo: never\nlocal: never\nlimits: {{unlimited: [127.0.0.1]}}\ncompat: {{vesta: {{token: {_TOKEN}}}}}\n"


def main() -> None:
    bodies = [make_body(host, number) for number in range(POSTS // HOSTS) for host in range(HOSTS)]
    with BareServer() as bare:
        reference, _ = measure(bare.process.pid, bare.port, [_post("x", body) for body in bodies])
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), _CONFIG) as hub:
        ids = [register(hub.url, f"gpu{number:02}") for number in range(HOSTS)]
        posts = [_post(ids[number % HOSTS], body) for number, body in enumerate(bodies)]
        post_cost, post_rate = measure(hub.process.pid, hub.port, posts)
        read_cost, read_rate = measure(hub.process.pid, hub.port, [_READ] * READS)
        size = len(fetch(f"{hub.url}/states/"))
    print_table(
        f"A hub as vesta's server: {HOSTS} hosts of {GPUS} GPUs, {os.cpu_count()} cores with the senders",
        f"a server that answers 202 and does nothing else, {reference * 1e6:.0f} µs of CPU a post",
        [
            ("hub's CPU for one post", f"{post_cost * 1e6:.0f} µs", "≤ 500 µs", f"{post_cost / reference:.2f} ×"),
            ("posts a second of one core", f"{1 / post_cost:,.0f}", "≥ 2,000", ""),
            ("posts a second by the clock", f"{post_rate:,.0f}", "", ""),
            (f"/states/ a second of one core, {size // 1024} KiB", f"{1 / read_cost:,.0f}", "≥ 1,000", ""),
            ("/states/ a second by the clock", f"{read_rate:,.0f}", "", f"{read_cost / reference:.2f} ×"),
        ],
    )


class BareServer:
    """bench/bare_server.py in a process of its own."""

    def __enter__(self) -> "BareServer":
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port: int = server.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, "-m", "bench.bare_server", str(self.port)])
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def make_body(host: int, number: int) -> bytes:
    """What a real sender posts of eight GPUs, half of them busy."""
    gpus = {
        f"gpu:{index}": {
            "device_num": index,
            "uuid": f"GPU-{host:08}-{index:04}",
            "gpu_name": "GeForce GTX 1080 Ti",
            "temperature": 40 + (number + index) % 40,
            "total_memory": 11169,
            "available_memory": 3151,
            "used_memory": 8018,
            "timestamp": "2026/11/15 06:37:57.091",
            "gpu_volatile": (number * 7 + index) % 101,
            "processes": [{"pid": str(1000 + index), "name": "train", "user": "alice", "used_memory": 6400}]
            * (index % 2),
        }
        for index in range(GPUS)
    }
    return json.dumps(gpus).encode()


def register(url: str, name: str) -> str:
    return str(json.loads(fetch(f"{url}/register/?host_name={name}&token={_TOKEN}"))["id"])


def measure(pid: int, port: int, requests: list[bytes]) -> tuple[float, float]:
    """The server's CPU seconds for one request, and requests a second by the clock, each of the best round.

    The first round, which makes the hosts, is not counted.
    """
    asyncio.run(ask_all(port, requests))
    costs, rates = [], []
    for _ in range(ROUNDS):
        before, start = cpu_seconds(pid), time.perf_counter()
        asyncio.run(ask_all(port, requests))
        costs.append((cpu_seconds(pid) - before) / len(requests))
        rates.append(len(requests) / (time.perf_counter() - start))
    return min(costs), max(rates)


async def ask_all(port: int, requests: list[bytes]) -> None:
    """All of them over a few kept connections."""
    waiting = iter(requests)
    await asyncio.gather(*(_ask(port, waiting) for _ in range(CONNECTIONS)))


async def _ask(port: int, waiting: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in waiting:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        assert b'"ERROR"' not in body[:100], body
    writer.close()


def _post(host_id: str, body: bytes) -> bytes:
    head = (
        f"POST /update/host/{host_id}?token={_TOKEN} HTTP/1.1\r\nHost: hub\r\nUser-Agent: python-requests/2.34.2\r\n"
        f"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_READ = b"GET /states/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
