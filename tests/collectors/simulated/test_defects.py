"""Something is always wrong somewhere, so that a demo shows it."""

from functools import cache
from itertools import pairwise

import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import GpuReading, Report

NOON = 1_760_356_800.0
A100 = "NVIDIA A100-SXM4-80GB"
SEEDS = pytest.mark.parametrize("seed", [1, 2, 77])
MOMENTS = [NOON + hours * 3600 for hours in (0, 11, 40, 103, 700)]


def gpus_at(fleet: SimulatedFleet, t: float) -> list[GpuReading]:
    reports = [fleet.report(host, t) for host in range(len(fleet.names))]
    return [gpu for report in reports if report for gpu in report.gpus or ()]


@SEEDS
def test_one_gpu_is_missing_and_keeps_its_identity(seed: int) -> None:
    missing = [[gpu for gpu in gpus_at(SimulatedFleet(8, seed), t) if gpu.missing] for t in MOMENTS]
    (gpu,) = missing[0]
    assert all([other.uuid for other in found] == [gpu.uuid] for found in missing)
    assert gpu.missing == "fell off the bus (Xid 79)"
    assert gpu.name.startswith("NVIDIA")
    assert gpu.metrics == {}
    assert gpu.unknown == dict.fromkeys(GPU_METRICS, gpu.missing)
    assert (gpu.processes, gpu.processes_reason) == (None, gpu.missing)


@SEEDS
def test_the_admin_is_told_of_the_missing_gpu(seed: int) -> None:
    fleet = SimulatedFleet(8, seed)
    reports = [report for host in range(8) if (report := fleet.report(host, NOON))]
    problems = [report.problems for report in reports if report.problems]
    (index,) = [gpu.index for gpu in gpus_at(fleet, NOON) if gpu.missing]
    assert problems == [[f"GPU {index} fell off the bus (Xid 79)"]]


@SEEDS
def test_one_gpu_is_always_too_hot(seed: int) -> None:
    fleet = SimulatedFleet(8, seed)
    hot = [[gpu for gpu in gpus_at(fleet, t) if gpu.metrics.get("temperature_celsius", 0) > 86] for t in MOMENTS]
    assert [len(found) for found in hot] == [1] * len(MOMENTS)
    assert {gpu.uuid for found in hot for gpu in found} == {hot[0][0].uuid}
    assert all(88 <= gpu.metrics["temperature_celsius"] <= 93 for found in hot for gpu in found)


@SEEDS
def test_one_gpu_holds_memory_without_a_process(seed: int) -> None:
    orphaned = [
        gpu
        for gpu in gpus_at(SimulatedFleet(8, seed), NOON)
        if gpu.processes == [] and gpu.metrics["memory_used_bytes"] > 1 << 30
    ]
    assert len(orphaned) == 1
    assert orphaned[0].idle_seconds is not None
    assert orphaned[0].idle_seconds > 600


@SEEDS
def test_one_host_is_cut_into_mig_instances(seed: int) -> None:
    instances = [gpu for gpu in gpus_at(SimulatedFleet(8, seed), NOON) if gpu.parent]
    boards = {gpu.parent: [other for other in instances if other.parent == gpu.parent] for gpu in instances}
    assert sorted(len(rows) for rows in boards.values()) == [4, 7]
    for rows in boards.values():
        assert len({gpu.instance for gpu in rows}) == len(rows)
        assert len({gpu.index for gpu in rows}) == 1
        assert len({gpu.metrics["temperature_celsius"] for gpu in rows}) == 1
        assert sum(gpu.metrics["memory_total_bytes"] for gpu in rows) <= 81_920 << 20


def test_what_only_the_board_can_tell_is_unknown_for_an_instance() -> None:
    instances = [gpu for gpu in gpus_at(SimulatedFleet(8), NOON) if gpu.parent]
    assert {gpu.unknown["utilization_percent"] for gpu in instances} == {"not supported by this GPU"}
    assert {gpu.unknown["power_watts"] for gpu in instances} == {"measured on the whole board, not by MIG instance"}
    processes = [process for gpu in instances for process in gpu.processes or ()]
    assert processes
    assert {process.utilization_percent for process in processes} == {None}
    assert all("utilization_percent" in process.reasons for process in processes)


def test_a_passively_cooled_gpu_has_no_fan_to_read() -> None:
    servers = [gpu for gpu in gpus_at(SimulatedFleet(8), NOON) if gpu.name == "NVIDIA H200"]
    assert {gpu.unknown["fan_percent"] for gpu in servers} == {"not supported by this GPU"}


def test_a_workstation_has_a_screen() -> None:
    processes = [process for gpu in gpus_at(SimulatedFleet(8), NOON) for process in gpu.processes or ()]
    displays = [process for process in processes if process.display]
    assert [process.command for process in displays] == ["Xorg :0 -nolisten tcp vt2"]
    assert displays[0].memory_used_bytes is not None
    assert displays[0].memory_used_bytes < 64 << 20


def test_one_host_is_of_another_vendor() -> None:
    assert [gpu.name for gpu in gpus_at(SimulatedFleet(8), NOON) if gpu.vendor == "amd"] == ["AMD Instinct MI300X"] * 8


class Watch:
    """The host that keeps dying, looked at every 5 seconds for an hour."""

    def __init__(self, seed: int) -> None:
        self.fleet = SimulatedFleet(8, seed)
        self.times = [NOON + step * 5 for step in range(720)]
        (self.host,) = [host for host in range(8) if any(not self.fleet.report(host, t) for t in self.times)]
        self.reports = [self.fleet.report(self.host, t) for t in self.times]
        self.boot_ids = [self.fleet.boot_id(self.host, t) for t in self.times]

    def lives(self) -> list[list[Report]]:
        seen = list(zip(self.boot_ids, self.reports, strict=True))
        return [[report for boot, report in seen if boot == life and report] for life in dict.fromkeys(self.boot_ids)]


@cache
def watch_over(seed: int) -> Watch:
    """One for all that look at it: an hour takes most of a second."""
    return Watch(seed)


@SEEDS
def test_one_host_is_dead_two_minutes_in_ten(seed: int) -> None:
    dead = sum(report is None for report in watch_over(seed).reports)
    assert 0.17 < dead / 720 < 0.25


@SEEDS
def test_a_host_returns_from_death_with_a_new_boot_id(seed: int) -> None:
    watch = watch_over(seed)
    came_back = [
        (watch.boot_ids[step - 1], watch.boot_ids[step])
        for step in range(1, 720)
        if watch.reports[step] and not watch.reports[step - 1]
    ]
    assert len(came_back) >= 5
    assert all(before != after for before, after in came_back)
    assert len(set(watch.boot_ids)) <= 7


@SEEDS
def test_uptime_restarts_after_death(seed: int) -> None:
    uptimes = [[report.metrics["uptime_seconds"] for report in life] for life in watch_over(seed).lives()]
    whole_lives = uptimes[1:-1]
    assert all(life[0] == 0 and life == sorted(life) and life[-1] >= 420 for life in whole_lives)


@SEEDS
def test_no_process_outlives_its_host(seed: int) -> None:
    watch = watch_over(seed)
    seen = [
        {
            (process.pid, process.started_at)
            for report in life
            for gpu in report.gpus or ()
            for process in gpu.processes or ()
        }
        for life in watch.lives()[1:-1]
    ]
    assert all(seen)
    assert all(one.isdisjoint(other) for one, other in pairwise(seen))


def test_other_hosts_keep_their_boot_id_and_their_uptime_grows() -> None:
    watch = watch_over(1)
    steady = [host for host in range(8) if host != watch.host]
    boots = {host: {watch.fleet.boot_id(host, t) for t in watch.times} for host in steady}
    assert [len(ids) for ids in boots.values()] == [1] * 7
    first, last = (watch.fleet.report(steady[0], t) for t in (NOON, NOON + 3600))
    assert first is not None
    assert last is not None
    assert last.metrics["uptime_seconds"] - first.metrics["uptime_seconds"] == 3600


@pytest.mark.parametrize("hosts", range(1, 8))
def test_a_small_fleet_has_mishaps_that_fit_its_size(hosts: int) -> None:
    gpus = [gpu for t in MOMENTS for gpu in gpus_at(SimulatedFleet(hosts), t)]
    assert any(gpu.metrics.get("temperature_celsius", 0) >= 88 for gpu in gpus) is (hosts >= 2)
    assert any(gpu.parent for gpu in gpus) is (hosts >= 3)
    assert any(gpu.missing for gpu in gpus) is (hosts >= 4)
    assert all(SimulatedFleet(hosts).report(host, NOON + 7) is not None for host in range(min(hosts, 5)))


def test_the_ninth_host_has_a_gpu_that_fails_and_is_reset_again_and_again() -> None:
    fleet = SimulatedFleet(9)
    turns = fleet.event_times(8, NOON - 60 * 86_400, NOON)
    lost = [t for t in turns if (report := fleet.report(8, t + 1)) and any(gpu.missing for gpu in report.gpus or ())]
    assert 30 <= len({round(t, -4) for t in lost}) <= 40
    (uuid,) = {gpu.uuid for t in lost for gpu in gpus_at(fleet, t + 1) if gpu.missing and gpu.name in A100}
    after = [next(gpu for gpu in gpus_at(fleet, t + 1300) if gpu.uuid == uuid) for t in lost[:5]]
    assert not any(gpu.missing for gpu in after)
    assert all({event.code for event in gpu.events} >= {79} for gpu in after)
    before = [next(gpu for gpu in gpus_at(fleet, t - 300) if gpu.uuid == uuid) for t in lost]
    assert any(gpu.metrics.get("throttled_thermal") for gpu in before)
