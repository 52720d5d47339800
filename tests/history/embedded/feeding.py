"""A small fleet whose samples are known by heart, for tests of the embedded store."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, GpuSample, HostSample, ProcessSample, Values
from gpudeck.history.settings import HistorySettings

START = 1_700_002_800.0
"""The beginning of an hour."""
GIB = 1024**3


def values(**known: float) -> Values:
    return tuple(known.get(name) for name in GPU_NAMES)


def process(pid: int, user: str | None, memory: float | None = 4, started_at: float = START - 60) -> ProcessSample:
    size = None if memory is None else int(memory * GIB)
    return ProcessSample(pid, started_at, user, f"python {pid}.py", None, None, size, None)


def gpu(uuid: str, *processes: ProcessSample, state: int = 3, utilization: float | None = 50.0) -> GpuSample:
    known = {"power_watts": 200.0, "memory_used_bytes": 4.0 * GIB}
    if utilization is not None:
        known["utilization_percent"] = utilization
    return GpuSample(uuid, uuid[-1], "H200", state, values(**known), processes)


def sample(at: float, *gpus: GpuSample, host: str = "gpu01", interval: float = 10.0) -> HostSample:
    return HostSample(f"id-{host}", host, at, interval, (1.0,) * len(HOST_NAMES), gpus)


def busy_hour(start: float = START, host: str = "gpu01") -> list[HostSample]:
    """One GPU, 360 samples, alice at 50 %."""
    return [sample(start + number * 10, gpu(f"GPU-{host}-0", process(7, "alice")), host=host) for number in range(360)]


def endless(first: float) -> Iterator[HostSample]:
    at = first
    while True:
        yield sample(at, gpu("GPU-gpu01-0", process(7, "alice"), utilization=at % 100))
        at += 10


def feed_until_killed(path: Path) -> None:
    """Take samples as fast as they are written, and say after each flush which was the last. Hours are sealed often."""
    clock = [START]
    store = EmbeddedStore(path, HistorySettings(min_free=0), lambda: clock[0])
    begin = max((host.last + 10 for host in store.writer.keys.hosts.values()), default=START)
    for count, one in enumerate(endless(begin), 1):
        clock[0] = one.at
        store.take([one])
        if count % 40 == 0:
            store.flush()
            sys.stdout.write(f"{one.at}\n")
            sys.stdout.flush()
            time.sleep(0.001)


if __name__ == "__main__":
    feed_until_killed(Path(sys.argv[1]))
