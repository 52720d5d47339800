"""The NVML collector as it runs on a server: the real pynvml on a fake driver, in a child process, beside host figures.

What a sick driver does to a machine's report, and that everything comes back by itself.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.nvml.driver import GIB, MAX, NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.waiting import wait_until
from gpudeck.collectors.base import UNSUPPORTED, CollectorSettings
from gpudeck.collectors.child import ChildCollector
from gpudeck.collectors.host import HostCollector
from gpudeck.collectors.machine import MachineCollector
from gpudeck.collectors.owners import ALL_HIDDEN, GONE
from gpudeck.model.report import GpuReading, Report

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

PATIENT, IMPATIENT = 60.0, 0.05
"""Deadlines: one that a loaded machine keeps too, and one for calls that are known to hang."""
NO_SUCH_PID = 2**22 + 1  # above the kernel's highest


class Server:
    """A machine with NVIDIA GPUs, watched as the agent does it."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(folder, [FakeGpu("GPU-a"), FakeGpu("GPU-b")])
        self.child = ChildCollector("nvml", deadline=PATIENT, clock=self.clock)
        self._machine = MachineCollector([self.child, HostCollector()])

    def report(self) -> Report:
        """What the server reports a second later."""
        self.clock.advance(1)
        return self._machine.collect(self.clock.now)

    def read(self) -> dict[str, GpuReading]:
        return {gpu.uuid: gpu for gpu in self.report().gpus or ()}

    def wait_for(self, is_fine: Callable[[Report], bool]) -> Report:
        return wait_until(lambda: report if is_fine(report := self.report()) else None, "such a report", 60)

    def close(self) -> None:
        self.driver.failures.clear()
        self.driver.apply()
        self._machine.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(tmp_path)
    for name, value in made.driver.environment.items():
        monkeypatch.setenv(name, value)
    # The child is a fresh interpreter: it finds modules the way this one was told to.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield made
    made.close()


def all_present(report: Report) -> bool:
    return report.gpus is not None and all(gpu.missing is None for gpu in report.gpus)


def has_host_figures(report: Report) -> bool:
    return report.metrics["memory_total_bytes"] > 0


def test_gpus_come_through_from_the_child(server: Server) -> None:
    report = server.report()
    assert report.driver_version == "580.159.04"
    assert {gpu.uuid: gpu.metrics["memory_used_bytes"] for gpu in report.gpus or ()} == {
        "GPU-a": 20 * GIB,
        "GPU-b": 20 * GIB,
    }


def test_driver_that_hangs_leaves_the_host_reporting_and_its_gpus_missing(server: Server) -> None:
    server.report()
    server.driver.gpus[1].failures["nvmlDeviceGetPowerUsage"] = "hang"
    server.driver.apply()
    server.child.deadline = IMPATIENT
    report = server.report()
    assert [(gpu.uuid, gpu.missing) for gpu in report.gpus or ()] == [
        ("GPU-a", "driver not answering for 0 s"),
        ("GPU-b", "driver not answering for 0 s"),
    ]
    assert report.problems == ["driver not answering for 0 s"]
    assert has_host_figures(report)


def test_reading_that_hangs_is_not_asked_a_second_time(server: Server) -> None:
    server.report()
    server.driver.failures["nvmlDeviceGetUtilizationRates"] = "hang"
    server.driver.apply()
    server.driver.forget_calls()
    server.child.deadline = IMPATIENT
    reports = [server.report() for _ in range(5)]
    assert [report.problems for report in reports][-1] == ["driver not answering for 4 s"]
    assert server.driver.calls.count("nvmlDeviceGetUtilizationRates") <= 1


def test_driver_that_hangs_on_opening_is_said_so_and_the_host_reports(server: Server) -> None:
    server.driver.failures["nvmlInitWithFlags"] = "hang"
    server.driver.apply()
    server.child.deadline = IMPATIENT
    report = server.report()
    assert (report.gpus, report.gpus_reason) == (None, "driver not answering for 0 s")
    assert has_host_figures(report)


def test_driver_that_answers_again_is_read_again(server: Server) -> None:
    server.report()
    server.driver.failures["*"] = "hang"
    server.driver.apply()
    server.child.deadline = IMPATIENT
    server.report()
    server.driver.failures.clear()
    server.driver.apply()
    server.child.deadline = PATIENT
    report = server.wait_for(all_present)
    assert [gpu.metrics["utilization_percent"] for gpu in report.gpus or ()] == [90, 90]


def test_driver_that_never_answers_is_left_to_a_new_child_once_it_works(server: Server) -> None:
    server.report()
    server.driver.gpus[0].failures["*"] = "hang"
    server.driver.apply()
    server.child.deadline = IMPATIENT
    server.report()
    server.clock.advance(120)
    server.report()  # the hung child is killed
    server.driver.gpus[0].failures.clear()
    server.driver.apply()
    server.child.deadline = PATIENT
    assert len(server.wait_for(all_present).gpus or ()) == 2


def test_lost_gpu_keeps_its_uuid_and_its_neighbours_are_fine(server: Server) -> None:
    server.driver.gpus.append(FakeGpu("GPU-c"))
    server.driver.apply()
    server.report()
    server.driver.gpus[1].failures["*"] = "lost"
    server.driver.apply()
    first, lost, last = server.read().values()
    assert (lost.uuid, lost.index, lost.name) == ("GPU-b", 1, "NVIDIA H200")
    assert lost.missing == "the GPU is lost: it fell off the bus or stopped answering"
    assert [gpu.metrics["utilization_percent"] for gpu in (first, last)] == [90, 90]


def test_lost_gpu_is_back_when_the_driver_has_it_again(server: Server) -> None:
    server.report()
    server.driver.gpus[1].failures["*"] = "lost"
    server.driver.apply()
    server.report()
    server.driver.gpus[1].failures.clear()
    server.driver.apply()
    server.clock.advance(60)
    assert all_present(server.report())


def test_gpu_taken_out_of_the_machine_is_missing_after_the_agent_looked_again(server: Server) -> None:
    server.report()
    del server.driver.gpus[0]
    server.driver.apply()
    server.report()
    server.clock.advance(60)
    seen = server.read()
    assert seen["GPU-a"].missing is not None
    assert (seen["GPU-b"].missing, seen["GPU-b"].index) == (None, 0)


@pytest.mark.parametrize("word", ["driver_not_loaded", "mismatch", "uninitialized"])
def test_reloaded_driver_is_opened_again_and_its_counters_may_start_from_0(server: Server, word: str) -> None:
    server.report()
    server.driver.failures["*"] = word
    server.driver.apply()
    during = server.report()
    server.driver.failures.clear()
    server.driver.gpus[0].values["energy"] = 0
    server.driver.apply()
    after = {gpu.uuid: gpu for gpu in server.wait_for(all_present).gpus or ()}
    assert [gpu.missing is None for gpu in during.gpus or ()] == [False, False]
    assert has_host_figures(during)
    assert after["GPU-a"].metrics["energy_joules"] == 0


def test_driver_that_was_updated_below_a_running_machine_says_what_to_do(server: Server) -> None:
    server.report()
    server.driver.failures["*"] = "mismatch"
    server.driver.apply()
    server.report()
    assert "version" in server.report().problems[0].lower()


def test_machine_without_gpus_has_none_and_no_problem(server: Server) -> None:
    server.driver.gpus.clear()
    server.driver.apply()
    report = server.report()
    assert (report.gpus, report.problems) == (None, [])
    assert has_host_figures(report)


def test_zero_gpus_where_there_were_eight_is_a_failed_reading_not_an_empty_host(server: Server) -> None:
    server.driver.gpus = [FakeGpu(f"GPU-{number}") for number in range(8)]
    server.driver.apply()
    server.report()
    gpus, server.driver.gpus = server.driver.gpus, []
    server.driver.failures["*"] = "uninitialized"
    server.driver.apply()
    server.report()
    server.driver.failures.clear()
    server.driver.apply()
    report = server.report()
    assert sum(gpu.missing is not None for gpu in report.gpus or ()) == 8
    assert "There were 8 before" in report.problems[0]
    server.driver.gpus = gpus
    server.driver.apply()
    assert len(server.wait_for(all_present).gpus or ()) == 8


def test_gpu_that_supports_nothing_is_there_and_its_neighbour_is_fine(server: Server) -> None:
    server.driver.gpus[0].failures["values"] = "not_supported"
    server.driver.apply()
    silent, other = server.read().values()
    assert (silent.missing, silent.metrics, silent.processes) == (None, {}, None)
    assert silent.unknown["utilization_percent"] == UNSUPPORTED
    assert other.metrics["utilization_percent"] == 90


def test_process_that_vanished_is_listed_without_an_owner_and_its_neighbour_with_one(server: Server) -> None:
    server.driver.gpus[0].compute = [(os.getpid(), 2 * GIB), (NO_SUCH_PID, MAX)]
    server.driver.apply()
    here, gone = server.read()["GPU-a"].processes or ()
    assert (here.pid, here.memory_used_bytes, here.reasons) == (os.getpid(), 2 * GIB, {})
    assert here.user is not None
    assert (gone.pid, gone.user, gone.memory_used_bytes) == (NO_SUCH_PID, None, None)
    assert gone.reasons["user"] == GONE


def test_process_that_ends_leaves_the_list_with_the_driver(server: Server) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server.driver.gpus[0].compute = [(sleeper.pid, GIB)]
    server.driver.apply()
    before = server.read()["GPU-a"].processes or []
    sleeper.communicate()
    held = server.read()["GPU-a"].processes or []
    server.driver.gpus[0].compute = []
    server.driver.apply()
    after = server.read()["GPU-a"].processes
    assert [process.user is None for process in before] == [False]
    assert [(process.user, process.memory_used_bytes) for process in held] == [(None, GIB)]
    assert after == []


def test_pids_that_are_all_strangers_raise_the_suspicion_of_scrambled_ones(server: Server) -> None:
    server.driver.version = "535.54.03"
    server.driver.gpus[0].compute = [(NO_SUCH_PID, GIB), (NO_SUCH_PID + 1, GIB)]
    server.driver.apply()
    assert {p.reasons["user"] for p in server.read()["GPU-a"].processes or ()} == {ALL_HIDDEN}


def test_pcie_throughput_can_be_asked_for_by_name(server: Server) -> None:
    child = ChildCollector("nvml", CollectorSettings(activity=False, pcie_throughput=True), deadline=PATIENT)
    gpus = child.collect(0.0).gpus or []
    child.close()
    assert [gpu.metrics["pcie_receive_bytes_per_second"] for gpu in gpus] == [1_250_000_000] * 2
