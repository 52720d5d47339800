"""Pull: what it costs the hub to ask a thousand hosts, how long an answer takes, and what a host that hangs does to
the others.

The hosts are bare servers on ports of their own, in processes of their own, each with a real report of eight GPUs. The
reference is a client that asks the same questions over kept connections and understands nothing of the answers.
"""

import asyncio
import contextlib
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from bench.processes import rss_mib
from bench.tables import print_table
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, PullSettings, Source
from gpudeck.sources.poller import Poller, PollMethod, PullSource

HOSTS = 1_000
PROCESSES = 4
SETTINGS = PullSettings()
ROUNDS = 5
SERIAL_HOSTS = 100
DISTANT = "0.01"
HANGING = 10


class Watched:
    """A source whose readings are timed. `spent` is shared by all of them."""

    def __init__(self, source: Source, spent: list[float]) -> None:
        self._source = source
        self._spent = spent
        self.close = source.close

    async def read(self, now: float) -> FetchedReport:
        start = time.perf_counter()
        arrival = await self._source.read(now)
        self._spent.append(time.perf_counter() - start)
        return arrival


def main() -> None:
    # The host that hangs is no news here.
    logging.getLogger("gpudeck").setLevel(logging.ERROR)
    # Each host is two descriptors on this machine.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        running_agents(HOSTS) as ports,
        running_agents(HOSTS, DISTANT) as distant,
        running_agents(1, "never_seen") as dead,
    ):
        uvloop.run(measure(ports, distant, dead[0]))


async def measure(ports: Sequence[int], distant: Sequence[int], hanging: int) -> None:
    bare = await measure_bare(ports)
    before = rss_mib(_self())
    cost, plain, beside = await measure_polling(targets_of(ports), targets_of([hanging], "hanging"))
    grown = rss_mib(_self()) - before
    serial = await measure_serial(targets_of(distant[:SERIAL_HOSTS])) * HOSTS / SERIAL_HOSTS
    at_once = await measure_round(targets_of(distant))
    hung = serial + HANGING * SETTINGS.deadline
    print_table(
        f"Pull: {HOSTS:,} eight-GPU hosts, each asked every {SETTINGS.interval:g} s by one process on loopback",
        f"a client that asks the same and reads nothing of the answers, {bare * 1e6:.0f} µs of CPU a question",
        [
            ("CPU of the asking side, of one core", f"{cost * HOSTS / SETTINGS.interval:.1%}", "≤ 40 %", ""),
            ("CPU for one reading", f"{cost * 1e6:.0f} µs", "≤ 2,000 µs", f"{cost / bare:.1f} ×"),
            ("memory for each host", f"{grown * 1024 / HOSTS:.0f} KiB", "", ""),
            ("answer, half of them within", f"{_at(plain, 0.5) * 1e3:.1f} ms", "", ""),
            ("answer, 99 % within", f"{_at(plain, 0.99) * 1e3:.1f} ms", "≤ 100 ms", ""),
            *_beside_hanging(plain, beside),
            (f"a round of hosts {DISTANT} s away, at once", f"{at_once:.2f} s", "", "1 ×"),
            (
                f"one after the other (extrapolated from {SERIAL_HOSTS})",
                f"{serial:.2f} s",
                "",
                f"{serial / at_once:.1f} ×",
            ),
            (f"the same, {HANGING} hang (calculated)", f"{hung:.2f} s", "", f"{hung / at_once:.1f} ×"),
        ],
    )


def _beside_hanging(plain: list[float], beside: list[float]) -> Iterator[tuple[str, str, str, str]]:
    for share in (0.5, 0.99):
        with_it, without = _at(beside, share), _at(plain, share)
        told = f"beside a host that hangs, {share:.0%} within"
        yield told, f"{with_it * 1e3:.1f} ms", "as without it", f"{with_it / without:.2f} ×"


async def measure_polling(
    targets: Sequence[Target], hanging: Sequence[Target]
) -> tuple[float, list[float], list[float]]:
    """CPU seconds of one reading, and how long each answer took without and beside a host that hangs.

    Rounds without it and with it take turns, as the machine is not equally quiet all the time. The first two, which
    open the connections, are not counted.
    """
    spent: list[float] = []
    ways = {
        "pull": PollMethod(
            lambda target: Watched(PullSource(target, SETTINGS), spent), SETTINGS.interval, SETTINGS.deadline
        )
    }
    poller = Poller(ways, lambda *_: True, lambda *_: None)
    poller.watch(targets)
    await asyncio.sleep(2 * SETTINGS.interval)
    cpu, plain, beside = 0.0, list[float](), list[float]()
    for _ in range(ROUNDS):
        before = time.process_time()
        plain += await watch_a_round(poller, targets, spent)
        cpu += time.process_time() - before
        beside += await watch_a_round(poller, [*targets, *hanging], spent)
    await poller.stop()
    assert min(len(plain), len(beside)) > 0.9 * HOSTS * ROUNDS, f"only {len(plain)} and {len(beside)} readings"
    return cpu / len(plain), sorted(plain), sorted(beside)


async def watch_a_round(poller: Poller, targets: Sequence[Target], spent: list[float]) -> list[float]:
    """How long each answer of a round took."""
    poller.watch(targets)
    spent.clear()
    await asyncio.sleep(SETTINGS.interval)
    return spent.copy()


async def measure_serial(targets: Sequence[Target]) -> float:
    """Seconds for one round of these hosts, one after the other, over kept connections."""
    sources = [PullSource(target, SETTINGS) for target in targets]
    for source in sources:
        await source.read(0.0)
    start = time.perf_counter()
    for source in sources:
        await source.read(0.0)
    spent = time.perf_counter() - start
    for source in sources:
        await source.close()
    return spent


async def measure_round(targets: Sequence[Target]) -> float:
    """Seconds for one round of all hosts at once, over kept connections."""
    patient = PullSettings(deadline=30.0)
    sources = [PullSource(target, patient) for target in targets]
    for source in sources:
        await source.read(0.0)
    start = time.perf_counter()
    await asyncio.gather(*(source.read(0.0) for source in sources))
    spent = time.perf_counter() - start
    for source in sources:
        await source.close()
    return spent


async def measure_bare(ports: Sequence[int]) -> float:
    """CPU seconds of one question of the reference."""
    question = b"GET /api/v1/report HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: zstd\r\n\r\n"
    connections = [await asyncio.open_connection("127.0.0.1", port) for port in ports]

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(question)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2]))

    await asyncio.gather(*(ask(*connection) for connection in connections))
    costs = []
    for _ in range(5):
        cpu = time.process_time()
        await asyncio.gather(*(ask(*connection) for connection in connections))
        costs.append((time.process_time() - cpu) / len(connections))
    for _, writer in connections:
        writer.close()
    return min(costs)


@contextlib.contextmanager
def running_agents(hosts: int, after: str = "0") -> Iterator[list[int]]:
    """The ports of so many bare hosts, in a few processes, each of which answers `after` so many seconds or never."""
    share = max(1, hosts // PROCESSES)
    command = [sys.executable, "-m", "bench.bare_agents"]
    with contextlib.ExitStack() as started:
        processes = []
        for first in range(0, hosts, share):
            arguments = [str(first), str(min(share, hosts - first)), after]
            process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            # Leaving the process as a context closes its input, which ends it, and waits for that.
            processes.append(started.enter_context(process))
        yield [int(port) for process in processes for port in (process.stdout or sys.stdin).readline().split()]


def targets_of(ports: Sequence[int], name: str = "gpu") -> list[Target]:
    return [Target(name=f"{name}{at:05d}", via="pull", address="127.0.0.1", port=port) for at, port in enumerate(ports)]


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _self() -> int:
    return int(Path("/proc/self").resolve().name)
