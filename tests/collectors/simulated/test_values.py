"""Every value a real machine gives is simulated, and the values of one moment fit together."""

from itertools import pairwise
from statistics import median

import pytest

from gpudeck.collectors import base, drm_cards, nvml_board, nvml_device, proc
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.collectors.simulated.inventory import FELL_OFF
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB
from gpudeck.model.report import GpuReading, JobCgroup, Number, Report

NOON = 1_760_356_800.0
DAY = 86_400.0
MOMENTS = [NOON + step * 10_007.5 for step in range(70)]

REASONS_OF_REAL_MACHINES = {
    nvml_device.UNSUPPORTED,
    nvml_device.NOT_ASKED_FOR,
    nvml_device.NEEDS_HOPPER,
    base.NO_VALUE,
    base.WHOLE_BOARD,
    nvml_board.UNDER_MIG,
    proc.UNSUPPORTED,
    *drm_cards.AMD_REASONS.values(),
    FELL_OFF,
}
WITHOUT_FAN = ("H100", "H200", "A100", "V100", "L40S", "MI300X")
WITH_MEMORY_SENSOR = ("H100", "H200", "A100", "V100", "MI300X")
LINKS = {"H100": 18, "H200": 18, "A100": 12, "V100": 6, "A6000": 4}


@pytest.fixture(scope="module")
def reports(fleet: SimulatedFleet) -> list[Report]:
    """All hosts at many moments of eight days."""
    return [report for t in MOMENTS for host in range(24) if (report := fleet.report(host, t))]


@pytest.fixture(scope="module")
def gpus(reports: list[Report]) -> list[GpuReading]:
    return [gpu for report in reports for gpu in report.gpus or () if not gpu.missing]


@pytest.fixture(scope="module")
def nvidia(gpus: list[GpuReading]) -> list[dict[str, Number]]:
    """The metrics of whole NVIDIA boards."""
    return [gpu.metrics for gpu in gpus if gpu.vendor == "nvidia" and gpu.parent is None]


def is_any(gpu: GpuReading, models: tuple[str, ...]) -> bool:
    return any(model in gpu.name for model in models)


def test_what_is_unknown_has_a_reason_of_a_real_machine(reports: list[Report]) -> None:
    rows = [gpu for report in reports for gpu in report.gpus or ()]
    assert {reason for gpu in rows for reason in gpu.unknown.values()} <= REASONS_OF_REAL_MACHINES
    processes = [process for gpu in rows for process in gpu.processes or ()]
    assert {reason for process in processes for reason in process.reasons.values()} == {nvml_board.UNDER_MIG}
    assert all(sorted([*gpu.metrics, *gpu.unknown]) == sorted(GPU_METRICS) for gpu in rows)


def test_a_host_knows_everything_about_itself(reports: list[Report]) -> None:
    assert all(report.metrics.keys() == HOST_METRICS.keys() for report in reports)
    assert all(report.unknown == {} for report in reports)


def test_every_metric_is_known_somewhere(gpus: list[GpuReading]) -> None:
    assert {name for gpu in gpus for name in gpu.metrics} == GPU_METRICS.keys()


def test_a_gpu_tells_what_its_model_has(gpus: list[GpuReading]) -> None:
    assert all(("fan_percent" in gpu.unknown) is is_any(gpu, WITHOUT_FAN) for gpu in gpus)
    assert all(("memory_temperature_celsius" in gpu.metrics) is is_any(gpu, WITH_MEMORY_SENSOR) for gpu in gpus)
    boards = [gpu for gpu in gpus if gpu.parent is None]
    assert all(("nvlink_active_count" in gpu.metrics) is is_any(gpu, tuple(LINKS)) for gpu in boards)
    assert all(("ecc_corrected_count" in gpu.unknown) is ("RTX" in gpu.name) for gpu in boards)
    assert all(("sm_activity_percent" in gpu.metrics) is is_any(gpu, ("H100", "H200")) for gpu in boards)


def test_every_gpu_has_a_pci_address_of_its_own(reports: list[Report]) -> None:
    for report in reports:
        boards = {(gpu.parent or gpu.uuid, gpu.pci_address) for gpu in report.gpus or ()}
        assert len({address for _, address in boards}) == len(boards)
        assert all(address and address.endswith(":00.0") for _, address in boards)


def test_a_gpu_with_thermal_throttling_is_hot_and_slow(nvidia: list[dict[str, Number]]) -> None:
    slowed = [m for m in nvidia if m["throttled_thermal"]]
    assert slowed
    assert min(m["temperature_celsius"] for m in slowed) >= 88
    assert max(m["temperature_celsius"] for m in nvidia if not m["throttled_thermal"]) <= 88
    assert max(m["clock_sm_mhz"] for m in slowed) < 0.8 * 2505


def test_hardware_slows_down_only_what_is_hotter_still(nvidia: list[dict[str, Number]]) -> None:
    slowed = [m for m in nvidia if m["throttled_hardware"]]
    assert slowed
    assert min(m["temperature_celsius"] for m in slowed) >= 92
    assert all(m["throttled_thermal"] for m in slowed)


def test_a_gpu_slowed_by_its_power_limit_takes_nearly_all_of_it(nvidia: list[dict[str, Number]]) -> None:
    slowed = [m["power_watts"] / m["power_limit_watts"] for m in nvidia if m["throttled_power"]]
    free = [m["power_watts"] / m["power_limit_watts"] for m in nvidia if not m["throttled_power"]]
    assert min(slowed) >= 0.949
    assert max(free) <= 0.951


def test_clocks_are_low_while_nobody_is_there(gpus: list[GpuReading]) -> None:
    boards = [gpu for gpu in gpus if gpu.parent is None]
    empty = [gpu.metrics["clock_sm_mhz"] for gpu in boards if not [p for p in gpu.processes or () if not p.display]]
    taken = [gpu.metrics["clock_sm_mhz"] for gpu in boards if [p for p in gpu.processes or () if not p.display]]
    assert empty
    assert max(empty) <= 345
    assert min(taken) > 900


def test_an_empty_gpu_that_can_rest_is_in_its_slowest_state(gpus: list[GpuReading]) -> None:
    cards = [gpu for gpu in gpus if is_any(gpu, ("RTX", "L40S"))]
    by_state = {
        state: [gpu.metrics["clock_memory_mhz"] for gpu in cards if gpu.metrics["performance_state"] == state]
        for state in (0, 2, 8)
    }
    assert set(by_state[8]) == {405}
    assert min(by_state[0] + by_state[2]) > 8000


def test_video_engines_work_only_where_the_gpu_does(gpus: list[GpuReading]) -> None:
    boards = [gpu for gpu in gpus if "decoder_percent" in gpu.metrics]
    decoding = [gpu for gpu in boards if gpu.metrics["decoder_percent"]]
    assert 0 < len(decoding) < 0.1 * len(boards)
    assert all(gpu.metrics["utilization_percent"] > gpu.metrics["decoder_percent"] for gpu in decoding)
    assert all(gpu.metrics["encoder_percent"] <= gpu.metrics["decoder_percent"] for gpu in boards)


def test_memory_is_about_as_warm_as_its_chip(gpus: list[GpuReading]) -> None:
    pairs = [
        (gpu.metrics["temperature_celsius"], gpu.metrics["memory_temperature_celsius"])
        for gpu in gpus
        if "memory_temperature_celsius" in gpu.metrics
    ]
    assert all(0.75 * chip < memory <= chip for chip, memory in pairs)


def test_one_gpu_of_the_cast_has_a_link_down(gpus: list[GpuReading]) -> None:
    linked = [gpu for gpu in gpus if "nvlink_active_count" in gpu.metrics]
    down = {gpu.uuid for gpu in linked if gpu.metrics["nvlink_inactive_count"]}
    assert len(down) == 1
    assert all(
        gpu.metrics["nvlink_active_count"] + gpu.metrics["nvlink_inactive_count"]
        in {links for model, links in LINKS.items() if model in gpu.name}
        for gpu in linked
    )


def test_one_gpu_of_the_cast_has_worn_memory(gpus: list[GpuReading]) -> None:
    pending = [gpu for gpu in gpus if gpu.parent is None and gpu.metrics.get("remapped_rows_pending")]
    assert len({gpu.uuid for gpu in pending}) == 1
    assert all(gpu.metrics["ecc_uncorrected_count"] for gpu in pending)
    assert all(gpu.metrics["remapped_rows_count"] for gpu in pending)
    others = [gpu for gpu in gpus if gpu.uuid != pending[0].uuid and "ecc_uncorrected_count" in gpu.metrics]
    assert {gpu.metrics["ecc_uncorrected_count"] for gpu in others} == {0}


def counter_of(fleet: SimulatedFleet, host: int, name: str, times: list[float]) -> list[list[Number]]:
    """What a counter says over these times, for each GPU of the host that has it."""
    reports = [report for t in times if (report := fleet.report(host, t))]
    rows = zip(*(report.gpus or () for report in reports), strict=True)
    return [[gpu.metrics[name] for gpu in row if not gpu.missing] for row in rows if name in row[0].metrics]


def test_energy_grows_until_the_next_boot(fleet: SimulatedFleet) -> None:
    times = [NOON + step * 60 for step in range(10)]
    steady = [host for host in range(24) if fleet.boot_id(host, NOON) == fleet.boot_id(host, NOON + 1200)]
    counters = [counts for host in steady for counts in counter_of(fleet, host, "energy_joules", times)]
    assert len(counters) > 80
    assert all(before < after for counts in counters for before, after in pairwise(counts))


def test_memory_errors_only_grow_between_boots(fleet: SimulatedFleet) -> None:
    times = [NOON + step * DAY / 4 for step in range(40)]
    host = next(
        h for h in range(8) if any(counts[0] > 4 for counts in counter_of(fleet, h, "ecc_corrected_count", times))
    )
    counts = max(counter_of(fleet, host, "ecc_corrected_count", times))
    assert all(before <= after or after < 40 for before, after in pairwise(counts))
    assert len(set(counts)) > 10


def test_network_rises_with_the_work(reports: list[Report]) -> None:
    rates = [
        (
            sum(gpu.metrics.get("utilization_percent", 0) for gpu in report.gpus or ()),
            report.metrics["network_receive_bytes_per_second"],
        )
        for report in reports
        if not any(gpu.parent for gpu in report.gpus or ())
    ]
    assert median(rate for used, rate in rates if used == 0) < 4e5
    assert median(rate for used, rate in rates if 0 < used <= 200) < 2e7
    assert median(rate for used, rate in rates if used > 300) > 2.5e7


def test_swap_is_used_only_where_there_is_some(reports: list[Report]) -> None:
    pairs = [(report.metrics["swap_used_bytes"], report.metrics["swap_total_bytes"]) for report in reports]
    assert {0, 8 << 30, 32 << 30} == {total for _, total in pairs}
    assert all(0 <= used < 0.6 * total or used == total == 0 for used, total in pairs)


def test_some_hosts_have_two_disks_for_data_and_one_is_nearly_full(reports: list[Report]) -> None:
    assert {tuple(disk.mount for disk in report.disks) for report in reports} == {(), ("/data", "/home")}
    disks = [disk for report in reports for disk in report.disks]
    assert all(0 < disk.used_bytes < disk.total_bytes for disk in disks)
    full = [report for report in reports if any(d.used_bytes > 0.94 * d.total_bytes for d in report.disks)]
    assert {(report.gpus or [])[0].name for report in full} == {"AMD Instinct MI300X"}
    assert len(full) == len(MOMENTS)


def test_homes_are_the_same_file_system_on_every_host(fleet: SimulatedFleet) -> None:
    now = [report for host in range(24) if (report := fleet.report(host, NOON))]
    homes = [(disk.used_bytes, disk.total_bytes) for report in now for disk in report.disks if disk.mount == "/home"]
    assert len(homes) > 3
    assert len(set(homes)) == 1


def test_disks_are_told_in_whole_mebibytes(reports: list[Report]) -> None:
    assert {disk.used_bytes % MIB for report in reports for disk in report.disks} == {0}


def test_every_host_has_addresses_of_its_own() -> None:
    fleet = SimulatedFleet(600)
    found = [report.addresses for host in range(600) if (report := fleet.report(host, NOON))]
    addresses = [address for addresses in found for address in addresses]
    assert all(found)
    assert all(address.startswith("10.") for address in addresses)
    assert len(set(addresses)) == len(addresses)


def test_jobs_of_a_scheduler_have_cgroups_that_grow(fleet: SimulatedFleet) -> None:
    last: dict[str, JobCgroup] = {}
    for at in range(int(NOON), int(NOON) + 3600, 30):
        for host in range(len(fleet.names)):
            report = fleet.report(host, at)
            jobs = {one.job for gpu in (report.gpus or [] if report else []) for one in gpu.processes or ()}
            for one in report.job_cgroups if report else []:
                assert one.job in jobs
                before = last.get(one.job, one)
                used, seconds = (one.cpu_seconds or 0) - (before.cpu_seconds or 0), one.read_at - before.read_at
                assert 0 <= used <= seconds * (one.cpu_limit_cores or 0)
                assert 0 < (one.memory_used_bytes or 0) <= (one.memory_limit_bytes or 0)
                last[one.job] = one
    assert last
