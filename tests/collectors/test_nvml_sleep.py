"""GPUs that the kernel puts to sleep: NVML does not wake them, and does not keep them awake either."""

from pathlib import Path

import pytest

from fakes.nvml.driver import NO_COMPILER, FakeGpu, find_compiler
from fakes.nvml.station import Station, an_h200
from fakes.reports import make_envelope
from gpudeck.collectors.nvml import ASLEEP, IDLE_SECONDS, REST_SECONDS, RETRY_SECONDS, SleepWatch
from gpudeck.collectors.xids import KernelLog, XidWatch
from gpudeck.fleet.state import FleetState
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuReading

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

MODEL = "NVIDIA GeForce RTX 4070 Laptop GPU"
BEAT = 2.0
UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"


class Laptop:
    """A station with the kernel's files of its GPUs, which are awake, may sleep, and whose driver nobody has open."""

    def __init__(self, station: Station, *uuids: str) -> None:
        self.station = station
        self.root = station.root
        self.addresses = [f"0000:0{bus}:00.0" for bus in range(1, len(uuids) + 1)]
        station.put_in(*(self._fake(uuid, at) for uuid, at in zip(uuids, self.addresses, strict=True)))
        for uuid, address in zip(uuids, self.addresses, strict=True):
            self.put(address, "vendor", "0x10de")
            self.put(address, "class", "0x030000")
            self.describe(address, "information", f"Model: \t\t {MODEL}\nIRQ:   \t\t 255\nGPU UUID: \t {uuid}")
            self.describe(address, "power", "Runtime D3 status:          Enabled (fine-grained)")
        self.set_control("auto")
        self.set_status("active")
        self.set_users(3)
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

    def set_control(self, word: str) -> None:
        for address in self.addresses:
            self.put(address, "power/control", word)

    def set_users(self, count: int) -> None:
        write(self.root / "sys/module/nvidia/refcnt", str(count))

    def read(self, now: float) -> GpuReading:
        """The first GPU."""
        return next(iter(self.station.read(now).values()))

    def calls_until(self, start: float, end: float) -> list[str]:
        """Which functions of NVML are called by readings on every beat."""
        self.station.driver.forget_calls()
        for beat in range(int((end - start) / BEAT)):
            self.station.report(start + beat * BEAT)
        return self.station.driver.calls

    def fall_idle(self) -> float:
        """Nobody comes for so long that NVML is closed; returns when."""
        self.calls_until(0.0, IDLE_SECONDS + BEAT)
        assert self.station.driver.calls[-1] == "nvmlShutdown"
        return IDLE_SECONDS + BEAT


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


def test_gpu_that_wakes_up_is_read_on_the_next_beat(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    laptop.read(0.0)
    laptop.set_status("active")
    gpu = laptop.read(BEAT)
    assert gpu.metrics["temperature_celsius"] == 53
    assert [reading.missing for reading in laptop.station.read(2 * BEAT).values()] == [None]


def test_gpu_that_falls_asleep_while_nvml_is_open_is_not_called_any_more(laptop: Laptop) -> None:
    laptop.read(0.0)
    laptop.set_status("suspended")
    laptop.read(6.0)
    assert laptop.calls_until(8.0, 600.0) == []
    assert laptop.read(600.0).name == MODEL


def test_nvml_is_closed_when_nobody_has_come_for_a_minute(laptop: Laptop) -> None:
    assert "nvmlShutdown" not in laptop.calls_until(0.0, IDLE_SECONDS)
    laptop.station.report(IDLE_SECONDS)
    assert laptop.station.driver.calls[-1] == "nvmlShutdown"


def test_gpu_that_is_left_alone_falls_asleep_and_stays_free(laptop: Laptop) -> None:
    now = laptop.fall_idle()
    assert laptop.calls_until(now, now + 10) == []
    assert laptop.read(now + 10).processes == []
    laptop.set_status("suspended")
    assert laptop.calls_until(now + 12, now + 7200) == []


def test_somebody_who_comes_before_it_sleeps_is_seen_at_once(laptop: Laptop) -> None:
    now = laptop.fall_idle()
    laptop.read(now)
    laptop.set_users(7)
    laptop.station.driver.gpus[0].compute = [(4242, 2**30)]
    laptop.station.driver.apply()
    assert [process.pid for process in laptop.read(now + BEAT).processes or ()] == [4242]


def test_gpu_that_does_not_fall_asleep_is_read_again_and_not_tried_for_an_hour(laptop: Laptop) -> None:
    now = laptop.fall_idle()
    assert laptop.calls_until(now, now + REST_SECONDS - BEAT) == []
    awake = now + REST_SECONDS
    assert laptop.read(awake).metrics["temperature_celsius"] == 53
    assert "nvmlShutdown" not in laptop.calls_until(awake, awake + RETRY_SECONDS - BEAT)
    assert "nvmlShutdown" in laptop.calls_until(awake + RETRY_SECONDS, awake + RETRY_SECONDS + 10)


@pytest.mark.parametrize("kind", ["compute", "graphics"])
def test_gpu_with_somebody_on_it_is_not_sent_to_sleep(laptop: Laptop, kind: str) -> None:
    setattr(laptop.station.driver.gpus[0], kind, [(4242, 2**20)])
    laptop.station.driver.apply()
    assert "nvmlShutdown" not in laptop.calls_until(0.0, 3 * IDLE_SECONDS)


def test_display_server_lets_the_gpu_sleep(laptop: Laptop) -> None:
    laptop.station.driver.gpus[0].graphics = [(77, 4 * 2**20)]
    laptop.station.driver.apply()
    laptop.station.collect_anew({77: "Xorg"})
    laptop.fall_idle()


def test_gpu_whose_processes_are_unknown_is_not_sent_to_sleep(laptop: Laptop) -> None:
    gpu = laptop.station.driver.gpus[0]
    gpu.failures = {f"nvmlDeviceGet{kind}RunningProcesses_v3": "no_permission" for kind in ("Compute", "Graphics")}
    laptop.station.driver.apply()
    assert "nvmlShutdown" not in laptop.calls_until(0.0, 3 * IDLE_SECONDS)


def test_server_is_read_for_ever(laptop: Laptop) -> None:
    laptop.set_control("on")
    assert "nvmlShutdown" not in laptop.calls_until(0.0, 5 * IDLE_SECONDS)


@pytest.mark.parametrize("status", ["Disabled by default", "Not supported", "Disabled"])
def test_driver_that_never_lets_it_sleep_is_not_closed(laptop: Laptop, status: str) -> None:
    laptop.describe(laptop.addresses[0], "power", f"Runtime D3 status:          {status}")
    assert "nvmlShutdown" not in laptop.calls_until(0.0, 3 * IDLE_SECONDS)


def test_machine_on_which_nobodys_coming_would_be_seen_is_not_closed(laptop: Laptop) -> None:
    (laptop.root / "sys/module/nvidia/refcnt").unlink()
    assert "nvmlShutdown" not in laptop.calls_until(0.0, 3 * IDLE_SECONDS)


def test_one_gpu_awake_of_two_has_both_read(station: Station) -> None:
    laptop = Laptop(station, "GPU-a", "GPU-b")
    laptop.set_status("suspended", "active")
    assert [bool(gpu.metrics) for gpu in station.read().values()] == [True, True]


def test_two_gpus_asleep_keep_the_order_that_nvml_gives_them(station: Station) -> None:
    laptop = Laptop(station, "GPU-b", "GPU-a")
    laptop.set_status("suspended")
    assert [(gpu.uuid, gpu.index) for gpu in station.read(0.0).values()] == [("GPU-b", 0), ("GPU-a", 1)]
    laptop.set_status("active")
    assert [(gpu.uuid, gpu.index) for gpu in station.read(BEAT).values()] == [("GPU-b", 0), ("GPU-a", 1)]


def test_gpu_without_a_known_uuid_is_woken_once(laptop: Laptop) -> None:
    laptop.set_status("suspended")
    laptop.describe(laptop.addresses[0], "information", f"Model: x\nGPU UUID: \t {UNKNOWN_UUID}")
    assert laptop.read(0.0).uuid == "GPU-a"
    laptop.set_status("active")
    laptop.calls_until(BEAT, IDLE_SECONDS + 2 * BEAT)
    laptop.set_status("suspended")
    assert laptop.calls_until(IDLE_SECONDS + 2 * BEAT, 600) == []


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
    assert not watch.wants_rest(False, 0.0)
    assert not watch.wants_rest(False, 600.0)


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
