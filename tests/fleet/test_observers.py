"""What follows the fleet: the order in which observers are called, and that one that fails costs itself only."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from fakes.api_app import AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.app.hub import tick_forever
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.late_reports import BACKLOG_PAUSE
from gpudeck.fleet.observers import RECOVERED_SECONDS, EverySecond, FleetObserver
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.history.recorder import Recorder, Sample, as_host_samples
from gpudeck.model.event import Event
from gpudeck.wire import encode

HEADERS = {"Authorization": f"Bearer {AGENT_TOKEN}", "Content-Type": "application/msgpack", "Content-Encoding": "zstd"}


class Listing(FleetObserver):
    """Lists each moment, with the host of it."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self._calls = calls

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        for report in reports:
            self._note(f"report of {report.host.name}{' from a backlog' if report.is_backlog else ''}")

    def on_host_changed(self, host: HostState, now: float) -> None:
        self._note(f"news of {host.name}")

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        self._note(f"late report of {replay.name}")

    def on_late_change(self, replay: HostState, observed_at: float) -> None:
        self._note(f"late news of {replay.name}")

    def on_backlog_start(self, host: HostState) -> None:
        self._note("backlog starts")

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        self._note("backlog ends")

    def on_time(self, now: float) -> None:
        self._note("time")

    def on_second(self) -> None:
        self._note("second")

    @property
    def has_unsaved_backlog(self) -> bool:
        self._note("unsaved?")
        return False

    async def save_backlog(self) -> None:
        raise AssertionError

    def _note(self, what: str) -> None:
        self._calls.append(f"{self.name}: {what}")


class Failing(Listing):
    """Raises in each moment, while it `is_broken`."""

    is_broken = True

    def __init__(self) -> None:
        super().__init__("broken", [])

    def _note(self, what: str) -> None:
        if self.is_broken:
            raise ValueError(what)


class Stage:
    """A hub and its ASGI application. Each report comes from gpu01, `ago` seconds after it was made."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.observers = self.hub.fleet.observers
        self._door = make_app(self.hub)

    def send(self, sequence: int, ago: float = 0.0) -> int:
        now = self.clock()
        body = encode(make_envelope(sequence=sequence, collected_at=now - ago))
        headers = {"Gpudeck-Sent-At": str(now)} | HEADERS
        status = self._ask("POST", "/api/v1/reports", content=body, headers=headers).status_code
        self.hub.fleet.settle()
        return status

    def check(self) -> tuple[str, str]:
        """The status of the observers on /readyz, and what is said of them."""
        told = self._ask("GET", "/readyz").json()
        return next((one["status"], one["problem"]) for one in told["checks"] if one["name"] == "observers")

    def after(self, seconds: float) -> None:
        """Let every second pass."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.hub.stream.tick()
            self.observers.on_second()

    def _ask(self, method: str, path: str, **others: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._door)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, path, **others)

        return asyncio.run(ask())


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_observers_are_called_in_the_order_of_registration(stage: Stage) -> None:
    calls: list[str] = []
    for name in ("a", "b"):
        stage.observers.add(Listing(name, calls))
    stage.send(1)
    assert calls == [
        "a: unsaved?",
        "b: unsaved?",
        "a: report of gpu01",
        "b: report of gpu01",
        "a: news of gpu01",
        "b: news of gpu01",
    ]
    calls.clear()
    stage.after(1)
    assert calls == ["a: time", "b: time", "a: second", "b: second"]


def test_a_backlog_is_followed_from_its_start_to_its_end(stage: Stage) -> None:
    calls: list[str] = []
    stage.send(1)
    stage.clock.advance(60)
    stage.observers.add(Listing("a", calls))
    stage.send(4, ago=6)
    stage.send(2, ago=40)
    stage.after(BACKLOG_PAUSE + 1)
    told = [call.removeprefix("a: ") for call in calls]
    assert [call for call in told if call not in {"time", "second", "unsaved?", "news of gpu01"}] == [
        "backlog starts",
        "report of gpu01 from a backlog",
        "late report of gpu01",
        "late news of gpu01",
        "backlog starts",
        "backlog ends",
    ]


def test_observer_that_always_fails_keeps_nobody_from_theirs(stage: Stage) -> None:
    events: list[Event] = []
    samples: list[Sample] = []
    looked_for_alerts: list[float] = []
    recorder = Recorder(2.0, samples.extend)
    stage.observers.add(Failing())
    stage.observers.add(recorder)
    stage.observers.add(EventDetector(events.append, stage.clock() - 600, {}))
    stage.observers.add(EverySecond("alerts", lambda: looked_for_alerts.append(stage.clock())))
    assert [stage.send(1), stage.send(1)] == [202, 200]
    stage.after(3)
    recorder.hand_over()
    assert [event.kind for event in events] == ["host_seen"]
    assert [sample.name for sample in as_host_samples(samples)] == ["gpu01"]
    assert len(looked_for_alerts) == 3
    assert stage.hub.fleet.counters["observer_failures"] > 3


def test_failure_is_shown_until_it_is_over_and_logged_twice(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpudeck.fleet.observers")
    broken = Failing()
    stage.observers.add(broken)
    assert stage.check() == ("ok", "")
    for sequence in range(1, 4):
        assert stage.send(sequence) == 202
        stage.after(2)
    problem = "broken failed with saving a backlog (ValueError): its data may be incomplete. See the hub's log."
    assert stage.check() == ("degraded", problem)
    assert problem in stage.hub.fleet.problems
    broken.is_broken = False
    stage.after(RECOVERED_SECONDS + 1)
    assert stage.check() == ("ok", "")
    assert stage.hub.fleet.problems == []
    assert [(record.levelname, record.getMessage().partition(" (")[0]) for record in caplog.records] == [
        ("ERROR", "broken failed with saving a backlog"),
        ("INFO", f"broken works again: it has not failed for {RECOVERED_SECONDS} s"),
    ]


def test_backlog_that_cannot_be_saved_for_a_bug_is_answered(stage: Stage) -> None:
    def flush() -> bool:
        raise ValueError

    stage.observers.add(Recorder(2.0, lambda _: None, flush))
    assert stage.send(1, ago=60) == 202
    assert "history failed with saving a backlog" in stage.check()[1]


def test_problem_goes_with_its_observer(stage: Stage) -> None:
    broken = Failing()
    stage.observers.add(broken)
    stage.send(1)
    assert stage.hub.fleet.problems != []
    stage.observers.remove(broken)
    stage.observers.remove(broken)
    assert stage.hub.fleet.problems == []
    assert stage.send(2) == 202


@pytest.mark.parametrize(
    ("change", "now", "then"),
    [
        (lambda observers, a, b, c: observers.add(c), "ab", "abc"),
        (lambda observers, a, b, c: observers.remove(b), "ab", "a"),
        (lambda observers, a, b, c: observers.remove(a), "ab", "b"),
        (lambda observers, a, b, c: observers.replace(a, c), "ab", "cb"),
        (lambda observers, a, b, c: observers.replace(c, b), "ab", "ab"),
    ],
)
def test_change_while_observers_are_called_counts_from_the_next_moment(
    stage: Stage, change: Callable[..., None], now: str, then: str
) -> None:
    called: list[str] = []
    changes: list[Callable[..., None]] = [change]

    def call_a() -> None:
        called.append("a")
        if changes:
            changes.pop()(stage.observers, a, b, c)

    a = EverySecond("a", call_a)
    b, c = (EverySecond(name, lambda name=name: called.append(name)) for name in "bc")  # type: ignore[misc]
    for observer in (a, b, a):
        stage.observers.add(observer)
    for wanted in (now, then):
        called.clear()
        stage.observers.on_second()
        assert "".join(called) == wanted


def test_news_stay_until_an_observer_takes_them(stage: Stage) -> None:
    def report(sequence: int) -> None:
        stage.hub.fleet.apply(make_envelope(sequence=sequence), via="push", now=stage.clock())
        stage.hub.fleet.settle()

    calls: list[str] = []
    report(1)
    stage.observers.add(Listing("a", calls))
    report(2)
    report(3)
    assert calls.count("a: news of gpu01") == 1


def test_fleet_that_cannot_be_published_keeps_no_observer_from_its_second(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError

    async def work() -> None:
        called = asyncio.Event()
        stage.observers.add(EverySecond("alerts", called.set))
        ticking = asyncio.create_task(tick_forever(stage.observers, lambda: pytest.fail("nothing was published")))
        await asyncio.wait_for(called.wait(), 30)
        ticking.cancel()

    monkeypatch.setattr(stage.hub.stream, "publish_in_steps", fail)
    asyncio.run(work())
    (problem,) = stage.hub.fleet.problems
    assert problem.startswith("stream failed with publishing the fleet (ValueError)")
