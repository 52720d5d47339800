"""The fleet's table against the fleet of one value at a time: random sequences, equal views."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from fakes.scalar.host import HostState as ScalarHost
from gpudeck.hub.host import HostState, encode_hosts
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.hub.table import FleetTable
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.names import Names
from gpudeck.model.report import GpuEvent, GpuReading, Process, Report
from gpudeck.model.reservation import GpuReservation, Mark
from gpudeck.wire import Envelope

START = 1_700_000_000.0
REASONS = ("not supported", "the GPU sleeps", "not permitted")


class Machine:
    """A host that reports at random: MIG changes, lost cards, values that cannot be, clocks that are set."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self.chance = name, chance
        self.sequence, self.run = 0, "run-0"
        self.skew = chance.choice((0.0, 0.0, 3.0, -40.0))
        self.gpus = list(range(chance.randint(0, 4)))
        self.busy: dict[int, list[Process]] = {}

    def report(self, now: float) -> Envelope:
        chance = self.chance
        if chance.random() < 0.05:
            self.gpus = sorted(chance.sample(range(6), chance.randint(0, 5)))
        if chance.random() < 0.02:
            self.run, self.sequence = f"run-{chance.randint(0, 9)}", 0
        self.sequence += chance.choice((1, 1, 1, 2))
        at = now + self.skew
        gpus = None if chance.random() < 0.03 else [self._gpu(index, at) for index in self.gpus]
        metrics, unknown = self._metrics(HOST_METRICS)
        report = Report(
            gpus=gpus,
            gpus_reason="driver not loaded" if gpus is None and chance.random() < 0.5 else None,
            metrics=metrics,
            unknown=unknown,
            driver_version=chance.choice((None, "570.1", "570.1", "580.2")),
            os=chance.choice((None, "Debian 13")),
            labels=chance.choice(({}, {"rack": "a"})),
            problems=chance.choice(([], [], ["disk is slow"])),
        )
        return Envelope(
            version=1,
            host=self.name,
            boot_id="boot",
            run_id=self.run,
            sequence=self.sequence,
            collected_at=at,
            interval_seconds=chance.choice((5.0, 5.0, 10.0)),
            report=report,
        )

    def _gpu(self, index: int, at: float) -> GpuReading:
        chance = self.chance
        metrics, unknown = self._metrics(GPU_METRICS)
        missing = "the GPU is lost" if chance.random() < 0.05 else None
        events = [
            GpuEvent(at=at - chance.choice((10.0, 90_000.0)), code=chance.choice((13, 31, 48, 63, 79)), process=100)
            for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 2)))
        ]
        processes = self._processes(index, at)
        return GpuReading(
            uuid=f"GPU-{self.name}-{index}",
            index=index,
            name=chance.choice(("H200", "H200", "H200", "A100")) if chance.random() < 0.02 else "H200",
            missing=missing,
            metrics={} if missing else metrics,
            unknown={} if missing else unknown,
            processes=processes,
            processes_reason=None if processes is not None else chance.choice((None, "not permitted")),
            idle_seconds=chance.choice((None, 0.0, 700.0)),
            events=events,
        )

    def _processes(self, index: int, at: float) -> list[Process] | None:
        chance = self.chance
        if chance.random() < 0.05:
            return None
        if chance.random() < 0.3:
            self.busy[index] = [
                Process(
                    pid=100 + number,
                    user=chance.choice((None, "ann", "bob")),
                    command=chance.choice((None, 'python "a".py,"availability":', "train")),
                    memory_used_bytes=chance.choice((None, 2**30, 5 * 2**30)),
                    started_at=chance.choice((None, at - 5.0, at - 3_000.0, at + 50.0)),
                    utilization_percent=chance.choice((None, 0.0, 50.0)),
                    display=chance.random() < 0.2,
                )
                for number in range(chance.choice((0, 0, 1, 2)))
            ]
        return self.busy.get(index, [])

    def _metrics(self, catalog: dict[str, Metric]) -> tuple[dict[str, float], dict[str, str]]:
        chance = self.chance
        metrics: dict[str, float] = {}
        unknown: dict[str, str] = {}
        for metric in catalog.values():
            draw = chance.random()
            if draw < 0.06:
                unknown[metric.name] = chance.choice(REASONS)
            elif draw < 0.08:
                metrics[metric.name] = chance.choice((metric.low - 1, metric.high * 2 + 1, float("nan"), float("inf")))
            elif draw < 0.12:
                # Another monitor's exporter rounds nothing.
                metrics[metric.name] = self._value(metric)
            elif draw < 0.95:
                metrics[metric.name] = metric.round(self._value(metric))
        return metrics, unknown

    def _value(self, metric: Metric) -> float:
        chance = self.chance
        if metric.unit in {"flag", "count"}:
            return float(chance.random() < 0.05)
        if metric.name == "memory_used_bytes":
            return chance.choice((0.0, 2.0**20, 600 * 2.0**20, 2.0**33))
        if metric.name == "utilization_percent":
            return chance.choice((0.0, 0.0, 4.9, 5.0, 90.0))
        if metric.name == "temperature_celsius":
            return chance.choice((40.0, 60.0, 86.5, 87.0, 94.0, 99.0))
        return metric.low + chance.random() * (min(metric.high, 1e6) - metric.low)


def _plain(view: Any) -> dict[str, Any]:
    """Both views as JSON has them, with the fields in one order."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(view, order="sorted"))
    return plain


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{place}]")
    elif one != other:
        yield f"{path}: {one!r} is not {other!r}"


@pytest.mark.parametrize("seed", range(6))
def test_the_table_says_of_every_host_what_one_value_at_a_time_says(seed: int) -> None:
    chance = random.Random(seed)
    settings, names = FleetSettings(), Names()
    marks: dict[str, Mark] = {}
    table = FleetTable(settings, names, marks)
    machines = [Machine(f"gpu{number:02}", chance) for number in range(6)]
    new = {one.name: HostState(one.name, "push", table) for one in machines}
    old = {one.name: ScalarHost(one.name, "push", settings, names, marks) for one in machines}
    now = START
    rejected = 0
    for _ in range(250):
        now += chance.choice((0.0, 1.0, 5.0, 5.0, 30.0, 700.0, -20.0 if chance.random() < 0.1 else 2.0))
        machine = chance.choice(machines)
        one, other = new[machine.name], old[machine.name]
        draw = chance.random()
        if draw < 0.75:
            envelope = machine.report(now)
            assert one.accepts(envelope) == other.accepts(envelope)
            if not one.accepts(envelope):
                continue
            observed_at = now - chance.choice((0.0, 0.0, 0.0, 8.0, 400.0))
            rejected += other.take(envelope, observed_at, machine.skew, now)
            one.take(envelope, observed_at, machine.skew, now)
            one.hear(now)
            other.hear(now)
        elif draw < 0.85:
            uuid = chance.choice([*old[machine.name].gpus, ""])
            mark = chance.choice(
                (
                    None,
                    Mark(GpuReservation(1, "ann", now + 60, "", "booking"), since=now - 5),
                    Mark(None, is_unknown=True),
                )
            )
            marks.pop(uuid, None)
            if mark is not None:
                marks[uuid] = mark
            for host in (one, other):
                host.remark(list(other.gpus) if uuid == "" else [uuid], now)
        elif draw < 0.95:
            for name, host in new.items():
                changed = host.age(now)
                assert changed == old[name].age(now), name
                assert not changed or host in table.find_aged(now, now) or host.status == old[name].status
        if chance.random() < 0.2:
            # As a delta of the stream takes what changed, so that texts of the JSON are kept and used.
            for host in (host for host in new.values() if host.row >= 0):
                host.take_changes()
            table.take_numbers()
        seen = chance.sample(list(new.values()), 2)
        sight = chance.choice((EVERYTHING, Sight("none"), Sight("own", frozenset({"ann"}))))
        for host, parts in zip(seen, encode_hosts(table, seen, sight), strict=True):
            assert b"".join(parts) == msgspec.json.encode(sight.host(host.view()))
        for name in chance.sample(sorted(new), 2):
            assert new[name].status == "never" or not list(
                _differences(_plain(new[name].view()), _plain(old[name].view))
            )
    table.settle()
    assert table.rejected == rejected
    assert sum(host.counts()["free"] for host in new.values()) == table.totals().free
