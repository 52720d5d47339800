"""GPUs that the kernel puts to sleep: NVML does not wake them."""

from pathlib import Path

import pytest

from fakes.nvml.driver import NO_COMPILER, FakeGpu, find_compiler
from fakes.nvml.station import Station, an_h200
from fakes.reports import make_envelope
from gpudeck.collectors.nvml import ASLEEP, SleepWatch
from gpudeck.collectors.xids import KernelLog, XidWatch
from gpudeck.fleet.state import FleetState
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuReading

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

MODEL = "NVIDIA GeForce RTX 4070 Laptop GPU"
INTERVAL = 2.0
UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"


class Laptop:
    """A station with the kernel's files of its GPUs, which are awake and may sleep."""

    def __init__(self, station: Station, *uuids: str) -> None:
        self.station = station
        self.root = station.root
        self.addresses = [f"0000:0{bus}:00.0" for bus in range(1, len(uuids) + 1)]
        station.put_in(*(self._fake(uuid, at) for uuid, at in zip(uuids, self.addresses, strict=True)))
        for uuid, address in zip(uuids, self.addresses, strict=True):
            self.put(address, "vendor", "0x10de")
            self.put(address, "class", "0x030000")
            self.describe(address, "information", f"Model: \t\t {MODEL}\nIRQ:   \t\t 255\nGPU UUID: \t {uuid}")
        self.set_status("active")
        write(self.root / "sys/module/nvidia/version", "580.65.06")
        station.collect_anew()

    @staticmethod
    def _fake(uuid: str, address: str) -> FakeGpu:
        gpu = an_h200(uuid, utilization=0)
        gpu.name, gpu.pci = MODEL, f"0000{address}"
        return gpu

    def put(self, address: str, name: str, text: str) -> None:
        write(self.root / "sys/bus/pci/devices" / address / name, text)

    def describe(self, address: str, name: str, text: str) -> None:
        write(self.root / "proc/driver/nvidia/gpus" / address / name, text)

    def set_status(self, *words: str) -> None:
        """One word for all GPUs, or one for each."""
        for address, word in zip(self.addresses, words * len(self.addresses), strict=False):
            self.put(address, "power/runtime_status", word)

    def read(self, now: float) -> GpuReading:
        """The first GPU."""
        return next(iter(self.station.read(now).values()))

    def calls_until(self, start: float, end: float) -> list[str]:
        """Which functions of NVML are called at each reading."""
        self.station.driver.forget_calls()
        for number in range(int((end - start) / INTERVAL)):
            self.station.report(start + number * INTERVAL)
        return self.station.driver.calls


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    return Station(tmp_path, monkeypatch)


@pytest.fixture
def laptop(station: Station) -> Laptop:
    return Laptop(station, "GPU-a")


def test_gpu_that_sleeps_from_the_start_is_told_without_nvml(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    assert laptop.calls_until(0.0, 600.0) == []
    report = laptop.station.report(600.0)
    (gpu,) = report.gpus or ()
    assert (gpu.uuid, gpu.index, gpu.name, gpu.vendor, gpu.pci_address) == ("GPU-a", 0, MODEL, "nvidia", "0000:01:00.0")
    assert report.driver_version == "580.65.06"


def test_sleeping_gpu_has_nobody_on_it_and_says_why_the_rest_is_unknown(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    gpu = laptop.read(0.0)
    assert (gpu.processes, gpu.metrics, gpu.missing) == ([], {}, None)
    assert gpu.unknown == dict.fromkeys(GPU_METRICS, ASLEEP)


def test_sleeping_gpu_is_free(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    fleet = FleetState(FleetSettings())
    fleet.apply(make_envelope(gpus=[laptop.read(0.0)]), via="push", now=0.0)
    assert fleet.hosts["gpu01"].view().gpus[0].availability == "free"


def test_gpu_that_wakes_up_is_read_on_the_next_reading(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    laptop.read(0.0)
    laptop.set_status("active")
    gpu = laptop.read(INTERVAL)
    assert gpu.metrics["temperature_celsius"] == 53
    assert [reading.missing for reading in laptop.station.read(2 * INTERVAL).values()] == [None]


def test_gpu_that_falls_asleep_while_nvml_is_open_is_not_called_any_more(laptop: Laptop) -> None:
    laptop.read(0.0)
    laptop.set_status("suspended")
    laptop.read(6.0)
    assert laptop.calls_until(8.0, 600.0) == []
    assert laptop.read(600.0).name == MODEL


def test_one_gpu_awake_of_two_has_both_read(station: Station) -> None:
    laptop = Laptop(station, "GPU-a", "GPU-b")
    laptop.set_status("suspended", "active")
    assert [bool(gpu.metrics) for gpu in station.read().values()] == [True, True]


def test_two_gpus_asleep_keep_the_order_that_nvml_gives_them(station: Station) -> None:
    laptop = Laptop(station, "GPU-b", "GPU-a")
    laptop.set_status("suspended")
    assert [(gpu.uuid, gpu.index) for gpu in station.read(0.0).values()] == [("GPU-b", 0), ("GPU-a", 1)]
    laptop.set_status("active")
    assert [(gpu.uuid, gpu.index) for gpu in station.read(INTERVAL).values()] == [("GPU-b", 0), ("GPU-a", 1)]


def test_gpu_without_a_known_uuid_is_woken_once(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    laptop.describe(laptop.addresses[0], "information", f"Model: x\nGPU UUID: \t {UNKNOWN_UUID}")
    assert laptop.read(0.0).uuid == "GPU-a"
    laptop.set_status("active")
    laptop.calls_until(INTERVAL, 60)
    laptop.set_status("suspended")
    assert laptop.calls_until(60, 600) == []


def test_gpu_of_a_virtual_machine_and_other_devices_do_not_count(laptop: Laptop) -> None:
    laptop.put("0000:09:00.0", "vendor", "0x10de")
    laptop.put("0000:09:00.0", "class", "0x030000")
    laptop.put("0000:09:00.0", "power/runtime_status", "active")
    laptop.set_status("suspended")
    assert laptop.calls_until(0.0, 20.0) == []


def test_events_of_the_log_are_told_also_of_a_sleeping_gpu(laptop: Laptop) -> None:
    laptop.station.log.write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x, Fallen\n")
    log = KernelLog(str(laptop.station.log), monotonic=lambda: 100.0)
    laptop.station.collect_anew(xids=XidWatch(log))
    laptop.set_status("suspended")
    assert [event.code for event in laptop.read(1000.0).events] == [79]


def test_a_server_is_looked_at_only_now_and_then(laptop: Laptop) -> None:
    watch = SleepWatch(str(laptop.root))
    assert not watch.keeps_away(0.0)
    laptop.set_status("suspended")
    assert not watch.keeps_away(4.0)
    assert watch.keeps_away(6.0)


def test_machine_without_any_of_these_files_is_read(tmp_path: Path) -> None:
    watch = SleepWatch(str(tmp_path))
    assert not watch.keeps_away(0.0)


def test_gpu_that_was_lost_before_the_start_is_missing_where_the_kernel_knows_it(station: Station) -> None:
    laptop = Laptop(station, "GPU-a", "GPU-b")
    station.driver.gpus[1].failures["*"] = "lost"
    station.driver.apply()
    seen = {uuid: (gpu.index, gpu.name, gpu.pci_address, gpu.missing) for uuid, gpu in station.read(0.0).items()}
    assert seen == {
        "GPU-a": (0, MODEL, laptop.addresses[0], None),
        "GPU-b": (1, MODEL, laptop.addresses[1], "the GPU is lost: it fell off the bus or stopped answering"),
    }
    station.driver.gpus[1].failures.clear()
    station.driver.apply()
    assert [gpu.missing for gpu in station.read(200.0).values()] == [None, None]


def test_gpus_that_only_the_kernel_lists_are_not_missed(station: Station) -> None:
    Laptop(station, "GPU-a", "GPU-b", "GPU-c")
    del station.driver.gpus[1]
    station.driver.gpus[1].failures["*"] = "lost"
    station.driver.apply()
    assert list(station.read(0.0)) == ["GPU-a"]
