"""The column operations of rules against the rules themselves: random fleets, no finding is missed, and nothing that
anybody is told depends on which hosts were preselected."""

import random
from typing import Any

from msgspec.structs import asdict, replace

from alerts.watched import NOW, Watched
from fakes.reports import GIB, make_envelope, make_gpu, make_process
from fakes.seeds import seeds
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.rule import FleetContext
from gpudeck.alerts.rules import RULES
from gpudeck.alerts.settings import DEFAULTS, AlertSettings, Override, RuleChange, Thresholds
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import Disk, GpuEvent, GpuReading, Report
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.model.target import Target
from gpudeck.wire import Envelope

NAMES = tuple(f"gpu-{number}" for number in range(5))
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100", "Tesla V100")
STEPS = (1.0, 10.0, 10.0, 10.0, 25.0, 40.0, 130.0, 900.0, 4000.0)
CHANGES = {
    "gpu_hot": [RuleChange(above=75.0), RuleChange(clear=60.0), RuleChange(above=60.5, clear=-39.0)],
    "power_capped": [RuleChange(above=4.0), RuleChange(above=30.0, clear=1.0)],
    "ecc": [RuleChange(above=3.0)],
    "xid": [RuleChange(clear_after=20_000.0), RuleChange(clear_after=10.0)],
    "disk_full": [RuleChange(above=50.0), RuleChange(clear=30.0)],
    "ram_full": [RuleChange(above=50.0)],
    "clock_skew": [RuleChange(above=2.0)],
    "host_late": [RuleChange(above=1.0, clear=1.0), RuleChange(above=2.0)],
}


def shuffle(seed: int) -> random.Random:
    return random.Random(seed)


class Chance:
    """What happens to a fleet, by a seed: each call of `steps` tells what to do next."""

    def __init__(self, seed: int) -> None:
        self.draw = shuffle(seed)
        self.now = NOW
        self.silent: set[str] = set()
        self.ids = {name: self.draw.choice(("", f"machine-{name}")) for name in NAMES}
        self.boards = {name: [f"GPU-{name}-{at}" for at in range(self.draw.randint(0, 3))] for name in NAMES}
        self.last: dict[str, GpuReading] = {}
        self.sequence = 0
        self.health = self.draw.choice((0.02, 0.2, 0.6))

    def is_so(self, chance: float) -> bool:
        return self.draw.random() < chance

    def settings(self) -> AlertSettings:
        draw = self.draw
        quick = {rule.name: RuleChange(wait=draw.choice((0.0, 0.0, 15.0))) for rule in RULES}
        if self.is_so(0.5):
            quick["xid"] = RuleChange(wait=0.0, clear_after=31.0)
            quick["power_capped"] = RuleChange(wait=0.0, clear=5.1)
        if self.is_so(0.3):
            quick[draw.choice(RULES).name] = RuleChange(enabled=False)
        overrides = []
        for _ in range(draw.choice((0, 0, 1, 4))):
            name = draw.choice(list(CHANGES))
            where = draw.choice(({"hosts": "*-1"}, {"models": "*V100*"}, {"models": "*"}, {"labels": {"rack": "a"}}))
            change = RuleChange(enabled=self.is_so(0.5)) if self.is_so(0.2) else draw.choice(CHANGES[name])
            if self.is_so(0.3):
                change = RuleChange(wait=draw.choice((0.0, 5.0, 25.0)))
            overrides.append(Override(rules={name: change}, **where))  # type: ignore[dict-item, arg-type]
        return AlertSettings(rules=quick, overrides=overrides, group_wait=draw.choice((0.0, 10.0)))  # type: ignore[arg-type]

    def reports(self) -> list[tuple[Envelope, float, str]]:
        """Of those that are not silent; with the clock of the sender, and the way."""
        made = []
        for name in NAMES:
            if self.is_so(0.05):
                self.silent ^= {name}
            if name in self.silent:
                continue
            if self.is_so(0.03):
                self.ids[name] = f"machine-{name}"
            self._change_boards(name)
            skew = self.draw.choice((0.0, 0.0, 0.0, -2.3, 30.0)) if self.is_so(self.health) else 0.0
            self.sequence += 1
            envelope = make_envelope(
                name,
                self.sequence,
                report=self._report(name, self.now + skew),
                host_id=self.ids[name],
                agent_version=self.draw.choice(("1.0.0", "1.0", "0.9.1", "1.0.0.dev1", "")),
                collected_at=self.now + skew,
                interval_seconds=10.0,
            )
            made.append((envelope, self.now + skew, self.draw.choice(("push", "push", "push", "scrape"))))
        return made

    def _change_boards(self, name: str) -> None:
        """One is lost, found again, or moved to another host."""
        boards = self.boards[name]
        if boards and self.is_so(0.03):
            boards.remove(self.draw.choice(boards))
        if self.is_so(0.03):
            uuid = f"GPU-{self.draw.choice(NAMES)}-{self.draw.randint(0, 2)}"
            if uuid not in boards:
                boards.append(uuid)

    def _report(self, name: str, at: float) -> Report:
        draw, used = self.draw, self.draw.choice((300 * GIB, 920 * GIB, 960 * GIB, 999 * GIB, None))
        metrics = {
            "memory_used_bytes": used if self.is_so(self.health) else GIB,
            "memory_total_bytes": draw.choice((1000 * GIB, 1000 * GIB, 0)),
            "disk_used_bytes": draw.choice((500.5, 940.0, 990.0)) if self.is_so(self.health) else 100,
            "disk_total_bytes": draw.choice((1000, 1000, 0)),
        }
        is_unread = self.is_so(0.1 * self.health)
        return Report(
            gpus=None if is_unread else [self._gpu(at, index, uuid) for index, uuid in enumerate(self.boards[name])],
            gpus_reason=draw.choice((None, "nvml: driver not loaded")) if is_unread else None,
            metrics={key: value for key, value in metrics.items() if value is not None},
            problems=draw.choice(([], ["nvml: driver not loaded"])),
            disks=[Disk("/data", draw.choice((1, 94, 99)), draw.choice((100, 0)))] if self.is_so(self.health) else [],
            labels=draw.choice(({}, {"rack": "a"})) if self.is_so(0.1) else {},
        )

    def _gpu(self, at: float, index: int, uuid: str) -> GpuReading:
        draw, others, metrics = self.draw, dict[str, Any](), dict[str, Any]()
        if uuid in self.last and self.is_so(0.5):
            return replace(self.last[uuid], index=index)
        if self.is_so(self.health):
            metrics = {
                "temperature_celsius": draw.choice((None, 81.9, 82, 87, 60.4, -39.5, -39, 96)),
                "throttled_thermal": draw.choice((None, 0, 0.5, 1)),
                "throttled_hardware": draw.choice((None, 0, 1)),
                "ecc_uncorrected_count": draw.choice((None, 0, 0, 1, 2.9, 3)),
                "remapped_rows_pending": draw.choice((None, 0, 0, 1)),
                "power_limit_watts": draw.choice((None, 400, 400, 379.9, 250, 0)),
                "memory_used_bytes": draw.choice((None, 0, 20 * GIB)),
                "utilization_percent": draw.choice((None, 0, 50)),
            }
            others["processes"] = draw.choice((None, [], [make_process()], [make_process(display=True)]))
            others["idle_seconds"] = draw.choice((0.0, 8000.0))
            others["missing"] = draw.choice((None, None, None, "fell off the bus"))
            ages = (0.0, 30.0, 3000.0, 80_000.0, 90_000.0)
            codes = draw.sample((79, 31, 63), draw.choice((0, 0, 1, 2)))
            others["events"] = [GpuEvent(at - draw.choice(ages), code) for code in codes]
        name = draw.choice(MODELS) if index else MODELS[0]
        self.last[uuid] = make_gpu(index, uuid=uuid, metrics=metrics, name=name, **others)
        return self.last[uuid]

    def marks(self) -> dict[str, ReservationMark]:
        reserved = GpuReservation(1, "ada", NOW + 1e6, "", "reservation")
        choices = (
            ReservationMark(reserved),
            ReservationMark(reserved, "bob is on it"),
            ReservationMark(None, "ada stayed"),
            ReservationMark(None, is_unknown=True),
        )
        uuids = [uuid for boards in self.boards.values() for uuid in boards]
        return {uuid: self.draw.choice(choices) for uuid in self.draw.sample(uuids, min(2, len(uuids)))}


class Fleets:
    """The same hosts under rules that look at all of them, and under rules that look at those that were preselected."""

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        settings = self.chance.settings()
        self.both = (Watched(settings), Watched(settings))
        self.both[0].looks_at_all = True
        if self.chance.is_so(0.5):
            # While the usual limits stay, alerts that go on are left alone.
            for watched in self.both:
                watched.context["power_limits"] = dict.fromkeys(MODELS, 400.0)

    def step(self) -> None:
        """Something happens, all report, and the rules look."""
        chance, draw = self.chance, self.chance.draw
        step = draw.choice(STEPS)
        chance.now += step if not chance.is_so(0.01) else -500.0
        removed, settings, marks, targets = None, None, None, None
        if chance.is_so(0.04):
            removed = draw.choice(NAMES)
        if chance.is_so(0.05):
            settings = chance.settings()
        if chance.is_so(0.1):
            marks = chance.marks()
        if chance.is_so(0.05):
            targets = [Target(name=name, via="push") for name in draw.sample((*NAMES, "gpu-9"), draw.randint(0, 3))]
        reports = [] if chance.is_so(0.3) else chance.reports()
        forgets, restarts = chance.is_so(0.05), chance.is_so(0.02)
        for watched in self.both:
            watched.clock.now = chance.now
            self._change(watched, removed, settings, marks, targets)
            for envelope, sent_at, via in reports:
                try:
                    watched.hub.fleet.apply(envelope, via=via, now=chance.now, sent_at=sent_at)
                except ReportRefused:
                    continue
            watched.hub.fleet.age(chance.now)
            if forgets:
                watched.selector.forget()
            if restarts:
                records = watched.engine.firing()
                watched.engine = watched.make_engine()
                watched.engine.load(records, chance.now)
            watched.evaluate()

    def _change(
        self,
        watched: Watched,
        removed: str | None,
        settings: AlertSettings | None,
        marks: dict[str, ReservationMark] | None,
        targets: list[Target] | None,
    ) -> None:
        fleet = watched.hub.fleet
        if removed is not None and (host := fleet.find(removed)) is not None:
            fleet.remove(host.id)
        if settings is not None:
            watched.settings = settings
            watched.engine.change(settings)
        if marks is not None:
            fleet.mark(marks, self.chance.now)
        if targets is not None:
            fleet.expect(targets)


def check_superset(watched: Watched) -> int:
    """No rule finds anything where it has not preselected: how much was found."""
    fleet, now, count = watched.hub.fleet, watched.clock.now, 0
    thresholds = Thresholds(watched.settings)
    context = FleetContext(now=now, **({"power_limits": watched.selector.power_limits()} | watched.context))
    for rule in RULES:
        if rule.preselect is None:
            assert rule.scope == "hub"
            continue
        selected = rule.preselect(fleet.table, thresholds.loosest(rule.name), context)
        for host in fleet.hosts.values():
            if host.status != "up" and not rule.sees_silent:
                continue
            seen = watched.selector.snapshot(host, now)
            for model in {gpu.name for gpu in seen.gpus} if rule.scope == "gpu" else {""}:
                gpus = [gpu for gpu in seen.gpus if gpu.name == model]
                limits = thresholds.of(host.name, seen.labels, model)[rule.name]
                for found in rule.find(seen, gpus, limits, context):
                    gone = {gpu.uuid for gpu in seen.gone}
                    row = host.row if found.gpu is None or found.gpu in gone else host.gpus[found.gpu].row
                    assert found.gpu in gone or selected[row], (rule.name, found)
                    count += 1
    return count


@seeds(4, 8)
def test_every_finding_is_on_a_row_that_its_rule_preselects(seed: int) -> None:
    fleets = Fleets(seed)
    count = 0
    for _ in range(25):
        fleets.step()
        count += check_superset(fleets.both[0])
    assert count > 20


@seeds(6, 24)
def test_preselection_changes_nothing_that_is_told(seed: int) -> None:
    fleets = Fleets(seed)
    everywhere, preselected = fleets.both
    for _ in range(60):
        fleets.step()
        records = [[asdict(record) for record in (*one.engine.firing(), *one.engine.pending())] for one in fleets.both]
        assert records[0] == records[1]
        assert everywhere.events == preselected.events
        assert everywhere.sent == preselected.sent
    assert preselected.events


def test_gpu_that_was_gone_before_its_rule_was_turned_on_is_found() -> None:
    watched = Watched(AlertSettings(rules={"gpu_lost": RuleChange(enabled=False)}))
    watched.report("gpu01", make_gpu(0), make_gpu(1))
    watched.step()
    watched.report("gpu01", make_gpu(0))
    watched.run(60)
    watched.engine.change(AlertSettings())
    watched.run(120)
    assert watched.firing() == [("gpu_lost", "GPU 1 of gpu01 is gone")]


def test_gpu_is_missed_of_a_healthy_host_that_told_its_machine_id_later() -> None:
    watched = Watched()
    fleet = watched.hub.fleet
    for sequence, (host_id, gpus) in enumerate([("", 2), ("machine", 2), ("machine", 1)]):
        report = Report(gpus=[make_gpu(index) for index in range(gpus)])
        now = watched.clock.now
        envelope = make_envelope("gpu01", sequence, report=report, host_id=host_id, collected_at=now)
        fleet.apply(envelope, via="push", now=now, sent_at=now)
        watched.evaluate()
        watched.clock.advance(2)
    assert [record.title for record in watched.engine.pending()] == ["GPU 1 of gpu01 is gone"]


def load_late(watched: Watched, host_id: str, rule: str) -> None:
    """An alert of before, which the database tells of only now."""
    record = AlertRecord(
        id="before", rule=rule, severity="critical", state="firing", title="So", action="", host=None, host_id=host_id,
        gpu="", part="", label=None, model=None, since=NOW, fired_at=NOW, told_at=NOW, message="key",
    )  # fmt: skip
    watched.engine.load([record], watched.clock.now)
    watched.run(10)


def test_alert_of_a_host_that_left_the_fleet_before_the_alert_was_loaded_is_over() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.run(20)
    watched.hush("gpu01")
    watched.hub.fleet.remove("gpu01")
    load_late(watched, "gpu01", "host_down")
    assert watched.events[-1].title == "Resolved: So (the host is no longer in the fleet)"


def test_alert_under_the_name_of_a_host_that_reports_is_over_when_it_is_loaded() -> None:
    watched = Watched()
    envelope = make_envelope("gpu01", host_id="machine", collected_at=NOW, interval_seconds=600.0)
    watched.hub.fleet.apply(envelope, via="push", now=NOW, sent_at=NOW)
    watched.run(20)
    load_late(watched, "gpu01", "host_unreadable")
    assert watched.events[-1].title == "Resolved: So"


def test_loosest_limits_are_at_most_those_of_any_host() -> None:
    for seed in range(200):
        chance = Chance(seed)
        thresholds = Thresholds(chance.settings())
        for name in DEFAULTS:
            loosest = thresholds.loosest(name)
            for host, model in zip(NAMES, (*MODELS, "", "other"), strict=True):
                for labels in ({}, {"rack": "a"}):
                    own = thresholds.of(host, labels, model)[name]
                    assert (loosest.begin, loosest.end) <= (own.begin, own.end)
                    assert loosest.end <= own.end
                    assert loosest.clear_after >= own.clear_after
                    assert loosest.is_on >= own.is_on
