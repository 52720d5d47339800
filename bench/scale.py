"""Left out: TLS, networks, message channels, a database server, sealed hours of history, cost by part, tick times.

A real hub with history and alerts, N hosts of eight GPUs that report every 5 s over connections of their own, viewers
of the stream, a reader of /api/v1/fleet every 10 s and a scraper of /metrics every 15 s, all on this machine's cores.
CPU is that of all threads of the hub. The reference is the least that can take a POST on the same server software
(bench/bare_server.py), with the same senders.

    python -m bench scale --hosts 100,1000,5000 --seconds 60 --viewers 10 --wire 1
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import uvloop
from msgspec import Struct, field

from bench.hostile import percentile
from bench.processes import HubUnderTest, bare_server, cpu_seconds, rss_mib, waiting_seconds
from bench.scale_senders import INTERVAL, Streams

WARM_UP = 3 * INTERVAL
REFERENCE_SECONDS = 20.0
NAN = float("nan")
# All hosts come from this machine, with one token.
_CONFIG = """demo: never
local: never
limits: {unlimited: [127.0.0.0/8], connections: 100000}
fleet: {max_hosts: 100000, max_hosts_per_token: 100000}
"""


class Seen(Struct):
    """What was seen in the measured time: seconds, but for MiB of memory, bytes and counts.

    `cpu` is of all threads, `loop` of the event loop's alone, and `waiting` is how long that was ready while others had
    the cores. `deltas` are bytes, packed and plain; `asked` are answers by path.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    loop: float = 0.0
    waiting: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    reports: list[float] = field(default_factory=list)
    short: int = 0
    sent_bytes: int = 0
    asked: dict[str, list[float]] = field(default_factory=dict)
    deltas: list[tuple[int, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def cost(self) -> float:
        return self.cpu / max(1, len(self.reports))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench scale")
    parser.add_argument("--hosts", default="100,1000", help="how many, one measurement each: 100,1000,5000")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long is measured, after a warm-up")
    parser.add_argument("--viewers", type=int, default=1, help="of the stream")
    parser.add_argument("--no-readers", action="store_true", help="nobody asks for /api/v1/fleet and /metrics")
    parser.add_argument("--wire", type=int, choices=(1, 2), default=2, help="the newest version that hosts send")
    parser.add_argument("--senders", type=int, default=max(1, min(8, (os.cpu_count() or 2) - 2)), help="processes")
    asked = parser.parse_args(sys.argv[sys.argv.index("scale") + 1 :] if "scale" in sys.argv else [])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print((__doc__ or "").strip())
    print(f"\n{os.cpu_count()} cores, processes of senders: {asked.senders}, viewers: {asked.viewers}", flush=True)
    measured = []
    for hosts in map(int, asked.hosts.split(",")):
        if hosts + 100 > most:
            sys.exit(f"{hosts:,} connections need as many open files, and this shell allows {most:,}: see ulimit -Hn")
        with bare_server() as (pid, port):
            bare = _measure(hosts, asked, pid, port, "none", None)
        with tempfile.TemporaryDirectory() as name, HubUnderTest(Path(name), _CONFIG) as hub:
            token = (Path(name) / "agent.token").read_text().strip()
            seen = _measure(hosts, asked, hub.process.pid, hub.port, token, Path(name))
        measured.append(_figures(hosts, seen, bare))
        _print(measured)


def _measure(hosts: int, asked: argparse.Namespace, pid: int, port: int, token: str, folder: Path | None) -> Seen:
    """Without a folder it is the reference: it takes reports and nobody watches it."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as name, _senders(hosts, asked, port, token, name) as processes:
        begin = time.time() + 0.5
        since = begin + WARM_UP
        until = since + (asked.seconds if folder else min(asked.seconds, REFERENCE_SECONDS))
        for process, _ in processes:
            process.stdin.write(f"{begin} {since} {until}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        uvloop.run(_watch(seen, pid, port, asked, (since, until), folder))
        for process, file in processes:
            process.communicate(timeout=120)
            told = json.loads(file.read_text())
            seen.reports += told["answers"]
            seen.errors.update(told["errors"])
            seen.short += told["short"]
            seen.sent_bytes += told["bytes"]
    return seen


@contextlib.contextmanager
def _senders(
    hosts: int, asked: argparse.Namespace, port: int, token: str, folder: str
) -> Iterator[list[tuple[subprocess.Popen[str], Path]]]:
    """Each with the file to which it writes what it saw."""
    count = min(asked.senders, hosts)
    processes = []
    for place, (first, end) in enumerate(pairwise(hosts * place // count for place in range(count + 1))):
        # An address each: a single one has 28,000 ports.
        file = Path(folder) / f"{place}.json"
        facts = (first, end - first, asked.wire, port, token, f"127.3.0.{place + 1}", file)
        command = [sys.executable, "-m", "bench.scale_senders", *map(str, facts)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append((process, file))
    try:
        for process, _ in processes:
            process.stdout.readline()  # type: ignore[union-attr]
        yield processes
    finally:
        for process, _ in processes:
            process.kill()
            process.communicate()


async def _watch(
    seen: Seen, pid: int, port: int, asked: argparse.Namespace, times: tuple[float, float], folder: Path | None
) -> None:
    """Until the end of the measured time: view, read and scrape, and note what the server costs in it."""
    tasks = []
    if folder is not None:
        tasks += [asyncio.create_task(_view(seen, port, times)) for _ in range(asked.viewers)]
        # The first one does nothing: how long it takes is how long the event loop is busy with others.
        paths = {"/healthz": 0.25} | ({} if asked.no_readers else {"/api/v1/fleet": 10.0, "/metrics": 15.0})
        for path, every in paths.items():
            tasks.append(asyncio.create_task(_ask(seen, port, path, every, times)))
    await asyncio.sleep(times[0] - time.time())
    began, cpu, loop, disk = time.time(), _all_cpu_seconds(pid), cpu_seconds(pid), _disk_bytes(folder)
    waiting = waiting_seconds(pid)
    await asyncio.sleep(times[1] - time.time())
    seen.seconds, seen.cpu, seen.loop = time.time() - began, _all_cpu_seconds(pid) - cpu, cpu_seconds(pid) - loop
    seen.waiting, seen.disk, seen.memory = waiting_seconds(pid) - waiting, _disk_bytes(folder) - disk, rss_mib(pid)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            seen.errors[f"watching: {result!r:.80}"] += 1


async def _ask(seen: Seen, port: int, path: str, every: float, times: tuple[float, float]) -> None:
    into = seen.asked[path] = []
    streams = await _open(port)
    while True:
        began = time.perf_counter()
        head = await _get(streams, path)
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        while length > 0:
            length -= len(await streams[0].read(min(length, 2**20)))
        if head[9:12] != b"200":
            seen.errors[f"{path} {head[9:12].decode()}"] += 1
        elif times[0] <= time.time() < times[1]:
            into.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, every - (time.perf_counter() - began)))


async def _view(seen: Seen, port: int, times: tuple[float, float]) -> None:
    """As the page does: compressed, and each delta has the moment at which it was published."""
    streams = await _open(port)
    await _get(streams, "/api/v1/stream", "Accept-Encoding: gzip\r\n")
    unpack, plain, packed = zlib.decompressobj(wbits=31), b"", 0
    while True:
        # Chunked: a line with the length, the data, an empty line.
        chunk = (await streams[0].readexactly(int(await streams[0].readline(), 16) + 2))[:-2]
        packed += len(chunk)
        plain += unpack.decompress(chunk)
        while b"\n\n" in plain:
            event, _, plain = plain.partition(b"\n\n")
            told = re.search(rb'event: delta\n.*data: {"time":([\d.]+)', event[:300], re.DOTALL)
            if told and times[0] <= time.time() < times[1]:
                seen.deltas.append((packed, len(event)))
                seen.lags.append(time.time() - float(told[1]))
            packed = 0


async def _open(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, limit=64 * 2**20)


async def _get(streams: Streams, path: str, headers: str = "") -> bytes:
    streams[1].write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
    return (await streams[0].readuntil(b"\r\n\r\n")).lower()


def _all_cpu_seconds(pid: int) -> float:
    """Of all threads so far, those that have ended among them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _disk_bytes(folder: Path | None) -> float:
    total = 0
    for path in folder.rglob("*") if folder is not None else ():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return float(total)


def _figures(hosts: int, hub: Seen, bare: Seen) -> dict[str, str]:
    def spread(seconds: list[float], *percents: int) -> str:
        figures = [percentile(seconds, percent) for percent in percents]
        return " / ".join(f"{one * 1e3:.1f}" for one in (*figures, max(seconds, default=NAN)))

    count = max(1, len(hub.reports))
    packed, plain = (sum(delta[at] for delta in hub.deltas) / max(1, len(hub.deltas)) / 1024 for at in (0, 1))
    return {
        "hosts": f"{hosts:,}",
        "reports a second": f"{len(hub.reports) / hub.seconds:,.0f} of {hosts / INTERVAL:,.0f}",
        "CPU of a core, %": f"{100 * hub.cpu / hub.seconds:.1f}",
        "  of it the event loop": f"{100 * hub.loop / hub.seconds:.1f}",
        "  ready, but without a core": f"{100 * hub.waiting / hub.seconds:.1f}",
        "CPU a report, all-in, µs": f"{hub.cost * 1e6:.0f}",
        "  the reference, µs": f"{bare.cost * 1e6:.0f}",
        "  ratio": f"{hub.cost / bare.cost if bare.cost else NAN:.1f} ×",
        "report p50 / p99 / max, ms": spread(hub.reports, 50, 99),
        "  the reference, ms": spread(bare.reports, 50, 99),
        "/healthz p99 / max, ms": spread(hub.asked["/healthz"], 99),
        "/api/v1/fleet p50 / max, ms": spread(hub.asked.get("/api/v1/fleet", []), 50),
        "/metrics p50 / max, ms": spread(hub.asked.get("/metrics", []), 50),
        "delta, packed / plain, KiB": f"{packed:.1f} / {plain:.1f}",
        "stream lag p50 / p99 / max, ms": spread(hub.lags, 50, 99),
        "memory (RSS), MiB": f"{hub.memory:.0f}",
        "disk, MB an hour": f"{hub.disk / hub.seconds * 3600 / 1e6:,.0f}",
        "a report on the wire, bytes": f"{hub.sent_bytes / count:,.0f}",
        "  of them short, %": f"{100 * hub.short / count:.0f}",
        "errors": ", ".join(f"{word}: {number}" for word, number in hub.errors.items()) or "0",
    }


def _print(measured: list[dict[str, str]]) -> None:
    """One column a number of hosts: so many figures fit into no line."""
    widths = [max(map(len, figures.values())) for figures in measured]
    print()
    for name in measured[0]:
        cells = (figures[name].rjust(width) for figures, width in zip(measured, widths, strict=True))
        print("  " + "  ".join((name.ljust(32), *cells)), flush=True)
