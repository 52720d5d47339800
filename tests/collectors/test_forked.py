"""A single reading in a fork: what comes through, and what a driver that hangs or crashes costs."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler, load_here
from fakes.waiting import wait_until
from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.child import ChildCollector, fork_child
from gpudeck.collectors.host import HostCollector
from gpudeck.collectors.machine import MachineCollector
from gpudeck.model.errors import Absent, Temporary, Wrong
from gpudeck.model.report import Report


@pytest.fixture(autouse=True)
def fakes_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with several threads the child is a fresh interpreter, which has to find the fake."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def obey(order: str, deadline: float = 30.0) -> Report:
    settings = CollectorSettings(display_servers=[order])
    collector = ChildCollector("fakes.obedient:Obedient", settings, deadline=deadline, spawn=fork_child)
    with contextlib.closing(collector):
        return collector.collect(7.0)


def test_report_comes_through() -> None:
    assert obey("report").driver_version == "7.0"


def test_reading_that_hangs_is_given_up_at_the_deadline() -> None:
    with pytest.raises(Temporary, match="driver not answering"):
        obey("hang", deadline=0.2)


def test_process_that_crashes_is_told() -> None:
    with pytest.raises(Temporary, match="ended in the middle of a reading"):
        obey("crash")


def test_failure_keeps_its_kind_message_and_hint() -> None:
    with pytest.raises(Absent) as caught:
        obey("absent")
    assert (caught.value.message, caught.value.hint) == ("nothing here", "look")


def test_bug_is_wrong_and_brings_its_trace() -> None:
    with pytest.raises(Wrong, match="a bug") as caught:
        obey("bug")
    assert "Traceback" in caught.value.__notes__[0]


def test_what_a_library_prints_does_not_reach_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    obey("print")
    assert capfd.readouterr().out == ""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Answers nothing that is asked of its one GPU."""
    if find_compiler() is None:
        pytest.skip(NO_COMPILER)
    load_here()
    driver = FakeDriver(tmp_path, [FakeGpu("GPU-a", failures={"values": "hang"})])
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver


@pytest.mark.usefixtures("driver")
def test_driver_that_hangs_leaves_the_host_reporting() -> None:
    nvml = ChildCollector("nvml", CollectorSettings(), deadline=0.5, spawn=fork_child)
    with contextlib.closing(MachineCollector([nvml, HostCollector()])) as machine:
        report = machine.collect(0.0)
    assert [problem[:20] for problem in report.problems] == ["driver not answering"]
    assert report.metrics["cpu_count"] >= 1


def test_whoever_waits_for_a_driver_that_hangs_can_press_ctrl_c(driver: FakeDriver, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpudeck", "show", "--local"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as shell:
        wait_until(lambda: "nvmlGpmQueryDeviceSupport" in driver.calls, "the first question to the driver", 60)
        shell.send_signal(signal.SIGINT)
        assert shell.wait(timeout=20.0) != 0
