"""Reports that come after newer ones of their host: what they change, what they do not, and which come twice."""

from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.maintenance import make_window
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.views import View, show
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.late_reports import BACKLOG_PAUSE, MAX_RANGES, MissingReports
from gpudeck.fleet.state import FleetState
from gpudeck.history.recorder import Recorder, Sample, as_host_samples
from gpudeck.history.sample import STATES
from gpudeck.model.errors import ReportRefused
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import RETURN_SECONDS, FleetSettings
from gpudeck.model.report import GpuEvent, GpuReading, Report
from gpudeck.model.reservation import GpuReservation, ReservationMark

INTERVAL = 2.0
RUN, OTHER = ("boot-1", "run-1"), ("boot-1", "run-0")


class Stage:
    """The host gpu01 reports every two seconds. `report` sends what was made `ago` seconds before it arrives."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fleet = FleetState(FleetSettings())
        self.events: list[Event] = []
        self.samples: list[Sample] = []
        self.recorder = Recorder(INTERVAL, self.samples.extend)
        self.fleet.observers.add(self.recorder)
        self.fleet.observers.add(EventDetector(self.events.append, self.clock() - RETURN_SECONDS, {"gpu01": None}))

    def report(self, sequence: int, *gpus: GpuReading, ago: float = 0.0, **others: Any) -> bool:
        now = self.clock()
        envelope = make_envelope(sequence=sequence, gpus=list(gpus) or None, collected_at=now - ago, **others)
        is_taken = self.fleet.apply(envelope, via="push", now=now, sent_at=now)
        self.fleet.settle()
        return is_taken

    def after(self, seconds: float) -> None:
        """Let every second pass."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.fleet.age(self.clock())

    def sampled(self) -> list[tuple[float, str]]:
        """How long ago each sample of the first GPU was, and its state."""
        self.recorder.hand_over()
        return [
            (round(self.clock() - sample.at, 3), STATES[sample.gpus[0].state])
            for sample in as_host_samples(self.samples)
        ]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def host(self) -> View:
        return show(self.fleet.hosts["gpu01"])


@pytest.fixture
def stage() -> Stage:
    """Its first report has been taken."""
    made = Stage()
    made.report(1)
    return made


def test_late_report_changes_nothing_that_is_shown_and_is_sampled_at_its_own_time(stage: Stage) -> None:
    stage.after(600)
    stage.report(301)
    before = dict(stage.host), dict(stage.host["gpus"][0])
    assert stage.report(151, make_busy_gpu(), ago=300)
    assert (dict(stage.host), dict(stage.host["gpus"][0])) == before
    assert stage.sampled() == [(600, "free"), (0, "free"), (300, "busy")]
    assert stage.fleet.counters["reports_late"] == 1


def test_report_that_comes_twice_is_taken_once(stage: Stage) -> None:
    stage.after(600)
    stage.report(301)
    assert stage.report(151, ago=300)
    assert not stage.report(151, ago=300)
    assert not stage.report(1, ago=600)
    assert not stage.report(301)
    assert stage.report(152, ago=298)
    assert len(stage.sampled()) == 4


def test_report_of_before_the_backlog_is_sampled_at_its_own_time_and_its_changes_are_told_once(stage: Stage) -> None:
    """It came through another hub, which was cut off."""
    hot = make_gpu(metrics={"temperature_celsius": 96})
    stage.after(40)
    stage.report(21, hot)
    assert stage.report(20, hot, ago=2)
    for sequence in (7, 8, 5, 12):
        assert stage.report(sequence, hot, ago=42 - 2 * sequence)
        assert not stage.report(sequence, hot, ago=42 - 2 * sequence)
    stage.after(BACKLOG_PAUSE + 2)
    assert [round(ago) - BACKLOG_PAUSE - 2 for ago, _ in stage.sampled()] == [40, 0, 2, 28, 26, 32, 18]
    assert stage.kinds() == ["health_raised"]


def test_late_report_of_a_hub_that_was_restarted_is_taken(stage: Stage) -> None:
    stage = Stage()
    stage.report(301)
    assert stage.report(151, make_busy_gpu(), ago=300)
    assert not stage.report(151, make_busy_gpu(), ago=300)
    assert stage.sampled() == [(0, "free"), (300, "busy")]


def test_report_without_the_time_of_sending_is_not_taken_for_a_late_one(stage: Stage) -> None:
    stage.after(600)
    stage.report(301)
    now = stage.clock()
    assert not stage.fleet.apply(make_envelope(sequence=151, collected_at=now - 300), via="push", now=now)
    assert stage.fleet.counters["reports_outdated"] == 1


def test_backlog_of_an_earlier_run_of_the_agent_is_no_second_agent(stage: Stage) -> None:
    stage.after(600)
    stage.report(5, run_id="run-2")
    assert stage.report(101, make_busy_gpu(), ago=400)
    assert stage.report(102, make_busy_gpu(), ago=398)
    assert not stage.report(102, make_busy_gpu(), ago=398)
    assert stage.report(7, make_busy_gpu(), ago=200, run_id="never heard of")
    assert stage.report(1, run_id="run-2", ago=8)
    assert stage.host["problems"] == []
    assert [state for _, state in stage.sampled()] == ["free", "free", "busy", "busy", "busy", "free"]


def test_second_agent_is_found_though_late_reports_come(stage: Stage) -> None:
    stage.after(600)
    stage.report(5, run_id="run-2")
    stage.report(2, ago=598)
    stage.after(2)
    with pytest.raises(ReportRefused, match="another agent, started later, reports as gpu01"):
        stage.report(302)
    assert "another agent reports as this host too" in stage.host["problems"][0]


def test_host_that_sends_nothing_but_old_reports_is_late_and_not_down(stage: Stage) -> None:
    """As agents of before do: the oldest first."""
    stage.after(3600)
    assert stage.host["status"] == "down"
    for number in range(100):
        stage.report(2 + number, ago=3598 - 2 * number)
        stage.after(1)
        assert stage.host["status"] == "late"
        assert stage.host["gpus"][0]["availability"] == "unknown"
    assert stage.kinds() == ["host_down", "host_up"]
    stage.after(61)
    assert stage.host["status"] == "down"
    assert "Nothing has come from it for 1m" in stage.events[-1].detail


def test_late_reports_keep_a_host_from_being_down(stage: Stage) -> None:
    stage.after(600)
    stage.report(301)
    for number in range(120):
        stage.after(1)
        stage.report(2 + number, ago=720)
    assert stage.host["status"] == "late"


def test_step_of_the_hubs_clock_makes_no_host_down() -> None:
    clock, uptime = FakeClock(), FakeClock(100.0)
    fleet = FleetState(FleetSettings(), uptime=uptime)
    fleet.apply(make_envelope(), via="push", now=clock())
    for step in (3600.0, -7200.0):
        clock.advance(step)
        uptime.advance(1.0)
        fleet.age(clock())
        assert fleet.hosts["gpu01"].status != "down"
    uptime.advance(61.0)
    fleet.age(clock())
    assert fleet.hosts["gpu01"].status == "down"


def test_gpu_that_worked_while_nobody_heard_of_it_is_not_called_idle_since_before(stage: Stage) -> None:
    idle = {"utilization_percent": 0, "memory_used_bytes": 20 * 1024**3}
    stage.after(2)
    stage.report(2, make_gpu(metrics=idle, processes=[make_process()], idle_seconds=0.0))
    stage.after(3600)
    stage.report(1802, make_gpu(metrics=idle, processes=[make_process()], idle_seconds=120.0))
    assert stage.host["gpus"][0]["availability"] == "busy"


def test_late_reports_are_judged_by_how_long_there_was_no_work_then(stage: Stage) -> None:
    """The host's agent has counted from its own beginning; who reports in time is judged the same."""
    idle = make_gpu(metrics={"memory_used_bytes": 20 * 1024**3}, processes=[make_process()], idle_seconds=None)
    stage.after(2)
    stage.report(2, idle)
    stage.after(3600)
    stage.report(1802)
    for number in range(3, 1802):
        stage.report(number, idle, ago=3600 - 2 * (number - 2))
    states = dict(sorted(stage.sampled(), reverse=True))
    # It last worked before its first report, 3602 s ago.
    assert next(round(ago) for ago, state in states.items() if state == "idle") == pytest.approx(3000, abs=4)


def test_what_happened_while_nobody_heard_is_told_once_at_its_own_time(stage: Stage) -> None:
    fault = GpuEvent(at=stage.clock() + 100, code=79)
    hot = {"temperature_celsius": 96}
    stage.after(600)
    stage.report(301, make_gpu(events=[fault], metrics=hot))
    stage.after(2)
    stage.report(302, make_gpu(events=[fault], metrics=hot))
    assert stage.kinds() == ["host_down", "host_up"]
    stage.report(50, ago=504)
    stage.report(52, make_gpu(events=[fault]), ago=500)
    stage.report(300, make_gpu(events=[fault], metrics=hot), ago=4)
    stage.after(BACKLOG_PAUSE + 2)
    assert stage.kinds() == ["host_down", "host_up", "xid"]
    assert stage.events[-1].at == fault.at


def test_what_changed_with_the_newest_report_is_told_when_no_late_one_tells_it(stage: Stage) -> None:
    stage.after(600)
    stage.report(301, make_gpu(missing="fell off the bus"))
    at = stage.clock()
    stage.after(BACKLOG_PAUSE - 1)
    assert stage.kinds() == ["host_down", "host_up"]
    stage.after(2)
    assert (stage.kinds()[-1], stage.events[-1].at) == ("gpu_lost", at)


def test_backlog_that_is_complete_is_not_waited_for(stage: Stage) -> None:
    stage.after(20)
    stage.report(11, make_gpu(missing="fell off the bus"))
    for sequence in range(2, 11):
        stage.report(sequence, ago=22 - 2 * sequence)
    stage.after(1)
    assert stage.kinds() == ["gpu_lost"]


def test_second_outage_tells_nothing_again(stage: Stage) -> None:
    hot = make_gpu(metrics={"temperature_celsius": 96})
    stage.after(20)
    stage.report(11)
    stage.report(5, ago=12)
    stage.after(BACKLOG_PAUSE + 2)
    stage.report(12, hot)
    assert stage.kinds() == ["health_raised"]
    stage.after(20)
    stage.report(22, hot)
    stage.report(15, hot, ago=14)
    stage.after(BACKLOG_PAUSE + 2)
    assert stage.kinds() == ["health_raised"]


def test_other_driver_and_boot_are_told_at_the_time_of_the_late_report(stage: Stage) -> None:
    new = Report(gpus=[make_gpu()], metrics=dict(HOST), driver_version="590")
    stage.after(600)
    stage.report(8, boot_id="boot-2", report=new)
    stage.report(1, boot_id="boot-2", report=new, ago=14)
    stage.after(BACKLOG_PAUSE + 2)
    rebooted = [event for event in stage.events if event.kind == "host_rebooted"]
    assert [round(stage.clock() - event.at) for event in rebooted] == [26]


def test_driver_that_changed_late_in_a_long_backlog_from_the_oldest_on_is_told() -> None:
    stage = Stage()
    for sequence in range(101, 401):
        version = "580.95.05" if sequence <= 350 else "580.159.04"
        report = Report(gpus=[make_gpu()], metrics=dict(HOST), driver_version=version)
        stage.report(sequence, ago=3600.0 - INTERVAL * sequence, report=report)
    stage.after(BACKLOG_PAUSE + 2)
    told = [round(stage.clock() - event.at) for event in stage.events if event.kind == "driver_changed"]
    assert told == [3600 - INTERVAL * 351 + BACKLOG_PAUSE + 2]


def test_driver_that_could_not_be_read_in_the_newest_report_has_not_changed(stage: Stage) -> None:
    stage.after(20)
    read = Report(gpus=[make_gpu()], metrics=dict(HOST), driver_version="590")
    stage.report(11, report=Report(gpus=[make_gpu()], metrics=dict(HOST)), agent_version="")
    stage.report(5, report=read, ago=12, agent_version="1.0")
    stage.after(BACKLOG_PAUSE + 2)
    assert stage.events == []


def test_late_report_is_reserved_by_the_reservation_of_its_own_time(stage: Stage) -> None:
    now = stage.clock()
    first = ReservationMark(GpuReservation(1, "alice", now + 100, "", "reservation"), since=now - 50)
    second = ReservationMark(GpuReservation(2, "bob", now + 5000, "", "reservation"), since=now + 500)
    stage.fleet.mark({"GPU-0": first}, now)
    stage.after(100)
    stage.fleet.mark({}, stage.clock())
    stage.after(500)
    stage.fleet.mark({"GPU-0": second}, stage.clock())
    stage.report(301)
    for sequence, ago in ((26, 550), (151, 300), (290, 22)):
        stage.report(sequence, ago=ago)
    told = stage.sampled()
    assert told[1:] == [(0, "reserved"), (550, "reserved"), (300, "free"), (22, "reserved")]


def test_late_report_is_drained_by_the_maintenance_of_its_own_time(stage: Stage) -> None:
    now = stage.clock()
    (host,) = stage.fleet.hosts.values()
    window = make_window(host=host.name, host_id=host.id, start=now + 50, end=now + 100)
    stage.fleet.drain([window], now)
    stage.after(600)
    stage.fleet.drain([window], stage.clock())
    stage.report(301)
    for sequence, ago in ((5, 580), (40, 520), (151, 300)):
        stage.report(sequence, ago=ago)
    assert stage.sampled()[1:] == [(0, "free"), (580, "free"), (520, "drained"), (300, "free")]


def test_missing_reports_are_closed_in_any_order() -> None:
    missing = MissingReports()
    missing.add(RUN, 5, 10)
    missing.add(OTHER, 3)
    sequences = (4, 10, 6, 6, 5, 5, 7, 9)
    found = [missing.close(RUN, sequence) for sequence in sequences]
    assert found == [False, False, True, False, True, False, True, True]
    assert missing.knows(RUN)
    assert missing.close(RUN, 8)
    assert not missing.knows(RUN)
    assert missing.close(OTHER, 10**9)
    missing.cut(OTHER, 3)
    assert not missing.knows(OTHER)


def test_missing_reports_are_bounded() -> None:
    missing = MissingReports()
    for number in range(3 * MAX_RANGES):
        missing.add(RUN, 10 * number, 10 * number + 5)
    assert len(missing.ranges) == MAX_RANGES
    assert missing.close(RUN, 30 * MAX_RANGES - 10)


def test_missing_reports_of_a_backlog_with_many_gaps_are_bounded() -> None:
    missing = MissingReports()
    missing.add(RUN, 1, 10**6)
    assert all(missing.close(RUN, sequence) for sequence in range(2, 6 * MAX_RANGES, 2))
    assert len(missing.ranges) == MAX_RANGES
    assert not missing.close(RUN, 1)
    assert missing.close(RUN, 10**6 - 1)
