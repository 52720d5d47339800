"""What is told of a fleet that changes, and what is not."""

from typing import Any

import pytest

from fakes.reports import HOST, make_envelope, make_gpu, make_process
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.state import FleetState
from gpudeck.model.errors import ReportRefused
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import RETURN_SECONDS, FleetSettings
from gpudeck.model.report import GpuEvent, GpuReading, Report

START = 1_790_000_000.0
LATER = START + RETURN_SECONDS + 10


class Watched:
    """A fleet and what was told of it. `pass_to` lets every second pass until then."""

    def __init__(self, known: dict[str, float | None] | None = None) -> None:
        self.events: list[Event] = []
        self.fleet = FleetState(FleetSettings())
        self.detector = EventDetector(self.events.append, START, {"gpu01": None} if known is None else known)
        self.fleet.observers.add(self.detector)
        self.now = START
        self._sequence = 0

    def report(self, host: str = "gpu01", gpus: list[GpuReading] | None = None, **others: Any) -> None:
        self._sequence += 1
        made = {"collected_at": self.now} | others
        via = made.pop("via", "push")
        self.fleet.apply(make_envelope(host, self._sequence, gpus, **made), via=via, now=self.now)
        self.fleet.settle()

    def pass_to(self, moment: float) -> None:
        while self.now < moment:
            self.now += 1.0
            self.fleet.age(self.now)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def watched() -> Watched:
    """The host gpu01 has been up since before the hub was started, and reports again when hosts had time to return."""
    made = Watched()
    made.report()
    made.pass_to(LATER - 20)
    made.report()
    made.pass_to(LATER)
    made.report()
    return made


def test_which_hosts_are_new_is_told_when_those_of_before_can_be_read() -> None:
    watched = Watched()
    detector = EventDetector(watched.events.append, START, learns=True)
    watched.fleet.observers.replace(watched.detector, detector)
    for host in ("gpu01", "gpu02", "new"):
        watched.report(host)
    assert watched.kinds() == []
    detector.learn({"gpu01": None, "gpu02": START - 600})
    assert [(event.kind, event.host) for event in watched.events] == [("host_up", "gpu02"), ("host_seen", "new")]
    watched.report("newer")
    assert watched.kinds()[2:] == ["host_seen"]


def driver_report(version: str) -> Report:
    return Report(gpus=[make_gpu()], metrics=dict(HOST), driver_version=version)


def test_new_hub_tells_no_old_news() -> None:
    watched = Watched({f"gpu{number:02}": None for number in range(24)})
    for number in range(24):
        watched.report(
            f"gpu{number:02}", [make_gpu(missing="fell off the bus", events=[GpuEvent(at=START - 60, code=79)])]
        )
    watched.pass_to(START + 5)
    assert watched.events == []


def test_host_is_seen_for_the_first_time_once() -> None:
    watched = Watched({})
    watched.report()
    watched.report()
    assert watched.kinds() == ["host_seen"]
    assert watched.events[0].host == "gpu01"


def test_host_that_was_told_down_before_the_start_is_told_up() -> None:
    watched = Watched({"gpu01": START - 500})
    watched.pass_to(LATER)
    watched.report()
    assert watched.kinds() == ["host_up"]


def test_host_that_was_told_down_is_told_up_also_right_after_the_start() -> None:
    watched = Watched({"gpu01": START - 500, "gpu02": None})
    watched.pass_to(START + 5)
    watched.report()
    watched.report("gpu02")
    assert [(event.kind, event.host) for event in watched.events] == [("host_up", "gpu01")]


def test_host_that_is_late_makes_no_event(watched: Watched) -> None:
    watched.pass_to(LATER + 30)
    assert watched.fleet.hosts["gpu01"].status == "late"
    watched.report()
    assert watched.events == []


def test_host_goes_down_and_comes_back_with_how_long_it_was_away(watched: Watched) -> None:
    watched.pass_to(LATER + 600)
    watched.report()
    assert watched.kinds() == ["host_down", "host_up"]
    assert watched.events[0].severity == "critical"
    assert watched.events[1].detail == "It was away for 10m."


def test_host_that_goes_down_all_the_time_is_told_so_once(watched: Watched) -> None:
    for number in range(1, 21):
        watched.pass_to(LATER + number * 300)
        watched.report()
    assert watched.kinds() == ["host_down", "host_up"] * 5 + ["flapping"]
    assert "6 times within an hour" in watched.events[-1].title


def test_host_that_flapped_and_then_stays_down_is_told_after_all(watched: Watched) -> None:
    for number in range(1, 9):
        watched.pass_to(LATER + number * 300)
        watched.report()
    watched.pass_to(watched.now + 3 * 3600)
    assert watched.kinds()[-2:] == ["flapping", "host_down"]
    watched.report()
    assert watched.kinds()[-1] == "host_up"


def test_hub_that_was_stuck_does_not_call_its_hosts_down(watched: Watched) -> None:
    watched.now += 3600
    watched.fleet.age(watched.now)
    watched.report()
    watched.pass_to(watched.now + 20)
    watched.report()
    watched.pass_to(watched.now + 20)
    watched.report()
    watched.pass_to(watched.now + 30)
    assert watched.events == []


def test_host_that_died_while_the_hub_was_stuck_is_told_when_it_had_time_to_return(watched: Watched) -> None:
    watched.now += 3600
    watched.pass_to(watched.now + RETURN_SECONDS + 5)
    assert watched.kinds() == ["host_down"]


def test_boot_driver_and_agent_are_told_when_they_change(watched: Watched) -> None:
    watched.report(report=driver_report("570.1"), agent_version="1.0")
    watched.report(report=driver_report("570.1"), agent_version="1.0")
    watched.report(report=driver_report("580.2"), agent_version="1.1", boot_id="boot-2")
    assert watched.kinds() == ["host_rebooted", "driver_changed", "agent_changed"]
    assert watched.events[1].title == "gpu01 has driver 580.2, after 570.1"


def test_same_boot_read_on_another_way_is_no_boot(watched: Watched) -> None:
    watched.pass_to(watched.now + 15)
    watched.report(boot_id="scrape", agent_version="exporter", via="scrape")
    assert watched.events == []


def test_lost_gpu_is_told_and_found_again(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(missing="fell off the bus")])
    watched.report(gpus=[make_gpu(missing="fell off the bus")])
    watched.report()
    assert watched.kinds() == ["gpu_lost", "gpu_found"]
    lost = watched.events[0]
    assert (lost.gpu, lost.label, lost.severity) == ("GPU-0", "0", "critical")
    assert lost.title == "GPU 0 of gpu01 cannot be read: fell off the bus"


def test_gpu_that_another_source_names_otherwise_is_neither_lost_nor_found(watched: Watched) -> None:
    watched.pass_to(watched.now + 15)
    watched.report(gpus=[make_gpu(uuid="gpumonitor/gpu01/0")], via="gpumonitor")
    watched.report()
    assert watched.events == []


def test_gpu_that_is_gone_is_lost_and_a_new_one_is_found(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(uuid="GPU-new")])
    assert [(event.kind, event.gpu) for event in watched.events] == [("gpu_lost", "GPU-0"), ("gpu_found", "GPU-new")]


def test_gpus_that_cannot_be_read_at_all_are_not_lost(watched: Watched) -> None:
    watched.report(report=Report(gpus=None, gpus_reason="the driver does not answer", metrics=dict(HOST)))
    watched.report()
    assert watched.events == []


def test_board_that_is_cut_into_instances_is_not_lost(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(uuid="MIG-1", parent="GPU-0", instance=1)])
    watched.report()
    assert watched.kinds() == ["gpu_found", "gpu_found"]


def test_fault_is_told_with_its_meaning_and_whose_process_it_was(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(processes=[make_process(77, "bob")])])
    fault = GpuEvent(at=watched.now - 1, code=31, process=77, text="MMU fault")
    watched.report(gpus=[make_gpu(events=[fault])])
    watched.report(gpus=[make_gpu(events=[fault])])
    (told,) = watched.events
    assert (told.kind, told.severity, told.user, told.at) == ("xid", "info", "bob", watched.now - 1)
    assert told.title == "XID 31 on GPU 0 of gpu01: illegal memory access by a program"
    assert told.detail == "MMU fault, process 77. Tell the owner of the process."


def test_critical_fault_is_told_once_and_not_as_bad_health_too(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(events=[GpuEvent(at=watched.now, code=48)])])
    assert [(event.kind, event.severity) for event in watched.events] == [("xid", "critical")]


def test_a_burst_of_one_fault_is_told_once_and_hides_no_other(watched: Watched) -> None:
    """Agents of before send each fault."""
    lost = GpuEvent(at=watched.now, code=79)
    for number in range(300):
        new = [GpuEvent(at=watched.now - 1 + part / 16, code=31, process=number) for part in range(15)]
        watched.report(gpus=[make_gpu(events=[*new, lost])])
    told = [event.title for event in watched.events]
    assert 1 <= sum("XID 31 " in title for title in told) <= 8
    assert sum("XID 79 " in title for title in told) == 1
    assert not any("left out" in title for title in told)


def test_fault_of_a_clock_in_another_century_is_told_of_these_days(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(events=[GpuEvent(at=-1e9, code=48), GpuEvent(at=9e10, code=48)])])
    assert all(watched.now - 3 * 86_400 < event.at <= watched.now for event in watched.events)


def test_health_is_told_when_it_falls_and_when_it_is_back(watched: Watched) -> None:
    for celsius in (90, 91, 97, 90, 40):
        watched.report(gpus=[make_gpu(metrics={"temperature_celsius": celsius})])
    assert [(event.kind, event.severity) for event in watched.events] == [
        ("health_raised", "warning"),
        ("health_raised", "critical"),
        ("health_cleared", "warning"),
        ("health_cleared", "info"),
    ]
    assert watched.events[0].title == "GPU 0 of gpu01 is not well: 90 °C"


def test_health_that_is_unknown_for_a_while_is_no_news(watched: Watched) -> None:
    watched.report(gpus=[make_gpu(metrics={"temperature_celsius": 90})])
    watched.report(gpus=[make_gpu(metrics={"temperature_celsius": None})])
    watched.report(gpus=[make_gpu(metrics={"temperature_celsius": 90})])
    assert watched.kinds() == ["health_raised"]


def test_two_hosts_of_one_name_are_told_once(watched: Watched) -> None:
    for _ in range(3):
        watched.report(host_id="machine-2", boot_id="boot-2", gpus=[make_gpu(uuid="GPU-x")])
        watched.report()
    assert watched.kinds() == ["host_seen", "duplicate_host"]


def test_two_agents_that_report_as_one_host_are_told_once(watched: Watched) -> None:
    watched.report(run_id="run-2")
    for _ in range(3):
        with pytest.raises(ReportRefused):
            watched.report()
        watched.report(run_id="run-2")
    assert watched.kinds() == ["duplicate_host"]


def test_host_that_has_news_all_the_time_does_not_fill_the_list(watched: Watched) -> None:
    for number in range(300):
        watched.report(gpus=[make_gpu(uuid=f"GPU-{number + 1}")])
    assert len(watched.events) == 201
    assert "the rest is left out" in watched.events[-1].title
