"""A hub's real fleet under the rules: reports go in, alerts, messages and events come out. Its clock is the test's."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from fakes.clock import FakeClock
from fakes.reports import HOST, make_envelope, make_gpu
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.rule import FleetContext, RuleFinding
from gpudeck.alerts.rules import RULES_BY_NAME
from gpudeck.alerts.selection import GpuTrends, HostSelector
from gpudeck.alerts.settings import DEFAULTS, AlertSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.event import Event
from gpudeck.model.report import GpuReading, Report

NOW = 1_790_000_000.0


def make_report(*gpus: GpuReading, metrics: dict[str, Any] | None = None, **others: Any) -> Report:
    merged = {name: value for name, value in (HOST | (metrics or {})).items() if value is not None}
    return Report(**({"gpus": list(gpus) or [make_gpu()], "metrics": merged} | others))


class Watched:
    """Hosts report every ten seconds what they were last told to, unless they are silent. `looks_at_all`: nothing is
    preselected for the rules."""

    def __init__(self, settings: AlertSettings | None = None, *, now: float = NOW) -> None:
        self.clock = FakeClock(now)
        self.hub = Hub(now=self.clock)
        self.selector = HostSelector(self.hub.fleet)
        self.trends = GpuTrends()
        self.settings = settings or AlertSettings()
        self.events: list[Event] = []
        self.sent: list[Message] = []
        self.context: dict[str, Any] = {"version": "1.0.0"}
        self.looks_at_all = False
        self.engine = self.make_engine()
        self.reports: dict[str, tuple[Report, dict[str, Any]]] = {}
        self._sequence = 0

    def make_engine(self) -> AlertEngine:
        return AlertEngine(self.settings, self.events.append)

    def report(self, host: str, *gpus: GpuReading, **others: Any) -> None:
        """From here on the host reports this."""
        envelope = {name: others.pop(name) for name in ("agent_version", "via", "skew") if name in others}
        self.reports[host] = (others.pop("report", None) or make_report(*gpus, **others), envelope)

    def hush(self, *hosts: str) -> None:
        for host in hosts:
            del self.reports[host]

    def run(self, seconds: float, step: float = 10.0) -> None:
        """Let time pass: everybody reports, rules look, messages go out."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(step)
            self.step()

    def step(self) -> None:
        self._sequence += 1
        now = self.clock.now
        for host, (report, others) in self.reports.items():
            version, sent_at = others.get("agent_version", "1.0.0"), now + others.get("skew", 0.0)
            envelope = make_envelope(
                host, self._sequence, report=report, agent_version=version, collected_at=sent_at, interval_seconds=10.0
            )
            self.hub.fleet.apply(envelope, via=others.get("via", "push"), now=now, sent_at=sent_at)
        self.hub.fleet.age(now)
        self.evaluate()

    def evaluate(self) -> None:
        now, totals = self.clock.now, self.hub.fleet.totals()
        facts = {"power_limits": self.selector.power_limits(), "free": totals.free}
        self.trends.look(self.hub.fleet.table, now)
        facts |= {"usual_clocks": self.trends.usual_clocks, "growth": self.trends.growth}
        facts["why_uncounted"] = self.trends.why_uncounted
        facts |= {"known": totals.gpus - totals.unknown}
        self.engine.begin(FleetContext(now=now, **(facts | self.context)))
        fleet = self.hub.fleet
        chosen: Mapping[str, set[str] | None]
        if self.looks_at_all:
            chosen = dict.fromkeys(sorted(fleet.hosts, key=lambda host_id: fleet.hosts[host_id].row))
        else:
            chosen = self.selector.choose(self.engine.preselect(fleet.table), self.engine.active_hosts(), now)
        for host_id, uuids in chosen.items():
            self.engine.evaluate(self.selector.snapshot(fleet.hosts[host_id], now, uuids))
        self.engine.finish(fleet.hosts)
        self.post()

    def post(self) -> None:
        self.engine.changed.clear()
        for one in self.engine.take_outgoing():
            self.sent.append(one.message)
            self.engine.note_sent(one, self.clock.now)

    def firing(self) -> list[tuple[str, str]]:
        """Rules and titles."""
        return [(record.rule, record.title) for record in self.engine.firing()]

    def rules(self) -> list[str]:
        return sorted(record.rule for record in self.engine.firing())

    def record(self, rule: str) -> AlertRecord:
        (record,) = [record for record in self.engine.firing() if record.rule == rule]
        return record

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def titles(self) -> list[str]:
        return [message.title for message in self.sent]

    def find(self, rule: str, host: str = "gpu01", **limits: Any) -> list[RuleFinding]:
        """What one rule says of one host now."""
        seen = self.selector.snapshot(
            next(one for one in self.hub.fleet.hosts.values() if one.name == host), self.clock.now
        )
        own = replace(DEFAULTS[rule], **limits)
        context = FleetContext(now=self.clock.now, **({"power_limits": self.selector.power_limits()} | self.context))
        return list(RULES_BY_NAME[rule].find(seen, seen.gpus, own, context))
