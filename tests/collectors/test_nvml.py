"""The NVML collector against a small stand-in for the module pynvml."""

# ruff: noqa: N802, N815 - the functions have the names that pynvml gives them

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpudeck.collectors.nvml import NvmlCollector
from gpudeck.collectors.nvml_device import NO_VALUE, UNSUPPORTED
from gpudeck.collectors.owners import Owner
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, Refused, Temporary
from gpudeck.model.report import GpuReading, Report

GIB = 1024**3
NOT_AVAILABLE = 2**64 - 1


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class Device:
    """A board or a MIG instance. `errors` maps the end of a function's name to the code it fails with."""

    def __init__(self, uuid: str, **changes: Any) -> None:
        self.uuid = uuid
        self.name = "NVIDIA H200"
        self.utilization = 90
        self.memory_used, self.memory_reserved, self.memory_total = 20 * GIB, GIB // 2, 140 * GIB
        self.temperature, self.milliwatts, self.limit_milliwatts = 53, 529_040, 700_000
        self.clocks = {1: 1980, 2: 3201}
        self.compute: list[tuple[int, int | None]] = []
        self.graphics: list[tuple[int, int | None]] = []
        self.instances: list[Device | None] | None = None
        self.gpu_instance = 0
        self.errors: dict[str, int] = {"FanSpeed": pynvml.NVML_ERROR_NOT_SUPPORTED}
        vars(self).update(changes)


class FakeNvml:
    """As much of pynvml as the collector uses, over devices that a test changes as it goes."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *devices: Device) -> None:
        self.devices = list(devices)
        self.init_error: int | None = None
        self.is_open = False

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self._require_open()
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        self._require_open()
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        self._require_open()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self._use(self.devices[index], "HandleByIndex")

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return self._use(device, "UUID").uuid

    def nvmlDeviceGetName(self, device: Device) -> str:
        return self._use(device, "Name").name

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:
        return SimpleNamespace(gpu=self._use(device, "UtilizationRates").utilization, memory=31)

    def nvmlDeviceGetMemoryInfo(self, device: Device, version: int | None = None) -> Any:
        self._use(device, "MemoryInfo_v2" if version else "MemoryInfo")
        reserved = 0 if version else device.memory_reserved
        return SimpleNamespace(used=device.memory_used + reserved, total=device.memory_total)

    def nvmlDeviceGetTemperature(self, device: Device, sensor: int) -> int:
        return self._use(device, "Temperature").temperature

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:
        return self._use(device, "PowerUsage").milliwatts

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Device) -> int:
        return self._use(device, "EnforcedPowerLimit").limit_milliwatts

    def nvmlDeviceGetFanSpeed(self, device: Device) -> int:
        self._use(device, "FanSpeed")
        return 40

    def nvmlDeviceGetClockInfo(self, device: Device, clock: int) -> int:
        return self._use(device, "ClockInfo").clocks[clock]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Device) -> list[Any]:
        return self._list(self._use(device, "ComputeRunningProcesses_v3").compute)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, device: Device) -> list[Any]:
        return self._list(self._use(device, "ComputeRunningProcesses_v2").compute)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, device: Device) -> list[Any]:
        return self._list(self._use(device, "GraphicsRunningProcesses_v3").graphics)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, device: Device) -> list[Any]:
        return self._list(self._use(device, "GraphicsRunningProcesses_v2").graphics)

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        mode = int(self._use(device, "MigMode").instances is not None)
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return len(self._use(device, "MaxMigDeviceCount").instances or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        found = (self._use(device, "MigDeviceHandleByIndex").instances or [])[index]
        if found is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetGpuInstanceId(self, device: Device) -> int:
        return self._use(device, "GpuInstanceId").gpu_instance

    def _require_open(self) -> None:
        if not self.is_open:
            raise NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _use(self, device: Device, function: str) -> Device:
        self._require_open()
        code = device.errors.get(function, device.errors.get("everything"))
        if code is not None:
            raise NVMLError(code)
        return device

    @staticmethod
    def _list(processes: list[tuple[int, int | None]]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in processes]


class FakeOwners:
    """Every pid belongs to alice; `names` gives programs their names."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        self.names = names or {}

    def find(self, pids: Any, now: float) -> dict[int, Owner]:
        return {pid: Owner(name=self.names.get(pid, "python3"), user="alice", command="train") for pid in pids}


def make(nvml: FakeNvml, **names: Any) -> NvmlCollector:
    return NvmlCollector(nvml, FakeOwners(**names))  # type: ignore[arg-type]


def rows(report: Report) -> dict[str, GpuReading]:
    assert report.gpus is not None
    return {gpu.uuid: gpu for gpu in report.gpus}


def read_one(device: Device) -> GpuReading:
    return rows(make(FakeNvml(device)).collect(0.0))[device.uuid]


def test_stand_in_has_only_what_pynvml_has() -> None:
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in names if not hasattr(pynvml, name)] == []


def test_importing_the_collector_does_not_import_pynvml() -> None:
    code = "import sys, gpudeck.collectors.nvml; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_gpu_metric_of_the_catalog_is_known_or_unknown_with_a_reason() -> None:
    gpu = read_one(Device("GPU-a"))
    assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
    assert not gpu.metrics.keys() & gpu.unknown.keys()


def test_values_come_in_the_units_of_the_catalog() -> None:
    assert read_one(Device("GPU-a")).metrics == {
        "utilization_percent": 90,
        "memory_utilization_percent": 31,
        "memory_used_bytes": 20 * GIB,
        "memory_total_bytes": 140 * GIB,
        "temperature_celsius": 53,
        "power_watts": 529.0,
        "power_limit_watts": 700,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 3201,
    }


def test_report_has_the_driver_version_and_each_gpus_name_and_index() -> None:
    report = make(FakeNvml(Device("GPU-a"), Device("GPU-b", name="NVIDIA L4"))).collect(0.0)
    assert report.driver_version == "580.159.04"
    assert [(gpu.index, gpu.name, gpu.vendor) for gpu in report.gpus or ()] == [
        (0, "NVIDIA H200", "nvidia"),
        (1, "NVIDIA L4", "nvidia"),
    ]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH])
def test_memory_falls_back_to_version_1_on_old_drivers(code: int) -> None:
    gpu = read_one(Device("GPU-a", errors={"MemoryInfo_v2": code}))
    assert gpu.metrics["memory_used_bytes"] == 20 * GIB + GIB // 2


@pytest.mark.parametrize(
    ("code", "reason"), [(pynvml.NVML_ERROR_NOT_SUPPORTED, UNSUPPORTED), (pynvml.NVML_ERROR_NO_DATA, NO_VALUE)]
)
def test_what_a_gpu_does_not_report_is_unknown_and_leaves_the_rest_alone(code: int, reason: str) -> None:
    gpu = read_one(Device("GPU-a", errors={"PowerUsage": code}))
    assert gpu.unknown["power_watts"] == reason
    assert "power_watts" not in gpu.metrics
    assert gpu.metrics["temperature_celsius"] == 53


def test_what_is_not_supported_stays_unknown_between_two_explorations_and_is_asked_for_again_later() -> None:
    device = Device("GPU-a")
    collector = make(FakeNvml(device))
    collector.collect(0.0)
    del device.errors["FanSpeed"]
    assert rows(collector.collect(1.0))["GPU-a"].unknown == {"fan_percent": UNSUPPORTED}
    assert rows(collector.collect(60.0))["GPU-a"].metrics["fan_percent"] == 40


@pytest.mark.parametrize("value", [NOT_AVAILABLE, 2**32 - 1])
def test_the_drivers_not_available_is_no_number(value: int) -> None:
    gpu = read_one(Device("GPU-a", temperature=value))
    assert gpu.unknown["temperature_celsius"] == NO_VALUE


def test_lost_gpu_stays_as_missing_and_does_not_hide_others() -> None:
    lost, other = Device("GPU-a", name="NVIDIA L4"), Device("GPU-b")
    collector = make(FakeNvml(lost, other))
    collector.collect(0.0)
    lost.errors["PowerUsage"] = pynvml.NVML_ERROR_GPU_IS_LOST
    first, second = rows(collector.collect(1.0)).values()
    assert (first.uuid, first.index, first.name, first.metrics) == ("GPU-a", 0, "NVIDIA L4", {})
    assert first.missing is not None
    assert "lost" in first.missing
    assert second.missing is None
    assert second.metrics["utilization_percent"] == 90


def test_lost_gpu_that_returns_is_read_again() -> None:
    device = Device("GPU-a")
    collector = make(FakeNvml(device, Device("GPU-b")))
    collector.collect(0.0)
    device.errors["everything"] = pynvml.NVML_ERROR_GPU_IS_LOST
    collector.collect(1.0)
    del device.errors["everything"]
    assert rows(collector.collect(100.0))["GPU-a"].missing is None


def test_gpu_that_the_driver_no_longer_lists_is_missing() -> None:
    nvml = FakeNvml(Device("GPU-a"), Device("GPU-b"))
    collector = make(nvml)
    collector.collect(0.0)
    del nvml.devices[0]
    nvml.is_open = False
    with pytest.raises(Temporary):
        collector.collect(1.0)
    seen = rows(collector.collect(2.0))
    assert seen["GPU-a"].missing == "the driver no longer lists this GPU"
    assert seen["GPU-b"].metrics["utilization_percent"] == 90


def test_gpu_that_cannot_be_opened_is_a_problem_and_does_not_hide_others() -> None:
    broken = Device("GPU-a", errors={"HandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST})
    report = make(FakeNvml(broken, Device("GPU-b"))).collect(0.0)
    assert list(rows(report)) == ["GPU-b"]
    assert [problem[:22] for problem in report.problems] == ["GPU 0 cannot be opened"]


def test_no_gpu_where_there_were_some_is_a_failed_reading() -> None:
    nvml = FakeNvml(Device("GPU-a"))
    collector = make(nvml)
    collector.collect(0.0)
    nvml.devices.clear()
    nvml.is_open = False
    with pytest.raises(Temporary):
        collector.collect(1.0)
    with pytest.raises(Temporary, match="There were 1 before"):
        collector.collect(2.0)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_machine_without_driver_has_nothing_to_read(code: int) -> None:
    nvml = FakeNvml()
    nvml.init_error = code
    with pytest.raises(Absent):
        make(nvml).collect(0.0)


def test_driver_that_lists_no_gpu_has_nothing_to_read() -> None:
    with pytest.raises(Absent, match="lists no GPU"):
        make(FakeNvml()).collect(0.0)


def test_devices_that_may_not_be_opened_are_refused() -> None:
    nvml = FakeNvml()
    nvml.init_error = pynvml.NVML_ERROR_NO_PERMISSION
    with pytest.raises(Refused):
        make(nvml).collect(0.0)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    ],
)
def test_reloaded_driver_is_opened_again_on_the_next_reading(code: int) -> None:
    device = Device("GPU-a")
    collector = make(FakeNvml(device))
    collector.collect(0.0)
    device.errors["UtilizationRates"] = code
    with pytest.raises(Temporary):
        collector.collect(1.0)
    del device.errors["UtilizationRates"]
    assert rows(collector.collect(2.0))["GPU-a"].metrics["utilization_percent"] == 90


def test_driver_that_does_not_come_back_is_temporary_not_absent() -> None:
    nvml = FakeNvml(Device("GPU-a"))
    collector = make(nvml)
    collector.collect(0.0)
    nvml.is_open, nvml.init_error = False, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(Temporary):
        collector.collect(1.0)
    with pytest.raises(Temporary, match="not loaded"):
        collector.collect(2.0)


def test_compute_and_graphics_lists_are_merged_by_pid() -> None:
    gpu = read_one(Device("GPU-a", compute=[(1, GIB), (2, 3 * GIB)], graphics=[(2, 3 * GIB), (3, 7)]))
    assert [(p.pid, p.memory_used_bytes, p.user) for p in gpu.processes or ()] == [
        (2, 3 * GIB, "alice"),
        (1, GIB, "alice"),
        (3, 7, "alice"),
    ]


@pytest.mark.parametrize("memory", [None, NOT_AVAILABLE])
def test_process_memory_that_is_not_available_is_unknown(memory: int | None) -> None:
    [process] = read_one(Device("GPU-a", compute=[(1, memory)])).processes or []
    assert process.memory_used_bytes is None
    assert process.reasons["memory_used_bytes"] == NO_VALUE


def test_process_list_that_cannot_be_read_is_none_with_its_reason() -> None:
    gpu = read_one(Device("GPU-a", errors={"ComputeRunningProcesses_v3": pynvml.NVML_ERROR_NO_PERMISSION}))
    assert gpu.processes is None
    assert gpu.processes_reason == "not permitted to read it"
    assert gpu.metrics["utilization_percent"] == 90


def test_process_list_of_an_old_driver_is_read() -> None:
    errors = {
        "ComputeRunningProcesses_v3": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "GraphicsRunningProcesses_v3": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    }
    gpu = read_one(Device("GPU-a", compute=[(1, GIB)], graphics=[(2, 5)], errors=errors))
    assert [process.pid for process in gpu.processes or ()] == [1, 2]


def test_gpu_without_graphics_list_still_has_its_compute_processes() -> None:
    errors = {"GraphicsRunningProcesses_v3": pynvml.NVML_ERROR_NOT_SUPPORTED}
    gpu = read_one(Device("GPU-a", compute=[(1, GIB)], errors=errors))
    assert [process.pid for process in gpu.processes or ()] == [1]


def test_display_servers_are_marked_unless_they_compute() -> None:
    names = {1: "Xorg", 2: "gnome-shell", 3: "blender", 4: "Xorg", 5: "lightdm-gtk-gre"}
    nvml = FakeNvml(Device("GPU-a", graphics=[(1, 5), (2, 4), (3, 3), (5, 1)], compute=[(4, 2)]))
    (gpu,) = rows(make(nvml, names=names).collect(0.0)).values()
    assert {p.pid: p.display for p in gpu.processes or ()} == {1: True, 2: True, 3: False, 4: False, 5: True}


def mig_board(**changes: Any) -> Device:
    slices = [
        Device("MIG-0", name="NVIDIA H200 MIG 3g.71gb", memory_used=GIB, memory_total=70 * GIB, gpu_instance=1),
        None,
        Device("MIG-2", name="NVIDIA H200 MIG 1g.18gb", memory_used=2 * GIB, memory_total=18 * GIB, gpu_instance=9),
    ]
    errors = {"UtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED}
    return Device("GPU-a", **({"instances": slices, "errors": errors} | changes))


def test_board_in_mig_mode_is_reported_as_its_instances() -> None:
    report = make(FakeNvml(Device("GPU-0"), mig_board())).collect(0.0)
    assert [(gpu.uuid, gpu.index, gpu.parent, gpu.instance) for gpu in report.gpus or ()] == [
        ("GPU-0", 0, None, None),
        ("MIG-0", 1, "GPU-a", 0),
        ("MIG-2", 1, "GPU-a", 2),
    ]


def test_instance_has_its_own_memory_the_boards_temperature_and_no_utilization() -> None:
    gpu = rows(make(FakeNvml(mig_board())).collect(0.0))["MIG-2"]
    assert gpu.metrics["memory_used_bytes"] == 2 * GIB
    assert gpu.metrics["temperature_celsius"] == 53
    assert gpu.unknown["utilization_percent"] == UNSUPPORTED
    assert gpu.unknown["power_watts"] == "measured on the whole board, not by MIG instance"
    assert gpu.metrics.keys() | gpu.unknown.keys() == GPU_METRICS.keys()
    assert gpu.idle_seconds is None


def test_memory_shared_by_compute_instances_is_counted_once() -> None:
    slices = [Device("MIG-0", gpu_instance=4), Device("MIG-1", gpu_instance=4)]
    seen = rows(make(FakeNvml(mig_board(instances=slices))).collect(0.0))
    assert "memory_total_bytes" in seen["MIG-0"].metrics
    assert seen["MIG-1"].unknown["memory_total_bytes"] == "shared with instance 0, counted there"


def test_board_in_mig_mode_without_instances_does_not_claim_an_empty_process_list() -> None:
    (gpu,) = rows(make(FakeNvml(mig_board(instances=[None, None]))).collect(0.0)).values()
    assert (gpu.uuid, gpu.processes) == ("GPU-a", None)


def test_destroyed_instance_goes_and_its_board_is_not_missing() -> None:
    board = mig_board()
    collector = make(FakeNvml(board))
    collector.collect(0.0)
    assert board.instances is not None
    board.instances[0] = None
    assert list(rows(collector.collect(60.0))) == ["MIG-2"]


def test_idle_time_grows_without_work_and_ends_with_it() -> None:
    device = Device("GPU-a", utilization=4)
    collector = make(FakeNvml(device))
    idle = [rows(collector.collect(now))["GPU-a"].idle_seconds for now in (100.0, 105.0, 110.0)]
    device.utilization = 5
    idle.append(rows(collector.collect(115.0))["GPU-a"].idle_seconds)
    assert idle == [0.0, 5.0, 10.0, 0.0]


def test_time_that_nobody_watched_is_not_idle_time() -> None:
    collector = make(FakeNvml(Device("GPU-a", utilization=0)))
    idle = [rows(collector.collect(now))["GPU-a"].idle_seconds for now in (0.0, 1e9, 0.0)]
    assert idle == [0.0, 60.0, 60.0]


def test_reading_without_utilization_claims_no_idle_time() -> None:
    device = Device("GPU-a", utilization=0)
    collector = make(FakeNvml(device))
    collector.collect(0.0)
    device.errors["UtilizationRates"] = pynvml.NVML_ERROR_UNKNOWN
    assert rows(collector.collect(10.0))["GPU-a"].idle_seconds is None
    del device.errors["UtilizationRates"]
    assert rows(collector.collect(20.0))["GPU-a"].idle_seconds == 10.0


def test_gpu_that_shares_the_hosts_memory_uses_what_its_processes_use() -> None:
    gpu = read_one(Device("GPU-a", memory_used=0, memory_total=0, compute=[(1, GIB), (2, 2 * GIB)]))
    assert gpu.metrics["memory_used_bytes"] == 3 * GIB
    assert gpu.unknown["memory_total_bytes"] == NO_VALUE


def test_close_may_be_called_twice_and_reading_goes_on_afterwards() -> None:
    nvml = FakeNvml(Device("GPU-a"))
    collector = make(nvml)
    collector.collect(0.0)
    collector.close()
    collector.close()
    assert not nvml.is_open
    assert list(rows(collector.collect(1.0))) == ["GPU-a"]
