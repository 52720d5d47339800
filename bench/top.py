"""What `gpudeck top` costs the machine it runs on, and what it sends to the terminal: 200 simulated hosts, 1 s."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from bench.processes import HubUnderTest, rss_mib
from bench.startup import run, wait_for_hosts
from bench.tables import Row, best_of, print_table

HOSTS = 200
SECONDS = 20.0
SIZES = ((80, 24), (200, 50))
VIEWS = (("fleet", b""), ("fleet, sorted by utilization", b"gggP"), ("processes", b"p"), ("people", b"u"))


def main() -> None:
    bare = best_of(5, lambda: run(sys.executable, "-c", "pass"))
    loaded = best_of(5, lambda: run(sys.executable, "-c", "import textual.app"))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, HubUnderTest(Path(folder), "", "--demo", str(HOSTS)) as hub:
        wait_for_hosts(hub.url, HOSTS * 9 // 10)
        first, cpu = map(min, zip(*(measure_start(hub.url) for _ in range(5)), strict=True))
        rows.append(("start to first picture", f"{first * 1e3:.0f} ms", "", f"{first / bare:.1f} ×"))
        rows.append(("  of it: at work", f"{cpu * 1e3:.0f} ms", "", ""))
        rows.append(("  of it: import textual.app", f"{(loaded - bare) * 1e3:.0f} ms", "", ""))
        for columns, lines in SIZES:
            for name, keys in VIEWS:
                rows += measure_view(hub.url, columns, lines, name, keys)
    print_table(f"gpudeck top, {HOSTS} hosts, 1 s", f"python -c pass, {bare * 1e3:.0f} ms", rows)


class Running:
    """`gpudeck top` in a terminal of its own."""

    def __init__(self, url: str, columns: int, lines: int) -> None:
        self.started_at = time.perf_counter()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "gpudeck", "top", "--hub", url])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.sent = b""

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def read_for(self, seconds: float, until: bytes | None = None) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (until and until in self.sent):
            if select.select([self._terminal], [], [], left)[0]:
                self.sent += os.read(self._terminal, 65_536)

    def cpu_seconds(self) -> float:
        """Of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure_start(url: str) -> tuple[float, float]:
    """Seconds to the first picture, and those on a processor."""
    with Running(url, 80, 24) as top:
        top.read_for(30.0, until="■".encode())
        return time.perf_counter() - top.started_at, top.cpu_seconds()


def measure_view(url: str, columns: int, lines: int, name: str, keys: bytes) -> list[Row]:
    with Running(url, columns, lines) as top:
        top.read_for(30.0, until="■".encode())
        top.press(keys) if keys else None
        top.read_for(5.0)
        cpu, sent = top.cpu_seconds(), len(top.sent)
        top.read_for(SECONDS)
        share = (top.cpu_seconds() - cpu) / SECONDS
        rate = (len(top.sent) - sent) / SECONDS
        # Each picture has another time: on a machine that is busy a hub may skip some.
        pictures = len(set(re.findall(rb"\d\d:\d\d:\d\d", top.sent[sent:]))) / SECONDS
        memory = rss_mib(top.pid)
    what = f"{columns}×{lines}, {name}"
    told = f"{pictures:.1f} pictures/s, {rate / 1024:.1f} KiB/s, {memory:.0f} MiB"
    return [(what, f"{share:.1%} of a core", "≤ 5 %", ""), ("", told, "", "")]
