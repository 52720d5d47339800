"""gpudeck wait and free on one machine without any hub: real processes, real locks, a driver that does as told."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import environment
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.waiting import wait_until
from gpudeck.cli.wait import Terminated, ending_on_signals
from gpudeck.collectors.host import host_name

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)
IDLE = {"utilization": 0, "memory_used": 0}
USE = 'echo "begin $CUDA_VISIBLE_DEVICES $2" >> "$0"; sleep "$1"; echo "end $CUDA_VISIBLE_DEVICES $2" >> "$0"'


class Machine:
    """A machine with some idle GPUs and a folder for its locks."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.locks = folder / "locks"
        self.driver = FakeDriver(folder, [FakeGpu(f"GPU-{at}") for at in range(gpus)])
        for gpu in self.driver.gpus:
            gpu.values |= IDLE
        self.driver.apply()
        self.started: list[subprocess.Popen[str]] = []

    @property
    def variables(self) -> dict[str, str]:
        return environment(self.folder) | self.driver.environment | {"GPUDECK_LOCK_DIR": str(self.locks)}

    def start(self, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "gpudeck", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.variables,
            cwd=self.folder,
            # What it started goes with it at the end of the test, also where it was killed itself.
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=120)
        return process.returncode, out, errors

    def wait(self, *options: str, name: str = "", seconds: float = 0.2) -> subprocess.Popen[str]:
        """Waits, and then is on its GPUs for so long."""
        return self.start("wait", "--local", *options, "--", "sh", "-c", USE, str(self.log), str(seconds), name)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def tickets(self) -> int:
        return len(list(self.locks.glob("ticket-*")))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def most_at_once(lines: list[str]) -> dict[str, int]:
    """How many were on each GPU at once, at most."""
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for line in lines:
        word, uuids = line.split()[:2]
        for uuid in uuids.split(","):
            now[uuid] = now.get(uuid, 0) + {"begin": 1, "end": -1}[word]
            most[uuid] = max(most.get(uuid, 0), now[uuid])
    return most


def test_command_runs_with_the_gpus_by_uuid_and_its_exit_code_is_passed_on(machine: Machine) -> None:
    code, out, errors = machine.run(
        "wait", "--local", "--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7"
    )
    assert (code, out, errors) == (7, "GPU-0,GPU-1\n", "")


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "kill -KILL $$"], 137), (["no-such-program"], 127), (["/"], 126), (["true"], 0)],
)
def test_exit_codes_are_those_of_a_shell(machine: Machine, command: list[str], code: int) -> None:
    assert machine.run("wait", "--local", "--", *command)[0] == code


def test_what_is_given_is_nobody_elses_and_the_order_is_that_of_arrival(machine: Machine) -> None:
    holder = machine.wait("--gpus", "2", name="holder", seconds=600)
    wait_until(lambda: len(machine.lines()) == 1, "the holder's command", 60)
    waiters = []
    for number in range(5):
        waiters.append(machine.wait(name=str(number), seconds=1.0))
        wait_until(lambda number=number: machine.tickets() == number + 1, "a ticket", 60)  # type: ignore[misc]
    holder.terminate()
    assert [process.wait(120) for process in waiters] == [0] * 5
    lines = machine.lines()[1:]
    assert (most_at_once(lines), len(lines)) == ({"GPU-0": 1, "GPU-1": 1}, 10)
    begun = [int(line.split()[2]) for line in lines if line.startswith("begin")]
    # Two are served at the same moment; which of them is the first to say so is chance.
    assert all(abs(at - number) <= 1 for at, number in enumerate(begun))


def test_dead_waiter_and_dead_holder_block_nobody(machine: Machine) -> None:
    holder = machine.wait("--gpus", "2", seconds=600)
    wait_until(lambda: len(machine.lines()) == 1, "the holder's command", 60)
    dead = machine.wait("--gpus", "2")
    wait_until(lambda: machine.tickets() == 1, "a ticket", 60)
    alive = machine.wait("--gpus", "2")
    wait_until(lambda: machine.tickets() == 2, "two tickets", 60)
    dead.kill()
    holder.kill()
    assert alive.wait(60) == 0
    assert machine.lines()[1:] == ["begin GPU-0,GPU-1 ", "end GPU-0,GPU-1 "]


def test_without_a_command_the_gpus_are_told_and_kept_for_a_while(machine: Machine) -> None:
    code, out, errors = machine.run("wait", "--local", "--json")
    told = json.loads(out)
    assert (code, errors, [gpu["uuid"] for gpu in told["gpus"]]) == (0, "", ["GPU-0"])
    assert list(told["environment"].values()) == [{"CUDA_VISIBLE_DEVICES": "GPU-0"}]
    free = json.loads(machine.run("free", "--local", "--json")[1])
    assert [gpu["uuid"] for gpu in free["gpus"]] == ["GPU-1"]
    assert machine.run("wait", "--local", "--gpus", "2", "--timeout", "1", "--", "true")[0] == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_while_waiting_leaves_the_line(machine: Machine, number: int, code: int) -> None:
    # Busy GPUs, not more than there are: a request that can never be met ends by itself.
    for gpu in machine.driver.gpus:
        gpu.values["utilization"] = 90
    machine.driver.apply()
    waiter = machine.wait()
    wait_until(lambda: machine.tickets() == 1, "a ticket", 60)
    waiter.send_signal(number)
    assert waiter.wait(60) == code
    assert machine.tickets() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_whose_exception_is_lost_ends_the_wait_at_the_next_check(number: int) -> None:
    before = signal.getsignal(number)
    with ending_on_signals() as check:
        check()
        # As the compiler of Python does with what a handler raises while a module is imported.
        with contextlib.suppress(Terminated):
            signal.raise_signal(number)
        with pytest.raises(Terminated) as ending:
            check()
    assert ending.value.number == number
    assert signal.getsignal(number) == before


def test_waiter_started_by_nohup_outlives_its_terminal(machine: Machine) -> None:
    for gpu in machine.driver.gpus:
        gpu.values["utilization"] = 90
    machine.driver.apply()
    waiter = machine.start("wait", "--local", "--", "true", before=("nohup",))
    assert waiter.stderr is not None
    wait_until(lambda: "queue position" in waiter.stderr.readline(), "its position", 60)
    waiter.send_signal(signal.SIGHUP)
    machine.driver.gpus[1].values["utilization"] = 0
    machine.driver.apply()
    assert waiter.wait(60) == 0


def test_signals_reach_the_command(machine: Machine) -> None:
    trap = "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    waiter = machine.start("wait", "--local", "--", "sh", "-c", trap)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "ready\n"
    waiter.send_signal(signal.SIGTERM)
    assert (waiter.stdout.readline(), waiter.wait(60)) == ("told\n", 5)


def test_busy_gpu_is_waited_for(machine: Machine) -> None:
    for gpu in machine.driver.gpus:
        gpu.values["utilization"] = 90
    machine.driver.apply()
    waiter = machine.wait()
    assert waiter.stderr is not None
    # Said when it has looked and found none: before that a GPU that gets free is simply taken.
    assert waiter.stderr.readline() == "gpudeck: queue position 1 of 1 for 1 GPU\n"
    assert (machine.tickets(), machine.run("free", "--local")[0]) == (1, 1)
    machine.driver.gpus[1].values["utilization"] = 0
    machine.driver.apply()
    assert waiter.wait(60) == 0
    assert machine.lines() == ["begin GPU-1 ", "end GPU-1 "]


def test_no_hub_that_nobody_named_means_this_machine_and_one_that_was_named_does_not(machine: Machine) -> None:
    code, out, errors = machine.run("wait", "--hub", "http://127.0.0.1:9", "--", "true")
    assert (code, out) == (3, "")
    assert "no hub answers at http://127.0.0.1:9" in errors


def test_free_exports_what_is_on_one_host_best_fit_first(machine: Machine) -> None:
    assert machine.run("free", "--local", "--gpus", "2", "--export") == (
        0,
        f"GPUDECK_HOST={host_name()} CUDA_VISIBLE_DEVICES=GPU-0,GPU-1\n",
        "",
    )
    code, out, errors = machine.run("free", "--local", "--gpus", "3", "--export")
    assert (code, out) == (1, "")
    assert "the fleet has only 2 GPUs, so this request can never be met." in errors
    machine.driver.gpus[0].values["utilization"] = 90
    machine.driver.apply()
    code, out, errors = machine.run("free", "--local", "--gpus", "2", "--export")
    assert (code, out) == (1, "")
    assert "not free now: 2 GPUs (1 is, on 1 host)." in errors


def test_file_of_somebody_else_is_believed_only_as_far_as_it_makes_sense(machine: Machine) -> None:
    machine.locks.mkdir()
    (machine.locks / "ticket-000000000000000001").write_text("rubbish, and nobody stands behind it")
    (machine.locks / "gpu-GPU-0").write_text('{"user": "mallory", "until": 9e12}')
    os.mkfifo(machine.locks / "ticket-000000000000000002")
    assert machine.run("wait", "--local", "--gpus", "2", "--", "true")[0] == 0
