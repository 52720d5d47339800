"""Alerts: all rules over 1,000 hosts with 8,000 GPUs, with nothing wrong, something on some hosts, and on all of them.

"All hosts looked at" is the same look without the preselection by columns. Left out: writing alerts down, and sending.
"""

import gc
import json
import time
from collections.abc import Iterable

import msgspec
import numpy as np

from bench.reports import make_rounds
from bench.tables import best_of, print_table
from gpudeck import __version__
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.rule import FleetContext
from gpudeck.alerts.selection import HostSelector
from gpudeck.alerts.settings import AlertSettings, Override, RuleChange
from gpudeck.fleet.hub import Hub
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.wire import decode

HOSTS, ROUNDS, REPEATS = 1_000, 2, 10
MANY_HOSTS = 10_000
BAD = {
    "gpu_hot": RuleChange(wait=0.0, above=-40.0),
    "disk_full": RuleChange(wait=0.0, above=1.0),
    "ram_full": RuleChange(wait=0.0, above=1.0),
}


class Bench:
    """One engine over the fleet. `slowest` is the longest time for which nobody else had a turn."""

    def __init__(self, hub: Hub, settings: AlertSettings, *, looks_at_all: bool = False) -> None:
        self._hub = hub
        self._selector = HostSelector(hub.fleet)
        self._looks_at_all = looks_at_all
        self.engine = AlertEngine(settings, lambda event: None)
        self._power_limits = self._selector.power_limits()
        self._now = time.time()
        self.slowest = 0.0
        self.looks = 0

    def evaluate(self) -> None:
        self._now += 1.0
        self.looks += 1
        fleet, begun = self._hub.fleet, time.perf_counter()
        totals = fleet.totals()
        context = FleetContext(now=self._now, version=__version__, power_limits=self._power_limits, known=totals.gpus)
        self.engine.begin(context)
        hosts = self._choose()
        self.slowest = time.perf_counter() - begun
        for start in range(0, len(hosts), HOSTS_AT_ONCE):
            begun = time.perf_counter()
            for host_id, uuids in hosts[start : start + HOSTS_AT_ONCE]:
                self.engine.evaluate(self._selector.snapshot(fleet.hosts[host_id], self._now, uuids))
            self.slowest = max(self.slowest, time.perf_counter() - begun)
        begun = time.perf_counter()
        self.engine.finish(fleet.hosts)
        self.slowest = max(self.slowest, time.perf_counter() - begun)
        self.engine.changed.clear()
        self.engine.outgoing.clear()

    def measure(self) -> tuple[float, float]:
        """The quickest look, and in it the longest slice; the first look is another thing."""
        return min((best_of(1, self.evaluate), self.slowest) for _ in range(REPEATS))

    def _choose(self) -> list[tuple[str, set[str] | None]]:
        if self._looks_at_all:
            return [(host_id, None) for host_id in self._hub.fleet.hosts]
        selected = self.engine.preselect(self._hub.fleet.table)
        return list(self._selector.choose(selected, self.engine.active_hosts(), self._now).items())


def heat(hub: Hub, part: float) -> None:
    """One GPU of so many hosts, as a part of all, is hot; the others are as they were reported."""
    gpus = hub.fleet.table.gpus
    temperature, host = gpus.metric("temperature_celsius"), gpus.host[: gpus.end]
    temperature[temperature > 90] = 79
    first = np.unique(host, return_index=True)[1]
    temperature[first[: round(part * HOSTS)]] = 91


def _warm_up(hub: Hub, bench: Bench) -> float:
    """The seconds of a look after another fifth of the hosts has reported, as they do at an interval of 5 s."""
    table = hub.fleet.table
    rows = np.arange(bench.looks % 5, table.hosts.end, 5)
    is_warmer = np.isin(table.gpus.host[: table.gpus.end], rows) & (np.arange(table.gpus.end) % 2 == 0)
    table.gpus.metric("temperature_celsius")[is_warmer] += 1
    table.hosts.is_unseen[rows] = True
    return best_of(1, bench.evaluate)


def fill(bodies: Iterable[bytes]) -> Hub:
    hub = Hub(FleetSettings(max_hosts_per_token=MANY_HOSTS))
    for body in bodies:
        hub.ingest.take(body, "application/msgpack", "zstd", sent_at=time.time())
    hub.fleet.settle()
    return hub


def measure_many() -> Iterable[tuple[str, float, str]]:
    """Of 80,000 GPUs: all are well; one in ten is hot, for too short a time to tell of it; and all of these fire."""
    hub = fill(make_rounds(MANY_HOSTS, 1)[0])
    temperature = hub.fleet.table.gpus.metric("temperature_celsius")
    for part, what, wait in (
        (0, "all are well", 0.0),
        (10, "10 % have been hot for a moment", 86_400.0),
        (10, "10 % fire", 0.0),
    ):
        temperature[: len(temperature) * part // 100] = 91
        np.random.default_rng(1).shuffle(temperature)
        bench = Bench(hub, AlertSettings(rules={"gpu_hot": RuleChange(wait=wait)}))
        bench.evaluate()
        yield f"{8 * MANY_HOSTS:,} GPUs: a look, {what}", bench.measure()[0], "≤ 20 ms"


OWN = (
    "utilization_percent < 5 and memory_used_bytes > 10GiB for 2h",
    "temperature_celsius > {limit} and not throttled_thermal",
    "memory_used_bytes / memory_total_bytes > 0.9{limit} and power_watts > 9000",
    "availability == busy and host.cpu_percent > 9{limit} and model like '*no such*'",
)
"""Nothing of the bench's fleet fits them: what is measured is the look, not the alerts."""


def measure_own_rules(numbers: Iterable[int]) -> Iterable[tuple[str, float, str]]:
    """A look with so many rules of the operator's own, over 80,000 GPUs."""
    hub = fill(make_rounds(MANY_HOSTS, 1)[0])
    hub.fleet.table.gpus.metric("utilization_percent")[:] = 50
    for number in numbers:
        texts = [OWN[place % len(OWN)].format(limit=99 + place) for place in range(number)]
        bench = Bench(hub, AlertSettings(rules={f"own_{at}": RuleChange(expr=one) for at, one in enumerate(texts)}))
        bench.evaluate()
        yield f"{8 * MANY_HOSTS:,} GPUs: a look with {number} own rules", bench.measure()[0], "≤ 20 ms"


def main() -> None:
    rounds = make_rounds(HOSTS, ROUNDS)
    document = msgspec.json.encode(decode(rounds[0][0], "application/msgpack", "zstd"))
    reference = best_of(20, lambda: [json.loads(document) for _ in range(200)]) / 200
    hub = fill(body for bodies in rounds for body in bodies)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

    def row(what: str, seconds: float, promised: str = "") -> tuple[str, str, str, str]:
        return what, f"{seconds * 1e3:.1f} ms", promised, f"{seconds / reference:,.0f} ×"

    rows = []
    for part, promised in ((0.0, "≤ 4 ms"), (0.01, "≤ 4 ms"), (0.2, "")):
        heat(hub, part)
        for looks_at_all in (True, False):
            bench = Bench(hub, AlertSettings(), looks_at_all=looks_at_all)
            bench.evaluate()
            taken, longest = bench.measure()
            name = "  all hosts looked at" if looks_at_all else f"a look, something on {100 * part:.0f} % of hosts"
            rows.append(row(name, taken, "" if looks_at_all else promised))
            if not looks_at_all:
                rows[-2:] = reversed(rows[-2:])
                rows.append(row("  the longest time without a turn for others", longest))
    heat(hub, 0.0)
    overrides = [Override(models="*H100*", rules={"gpu_hot": RuleChange(above=85.0)})]
    by_model = Bench(hub, AlertSettings(overrides=overrides))
    by_model.evaluate()
    split, _ = by_model.measure()
    sick = Bench(hub, AlertSettings(rules=BAD))
    onset = best_of(1, sick.evaluate)
    bad, bad_slice = sick.measure()
    count = len(sick.engine.firing())
    moving = min(_warm_up(hub, sick) for _ in range(REPEATS))
    print_table(
        f"Alerts: {HOSTS:,} hosts, {HOSTS * 8:,} GPUs, all rules",
        f"json.loads of one eight-GPU report, {reference * 1e6:.0f} µs ({len(document):,} bytes)",
        [
            *rows,
            row("a look with limits by GPU model", split, "≤ 4 ms"),
            row("the usual power limits, once a minute", best_of(5, HostSelector(hub.fleet).power_limits)),
            row(f"the look at which {count:,} alerts fire at once", onset),
            row("a look while all of them fire", bad, "≤ 30 ms"),
            row("  the longest time without a turn for others", bad_slice),
            row("  with a fifth of the hosts reporting, and half of their GPUs warmer", moving, "≤ 30 ms"),
            *(row(*one) for one in measure_many()),
            *(row(*one) for one in measure_own_rules((0, 20))),
        ],
    )


if __name__ == "__main__":
    main()
