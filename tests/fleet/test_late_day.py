"""A day of known use is accounted and told the same, whether its reports come in time or hours later."""

from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import GIB, make_envelope, make_gpu, make_process
from fakes.waiting import wait_until
from gpudeck.collectors.base import IdleWatch
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.state import FleetState
from gpudeck.history.base import HeatQuery, RunsQuery, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.recorder import Recorder
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuEvent, GpuReading, Process
from gpudeck.model.usage import Usage
from gpudeck.wire import Envelope

HOUR = 3600.0
START = 1_790_000_000 // 86_400 * 86_400.0
END = START + 24 * HOUR
INTERVAL = 30.0
AHEAD = 37.0
"""By so much the host's clock is wrong."""
AWAY, BACK = START + 8.2 * HOUR, START + 13.6 * HOUR
"""From when until when no report arrives."""
AT_ONCE = 50
"""Reports of a backlog that an agent sends while one more is made."""
RUNS = (
    # GPU, pid, user, from hour, until hour
    (0, 100, "alice", 1.0, 9.0),
    (0, 400, "dave", 10.0, 10.5),
    (0, 200, "bob", 13.0, 20.0),
    (1, 300, "carol", 0.5, 23.0),
)

Due = tuple[float, Envelope]
"""A report, and when it arrives."""


def utilization(gpu: int, hours: float) -> float:
    """Alice stops to work after four hours, bob has a break, carol works every other half an hour."""
    busy = ((1.0, 5.0), (10.0, 10.5), (13.0, 16.0), (17.0, 20.0))
    works = any(begin <= hours < end for begin, end in busy) if gpu == 0 else 0.5 <= hours < 23 and int(hours * 2) % 2
    return 80.0 if works else 0.0


def read_gpu(index: int, at: float, idle: IdleWatch) -> GpuReading:
    hours = (at - START) / HOUR
    if index == 0 and 12.0 <= hours < 12.3:
        return make_gpu(0, metrics=dict.fromkeys(make_gpu().metrics), missing="fell off the bus", idle_seconds=None)
    there = [run for run in RUNS if run[0] == index and run[3] <= hours < run[4]]
    percent = utilization(index, hours)
    return make_gpu(
        index,
        metrics={
            "utilization_percent": percent,
            "memory_used_bytes": 20 * GIB * len(there),
            "power_watts": 60.0 + 3 * percent,
            "temperature_celsius": 90 if index == 1 and 12.5 <= hours < 13.2 else 50,
        },
        processes=[read_process(pid, user, START + begin * HOUR) for _, pid, user, begin, _ in there],
        idle_seconds=idle.track(str(index), percent, at),
        events=[GpuEvent(at=START + 11.5 * HOUR + AHEAD, code=63)] if index == 0 and hours >= 11.5 else [],
    )


def read_process(pid: int, user: str, started_at: float) -> Process:
    return make_process(pid, user, started_at=started_at + AHEAD)


@cache
def day() -> list[Envelope]:
    """`collected_at` is on the host's clock."""
    idle = IdleWatch()
    moments = [START + INTERVAL * number for number in range(int(24 * HOUR / INTERVAL))]
    return [
        make_envelope(
            sequence=number,
            gpus=[read_gpu(index, at, idle) for index in (0, 1)],
            collected_at=at + AHEAD,
            interval_seconds=INTERVAL,
        )
        for number, at in enumerate(moments, 1)
    ]


def made_at(envelope: Envelope) -> float:
    return envelope.collected_at - AHEAD


def in_time(reports: list[Envelope]) -> Iterator[Due]:
    return ((made_at(report), report) for report in reports)


def outage() -> tuple[list[Envelope], list[Envelope], list[Envelope]]:
    """What was made before it, while it lasted, and afterwards."""
    return (
        [report for report in day() if made_at(report) < AWAY],
        [report for report in day() if AWAY <= made_at(report) < BACK],
        [report for report in day() if made_at(report) >= BACK],
    )


def newest_first() -> Iterator[Due]:
    """The newest report, and what waits behind it, between the others that are made meanwhile."""
    before, missed, after = outage()
    yield from in_time(before)
    for number, report in enumerate(after):
        yield made_at(report), report
        for place, late in enumerate(missed[number * AT_ONCE : (number + 1) * AT_ONCE]):
            # Each takes another time to arrive, and one comes twice: its answer was lost.
            arrives = made_at(report) + INTERVAL / (AT_ONCE + 1) * place
            yield arrives + 0.03 * (place % 3), late
            if place == 20:
                yield arrives + 0.09, late


def oldest_first() -> Iterator[Due]:
    """As agents did before: all that waits, in order, and what is made meanwhile behind it."""
    before, missed, after = outage()
    yield from in_time(before)
    waiting = [*missed, *after]
    at, number = BACK, 0
    while number < len(waiting):
        at = max(at + INTERVAL / AT_ONCE, made_at(waiting[number]))
        yield at, waiting[number]
        number += 1


class Station:
    """A hub's fleet with its history and events."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock(START)
        self.events: list[Event] = []
        self.statuses: set[str] = set()
        self._path = path
        self.start()

    def start(self) -> None:
        self.store = EmbeddedStore(self._path / "history.db", now=self.clock)
        self.fleet = FleetState(FleetSettings())
        self.recorder = Recorder(INTERVAL, self.store.take)
        self.fleet.observers.add(self.recorder)
        self.fleet.observers.add(EventDetector(self.events.append, self.clock.now, {"gpu01": None}))

    def deliver(self, arrivals: Iterator[Due]) -> None:
        """At every interval the fleet ages and hands its samples over."""
        for at, report in arrivals:
            self.pass_to(at)
            self.fleet.apply(report, via="push", now=at, sent_at=at + AHEAD)
            if at >= BACK:
                self.statuses.add(self.fleet.hosts["gpu01"].status)

    def pass_to(self, moment: float) -> None:
        while self.clock.now < moment:
            self.clock.now = min(moment, self.clock.now + INTERVAL)
            self.fleet.age(self.clock.now)
            self.recorder.hand_over()
            if self.clock.now == BACK:
                self.seal()

    def seal(self) -> None:
        """All hours that are over: the store waits until nothing has come for one for two seconds."""
        assert self.store.flush()
        self.clock.advance(3)

        def is_sealed() -> bool:
            over = (start for _, start in list(self.store.writer.open_hours) if start + HOUR + 95 < self.clock.now)
            return self.store.flush() and not any(over)

        wait_until(is_sealed, "the hours that are over are sealed")
        self.clock.advance(-3)

    def usage(self) -> Usage:
        return self.store.usage(UsageQuery(by="user", start=START, end=END, daily=True))


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    station = Station(tmp_path_factory.mktemp("in-time"))
    station.deliver(in_time(day()))
    yield from finish(station)


MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("oldest first", "hub restarted")]


@pytest.fixture(scope="module", params=["newest first", "agent and hub restarted", *MORE])
def late(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    station = Station(tmp_path_factory.mktemp("late"))
    if request.param == "oldest first":
        station.deliver(oldest_first())
    elif request.param == "newest first":
        station.deliver(newest_first())
    else:
        arrivals = newest_first()
        if "agent" in request.param:
            arrivals = (
                (at, msgspec.structs.replace(one, run_id="run-2") if made_at(one) >= START + 10 * HOUR else one)
                for at, one in arrivals
            )
        first = next((at, one) for at, one in iter_until_back(station, arrivals))
        station.store.close()
        station.clock.now = BACK
        station.start()
        station.deliver(chain([first], arrivals))
    yield from finish(station)


def iter_until_back(station: Station, arrivals: Iterator[Due]) -> Iterator[Due]:
    """Deliver what comes before the outage; yields the first report after it."""
    for at, report in arrivals:
        if at >= BACK:
            yield at, report
            return
        station.deliver(iter([(at, report)]))


def finish(station: Station) -> Iterator[Station]:
    station.pass_to(END + 600)
    station.seal()
    yield station
    station.store.close()


def test_day_has_every_kind_of_use(truth: Station) -> None:
    total = truth.usage().total
    assert total.gpu_hours == pytest.approx(38.0, abs=0.3)
    assert total.idle_hours == pytest.approx(3.83 + 0.83 + 22.5 / 30 * 10, abs=0.3)
    assert {"xid", "gpu_lost", "gpu_found", "health_raised", "health_cleared"} <= {one.kind for one in truth.events}


def test_host_is_never_down_once_its_reports_come_again(late: Station) -> None:
    assert late.statuses <= {"up", "late"}
    assert late.fleet.hosts["gpu01"].observed_at > END - 2 * INTERVAL


def test_late_day_is_accounted_as_if_it_had_come_in_time(late: Station, truth: Station) -> None:
    told, right = late.usage(), truth.usage()
    assert told.coverage == pytest.approx(right.coverage, rel=0.001)
    assert {row.user for row in told.rows} == {row.user for row in right.rows} == {"alice", "bob", "carol", "dave"}
    for one, other in zip([*told.rows, told.total], [*right.rows, right.total], strict=True):
        for name in ("gpu_hours", "active_hours", "idle_hours", "energy_kwh"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=0.001, abs=0.003), (one.user, name)


def test_late_runs_have_their_own_begin_and_end(late: Station, truth: Station) -> None:
    def runs(station: Station) -> list[tuple[int, str | None, float, float | None]]:
        found = station.store.runs(RunsQuery(start=START, end=END)).runs
        return sorted((run.pid, run.user, round(run.seen_at, -1), round(run.ended_at or 0.0, -1)) for run in found)

    assert runs(late) == runs(truth)
    for run, right in zip(
        sorted(late.store.runs(RunsQuery()).runs, key=lambda run: run.pid),
        sorted(truth.store.runs(RunsQuery()).runs, key=lambda run: run.pid),
        strict=True,
    ):
        assert run.gpu_seconds == pytest.approx(right.gpu_seconds, rel=0.001, abs=INTERVAL)
        assert run.idle_seconds == pytest.approx(right.idle_seconds, rel=0.001, abs=INTERVAL)


def test_late_hours_are_drawn_as_if_they_had_come_in_time(late: Station, truth: Station) -> None:
    for metric in ("utilization_percent", "power_watts"):
        ask = HeatQuery(metric, START, END)
        (told,), (right,) = late.store.heat(ask).rows, truth.store.heat(ask).rows
        assert told.values == pytest.approx(right.values, rel=0.002, abs=0.2)


def test_late_events_are_told_once_each_at_its_own_time(late: Station, truth: Station) -> None:
    def told(station: Station) -> list[tuple[str, str | None, float]]:
        about_gpus = [event for event in station.events if event.gpu is not None]
        return sorted((event.kind, event.gpu, round(event.at, -1)) for event in about_gpus)

    assert told(late) == told(truth)
    assert {event.kind for event in late.events if event.gpu is None} <= {"host_down", "host_up"}
