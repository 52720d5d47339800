"""A machine's report, put together from collectors that fail in their own ways."""

import logging
from pathlib import Path

import msgspec
import pytest

from fakes.drm_tree import lay_out
from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.machine import MachineCollector, combine, has_gpus, watch_this_machine
from gpudeck.collectors.xids import KernelLog, XidWatch
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import Disk, GpuEvent, GpuReading, Report


class Fake:
    """Says what `says` holds: a report, or an error to raise. Counts how often it was asked."""

    def __init__(self, says: Report | Exception, name: str = "fake") -> None:
        self.name = name
        self.says = says
        self.asked = 0
        self.is_closed = False

    def collect(self, now: float) -> Report:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def close(self) -> None:
        self.is_closed = True


def gpu(uuid: str, parent: str | None = None) -> GpuReading:
    instance = None if parent is None else 0
    return GpuReading(uuid, 3, "NVIDIA H200", "nvidia", parent, instance, metrics={"utilization_percent": 50})


def gpus(*uuids: str) -> Report:
    return Report(gpus=[gpu(uuid) for uuid in uuids], driver_version="580")


HOST = Report(metrics={"cpu_count": 8}, unknown={"cpu_percent": "needs two readings"}, os="Debian")


def missing(report: Report) -> dict[str, str | None]:
    return {gpu.uuid: gpu.missing for gpu in report.gpus or ()}


def test_reports_of_all_collectors_become_one() -> None:
    report = MachineCollector([Fake(gpus("GPU-a")), Fake(gpus("GPU-b")), Fake(HOST)]).collect(0.0)
    assert [gpu.uuid for gpu in report.gpus or ()] == ["GPU-a", "GPU-b"]
    assert (report.driver_version, report.os) == ("580", "Debian")
    assert report.metrics == {"cpu_count": 8}
    assert report.unknown == {"cpu_percent": "needs two readings"}
    assert report.problems == []


def test_value_counts_before_a_reason_and_the_first_collector_before_the_second() -> None:
    report = combine(
        [Report(unknown={"a": "?"}, labels={"k": "1"}), Report(metrics={"a": 1, "b": 2}, labels={"k": "2"}), HOST]
    )
    assert report.metrics == {"a": 1, "b": 2, "cpu_count": 8}
    assert report.unknown == {"cpu_percent": "needs two readings"}
    assert report.labels == {"k": "1"}


def test_failing_collector_is_a_problem_and_does_not_hide_others() -> None:
    report = MachineCollector([Fake(Temporary("driver not answering for 7 s")), Fake(HOST)]).collect(0.0)
    assert report.problems == ["driver not answering for 7 s"]
    assert report.gpus is None
    assert report.gpus_reason == "driver not answering for 7 s"
    assert report.metrics == {"cpu_count": 8}


def test_gpus_seen_before_are_missing_with_the_reason_and_come_back() -> None:
    source = Fake(gpus("GPU-a", "GPU-b"))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = Temporary("driver not answering for 7 s")
    report = machine.collect(1.0)
    assert missing(report) == {"GPU-a": "driver not answering for 7 s", "GPU-b": "driver not answering for 7 s"}
    assert [(gpu.index, gpu.name, gpu.metrics) for gpu in report.gpus or ()] == [(3, "NVIDIA H200", {})] * 2
    source.says = gpus("GPU-a", "GPU-b")
    assert missing(machine.collect(2.0)) == {"GPU-a": None, "GPU-b": None}


def test_missing_gpu_keeps_the_events_that_tell_why() -> None:
    event = GpuEvent(at=0.0, code=79)
    source = Fake(Report(gpus=[msgspec.structs.replace(gpu("GPU-a"), events=[event])]))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = Temporary("driver not answering for 7 s")
    assert [reading.events for reading in machine.collect(1.0).gpus or ()] == [[event]]


def test_fault_that_made_the_driver_hang_is_told_of_the_gpu_that_has_it(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    slots = {"GPU-a": "0000:18:00.0", "GPU-b": "0000:19:00.0"}
    readings = [msgspec.structs.replace(gpu(uuid), pci_address=slot) for uuid, slot in slots.items()]
    source = Fake(Report(gpus=readings))
    machine = MachineCollector([source], XidWatch(KernelLog(str(log), monotonic=lambda: 100.0)))
    machine.collect(1000.0)
    log.write_text("4,1,99000000,-;NVRM: Xid (PCI:0000:19:00): 119, pid=7, name=python, Timeout\n")
    source.says = Temporary("driver not answering for 7 s")
    report = machine.collect(1000.0)
    assert [[event.code for event in reading.events] for reading in report.gpus or ()] == [[], [119]]
    machine.close()


def test_metrics_of_a_failing_collector_are_unknown_not_gone() -> None:
    source = Fake(HOST)
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = Temporary("no")
    report = machine.collect(1.0)
    assert report.metrics == {}
    assert report.unknown == {"cpu_count": "no", "cpu_percent": "no"}


def test_gpu_that_is_no_longer_in_the_list_is_missing() -> None:
    source = Fake(gpus("GPU-a", "GPU-b"))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = gpus("GPU-b")
    for now in (1.0, 2.0):
        assert missing(machine.collect(now)) == {"GPU-b": None, "GPU-a": "the driver no longer lists this GPU"}


def test_mig_instances_come_and_go_with_their_board_present() -> None:
    source = Fake(gpus("GPU-a"))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = Report(gpus=[gpu("MIG-1", "GPU-a"), gpu("MIG-2", "GPU-a")])
    assert missing(machine.collect(1.0)) == {"MIG-1": None, "MIG-2": None}
    source.says = Report(gpus=[gpu("MIG-2", "GPU-a")])
    assert missing(machine.collect(2.0)) == {"MIG-2": None}


def test_mig_instances_of_a_board_that_vanished_are_missing() -> None:
    source = Fake(Report(gpus=[gpu("MIG-1", "GPU-a"), gpu("GPU-b")]))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = gpus("GPU-b")
    assert missing(machine.collect(1.0)) == {"GPU-b": None, "MIG-1": "the driver no longer lists this GPU"}


def test_absent_collector_is_no_problem_and_is_asked_again_rarely() -> None:
    source = Fake(Absent("There is no driver."))
    machine = MachineCollector([source, Fake(HOST)])
    reports = [machine.collect(now) for now in (0.0, 1.0, 59.0, 60.0, 61.0)]
    assert source.asked == 2
    assert all(report.problems == [] for report in reports)
    assert {report.gpus_reason for report in reports} == {"There is no driver."}


def test_absent_collector_that_appears_is_read_on_every_reading() -> None:
    source = Fake(Absent("There is no driver."))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = gpus("GPU-a")
    assert [missing(machine.collect(now)) for now in (60.0, 61.0)] == [{"GPU-a": None}] * 2


def test_driver_that_was_removed_leaves_its_gpus_missing_and_is_a_problem() -> None:
    source = Fake(gpus("GPU-a"))
    machine = MachineCollector([source])
    machine.collect(0.0)
    source.says = Absent("There is no driver.")
    reports = [machine.collect(now) for now in (1.0, 2.0)]
    assert [missing(report) for report in reports] == [{"GPU-a": "There is no driver."}] * 2
    assert [report.problems for report in reports] == [["There is no driver."]] * 2


def test_bug_in_a_collector_is_a_problem_and_does_not_hide_others() -> None:
    report = MachineCollector([Fake(ZeroDivisionError("oops"), "buggy"), Fake(HOST)]).collect(0.0)
    assert report.problems == ["The collector buggy failed: ZeroDivisionError: oops."]
    assert report.metrics == {"cpu_count": 8}


def test_failure_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = Fake(Temporary("not now"))
    machine = MachineCollector([source])
    for now in (0.0, 1.0, 2.0):
        machine.collect(now)
    source.says = gpus("GPU-a")
    for now in (3.0, 4.0):
        machine.collect(now)
    assert caplog.messages == ["fake: not now", "fake: can be read again after 3 s"]


def test_bug_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    MachineCollector([Fake(ZeroDivisionError("oops"))]).collect(0.0)
    assert "Traceback" in caplog.text
    assert "raise self.says" in caplog.text


def test_close_closes_every_collector() -> None:
    sources = [Fake(HOST), Fake(HOST)]
    MachineCollector(sources).close()
    assert [source.is_closed for source in sources] == [True, True]


def test_this_machine_has_host_figures_whatever_its_gpus() -> None:
    machine = watch_this_machine(CollectorSettings())
    report = machine.collect(0.0)
    machine.close()
    assert report.metrics["cpu_count"] >= 1


def test_driver_with_gpus_in_the_kernels_files_is_enough(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/0000:00:06.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    probe = Fake(Absent("never asked"))
    assert has_gpus(tmp_path, probe)
    assert probe.asked == 0


@pytest.mark.parametrize(
    ("says", "answer"),
    [
        (gpus("GPU-a"), True),
        (Absent("There is no driver."), False),
        (Temporary("driver not answering for 5 s"), True),
        (Refused("not permitted"), True),
    ],
)
def test_otherwise_the_driver_is_asked_and_one_that_does_not_answer_has_gpus(
    tmp_path: Path, says: Report | PluginError, answer: bool
) -> None:
    probe = Fake(says)
    assert has_gpus(tmp_path, probe) is answer
    assert probe.is_closed


def test_disks_and_addresses_of_the_host_are_kept() -> None:
    disks, addresses = [Disk("/data", 1, 2)], ["192.0.2.7"]
    interfaces = {"192.0.2.7": "eno1"}
    whole = combine([gpus("GPU-a"), Report(disks=disks, addresses=addresses, interfaces=interfaces)])
    assert (whole.disks, whole.addresses, whole.interfaces) == (disks, addresses, interfaces)


def test_an_amd_card_is_enough(tmp_path: Path) -> None:
    lay_out("mi300x-amdgpu-6.8", tmp_path)
    probe = Fake(Absent("never asked"))
    assert has_gpus(tmp_path, probe)
    assert probe.asked == 0


def test_reasons_of_several_collectors_are_sentences_one_after_the_other() -> None:
    parts = [Report(gpus_reason="There is no NVIDIA driver."), Report(gpus_reason="There is no AMD driver.")]
    assert combine(parts).gpus_reason == "There is no NVIDIA driver. There is no AMD driver."
