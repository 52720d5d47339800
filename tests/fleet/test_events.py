"""Faults that a GPU's driver told of, from the report to what everybody sees."""

from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.views import View, show
from gpudeck.fleet.state import FleetState
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuEvent, GpuReading

DAY = 24 * 3600.0
NOW = FakeClock()()


class Stage:
    """One host whose GPU a test lets fail. `changes` is what the last report made different."""

    def __init__(self) -> None:
        self.fleet = FleetState(FleetSettings())
        self.sequence = 0

    def send(self, gpu: GpuReading, collected_at: float = NOW) -> View:
        self.sequence += 1
        envelope = make_envelope(gpus=[gpu], sequence=self.sequence, collected_at=collected_at)
        self.fleet.apply(envelope, via="push", now=collected_at)
        view: View = show(self.fleet.hosts["gpu01"])["gpus"][0]
        return view

    def take_changes(self) -> Any:
        return self.fleet.hosts["gpu01"].take_changes()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_an_event_is_shown_with_its_meaning_and_the_drivers_words(stage: Stage) -> None:
    gpu = stage.send(make_gpu(events=[GpuEvent(NOW - 60, 79, None, "GPU has fallen off the bus.")]))
    assert gpu["events"] == [
        {
            "at": NOW - 60,
            "code": 79,
            "kind": "critical",
            "text": "it fell off the bus",
            "message": "GPU has fallen off the bus.",
            "process": None,
            "user": None,
        }
    ]
    assert (gpu["health"], gpu["health_reason"]) == ("critical", "XID 79: it fell off the bus")


def test_a_gpu_without_events_has_an_empty_list(stage: Stage) -> None:
    assert stage.send(make_gpu())["events"] == []


def test_the_owner_of_a_process_that_died_of_it_is_remembered(stage: Stage) -> None:
    stage.send(make_busy_gpu())
    event = GpuEvent(NOW, 31, 4711, "MMU Fault")
    gpu = stage.send(make_gpu(events=[event]))
    assert [shown["user"] for shown in gpu["events"]] == ["alice"]
    assert gpu["health"] == "ok"
    stage.send(make_gpu(events=[event]))
    gpu = stage.send(make_gpu(events=[event, GpuEvent(NOW + 60, 13)]))
    assert [shown["user"] for shown in gpu["events"]] == ["alice", None]


def test_a_pid_that_is_given_again_does_not_become_the_culprit(stage: Stage) -> None:
    event = GpuEvent(NOW - 3600, 31, 4711)
    stage.send(make_gpu(events=[event]))
    gpu = stage.send(make_busy_gpu(user="bob", events=[event, GpuEvent(NOW, 13, 4711)]))
    assert [shown["user"] for shown in gpu["events"]] == [None, "bob"]


def test_a_process_that_was_started_later_is_not_the_culprit(stage: Stage) -> None:
    later = make_process(started_at=NOW - 60)
    gpu = stage.send(make_gpu(processes=[later], events=[GpuEvent(NOW - 3600, 31, 4711)]))
    assert gpu["events"][0]["user"] is None


def test_repeating_an_event_changes_nothing(stage: Stage) -> None:
    events = [GpuEvent(NOW, 79), GpuEvent(NOW, 31, 4711)]
    stage.send(make_gpu(events=events))
    stage.take_changes()
    stage.send(make_gpu(events=events), NOW + 600)
    assert "gpus" not in stage.take_changes()


def test_health_recovers_a_day_after_the_event(stage: Stage) -> None:
    reading = make_gpu(events=[GpuEvent(NOW, 79)])
    assert stage.send(reading, NOW + DAY - 1)["health"] == "critical"
    assert stage.send(reading, NOW + DAY + 1)["health"] == "ok"


def test_events_go_when_the_agent_no_longer_tells_them(stage: Stage) -> None:
    stage.send(make_gpu(events=[GpuEvent(NOW, 79)]))
    stage.take_changes()
    gpu = stage.send(make_gpu())
    assert (gpu["events"], gpu["health"]) == ([], "ok")
    assert stage.take_changes()["gpus"][0]["events"] == []
