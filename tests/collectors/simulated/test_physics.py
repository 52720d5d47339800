"""Readings follow from the work: memory ramps, temperature follows power, idle time is counted."""

import math
from functools import cache
from itertools import pairwise

import pytest

from gpudeck.collectors.simulated import Kind, SimulatedFleet, SimulatedJob
from gpudeck.collectors.simulated.chance import draw, wave
from gpudeck.collectors.simulated.work import Pattern
from gpudeck.model.report import GpuReading

NOON = 1_760_356_800.0
DAY = 86_400.0


def reading(fleet: SimulatedFleet, host: int, run: SimulatedJob, t: float) -> GpuReading:
    report = fleet.report(host, t)
    assert report is not None
    return next(gpu for gpu in report.gpus or () if gpu.uuid == run.gpus[0])


def held_by(gpu: GpuReading, run: SimulatedJob) -> int:
    return next(p.memory_used_bytes or 0 for p in gpu.processes or () if p.pid == run.pids[0])


@cache
def after_rest(fleet: SimulatedFleet, kind: Kind) -> list[tuple[int, SimulatedJob]]:
    """Jobs of a kind, an hour long at least, alone on whole GPUs that were empty for ten minutes before."""
    return [
        (host, run)
        for host in range(24)
        for run in fleet.runs(host, NOON, NOON + 6 * DAY)
        if run.kind == kind and run.start > NOON and run.end - run.start > 3600 and run.gpus[0].startswith("GPU-")
        if not any(run.gpus[0] in other.gpus and other != run for other in fleet.runs(host, run.start - 600, run.end))
    ]


@pytest.mark.parametrize("kind", ["training", "loader", "notebook", "inference", "holder"])
def test_memory_ramps_up_and_then_stays(fleet: SimulatedFleet, kind: Kind) -> None:
    jobs = after_rest(fleet, kind)[:5]
    assert jobs
    for host, run in jobs:
        held = [held_by(reading(fleet, host, run, run.start + age), run) for age in (0, 15, 300, 900, 3500)]
        assert held[0] < held[1] < held[2]
        assert held[2] == held[3] == held[4]
        assert held[0] <= 420 << 20


def test_temperature_follows_power(fleet: SimulatedFleet) -> None:
    cool = [(host, run) for host, run in after_rest(fleet, "training") if not is_hot(fleet, host)]
    assert len(cool) > 10
    for host, run in cool[:10]:
        begun = run.start + run.work.load_s
        idle, working = (reading(fleet, host, run, begun + age).metrics for age in (-1, 9))
        assert working["power_watts"] > 1.3 * idle["power_watts"]
        assert working["temperature_celsius"] > idle["temperature_celsius"] + 5


def test_a_gpu_cools_down_after_its_job(fleet: SimulatedFleet) -> None:
    host, run = next((host, run) for host, run in after_rest(fleet, "training") if is_left_alone(fleet, host, run))
    warm, cold = (reading(fleet, host, run, run.end + age).metrics["temperature_celsius"] for age in (-1, 45))
    assert warm > cold


def is_left_alone(fleet: SimulatedFleet, host: int, run: SimulatedJob) -> bool:
    return not any(run.gpus[0] in other.gpus for other in fleet.runs(host, run.end, run.end + 600))


def is_hot(fleet: SimulatedFleet, host: int) -> bool:
    report = fleet.report(host, NOON)
    return report is not None and any(gpu.metrics.get("temperature_celsius", 0) >= 88 for gpu in report.gpus or ())


def test_fans_follow_the_temperature(fleet: SimulatedFleet) -> None:
    reports = [fleet.report(host, NOON + hour * 3600) for host in range(24) for hour in range(10)]
    metrics = [gpu.metrics for report in reports if report for gpu in report.gpus or () if "fan_percent" in gpu.metrics]
    assert min(m["fan_percent"] for m in metrics if m["temperature_celsius"] > 65) > 60
    assert max(m["fan_percent"] for m in metrics if m["temperature_celsius"] < 40) < 40


def test_power_stays_within_the_limit_and_rises_with_work(fleet: SimulatedFleet) -> None:
    reports = [fleet.report(host, NOON + hour * 3600) for host in range(24) for hour in range(10)]
    metrics = [gpu.metrics for report in reports if report for gpu in report.gpus or () if "power_watts" in gpu.metrics]
    shares = [(m["utilization_percent"], m["power_watts"] / m["power_limit_watts"]) for m in metrics]
    assert max(share for _, share in shares) <= 1
    assert min(share for used, share in shares if used > 90) > 0.5
    assert max(share for used, share in shares if used == 0) < 0.3


def test_training_is_steady_with_short_pauses(fleet: SimulatedFleet) -> None:
    host, run = after_rest(fleet, "training")[0]
    used = [
        reading(fleet, host, run, t).metrics["utilization_percent"]
        for t in (run.start + run.work.load_s + 4 + 8 * step for step in range(400))
        if t < run.end
    ]
    assert sum(percent > 75 for percent in used) > 0.85 * len(used)


def test_a_loader_bound_job_goes_up_and_down_around_half(fleet: SimulatedFleet) -> None:
    jobs = after_rest(fleet, "loader")[:5]
    assert jobs
    for host, run in jobs:
        used = [
            reading(fleet, host, run, run.start + 200 + 60 * step).metrics["utilization_percent"] for step in range(50)
        ]
        assert 6 <= min(used) < 35
        assert 50 < max(used) <= 85


SIGNATURES: dict[Pattern, dict[str, tuple[int, int]]] = {
    "mixed": {"utilization": (80, 100), "sm_activity": (60, 100), "tensor_activity": (45, 90), "fp64_activity": (0, 0)},
    "single": {"sm_activity": (60, 100), "tensor_activity": (0, 0), "fp32_activity": (35, 70)},
    "double": {"sm_activity": (60, 100), "tensor_activity": (0, 0), "fp64_activity": (35, 70)},
    "memory": {"sm_activity": (60, 100), "tensor_activity": (0, 0), "dram_activity": (60, 100)},
    "tiny": {"utilization": (15, 65), "sm_activity": (0, 4), "tensor_activity": (0, 0), "dram_activity": (0, 2)},
}


@pytest.mark.parametrize("pattern", SIGNATURES)
def test_activity_tells_what_a_training_computes(fleet: SimulatedFleet, pattern: Pattern) -> None:
    """One that is alone on a GPU that measures it, in the middle of a stretch of work."""
    found = [
        reading(fleet, host, run, run.start + run.work.load_s + 300).metrics
        for host, run in all_trainings(fleet)
        if run.work.pattern == pattern
    ]
    assert found
    for name, (low, high) in SIGNATURES[pattern].items():
        assert all(low <= metrics[f"{name}_percent"] <= high for metrics in found), name


def test_only_jobs_on_several_gpus_exchange_data_over_nvlink(fleet: SimulatedFleet) -> None:
    rates = {
        (len(run.slots) > 1, run.work.pattern == "tiny"): reading(
            fleet, host, run, run.start + run.work.load_s + 300
        ).metrics["nvlink_receive_bytes_per_second"]
        for host, run in all_trainings(fleet)
    }
    assert {several: rate > 1e10 for (several, is_tiny), rate in rates.items() if not is_tiny} == {
        True: True,
        False: False,
    }


def all_trainings(fleet: SimulatedFleet) -> list[tuple[int, SimulatedJob]]:
    """Long ones of a month without guests on hosts with H100 and H200, with the numbers of their hosts."""
    return [
        (host, run)
        for host in range(24)
        if fleet.simulator(host).host.chassis.model.features.measures_activity
        for run in fleet.runs(host, NOON, NOON + 30 * DAY)
        if run.kind == "training" and run.guest is None and run.end - run.start > 3600
    ]


def test_a_notebook_works_in_bursts(fleet: SimulatedFleet) -> None:
    used = [
        reading(fleet, host, run, run.start + 200 + 60 * step).metrics["utilization_percent"]
        for host, run in after_rest(fleet, "notebook")[:10]
        for step in range(55)
    ]
    assert 0.2 < sum(percent == 0 for percent in used) / len(used) < 0.9


def test_an_idle_holder_counts_its_idle_time(fleet: SimulatedFleet) -> None:
    long_ones = [
        (host, run)
        for host, run in after_rest(fleet, "holder")
        if run.end - run.start > run.work.load_s + run.work.period_s + 3600
    ]
    assert len(long_ones) > 5
    for host, run in long_ones:
        stopped = run.start + run.work.load_s + run.work.period_s
        working, idle = reading(fleet, host, run, stopped - 1), reading(fleet, host, run, stopped + 3000)
        assert working.metrics["utilization_percent"] >= 5
        assert working.idle_seconds == 0
        assert idle.metrics["utilization_percent"] == 0
        assert idle.idle_seconds == 3000
        assert held_by(idle, run) == held_by(working, run)


def test_idle_seconds_are_zero_exactly_while_work_is_seen(fleet: SimulatedFleet) -> None:
    # Work begins and ends on whole seconds: 0.6 s later idleness is never rounded to nothing.
    reports = [fleet.report(host, NOON + 0.6 + step * 1777) for host in range(24) for step in range(60)]
    gpus = [gpu for report in reports if report for gpu in report.gpus or () if "utilization_percent" in gpu.metrics]
    assert {gpu.idle_seconds for gpu in gpus if gpu.metrics["utilization_percent"] >= 5} == {0}
    assert all(gpu.idle_seconds for gpu in gpus if gpu.metrics["utilization_percent"] < 5)


def test_an_empty_gpu_is_idle_since_its_last_job(fleet: SimulatedFleet) -> None:
    host, run = next((host, run) for host, run in after_rest(fleet, "training") if is_left_alone(fleet, host, run))
    gpu = reading(fleet, host, run, run.end + 500)
    assert gpu.processes == []
    assert gpu.idle_seconds == 500


def test_waves_are_smooth_and_differ_by_salt() -> None:
    curves = [[wave(salt, NOON + step / 10, 12.0) for step in range(6000)] for salt in (1, 2, 3)]
    assert all(-1 <= value <= 1 for curve in curves for value in curve)
    assert all(max(curve) > 0.5 and min(curve) < -0.5 for curve in curves)
    assert max(abs(b - a) for curve in curves for a, b in pairwise(curve)) < 0.03
    assert not any(math.isclose(a, b) for a, b in zip(curves[0][::60], curves[1][::60], strict=True))


def test_draws_are_even() -> None:
    values = [draw(salt, number) for salt in range(50) for number in range(200)]
    assert all(0 <= value < 1 for value in values)
    assert all(0.09 < sum(low <= value * 10 < low + 1 for value in values) / len(values) < 0.11 for low in range(10))
