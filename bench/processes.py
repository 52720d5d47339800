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
    """`gpudeck up` with the given configuration, ended at the end. `ready_after` is from the start to its greeting."""

    def __init__(self, folder: Path, config: str, *arguments: str) -> None:
        (folder / "gpudeck.yaml").write_text(config)
        environment = os.environ | {"GPUDECK_DATA_DIR": str(folder)}
        command = [sys.executable, "-m", "gpudeck", "up", "--listen", "127.0.0.1:0", *arguments]
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=folder
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
