"""A usual week in the lab: how much is free, busy and idle."""

from collections import Counter

import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.model.gpu_state import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading

MONDAY = 1_760_313_600.0
RULES = AvailabilitySettings()


def availability(gpu: GpuReading) -> str:
    processes = [process for process in gpu.processes or () if not process.display]
    shown = sum(process.memory_used_bytes or 0 for process in gpu.processes or () if process.display)
    return judge(
        processes=len(processes),
        memory_used_bytes=gpu.metrics["memory_used_bytes"] - shown,
        utilization_percent=gpu.metrics.get("utilization_percent"),
        idle_seconds=gpu.idle_seconds or 0.0,
        reserved=False,
        settings=RULES,
    )[0]


def count(fleet: SimulatedFleet, t: float) -> Counter[str]:
    reports = [fleet.report(host, t) for host in range(24)]
    return Counter(availability(gpu) for report in reports if report for gpu in report.gpus or () if not gpu.missing)


def test_a_week_has_a_usual_mix() -> None:
    fleets = [SimulatedFleet(24, seed) for seed in (1, 2, 3)]
    counts = [count(fleet, MONDAY + hours * 3600) for fleet in fleets for hours in range(0, 168, 5)]
    week = sum(counts, Counter[str]())
    share = {word: number / week.total() for word, number in week.items()}
    assert 0.15 <= share["free"] <= 0.30
    assert 0.50 <= share["busy"] <= 0.60
    assert 0.08 <= share["idle"] <= 0.15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_moment_of_the_week_is_out_of_the_ordinary(seed: int) -> None:
    fleet = SimulatedFleet(24, seed)
    counts = [count(fleet, MONDAY + hours * 3600) for hours in range(2, 168, 11)]
    assert all(0.08 < moment["free"] / moment.total() < 0.48 for moment in counts)
    assert all(0.38 < moment["busy"] / moment.total() < 0.80 for moment in counts)
    assert all(0.03 < moment["idle"] / moment.total() < 0.25 for moment in counts)


def test_idle_gpus_are_seen_as_idle_at_once() -> None:
    """The very first report of a fleet nobody has watched before says which GPUs are idle."""
    assert count(SimulatedFleet(24, seed=9), MONDAY + 50_000)["idle"] > 5
