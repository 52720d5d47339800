"""The hub's clock against those of its agents, and what an admin is asked and may answer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.collectors.host import boot_id
from gpudeck.fleet import clock_monitor as clock_watch
from gpudeck.fleet.clock_monitor import FILE, ClockMonitor, write_certain
from gpudeck.fleet.hub import Hub
from gpudeck.model.event import Event

DAY = 86_400.0
START = 1_790_000_000.0


class Stage:
    """A hub that was last certain of START. `off` is by how much its clock is wrong."""

    def __init__(self, folder: Path, off: float = 0.0, away: float = 60.0) -> None:
        self.folder, self.off = folder, off
        self.true, self.ticks = FakeClock(START + away), FakeClock(0.0)
        write_certain(folder, START)
        self.events: list[Event] = []
        self.start()

    def start(self) -> None:
        self.watch = ClockMonitor(self.folder, self.now, self.ticks)
        self.watch.subscribe(self.events.append)
        self.hub = Hub(now=self.now, retention=self.watch.retention)
        self.sequence = 0

    def now(self) -> float:
        return self.true() + self.off

    def run(self, minutes: int, **agents: float) -> None:
        """Each agent reports every 30 seconds; the number is by how many seconds its clock is wrong."""
        for second in range(minutes * 60):
            if second % 30 == 0:
                self.sequence += 1
                for name, off in agents.items():
                    sent_at = self.true() + off
                    own = {"boot_id": boot_id()} if name == "here" else {}
                    envelope = make_envelope(name, collected_at=sent_at, sequence=self.sequence, **own)
                    self.hub.fleet.apply(envelope, via="push", now=self.now(), sent_at=sent_at)
            self.hub.fleet.age(self.now())
            self.watch.tick(self.hub.fleet)
            self.true.advance(1)
            self.ticks.advance(1)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Stage]:
    return lambda **given: Stage(tmp_path, **given)


def test_hub_that_was_off_for_long_is_believed_when_agents_agree(stage: Callable[..., Stage]) -> None:
    hub = stage(away=40 * DAY)
    hub.run(10, gpu01=0.2, gpu02=-1.0, gpu03=900.0)
    assert hub.watch.retention.is_confirmed
    assert hub.watch.retention.ahead < 90
    assert (hub.watch.problem, hub.kinds) == (None, [])


def test_start_with_the_clock_ahead_is_seen_by_what_agents_say(stage: Callable[..., Stage]) -> None:
    hub = stage(off=40 * DAY)
    hub.run(10, gpu01=0.0, gpu02=-1.0, gpu03=40 * DAY)
    assert hub.watch.retention.certain <= hub.true()
    assert "40 d 0 h ahead of the clocks of 2 of 3 agents" in (hub.watch.problem or "")
    assert any("ahead of the clocks" in problem for problem in hub.hub.fleet.problems)
    hub.off = 0.0
    hub.run(5, gpu01=0.0, gpu02=-1.0, gpu03=40 * DAY)
    assert hub.watch.problem is None
    assert hub.kinds == ["clock_doubted", "clock_confirmed"]


def test_agent_of_the_same_machine_confirms_nothing(stage: Callable[..., Stage]) -> None:
    hub = stage(off=40 * DAY)
    hub.run(10, here=40 * DAY)
    assert hub.watch.retention.certain <= hub.true()
    assert "gpudeck history accept-clock" in (hub.watch.problem or "")


def test_what_agents_said_before_a_step_confirms_nothing_after_it(stage: Callable[..., Stage]) -> None:
    hub = stage()
    hub.run(5, gpu01=0.0)
    hub.off = 40 * DAY
    hub.run(3)
    assert hub.watch.retention.certain <= hub.true()


def test_without_agents_an_admin_is_asked_and_answers(stage: Callable[..., Stage]) -> None:
    hub = stage(away=40 * DAY)
    hub.run(4)
    assert hub.watch.problem is None  # agents may still come
    hub.run(3)
    assert "40 d 0 h after the last time that is certain" in (hub.watch.problem or "")
    write_certain(hub.folder, hub.now())
    hub.run(2)
    assert hub.watch.problem is None
    assert hub.watch.retention.ahead < 1
    assert hub.kinds == ["clock_doubted", "clock_confirmed"]


def test_doubt_outlives_a_restart(stage: Callable[..., Stage]) -> None:
    hub = stage(off=40 * DAY)
    for _ in range(2):
        hub.run(7)
        hub.watch.close()
        hub.start()
    assert hub.watch.retention.certain <= hub.true()
    assert json.loads((hub.folder / FILE).read_bytes())["certain"] <= hub.true()


def test_without_a_note_the_files_say_what_is_certain(tmp_path: Path) -> None:
    (tmp_path / "history.db").touch()
    written = (tmp_path / "history.db").stat().st_mtime
    watch = ClockMonitor(tmp_path, lambda: written + 40 * DAY)
    assert watch.retention.certain == pytest.approx(written, abs=1)


def test_kernel_that_is_synchronized_confirms_its_own_time_only(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = stage(away=40 * DAY)
    monkeypatch.setattr(clock_watch, "is_synchronized", lambda now: now == hub.true())
    hub.run(10)
    assert (hub.watch.problem, hub.watch.retention.is_confirmed) == (None, True)
    hub.off = 40 * DAY
    hub.run(10)
    assert hub.watch.retention.certain <= hub.true()
    assert not clock_watch.is_synchronized(0.0)
