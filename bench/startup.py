"""How long until there is something to look at, and what a command costs to start."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

from bench.processes import HubUnderTest, rss_mib
from bench.tables import best_of, print_table

REPEATS = 5


def main() -> None:
    bare = best_of(REPEATS, lambda: run(sys.executable, "-c", "pass"))
    version = best_of(REPEATS, lambda: run(sys.executable, "-m", "gpudeck", "--version"))
    with tempfile.TemporaryDirectory() as folder:
        ready, shown = [], []
        for _ in range(REPEATS):
            start = time.perf_counter()
            with HubUnderTest(Path(folder), "", "--demo", "24") as hub:
                ready.append(hub.ready_after)
                wait_for_hosts(hub.url, 20)
                shown.append(time.perf_counter() - start)
                memory = rss_mib(hub.process.pid)
                show = best_of(3, partial(run, sys.executable, "-m", "gpudeck", "show", "--hub", hub.url))
    print_table(
        "Starting",
        f"python -c pass, {bare * 1e3:.0f} ms",
        [
            ("gpudeck --version", f"{version * 1e3:.0f} ms", "", f"{version / bare:.1f} ×"),
            ("the command show, 24 hosts", f"{show * 1e3:.0f} ms", "", f"{show / bare:.1f} ×"),
            ("hub ready", f"{min(ready) * 1e3:.0f} ms", "≤ 1,500 ms", f"{min(ready) / bare:.1f} ×"),
            ("demo fleet on the page", f"{min(shown) * 1e3:.0f} ms", "", f"{min(shown) / bare:.1f} ×"),
            ("hub's memory with 24 hosts", f"{memory:.0f} MiB", "", ""),
        ],
    )


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def wait_for_hosts(url: str, count: int) -> None:
    while True:
        with urllib.request.urlopen(f"{url}/api/v1/fleet", timeout=10) as answer:
            if len(json.loads(answer.read())["hosts"]) >= count:
                return
        time.sleep(0.02)
