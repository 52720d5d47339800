"""From report to live state: order, age, unknown values, and neighbours that stay untouched."""

import math
from typing import Any

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import GIB, HOST, make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.views import View, show
from gpudeck.fleet.state import FORGET_TICKS, FleetState
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import AvailabilitySettings, FleetSettings
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.text import Names
from gpudeck.model.view import Host
from gpudeck.wire import Envelope


class Stage:
    """A fleet on a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.fleet = FleetState(FleetSettings(**settings))

    def send(self, envelope: Envelope, sent_at: float | None = None) -> bool:
        return self.fleet.apply(envelope, via="push", now=self.clock(), sent_at=sent_at)

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.fleet.age(self.clock())

    def host(self, name: str = "gpu01") -> View:
        return show(self.fleet.hosts[name])

    def gpu(self, index: int = 0, host: str = "gpu01") -> View:
        gpu: View = self.host(host)["gpus"][index]
        return gpu


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_report_becomes_a_host(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_gpu(0), make_busy_gpu(1)]))
    assert [gpu["availability"] for gpu in stage.host()["gpus"]] == ["free", "busy"]
    assert stage.gpu(1)["users"] == ["alice"]
    assert stage.host()["status"] == "up"
    assert stage.fleet.totals().power_watts == 360.5


def test_views_have_exactly_the_fields_of_the_contract(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_busy_gpu(0), make_gpu(1, missing="gone", processes=None)]))
    decoded = msgspec.convert(msgspec.to_builtins(stage.host()), Host)
    assert set(stage.host()) == set(Host.__struct_fields__)
    assert set(stage.gpu()) == set(decoded.gpus[0].__struct_fields__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_repeated_or_older_report_changes_nothing(stage: Stage, sequence: int) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_busy_gpu()]))
    assert not stage.send(make_envelope(sequence=sequence))
    assert stage.gpu()["availability"] == "busy"
    assert stage.fleet.counters["reports_outdated"] == 1


def test_an_agent_that_starts_again_is_believed_and_its_former_self_is_not(stage: Stage) -> None:
    stage.send(make_envelope(sequence=900, run_id="before"))
    assert stage.send(make_envelope(sequence=1, run_id="after", gpus=[make_busy_gpu()]))
    with pytest.raises(ReportRefused, match="another agent, started later, reports as gpu01"):
        stage.send(make_envelope(sequence=901, run_id="before"))
    assert stage.gpu()["availability"] == "busy"
    assert "another agent reports as this host too" in stage.host()["problems"][0]


def test_a_replaced_agent_is_heard_again_when_its_successor_falls_silent(stage: Stage) -> None:
    stage.send(make_envelope(sequence=10, run_id="service"))
    stage.send(make_envelope(sequence=1, run_id="by hand"))
    with pytest.raises(ReportRefused):
        stage.send(make_envelope(sequence=11, run_id="service"))
    stage.after(7)
    assert stage.send(make_envelope(sequence=12, run_id="service", gpus=[make_busy_gpu()]))
    assert (stage.host()["status"], stage.gpu()["availability"]) == ("up", "busy")


def test_order_follows_the_sequence_and_not_the_clock(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, collected_at=2_000_000_000.0))
    assert stage.send(make_envelope(sequence=2, collected_at=1.0, gpus=[make_busy_gpu()]))


@pytest.mark.parametrize(("seconds", "status"), [(6, "up"), (6.1, "late"), (60, "late"), (60.1, "down")])
def test_a_silent_host_is_late_after_three_intervals_and_then_down(stage: Stage, seconds: float, status: str) -> None:
    stage.send(make_envelope(interval_seconds=2.0))
    stage.after(seconds)
    assert stage.host()["status"] == status


def test_a_host_with_a_long_interval_is_late_before_it_is_down(stage: Stage) -> None:
    stage.send(make_envelope(interval_seconds=30.0))
    stage.after(91)
    assert stage.host()["status"] == "late"


def test_stale_is_never_free_but_keeps_its_last_values(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_gpu(0), make_busy_gpu(1)]))
    stage.after(10)
    assert [gpu["availability"] for gpu in stage.host()["gpus"]] == ["unknown", "unknown"]
    assert [gpu["last_seen"] for gpu in stage.host()["gpus"]] == ["free", "busy"]
    assert stage.gpu(1)["utilization_percent"] == 97
    assert stage.gpu(1)["health"] == "unknown"
    totals = stage.fleet.totals()
    assert (totals.free, totals.unknown, totals.hosts_up, totals.users, totals.power_watts) == (0, 2, 0, 0, None)


def test_the_last_seen_state_outlives_late_and_down(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_busy_gpu()]))
    stage.after(10)
    stage.after(100)
    assert (stage.host()["status"], stage.gpu()["last_seen"]) == ("down", "busy")


def test_a_host_that_returns_is_up_at_once(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_busy_gpu()]))
    stage.after(100)
    stage.send(make_envelope(sequence=2, gpus=[make_gpu()]))
    assert (stage.host()["status"], stage.gpu()["availability"], stage.gpu()["last_seen"]) == ("up", "free", None)


def test_one_silent_host_leaves_its_neighbours_alone(stage: Stage) -> None:
    stage.send(make_envelope("gpu01"))
    stage.clock.advance(10)
    stage.send(make_envelope("gpu02"))
    stage.after(0)
    assert (stage.host("gpu01")["status"], stage.host("gpu02")["status"]) == ("late", "up")


def test_a_report_that_waited_in_an_outbox_does_not_make_a_host_fresh(stage: Stage) -> None:
    collected = stage.clock() - 500
    stage.send(make_envelope(collected_at=collected), sent_at=stage.clock() + 0.2)
    assert stage.host()["status"] == "late"
    assert stage.host()["clock_skew_seconds"] == 0.2
    assert stage.gpu()["availability"] == "unknown"


def test_a_wrong_clock_is_shown_as_skew_and_harms_nothing(stage: Stage) -> None:
    agent_time = stage.clock() + 7200
    stage.send(make_envelope(collected_at=agent_time), sent_at=agent_time)
    assert (stage.host()["status"], stage.host()["clock_skew_seconds"]) == ("up", 7200.0)


def test_a_report_that_is_on_its_way_a_little_longer_does_not_change_the_skew(stage: Stage) -> None:
    told = []
    for sequence, ahead in enumerate((0.2, 0.1, 0.3, 0.5, 0.4), 1):
        now = stage.clock()
        stage.send(make_envelope(sequence=sequence, collected_at=now + ahead), sent_at=now + ahead)
        told.append(stage.host()["clock_skew_seconds"])
    assert told == [0.2, 0.2, 0.2, 0.5, 0.5]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 101, 10**30])
def test_a_value_that_cannot_be_is_unknown_with_its_reason(stage: Stage, value: float) -> None:
    stage.send(make_envelope(gpus=[make_gpu(metrics={"utilization_percent": value}), make_gpu(1)]))
    assert stage.gpu()["utilization_percent"] is None
    assert stage.gpu()["reasons"]["utilization_percent"]
    assert stage.gpu(1)["utilization_percent"] == 0
    assert stage.fleet.counters["values_rejected"] == 1


def test_a_value_that_recovers_loses_its_reason(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(metrics={"power_watts": -4})]))
    stage.send(make_envelope(sequence=2, gpus=[make_gpu()]))
    assert (stage.gpu()["power_watts"], stage.gpu()["reasons"]) == (60.5, {})


def test_unknown_stands_beside_its_reason(stage: Stage) -> None:
    fan = make_gpu(metrics={"fan_percent": None}, unknown={"fan_percent": "not supported by this GPU"})
    stage.send(make_envelope(gpus=[fan, make_gpu(1, metrics={"fan_percent": None})]))
    assert stage.gpu(0)["fan_percent"] is None
    assert stage.gpu(0)["reasons"] == {"fan_percent": "not supported by this GPU"}
    assert stage.gpu(1)["reasons"] == {"fan_percent": "not reported"}


def test_a_missing_gpu_is_unknown_and_critical_beside_healthy_ones(stage: Stage) -> None:
    lost = GpuReading(uuid="GPU-0", index=0, name="H200", missing="fell off the bus")
    stage.send(make_envelope(gpus=[lost, make_gpu(1)]))
    assert (stage.gpu(0)["availability"], stage.gpu(0)["health"]) == ("unknown", "critical")
    assert stage.gpu(0)["health_action"]
    assert (stage.gpu(1)["availability"], stage.gpu(1)["health"]) == ("free", "ok")


def test_the_metrics_of_a_missing_gpu_say_why_they_are(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[GpuReading(uuid="GPU-0", index=0, name="H200", missing="fell off the bus")]))
    assert set(stage.gpu()["reasons"].values()) == {"fell off the bus"}


def test_a_new_reason_or_place_is_noticed(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(processes=None, processes_reason="busy", instance=1)]))
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(processes=None, processes_reason="gone", instance=2)]))
    assert (stage.gpu()["reasons"]["processes"], stage.gpu()["label"]) == ("gone", "0.2")


def test_gpus_that_cannot_be_read_stay_as_unknown(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(0), make_busy_gpu(1)]))
    failed = Report(gpus=None, gpus_reason="driver not answering", metrics=dict(HOST))
    stage.send(make_envelope(sequence=2, report=failed))
    assert [gpu["availability"] for gpu in stage.host()["gpus"]] == ["unknown", "unknown"]
    assert stage.gpu()["availability_reason"] == "driver not answering"
    assert stage.host()["reasons"]["gpus"] == "driver not answering"
    assert (stage.host()["status"], stage.host()["cpu_percent"]) == ("up", 12.5)


def test_an_idle_holder_is_idle_after_ten_minutes_of_watching(stage: Stage) -> None:
    holder = make_gpu(metrics={"memory_used_bytes": 20 * GIB}, processes=[make_process()], idle_seconds=None)
    stage.send(make_envelope(sequence=1, gpus=[holder]))
    first = stage.gpu()["availability"]
    stage.clock.advance(600)
    stage.send(make_envelope(sequence=2, gpus=[holder]))
    assert (first, stage.gpu()["availability"]) == ("busy", "idle")


def test_an_agent_that_has_watched_longer_is_believed_at_once(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_gpu(processes=[make_process()], idle_seconds=3600.0)]))
    assert stage.gpu()["availability"] == "idle"


def test_a_newcomer_on_a_gpu_that_was_idle_for_hours_does_not_hold_it_yet(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(idle_seconds=9000.0)]))
    stage.clock.advance(2)
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(processes=[make_process()], idle_seconds=9002.0)]))
    assert stage.gpu()["availability"] == "busy"


@pytest.mark.parametrize(("age", "availability"), [(60, "busy"), (700, "idle")])
def test_a_process_holds_a_gpu_only_as_long_as_it_is_there(stage: Stage, age: float, availability: str) -> None:
    """Read on the host's own clock, which is an hour ahead here."""
    collected = stage.clock() + 3600
    process = make_process(started_at=collected - age)
    gpu = make_gpu(processes=[process], idle_seconds=9000.0)
    stage.send(make_envelope(gpus=[gpu], collected_at=collected), sent_at=collected)
    assert stage.gpu()["availability"] == availability


def test_the_operators_work_threshold_counts_and_not_the_agents() -> None:
    stage = Stage(availability=AvailabilitySettings(work_percent=2.0))
    holder = {"processes": [make_process()]}
    stage.send(
        make_envelope(sequence=1, gpus=[make_gpu(metrics={"utilization_percent": 4}, idle_seconds=0.0, **holder)])
    )
    for sequence in range(2, 5):
        stage.clock.advance(400)
        working = make_gpu(metrics={"utilization_percent": 4}, idle_seconds=400.0 * sequence, **holder)
        stage.send(make_envelope(sequence=sequence, gpus=[working]))
    stage.clock.advance(2)
    resting = make_gpu(metrics={"utilization_percent": 1}, idle_seconds=1602.0, **holder)
    stage.send(make_envelope(sequence=9, gpus=[resting]))
    assert stage.gpu()["availability"] == "busy"


def test_work_below_the_operators_threshold_is_no_work() -> None:
    stage = Stage(availability=AvailabilitySettings(work_percent=50.0, idle_after=30.0))
    lazy = make_gpu(metrics={"utilization_percent": 20}, processes=[make_process()], idle_seconds=0.0)
    stage.send(make_envelope(sequence=1, gpus=[lazy]))
    stage.clock.advance(31)
    stage.send(make_envelope(sequence=2, gpus=[lazy]))
    assert stage.gpu()["availability"] == "idle"


def test_a_display_server_of_unknown_size_leaves_no_orphan(stage: Stage) -> None:
    xorg = Process(pid=1, user="root", display=True)
    gpu = make_gpu(metrics={"memory_used_bytes": 2 * GIB}, processes=[xorg], idle_seconds=9000.0)
    stage.send(make_envelope(gpus=[gpu]))
    assert stage.gpu()["availability"] == "free"


def test_a_display_server_does_not_make_a_gpu_busy(stage: Stage) -> None:
    xorg = make_process(pid=1, user="root", gib=2, display=True)
    stage.send(make_envelope(gpus=[make_gpu(metrics={"memory_used_bytes": 2 * GIB}, processes=[xorg])]))
    assert (stage.gpu()["availability"], stage.gpu()["users"]) == ("free", [])


def test_users_are_named_once_most_memory_first(stage: Stage) -> None:
    crowd = [make_process(1, "bob", 5), make_process(2, "carol", 8), make_process(3, "bob", 4), make_process(4, None)]
    stage.send(make_envelope(gpus=[make_gpu(processes=crowd)]))
    assert stage.gpu()["users"] == ["bob", "carol"]


def test_since_tells_when_the_state_began(stage: Stage) -> None:
    begin = stage.clock()
    stage.send(make_envelope(sequence=1))
    stage.clock.advance(100)
    stage.send(make_envelope(sequence=2))
    stage.clock.advance(100)
    before = stage.gpu()["since"]
    stage.send(make_envelope(sequence=3, gpus=[make_busy_gpu()]))
    assert (before, stage.gpu()["since"]) == (begin, begin + 200)


def test_a_renamed_host_keeps_its_identity(stage: Stage) -> None:
    stage.send(make_envelope("old", sequence=1, host_id="machine-7"))
    stage.send(make_envelope("new", sequence=2, host_id="machine-7"))
    assert list(stage.fleet.hosts) == ["machine-7"]
    assert stage.host("machine-7")["name"] == "new"


def test_machines_cloned_with_their_id_are_two_hosts(stage: Stage) -> None:
    stage.send(make_envelope("gpu01", sequence=1, host_id="cloned", boot_id="a"))
    stage.send(make_envelope("gpu02", sequence=1, host_id="cloned", boot_id="b", gpus=[make_busy_gpu()]))
    stage.send(make_envelope("gpu01", sequence=2, host_id="cloned", boot_id="a"))
    stage.send(make_envelope("gpu02", sequence=2, host_id="cloned", boot_id="b", gpus=[make_busy_gpu()]))
    assert [host.name for host in stage.fleet.ordered()] == ["gpu01", "gpu02"]
    assert (stage.fleet.totals().free, stage.fleet.totals().busy) == (1, 1)


def test_a_machine_renamed_by_a_reboot_keeps_its_identity(stage: Stage) -> None:
    stage.send(make_envelope("old", sequence=1, host_id="machine-7", boot_id="a"))
    stage.after(30)
    stage.send(make_envelope("new", sequence=1, host_id="machine-7", boot_id="b"))
    assert [host.name for host in stage.fleet.ordered()] == ["new"]


def test_a_clock_set_back_does_not_keep_a_silent_host_alive(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1))
    stage.clock.advance(-3600)
    stage.send(make_envelope(sequence=2))
    stage.after(7)
    assert (stage.host()["status"], stage.gpu()["availability"]) == ("late", "unknown")


def test_a_full_fleet_refuses_new_hosts_and_serves_the_others() -> None:
    stage = Stage(max_hosts=1)
    stage.send(make_envelope("gpu01", sequence=1))
    with pytest.raises(ReportRefused, match="max_hosts"):
        stage.send(make_envelope("gpu02"))
    assert stage.send(make_envelope("gpu01", sequence=2))


def test_a_host_that_stays_away_is_forgotten() -> None:
    stage = Stage(forget_after=1000.0)
    stage.send(make_envelope())
    stage.after(1001)
    stage.send(make_envelope("gpu02", collected_at=stage.clock()), sent_at=stage.clock())
    for _ in range(FORGET_TICKS):
        stage.fleet.age(stage.clock())
    assert list(stage.fleet.hosts) == ["gpu02"]
    assert stage.fleet.take_changes()[1] == ["gpu01"]


@pytest.mark.parametrize(
    ("gpu", "ago"),
    [
        (make_gpu(idle_seconds=500.0), 500),
        (make_busy_gpu(), 0),
        (make_gpu(metrics={"utilization_percent": 90}, processes=[make_process(started_at=1_789_999_000.0)]), 1000),
        (make_gpu(metrics={"utilization_percent": 90}, processes=[make_process(started_at=1_790_009_999.0)]), 0),
        (make_gpu(processes=[make_process()], idle_seconds=4000.0), 4000),
    ],
    ids=["free", "busy without a start", "busy", "busy with a wrong clock", "idle"],
)
def test_a_state_older_than_the_hub_keeps_its_beginning(stage: Stage, gpu: GpuReading, ago: float) -> None:
    stage.send(make_envelope(gpus=[gpu]))
    assert stage.gpu()["since"] == stage.clock() - ago


def test_other_names_are_shown_at_once_and_with_what_is_reported_later(stage: Stage) -> None:
    stage.send(make_envelope())
    stage.fleet.take_changes()
    model = stage.gpu()["name"]
    stage.fleet.rename(Names(hosts={"gpu01": "Big one"}, models={model: "fast"}))
    assert (stage.host()["display_name"], stage.gpu()["display_name"]) == ("Big one", "fast")
    assert (stage.host()["name"], stage.gpu()["name"]) == ("gpu01", model)
    assert [host.name for host in stage.fleet.take_changes()[0]] == ["gpu01"]
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(uuid="GPU-new")]))
    assert (stage.host()["display_name"], stage.gpu()["display_name"]) == ("Big one", "fast")
