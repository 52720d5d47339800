"""Left out here: reports that come in meanwhile, viewers, TLS, networks. Texts of hosts that did not change are kept.

Reading a large fleet from a real hub: 10,000 hosts with 80,000 GPUs that have reported once. CPU is that of the whole
hub. "Others wait" is the longest time that `/healthz`, asked again and again, took meanwhile. A second passes between
two questions, so that no answer is one that was made for somebody else.
"""

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.ingest_http import push
from bench.processes import HubUnderTest, rss_mib
from bench.reports import make_envelope
from bench.tables import Row, best_of, print_table
from gpudeck.wire import encode

HOSTS = 10_000
REPEATS = 3
_CONFIG = "demo: never\nlocal: never\nlimits: {unlimited: [127.0.0.1]}\nfleet: {max_hosts_per_token: 20000}\n"
_READER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": sys.argv[2], "User-Agent": sys.argv[3]})
answer, size = urllib.request.urlopen(request, timeout=60), 0
while part := answer.read(1 << 20): size += len(part)
print(size)
"""


class Watch:
    """Asks for /healthz in a thread; `longest` is the slowest answer, in seconds."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ending = threading.Event()
        self.longest = 0.0

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        while not self._ending.wait(0.001):
            start = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - start)


def all_cpu(pid: int) -> float:
    """Seconds of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(hub: HubUnderTest, what: str, promised: str, reference: float, command: Sequence[str]) -> Row:
    found = []
    for _ in range(REPEATS):
        time.sleep(1.1)
        before, start = all_cpu(hub.process.pid), time.perf_counter()
        with Watch(hub.port) as watch:
            answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        taken = time.perf_counter() - start
        found.append((all_cpu(hub.process.pid) - before, taken, watch.longest, answer.stdout))
    cpu, taken, longest, told = min(found)
    size = f", {int(told) / 2**20:,.1f} MiB" if told.strip().isdigit() else ""
    measured = f"{cpu:.2f} s CPU, {taken:.2f} s, others wait {1e3 * longest:.0f} ms{size}"
    return what, measured, promised, f"{cpu / reference:,.0f} ×"


def main() -> None:
    rng = random.Random(1)
    envelopes = (replace(make_envelope(host, 1, rng), interval_seconds=600.0) for host in range(HOSTS))
    bodies = [encode(envelope) for envelope in envelopes]
    document = msgspec.json.encode(make_envelope(0, 1, rng))
    reference = best_of(20, lambda: [json.loads(document) for _ in range(200)]) / 200
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), _CONFIG) as hub:
        token = (Path(folder) / "agent.token").read_text().strip()
        asyncio.run(push(hub.port, token, bodies))
        time.sleep(15)
        before = rss_mib(hub.process.pid)

        def get(path: str, promised: str = "", encoding: str = "identity", agent: str = "bench") -> Row:
            what = f"{path}{'' if encoding == 'identity' else ', ' + encoding}{'' if agent == 'bench' else ' as text'}"
            command = [sys.executable, "-c", _READER, hub.url + path, encoding, agent]
            return measure(hub, what, promised, reference, command)

        def run(promised: str, *words: str) -> Row:
            command = [sys.executable, "-m", "gpudeck", *words, "--hub", hub.url]
            return measure(hub, f"gpudeck {' '.join(words)}", promised, reference, command)

        rows = [
            get("/healthz"),
            get("/metrics", "≤ 1 s CPU"),
            get("/metrics", "≤ 1 s CPU", "gzip"),
            get("/api/v1/fleet", "≤ 0.4 s"),
            get("/api/v1/fleet?shape=columns", "≤ 0.4 s"),
            get("/api/v1/fleet?shape=columns", "", "gzip"),
            get("/api/v1/hosts"),
            get("/api/v1/hosts?limit=100&offset=5000"),
            get("/api/v1/gpus?user=user3&min_memory=40G&limit=100"),
            get("/?q=user3", "≤ 1 s", agent="curl/8"),
            get("/", "≤ 1 s", agent="curl/8"),
            run("≤ 1 s", "show"),
            run("≤ 1 s", "show", "user3"),
            run("≤ 1 s", "free"),
        ]
        grown = rss_mib(hub.process.pid) - before
    rows.append(("memory that these answers have left behind", f"{grown:,.0f} MiB", "", ""))
    title = f"Reading {HOSTS:,} hosts, {8 * HOSTS:,} GPUs; reports that come in and viewers are left out"
    print_table(title, f"json.loads of one eight-GPU report, {reference * 1e6:.0f} µs", rows)


if __name__ == "__main__":
    main()
