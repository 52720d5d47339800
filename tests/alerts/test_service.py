"""Alerts in a hub: they come out of its live fleet, reach everybody who watches, and are apart from a demo's."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from gpudeck.alerts import service
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.service import MAX_SHOWN, AlertService
from gpudeck.alerts.settings import AlertSettings, RuleChange
from gpudeck.database.schema import name_fleet
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model import cpu_budget as turns_of_the_loop
from gpudeck.model.event import Event
from gpudeck.model.history import judge_problem
from gpudeck.model.reservation import Reservation, ReservedGpu

AT_ONCE = AlertSettings(rules={"gpu_hot": RuleChange(wait=0.0)}, group_wait=0.0)
HOT = {"temperature_celsius": 91}


class Site:
    """A hub whose hosts report when told, and whose clock is the test's."""

    def __init__(self, folder: Path, *, demo: int | None = None, **others: Any) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.told: list[Event] = []
        self.sent: list[Message] = []
        events = EventLog(self.auth.database, EventSettings(), now=self.clock)
        events.subscribe(self.told.append)
        self.alarm = AlertService(
            self.hub,
            self.auth,
            AT_ONCE,
            events,
            send=self.sent.append,
            fleet=name_fleet(demo),
            now=self.clock,
            **others,
        )
        self.sequence = 0

    def report(self, *hosts: str, **metrics: Any) -> None:
        self.sequence += 1
        for host in hosts:
            envelope = make_envelope(host, self.sequence, gpus=[make_gpu(uuid=host, metrics=metrics)])
            self.hub.fleet.apply(envelope, via="push", now=self.clock.now)

    async def tick(self) -> None:
        self.clock.advance(1)
        self.hub.stream.tick()
        self.alarm.on_second()
        await self.alarm.settled()
        await self.alarm.alerts.flush()

    def shown(self) -> list[tuple[str, str]]:
        self.hub.stream.tick()
        fleet = msgspec.json.decode(self.hub.stream.document())
        return [(alert["rule"], alert["host"]) for alert in fleet["alerts"]]


def test_alert_reaches_the_document_the_stream_the_events_and_the_messages(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def live() -> None:
        await site.alarm.open()
        site.report("gpu01", **HOT)
        await site.tick()
        assert b'"alerts":[{"id":' in site.hub.stream.tick().plain
        assert b'"alerts"' not in site.hub.stream.tick().plain
        await site.tick()

    asyncio.run(live())
    assert site.shown() == [("gpu_hot", "gpu01")]
    assert [event.kind for event in site.told] == ["alert_fired"]
    assert [message.title for message in site.sent] == ["GPU 0 of gpu01 is at 91 °C"]


def test_after_a_look_at_many_hosts_the_next_one_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HOSTS_A_SECOND", 1)
    site = Site(tmp_path)

    async def live() -> None:
        await site.alarm.open()
        site.report("gpu01", "gpu02", "gpu03", **HOT)
        await site.tick()
        site.report("gpu04", **HOT)
        counts = []
        for _ in range(3):
            await site.tick()
            counts.append(len(site.shown()))
        assert counts == [3, 3, 4]

    asyncio.run(live())


def test_counts_are_of_all_alerts_though_not_all_are_shown(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hosts = [f"gpu{number:03}" for number in range(MAX_SHOWN + 30)]

    async def live() -> dict[str, int]:
        await site.alarm.open()
        site.report(*hosts, **HOT)
        await site.tick()
        firing = site.alarm.alerts.active(["firing"])
        await site.alarm.alerts.acknowledge_all([alert.id for alert in firing[:25]], "ada")
        await site.tick()
        delta = site.hub.stream.tick().plain.partition(b"data: ")[2]
        return dict(msgspec.json.decode(delta)["alert_counts"])

    told = asyncio.run(live())
    fleet = msgspec.json.decode(site.hub.stream.document())
    counts = {"total": len(hosts), "needs_attention": len(hosts) - 25, "critical": 0}
    assert told == fleet["alert_counts"] == counts
    assert len(fleet["alerts"]) == MAX_SHOWN


def test_others_have_their_turn_while_many_hosts_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_of_the_loop, "LOOP_SECONDS", 0.0)
    site = Site(tmp_path)
    turns: list[int] = []

    async def live() -> None:
        site.report(*(f"gpu{number:03}" for number in range(100)))
        site.clock.advance(3600)
        site.hub.fleet.age(site.clock.now)
        site.alarm.on_second()
        while not site.alarm.task.done():  # type: ignore[union-attr]
            turns.append(1)
            await asyncio.sleep(0)

    asyncio.run(live())
    assert len(turns) > 5


def test_hot_is_what_the_fleets_settings_call_hot(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hot = site.alarm.make_engine("").thresholds.of("gpu01", {})["gpu_hot"]
    assert (hot.above, hot.clear) == (87.0, 82.0)


def test_demo_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, demo=8)

    async def live() -> None:
        await site.alarm.open()
        site.report("gpu01", **HOT)
        await site.tick()
        await site.tick()

    asyncio.run(live())
    assert [message.title for message in site.sent] == ["Demo: GPU 0 of gpu01 is at 91 °C"]


def test_gpu_that_was_lost_before_a_restart_is_lost_until_it_is_there(tmp_path: Path) -> None:
    first, second = Site(tmp_path), Site(tmp_path)

    def report(site: Site, *indexes: int) -> None:
        site.sequence += 1
        gpus = [make_gpu(index) for index in indexes]
        site.hub.fleet.apply(make_envelope(sequence=site.sequence, gpus=gpus), via="push", now=site.clock.now)

    async def live() -> None:
        await first.alarm.open()
        report(first, 0, 1)
        await first.tick()
        for _ in range(70):
            report(first, 0)
            await first.tick()
        assert [rule for rule, _ in first.shown()] == ["gpu_lost"]
        second.clock.advance(80)
        await second.alarm.open()
        for _ in range(120):
            report(second, 0)
            await second.tick()
        assert [rule for rule, _ in second.shown()] == ["gpu_lost"]
        assert second.sent == []
        for _ in range(70):
            report(second, 0, 1)
            await second.tick()

    asyncio.run(live())
    assert second.shown() == []
    assert [message.title for message in second.sent] == ["Resolved: GPU 1 of gpu01 is gone"]


def test_reservation_that_nobody_uses_and_history_that_is_not_kept_come_from_their_rooms(tmp_path: Path) -> None:
    late = Reservation(
        id=7,
        kind="reservation",
        user="ada",
        gpus=[ReservedGpu("GPU-0", "gpu01", "0")],
        start=0.0,
        end=9e9,
        note="",
        version=1,
        created_at=0.0,
        created_by="ada",
        changed_at=0.0,
        used_at=None,
        released_at=None,
        release_reason=None,
    )
    site = Site(
        tmp_path,
        late_reservations=lambda: [(late, 1_790_000_600.0)],
        history=lambda: judge_problem("no space on /some/place"),
    )

    async def live() -> None:
        for _ in range(130):
            await site.tick()

    asyncio.run(live())
    assert sorted(rule for rule, _ in site.shown()) == ["history_failing", "reservation_no_show"]
    assert {message.rule: message.accounts for message in site.sent} == {
        "reservation_no_show": ("ada",),
        "history_failing": (),
    }
