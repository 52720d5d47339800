"""Rules about GPUs that still work and will fail: what starts an alert, what ends it, and what says nothing."""

from typing import Any

import pytest

from alerts.watched import Watched
from fakes.reports import make_gpu
from gpudeck.alerts.rule import Rule
from gpudeck.alerts.selection import GpuTrends

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
LOADED = {"utilization_percent": 98}


def report(watched: Watched, **metrics: Any) -> None:
    watched.report("gpu01", make_gpu(0, metrics=metrics), make_gpu(1))


def watch(**metrics: Any) -> Watched:
    """A host whose first GPU has reported these values for half an hour."""
    watched = Watched()
    report(watched, **metrics)
    watched.run(30 * MINUTE)
    return watched


def pass_a_day(watched: Watched) -> None:
    """The hub itself sleeps through most of it."""
    watched.clock.advance(25 * HOUR)
    watched.run(5 * MINUTE)


@pytest.mark.parametrize(
    ("metrics", "titles"),
    [
        ({"pcie_width": 8}, ["The PCIe link of GPU 0 of gpu01 has 8 of 16 lanes"]),
        ({"pcie_generation": 1}, []),
        ({"pcie_generation": 1} | LOADED, ["The PCIe link of GPU 0 of gpu01 has generation 1 of 4"]),
        ({"pcie_generation": 3, "pcie_width": 1} | LOADED, None),
        ({"pcie_generation": None, "pcie_width": None} | LOADED, []),
        ({"pcie_generation_max": None, "pcie_width_max": None} | LOADED, []),
    ],
)
def test_the_width_of_a_pcie_link_counts_always_and_its_speed_under_load(
    metrics: dict[str, Any], titles: list[str] | None
) -> None:
    both = ["The PCIe link of GPU 0 of gpu01 has 1 of 16 lanes and generation 3 of 4"]
    assert [title for _, title in watch(**metrics).firing()] == (both if titles is None else titles)


def test_a_slow_link_that_rests_ends_no_alert_and_one_at_its_best_does() -> None:
    watched = watch(pcie_generation=1, **LOADED)
    report(watched, pcie_generation=1, utilization_percent=0)
    watched.run(HOUR)
    assert watched.rules() == ["pcie_degraded"]
    report(watched, pcie_generation=4, **LOADED)
    watched.run(HOUR)
    assert watched.rules() == []


@pytest.mark.parametrize(
    ("rule", "metric", "few", "many", "words"),
    [
        ("nvlink_errors", "nvlink_error_count", 9, 12, "had 12 NVLink errors within an hour, most of all on link 0"),
        ("ecc_rate", "ecc_corrected_count", 99, 1000, "corrected 1,000 memory errors within an hour"),
        ("row_remaps", "remapped_rows_count", 0, 1, "replaced 1 row of its memory within a day"),
    ],
)
def test_a_counter_that_grows_fast_is_an_alert_until_its_time_is_over(
    rule: str, metric: str, few: int, many: int, words: str
) -> None:
    watched = watch(**{metric: 5000})
    assert watched.rules() == [], "errors of before the start are not known to be new"
    report(watched, **{metric: 5000 + few})
    watched.run(5 * MINUTE)
    assert watched.rules() == []
    pass_a_day(watched)
    report(watched, **{metric: 5000 + few + many})
    watched.run(5 * MINUTE)
    assert watched.firing() == [(rule, f"GPU 0 of gpu01 has {words}")]
    pass_a_day(watched)
    assert watched.rules() == []


def test_growth_adds_up_within_the_hour_and_a_counter_that_begins_anew_has_not_grown() -> None:
    watched = watch(nvlink_error_count=1000)
    for step in range(1, 5):
        report(watched, nvlink_error_count=1000 + 3 * step)
        watched.run(2 * MINUTE)
    assert watched.rules() == ["nvlink_errors"]
    restarted = watch(nvlink_error_count=1000)
    report(restarted, nvlink_error_count=0)
    restarted.run(5 * MINUTE)
    assert restarted.rules() == []


def test_a_rule_about_growth_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="the rule resets needs the window in which reset_count grows"):
        Rule(name="resets", scope="gpu", find=lambda *_: (), action="", many="", counter="reset_count")


@pytest.mark.parametrize(
    ("rule", "metric", "window"),
    [
        ("nvlink_errors", "nvlink_error_count", HOUR),
        ("ecc_rate", "ecc_corrected_count", HOUR),
        ("row_remaps", "remapped_rows_count", DAY),
    ],
)
def test_a_restart_ends_no_alert_before_the_growth_of_a_whole_window_is_known(
    rule: str, metric: str, window: float
) -> None:
    watched = watch(**{metric: 5000})
    report(watched, **{metric: 9000})
    watched.run(5 * MINUTE)
    assert watched.rules() == [rule]
    records, watched.engine, watched.trends = watched.engine.firing(), watched.make_engine(), GpuTrends()
    watched.engine.load(records, watched.clock.now)
    watched.events.clear()
    watched.run(window - 5 * MINUTE, step=60.0)
    assert (watched.rules(), watched.kinds()) == ([rule], [])
    watched.run(20 * MINUTE)
    assert watched.rules() == []


def test_growth_is_that_of_the_same_gpu_also_where_rows_change() -> None:
    watched = watch(nvlink_error_count=7)
    watched.report("gpu00", *(make_gpu(at, uuid=f"GPU-x{at}", metrics={"nvlink_error_count": 0}) for at in range(8)))
    watched.report("gpu01", make_gpu(1, metrics={"nvlink_error_count": 9000}, uuid="GPU-new"), make_gpu(0))
    watched.run(5 * MINUTE)
    assert [rule for rule in watched.rules() if rule != "gpu_lost"] == []


def test_a_counter_that_could_not_be_read_for_a_while_is_compared_with_before() -> None:
    watched = watch(nvlink_error_count=7)
    report(watched, nvlink_error_count=None)
    watched.run(5 * MINUTE)
    report(watched, nvlink_error_count=70)
    watched.run(5 * MINUTE)
    assert watched.rules() == ["nvlink_errors"]


def clocks(*values: tuple[int, dict[str, Any]]) -> Watched:
    watched = Watched()
    for number, (clock, others) in enumerate(values):
        gpu = make_gpu(0, uuid=f"GPU-{number}", metrics={"clock_sm_mhz": clock} | LOADED | others)
        watched.report(f"gpu{number:02}", gpu)
    watched.run(30 * MINUTE)
    return watched


NORMAL = [(1980, {})] * 5


@pytest.mark.parametrize(
    ("clock", "others", "is_found"),
    [
        (1300, {}, True),
        (1900, {}, False),
        (1300, {"utilization_percent": 40}, False),
        (1300, {"throttled_power": 1}, False),
        (1300, {"throttled_power": None}, True),
        (1300, {"utilization_percent": None}, False),
    ],
)
def test_a_gpu_is_slow_beside_others_of_its_model_under_load(
    clock: int, others: dict[str, Any], is_found: bool
) -> None:
    found = clocks(*NORMAL, (clock, others)).firing()
    title = "GPU 0 of gpu05 runs at 1300 MHz; others under load at 1980 MHz"
    assert found == ([("gpu_slow", title)] if is_found else [])


def test_of_three_gpus_none_is_usual() -> None:
    assert clocks((1980, {}), (1980, {}), (600, {})).firing() == []


def test_a_slow_gpu_is_not_well_because_its_job_ended() -> None:
    watched = clocks(*NORMAL, (1300, {}))
    idle = make_gpu(0, uuid="GPU-5", metrics={"clock_sm_mhz": 345})
    watched.report("gpu05", idle)
    watched.run(HOUR)
    assert watched.rules() == ["gpu_slow"]
    watched.report("gpu05", make_gpu(0, uuid="GPU-5", metrics={"clock_sm_mhz": 1980} | LOADED))
    watched.run(HOUR)
    assert watched.rules() == []


@pytest.mark.parametrize(("margin", "is_found"), [(5, True), (0, True), (-3, True), (6, False), (None, False)])
def test_little_headroom_is_an_alert_before_the_gpu_slows_down(margin: int | None, is_found: bool) -> None:
    assert watch(temperature_margin_celsius=margin).rules() == (["thermal_headroom"] if is_found else [])
