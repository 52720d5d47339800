"""Whether a GPU is well: heat, faults that the driver told of, and what could not be read."""

import pytest

from gpudeck.model.gpu_state import OK, Health, HealthSettings, judge_faults, judge_health, judge_wear
from gpudeck.model.report import GpuEvent

SETTINGS = HealthSettings()


def faults(*codes: int) -> list[GpuEvent]:
    return [GpuEvent(at=float(at), code=code) for at, code in enumerate(codes)]


def test_critical_fault_is_critical_with_its_code_and_a_next_step() -> None:
    health = judge_health(None, 40.0, SETTINGS, judge_faults(faults(79)))
    assert (health.level, health.reason) == ("critical", "XID 79: it fell off the bus")
    assert health.action is not None


@pytest.mark.parametrize("code", [63, 94, 9999])
def test_other_faults_of_the_hardware_are_a_warning(code: int) -> None:
    assert judge_health(None, 40.0, SETTINGS, judge_faults(faults(code))).level == "warning"


def test_fault_of_a_program_leaves_the_gpu_well() -> None:
    assert judge_health(None, 40.0, SETTINGS, judge_faults(faults(13, 31, 43, 45))) is OK


def test_worst_fault_counts_and_of_those_the_newest() -> None:
    assert (
        judge_health(None, 40.0, SETTINGS, judge_faults(faults(48, 79, 63, 31))).reason == "XID 79: it fell off the bus"
    )


@pytest.mark.parametrize(
    ("celsius", "codes", "reason"),
    [
        (96.0, [63], "96 °C"),
        (96.0, [79], "XID 79: it fell off the bus"),
        (90.0, [79], "XID 79: it fell off the bus"),
        (90.0, [31], "90 °C"),
        (None, [31], "its temperature could not be read"),
        (None, [79], "XID 79: it fell off the bus"),
    ],
)
def test_heat_and_faults_the_worse_counts(celsius: float | None, codes: list[int], reason: str) -> None:
    assert judge_health(None, celsius, SETTINGS, judge_faults(faults(*codes))).reason == reason


def test_missing_gpu_names_the_fault_that_made_it_so() -> None:
    health = judge_health("the GPU is lost", None, SETTINGS, judge_faults(faults(79)))
    assert (health.level, health.reason) == ("critical", "the GPU is lost (XID 79: it fell off the bus)")


def test_missing_gpu_without_a_fault_is_critical_all_the_same() -> None:
    health = judge_health("the GPU is lost", None, SETTINGS, judge_faults(faults(31)))
    assert (health.level, health.reason) == ("critical", "the GPU is lost")


def test_unread_temperature_says_why() -> None:
    health = judge_health(None, None, SETTINGS, why_unread="asleep")
    assert (health.level, health.reason) == ("unknown", "its temperature could not be read (asleep)")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"remapped_rows_pending": 1}, "row remap pending"),
        ({"ecc_uncorrected_count": 3}, "3 uncorrected memory errors since the driver was loaded"),
        ({"nvlink_inactive_count": 1, "nvlink_active_count": 17}, "NVLink: 1 down"),
    ],
)
def test_counters_that_show_wear_are_a_warning_with_a_next_step(metrics: dict[str, float], told: str) -> None:
    wear = judge_wear(metrics)
    assert (wear.level, wear.reason) == ("warning", told)
    assert wear.action is not None
    assert judge_health(None, 40.0, SETTINGS, wear=wear) == wear


@pytest.mark.parametrize("value", [0, None])
def test_counters_at_zero_or_unknown_say_nothing(value: float | None) -> None:
    names = ("remapped_rows_pending", "ecc_uncorrected_count", "nvlink_inactive_count")
    assert judge_wear(dict.fromkeys(names, value)) is OK


def test_wear_does_not_hide_what_is_worse() -> None:
    wear = Health("warning", "worn", "reset it")
    assert judge_health(None, 96.0, SETTINGS, wear=wear).reason == "96 °C"
    assert judge_health(None, 40.0, SETTINGS, judge_faults(faults(63)), wear=wear).reason != "worn"
    assert judge_health(None, None, SETTINGS, wear=wear).reason == "worn"
