"""A hub that says which part of it its event loop is busy with: a child of bench/scale.py.

SIGUSR1 starts the count; SIGUSR2 writes the seconds of CPU time of each part, as JSON, to the file that BENCH_PARTS
names. An interrupt waits for the end of a system call: the event loop's are counted with what follows them.
"""

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType

from bench.processes import cpu_seconds

PARTS = {
    "alerts": "alerts",
    "history": "history",
    "fleet/stream": "stream",
    "fleet/host_memory": "memory of hosts",
    "api/reports": "reports",
    "api": "readers",
    "views": "readers",
    "server": "sockets and limits",
}
"""By what a stack has in it, the first that fits. A report is divided further by its innermost function."""
_OF_A_REPORT = {"wire": "decoding", "fleet": "fleet table", "auth": "tokens", "server": PARTS["server"]}
_EVERY = 0.004


class Sampler:
    """Interrupts the main thread whenever the process has used some more CPU time, and notes what it is doing."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._before = 0.0
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGPROF, self._look)
        signal.signal(signal.SIGUSR2, self._end)

    def _begin(self, *_: object) -> None:
        self._before = cpu_seconds(os.getpid())
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)

    def _look(self, _: int, frame: FrameType | None) -> None:
        part, now = find_part(frame), cpu_seconds(os.getpid())
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._before
        self._before = now

    def _end(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        Path(os.environ["BENCH_PARTS"]).write_text(json.dumps(self._seconds))


def find_part(frame: FrameType | None) -> str:
    files = []
    while frame is not None:
        if "/gpudeck/" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename.rpartition("/gpudeck/")[2])
        frame = frame.f_back
    for start, part in PARTS.items():
        if any(file.startswith(start) for file in files):
            return _OF_A_REPORT.get(files[0].partition("/")[0], part) if part == "reports" else part
    # The frames that run the event loop are those of the command.
    return "other" if any(file.startswith(("fleet", "events")) for file in files) else PARTS["server"]


if __name__ == "__main__":
    Sampler()
    sys.argv[0] = "gpudeck"
    runpy.run_module("gpudeck", run_name="__main__")
