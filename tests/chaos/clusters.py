"""Three hubs on real PostgreSQL, VictoriaMetrics and NATS, while one part after another fails.

Hosts report to any hub. Some of them fall silent now and then: each time exactly one alert has to fire. A viewer looks
at every hub that calls itself ready, and notes what is not true. In the end the usage of each hub is compared with what
the hosts reported.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from alerts.notifiers.sinks import running_webhook
from chaos.figures import Figure, Outcome, at_most, took
from chaos.hosts import Fleet, moment_of
from chaos.hub import NO_COMPILER, ChaosHub
from fakes.nats_server import NatsServer, running_nats
from fakes.postgres import PostgresServer, running_postgres
from fakes.prometheus import StoreProcess, running_store
from fakes.waiting import wait_until

HUBS = 3
GPUS = 2
DOWN_AFTER = 12
_LATE = 3.0 + 3.0
"""Seconds of silence after which no viewer may see a host as up: three missed reports, and three more."""
_SILENT = 75.0
"""How long a host falls silent: longer than it takes to be called down while a hub is taken over."""


class Silence(Struct):
    """A host that was off for a while, by the monotonic clock."""

    host: str
    start: float
    wall: float
    end: float = float("inf")


class Truth(Struct):
    """What is known to be so, and what a viewer saw that was not."""

    silences: list[Silence] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    unready: int = 0


class ClusterUnderTest:
    """All parts of it, and how each of them fails and comes back."""

    def __init__(
        self, folder: Path, nats: NatsServer, postgres: PostgresServer, store: StoreProcess, hook: str
    ) -> None:
        self.nats, self.postgres, self.store = nats, postgres, store
        address = postgres.make_database()
        self.hubs = [self._make(folder / f"hub{number}", address, hook) for number in range(HUBS)]

    def _make(self, folder: Path, address: str, hook: str) -> ChaosHub:
        folder.mkdir()
        history = (
            f", every: 1s, kind: prometheus, write_url: '{self.store.write_url}', read_url: '{self.store.read_url}'"
        )
        more = f"\nread: open\ndatabase: {address}\ncluster: {{bus: '{self.nats.url}', name: {folder.name}}}\n"
        return ChaosHub(folder, history=history, more=more, down_after=f"{DOWN_AFTER}s", webhook=hook)

    def is_whole(self) -> bool:
        """Whether every hub is up to date, and every duty has an owner."""
        for hub in self.hubs:
            with contextlib.suppress(OSError):
                cluster = hub.get("/api/v1/about", timeout=5)["cluster"]
                if cluster["state"] == "ok" and all(duty["owner"] for duty in cluster["duties"]):
                    continue
            return False
        return True

    def owners(self) -> dict[str, str | None]:
        """Of the duties, as some hub knows them."""
        for hub in self.hubs:
            with contextlib.suppress(OSError):
                return {duty["name"]: duty["owner"] for duty in hub.get("/api/v1/about", 3)["cluster"]["duties"]}
        return {}

    def kill(self, chance: random.Random) -> Callable[[], None]:
        hub = chance.choice(self.hubs)
        hub.kill()
        return lambda: hub.start() and None

    def kill_the_evaluator(self, _: random.Random) -> Callable[[], None]:
        owner = self.owners().get("alerts")
        hub = next((hub for hub in self.hubs if hub.folder.name == owner), self.hubs[0])
        hub.kill()
        return lambda: hub.start() and None

    def stop_for_a_while(self, chance: random.Random) -> Callable[[], None]:
        hub = chance.choice(self.hubs)
        os.kill(hub.pid, signal.SIGSTOP)
        return lambda: os.kill(hub.pid, signal.SIGCONT)

    def restart_postgres(self, _: random.Random) -> Callable[[], None]:
        self.postgres.kill()
        return self.postgres.start

    def freeze_postgres(self, _: random.Random) -> Callable[[], None]:
        self.postgres.freeze()
        return self.postgres.thaw

    def restart_nats(self, _: random.Random) -> Callable[[], None]:
        self.nats.kill()
        return self.nats.start

    def freeze_nats(self, _: random.Random) -> Callable[[], None]:
        process = self.nats.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    def stop_the_store(self, _: random.Random) -> Callable[[], None]:
        self.store.kill()
        return self.store.start

    def step_a_clock(self, chance: random.Random) -> Callable[[], None]:
        hub = chance.choice(self.hubs)
        hub.set_clock(chance.choice([-40.0, -5.0, 5.0, 40.0]))
        return lambda: hub.set_clock(0.0)


FAULTS = (
    ClusterUnderTest.kill,
    ClusterUnderTest.kill_the_evaluator,
    ClusterUnderTest.stop_for_a_while,
    ClusterUnderTest.restart_postgres,
    ClusterUnderTest.freeze_postgres,
    ClusterUnderTest.restart_nats,
    ClusterUnderTest.freeze_nats,
    ClusterUnderTest.stop_the_store,
    ClusterUnderTest.step_a_clock,
)


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    """`kills` is how many faults there are, of all kinds in turn."""
    outcome = Outcome("cluster of three hubs")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number, chance = (6 if short else 20), random.Random(seed)
    truth, recoveries, takeovers = Truth(), defaultdict[str, list[float]](list), list[float]()
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(running_webhook())
        cluster = ClusterUnderTest(
            folder,
            stack.enter_context(running_nats()),
            stack.enter_context(running_postgres()),
            stack.enter_context(running_store("victoria-metrics")),
            hook.url,
        )
        for hub in cluster.hubs:
            hub.set_clock(0.0)
            stack.callback(hub.kill)
            hub.start()
        wait_until(cluster.is_whole, "a whole cluster", 90)
        first, *others = (hub.port for hub in cluster.hubs)
        # A host is read every second: it may not wait for a hub any longer.
        fleet = Fleet(first, cluster.hubs[0].token, number, GPUS, others=others, deadline=0.9)
        stack.callback(fleet.stop)
        fleet.start()
        wait_until(lambda: _all_up(cluster, number), "all hosts on all hubs", 90)
        with _watching(cluster, truth), _falling_silent(fleet, truth):
            for turn in range(kills):
                fault = FAULTS[turn % len(FAULTS)]
                evaluator = cluster.owners().get("alerts")
                begun = time.monotonic()
                heal = fault(cluster, chance)
                if fault is ClusterUnderTest.kill_the_evaluator:
                    with contextlib.suppress(AssertionError):
                        wait_until(lambda was=evaluator: _is_taken_over(cluster, was), "a takeover", 40)
                        takeovers.append(time.monotonic() - begun)
                else:
                    time.sleep(chance.uniform(3, 6 if short else 25))
                heal()
                healed = time.monotonic()
                with contextlib.suppress(AssertionError):
                    wait_until(cluster.is_whole, "a whole cluster", 90)
                    recoveries[fault.__name__].append(time.monotonic() - healed)
        fleet.stop(deliver=60)
        time.sleep(5)
        wait_until(cluster.is_whole, "a whole cluster", 90)
        fired = _fired(cluster.hubs[0])
        lost, doubled, notes = _compare_alerts(fired, truth)
        off = [_compare_usage(hub, fleet) for hub in cluster.hubs]
        messages = Counter(text.splitlines()[0] for text in hook.texts())
    expected = len([one for one in truth.silences if one.end - one.start > _SILENT - 5])
    outcome.figures = [
        Figure("faults, hosts, silences of hosts", f"{kills}, {number}, {expected}"),
        at_most("lost decisions: alerts that did not fire", lost, 0),
        at_most("double decisions: alerts that fired twice", doubled, 0),
        at_most("GPU-hours against the truth, largest difference of a hub", max(off), 0.1, "%"),
        at_most(f"wrong states in {truth.looks} looks of a viewer", len(truth.wrong), 0),
        Figure("messages, of which repeated", f"{messages.total()}, {sum(count - 1 for count in messages.values())}"),
        at_most("takeover of the alerts, longest", max(takeovers, default=0.0), 15, "s", is_time=True),
        *(took(f"whole again after: {name.replace('_', ' ')}", seconds) for name, seconds in recoveries.items()),
    ]
    outcome.notes = [
        *notes,
        *truth.wrong[:10],
        *(f"usage of hub{at}: {value:.2f} % off" for at, value in enumerate(off)),
    ]
    return outcome


def _all_up(cluster: ClusterUnderTest, number: int) -> bool:
    return all(list(hub.statuses().values()).count("up") == number for hub in cluster.hubs)


def _is_taken_over(cluster: ClusterUnderTest, before: str | None) -> bool:
    return cluster.owners().get("alerts") not in {None, before}


@contextlib.contextmanager
def _falling_silent(fleet: Fleet, truth: Truth) -> Iterator[None]:
    """One host after another is off for a while."""
    ended = threading.Event()

    def turn_off() -> None:
        for host in fleet.hosts * 100:
            if ended.wait(5):
                return
            silence = Silence(host.name, time.monotonic(), time.time())
            fleet.mute(host.name)
            truth.silences.append(silence)
            ended.wait(_SILENT)
            silence.end = time.monotonic()
            fleet.mute()

    thread = threading.Thread(target=turn_off, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _watching(cluster: ClusterUnderTest, truth: Truth) -> Iterator[None]:
    """A viewer at each hub, as a load balancer lets it through."""
    ended = threading.Event()

    def look(hub: ChaosHub) -> None:
        while not ended.wait(0.5):
            if hub.readiness()[0] != 200:
                truth.unready += 1
                continue
            begun = time.monotonic()
            with contextlib.suppress(OSError):
                found = hub.get("/api/v1/fleet", timeout=5)
                truth.looks += 1
                truth.wrong += _find_wrong(found["hosts"], hub.folder.name, truth, begun, time.monotonic())

    threads = [threading.Thread(target=look, args=[hub], daemon=True) for hub in cluster.hubs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _find_wrong(hosts: list[Any], hub: str, truth: Truth, begun: float, ended: float) -> Iterator[str]:
    """States that were not so at any moment of the look. Late, and so unknown, is never wrong."""
    for host in hosts:
        own = [one for one in truth.silences if one.host == host["name"]]
        is_off = any(one.start + _LATE < begun and ended < one.end for one in own)
        was_off = any(one.start + DOWN_AFTER - 1 < ended and begun < one.end + _SILENT for one in own)
        if host["status"] == "up" and is_off:
            yield f"{hub}: {host['name']} is up, and is off"
        if host["status"] == "down" and not was_off:
            yield f"{hub}: {host['name']} is down, and reports"
        free = [gpu["index"] for gpu in host["gpus"] if gpu["availability"] == "free"]
        if free:
            yield f"{hub}: {host['name']} has free GPUs {free}, and all are busy"


def _fired(hub: ChaosHub) -> list[Any]:
    """All alerts about silent hosts, with those that are over."""
    found = hub.get("/api/v1/alerts?state=firing,acknowledged,resolved&limit=1000")["alerts"]
    return [alert for alert in found if alert["rule"] == "host_down"]


def _compare_alerts(fired: list[Any], truth: Truth) -> tuple[int, int, list[str]]:
    lost = doubled = 0
    notes = []
    for one in truth.silences:
        if one.end - one.start < _SILENT - 5:
            continue
        until = one.wall + (one.end - one.start) + 30
        own = [alert for alert in fired if alert["host"] == one.host and one.wall <= alert["fired_at"] <= until]
        lost += not own
        doubled += max(0, len(own) - 1)
        if len(own) != 1:
            notes.append(f"{len(own)} alerts about {one.host}, which was off")
    inside = [
        alert
        for alert in fired
        if not any(
            one.host == alert["host"] and one.wall <= alert["fired_at"] <= one.wall + 200 for one in truth.silences
        )
    ]
    notes += [f"a false alert about {alert['host']}" for alert in inside]
    return lost, doubled + len(inside), notes


def _compare_usage(hub: ChaosHub, fleet: Fleet) -> float:
    """By how many percent the GPU-hours of users differ from what their hosts reported, in all."""
    expected: Counter[str] = Counter()
    for host in fleet.hosts:
        for second in host.read:
            for gpu in range(GPUS):
                expected[moment_of(host.number, gpu, second).user] += 1
    start, end = fleet.epoch // 3600 * 3600, (time.time() // 3600 + 1) * 3600
    rows = hub.get(f"/api/v1/usage?by=user&start={start}&end={end:.0f}", timeout=60)["rows"]
    found = {row["user"]: 3600 * row["gpu_hours"] for row in rows if row.get("user")}
    return 100 * sum(abs(found.get(user, 0.0) - seconds) for user, seconds in expected.items()) / expected.total()
