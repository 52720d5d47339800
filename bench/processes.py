"""A hub in a process of its own, and what it costs."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Time on a processor of a process's main thread so far, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def all_cpu_seconds(pid: int) -> float:
    """Of all threads so far, those that have ended among them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def disk_bytes(folder: Path | None) -> float:
    """What a folder takes on the disk, while others write to it."""
    total = 0
    for path in folder.rglob("*") if folder is not None else ():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return float(total)


def waiting_seconds(pid: int) -> float:
    """How long a process's main thread was ready so far, and others had the processors."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def stolen_seconds() -> float:
    """How long this machine's processors were ready so far, and its host gave them to others."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


@contextlib.contextmanager
def bare_server() -> Iterator[tuple[int, int]]:
    """The least that can take a POST on the same server software (bench/bare_server.py): its pid and its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "bench.bare_server", str(port)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


class HubUnderTest:
    """`gpudeck up` with the given configuration, ended at the end. `ready_after` is from the start to its greeting,
    `parts` is where one that is `sampled` (bench/sampled_hub.py) writes to; its log is hub.log in the folder."""

    def __init__(self, folder: Path, config: str, *arguments: str, sampled: bool = False) -> None:
        (folder / "gpudeck.yaml").write_text(config)
        self.folder = folder
        self.parts = folder / "parts.json"
        # The configuration is found in the folder, and so the benchmarks have to be named.
        paths = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {
            "GPUDECK_DATA_DIR": str(folder),
            "BENCH_PARTS": str(self.parts),
            "PYTHONPATH": paths,
        }
        module = "bench.sampled_hub" if sampled else "gpudeck"
        command = [sys.executable, "-m", module, "up", "--listen", "127.0.0.1:0", *arguments]
        start = time.perf_counter()
        with (folder / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=folder
            )
        assert self.process.stdout is not None
        self.url = ""
        for line in self.process.stdout:
            found = re.search(r"page +(http://\S+?)/?\s", line)
            self.url = found[1] if found else self.url
            if line.startswith("Ctrl-C"):
                break
        self.ready_after = time.perf_counter() - start
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> "HubUnderTest":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(15)
        assert self.process.stdout is not None
        self.process.stdout.close()
