"""Whether a GPU is well: heat, faults that the driver told of, and what could not be read."""

import pytest

from gpudeck.model.health import OK, HealthSettings, judge_health
from gpudeck.model.report import GpuEvent

SETTINGS = HealthSettings()


def faults(*codes: int) -> list[GpuEvent]:
    return [GpuEvent(at=float(at), code=code) for at, code in enumerate(codes)]


def test_critical_fault_is_critical_with_its_code_and_a_next_step() -> None:
    health = judge_health(None, 40.0, SETTINGS, faults(79))
    assert (health.level, health.reason) == ("critical", "XID 79: it has fallen off the bus")
    assert health.action is not None


@pytest.mark.parametrize("code", [63, 94, 9999])
def test_other_faults_of_the_hardware_are_a_warning(code: int) -> None:
    assert judge_health(None, 40.0, SETTINGS, faults(code)).level == "warning"


def test_fault_of_a_program_leaves_the_gpu_well() -> None:
    assert judge_health(None, 40.0, SETTINGS, faults(13, 31, 43, 45)) is OK


def test_worst_fault_counts_and_of_those_the_newest() -> None:
    assert judge_health(None, 40.0, SETTINGS, faults(48, 79, 63, 31)).reason == "XID 79: it has fallen off the bus"


@pytest.mark.parametrize(
    ("celsius", "codes", "reason"),
    [
        (96.0, [63], "96 °C"),
        (96.0, [79], "XID 79: it has fallen off the bus"),
        (90.0, [79], "XID 79: it has fallen off the bus"),
        (90.0, [31], "90 °C"),
        (None, [31], "its temperature could not be read"),
        (None, [79], "XID 79: it has fallen off the bus"),
    ],
)
def test_heat_and_faults_the_worse_counts(celsius: float | None, codes: list[int], reason: str) -> None:
    assert judge_health(None, celsius, SETTINGS, faults(*codes)).reason == reason


def test_missing_gpu_names_the_fault_that_made_it_so() -> None:
    health = judge_health("the GPU is lost", None, SETTINGS, faults(79))
    assert (health.level, health.reason) == ("critical", "the GPU is lost (XID 79: it has fallen off the bus)")


def test_missing_gpu_without_a_fault_is_critical_all_the_same() -> None:
    health = judge_health("the GPU is lost", None, SETTINGS, faults(31))
    assert (health.level, health.reason) == ("critical", "the GPU is lost")


def test_unread_temperature_says_why() -> None:
    health = judge_health(None, None, SETTINGS, why_unread="asleep")
    assert (health.level, health.reason) == ("unknown", "its temperature could not be read (asleep)")
