"""Three hubs on real PostgreSQL, VictoriaMetrics and NATS, while one part after another fails.

Hosts report to any hub. Some of them fall silent now and then: each time exactly one alert has to fire. A viewer looks
at every hub that calls itself ready, and notes what is not true. In the end the usage of each hub is compared with what
the hosts reported.
"""

import contextlib
import itertools
import math
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from alerts.notifiers.sinks import running_webhook
from chaos.figures import Figure, Outcome, at_most, took
from chaos.hosts import Fleet, moment_of
from chaos.hub import NO_COMPILER, ChaosHub
from chaos.network import Network, networked, why_not
from fakes.nats_server import NatsServer, running_nats
from fakes.postgres import PostgresServer, running_postgres
from fakes.prometheus import StoreProcess, running_store
from fakes.waiting import wait_until

HUBS = 3
GPUS = 2
DOWN_AFTER = 12
MACHINES = ("agents", "nats", "postgres", "store", *(f"hub{number}" for number in range(HUBS)))
_SILENT = 63.0
"""How long a host falls silent beyond the time after which it is down: longer than a hub is taken over."""


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
    every: int = 1
    """Seconds between two reports of a host: so long before it fell silent it may have reported for the last time."""
    down_after: float = DOWN_AFTER
    looks: int = 0
    unready: int = 0

    @property
    def late(self) -> float:
        """Seconds of silence after which no viewer may see a host as up: three missed reports, and three more."""
        return 3.0 * self.every + 3.0

    @property
    def silent(self) -> float:
        """For how long a host falls silent."""
        return self.down_after + _SILENT


class ClusterUnderTest:
    """All parts of it, and how each of them fails and comes back."""

    def __init__(
        self,
        folder: Path,
        nats: NatsServer,
        postgres: PostgresServer,
        store: StoreProcess,
        hook: str,
        network: Network | None = None,
        down_after: float = DOWN_AFTER,
    ) -> None:
        """With a `network` each part is on the machine of its name there, and can be cut off from another."""
        self._network, self._down_after = network, down_after
        self.nats, self.postgres, self.store = nats, postgres, store
        address = postgres.make_database()
        self.hubs = [self._make(folder / f"hub{number}", address, hook) for number in range(HUBS)]

    def _make(self, folder: Path, address: str, hook: str) -> ChaosHub:
        folder.mkdir()
        history = (
            f", every: 1s, kind: prometheus, write_url: '{self.store.write_url}', read_url: '{self.store.read_url}'"
        )
        more = f"\nread: open\ndatabase: {address}\ncluster: {{bus: '{self.nats.url}', name: {folder.name}}}\n"
        host = "127.0.0.1" if self._network is None else self._network.address(folder.name)
        return ChaosHub(
            folder, history=history, more=more, down_after=f"{self._down_after:g}s", webhook=hook, host=host
        )

    def start(self, hub: ChaosHub) -> None:
        with _at(self._network, hub.folder.name):
            hub.start()

    def is_whole(self) -> bool:
        """Whether every hub is up to date and has no problem, and every duty has an owner that is there."""
        for hub in self.hubs:
            with contextlib.suppress(OSError):
                cluster = hub.get("/api/v1/about", timeout=5)["cluster"]
                alive = {one["name"] for one in cluster["hubs"] if one["is_alive"]}
                is_owned = all(duty["owner"] in alive for duty in cluster["duties"])
                if cluster["state"] == "ok" and not cluster["problems"] and is_owned:
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
        return lambda: self.start(hub)

    def kill_the_evaluator(self, _: random.Random) -> Callable[[], None]:
        owner = self.owners().get("alerts")
        hub = next((hub for hub in self.hubs if hub.folder.name == owner), self.hubs[0])
        hub.kill()
        return lambda: self.start(hub)

    def stop_for_a_while(self, chance: random.Random) -> Callable[[], None]:
        hub = chance.choice(self.hubs)
        os.kill(hub.pid, signal.SIGSTOP)
        return lambda: os.kill(hub.pid, signal.SIGCONT)

    def restart_postgres(self, _: random.Random) -> Callable[[], None]:
        self.postgres.kill()
        return lambda: self._restart("postgres", self.postgres.start)

    def freeze_postgres(self, _: random.Random) -> Callable[[], None]:
        self.postgres.freeze()
        return self.postgres.thaw

    def restart_nats(self, _: random.Random) -> Callable[[], None]:
        self.nats.kill()
        return lambda: self._restart("nats", self.nats.start)

    def freeze_nats(self, _: random.Random) -> Callable[[], None]:
        process = self.nats.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    def stop_the_store(self, _: random.Random) -> Callable[[], None]:
        self.store.kill()
        return lambda: self._restart("store", self.store.start)

    def step_a_clock(self, chance: random.Random) -> Callable[[], None]:
        hub = chance.choice(self.hubs)
        hub.set_clock(chance.choice([-40.0, -5.0, 5.0, 40.0]))
        return lambda: hub.set_clock(0.0)

    def cut_hub_from_nats(self, chance: random.Random) -> Callable[[], None]:
        return self._cut(chance, "nats")

    def cut_hub_from_postgres(self, chance: random.Random) -> Callable[[], None]:
        return self._cut(chance, "postgres")

    def cut_hub_from_store(self, chance: random.Random) -> Callable[[], None]:
        return self._cut(chance, "store")

    def cut_hub_from_agents(self, chance: random.Random) -> Callable[[], None]:
        """And from viewers, and from the receiver of messages."""
        return self._cut(chance, "agents")

    def cut_hub_from_hub(self, chance: random.Random) -> Callable[[], None]:
        one, other = chance.sample([hub.folder.name for hub in self.hubs], 2)
        assert self._network is not None
        return self._network.cut(one, other)

    def _cut(self, chance: random.Random, other: str) -> Callable[[], None]:
        assert self._network is not None
        return self._network.cut(chance.choice(self.hubs).folder.name, other)

    def _restart(self, name: str, start: Callable[[], None]) -> None:
        with _at(self._network, name):
            start()


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
PARTITIONS = (
    ClusterUnderTest.cut_hub_from_nats,
    ClusterUnderTest.cut_hub_from_postgres,
    ClusterUnderTest.cut_hub_from_store,
    ClusterUnderTest.cut_hub_from_agents,
    ClusterUnderTest.cut_hub_from_hub,
)
_LONG_STOP = 300.0
_MANY_FAULTS = 60
"""From so many on, the first hub that is stopped is stopped for five minutes."""
_MANY_HOSTS = 60
_MAX_OFF = 0.1
"""Percent of the GPU-hours."""


def run(
    folder: Path,
    *,
    seed: int,
    short: bool,
    kills: int,
    hosts: int | None = None,
    keep: Path | None = None,
    minutes: float | None = None,
) -> Outcome:
    """`kills` is how many faults there are, of all kinds in turn, and fewer where these take more than so many
    `minutes`. `keep` is where the hubs' logs are copied to."""
    outcome = Outcome("cluster of three hubs")
    if NO_COMPILER:
        return Outcome(outcome.scenario, not_run=NO_COMPILER)
    number, chance = hosts or (6 if short else 20), random.Random(seed)
    every = 5 if number > _MANY_HOSTS else 1
    longest = 6 if short else 12 if kills >= _MANY_FAULTS else 25
    no_network = why_not()
    faults = FAULTS if no_network else (*FAULTS, *PARTITIONS)
    truth, recoveries, takeovers = Truth(), defaultdict[str, list[float]](list), list[float]()
    log, told, faults_made = list[str](), 0, 0
    with contextlib.ExitStack() as stack:
        network = None if no_network else stack.enter_context(networked(MACHINES))
        # What this thread asks, and each that it starts, is on the machine of agents and viewers.
        stack.enter_context(_at(network, "agents"))
        places = {name: "127.0.0.1" if network is None else network.address(name) for name in MACHINES}
        hook = stack.enter_context(running_webhook(places["agents"]))
        with _at(network, "nats"):
            nats = stack.enter_context(running_nats(places["nats"]))
        with _at(network, "postgres"):
            postgres = stack.enter_context(running_postgres(places["postgres"]))
        with _at(network, "store"):
            store = stack.enter_context(running_store("victoria-metrics", host=places["store"]))
        down_after = DOWN_AFTER if every == 1 else 5 * every
        cluster = ClusterUnderTest(folder, nats, postgres, store, hook.url, network, down_after)
        truth.every, truth.down_after = every, down_after
        if keep is not None:
            stack.callback(_copy_logs, cluster, keep)
        for hub in cluster.hubs:
            hub.set_clock(0.0)
            stack.callback(hub.kill)
            cluster.start(hub)
        wait_until(cluster.is_whole, "a whole cluster", 90)
        first, *others = (f"{hub.host}:{hub.port}" for hub in cluster.hubs)
        # A host that is read every second may not wait for a hub any longer; agents wait for 4 s.
        deadline = 0.9 if every == 1 else 4.0
        fleet = Fleet(first, cluster.hubs[0].token, number, GPUS, others=others, deadline=deadline, every=every)
        stack.callback(fleet.stop)
        fleet.start()
        wait_until(lambda: _all_up(cluster, number), "all hosts on all hubs", 90)
        with _watching(cluster, truth), _falling_silent(fleet, truth):
            until = math.inf if minutes is None else time.monotonic() + 60 * minutes
            for turn in itertools.takewhile(lambda _: time.monotonic() < until, range(kills)):
                fault = faults[turn % len(faults)]
                evaluator = cluster.owners().get("alerts")
                begun = time.monotonic()
                log.append(f"{_clock(time.time())} {turn + 1} {fault.__name__}")
                heal = fault(cluster, chance)
                if fault is ClusterUnderTest.kill_the_evaluator:
                    with contextlib.suppress(AssertionError):
                        wait_until(lambda was=evaluator: _is_taken_over(cluster, was), "a takeover", 40)
                        takeovers.append(time.monotonic() - begun)
                elif fault is ClusterUnderTest.stop_for_a_while and turn < len(faults) and kills >= _MANY_FAULTS:
                    time.sleep(_LONG_STOP)
                else:
                    time.sleep(chance.uniform(3, longest))
                healed = time.monotonic()
                heal()
                with contextlib.suppress(AssertionError):
                    wait_until(cluster.is_whole, "a whole cluster", 90)
                    recoveries[fault.__name__].append(time.monotonic() - healed)
                log.append(f"{_clock(time.time())} {turn + 1} {fault.__name__} ends")
                print(
                    f"{log[-1]}: {len(truth.wrong)} wrong of {truth.looks}",
                    *truth.wrong[told:],
                    sep="\n  ",
                    file=sys.stderr,
                    flush=True,
                )
                told, faults_made = len(truth.wrong), turn + 1
        fleet.stop(deliver=60)
        time.sleep(5)
        wait_until(cluster.is_whole, "a whole cluster", 90)
        fired = wait_until(lambda: _fired(cluster.hubs[0]), "an answer about the alerts", 60)
        lost, doubled, notes = _compare_alerts(fired, truth)
        expected = _gpu_seconds(fleet)
        found = [_compare_usage(hub, fleet, expected) for hub in cluster.hubs]
        off = [difference for difference, _ in found]
        messages = Counter(text.splitlines()[0] for text in hook.texts())
    expected = len([one for one in truth.silences if one.end - one.start > truth.silent - 5])
    outcome.figures = [
        Figure("faults, hosts, silences of hosts", f"{faults_made}, {number}, {expected}"),
        *([Figure("partitions", f"not run: {no_network}")] if no_network else []),
        at_most("lost decisions: alerts that did not fire", lost, 0),
        at_most("double decisions: alerts that fired twice", doubled, 0),
        at_most("GPU-hours against the truth, largest difference of a hub", max(off), _MAX_OFF, "%"),
        at_most(f"wrong states in {truth.looks} looks of a viewer", len(truth.wrong), 0),
        Figure("usage by user, longest answer of a hub", f"{max(seconds for _, seconds in found):.1f} s"),
        Figure("messages, of which repeated", f"{messages.total()}, {sum(count - 1 for count in messages.values())}"),
        at_most("takeover of the alerts, longest", max(takeovers, default=0.0), 15, "s", is_time=True),
        *(took(f"whole again after: {name.replace('_', ' ')}", seconds) for name, seconds in recoveries.items()),
    ]
    outcome.notes = [
        *notes,
        *(log if notes or truth.wrong or max(off) > _MAX_OFF else ()),
        *truth.wrong[:10],
        *(f"usage of hub{at}: {value:.2f} % off" for at, value in enumerate(off)),
    ]
    return outcome


def _at(network: Network | None, name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if network is None else network.inside(name)


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(moment))


def _copy_logs(cluster: ClusterUnderTest, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for hub in cluster.hubs:
        (folder / f"{hub.folder.name}.log").write_text(hub.read_log())


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
            ended.wait(truth.silent)
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
            with contextlib.suppress(OSError, HTTPException):  # half an answer of a hub that is killed
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
    at = _clock(time.time())
    for host in hosts:
        own = [one for one in truth.silences if one.host == host["name"]]
        is_off = any(one.start + truth.late < begun and ended < one.end for one in own)
        # A silence begins up to one interval after the last report.
        down = truth.down_after - truth.every
        was_off = any(one.start + down < ended and begun < one.end + truth.silent for one in own)
        if host["status"] == "up" and is_off:
            yield f"{at} {hub}: {host['name']} is up, and is off"
        if host["status"] == "down" and not was_off:
            yield f"{at} {hub}: {host['name']} is down, and reports"
        free = [gpu["index"] for gpu in host["gpus"] if gpu["availability"] == "free"]
        if free:
            yield f"{at} {hub}: {host['name']} has free GPUs {free}, and all are busy"


def _fired(hub: ChaosHub) -> list[Any]:
    """All alerts about silent hosts, with those that are over."""
    found: list[Any] = []
    with contextlib.suppress(OSError):  # the duty may change hands
        found = hub.get("/api/v1/alerts?state=firing,acknowledged,resolved&limit=1000")["alerts"]
    return [alert for alert in found if alert["rule"] == "host_down"]


def _compare_alerts(fired: list[Any], truth: Truth) -> tuple[int, int, list[str]]:
    lost = doubled = 0
    notes = []
    for one in truth.silences:
        if one.end - one.start < truth.silent - 5:
            continue
        until = one.wall + (one.end - one.start) + 30
        own = [alert for alert in fired if alert["host"] == one.host and one.wall <= alert["fired_at"] <= until]
        lost += not own
        doubled += max(0, len(own) - 1)
        if len(own) != 1:
            notes.append(f"{len(own)} alerts about {one.host}, which was off from {_clock(one.wall)} on")
    inside = [
        alert
        for alert in fired
        if not any(
            one.host == alert["host"] and one.wall <= alert["fired_at"] <= one.wall + 200 for one in truth.silences
        )
    ]
    notes += [f"a false alert about {alert['host']} at {_clock(alert['fired_at'])}" for alert in inside]
    return lost, doubled + len(inside), notes


def _gpu_seconds(fleet: Fleet) -> Counter[str]:
    """What each user had, by what their hosts reported."""
    expected: Counter[str] = Counter()
    for host in fleet.hosts:
        for second in host.read:
            for gpu in range(GPUS):
                expected[moment_of(host.number, gpu, second).user] += fleet.every
    return expected


def _compare_usage(hub: ChaosHub, fleet: Fleet, expected: Counter[str]) -> tuple[float, float]:
    """By how many percent the GPU-hours of users differ from these, in all; and after how many seconds the hub has
    answered."""
    start, end = fleet.epoch // 3600 * 3600, (time.time() // 3600 + 1) * 3600
    asked = time.monotonic()
    rows = hub.get(f"/api/v1/usage?by=user&start={start}&end={end:.0f}", timeout=600)["rows"]
    took = time.monotonic() - asked
    found = {row["user"]: 3600 * row["gpu_hours"] for row in rows if row.get("user")}
    off = 100 * sum(abs(found.get(user, 0.0) - seconds) for user, seconds in expected.items()) / expected.total()
    return off, took
