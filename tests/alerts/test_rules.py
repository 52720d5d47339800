"""Each rule by itself: what it says of a host, what it does not, and that it says nothing of what is not known."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.watched import NOW, Watched
from fakes.reports import GIB, make_busy_gpu, make_gpu, make_process
from gpudeck.alerts.rule import HUB, FleetContext
from gpudeck.alerts.rules import RULES, RULES_BY_NAME
from gpudeck.alerts.settings import DEFAULTS, AlertSettings, Override, RuleChange
from gpudeck.model.history import Backlog, judge_backlog, judge_damage, judge_problem
from gpudeck.model.report import Disk, GpuEvent, GpuReading, Report
from gpudeck.model.reservation import GpuReservation, ReservationMark
from reservations.fleet import make_reservation

BOARDS = [name for name, rule in RULES_BY_NAME.items() if rule.scope == "gpu"]
HOSTS = [name for name, rule in RULES_BY_NAME.items() if rule.scope == "host"]


def find(rule: str, *gpus: GpuReading, context: dict[str, Any] | None = None, **report: Any) -> list[tuple[str, bool]]:
    """Titles, and whether each is bad, of a host that reports this."""
    watched = Watched()
    watched.context |= context or {}
    watched.report("gpu01", *gpus, **report)
    watched.step()
    return [(finding.title, finding.is_bad) for finding in watched.find(rule)]


def test_every_rule_has_limits_and_every_limit_a_rule() -> None:
    assert {rule.name for rule in RULES} == DEFAULTS.keys()
    assert len(RULES) == len(DEFAULTS)


@pytest.mark.parametrize("rule", [*BOARDS, *HOSTS])
def test_rule_is_quiet_about_a_healthy_host(rule: str) -> None:
    assert find(rule, make_gpu(0), make_busy_gpu(1)) == []


@pytest.mark.parametrize("rule", [*BOARDS, *HOSTS])
def test_rule_is_quiet_where_nothing_could_be_read(rule: str) -> None:
    nothing = GpuReading(uuid="GPU-0", index=0, name="A100")
    assert find(rule, report=Report(gpus=[nothing])) == []


@pytest.mark.parametrize("rule", HOSTS)
def test_machine_without_gpus_is_nothing_to_worry_about(rule: str) -> None:
    assert find(rule, report=Report(gpus=None, gpus_reason="nothing here reads GPUs")) == []


@pytest.mark.parametrize(
    ("celsius", "found"),
    [(81, []), (82, [("GPU 0 of gpu01 is at 82 °C", False)]), (87, [("GPU 0 of gpu01 is at 87 °C", True)])],
)
def test_hot_gpu_has_two_thresholds(celsius: int, found: list[Any]) -> None:
    assert find("gpu_hot", make_gpu(metrics={"temperature_celsius": celsius})) == found


def test_very_hot_gpu_is_critical() -> None:
    watched = Watched()
    watched.report("gpu01", make_gpu(metrics={"temperature_celsius": 96}))
    watched.step()
    assert watched.find("gpu_hot")[0].severity == "critical"
    assert watched.find("gpu_hot", above=100.0, clear=95.0)[0].severity is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"throttled_thermal": 1}, "is throttled (thermal)"),
        ({"throttled_hardware": 1}, "is throttled (hardware slowdown or power brake)"),
    ],
)
def test_throttled_gpu_says_by_what(flags: dict[str, int], words: str) -> None:
    assert find("gpu_throttled", make_gpu(metrics=flags)) == [(f"GPU 0 of gpu01 {words}", True)]


def test_power_limit_alone_slows_nobody_down_in_a_way_worth_telling() -> None:
    assert find("gpu_throttled", make_gpu(metrics={"throttled_power": 1})) == []


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"ecc_uncorrected_count": 1}, "has had 1 uncorrected memory error"),
        ({"remapped_rows_pending": 1}, "has a row remap pending"),
        (
            {"ecc_uncorrected_count": 3, "remapped_rows_pending": 1},
            "has had 3 uncorrected memory errors and has a row remap pending",
        ),
    ],
)
def test_failing_memory_says_how(metrics: dict[str, int], words: str) -> None:
    assert find("ecc", make_gpu(metrics=metrics)) == [(f"GPU 0 of gpu01 {words}", True)]


def test_corrected_errors_are_none() -> None:
    assert find("ecc", make_gpu(metrics={"ecc_corrected_count": 900})) == []


def test_missing_gpu_is_lost_and_its_neighbour_is_not() -> None:
    lost = make_gpu(1, metrics=dict.fromkeys(("temperature_celsius",)), missing="fell off the bus", processes=None)
    assert find("gpu_lost", make_gpu(0), lost) == [("GPU 1 of gpu01 cannot be read: fell off the bus", True)]
    assert find("driver_not_answering", make_gpu(0), lost) == []


def test_all_gpus_missing_for_one_reason_are_the_drivers_affair() -> None:
    gpus = [make_gpu(index, missing="the driver did not answer within 3 s") for index in range(2)]
    assert find("gpu_lost", *gpus) == []
    title = "The GPUs of gpu01 cannot be read: the driver did not answer within 3 s"
    assert find("driver_not_answering", *gpus) == [(title, True)]


def test_host_whose_gpus_cannot_be_read_and_who_says_so_has_no_driver() -> None:
    report = Report(gpus=None, gpus_reason="nvml: driver not loaded.", problems=["nvml: driver not loaded"])
    title = "The GPUs of gpu01 cannot be read: nvml: driver not loaded"
    assert find("driver_not_answering", report=report) == [(title, True)]


def test_gpu_that_is_no_longer_told_of_is_gone_until_it_is_anywhere() -> None:
    watched = Watched()
    watched.report("gpu01", make_gpu(0), make_gpu(1))
    watched.step()
    watched.report("gpu01", make_gpu(0))
    watched.run(10)
    assert [finding.title for finding in watched.find("gpu_lost")] == ["GPU 1 of gpu01 is gone"]
    watched.report("gpu02", make_gpu(1))
    watched.run(10)
    assert watched.find("gpu_lost") == []


@pytest.mark.parametrize(("before", "after"), [("gpumonitor/gpu01/", "GPU-"), ("GPU-", "gpu-cluster-status/gpu01/")])
def test_gpu_that_another_source_names_otherwise_is_not_gone(before: str, after: str) -> None:
    watched = Watched()
    watched.report("gpu01", *(make_gpu(index, uuid=f"{before}{index}") for index in range(2)))
    watched.step()
    watched.report("gpu01", make_gpu(0, uuid=f"{after}0"))
    watched.run(10)
    assert [finding.title for finding in watched.find("gpu_lost")] == ["GPU 1 of gpu01 is gone"]


def test_last_gpu_of_a_model_that_is_gone_is_judged_by_the_limits_of_its_model() -> None:
    limits = {"gpu_lost": RuleChange(wait=0.0)}
    watched = Watched(AlertSettings(overrides=[Override(models="*V100*", rules=limits)]))  # type: ignore[arg-type]
    for number, model in enumerate(("Tesla V100", "NVIDIA A100")):
        watched.report(f"gpu0{number}", make_gpu(0, uuid=f"GPU-{number}", name=model))
    watched.step()
    for number in range(2):
        watched.report(f"gpu0{number}", report=Report(gpus=[]))
    watched.run(10)
    assert [record.host for record in watched.engine.firing()] == ["gpu00"]
    assert [record.host for record in watched.engine.pending()] == ["gpu01"]


def test_board_that_is_cut_into_instances_is_not_gone_nor_are_they_when_it_is_whole() -> None:
    watched = Watched()
    instance = make_gpu(0, uuid="MIG-1", parent="GPU-0", instance=1)
    for gpu in (make_gpu(0), instance, make_gpu(0, uuid="MIG-2", parent="GPU-0", instance=2), make_gpu(0)):
        watched.report("gpu01", gpu)
        watched.run(10)
        assert watched.find("gpu_lost") == []


@pytest.mark.parametrize(
    ("watts", "found"),
    [
        (400, []),
        (385, []),
        (375, [("GPU 0 of gpu01 is limited to 375 W; others of its model have 400 W", False)]),
        (250, [("GPU 0 of gpu01 is limited to 250 W; others of its model have 400 W", True)]),
    ],
)
def test_power_limit_is_compared_with_what_most_of_the_model_have(watts: int, found: list[Any]) -> None:
    others = [make_gpu(index) for index in (1, 2)]
    assert find("power_capped", make_gpu(metrics={"power_limit_watts": watts}), *others) == found


def test_limit_that_all_have_is_somebodys_decision() -> None:
    assert find("power_capped", *(make_gpu(index, metrics={"power_limit_watts": 200}) for index in range(3))) == []


@pytest.mark.parametrize(
    ("used", "found"),
    [(92, []), (94, [("/ of gpu01 is 94 % full", False)]), (96, [("/ of gpu01 is 96 % full", True)])],
)
def test_root_disk_has_two_thresholds(used: int, found: list[Any]) -> None:
    assert find("disk_full", metrics={"disk_used_bytes": used * GIB, "disk_total_bytes": 100 * GIB}) == found


def test_full_disk_for_data_is_found_beside_an_empty_one_and_99_percent_is_critical() -> None:
    watched = Watched()
    disks = [Disk("/data", 99 * GIB, 100 * GIB), Disk("/scratch", GIB, 100 * GIB), Disk("/empty", 0, 0)]
    watched.report("gpu01", disks=disks)
    watched.step()
    (found,) = watched.find("disk_full")
    assert (found.title, found.part, found.severity) == ("/data of gpu01 is 99 % full", "/data", "critical")


@pytest.mark.parametrize(("used", "bad"), [(80, []), (92, [False]), (96, [True])])
def test_ram_has_two_thresholds(used: int, bad: list[bool]) -> None:
    found = find("ram_full", metrics={"memory_used_bytes": used * GIB, "memory_total_bytes": 100 * GIB})
    assert [is_bad for _, is_bad in found] == bad


@pytest.mark.parametrize(
    ("skew", "found"),
    [
        (0.0, []),
        (-7.0, [("The clock of gpu01 is 7s behind the hub's", False)]),
        (90.0, [("The clock of gpu01 is 1m ahead of the hub's", True)]),
    ],
)
def test_wrong_clock_says_in_which_direction(skew: float, found: list[Any]) -> None:
    assert find("clock_skew", skew=skew) == found


@pytest.mark.parametrize(
    ("version", "via", "count"),
    [("1.0.0", "push", 0), ("0.9.9", "push", 1), ("0.9.9", "ssh", 0), ("1.1", "push", 0), ("vesta", "push", 0)],
)
def test_only_an_agent_of_ours_that_is_older_is_outdated(version: str, via: str, count: int) -> None:
    assert len(find("agent_outdated", agent_version=version, via=via)) == count


def test_host_that_comes_late_again_and_again_is_late() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.run(20)
    report = watched.reports
    for _ in range(6):
        watched.reports = {}
        watched.run(35, step=5)
        watched.reports = report
        watched.run(10)
    (found,) = watched.find("host_late")
    assert (found.title, found.is_bad) == ("gpu01 often reports late: 6 times within an hour", True)


def test_host_that_is_silent_is_down_since_it_was_last_heard() -> None:
    watched = Watched()
    watched.report("gpu01")
    watched.step()
    watched.hush("gpu01")
    watched.run(70)
    (found,) = watched.find("host_down")
    assert (found.title, found.since) == ("gpu01 has stopped reporting", NOW)


def xid(code: int, at: float = NOW, process: int | None = None) -> GpuEvent:
    return GpuEvent(at=at, code=code, process=process)


@pytest.mark.parametrize(
    ("code", "severity", "is_personal"), [(79, None, False), (63, "warning", False), (31, "info", True)]
)
def test_fault_is_told_by_its_class(code: int, severity: str | None, is_personal: bool) -> None:
    watched = Watched()
    watched.report("gpu01", make_busy_gpu(events=[xid(code, process=4711)]))
    watched.step()
    (found,) = watched.find("xid")
    assert (found.severity, found.is_personal, found.users, found.part) == (
        severity,
        is_personal,
        ("alice",),
        str(code),
    )


def test_old_fault_of_a_program_is_over_one_of_the_hardware_is_not() -> None:
    events = [xid(31, NOW - 7200), xid(79, NOW - 7200)]
    assert [title for title, _ in find("xid", make_gpu(events=events))] == [
        "XID 79 on GPU 0 of gpu01: it fell off the bus"
    ]


def test_fault_that_comes_ten_times_is_found_once() -> None:
    assert len(find("xid", make_gpu(events=[xid(79, NOW - number) for number in range(10, 0, -1)]))) == 1


IDLE = {"utilization_percent": 0, "memory_used_bytes": 20 * GIB}


def test_idle_gpu_is_sent_to_all_its_users() -> None:
    watched = Watched()
    processes = [make_process(1, "ada"), make_process(2, "bob")]
    watched.report("gpu01", make_gpu(metrics=IDLE, processes=processes, idle_seconds=9000.0))
    watched.step()
    (found,) = watched.find("gpu_idle")
    assert (found.title, found.users, found.is_personal) == (
        "GPU 0 of gpu01 is idle, in use by ada and bob",
        ("ada", "bob"),
        True,
    )
    assert watched.find("orphaned_memory") == []


@pytest.mark.parametrize(("processes", "count"), [([], 1), ([make_process()], 0), (None, 0)])
def test_memory_is_nobodys_only_where_it_is_known_that_no_process_is_there(processes: Any, count: int) -> None:
    gpu = make_gpu(metrics=IDLE, processes=processes, idle_seconds=9000.0)
    assert len(find("orphaned_memory", gpu)) == count


def marked(mark: ReservationMark) -> Watched:
    watched = Watched()
    watched.report("gpu01", make_busy_gpu(user="bob"))
    watched.step()
    watched.hub.fleet.mark({"GPU-0": mark}, watched.clock.now)
    return watched


def test_conflict_concerns_both() -> None:
    watched = marked(
        ReservationMark(
            GpuReservation(1, "ada", NOW + 3600, "", "reservation"), "bob is on it, though it is reserved by ada"
        )
    )
    (found,) = watched.find("reservation_conflict")
    assert (found.accounts, found.users) == (("ada",), ("bob",))
    assert watched.find("reservation_overrun") == []


def test_overrun_concerns_whoever_stays() -> None:
    watched = marked(ReservationMark(None, "bob is still on it: bob's reservation has ended"))
    (found,) = watched.find("reservation_overrun")
    assert (found.accounts, found.users) == ((), ("bob",))
    assert watched.find("reservation_conflict") == []


def test_reservation_that_nobody_uses_concerns_its_owner() -> None:
    late = make_reservation("A0")
    context = FleetContext(now=NOW, late_reservations=[(late, NOW + 600)])
    (found,) = RULES_BY_NAME["reservation_no_show"].find(HUB, (), DEFAULTS["reservation_no_show"], context)
    assert found.title == "Nobody uses ada's reservation of GPU 0 of gpu01: it is released in 10m"
    assert (found.accounts, found.is_personal, found.part) == (("ada",), True, "7")


@pytest.mark.parametrize(
    ("free", "known", "bad"), [(50, 100, []), (8, 100, [False]), (5, 100, [True]), (0, 7, []), (0, 8, [True])]
)
def test_fleet_is_nearly_full_by_the_gpus_that_are_known(free: int, known: int, bad: list[bool]) -> None:
    context = FleetContext(now=NOW, free=free, known=known)
    found = RULES_BY_NAME["fleet_nearly_full"].find(HUB, (), DEFAULTS["fleet_nearly_full"], context)
    assert [finding.is_bad for finding in found] == bad


@pytest.mark.parametrize(("problem", "count"), [(None, 0), ("no space left on /secret/place", 1)])
def test_failing_history_is_told_without_its_place(problem: str | None, count: int) -> None:
    context = FleetContext(now=NOW, history=judge_problem(problem))
    found = RULES_BY_NAME["history_failing"].find(HUB, (), DEFAULTS["history_failing"], context)
    assert [(finding.title, finding.severity) for finding in found] == [("The history is not kept", "critical")] * count


@pytest.mark.parametrize(("damage", "titles"), [(None, []), ("x", ["Part of the history is damaged"])])
def test_damaged_history_is_told(damage: str | None, titles: list[str]) -> None:
    context = FleetContext(now=NOW, history=judge_damage(damage))
    found = RULES_BY_NAME["history_failing"].find(HUB, (), DEFAULTS["history_failing"], context)
    assert [finding.title for finding in found] == titles


@pytest.mark.parametrize(
    ("backlog", "severity", "title"),
    [
        (
            Backlog(720.0, "http://store cannot be reached", room_seconds=111_600.0),
            "warning",
            "The history store does not take samples: they are kept in the queue on disk, 12m behind, "
            "room for 1d 7h more",
        ),
        (Backlog(7200.0), "warning", "The history store is catching up: 2h 0m behind"),
        (
            Backlog(720.0, "http://store cannot be reached", 0.0, lost_seconds=300.0),
            "critical",
            "History is being lost: the queue for its store is full, and samples of 5m were dropped",
        ),
    ],
)
def test_history_that_waits_is_late_and_only_what_is_dropped_is_lost(
    backlog: Backlog, severity: str, title: str
) -> None:
    context = FleetContext(now=NOW, history=judge_backlog(backlog))
    (found,) = RULES_BY_NAME["history_failing"].find(HUB, (), DEFAULTS["history_failing"], context)
    assert (found.severity, found.title) == (severity, title)


@given(
    celsius=st.one_of(st.none(), st.floats(-40, 140)),
    watts=st.one_of(st.none(), st.floats(1, 900)),
    flags=st.tuples(*(st.sampled_from([None, 0, 1]) for _ in range(4))),
    used=st.one_of(st.none(), st.integers(0, 80 * GIB)),
)
def test_no_reading_makes_a_rule_fail_and_unknown_finds_nothing(
    celsius: float | None, watts: float | None, flags: tuple[int | None, ...], used: int | None
) -> None:
    names = ("throttled_thermal", "throttled_hardware", "remapped_rows_pending", "ecc_uncorrected_count")
    metrics = dict(zip(names, flags, strict=True))
    metrics |= {"temperature_celsius": celsius, "power_limit_watts": watts, "memory_used_bytes": used}  # type: ignore[dict-item]
    watched = Watched()
    watched.report("gpu01", make_gpu(metrics=metrics))
    watched.step()
    assert len(watched.find("gpu_hot")) == (celsius is not None and celsius >= 82.0)
    assert len(watched.find("gpu_throttled")) == bool(flags[0] or flags[1])
    assert len(watched.find("ecc")) == bool(flags[2] or flags[3])
    assert watched.find("power_capped") == []
