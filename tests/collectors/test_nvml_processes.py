"""The processes that the NVML collector lists, and how hard they work, over the real pynvml and a fake driver."""

from pathlib import Path

import pytest

from fakes.nvml.driver import GIB, MAX, NO_COMPILER, FakeGpu, find_compiler
from fakes.nvml.station import Station, an_h200, processes_of
from gpudeck.collectors.base import NO_VALUE, UNSUPPORTED
from gpudeck.collectors.nvml_board import NOT_YET
from gpudeck.model.report import Process

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

NOW = 1_790_000_000.0
BEGAN = int(NOW * 1e6)
"""The same moment as the driver counts it."""


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    return Station(tmp_path, monkeypatch)


def percents(station: Station, now: float) -> dict[int, float | None]:
    return {pid: process.utilization_percent for pid, process in processes_of(station.read(now)["GPU-a"]).items()}


def test_compute_and_graphics_lists_are_merged_by_pid(station: Station) -> None:
    gpu = station.read_one(
        FakeGpu("GPU-a", compute=[(1, GIB), (2, 3 * GIB)], graphics=[(2, 3 * GIB), (3, 7)]),
    )
    assert [(p.pid, p.memory_used_bytes, p.user) for p in gpu.processes or ()] == [
        (2, 3 * GIB, "alice"),
        (1, GIB, "alice"),
        (3, 7, "alice"),
    ]


def test_all_that_is_known_of_an_owner_is_told(station: Station) -> None:
    [process] = station.read_one(FakeGpu("GPU-a", compute=[(1, GIB)])).processes or []
    assert process == Process(
        pid=1,
        user="alice",
        command="train",
        memory_used_bytes=GIB,
        started_at=7.0,
        utilization_percent=0,
        container="trainer",
        job="42",
        evidence="uid 1000",
    )


def test_process_memory_that_is_not_available_is_unknown(station: Station) -> None:
    [process] = station.read_one(FakeGpu("GPU-a", compute=[(1, MAX)])).processes or []
    assert process.memory_used_bytes is None
    assert process.reasons["memory_used_bytes"] == NO_VALUE


def test_unknown_memory_of_a_process_is_not_added_up_to_a_gpus_memory(station: Station) -> None:
    gpu = an_h200(memory_total=0, memory_used=0, memory_reserved=0)
    gpu.compute = [(1, MAX), (2, GIB)]
    assert station.read_one(gpu).unknown["memory_used_bytes"] == NO_VALUE


def test_process_list_that_cannot_be_read_is_none_with_its_reason(station: Station) -> None:
    failures = {"nvmlDeviceGetComputeRunningProcesses_v3": "no_permission"}
    gpu = station.read_one(FakeGpu("GPU-a", failures=failures))
    assert gpu.processes is None
    assert gpu.processes_reason == "not permitted to read it"
    assert gpu.metrics["utilization_percent"] == 90


def test_process_list_of_an_old_driver_is_read(station: Station) -> None:
    failures = {
        "nvmlDeviceGetComputeRunningProcesses_v3": "function_not_found",
        "nvmlDeviceGetGraphicsRunningProcesses_v3": "function_not_found",
    }
    gpu = station.read_one(FakeGpu("GPU-a", compute=[(1, GIB)], graphics=[(2, 5)], failures=failures))
    assert list(processes_of(gpu)) == [1, 2]


def test_gpu_without_graphics_list_still_has_its_compute_processes(station: Station) -> None:
    failures = {"nvmlDeviceGetGraphicsRunningProcesses_v3": "not_supported"}
    gpu = station.read_one(FakeGpu("GPU-a", compute=[(1, GIB)], failures=failures))
    assert list(processes_of(gpu)) == [1]


def test_no_more_processes_are_listed_than_a_report_may_hold(station: Station) -> None:
    gpu = station.read_one(FakeGpu("GPU-a", compute=[(pid, pid) for pid in range(1, 1100)]))
    assert (len(gpu.processes or ()), min(processes_of(gpu))) == (1024, 76)


def test_display_servers_are_marked_unless_they_compute(station: Station) -> None:
    station.collect_anew(names={1: "Xorg", 2: "gnome-shell", 3: "blender", 4: "Xorg", 5: "lightdm-gtk-gre"})
    gpu = station.read_one(FakeGpu("GPU-a", graphics=[(1, 5), (2, 4), (3, 3), (5, 1)], compute=[(4, 2)]))
    marked = {pid: process.display for pid, process in processes_of(gpu).items()}
    assert marked == {1: True, 2: True, 3: False, 4: False, 5: True}


def test_process_without_a_sample_is_idle_and_one_with_a_sample_works(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB), (2, GIB)], samples=[(1, BEGAN - 5_000_000, 35)]))
    assert percents(station, NOW) == {1: 35, 2: 0}


def test_no_samples_at_all_means_that_all_are_idle(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)]))
    assert percents(station, NOW) == {1: 0}


def test_work_that_ended_long_before_the_agent_started_does_not_look_busy(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], samples=[(1, BEGAN - 60_000_000, 99)]))
    assert percents(station, NOW) == {1: 0}


def test_sample_counts_once_then_the_process_is_idle(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], samples=[(1, BEGAN - 1_000_000, 35)]))
    assert [percents(station, NOW + later)[1] for later in (0, 5, 10)] == [35, 35, 0]


def test_stale_samples_that_the_driver_returns_all_the_same_are_dropped(station: Station) -> None:
    gpu = an_h200(stale_samples=1)
    gpu.compute, gpu.samples = [(1, GIB)], [(1, BEGAN - 60_000_000, 99)]
    station.put_in(gpu)
    assert percents(station, NOW) == {1: 0}


def test_newest_of_several_samples_of_a_process_counts(station: Station) -> None:
    samples = [(1, BEGAN - 1_000_000, 80), (1, BEGAN - 3_000_000, 20)]
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], samples=samples))
    assert percents(station, NOW) == {1: 80}


def test_clock_that_was_set_back_does_not_stop_the_samples(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], samples=[(1, BEGAN, 10)]))
    station.report(NOW)
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], samples=[(1, BEGAN - 3600_000_000, 20)]))
    assert percents(station, NOW - 3599) == {1: 20}


def test_nonsense_over_100_percent_is_unknown(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB), (2, GIB)], samples=[(1, BEGAN, 4_294_967), (2, BEGAN, 100)]))
    processes = processes_of(station.read(NOW)["GPU-a"])
    assert (processes[1].utilization_percent, processes[2].utilization_percent) == (None, 100)
    assert processes[1].reasons["utilization_percent"] == NO_VALUE


def test_process_that_came_after_the_last_slow_reading_is_not_called_idle(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)]))
    station.report(NOW)
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB), (2, GIB)]))
    newcomer = processes_of(station.read(NOW + 1)["GPU-a"])[2]
    assert (newcomer.utilization_percent, newcomer.reasons) == (None, {"utilization_percent": NOT_YET})
    assert percents(station, NOW + 10) == {1: 0, 2: 0}


def test_gpu_that_does_not_measure_processes_is_asked_once_a_minute(station: Station) -> None:
    failures = {"nvmlDeviceGetProcessUtilization": "not_supported"}
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)], failures=failures))
    asked = ["nvmlDeviceGetProcessUtilization" in station.calls_during(NOW + later) for later in (0, 10, 20, 60)]
    assert asked == [True, False, False, True]
    process = processes_of(station.read(NOW + 61)["GPU-a"])[1]
    assert (process.utilization_percent, process.reasons) == (None, {"utilization_percent": UNSUPPORTED})


def test_gpu_without_processes_is_not_asked_how_hard_they_work(station: Station) -> None:
    station.put_in(an_h200())
    assert "nvmlDeviceGetProcessUtilization" not in station.calls_during(NOW)
