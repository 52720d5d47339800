"""XIDs by GPU: out of the kernel's log, or of NVML where that may not be read, and never out of both."""

from pathlib import Path

import pytest

from fakes.nvml.driver import NO_COMPILER, FakeGpu, find_compiler, make_instance
from fakes.nvml.station import Station, an_h200
from gpudeck.collectors.xids import KEPT_SECONDS, MAX_KEPT, KernelLog, XidWatch
from gpudeck.model.report import GpuReading

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

NOW = 1_790_000_000.0
UP_SECONDS = 5000.0
FAR, NEAR = "00000000:AF:00.0", "00000000:18:00.0"


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Station:
    """Two GPUs, and no kernel log that can be read."""
    station = Station(tmp_path, monkeypatch)
    station.put_in(FakeGpu("GPU-a", pci=NEAR), FakeGpu("GPU-b", pci=FAR))
    return station


@pytest.fixture
def logged(station: Station) -> Station:
    """The same with a kernel log, which is empty."""
    station.log.touch()
    station.collect_anew(xids=XidWatch(KernelLog(str(station.log), monotonic=lambda: UP_SECONDS)))
    return station


def log_fault(station: Station, code: int, slot: str = "0000:18:00", pid: int = 4242, seconds: float = 4000.0) -> None:
    with station.log.open("a") as log:
        log.write(f"4,1,{int(seconds * 1e6)},-;NVRM: Xid (PCI:{slot}): {code}, pid={pid}, name=python, Something\n")


def happen(station: Station, code: int, gpu: int = 0) -> None:
    station.driver.gpus[gpu].xids.append(code)
    station.driver.apply()


def codes_of(gpu: GpuReading) -> list[int]:
    return [event.code for event in gpu.events]


def test_log_gives_the_fault_to_the_gpu_in_that_slot(logged: Station) -> None:
    log_fault(logged, 79, "0000:af:00")
    gpus = logged.read(NOW)
    assert codes_of(gpus["GPU-a"]) == []
    ((event),) = gpus["GPU-b"].events
    assert (event.at, event.code, event.process, event.text) == (NOW - 1000, 79, 4242, "Something")


def test_each_report_repeats_the_events_with_the_newest_last(logged: Station) -> None:
    log_fault(logged, 13)
    logged.read(NOW)
    log_fault(logged, 43)
    logged.read(NOW + 2)
    assert codes_of(logged.read(NOW + 4)["GPU-a"]) == [13, 43]


def test_an_event_is_forgotten_after_a_day(logged: Station) -> None:
    log_fault(logged, 79, seconds=UP_SECONDS)
    assert codes_of(logged.read(NOW + KEPT_SECONDS - 1)["GPU-a"]) == [79]
    assert codes_of(logged.read(NOW + 2 * KEPT_SECONDS)["GPU-a"]) == []


def test_a_lost_gpu_keeps_its_events(logged: Station) -> None:
    logged.read(NOW)
    log_fault(logged, 79)
    logged.driver.gpus[0].failures["*"] = "lost"
    logged.driver.apply()
    gpu = logged.read(NOW + 2)["GPU-a"]
    assert gpu.missing is not None
    assert codes_of(gpu) == [79]


def test_a_gpu_that_was_gone_before_the_start_is_a_problem_with_its_fault(logged: Station) -> None:
    log_fault(logged, 79, "0000:3b:00")
    log_fault(logged, 13, "0000:5e:00")
    (problem,) = logged.report(NOW).problems
    assert problem.startswith("The GPU in PCI slot 0000:3b:00 is not listed by the driver. XID 79: ")


def test_a_storm_does_not_push_out_another_fault(logged: Station) -> None:
    log_fault(logged, 79)
    for number in range(40):
        log_fault(logged, 31, pid=number, seconds=120.0 * number)
    codes = codes_of(logged.read(NOW)["GPU-a"])
    assert codes == [79, *[31] * (MAX_KEPT - 1)]


def test_a_program_that_fails_all_the_time_is_one_event_in_ten_minutes(logged: Station) -> None:
    for second in range(500):
        log_fault(logged, 31, seconds=3000.0 + second)
    log_fault(logged, 31, pid=99, seconds=3500.0)
    log_fault(logged, 31, seconds=3601.0)
    log_fault(logged, 13, seconds=3602.0)
    events = logged.read(NOW)["GPU-a"].events
    assert [(event.code, event.process, event.at) for event in events] == [
        (31, 4242, NOW - 2000),
        (31, 99, NOW - 1500),
        (13, 4242, NOW - 1398),
    ]


def test_a_program_cannot_hide_a_fault_by_writing_the_same_words_before(logged: Station) -> None:
    words = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
    logged.log.write_text(f"12,1,4000000000,-;{words}\n4,2,4000000001,-;{words}\n")
    assert codes_of(logged.read(NOW)["GPU-a"]) == [79]


def test_instances_share_the_events_of_their_board(logged: Station) -> None:
    board = an_h200()
    board.instances = {0: make_instance("MIG-a"), 1: make_instance("MIG-b", gpu_instance=1)}
    logged.put_in(board)
    log_fault(logged, 48)
    assert [codes_of(gpu) for gpu in logged.read(NOW).values()] == [[48], [48]]


def test_log_that_can_be_read_is_the_only_source(logged: Station) -> None:
    logged.read(NOW)
    log_fault(logged, 48)
    happen(logged, 48)
    assert codes_of(logged.read(NOW + 2)["GPU-a"]) == [48]
    assert not [call for call in logged.driver.calls if "Event" in call and "Reasons" not in call]


def test_without_a_log_nvml_tells(station: Station) -> None:
    station.read(NOW)
    happen(station, 74, gpu=1)
    happen(station, 31, gpu=1)
    gpus = station.read(NOW + 2)
    assert codes_of(gpus["GPU-a"]) == []
    assert [(event.at, event.code, event.process) for event in gpus["GPU-b"].events] == [
        (NOW + 2, 74, None),
        (NOW + 2, 31, None),
    ]
    assert codes_of(station.read(NOW + 4)["GPU-b"]) == [74, 31]


def test_nvml_tells_of_a_gpu_that_is_lost(station: Station) -> None:
    station.read(NOW)
    station.driver.gpus[0].failures["*"] = "lost"
    happen(station, 79)
    gpu = station.read(NOW + 2)["GPU-a"]
    assert gpu.missing is not None
    assert codes_of(gpu) == [79]


def test_events_survive_a_driver_that_is_opened_again(station: Station) -> None:
    station.read(NOW)
    happen(station, 79)
    station.driver.gpus[0].failures["values"] = "lost"
    station.driver.apply()
    station.read(NOW + 2)
    station.driver.gpus[0].failures.clear()
    station.driver.apply()
    gpu = station.read(NOW + 2 + 3600)["GPU-a"]
    assert gpu.missing is None
    assert codes_of(gpu) == [79]
    happen(station, 13)
    assert codes_of(station.read(NOW + 4 + 3600)["GPU-a"]) == [79, 13]


@pytest.mark.parametrize("word", ["not_supported", "function_not_found", "unknown"])
@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree"])
def test_driver_without_events_is_quietly_left(station: Station, function: str, word: str) -> None:
    station.driver.failures[function] = word
    station.driver.apply()
    station.read(NOW)
    report = station.report(NOW + 2)
    station.collector.close()
    assert report.problems == []
    assert [gpu.missing for gpu in report.gpus or ()] == [None, None]


def test_gpu_without_events_does_not_hide_those_of_others(station: Station) -> None:
    station.driver.gpus[0].failures["nvmlDeviceRegisterEvents"] = "not_supported"
    station.driver.apply()
    station.read(NOW)
    happen(station, 79, gpu=1)
    assert codes_of(station.read(NOW + 2)["GPU-b"]) == [79]


def test_a_reading_without_new_faults_asks_nvml_once(station: Station) -> None:
    station.read(NOW)
    assert station.calls_during(NOW + 2).count("nvmlEventSetWait_v2") == 1
