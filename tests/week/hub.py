"""A hub that records through the week with two fleets: the table, and the old one of one value at a time.

Each has its own event detector, recorder, reservations and alerts, all of them the product's own. A difference between
both fails at once. What the table's followers say goes into a real history and into the lists that are held to
recorded answers.

A second of this hub takes a minute, and ten seconds where `BURSTS` says so: a week would take too long otherwise.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
from msgspec.structs import astuple, replace

from fakes.clock import FakeClock
from fakes.scalar.followed import BothHosts, OldFleet
from fakes.tables import open_file, put_tables
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.rule import FleetContext, GoneGpu, HostSnapshot
from gpudeck.alerts.selection import HostSelector
from gpudeck.alerts.settings import AlertSettings
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.host import HostState
from gpudeck.fleet.host_memory import HostMemory
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.recorder import Recorder, Sample, as_host_samples
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.model.target import Target
from gpudeck.model.text import Names
from gpudeck.model.view import Host
from gpudeck.reservations.service import Reconciler, ReconcileResult, observe, release_event
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.wire import Envelope
from week.hosts import A100, HOUR, START, Machine, Span, is_in, machines

EVERY = 10.0
STUCK = 90.0
BURSTS: list[Span] = [(2.98, 3.12), (5.98, 6.05), (8.98, 9.05), (13.98, 14.05), (16.0, 16.05), (28.1, 28.2)]
"""Hours in which agents report every ten seconds, and the hub works as often."""
DOWN: Span = (28.0, 28.1)
"""The hub is stopped, and started again with what it remembers."""
PAUSED: Span = (50.0, 50.1)
"""The machine of the hub sleeps."""
AHEAD: tuple[float, float, float] = (72.0, 74.0, 90.0)
"""The hub's clock is wrong by so many seconds, and is then set back."""
RENAMED = 36.0
ACKNOWLEDGED = 14.5
AT_ONCE = 50
_NAMES = Names(hosts={"a01": "Big one"}, models={A100: "A100"})
_TARGETS = [
    Target(name="ssh01", via="ssh", labels={"site": "north"}),
    Target(name="scr01", via="scrape"),
    Target(name="never01", via="push"),
]
_STATUS = {"host_seen", "host_up", "host_down"}


@contextlib.contextmanager
def both_fleets() -> Iterator[None]:
    """Hosts are both the new and the old from here on, and a second may take a minute."""
    with (
        patch("gpudeck.fleet.identity.HostState", BothHosts),
        patch("gpudeck.events.detector.STUCK_SECONDS", STUCK),
        patch("gpudeck.alerts.engine.STUCK_SECONDS", STUCK),
    ):
        yield


def reserve(number: int, user: str, uuid: str, host: str, start: float, end: float) -> Reservation:
    """By hours."""
    return Reservation(
        id=number,
        kind="reservation",
        user=user,
        gpus=[ReservedGpu(uuid, host, uuid[-1])],
        start=START + start * HOUR,
        end=START + end * HOUR,
        note="",
        version=1,
        created_at=START,
        created_by=user,
        changed_at=START,
        used_at=None,
        released_at=None,
        release_reason=None,
    )


def reservations() -> list[Reservation]:
    """Dave is on what carol has reserved, nobody comes for erin's, frank stays, and alice comes and leaves in time."""
    return [
        reserve(1, "carol", "GPU-a01-3", "a01", 9.0, 12.0),
        reserve(2, "erin", "GPU-a02-0", "a02", 12.0, 15.0),
        reserve(3, "frank", "GPU-a01-3", "a01", 18.0, 21.0),
        reserve(4, "alice", "GPU-a01-2", "a01", 13.0, 19.0),
        reserve(5, "bob", "GPU-far-0", "far01", 95.0, 110.0),
    ]


class Side:
    """What follows one of both fleets. `records` are all alerts that fired, by id."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.messages: list[Message] = []
        self.records: dict[str, AlertRecord] = {}
        self.samples: list[Sample] = []
        self.reservations = reservations()

    def start(self, fleet: FleetState, now: float) -> None:
        """`fleet` may be an OldFleet: the same is asked of it."""
        self.fleet = fleet
        known = {
            event.host_id: event.at if event.kind == "host_down" else None
            for event in self.events
            if event.kind in _STATUS and event.host_id
        }
        self.detector = EventDetector(self.events.append, now, known)
        self.recorder = Recorder(EVERY, self.samples.extend)
        self.reconciler = Reconciler(ReservationSettings(), lambda user: frozenset({user}))
        self.engine = AlertEngine(AlertSettings(), self.events.append, started_at=now)
        self.selector = HostSelector(fleet)
        self.engine.load([_copy(record) for record in self.records.values() if _is_kept(record, now)], now)
        for record in self.engine.firing():
            if record.rule == "gpu_lost":
                self.selector.expect(record.host_id, GoneGpu(record.gpu, record.label or "", record.model or ""), now)
        self.late: list[tuple[Reservation, float]] = []

    def reconcile(self, now: float) -> ReconcileResult:
        uuids = {gpu.uuid for one in self.reservations for gpu in one.gpus}
        found = self.reconciler.reconcile(self.reservations, observe(self.fleet, uuids), now)
        self.events += found.events
        for one in (*found.used, *found.unused):
            self.reservations[one.id - 1] = self._settle(one, now, is_used=one in found.used)
        self.late = found.late
        return found

    def _settle(self, one: Reservation, now: float, *, is_used: bool) -> Reservation:
        if is_used:
            return replace(one, used_at=now)
        self.events.append(release_event(one, now))
        return replace(one, released_at=now, end=now, release_reason="nobody came")

    def look_around(self, now: float, power_limits: dict[str, float], free: int, known: int) -> None:
        context = FleetContext(now=now, version="1.0.0", power_limits=power_limits, late_reservations=self.late)
        self.engine.begin(replace(context, free=free, known=known))

    def post(self, now: float) -> None:
        for one in self.engine.take_outgoing():
            self.messages.append(one.message)
            self.engine.note_sent(one, now)
        self.records |= self.engine.take_changed()


def _copy(record: AlertRecord) -> AlertRecord:
    """As the database gives it back."""
    return msgspec.json.decode(msgspec.json.encode(record), type=AlertRecord)


def _is_kept(record: AlertRecord, now: float) -> bool:
    return record.is_firing or (record.resolved_at or 0.0) > now - HOUR


class OldFollower(FleetObserver):
    """Hands on to the followers of the old fleet what the fleet tells of its hosts, and compares both hosts. What is
    news of an old host is its own to say."""

    name = "old fleet"

    def __init__(self, side: Side, clock: FakeClock) -> None:
        self._side, self._clock = side, clock
        self.compared = 0

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        for report in reports:
            host = cast("BothHosts", report.host)
            self.compare(host)
            self._side.recorder.record(host.old, report.observed_at, is_backlog=report.is_backlog)
            self.on_host_changed(host, self._clock.now)

    def on_host_changed(self, host: BothHosts, now: float) -> None:
        if host.old.has_changed:
            host.old.state.has_changed = False
            self._side.detector.on_host_changed(host.old, now)

    def on_late_report(self, replay: BothHosts, observed_at: float) -> None:
        self.compare(replay)
        self._side.recorder.on_late_report(replay.old, observed_at)
        if replay.old.has_changed:
            replay.old.state.has_changed = False
            self._side.detector.on_late_change(replay.old, observed_at)

    def on_backlog_start(self, host: BothHosts) -> None:
        self._side.detector.on_backlog_start(host.old)

    def on_backlog_end(self, host: BothHosts, replay: BothHosts | None) -> None:
        self._side.detector.on_backlog_end(host.old, None if replay is None else replay.old)

    def on_time(self, now: float) -> None:
        self._side.recorder.on_time(now)
        self._side.detector.on_time(now)

    def compare(self, host: HostState) -> None:
        assert isinstance(host, BothHosts)
        self.compared += 1
        new, old = host.view(), host.old.view()
        # The observers' own guard would only report it.
        if _plain(new) != _plain(old):
            raise Different("\n".join(differences(msgspec.to_builtins(new), msgspec.to_builtins(old), host.name)))


def _plain(host: Host) -> list[object]:
    """Its fields and those of its GPUs: the table's GPUs are of another type with the same fields."""
    return [*astuple(replace(host, gpus=[])), [astuple(gpu) for gpu in host.gpus]]


class Different(BaseException):
    """Both fleets say something else. No Exception: nothing may go on after it."""


def differences(new: Any, old: Any, path: str) -> Iterator[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted(new.keys() | old.keys()):
            yield from differences(new.get(key), old.get(key), f"{path}.{key}")
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for place, (one, other) in enumerate(zip(new, old, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif new != old:
        yield f"{path}: {new!r} in the table, {old!r} in the old fleet"


class WeekHub:
    """Run it inside `both_fleets()`. `at` is the true time, which the hub's `clock` is not always."""

    def __init__(self, folder: Path) -> None:
        put_tables(folder)
        self._folder = folder
        self._database = open_file(folder)
        self.at = START
        self.clock = FakeClock(START)
        self.new, self.old = Side(), Side()
        self.states: list[list[str]] = []
        self._machines = machines()
        self._due = {machine.name: START for machine in self._machines}
        self._outboxes: dict[str, list[Envelope]] = {machine.name: [] for machine in self._machines}
        self._is_renamed = self._is_acknowledged = self._is_down = False
        self._hour = 0
        self._limits: dict[str, float] = {}
        self._limits_at = 0.0
        self._start()

    @property
    def hour(self) -> float:
        return (self.at - START) / HOUR

    def run(self, until: float) -> None:
        """Until that hour."""
        while self.hour < until:
            self.at += EVERY if is_in(BURSTS, self.hour) else 60.0
            self.clock.now = self.at + (AHEAD[2] if is_in([AHEAD[:2]], self.hour) else 0.0)
            is_off = is_in([DOWN, PAUSED], self.hour)
            if is_in([DOWN], self.hour) != self._is_down:
                self._is_down = not self._is_down
                (self._stop if self._is_down else self._start)()
            for machine in self._machines:
                self._run_machine(machine, is_off=is_off)
            if not is_off:
                self._tick()
        self._flush()

    def close(self) -> None:
        self.store.close()
        asyncio.run(self._database.close())

    def _start(self) -> None:
        now = self.clock.now
        self.hub = Hub(FleetSettings(), self.clock, names=_NAMES if self.hour >= RENAMED else None)
        self.fleet = self.hub.fleet
        self.fleet.uptime = lambda: self.at - START
        self.memory = HostMemory(self.hub, self._database)
        self.store = EmbeddedStore(self._folder / "history.db", now=self.clock)
        self.follower = OldFollower(self.old, self.clock)
        self.old_fleet = OldFleet(self.fleet)
        asyncio.run(self.memory.open())
        self.new.start(self.fleet, now)
        self.old.start(self.old_fleet, now)  # type: ignore[arg-type]
        for side in (self.new, self.old):
            side.selector.remember(now)
        for observer in (self.new.recorder, self.new.detector, self.follower):
            self.fleet.observers.add(observer)
        self.fleet.expect(_TARGETS)

    def _stop(self) -> None:
        self._flush()
        asyncio.run(self.memory.close())
        self.store.close()

    def _run_machine(self, machine: Machine, *, is_off: bool) -> None:
        name, hour = machine.name, self.hour
        is_away = machine.is_away(hour)
        if self.at < self._due[name] or (is_away and not machine.keeps):
            return
        interval = (
            EVERY if is_in(BURSTS, hour) and machine.interval <= 120 and machine.via == "push" else machine.interval
        )
        self._due[name] = self.at + interval
        if machine.via != "push":
            if not is_off:
                self._fetch(machine, interval)
            return
        envelope, outbox = machine.report(self.at, interval), self._outboxes[name]
        if is_off or is_away:
            outbox.append(envelope)
            return
        for one in (envelope, *outbox[:AT_ONCE]):
            sent_at = self.at + machine.ahead_at(hour)
            self.fleet.apply(one, via="push", now=self.clock.now, sent_at=sent_at)
        del outbox[:AT_ONCE]

    def _fetch(self, machine: Machine, interval: float) -> None:
        if is_in(machine.fails, self.hour):
            self.fleet.note_failure(machine.name, "connection refused")
            return
        sent_at = self.at if machine.via == "ssh" else None
        envelope = machine.report(self.at, interval)
        self.fleet.apply(envelope, via=machine.via, now=self.clock.now, sent_at=sent_at, target=machine.name)

    def _tick(self) -> None:
        now = self.clock.now
        self.fleet.age(now)
        if not self._is_renamed and self.hour >= RENAMED:
            self._is_renamed = True
            self.fleet.rename(_NAMES)
        found, other = self.new.reconcile(now), self.old.reconcile(now)
        assert found == other, "reservations"
        self.fleet.mark(found.marks, now)
        self._look(now)
        if self.fleet.problems:
            raise AssertionError(self.fleet.problems)
        assert list(as_host_samples(self.new.samples)) == self.old.samples, "samples"
        self.store.take(list(self.new.samples))
        self.new.samples.clear()
        self.old.samples.clear()
        if int(self.hour) != self._hour:
            self._hour = int(self.hour)
            self._note_hour()

    def _look(self, now: float) -> None:
        totals = self.fleet.totals()
        new, old = self.new, self.old
        if not 0 <= now - self._limits_at < 600:
            self._limits_at = now
            self._limits = new.selector.power_limits()
            assert self._limits == self.old_fleet.power_limits()
        new.look_around(now, self._limits, totals.free, totals.gpus - totals.unknown)
        chosen = new.selector.choose(new.engine.preselect(self.fleet.table), new.engine.active_hosts(), now)
        for host_id, uuids in chosen.items():
            new.engine.evaluate(new.selector.snapshot(self.fleet.hosts[host_id], now, uuids))
        counts = [host.state.counts for host in self.old_fleet.hosts.values()]
        free, unknown = (sum(one[word] for one in counts) for word in ("free", "unknown"))
        old.look_around(now, self._limits, free, sum(sum(one.values()) for one in counts) - unknown)
        for host in sorted(self.fleet.hosts.values(), key=lambda host: host.row):
            old.engine.evaluate(self._see_old(host, now))
        for side in (new, old):
            if self.hour >= ACKNOWLEDGED and not self._is_acknowledged:
                for record in side.engine.firing():
                    side.engine.acknowledge_all([record], "admin", now)
            side.engine.finish(self.fleet.hosts)
            side.post(now)
        self._is_acknowledged = self.hour >= ACKNOWLEDGED

    def _see_old(self, host: HostState, now: float) -> HostSnapshot:
        return self.old.selector.snapshot(host.old, now)  # type: ignore[attr-defined]

    def _note_hour(self) -> None:
        """Once an hour everything is compared, and every three hours it is noted how the fleet is."""
        for host in self.fleet.hosts.values():
            self.follower.compare(host)
        self.check()
        self._flush()
        if self._hour % 3 == 0:
            self.states.append([f"hour {self._hour}", *(_state_of(host) for host in self.fleet.ordered())])

    def check(self) -> None:
        """Both sides have said the same so far."""
        new, old = self.new, self.old
        assert _sorted(new.events) == _sorted(old.events)
        assert new.records == old.records
        assert new.messages == old.messages
        assert new.reservations == old.reservations
        totals = self.fleet.totals()
        for word, number in totals.by_availability.items():
            assert number == sum(host.state.counts[word] for host in self.old_fleet.hosts.values())

    def _flush(self) -> None:
        assert self.store.flush()
        assert self.store.problem is None
        assert not self.store.dropped


def _sorted(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.id)


_LETTERS = {"free": "F", "busy": "B", "idle": "H", "allocated": "A", "reserved": "R", "drained": "D", "unknown": "U"}


def _state_of(host: HostState) -> str:
    """Status, then each GPU: a letter for its availability, its health unless it is well, and who is on it."""
    gpus = []
    for gpu in host.gpus.values():
        health = "" if gpu.health.level == "ok" else f"!{gpu.health.level}"
        gpus.append(f"{_LETTERS[gpu.availability]}{health}{'+'.join(gpu.users) and ' '}{'+'.join(gpu.users)}")
    return f"{host.name} {host.status}: {', '.join(gpus)}" if gpus else f"{host.name} {host.status}"
