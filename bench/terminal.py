"""What a person with a terminal waits for: `gpudeck show` and curl, through a hub with 200 simulated hosts."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench.processes import HubUnderTest
from bench.startup import run, wait_for_hosts
from bench.tables import Row, best_of, print_table

HOSTS = 200
REPEATS = 10
MODULES = ("gpudeck.cli", "click", "msgspec", "gpudeck.cli.search", "gpudeck.views.text", "gpudeck.client")


def main() -> None:
    bare = best_of(REPEATS, lambda: run(sys.executable, "-c", "pass"))
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), "", "--demo", str(HOSTS)) as hub:
        wait_for_hosts(hub.url, HOSTS * 9 // 10)
        show = [sys.executable, "-m", "gpudeck", "show", "--hub", hub.url]
        rows = [
            measure("gpudeck show", bare, "≤ 300 ms", *show),
            measure("gpudeck show free h200", bare, "≤ 300 ms", *show, "free", "h200"),
            measure("gpudeck show --detail", bare, "", *show, "--detail"),
            measure_curl("curl", hub.url, bare, "≤ 20 ms"),
            measure_curl("curl, detail", f"{hub.url}/?detail=true", bare, ""),
        ]
        imports = import_times(show)
    rows += [(f"  of show: import {name}", f"{imports[name]:.0f} ms", "", "") for name in MODULES if name in imports]
    print_table(f"In a terminal, {HOSTS} hosts", f"python -c pass, {bare * 1e3:.0f} ms", rows)


def measure(what: str, bare: float, promised: str, *command: str) -> Row:
    best = best_of(REPEATS, lambda: run(*command))
    return what, f"{best * 1e3:.0f} ms", promised, f"{best / bare:.1f} ×"


def measure_curl(what: str, url: str, bare: float, promised: str) -> Row:
    """As curl itself counts, from the start of the request to its last byte. A pause of more than a second before each:
    nobody else has asked for this text yet."""
    if shutil.which("curl") is None:
        return f"{what} (not installed: as Python asks)", f"{_ask(url) * 1e3:.0f} ms", promised, ""
    times = []
    for _ in range(REPEATS):
        time.sleep(1.1)
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{time_total}", url]
        times.append(float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout))
    return what, f"{min(times) * 1e3:.0f} ms", promised, f"{min(times) / bare:.1f} ×"


def _ask(url: str) -> float:
    request = urllib.request.Request(url, headers={"User-Agent": "curl/8"})
    return best_of(REPEATS, lambda: urllib.request.urlopen(request, timeout=10).read(), pause=1.1)


def import_times(command: list[str]) -> dict[str, float]:
    """Milliseconds that the import of each module took, with all that it imports itself."""
    timed = [command[0], "-X", "importtime", *command[1:]]
    told = subprocess.run(timed, check=True, capture_output=True, text=True, timeout=60).stderr
    lines = re.findall(r"import time:\s+\d+ \|\s+(\d+) \|\s+(\S+)", told)
    return {name: int(microseconds) / 1e3 for microseconds, name in lines}
