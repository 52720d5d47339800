"""Left out: TLS, networks, message channels, a database server, sealed hours of history.

A real hub with history and alerts, N hosts of eight GPUs that report every 5 s over connections of their own, and
viewers of the stream; unless left out, a reader of /api/v1/fleet every 10 s and a scraper of /metrics every 15 s; all
on this machine's cores. CPU is that of all threads of the hub; its parts are sampled (bench/sampled_hub.py), which
costs a little, and are a few per cent less than all. The reference is the least that can take a POST on the same
server software (bench/bare_server.py), with the same senders. Unless left out, a Prometheus scrapes the same series
every 5 s (bench/prometheus.py): it has no rules, viewers and readers. The hub's history keeps a host's report every 10
s, half of the samples, and Prometheus keeps all of them. `nan`: too short a time to be measured.

    python -m bench scale --hosts 100,1000,5000 --seconds 60 --viewers 10 --wire 1
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
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

from bench import prometheus
from bench.hostile import percentile
from bench.processes import (
    HubUnderTest,
    all_cpu_seconds,
    bare_server,
    cpu_seconds,
    disk_bytes,
    rss_mib,
    waiting_seconds,
)
from bench.scale_senders import INTERVAL, LabHost, Streams

WARM_UP = 3 * INTERVAL
FIRST_CONTACTS = 200
"""So many hosts a second are taken for granted before the measured time: each first report costs several later ones."""
REFERENCE_SECONDS = 20.0
RESTART_SECONDS = 45.0
NAN = float("nan")
SHOWN_PARTS = (
    *("sockets and limits", "tokens", "decoding", "fleet table", "reports", "stream", "history", "alerts"),
    *("memory of hosts", "readers", "other", "other threads"),
)
Processes = list[tuple[subprocess.Popen[str], Path]]
# All hosts come from this machine, with one token.
_CONFIG = """demo: never
local: never
limits: {unlimited: [127.0.0.0/8]}
fleet: {max_hosts: 100000, max_hosts_per_token: 100000}
"""


class Seen(Struct):
    """What was seen in the measured time: seconds, but for MiB of memory, bytes and counts.

    `cpu` is of all threads, `loop` of the event loop's alone, and `waiting` is how long that was ready while others had
    the cores. `deltas` are bytes, packed and plain; `asked` are answers by path, and `back` are the moments at which
    hosts were answered again.
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
    back: list[float] = field(default_factory=list)
    asked: dict[str, list[float]] = field(default_factory=dict)
    deltas: list[tuple[int, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
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
    parser.add_argument("--restart", action="store_true", help="measure also a restart of the hub under all hosts")
    parser.add_argument(
        "--prometheus",
        action=argparse.BooleanOptionalAction,
        default=shutil.which(prometheus.PROGRAM) is not None,
        help=f"measure also a Prometheus with as many hosts, at most {prometheus.MAX_HOSTS}; default: if there is one",
    )
    parser.add_argument("--wire", type=int, choices=(1, 2), default=2, help="the newest version that hosts send")
    parser.add_argument("--senders", type=int, default=max(1, min(8, (os.cpu_count() or 2) - 2)), help="processes")
    asked = parser.parse_args(sys.argv[sys.argv.index("scale") + 1 :] if "scale" in sys.argv else [])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if asked.prometheus and shutil.which(prometheus.PROGRAM) is None:
        sys.exit("--prometheus needs the program `prometheus` on the PATH: apt install prometheus")
    left_out = {"readers of everything": asked.no_readers, "Prometheus": not asked.prometheus}
    if any(left_out.values()):
        print(f"Left out: {' and '.join(name for name, is_out in left_out.items() if is_out)}.")
    print((__doc__ or "").strip())
    print(f"\n{os.cpu_count()} cores, processes of senders: {asked.senders}, viewers: {asked.viewers}", flush=True)
    measured, growth = list[dict[str, str]](), list[tuple[int, float, float]]()
    for hosts in map(int, asked.hosts.split(",")):
        if hosts + 100 > most:
            sys.exit(f"{hosts:,} connections need as many open files, and this shell allows {most:,}: see ulimit -Hn")
        with bare_server() as (pid, port):
            bare = _measure(hosts, asked, pid, port, "none", None)
        with tempfile.TemporaryDirectory() as name, HubUnderTest(Path(name), _CONFIG, sampled=True) as hub:
            token = (Path(name) / "agent.token").read_text().strip()
            seen = _measure(hosts, asked, hub.process.pid, hub.port, token, Path(name))
        figures = _figures(hosts, seen, bare)
        if asked.prometheus:
            fitting = min(hosts, prometheus.MAX_HOSTS)
            figures |= _compare(seen, prometheus.measure(fitting, asked.seconds, WARM_UP))
        measured.append(figures | (_measure_restart(hosts, asked) if asked.restart else {}))
        growth.append((hosts, seen.cpu / seen.seconds, bare.cpu / bare.seconds))
        _print(measured)
        _plot(growth)


def _measure(hosts: int, asked: argparse.Namespace, pid: int, port: int, token: str, folder: Path | None) -> Seen:
    """Without a folder it is the reference: it takes reports and nobody watches it."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as name, running_senders(hosts, asked, port, token, name) as processes:
        begin = time.time() + 0.5
        since = begin + max(WARM_UP, hosts / FIRST_CONTACTS)
        until = since + (asked.seconds if folder else min(asked.seconds, REFERENCE_SECONDS))
        start_all(processes, begin, since, until)
        uvloop.run(_watch(seen, pid, port, asked, (since, until), folder))
        collect(processes, seen)
    return seen


def _measure_restart(hosts: int, asked: argparse.Namespace) -> dict[str, str]:
    """The hub is stopped, and started again in the same folder, while all hosts report. Each tries again as an
    agent does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
    seen = Seen()
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as files:
        with HubUnderTest(Path(name), _CONFIG, "--listen", listen) as hub:
            token = (Path(name) / "agent.token").read_text().strip()
            senders = contextlib.ExitStack()
            processes = senders.enter_context(running_senders(hosts, asked, hub.port, token, files))
            begin = time.time() + 0.5
            stop = begin + max(WARM_UP, hosts / FIRST_CONTACTS)
            start_all(processes, begin, stop + 1.0, stop + RESTART_SECONDS)
            time.sleep(stop - time.time())
        stopped = time.time()
        with senders, HubUnderTest(Path(name), _CONFIG, "--listen", listen):
            ready = time.time()
            collect(processes, seen)
    for expected in ("ConnectionRefusedError", "IncompleteReadError", "ConnectionResetError"):
        seen.errors.pop(expected, None)  # connections of the one that stopped, and before the next one listens
    after = [moment - ready for moment in seen.back]
    return {
        "restart: hub away, s": f"{ready - stop:.1f} ({stopped - stop:.1f} to stop)",
        "  hosts back": f"{len(after):,} of {hosts:,}",
        "  the last one after, s": f"{max(after, default=NAN):.1f}",
        "  report p50 / p99 / max, ms": _spread(seen.reports, 50, 99),
        "  errors": _count(seen.errors),
    }


def start_all(processes: Processes, *times: float) -> None:
    for process, _ in processes:
        process.stdin.write(" ".join(map(str, times)) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]


def collect(processes: Processes, seen: Seen) -> None:
    for process, file in processes:
        process.communicate(timeout=120)
        told = json.loads(file.read_text())
        seen.reports += told["answers"]
        seen.errors.update(told["errors"])
        seen.short += told["short"]
        seen.sent_bytes += told["sent_bytes"]
        seen.back += told["back"]


@contextlib.contextmanager
def running_senders(
    hosts: int, asked: argparse.Namespace, port: int, token: str, folder: str, *, first: int = 0
) -> Iterator[Processes]:
    """Each with the file to which it writes what it saw. `first` is the number of the first host."""
    count = min(asked.senders, hosts)
    processes = []
    for place, (begin, end) in enumerate(pairwise(hosts * place // count for place in range(count + 1))):
        # An address each: a single one has 28,000 ports.
        file = Path(folder) / f"{place}.json"
        facts = (first + begin, end - begin, asked.wire, port, token, f"127.3.0.{place + 1}", file)
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
    began, cpu, loop, disk = time.time(), all_cpu_seconds(pid), cpu_seconds(pid), disk_bytes(folder)
    waiting = waiting_seconds(pid)
    if folder is not None:
        os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(times[1] - time.time())
    seen.seconds, seen.cpu, seen.loop = time.time() - began, all_cpu_seconds(pid) - cpu, cpu_seconds(pid) - loop
    seen.waiting, seen.disk, seen.memory = waiting_seconds(pid) - waiting, disk_bytes(folder) - disk, rss_mib(pid)
    if folder is not None:
        os.kill(pid, signal.SIGUSR2)
        await asyncio.sleep(1.0)
        seen.parts = json.loads((folder / "parts.json").read_text())
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
        if b"transfer-encoding: chunked" in head:
            while length := int(await streams[0].readline(), 16):
                await streams[0].readexactly(length + 2)
            await streams[0].readline()
        else:
            await streams[0].readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
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


def _spread(seconds: list[float], *percents: int) -> str:
    figures = [percentile(seconds, percent) for percent in percents]
    return " / ".join(f"{one * 1e3:.1f}" for one in (*figures, max(seconds, default=NAN)))


def _count(errors: Counter[str]) -> str:
    return ", ".join(f"{word}: {number}" for word, number in errors.items()) or "0"


def _parts(hub: Seen) -> dict[str, str]:
    """CPU a report by part."""
    a_report = 1e6 / max(1, len(hub.reports))
    busy = {part: seconds * a_report for part, seconds in hub.parts.items()}
    busy["other threads"] = (hub.cpu - hub.loop) * a_report
    return {f"    {part}": f"{busy.get(part, 0.0):.0f}" for part in SHOWN_PARTS}


def _figures(hosts: int, hub: Seen, bare: Seen) -> dict[str, str]:
    count = max(1, len(hub.reports))
    packed, plain = (sum(delta[at] for delta in hub.deltas) / max(1, len(hub.deltas)) / 1024 for at in (0, 1))
    return {
        "hosts": f"{hosts:,}",
        "reports a second": f"{len(hub.reports) / hub.seconds:,.0f} of {hosts / INTERVAL:,.0f}",
        "CPU of a core, %": f"{100 * hub.cpu / hub.seconds:.1f}",
        "  of it the event loop": f"{100 * hub.loop / hub.seconds:.1f}",
        "  ready, but without a core": f"{100 * hub.waiting / hub.seconds:.1f}",
        "CPU a report, all-in, µs": f"{hub.cost * 1e6:.0f}",
        **_parts(hub),
        "a tick of the stream, CPU ms": f"{1e3 * hub.parts.get('stream', NAN) / hub.seconds:.1f}",
        "the reference, µs": f"{bare.cost * 1e6:.0f}",
        "  ratio": f"{hub.cost / bare.cost if bare.cost else NAN:.1f} ×",
        "report p50 / p99 / max, ms": _spread(hub.reports, 50, 99),
        "  the reference, ms": _spread(bare.reports, 50, 99),
        "/healthz p99 / max, ms": _spread(hub.asked["/healthz"], 99),
        "/api/v1/fleet p50 / max, ms": _spread(hub.asked.get("/api/v1/fleet", []), 50),
        "/metrics p50 / max, ms": _spread(hub.asked.get("/metrics", []), 50),
        "delta, packed / plain, KiB": f"{packed:.1f} / {plain:.1f}",
        "stream lag p50 / p99 / max, ms": _spread(hub.lags, 50, 99),
        "memory (RSS), MiB": f"{hub.memory:.0f}",
        "disk, MB an hour": f"{hub.disk / hub.seconds * 3600 / 1e6:,.0f}",
        "a report on the wire, bytes": f"{hub.sent_bytes / count:,.0f}",
        "  of them short, %": f"{100 * hub.short / count:.0f}",
        "errors": _count(hub.errors),
    }


def _compare(hub: Seen, other: prometheus.Cost) -> dict[str, str]:
    """A sample is one metric of a GPU or of a host, in a report or on a page. Bytes on the wire are bodies."""
    report = LabHost(0).collect(0.0)
    a_report = sum(len(gpu.metrics) for gpu in report.gpus or ()) + len(report.metrics)
    samples, others = max(1, len(hub.reports) * a_report), max(1.0, other.samples)
    costs = hub.cpu / samples * 1e6, other.cpu / others * 1e6
    return {
        "hub / Prometheus: samples a s": f"{samples / hub.seconds:,.0f} / {others / other.seconds:,.0f}",
        "  CPU of a core, %": f"{100 * hub.cpu / hub.seconds:.1f} / {100 * other.cpu / other.seconds:.1f}",
        "  CPU a sample, µs": f"{costs[0]:.2f} / {costs[1]:.2f}",
        "    ratio": f"{costs[0] / costs[1] if costs[1] else NAN:.2f} ×",
        "  memory (RSS), MiB": f"{hub.memory:.0f} / {other.memory:.0f}",
        "  disk, MB an hour": " / ".join(f"{one.disk / one.seconds * 3600 / 1e6:,.0f}" for one in (hub, other)),
        "  disk, bytes a sample taken": f"{hub.disk / samples:.2f} / {other.disk / others:.2f}",
        "  wire, bytes a sample": f"{hub.sent_bytes / samples:.1f} / {other.page / a_report:.1f}",
        "  Prometheus: hosts, failed": f"{other.hosts:,}, {other.failed:.0f}",
    }


def _print(measured: list[dict[str, str]]) -> None:
    """One column a number of hosts: so many figures fit into no line."""
    widths = [max(map(len, figures.values())) for figures in measured]
    print()
    for name in measured[0]:
        cells = (figures[name].rjust(width) for figures, width in zip(measured, widths, strict=True))
        print("  " + "  ".join((name.ljust(32), *cells)), flush=True)


def _plot(growth: list[tuple[int, float, float]]) -> None:
    print("\n  CPU of a core by hosts, and of the reference (·)")
    for hosts, cpu, bare in growth:
        bar = list("█" * round(50 * cpu)) + [" "] * 60
        bar[round(50 * bare)] = "·"
        print(f"  {hosts:>7,}  {''.join(bar[:60])} {100 * cpu:.1f} % (· {100 * bare:.1f} %)", flush=True)
