"""The NVML collector over the real pynvml and a fake driver: values, reasons, boards that go and come."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.nvml.driver import GIB, MAX, NO_COMPILER, FakeGpu, find_compiler
from fakes.nvml.station import Station, an_h200
from gpudeck.collectors.base import NO_VALUE, UNSUPPORTED
from gpudeck.collectors.nvml_device import NOT_ASKED_FOR, TOO_OLD
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, Refused, Temporary

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

PCIE = {"pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"}
DEAR = {
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetTotalEnergyConsumption",
}

TO_FIND_IT = {
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
}


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    return Station(tmp_path, monkeypatch)


def test_importing_the_collector_does_not_import_pynvml() -> None:
    code = "import sys, gpudeck.collectors.nvml; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pynvml_is_nvidias_own_and_not_the_package_of_that_name() -> None:
    required = [re.split(r"[^A-Za-z0-9-]", line)[0] for line in importlib.metadata.requires("gpudeck") or ()]
    assert set(importlib.metadata.packages_distributions()["pynvml"]) == {"nvidia-ml-py"}
    assert ("nvidia-ml-py" in required, "pynvml" in required) == (True, False)


def test_every_gpu_metric_of_the_catalog_is_known_or_unknown_with_a_reason(station: Station) -> None:
    gpu = station.read_one(an_h200())
    assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
    assert not gpu.metrics.keys() & gpu.unknown.keys()


def test_gpu_that_supports_nothing_has_every_metric_unknown_with_a_reason(station: Station) -> None:
    gpu = station.read_one(FakeGpu("GPU-a", failures={"values": "not_supported"}))
    assert (gpu.missing, gpu.metrics, gpu.processes, gpu.idle_seconds) == (None, {}, None, None)
    assert gpu.unknown == dict.fromkeys(GPU_METRICS, UNSUPPORTED) | dict.fromkeys(PCIE, NOT_ASKED_FOR)
    assert gpu.processes_reason == UNSUPPORTED


@pytest.mark.parametrize("word", ["not_supported", "no_permission", "no_data", "not_found", "timeout", "unknown"])
def test_whatever_a_gpu_refuses_it_stays_and_so_does_its_neighbour(station: Station, word: str) -> None:
    station.put_in(an_h200("GPU-a"), an_h200("GPU-b", gpm=0))
    station.collect_anew(pcie_throughput=True)
    station.report(0.0)
    station.report(10.0)
    station.collector.close()
    seen = {}
    functions = set(station.driver.calls) - TO_FIND_IT
    for function in functions:
        station.put_in(FakeGpu("GPU-a", failures={function: word}), an_h200("GPU-b", gpm=0))
        station.collect_anew(pcie_throughput=True)
        station.report(0.0)
        seen[function] = [
            (gpu.missing, gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys())
            for gpu in station.report(10.0).gpus or ()
        ]
        station.collector.close()
    assert len(functions) > 20
    assert seen == {function: [(None, True), (None, True)] for function in functions}


def test_values_come_in_the_units_of_the_catalog(station: Station) -> None:
    assert station.read_one(an_h200()).metrics == {
        "utilization_percent": 90,
        "memory_utilization_percent": 31,
        "memory_used_bytes": 20 * GIB,
        "memory_total_bytes": 140 * GIB,
        "temperature_celsius": 53,
        "power_watts": 529.0,
        "power_limit_watts": 700,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
        "encoder_percent": 7,
        "decoder_percent": 3,
        "memory_temperature_celsius": 61,
        "performance_state": 0,
        "throttled_power": 0,
        "throttled_thermal": 0,
        "throttled_hardware": 0,
        "ecc_corrected_count": 2,
        "ecc_uncorrected_count": 0,
        "remapped_rows_count": 3,
        "remapped_rows_pending": 0,
        "nvlink_active_count": 18,
        "nvlink_inactive_count": 0,
        "nvlink_error_count": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "temperature_margin_celsius": 34,
        "energy_joules": 7_654_322,
    }


def test_report_has_the_driver_version_and_each_gpus_name_and_index(station: Station) -> None:
    station.put_in(an_h200("GPU-a"), FakeGpu("GPU-b", name="NVIDIA L4"))
    report = station.report()
    assert report.driver_version == "580.159.04"
    assert [(gpu.index, gpu.name, gpu.vendor) for gpu in report.gpus or ()] == [
        (0, "NVIDIA H200", "nvidia"),
        (1, "NVIDIA L4", "nvidia"),
    ]


@pytest.mark.parametrize("word", ["function_not_found", "argument_version_mismatch", "not_supported"])
def test_memory_falls_back_to_version_1_on_old_drivers(station: Station, word: str) -> None:
    gpu = station.read_one(FakeGpu("GPU-a", failures={"nvmlDeviceGetMemoryInfo_v2": word}))
    assert gpu.metrics["memory_used_bytes"] == 20 * GIB + GIB // 2


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("not_supported", UNSUPPORTED),
        ("no_data", NO_VALUE),
        ("no_permission", "not permitted to read it"),
        ("function_not_found", TOO_OLD),
        ("timeout", "NVML says: Timeout"),
    ],
)
def test_what_a_gpu_does_not_report_is_unknown_and_leaves_the_rest_alone(
    station: Station, word: str, reason: str
) -> None:
    gpu = station.read_one(FakeGpu("GPU-a", failures={"nvmlDeviceGetPowerUsage": word}))
    assert gpu.unknown["power_watts"] == reason
    assert "power_watts" not in gpu.metrics
    assert gpu.metrics["temperature_celsius"] == 53


@pytest.mark.parametrize(
    ("bits", "power", "thermal", "hardware"),
    [
        (0x01, 0, 0, 0),  # idle
        (0x02, 0, 0, 0),  # somebody set the clocks
        (0x04, 1, 0, 0),  # power cap
        (0x08, 0, 0, 1),  # slowdown by the hardware
        (0x20, 0, 1, 0),  # heat, by the driver
        (0x40, 0, 1, 0),  # heat, by the hardware
        (0x80, 0, 0, 1),  # power brake
        (0x48, 0, 1, 1),  # both bits of a hot card that its hardware slows down
        (0x100, 0, 0, 0),  # display clocks
    ],
)
def test_throttling_has_its_cause(station: Station, bits: int, power: int, thermal: int, hardware: int) -> None:
    metrics = station.read_one(an_h200(clock_reasons=bits)).metrics
    names = ("throttled_power", "throttled_thermal", "throttled_hardware")
    assert tuple(metrics[name] for name in names) == (power, thermal, hardware)


def test_throttling_is_read_from_drivers_that_know_it_by_its_old_name(station: Station) -> None:
    gpu = an_h200(clock_reasons=0x04)
    gpu.failures["nvmlDeviceGetCurrentClocksEventReasons"] = "function_not_found"
    assert station.read_one(gpu).metrics["throttled_power"] == 1


def test_links_that_are_down_are_counted_apart(station: Station) -> None:
    metrics = station.read_one(an_h200(nvlinks=12, nvlinks_up=0b1011)).metrics
    assert (metrics["nvlink_active_count"], metrics["nvlink_inactive_count"]) == (3, 9)


def test_errors_of_links_are_added_up_and_the_worst_link_is_named(station: Station) -> None:
    metrics = station.read_one(
        an_h200(nvlinks=4, nvlink_replays_1=2, nvlink_recoveries_2=5, nvlink_replays_2=1)
    ).metrics
    assert (metrics["nvlink_error_count"], metrics["nvlink_error_link"]) == (8, 2)


def test_counters_of_links_are_64_bits_wide(station: Station) -> None:
    metrics = station.read_one(an_h200(nvlinks=1, nvlink_replays=2**40)).metrics
    assert metrics["nvlink_error_count"] == 2**40


def test_a_driver_that_counts_no_single_links_has_the_sum(station: Station) -> None:
    gpu = an_h200(
        nvlink_replays_in_total=3, nvlink_recoveries_in_total=1, without=["nvlink_replays", "nvlink_recoveries"]
    )
    read = station.read_one(gpu)
    assert (read.metrics["nvlink_error_count"], "nvlink_error_link" in read.unknown) == (4, True)


def test_headroom_is_that_of_the_threshold_where_the_driver_knows_no_margin(station: Station) -> None:
    gpu = station.read_one(an_h200(slowdown_temperature=87, without=["temperature_margin"]))
    assert gpu.metrics["temperature_margin_celsius"] == 87 - 53


def test_headroom_is_unknown_where_the_driver_knows_neither_margin_nor_threshold(station: Station) -> None:
    gpu = station.read_one(an_h200(without=["temperature_margin"]))
    assert gpu.unknown["temperature_margin_celsius"] == UNSUPPORTED


def test_links_are_counted_where_the_driver_does_not_tell_how_many_there_are(station: Station) -> None:
    gpu = an_h200(nvlinks=4, nvlinks_up=0b1111)
    gpu.failures["nvmlDeviceGetFieldValues"] = "not_supported"
    assert station.read_one(gpu).metrics["nvlink_active_count"] == 4


def test_card_without_links_has_no_links_to_be_down(station: Station) -> None:
    gpu = station.read_one(an_h200(without=["nvlinks", "nvlinks_up"]))
    assert gpu.unknown["nvlink_active_count"] == gpu.unknown["nvlink_inactive_count"] == UNSUPPORTED


def test_field_that_failed_within_a_call_that_succeeded_is_unknown_not_0(station: Station) -> None:
    gpu = station.read_one(an_h200(without=["memory_temperature"]))
    assert gpu.unknown["memory_temperature_celsius"] == UNSUPPORTED


def test_performance_state_that_the_driver_does_not_know_is_unknown(station: Station) -> None:
    assert station.read_one(an_h200(performance_state=32)).unknown["performance_state"] == NO_VALUE


def test_only_cheap_functions_are_called_between_two_slow_readings(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", compute=[(1, GIB)]))
    first = station.calls_during(0.0)
    between = station.calls_during(1.0)
    assert DEAR - set(first) == {"nvmlDeviceGetPcieThroughput"}
    assert DEAR & set(between) == set()
    assert "nvmlDeviceGetUtilizationRates" in between


def test_energy_stays_at_its_last_value_until_the_next_slow_reading(station: Station) -> None:
    station.put_in(an_h200(energy=[5_000, 17_000]))
    seen = [station.read(now)["GPU-a"].metrics["energy_joules"] for now in (0.0, 5.0, 10.0)]
    assert seen == [5, 5, 17]


def test_pcie_throughput_is_not_read_unless_asked_for(station: Station) -> None:
    gpu = station.read_one(an_h200(gpm=0))
    assert {gpu.unknown[name] for name in PCIE} == {NOT_ASKED_FOR}
    assert "nvmlDeviceGetPcieThroughput" not in station.driver.calls


def test_pcie_throughput_is_read_when_asked_for(station: Station) -> None:
    station.collect_anew(pcie_throughput=True)
    metrics = station.read_one(an_h200(gpm=0)).metrics
    assert {name: metrics[name] for name in PCIE} == {
        "pcie_receive_bytes_per_second": 1_250_000_000,
        "pcie_transmit_bytes_per_second": 320_000_000,
    }


def test_what_is_not_supported_stays_unknown_between_two_explorations_and_is_asked_for_again_later(
    station: Station,
) -> None:
    station.put_in(an_h200())
    station.report(0.0)
    station.put_in(an_h200(fan=40))
    assert "nvmlDeviceGetFanSpeed" not in station.calls_during(10.0)
    assert station.read(11.0)["GPU-a"].unknown["fan_percent"] == UNSUPPORTED
    assert station.read(60.0)["GPU-a"].metrics["fan_percent"] == 40


@pytest.mark.parametrize("name", ["temperature", "power", "energy", "ecc_corrected", "utilization", "memory_used"])
def test_the_drivers_not_available_is_no_number(station: Station, name: str) -> None:
    gpu = station.read_one(an_h200(**{name: MAX}))
    assert NO_VALUE in gpu.unknown.values()
    assert all(GPU_METRICS[metric].high >= value for metric, value in gpu.metrics.items())


def test_values_over_time_are_followed(station: Station) -> None:
    station.put_in(an_h200(utilization=[10, 20, 30]))
    assert [station.read(now)["GPU-a"].metrics["utilization_percent"] for now in (0.0, 1.0, 2.0)] == [10, 20, 30]


@pytest.mark.parametrize(("word", "part"), [("lost", "lost"), ("reset_required", "reset")])
def test_lost_gpu_stays_as_missing_and_does_not_hide_others(station: Station, word: str, part: str) -> None:
    lost, other = FakeGpu("GPU-a", name="NVIDIA L4"), an_h200("GPU-b")
    station.put_in(lost, other)
    station.report(0.0)
    lost.failures["nvmlDeviceGetPowerUsage"] = word
    station.driver.apply()
    first, second = station.read(1.0).values()
    assert (first.uuid, first.index, first.name, first.metrics) == ("GPU-a", 0, "NVIDIA L4", {})
    assert part in (first.missing or "")
    assert second.missing is None
    assert second.metrics["utilization_percent"] == 90


def test_lost_gpu_that_returns_is_read_again(station: Station) -> None:
    station.put_in(an_h200("GPU-a"), an_h200("GPU-b"))
    station.report(0.0)
    station.driver.gpus[0].failures["*"] = "lost"
    station.driver.apply()
    assert station.read(1.0)["GPU-a"].missing is not None
    station.driver.gpus[0].failures.clear()
    station.driver.apply()
    assert station.read(100.0)["GPU-a"].missing is None


def test_gpu_that_the_driver_no_longer_lists_is_missing(station: Station) -> None:
    station.put_in(an_h200("GPU-a"), an_h200("GPU-b"))
    station.report(0.0)
    station.driver.failures["*"] = "driver_not_loaded"
    station.put_in(an_h200("GPU-b"))
    with pytest.raises(Temporary):
        station.report(1.0)
    station.driver.failures.clear()
    station.driver.apply()
    seen = station.read(2.0)
    assert seen["GPU-a"].missing == "the driver no longer lists this GPU"
    assert seen["GPU-b"].metrics["utilization_percent"] == 90


def test_gpu_is_known_by_its_uuid_when_its_index_changes(station: Station) -> None:
    station.put_in(an_h200("GPU-a", temperature=40), an_h200("GPU-b", temperature=50))
    station.report(0.0)
    station.collector.close()
    station.put_in(an_h200("GPU-b", temperature=50), an_h200("GPU-a", temperature=40))
    seen = station.read(1.0)
    assert {uuid: (gpu.index, gpu.metrics["temperature_celsius"]) for uuid, gpu in seen.items()} == {
        "GPU-a": (1, 40),
        "GPU-b": (0, 50),
    }


def test_gpu_that_cannot_be_opened_is_a_problem_and_does_not_hide_others(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", failures={"nvmlDeviceGetHandleByIndex_v2": "lost"}), an_h200("GPU-b"))
    report = station.report()
    assert [gpu.uuid for gpu in report.gpus or ()] == ["GPU-b"]
    assert [problem[:22] for problem in report.problems] == ["GPU 0 cannot be opened"]


def test_no_gpu_where_there_were_some_is_a_failed_reading(station: Station) -> None:
    station.put_in(*(an_h200(f"GPU-{number}") for number in range(8)))
    station.report(0.0)
    station.collector.close()
    station.put_in()
    with pytest.raises(Temporary, match="There were 8 before"):
        station.report(1.0)


@pytest.mark.parametrize("word", ["library_not_found", "driver_not_loaded"])
def test_machine_without_driver_has_nothing_to_read(station: Station, word: str) -> None:
    station.driver.failures["nvmlInitWithFlags"] = word
    station.driver.apply()
    with pytest.raises(Absent):
        station.report()


def test_driver_that_lists_no_gpu_has_nothing_to_read(station: Station) -> None:
    with pytest.raises(Absent, match="lists no GPU"):
        station.report()


def test_devices_that_may_not_be_opened_are_refused(station: Station) -> None:
    station.driver.failures["nvmlInitWithFlags"] = "no_permission"
    station.driver.apply()
    with pytest.raises(Refused):
        station.report()


@pytest.mark.parametrize("word", ["uninitialized", "driver_not_loaded", "mismatch"])
def test_reloaded_driver_is_opened_again_on_the_next_reading(station: Station, word: str) -> None:
    station.put_in(an_h200(energy=[90_000_000]))
    station.report(0.0)
    station.driver.gpus[0].failures["nvmlDeviceGetUtilizationRates"] = word
    station.driver.apply()
    with pytest.raises(Temporary):
        station.report(1.0)
    station.put_in(an_h200(energy=[1_000]))
    seen = station.read(2.0)["GPU-a"].metrics
    # The driver's counters start from 0 with it: what was kept of the last one is not shown for this one.
    assert (seen["utilization_percent"], seen["energy_joules"]) == (90, 1)


def test_driver_that_does_not_come_back_is_temporary_not_absent(station: Station) -> None:
    station.put_in(an_h200())
    station.report(0.0)
    station.driver.failures["*"] = "driver_not_loaded"
    station.driver.apply()
    with pytest.raises(Temporary):
        station.report(1.0)
    with pytest.raises(Temporary, match="not loaded"):
        station.report(2.0)


def test_idle_time_grows_without_work_and_ends_with_it(station: Station) -> None:
    station.put_in(an_h200(utilization=[4, 4, 4, 5]))
    assert [station.read(now)["GPU-a"].idle_seconds for now in (100.0, 105.0, 110.0, 115.0)] == [0.0, 5.0, 10.0, 0.0]


def test_time_that_nobody_watched_is_not_idle_time(station: Station) -> None:
    station.put_in(an_h200(utilization=0))
    assert [station.read(now)["GPU-a"].idle_seconds for now in (0.0, 1e9, 0.0)] == [0.0, 60.0, 60.0]


def test_reading_without_utilization_claims_no_idle_time(station: Station) -> None:
    station.put_in(an_h200(utilization=0))
    station.report(0.0)
    station.driver.gpus[0].failures["nvmlDeviceGetUtilizationRates"] = "unknown"
    station.driver.apply()
    assert station.read(10.0)["GPU-a"].idle_seconds is None
    station.put_in(an_h200(utilization=0))
    assert station.read(20.0)["GPU-a"].idle_seconds == 10.0


def test_gpu_that_shares_the_hosts_memory_and_says_0_uses_what_its_processes_use(station: Station) -> None:
    gpu = an_h200(memory_total=0, memory_used=0, memory_reserved=0)
    gpu.compute = [(1, GIB), (2, 2 * GIB)]
    seen = station.read_one(gpu)
    assert seen.metrics["memory_used_bytes"] == 3 * GIB
    assert seen.unknown["memory_total_bytes"] == NO_VALUE


def test_gpu_that_shares_the_hosts_memory_and_refuses_to_say_uses_what_its_processes_use(station: Station) -> None:
    gpu = an_h200(without=["memory_total", "memory_used"])
    gpu.compute = [(1, GIB), (2, 2 * GIB)]
    station.put_in(gpu)
    seen = [station.read(now)["GPU-a"].metrics["memory_used_bytes"] for now in (0.0, 1.0)]
    assert seen == [3 * GIB, 3 * GIB]


def test_more_memory_in_use_than_there_is_is_unknown(station: Station) -> None:
    seen = station.read_one(an_h200(memory_total=80 * GIB, memory_used=90 * GIB))
    assert seen.metrics["memory_total_bytes"] == 80 * GIB
    assert seen.unknown["memory_used_bytes"] == NO_VALUE


def test_close_may_be_called_twice_and_reading_goes_on_afterwards(station: Station) -> None:
    station.put_in(an_h200())
    station.report(0.0)
    station.collector.close()
    station.collector.close()
    assert station.driver.calls.count("nvmlShutdown") == 1
    assert list(station.read(1.0)) == ["GPU-a"]


def test_the_pci_address_is_written_as_the_kernel_does(station: Station) -> None:
    assert station.read_one(FakeGpu("GPU-a", pci="00000000:18:00.0")).pci_address == "0000:18:00.0"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("NVIDIA \udcff", "NVIDIA GPU"), ("", "NVIDIA GPU"), ("NVIDIA \x1b[31mL4\x07", "NVIDIA [31mL4")],
)
def test_name_that_is_no_text_costs_nothing_but_the_name(station: Station, name: str, shown: str) -> None:
    station.put_in(an_h200("GPU-a"), FakeGpu("GPU-b", name=name))
    report = station.report()
    assert [(gpu.uuid, gpu.name) for gpu in report.gpus or ()] == [("GPU-a", "NVIDIA H200"), ("GPU-b", shown)]
    assert report.problems == []


@pytest.mark.parametrize("slot", ["", "\udcff"])
def test_slot_that_is_no_text_is_unknown(station: Station, slot: str) -> None:
    assert station.read_one(FakeGpu("GPU-a", pci=slot)).pci_address is None


@pytest.mark.parametrize("word", ["not_supported", "unknown"])
def test_gpu_that_tells_no_name_and_no_slot_is_read_all_the_same(station: Station, word: str) -> None:
    gpu = station.read_one(
        FakeGpu("GPU-a", failures={"nvmlDeviceGetName": word, "nvmlDeviceGetPciInfo_v3": word}),
    )
    assert (gpu.name, gpu.pci_address, gpu.metrics["temperature_celsius"]) == ("NVIDIA GPU", None, 53)


def test_gpu_whose_uuid_is_no_text_is_a_problem_and_does_not_hide_others(station: Station) -> None:
    station.put_in(an_h200("\udcff"), an_h200("GPU-b"))
    report = station.report()
    assert [gpu.uuid for gpu in report.gpus or ()] == ["GPU-b"]
    assert [problem[:22] for problem in report.problems] == ["GPU 0 cannot be opened"]


def test_driver_version_that_is_no_text_is_unknown(station: Station) -> None:
    station.driver.version = "\udcff"
    station.put_in(an_h200())
    assert station.report().driver_version is None


def test_driver_that_does_not_tell_its_version_is_read_all_the_same(station: Station) -> None:
    station.driver.failures["nvmlSystemGetDriverVersion"] = "unknown"
    station.put_in(an_h200())
    report = station.report()
    assert ([gpu.uuid for gpu in report.gpus or ()], report.driver_version) == (["GPU-a"], None)


def test_machine_of_which_no_gpu_can_be_opened_is_no_machine_without_gpus(station: Station) -> None:
    station.put_in(FakeGpu("GPU-a", failures={"nvmlDeviceGetHandleByIndex_v2": "lost"}))
    with pytest.raises(Temporary, match="GPU 0 cannot be opened: the GPU is lost"):
        station.report()
