"""What the engines of a GPU did, over the real pynvml and a fake driver. A slow reading is due every ten seconds."""

from pathlib import Path

import pytest

from fakes.nvml.driver import GPM, NO_COMPILER, FakeGpu, Value, find_compiler, make_instance
from fakes.nvml.station import Station, an_h200
from gpudeck.collectors.base import NO_INSTANCES, NO_VALUE, UNSUPPORTED, WHOLE_BOARD
from gpudeck.collectors.nvml_device import NEEDS_HOPPER, NOT_ASKED_FOR, TOO_OLD
from gpudeck.collectors.nvml_gpm import ACTIVITY_NAMES, BEING_MEASURED, NOT_WANTED, OF_GPU_INSTANCE
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

MIB = 2**20
PCIE = ("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second")
SM = "sm_activity_percent"
ALLOCATE, FREE = "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
BAD_SAMPLES = ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"]


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    return Station(tmp_path, monkeypatch)


def an_instance(uuid: str, gpu_instance: int, **values: Value) -> FakeGpu:
    activity = {f"gpm_{number}": value for number, value in GPM.items() if number < 20}
    return make_instance(uuid, gpu_instance, **activity | values)


def a_mig_board(*instances: FakeGpu) -> FakeGpu:
    board = an_h200("GPU-m", without=["utilization", "memory_utilization", "encoder", "decoder"])
    board.instances = dict(enumerate(instances))
    return board


def activity_of(gpu: GpuReading) -> dict[str, object]:
    """Each figure of GPM, or why it is unknown."""
    return {name: gpu.metrics.get(name, gpu.unknown.get(name)) for name in (*ACTIVITY_NAMES, *PCIE)}


def values_of(station: Station, name: str, *readings: float, uuid: str = "GPU-a") -> list[object]:
    """What it is on each of these readings, or why it is unknown."""
    seen = []
    for now in readings:
        gpu = station.read(now)[uuid]
        assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
        assert not gpu.metrics.keys() & gpu.unknown.keys()
        seen.append(gpu.metrics.get(name, gpu.unknown.get(name)))
    return seen


def test_first_reading_is_being_measured_and_the_second_has_values_in_the_units_of_the_catalog(
    station: Station,
) -> None:
    station.put_in(an_h200())
    assert set(activity_of(station.read(0.0)["GPU-a"]).values()) == {BEING_MEASURED}
    assert activity_of(station.read(10.0)["GPU-a"]) == {
        "sm_activity_percent": 96,
        "sm_occupancy_percent": 31,
        "tensor_activity_percent": 93,
        "dram_activity_percent": 16,
        "fp64_activity_percent": 0,
        "fp32_activity_percent": 2,
        "fp16_activity_percent": 1,
        "nvlink_receive_bytes_per_second": 40_000 * MIB // 1_000_000 * 1_000_000,
        "nvlink_transmit_bytes_per_second": 39_000 * MIB // 1_000_000 * 1_000_000,
        "pcie_receive_bytes_per_second": 1_311_000_000,
        "pcie_transmit_bytes_per_second": 336_000_000,
    }


def test_each_value_is_of_the_time_since_the_slow_reading_before(station: Station) -> None:
    station.put_in(an_h200(gpm_2=[70_000, 10_000, 20_000, 30_000]))
    assert values_of(station, SM, 0.0, 5.0, 10.0, 15.0, 20.0, 30.0) == [BEING_MEASURED, BEING_MEASURED, 10, 10, 20, 30]


def test_between_two_slow_readings_no_sample_is_taken_and_buffers_are_used_again(station: Station) -> None:
    station.put_in(an_h200())
    calls = [station.calls_during(now) for now in (0.0, 5.0, 10.0, 20.0, 30.0)]
    assert [one.count(ALLOCATE) for one in calls] == [1, 0, 1, 0, 0]
    assert [one.count("nvmlGpmSampleGet") for one in calls] == [1, 0, 1, 1, 1]


def test_every_buffer_is_freed_in_the_end(station: Station) -> None:
    station.put_in(an_h200("GPU-a"), a_mig_board(an_instance("MIG-0", 3)))
    station.driver.forget_calls()
    for now in (0.0, 10.0, 20.0):
        station.report(now)
    station.collector.close()
    calls = station.driver.calls
    assert calls.count(ALLOCATE) == calls.count(FREE) == 4
    assert calls.index("nvmlShutdown") > max(place for place, name in enumerate(calls) if name == FREE)


def test_gpu_before_hopper_needs_a_newer_one_and_is_asked_for_nothing_else(station: Station) -> None:
    station.put_in(an_h200(gpm=0))
    calls = station.calls_during(0.0)
    gpu = station.read(10.0)["GPU-a"]
    assert {gpu.unknown[name] for name in ACTIVITY_NAMES} == {NEEDS_HOPPER}
    assert {gpu.unknown[name] for name in PCIE} == {NOT_ASKED_FOR}
    assert [name for name in calls if "Gpm" in name] == ["nvmlGpmQueryDeviceSupport"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [("function_not_found", TOO_OLD), ("not_supported", UNSUPPORTED), ("no_permission", "not permitted to read it")],
)
def test_driver_that_cannot_say_whether_it_is_supported(station: Station, word: str, reason: str) -> None:
    gpu = an_h200()
    gpu.failures["nvmlGpmQueryDeviceSupport"] = word
    station.put_in(gpu)
    assert values_of(station, SM, 0.0, 10.0) == [reason, reason]
    station.put_in(an_h200())
    assert values_of(station, SM, 60.0, 70.0) == [BEING_MEASURED, 96]


def test_figure_that_fails_makes_only_itself_unknown(station: Station) -> None:
    station.put_in(an_h200(without=["gpm_60"], gpm_12=250_000, gpm_10=100_400))
    station.report(0.0)
    seen = activity_of(station.read(10.0)["GPU-a"])
    unknown = {name: value for name, value in seen.items() if isinstance(value, str)}
    assert unknown == {"nvlink_receive_bytes_per_second": UNSUPPORTED, "fp32_activity_percent": NO_VALUE}
    assert seen["dram_activity_percent"] == 100


@pytest.mark.parametrize("function", BAD_SAMPLES)
def test_sample_that_fails_is_made_up_for_by_the_next(station: Station, function: str) -> None:
    """And hides no other value."""
    station.put_in(an_h200())
    station.driver.failures[function] = "unknown"
    station.driver.apply()
    gpu = [station.read(now)["GPU-a"] for now in (0.0, 10.0)][1]
    assert (gpu.missing, gpu.metrics["utilization_percent"]) == (None, 90)
    assert gpu.unknown[SM].startswith("NVML says")
    station.driver.failures.clear()
    station.driver.apply()
    assert values_of(station, SM, 20.0, 30.0)[1] == 96


def test_one_that_fails_between_two_samples_costs_no_time(station: Station) -> None:
    station.put_in(an_h200(gpm_2=[0, 40_000, 60_000]))
    station.report(0.0)
    station.driver.gpus[0].failures["nvmlGpmSampleGet"] = "timeout"
    station.driver.apply()
    station.report(10.0)
    del station.driver.gpus[0].failures["nvmlGpmSampleGet"]
    station.driver.gpus[0].values["gpm_2"] = 50_000
    station.driver.apply()
    assert values_of(station, SM, 20.0) == [50]


@pytest.mark.parametrize("now", [1000.0, -1000.0])
def test_time_that_nobody_watched_is_not_measured(station: Station, now: float) -> None:
    station.put_in(an_h200())
    assert values_of(station, SM, 0.0, 10.0, now, now + 10.0) == [BEING_MEASURED, 96, BEING_MEASURED, 96]


def test_driver_that_was_reloaded_is_measured_anew(station: Station) -> None:
    station.put_in(an_h200())
    assert values_of(station, SM, 0.0, 10.0)[1] == 96
    station.driver.failures["*"] = "driver_not_loaded"
    station.driver.apply()
    with pytest.raises(Temporary):
        station.report(20.0)
    station.driver.failures.clear()
    station.driver.apply()
    assert values_of(station, SM, 30.0, 40.0) == [BEING_MEASURED, 96]


def test_gpu_that_is_lost_while_it_is_measured_is_missing_and_its_neighbour_is_not(station: Station) -> None:
    station.put_in(an_h200("GPU-a"), an_h200("GPU-b"))
    station.report(0.0)
    station.driver.gpus[0].failures["nvmlGpmSampleGet"] = "lost"
    station.driver.apply()
    gpus = station.read(10.0)
    assert (gpus["GPU-a"].missing is None, gpus["GPU-b"].metrics[SM]) == (False, 96)


def test_pcie_traffic_comes_with_it_and_the_expensive_call_is_not_made(station: Station) -> None:
    station.collect_anew(pcie_throughput=True)
    station.put_in(an_h200())
    assert values_of(station, PCIE[0], 0.0, 10.0) == [BEING_MEASURED, 1_311_000_000]
    assert "nvmlDeviceGetPcieThroughput" not in station.driver.calls


def test_it_can_be_switched_off(station: Station) -> None:
    station.collect_anew(activity=False)
    station.put_in(an_h200(), a_mig_board(an_instance("MIG-0", 3)))
    assert values_of(station, SM, 0.0, 10.0) == [NOT_WANTED] * 2
    assert values_of(station, SM, 20.0, uuid="MIG-0") == [NOT_WANTED]
    assert not [name for name in station.driver.calls if "Gpm" in name]


class TestInstances:
    def test_each_has_its_own_utilization_and_activity(self, station: Station) -> None:
        station.put_in(a_mig_board(an_instance("MIG-0", 3), an_instance("MIG-1", 9, gpm_1=0, gpm_2=0)))
        first = station.read(0.0)["MIG-0"]
        assert (first.unknown["utilization_percent"], first.idle_seconds) == (BEING_MEASURED, None)
        gpus = station.read(10.0)
        assert [gpus[uuid].metrics["utilization_percent"] for uuid in ("MIG-0", "MIG-1")] == [100, 0]
        assert [gpus[uuid].metrics[SM] for uuid in ("MIG-0", "MIG-1")] == [96, 0]
        assert {gpus["MIG-0"].unknown[name] for name in (*PCIE, "nvlink_receive_bytes_per_second")} == {WHOLE_BOARD}
        assert values_of(station, "tensor_activity_percent", 15.0, 20.0, uuid="MIG-0") == [93, 93]

    def test_idle_time_of_an_instance_is_counted(self, station: Station) -> None:
        station.put_in(a_mig_board(an_instance("MIG-0", 3, gpm_1=0)))
        assert [station.read(now)["MIG-0"].idle_seconds for now in (0.0, 10.0, 12.0)] == [None, 10.0, 12.0]

    def test_new_one_is_measured_from_its_own_first_sample(self, station: Station) -> None:
        """Also where it has the number of one that was destroyed."""
        station.put_in(a_mig_board(an_instance("MIG-0", 3)))
        assert values_of(station, SM, 0.0, 10.0, uuid="MIG-0") == [BEING_MEASURED, 96]
        station.put_in(a_mig_board(an_instance("MIG-9", 3, gpm_2=20_000)))
        station.driver.forget_calls()
        assert values_of(station, SM, 20.0, 30.0, uuid="MIG-9") == [BEING_MEASURED, 20]
        assert station.driver.calls.count(FREE) == 2

    def test_one_that_fails_hides_no_other(self, station: Station) -> None:
        broken = an_instance("MIG-0", 3)
        broken.failures["nvmlGpmMigSampleGet"] = "no_permission"
        station.put_in(a_mig_board(broken, an_instance("MIG-1", 9)))
        station.report(0.0)
        gpus = station.read(10.0)
        assert gpus["MIG-0"].unknown["utilization_percent"] == "not permitted to read it"
        assert gpus["MIG-1"].metrics["utilization_percent"] == 100

    def test_compute_instances_of_one_gpu_instance_have_no_load_of_their_own(self, station: Station) -> None:
        station.put_in(a_mig_board(an_instance("MIG-0", 3), an_instance("MIG-1", 3), an_instance("MIG-2", 5)))
        station.report(0.0)
        gpus = station.read(10.0)
        assert {gpus[uuid].unknown["utilization_percent"] for uuid in ("MIG-0", "MIG-1")} == {OF_GPU_INSTANCE}
        assert gpus["MIG-2"].metrics["utilization_percent"] == 100

    def test_board_that_cannot_measure_it_leaves_the_utilization_unknown(self, station: Station) -> None:
        board = a_mig_board(an_instance("MIG-0", 3))
        board.values["gpm"] = 0
        station.put_in(board)
        station.report(0.0)
        gpu = station.read(10.0)["MIG-0"]
        assert (gpu.unknown["utilization_percent"], gpu.unknown[SM]) == (UNSUPPORTED, NEEDS_HOPPER)

    def test_board_without_instances_does_nothing(self, station: Station) -> None:
        station.put_in(a_mig_board())
        assert values_of(station, SM, 0.0, 10.0, uuid="GPU-m") == [NO_INSTANCES] * 2

    def test_board_that_leaves_mig_mode_is_measured_as_a_whole(self, station: Station) -> None:
        station.put_in(a_mig_board(an_instance("MIG-0", 3)))
        assert values_of(station, SM, 0.0, 10.0, uuid="MIG-0")[1] == 96
        station.put_in(an_h200("GPU-m"))
        assert values_of(station, SM, 20.0, 30.0, uuid="GPU-m") == [BEING_MEASURED, 96]
