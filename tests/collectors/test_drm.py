"""AMD and Intel GPUs on machines that are laid out from tests/captures/drm."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes.drm_tree import break_file, lay_out, put, put_link
from gpudeck.collectors.base import NEEDS_TWO, NO_VALUE, CollectorSettings, find_factory
from gpudeck.collectors.drm import OF_ROCM, DrmCollector
from gpudeck.collectors.drm_cards import ASLEEP
from gpudeck.collectors.drm_clients import NOT_SEEN, OTHER_NAMESPACE, TOO_OLD
from gpudeck.collectors.machine import MachineCollector
from gpudeck.collectors.owners import GONE
from gpudeck.collectors.proc import NO_NUMBER, UNSUPPORTED
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent
from gpudeck.model.gpu_state import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading, Process, Report

MI300X, RX7900, A770, B580 = "mi300x-amdgpu-6.8", "rx7900xtx-amdgpu-6.9", "arc-a770-i915-6.8", "arc-b580-xe-6.16"
BESIDE_NVIDIA, LAPTOP = "mi210-amdgpu-6.1-beside-nvidia-535", "ryzen-7840u-amdgpu-6.9"
GIB = 2**30
PCI = "sys/devices/pci0000:00"
ARC = f"{PCI}/0000:03:00.0"
RX = f"{PCI}/0000:03:00.0"
BATTLEMAGE = f"{PCI}/0000:04:00.0"

Machine = Callable[[str], Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return lambda name: lay_out(name, tmp_path)


def read(collector: DrmCollector, now: float = 1000.0) -> list[GpuReading]:
    gpus = collector.collect(now).gpus
    assert gpus is not None
    return gpus


def read_one(root: Path) -> GpuReading:
    return read(DrmCollector(root))[0]


def by_pid(gpu: GpuReading) -> dict[int, Process]:
    assert gpu.processes is not None
    return {process.pid: process for process in gpu.processes}


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", [MI300X, RX7900, A770, B580, BESIDE_NVIDIA])
def test_every_metric_is_known_or_unknown_with_a_reason(machine: Machine, name: str) -> None:
    collector = DrmCollector(machine(name))
    for gpu in [*read(collector, 1000.0), *read(collector, 1002.0)]:
        assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
        assert not gpu.metrics.keys() & gpu.unknown.keys()
        assert all(gpu.unknown.values())
        assert all(GPU_METRICS[name].low <= value <= GPU_METRICS[name].high for name, value in gpu.metrics.items())


@pytest.mark.parametrize("name", [MI300X, RX7900, A770, B580, BESIDE_NVIDIA])
def test_report_survives_the_pipe_to_the_parent(machine: Machine, name: str) -> None:
    report = DrmCollector(machine(name)).collect(1000.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report


def test_mi300x_tells_its_figures(machine: Machine) -> None:
    first, second = read(DrmCollector(machine(MI300X)))
    assert (first.uuid, first.index, first.name) == ("GPU-8a2c1f0b7d4e9a31", 0, "AMD Instinct MI300X OAM")
    assert (second.uuid, second.index, second.vendor) == ("GPU-51d0ce6612ab7788", 1, "amd")
    assert first.metrics == {
        "utilization_percent": 97,
        "memory_utilization_percent": 41,
        "memory_used_bytes": 100 * GIB,
        "memory_total_bytes": 206141652992,
        "temperature_celsius": 62,
        "memory_temperature_celsius": 48,
        "power_watts": 611.0,
        "power_limit_watts": 750,
        "clock_sm_mhz": 2100,
        "clock_memory_mhz": 1300,
        "ecc_corrected_count": 3,
        "ecc_uncorrected_count": 0,
    }
    assert first.unknown["fan_percent"] == UNSUPPORTED


def test_only_nvlinks_are_unknown_because_there_are_none(machine: Machine) -> None:
    unknown = read_one(machine(MI300X)).unknown
    assert {name for name, why in unknown.items() if "NVLink" in why} == {
        *("nvlink_active_count", "nvlink_inactive_count", "nvlink_error_count", "nvlink_error_link")
    }
    assert unknown["pcie_width"] == "the PCIe link is read of NVIDIA GPUs only"


def test_rx_7900_tells_edge_temperature_average_power_and_fan(machine: Machine) -> None:
    gpu = read_one(machine(RX7900))
    assert gpu.name == "AMD Radeon RX 7900 series"
    assert (gpu.metrics["temperature_celsius"], gpu.metrics["power_watts"], gpu.metrics["fan_percent"]) == (47, 96, 20)
    assert gpu.unknown["ecc_corrected_count"] == UNSUPPORTED


def test_arc_a770_by_i915_tells_what_files_and_processes_give(machine: Machine) -> None:
    root = machine(A770)
    collector = DrmCollector(root)
    first = read(collector, 1000.0)[0]
    assert first.unknown["utilization_percent"] == first.unknown["power_watts"] == NEEDS_TWO
    put(root / ARC / "hwmon/hwmon3/energy1_input", str(5_000_000_000 + 240_500_000))
    change(root / "proc/1500/fdinfo/6", "100000000000 ns", "101000000000 ns")
    change(root / "proc/1600/fdinfo/6", "8000000000 ns", "10000000000 ns")
    gpu = read(collector, 1002.0)[0]
    assert (gpu.name, gpu.vendor, gpu.uuid) == ("Intel Arc A770", "intel", "PCI-0000:03:00.0")
    assert gpu.metrics == {
        "utilization_percent": 50,
        "memory_used_bytes": int(4.5 * GIB),
        "power_watts": 120.2,
        "power_limit_watts": 190,
        "energy_joules": 5240,
        "clock_sm_mhz": 2100,
        "throttled_power": 1,
        "throttled_thermal": 0,
        "throttled_hardware": 0,
    }
    assert {pid: process.utilization_percent for pid, process in by_pid(gpu).items()} == {1500: 50.0, 1600: 50.0}


def test_arc_b580_by_xe_tells_sensors_of_the_package_and_cycles(machine: Machine) -> None:
    root = machine(B580)
    collector = DrmCollector(root)
    read(collector, 1000.0)
    fdinfo = root / "proc/1500/fdinfo/6"
    change(fdinfo, "drm-cycles-ccs:\t20000", "drm-cycles-ccs:\t95000")
    change(fdinfo, ":\t100000", ":\t200000")
    put(root / BATTLEMAGE / "hwmon/hwmon6/energy1_input", "1080000000")
    gpu = read(collector, 1002.0)[0]
    assert gpu.metrics["utilization_percent"] == 75
    assert gpu.metrics["memory_total_bytes"] == GPU_METRICS["memory_total_bytes"].round(12450791424)
    assert gpu.metrics["memory_used_bytes"] == 8 * GIB
    assert (gpu.metrics["temperature_celsius"], gpu.metrics["memory_temperature_celsius"]) == (55, 60)
    assert (gpu.metrics["power_watts"], gpu.metrics["power_limit_watts"]) == (90.0, 190)
    assert gpu.metrics["clock_sm_mhz"] == 2850
    assert by_pid(gpu)[1500].utilization_percent == 75.0


def test_nvidia_beside_amd_is_left_to_the_nvml_collector(machine: Machine) -> None:
    (gpu,) = read(DrmCollector(machine(BESIDE_NVIDIA)))
    assert (gpu.vendor, gpu.name) == ("amd", "AMD Instinct MI210")
    assert {pid: process.memory_used_bytes for pid, process in by_pid(gpu).items()} == {800: GIB}


def test_graphics_of_a_laptops_cpu_are_no_gpu_of_the_fleet(machine: Machine) -> None:
    with pytest.raises(Absent):
        DrmCollector(machine(LAPTOP)).collect(1000.0)


def test_graphics_of_a_cpu_with_memory_of_a_card_are_listed(machine: Machine) -> None:
    root = machine(LAPTOP)
    put(root / PCI / "0000:c1:00.0/mem_info_vram_total", str(96 * GIB))
    assert read_one(root).name == "AMD GPU 1002:15bf"


def test_intel_graphics_without_memory_of_their_own_are_not_listed(machine: Machine) -> None:
    root = machine(A770)
    shutil.rmtree(root / ARC)
    with pytest.raises(Absent):
        DrmCollector(root).collect(1000.0)


def test_intel_card_of_an_unknown_model_is_known_by_its_sensors(machine: Machine) -> None:
    root = machine(A770)
    put(root / ARC / "device", "0x1234")
    gpu = read_one(root)
    assert gpu.name == "Intel GPU 8086:1234"
    assert gpu.unknown["memory_total_bytes"] == "i915 reports the size of the memory in no file"


def test_card_that_was_given_to_a_virtual_machine_is_not_listed(machine: Machine) -> None:
    root = machine(MI300X)
    put_link(root / PCI / "0000:05:00.0/driver", "../../../bus/pci/drivers/vfio-pci")
    assert [gpu.uuid for gpu in read(DrmCollector(root))] == ["GPU-51d0ce6612ab7788"]


def test_size_of_the_memory_is_that_of_intels_own_driver(machine: Machine) -> None:
    root = machine(A770)
    put(root / ARC / "drm/card1/lmem_total_bytes", str(14 * GIB))
    assert read_one(root).metrics["memory_total_bytes"] == 14 * GIB


@pytest.mark.parametrize("folder", ["sys/class/drm", "."])
def test_machine_without_such_cards_is_absent(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    with pytest.raises(Absent):
        DrmCollector(tmp_path).collect(1000.0)


def test_card_without_a_number_has_a_uuid_of_machine_and_slot(machine: Machine) -> None:
    root = machine(RX7900)
    put(root / "etc/machine-id", "0123456789abcdef0123456789abcdef")
    (root / RX / "unique_id").unlink()
    uuid = read_one(root).uuid
    put(root / "etc/machine-id", "fedcba9876543210fedcba9876543210")
    assert uuid.startswith("PCI-")
    assert uuid.endswith("-0000:03:00.0")
    assert read_one(root).uuid != uuid


def test_two_chips_with_the_same_number_are_two_gpus(machine: Machine) -> None:
    root = machine(MI300X)
    put(root / PCI / "0000:26:00.0/unique_id", "8a2c1f0b7d4e9a31")
    uuids = [gpu.uuid for gpu in read(DrmCollector(root))]
    assert uuids == ["GPU-8a2c1f0b7d4e9a31", "GPU-8a2c1f0b7d4e9a31-0000:26:00.0"]


def test_card_that_vanishes_is_missing_and_hides_no_other(machine: Machine) -> None:
    root = machine(MI300X)
    collector = MachineCollector([DrmCollector(root)])
    collector.collect(1000.0)
    shutil.rmtree(root / PCI / "0000:05:00.0")
    second, first = collector.collect(1001.0).gpus or []
    assert (first.uuid, first.index, first.metrics) == ("GPU-8a2c1f0b7d4e9a31", 0, {})
    assert first.missing == "the driver no longer lists this GPU"
    assert (second.missing, second.index) == (None, 1)
    assert second.metrics["temperature_celsius"] == 36


def test_card_that_comes_back_is_read_again_at_its_place(machine: Machine) -> None:
    root = machine(MI300X)
    collector = DrmCollector(root)
    read(collector, 1000.0)
    shutil.rmtree(root / PCI / "0000:05:00.0")
    read(collector, 1001.0)
    machine(MI300X)
    first, second = read(collector, 1002.0)
    assert (first.uuid, first.index, first.missing) == ("GPU-8a2c1f0b7d4e9a31", 0, None)
    assert second.index == 1


def test_all_cards_gone_is_not_an_empty_machine(machine: Machine) -> None:
    root = machine(RX7900)
    collector = MachineCollector([DrmCollector(root)])
    collector.collect(1000.0)
    shutil.rmtree(root / "sys")
    (gpu,) = collector.collect(1001.0).gpus or []
    assert gpu.missing == "There is no AMD or Intel GPU with a driver on this machine."


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", NO_VALUE), ("garbage", NO_NUMBER), ("12 34", NO_NUMBER), ("²", NO_NUMBER), ("9" * 30, NO_NUMBER)],
)
def test_file_without_a_number_is_unknown_and_spoils_no_other(machine: Machine, text: str, reason: str) -> None:
    root = machine(RX7900)
    put(root / RX / "gpu_busy_percent", text)
    gpu = read_one(root)
    assert gpu.unknown["utilization_percent"] == reason
    assert gpu.idle_seconds is None
    assert gpu.metrics["memory_used_bytes"] == 3 * GIB


def test_file_of_a_sick_driver_is_unknown_with_what_it_said(machine: Machine) -> None:
    root = machine(RX7900)
    break_file(root / RX / "hwmon/hwmon2/temp1_input")
    break_file(root / RX / "mem_info_vram_used")
    gpu = read_one(root)
    assert gpu.unknown["temperature_celsius"] == gpu.unknown["memory_used_bytes"]
    assert gpu.unknown["temperature_celsius"] == f"reading it failed: {os.strerror(5)}"
    assert gpu.metrics["utilization_percent"] == 23


def test_power_limit_of_zero_is_no_limit(machine: Machine) -> None:
    root = machine(B580)
    for name in ("power1_max", "power2_max"):
        put(root / BATTLEMAGE / "hwmon/hwmon6" / name, "0")
    assert read_one(root).unknown["power_limit_watts"] == "no power limit is set"


def test_sleeping_gpu_is_not_woken(machine: Machine) -> None:
    root = machine(RX7900)
    put(root / RX / "power/runtime_status", "suspended")
    break_file(root / "proc/2000/fdinfo/9")
    gpu = read_one(root)
    assert gpu.metrics == {}
    assert set(gpu.unknown.values()) == {ASLEEP}
    assert by_pid(gpu)[2000].reasons["memory_used_bytes"] == ASLEEP


def test_sleeping_gpu_that_nobody_has_open_is_free(machine: Machine) -> None:
    root = machine(B580)
    put(root / BATTLEMAGE / "power/runtime_status", "suspended")
    shutil.rmtree(root / "proc/1500")
    gpu = read_one(root)
    assert judge_availability(gpu) == "free"


def test_processes_have_owner_command_start_and_memory(machine: Machine) -> None:
    gpu = read_one(machine(RX7900))
    process = by_pid(gpu)[2000]
    assert (process.command, process.memory_used_bytes, process.display) == ("ffmpeg -i in.mkv", 256 * 2**20, False)
    assert process.started_at == 1_700_000_000 + 20000 / os.sysconf("SC_CLK_TCK")
    assert process.evidence == f"uid {os.getuid()} of /proc/2000"


def test_processes_have_container_and_job(machine: Machine) -> None:
    root = machine(RX7900)
    put(root / "proc/2000/cgroup", f"0::/system.slice/docker-{'ab' * 32}.scope")
    put(root / "proc/900/cgroup", "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0")
    processes = by_pid(read_one(root))
    assert processes[2000].container == "abababababab"
    assert processes[900].job == "77"


def test_desktop_is_marked_as_display(machine: Machine) -> None:
    assert by_pid(read_one(machine(RX7900)))[900].display


def test_program_that_computes_is_no_display_whatever_its_name(machine: Machine) -> None:
    root = machine(MI300X)
    change(root / "proc/4101/stat", "(python3)", "(Xorg)")
    assert not by_pid(read_one(root))[4101].display


def test_open_file_that_was_handed_on_is_counted_once(machine: Machine) -> None:
    processes = by_pid(read_one(machine(RX7900)))
    assert processes[900].memory_used_bytes == 512 * 2**20
    assert 2001 not in processes


def test_program_that_only_opened_the_gpu_is_not_on_it(machine: Machine) -> None:
    assert 3000 not in by_pid(read_one(machine(RX7900)))


def test_rocm_process_is_on_the_gpus_where_it_holds_memory_only(machine: Machine) -> None:
    first, second = read(DrmCollector(machine(MI300X)))
    assert {pid: process.memory_used_bytes for pid, process in by_pid(first).items()} == {
        4101: 81 * GIB,
        5202: 18 * GIB,
    }
    assert second.processes == []
    assert second.processes_reason is None


def test_time_of_rocm_work_is_unknown_and_not_zero(machine: Machine) -> None:
    collector = DrmCollector(machine(MI300X))
    read(collector, 1000.0)
    process = by_pid(read(collector, 1002.0)[0])[4101]
    assert process.utilization_percent is None
    assert process.reasons == {"utilization_percent": OF_ROCM}


def test_rocm_process_whose_memory_cannot_be_read_is_listed(machine: Machine) -> None:
    root = machine(MI300X)
    break_file(root / "sys/class/kfd/kfd/proc/5202/vram_51110")
    process = by_pid(read_one(root))[5202]
    assert process.memory_used_bytes is None
    assert process.reasons["memory_used_bytes"] == NO_VALUE


@pytest.mark.parametrize("amount", [str(2**53), "-1", "9" * 30])
def test_memory_that_no_gpu_has_is_unknown_and_spoils_no_report(machine: Machine, amount: str) -> None:
    root = machine(MI300X)
    put(root / "sys/class/kfd/kfd/proc/5202/vram_51110", amount)
    report = DrmCollector(root).collect(1000.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report
    assert by_pid(read_one(root))[5202].memory_used_bytes is None


def test_process_that_ended_while_it_was_read_leaves_the_others(machine: Machine) -> None:
    root = machine(RX7900)
    collector = DrmCollector(root)
    read(collector, 1000.0)
    shutil.rmtree(root / "proc/2000")
    shutil.rmtree(root / "proc/2001")
    assert by_pid(read(collector, 1001.0)[0]).keys() == {900}


def test_process_of_kfd_that_is_not_in_proc_keeps_its_memory(machine: Machine) -> None:
    root = machine(MI300X)
    shutil.rmtree(root / "proc/5202")
    process = by_pid(read_one(root))[5202]
    assert process.memory_used_bytes == 18 * GIB
    assert process.reasons["user"] == GONE


def test_new_process_is_seen_within_a_few_seconds(machine: Machine) -> None:
    root = machine(B580)
    collector = DrmCollector(root)
    read(collector, 1000.0)
    shutil.copytree(root / "proc/1500", root / "proc/1700", symlinks=True)
    change(root / "proc/1700/fdinfo/6", "drm-client-id:\t3", "drm-client-id:\t4")
    assert by_pid(read(collector, 1005.0)[0]).keys() == {1500, 1700}


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but process 1 may be looked into: root may read everything, so the refusal is made here."""
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/fd") and not path.endswith("/1/fd"):
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)


@pytest.mark.usefixtures("other_user")
def test_processes_that_may_not_be_seen_are_unknown_and_not_none(machine: Machine) -> None:
    gpu = read_one(machine(A770))
    assert (gpu.processes, gpu.processes_reason) == (None, NOT_SEEN)
    assert gpu.unknown["memory_used_bytes"] == gpu.unknown["utilization_percent"] == NOT_SEEN
    assert gpu.metrics["clock_sm_mhz"] == 2100
    assert judge_availability(gpu) == "unknown"


@pytest.mark.usefixtures("other_user")
def test_rocm_processes_of_others_are_seen_without_permission(machine: Machine) -> None:
    gpu = read_one(machine(MI300X))
    assert by_pid(gpu).keys() == {4101, 5202}
    assert gpu.processes_reason == NOT_SEEN
    assert gpu.metrics["memory_used_bytes"] == 100 * GIB


def test_hidden_processes_of_a_proc_with_hidepid_are_not_taken_for_none(machine: Machine) -> None:
    root = machine(A770)
    for pid in (1, 700, 1500, 1600):
        shutil.rmtree(root / "proc" / str(pid))
    gpu = read_one(root)
    assert (gpu.processes, gpu.processes_reason) == (None, NOT_SEEN)


def test_container_with_processes_of_its_own_says_so(machine: Machine) -> None:
    root = machine(A770)
    put_link(root / "proc/self/ns/pid", "pid:[4026532999]")
    gpu = read_one(root)
    assert by_pid(gpu).keys() == {1500, 1600}
    assert gpu.processes_reason == OTHER_NAMESPACE
    assert gpu.unknown["memory_used_bytes"] == OTHER_NAMESPACE


def test_kernel_that_tells_nothing_of_processes_is_not_taken_for_an_idle_gpu(machine: Machine) -> None:
    root = machine(A770)
    for pid in (1500, 1600):
        put(root / f"proc/{pid}/fdinfo/6", "pos:\\t0\\nflags:\\t02")
    collector = DrmCollector(root)
    for gpu in [*read(collector, 1000.0), *read(collector, 1001.0)]:
        assert (gpu.processes, gpu.processes_reason) == (None, TOO_OLD)
        assert "memory_used_bytes" in gpu.unknown


def test_process_without_memory_figures_leaves_the_sum_unknown(machine: Machine) -> None:
    root = machine(A770)
    change(root / "proc/1600/fdinfo/6", "drm-total-local0:\t512 MiB\ndrm-resident-local0:\t512 MiB\n", "")
    gpu = read_one(root)
    assert gpu.unknown["memory_used_bytes"] == "the driver does not report the memory of every process"
    assert by_pid(gpu)[1600].reasons["memory_used_bytes"] == NO_VALUE


def test_process_without_engine_times_leaves_the_utilization_unknown(machine: Machine) -> None:
    root = machine(A770)
    put(root / "proc/1600/fdinfo/6", "drm-driver: i915\\ndrm-pdev: 0000:03:00.0\\ndrm-resident-local0: 1 MiB")
    collector = DrmCollector(root)
    read(collector, 1000.0)
    gpu = read(collector, 1002.0)[0]
    assert gpu.unknown["utilization_percent"] == "the driver does not report the engine time of every process"


def test_memory_that_processes_share_is_not_more_than_there_is(machine: Machine) -> None:
    root = machine(A770)
    put(root / ARC / "drm/card1/lmem_total_bytes", str(16 * GIB))
    for pid in (1500, 1600):
        text = f"drm-driver: i915\\ndrm-client-id: {pid}\\ndrm-pdev: 0000:03:00.0\\ndrm-resident-local0: 12 GiB"
        put(root / f"proc/{pid}/fdinfo/6", text)
    assert read_one(root).metrics["memory_used_bytes"] == 16 * GIB


def test_gpu_without_processes_is_idle_and_empty(machine: Machine) -> None:
    root = machine(B580)
    shutil.rmtree(root / "proc/1500")
    collector = DrmCollector(root)
    read(collector, 1000.0)
    gpu = read(collector, 1002.0)[0]
    assert (gpu.metrics["utilization_percent"], gpu.metrics["memory_used_bytes"], gpu.processes) == (0, 0, [])


def test_idle_seconds_add_up_and_end_with_work(machine: Machine) -> None:
    root = machine(MI300X)
    collector = DrmCollector(root)
    assert [gpu.idle_seconds for gpu in read(collector, 1000.0)] == [0.0, 0.0]
    assert [gpu.idle_seconds for gpu in read(collector, 1030.0)] == [0.0, 30.0]
    put(root / PCI / "0000:26:00.0/gpu_busy_percent", "80")
    assert [gpu.idle_seconds for gpu in read(collector, 1040.0)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "version"),
    [(MI300X, "amdgpu 6.8.5"), (A770, "i915 of Linux 6.8.0-45-generic"), (BESIDE_NVIDIA, None)],
)
def test_driver_version_is_the_modules_or_the_kernels(machine: Machine, name: str, version: str | None) -> None:
    assert DrmCollector(machine(name)).collect(1000.0).driver_version == version


def test_collector_is_found_by_its_name() -> None:
    assert isinstance(find_factory("drm")(CollectorSettings()), DrmCollector)


def judge_availability(gpu: GpuReading) -> str:
    return judge(
        processes=None if gpu.processes is None else len(gpu.processes),
        memory_used_bytes=gpu.metrics.get("memory_used_bytes"),
        utilization_percent=gpu.metrics.get("utilization_percent"),
        idle_seconds=gpu.idle_seconds or 0.0,
        reserved=False,
        settings=AvailabilitySettings(),
    )[0]
