"""Left out: HTTP, alerts, history's files, a database server. Time in memory alone, of one event loop.

Nothing may be quadratic: what happens to all hosts at once, for fleets of 1,000 hosts and of ten times as many (eight
GPUs each, 80,000 in all). The reference is the same at 1,000 hosts: a host of a large fleet should cost what one of a
small fleet costs.

    python -m bench growth --hosts 1000,10000
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.reports import make_rounds
from bench.tables import Row, print_table
from gpudeck.database.engine import open_database
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.host_memory import HostMemory
from gpudeck.fleet.hub import Hub
from gpudeck.history.recorder import Recorder
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.target import Target
from gpudeck.model.text import Names

SECONDS_AWAY = 3600.0


class Fleet:
    """A hub that so many hosts report to, by a clock that is set."""

    def __init__(self, hosts: int, bodies: list[list[bytes]] | None = None) -> None:
        self.now = time.time()
        self.hub = Hub(FleetSettings(max_hosts=10**6, max_hosts_per_token=10**6), now=lambda: self.now)
        self.fleet = self.hub.fleet
        self.events: list[Event] = []
        self.fleet.observers.add(Recorder(2.0, lambda _: None))
        self.fleet.observers.add(EventDetector(self.events.append, self.now))
        self.bodies = bodies or make_rounds(hosts, 3)
        self._rounds = iter(self.bodies)

    def report(self) -> None:
        """All hosts, whole."""
        for body in next(self._rounds):
            self.hub.ingest.take(body, "application/msgpack", "zstd", sent_at=self.now)
        self.tick()

    def rename(self, names: Names) -> None:
        self.fleet.rename(names)
        self.tick()

    def tick(self) -> None:
        """Until viewers know all that changed."""
        self.now += 1.0
        self.hub.stream.tick()
        while self.fleet.has_postponed:
            self.hub.stream.tick()

    def pass_time(self) -> None:
        self.now += SECONDS_AWAY
        self.tick()

    def remove_all(self) -> None:
        for host_id in list(self.fleet.hosts):
            self.fleet.remove(host_id)
        self.tick()


def measure(hosts: int) -> dict[str, float]:
    """Seconds of CPU time of each event."""
    gc.collect()
    fleet = Fleet(hosts)
    names = Names(hosts={f"gpu{number:05d}": f"node {number}" for number in range(hosts)})
    seconds = {"first contact": timed(fleet.report)}
    seconds["the same reports again"] = timed(fleet.report)
    targets = [Target(name=host.name, via="push") for host in fleet.fleet.hosts.values()]
    seconds["all are configured"] = timed(lambda: fleet.fleet.expect(targets))
    seconds["no longer configured"] = timed(lambda: fleet.fleet.expect(()))
    seconds["hosts and models get other names"] = timed(lambda: fleet.rename(names))
    with tempfile.TemporaryDirectory() as folder:
        seconds["written to the database"] = timed(lambda: asyncio.run(remember(fleet.hub, Path(folder))))
        restarted = Fleet(hosts, fleet.bodies)
        seconds["restart with them in the database"] = timed(lambda: asyncio.run(restore(restarted.hub, Path(folder))))
        seconds["  their first reports after it"] = timed(restarted.report)
    seconds["all are down"] = timed(fleet.pass_time)
    seconds["all come back"] = timed(fleet.report)
    seconds["all are removed"] = timed(fleet.remove_all)
    return seconds


async def remember(hub: Hub, folder: Path) -> None:
    database = await open_database(None, folder)
    await HostMemory(hub, database).flush(with_times=True)
    await database.close()


async def restore(hub: Hub, folder: Path) -> None:
    database = await open_database(None, folder)
    await HostMemory(hub, database).open()
    await database.close()


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench growth")
    parser.add_argument("--hosts", default="1000,10000", help="how many: the first number is the reference")
    asked = parser.parse_args(sys.argv[sys.argv.index("growth") + 1 :] if "growth" in sys.argv else [])
    print((__doc__ or "").strip())
    sizes = [int(number) for number in asked.hosts.split(",")]
    small, *larger = [(hosts, measure(hosts)) for hosts in sizes]
    for hosts, seconds in larger:
        print_table(f"{hosts:,} hosts", f"{small[0]:,} hosts", list(_rows(hosts, seconds, *small)))


def _rows(hosts: int, seconds: dict[str, float], few: int, reference: dict[str, float]) -> Iterable[Row]:
    for name, spent in seconds.items():
        a_host, before = spent / hosts, reference[name] / few
        yield name, f"{1e6 * a_host:,.0f} µs a host, {spent:.2f} s", "", f"{a_host / before:.2f} ×"
