"""VictoriaMetrics as a reference: fed by gpudeck's own client with the same samples, on the same machine."""

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bench.processes import all_cpu_seconds
from gpudeck.history.sample import HostSample
from gpudeck.history.settings import HistorySettings

PROGRAM = "victoria-metrics"


class Cost(Struct):
    """CPU seconds of our client and of the store, bytes on its disk, and how many values it was sent."""

    client_seconds: float
    store_seconds: float
    disk_bytes: int
    values: int
    gpu_day_seconds: float


class Victoria:
    """A running one; `running()` starts and ends it."""

    def __init__(self, folder: Path, port: int, pid: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder, self._pid = folder, pid

    def ask(self, path: str, **form: str) -> bytes:
        url = f"{self.url}{path}?{urllib.parse.urlencode(form)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            body: bytes = answer.read()
        return body

    def cpu_seconds(self) -> float:
        return all_cpu_seconds(self._pid)

    def disk_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self._folder / "data").rglob("*") if file.is_file())


@contextlib.contextmanager
def running() -> Iterator[Victoria]:
    program = shutil.which(PROGRAM)
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-storageDataPath={folder}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=10y"]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            victoria = Victoria(Path(folder), port, process.pid)
            _wait_for(victoria)
            yield victoria
        finally:
            process.kill()
            process.wait(20)


def measure(ticks: Iterable[list[HostSample]], uuid: str, end: float) -> Cost:
    """Sends all ticks and waits until they are merged on the disk."""
    from gpudeck.history.remote.client import PromClient  # noqa: PLC0415 - only with a store to talk to
    from gpudeck.history.remote.encoder import encode_sample  # noqa: PLC0415 - the same
    from gpudeck.history.remote.writer import (  # noqa: PLC0415 - the same
        MAX_VALUES,
        DiskQueue,
        RemoteWriteSender,
    )

    with running() as victoria, tempfile.TemporaryDirectory() as folder:
        url = f"{victoria.url}/api/v1/write"
        settings = HistorySettings(kind="prometheus", write_url=url, read_url=victoria.url)
        queue = DiskQueue(Path(folder), 2_000_000_000)
        client = PromClient(url, settings, seconds=60)
        sender = RemoteWriteSender(queue, client)
        client_seconds = 0.0
        for tick in ticks:
            begun = time.thread_time()
            queue.append([part for sample in tick for part in encode_sample(sample, sample.interval)])
            while not queue.is_empty():
                assert sender.send(queue.peek(MAX_VALUES)) == 0.0, sender.sent.problem
            client_seconds += time.thread_time() - begun
        victoria.ask("/internal/force_flush")
        used = victoria.cpu_seconds()
        victoria.ask("/internal/force_merge")
        query = f'avg_over_time(gpudeck_gpu_utilization_ratio{{uuid="{uuid}"}}[173s])'
        form = {"query": query, "start": str(end - 86_400), "end": str(end), "step": "173s"}
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            json.loads(victoria.ask("/api/v1/query_range", nocache="1", **form))
            times.append(time.perf_counter() - begun)
        client.close()
        return Cost(client_seconds, used, _settled_size(victoria), sender.sent.values, sorted(times)[10])


def _settled_size(victoria: Victoria) -> int:
    """Its size once merging no longer makes it smaller."""
    sizes = [victoria.disk_bytes()]
    until = time.monotonic() + 60
    while time.monotonic() < until and (len(sizes) < 4 or min(sizes[:-3]) > min(sizes[-3:])):
        time.sleep(1.0)
        sizes.append(victoria.disk_bytes())
    return min(sizes)


def _wait_for(victoria: Victoria) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            victoria.ask("/health")
        except urllib.error.URLError:
            assert time.monotonic() < until, "VictoriaMetrics did not start"
            time.sleep(0.1)
        else:
            return
