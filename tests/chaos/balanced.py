"""Three hubs behind HAProxy with the shipped configuration: what a hundred agents, and somebody who watches the page,
notice while each hub is killed in turn. Agents send with the product's own sender, by the default interval; the viewer
reads the stream as a browser does."""

import contextlib
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from chaos.clusters import ClusterUnderTest
from chaos.figures import Figure, Outcome, at_most, holds, took
from chaos.hosts import ChaosHost
from chaos.hub import NO_COMPILER
from fakes.load_balancers import running_load_balancer
from fakes.nats_server import running_nats
from fakes.postgres import running_postgres
from fakes.prometheus import running_store
from fakes.waiting import wait_until
from gpudeck.agent.outbox import EncodedReport, Outbox, ReportTime
from gpudeck.agent.push import Sender
from gpudeck.client import Client
from gpudeck.http_client import TRANSPORT_ERRORS
from gpudeck.model.clock import boottime
from gpudeck.model.errors import GpudeckError
from gpudeck.wire import encode

_EVERY = 2
"""Seconds between two reports: the agents' default."""
_GPUS = 2
_MAX_KILLS = 12
_RETRY = 2.0
"""Seconds after which a browser opens a stream that has ended: the hub tells it."""
_PAGE_SAYS_SO = 1.5
"""Seconds without an event after which the page says so, where its connection broke."""


class Agents:
    """Each in a thread. `waits` are how long each report was there until a hub had taken it."""

    def __init__(self, url: str, token_file: Path, number: int) -> None:
        self.waits: list[float] = []
        self.refused = self.left = 0
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._report, args=(ChaosHost(at, _GPUS, 0, every=_EVERY), url, token_file))
            for at in range(number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)

    def _report(self, host: ChaosHost, url: str, token_file: Path) -> None:
        outbox = Outbox(None, 10**8)
        sender = Sender(outbox, url, token_file, 0.01)
        host.epoch = int(time.time())
        start = time.monotonic() + host.number % 20 / 10
        for second in itertools.count(0, _EVERY):
            if self._ended.wait(max(0.0, start + second - time.monotonic())):
                break
            envelope = host.envelope(second)
            outbox.put(EncodedReport(host.name, encode(envelope), ReportTime(envelope.collected_at, boottime())))
            while (pause := sender.send_next(0.0)) is not None:
                self._ended.wait(pause)
            self.waits.append(time.monotonic() - start - second)
        sender.send_next(0.0)
        self.refused += sender.refused
        self.left += len(outbox)
        sender.close()


class Viewer(Struct):
    """What somebody sees who watches the page. `late` is how long each host was shown as late, each time."""

    statuses: Counter[str] = field(default_factory=Counter)
    late: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """The times between two events."""
    resumed: int = 0
    hosts: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The status of each, and since when."""
    last: float = math.inf

    def watch(self, url: str, ended: threading.Event) -> None:
        last_id = ""
        while not ended.is_set():
            with contextlib.suppress(GpudeckError, *TRANSPORT_ERRORS):
                for event in Client(url).stream_events(last_id):
                    last_id = event.id
                    self._take(event.kind, msgspec.json.decode(event.data), time.monotonic())
                    if ended.is_set():
                        return
            self.resumed += 1
            ended.wait(_RETRY)

    def _take(self, kind: str, document: dict[str, list[dict[str, str]]], now: float) -> None:
        self.waits.append(max(0.0, now - self.last))
        self.last = now
        for change in (*document.get("hosts", ()), *document.get("changes", ())):
            if "status" in change:
                self._note(change["id"], change["status"], now)
        for host in self.hosts.keys() - {one["id"] for one in document["hosts"]} if kind == "snapshot" else ():
            self._note(host, "gone", now)
        for status, _ in self.hosts.values():
            self.statuses[status] += 1

    def _note(self, host: str, status: str, now: float) -> None:
        before, since = self.hosts.get(host, ("", now))
        if before == status:
            return
        if before == "late":
            self.late.append(now - since)
        self.hosts[host] = (status, now)


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """Each hub is killed once, or `kills` times in all."""
    del seed
    outcome = Outcome("three hubs behind HAProxy")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number, kills = (20, 3) if short else (100, max(3, min(kills, _MAX_KILLS)))
    viewer, takeovers = Viewer(), list[float]()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_running_cluster(folder))
        places = [f"{hub.host}:{hub.port}" for hub in cluster.hubs]
        url = stack.enter_context(running_load_balancer("haproxy", places, folder))
        agents = Agents(url, cluster.hubs[0].token_file, number)
        stack.callback(agents.stop)
        agents.start()
        wait_until(lambda: _all_up(cluster, number), "all hosts on all hubs", 120)
        before = len(agents.waits)
        with _watching(viewer, url):
            wait_until(lambda: len(viewer.hosts) == number, "all hosts on the page", 60)
            for turn in range(kills):
                hub, owner = cluster.hubs[turn % len(cluster.hubs)], cluster.owners().get("alerts")
                hub.kill()
                begun = time.monotonic()
                if hub.folder.name == owner:
                    wait_until(lambda was=owner: cluster.owners().get("alerts") not in {None, was}, "a takeover", 60)
                    takeovers.append(time.monotonic() - begun)
                time.sleep(max(0.0, begun + 15.0 - time.monotonic()))
                cluster.start(hub)
                wait_until(cluster.is_whole, "a whole cluster", 120)
        agents.stop()
    longest = max(viewer.waits)
    outcome.figures = [
        Figure("hubs killed, agents", f"{kills}, {number}"),
        at_most("looks at hosts that were neither up nor late", _count_other(viewer.statuses), 0),
        at_most("reports refused or not delivered", agents.refused + agents.left, 0),
        at_most("longest time that a host was late on the page", max(viewer.late, default=0.0), 2, "s", is_time=True),
        Figure("hosts that were late on the page, in all", str(len(viewer.late)), is_time=True),
        at_most("page without news: longest time that it says so", longest - _PAGE_SAYS_SO, 2, "s", is_time=True),
        holds("times that the page's stream went on at another hub", viewer.resumed > 0, str(viewer.resumed)),
        took("until a hub has taken a report", agents.waits[before:]),
        took("takeover of the alerts", takeovers),
    ]
    return outcome


def _count_other(statuses: Counter[str]) -> int:
    return statuses.total() - statuses["up"] - statuses["late"]


@contextlib.contextmanager
def _running_cluster(folder: Path) -> Iterator[ClusterUnderTest]:
    with contextlib.ExitStack() as stack:
        engines = (
            stack.enter_context(running_nats()),
            stack.enter_context(running_postgres()),
            stack.enter_context(running_store("victoria-metrics")),
        )
        cluster = ClusterUnderTest(folder, *engines, "")
        for hub in cluster.hubs:
            stack.callback(hub.kill)
            hub.start()
        wait_until(cluster.is_whole, "a whole cluster", 120)
        yield cluster


def _all_up(cluster: ClusterUnderTest, number: int) -> bool:
    return all(list(hub.statuses().values()).count("up") == number for hub in cluster.hubs)


@contextlib.contextmanager
def _watching(viewer: Viewer, url: str) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=viewer.watch, args=(url, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)
