"""A collector in a child process: hung, dying, lying and well."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from fakes.waiting import wait_until
from gpudeck.child_process import ForkedProcess, fork, kill, python_module
from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.child import ChildCollector, Spawn, fork_child, spawn_child
from gpudeck.collectors.serve import CollectRequest, frame, serve_and_end
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary, Wrong
from gpudeck.model.report import Report

# What the collectors below do is decided by files in their directory, so that a test can change it while they run.
COLLECTORS = """
import os, pathlib, time
from gpudeck.model.errors import Absent, Refused, Temporary
from gpudeck.model.report import Report

HERE = pathlib.Path(__file__).parent

class Base:
    name = "fake"
    def __init__(self, settings): self.settings = settings
    def close(self): (HERE / "closed").touch()

class Well(Base):
    reads = 0
    def collect(self, now):
        self.reads += 1
        return Report(os=f"pid {os.getpid()}", labels={"now": str(now), "reads": str(self.reads)})

class Configured(Base):
    def collect(self, now): return Report(os=self.settings.commands)

class Hanging(Well):
    def collect(self, now):
        while (HERE / "hang").exists():
            (HERE / "hanging").touch()
            time.sleep(0.002)
        return super().collect(now)

class Dying(Well):
    def collect(self, now):
        if (HERE / "die").exists(): os._exit(3)
        return super().collect(now)

class Printing(Well):
    def collect(self, now):
        print("a library says hello"); os.write(1, b"and again")
        return super().collect(now)

class Failing(Well):
    def collect(self, now):
        raise {"absent": Absent, "temporary": Temporary, "refused": Refused}[(HERE / "kind").read_text()]("No.", "Do.")

class Buggy(Well):
    def collect(self, now): return 1 / 0

class NotAReport(Base):
    def collect(self, now): return {"gpus": "many"}

class Nothing(Base):
    def collect(self, now): return None

class Unsendable(Base):
    def collect(self, now): return object()
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Unkillable(subprocess.Popen[bytes]):
    """As a process in the kernel's hands: a kill changes nothing."""

    def kill(self) -> None:
        """Ignored."""


class Spawner:
    """Starts children with `start` and keeps what it started, and when."""

    def __init__(self, clock: Clock, start: Spawn = spawn_child) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.times: list[float] = []
        self._clock = clock
        self._start = start

    def __call__(self, name: str) -> subprocess.Popen[bytes]:
        self.times.append(self._clock())
        self.processes.append(self._start(name))
        return self.processes[-1]


def start_unkillable(name: str) -> subprocess.Popen[bytes]:
    return Unkillable(python_module("gpudeck.collectors.serve", name), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def start_writing(garbage: str) -> Spawn:
    code = f"import sys; sys.stdout.buffer.write({garbage}); sys.stdout.flush(); sys.stdin.read()"
    return lambda _: subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def fail_to_start(_: str) -> subprocess.Popen[bytes]:
    raise OSError("out of processes")


Make = Callable[..., ChildCollector]
T = TypeVar("T")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fakes_for_child.py").write_text(COLLECTORS)
    monkeypatch.syspath_prepend(tmp_path)
    # The child is a fresh interpreter: it finds modules the way this one was told to.
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    return tmp_path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(here: Path, clock: Clock) -> Iterator[Make]:
    made: list[ChildCollector] = []

    def make_child(factory: str, deadline: float = 30.0, **options: object) -> ChildCollector:
        child = ChildCollector(f"fakes_for_child:{factory}", deadline=deadline, clock=clock, **options)  # type: ignore[arg-type]
        made.append(child)
        return child

    yield make_child
    for child in made:
        child.close()


def failure_of(child: ChildCollector, now: float = 0.0) -> PluginError:
    with pytest.raises(PluginError) as raised:
        child.collect(now)
    return raised.value


def try_to_collect(child: ChildCollector) -> Report | None:
    try:
        return child.collect(0.0)
    except Temporary:
        return None


def release(here: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    (here / "hang").unlink()
    for process in processes:
        process.wait(60)


def test_report_comes_through_from_another_process(make: Make) -> None:
    report = make("Well").collect(12.5)
    assert report.labels == {"now": "12.5", "reads": "1"}
    assert (report.os or "").startswith("pid ")


def test_one_child_serves_many_reads(make: Make) -> None:
    child = make("Well")
    assert [child.collect(0.0).labels["reads"] for _ in range(3)] == ["1", "2", "3"]


def test_hanging_read_is_given_up_at_the_deadline_and_fails_at_once_until_it_returns(
    make: Make, here: Path, clock: Clock
) -> None:
    child = make("Hanging")
    child.collect(0.0)
    (here / "hang").touch()
    child.deadline = 0.05
    assert str(failure_of(child)) == "driver not answering for 0 s"
    child.deadline = 1e6  # a second wait would run into the test's own time limit
    clock.now += 12
    assert str(failure_of(child)) == "driver not answering for 12 s"


def test_late_answer_is_thrown_away_and_a_fresh_one_taken(make: Make, here: Path) -> None:
    child = make("Hanging")
    child.collect(1.0)
    (here / "hang").touch()
    child.deadline = 0.05
    failure_of(child, 2.0)
    (here / "hang").unlink()
    child.deadline = 30.0
    report = wait_until(lambda: try_to_collect(child))
    assert report.labels == {"now": "0.0", "reads": "3"}


def test_hung_child_is_killed_after_a_while_and_replaced(make: Make, here: Path, clock: Clock) -> None:
    child = make("Hanging", kill_after=100.0)
    first = child.collect(0.0)
    (here / "hang").touch()
    child.deadline = 0.05
    failure_of(child)
    clock.now += 100
    assert str(failure_of(child)) == "driver not answering for 100 s"
    (here / "hang").unlink()
    child.deadline = 30.0
    assert wait_until(lambda: try_to_collect(child)).os != first.os


def test_child_that_cannot_be_killed_is_replaced_once_it_ends(make: Make, here: Path, clock: Clock) -> None:
    (here / "hang").touch()
    spawn = Spawner(clock, start_unkillable)
    child = make("Hanging", deadline=0.01, kill_after=100.0, spawn=spawn)
    failure_of(child)
    for _ in range(10):
        clock.now += 100
        assert "not answering for" in str(failure_of(child))
    assert len(spawn.processes) == 1
    release(here, spawn.processes)
    child.deadline = 30.0
    assert child.collect(0.0).labels["reads"] == "1"
    spawn.processes[1].terminate()


def test_dead_child_is_restarted_after_a_pause_that_grows(make: Make, here: Path, clock: Clock) -> None:
    (here / "die").touch()
    spawn = Spawner(clock)
    child = make("Dying", spawn=spawn)
    for _ in range(9):
        assert isinstance(failure_of(child), Temporary)
        clock.now += 1
    (here / "die").unlink()
    assert [at - spawn.times[0] for at in spawn.times] == [0, 1, 3, 7]
    clock.now += 60
    assert child.collect(0.0).labels["reads"] == "1"


def test_during_the_pause_the_reason_is_still_told(make: Make, here: Path) -> None:
    (here / "die").touch()
    child = make("Dying")
    failure_of(child)
    assert "ended in the middle of a reading" in str(failure_of(child))


def test_child_that_was_killed_from_outside_is_noticed(make: Make, clock: Clock) -> None:
    spawn = Spawner(clock)
    child = make("Well", spawn=spawn)
    child.collect(0.0)
    spawn.processes[0].kill()
    spawn.processes[0].wait(60)
    assert isinstance(failure_of(child), Temporary)
    clock.now += 60
    assert child.collect(0.0).labels["reads"] == "1"


@pytest.mark.parametrize(("kind", "error"), [("absent", Absent), ("temporary", Temporary), ("refused", Refused)])
def test_failures_keep_their_kind_message_and_hint(make: Make, here: Path, kind: str, error: type[PluginError]) -> None:
    (here / "kind").write_text(kind)
    failure = failure_of(make("Failing"))
    assert (type(failure), failure.message, failure.hint) == (error, "No.", "Do.")


def test_absent_collector_keeps_no_process(make: Make, here: Path, clock: Clock) -> None:
    (here / "kind").write_text("absent")
    spawn = Spawner(clock)
    failure_of(make("Failing", spawn=spawn))
    assert spawn.processes[0].wait(60) != 0


def test_child_that_keeps_failing_is_renewed(make: Make, here: Path, clock: Clock) -> None:
    (here / "kind").write_text("temporary")
    spawn = Spawner(clock)
    child = make("Failing", spawn=spawn)
    for _ in range(4):
        failure_of(child)
        clock.now += 2
    assert len(spawn.processes) == 2


def test_bug_in_a_collector_is_wrong_and_brings_its_trace(make: Make) -> None:
    failure = failure_of(make("Buggy"))
    assert isinstance(failure, Wrong)
    assert failure.message == "ZeroDivisionError: division by zero"
    assert "1 / 0" in failure.__notes__[0]


@pytest.mark.parametrize("factory", ["NotAReport", "Nothing", "Unsendable"])
def test_collector_that_returns_garbage_is_wrong(make: Make, factory: str) -> None:
    assert isinstance(failure_of(make(factory)), Wrong)


@pytest.mark.parametrize("garbage", ["b'x' * 1000", "b'\\0\\0\\0\\3abc'", "b'\\0\\0\\0\\0'"])
def test_child_that_writes_garbage_is_wrong(make: Make, garbage: str) -> None:
    assert isinstance(failure_of(make("Well", spawn=start_writing(garbage))), Wrong)


def test_what_a_library_prints_does_not_disturb_the_answers(make: Make) -> None:
    child = make("Printing")
    assert [child.collect(0.0).labels["reads"] for _ in range(2)] == ["1", "2"]


def test_process_that_cannot_be_started_is_temporary(make: Make) -> None:
    assert "out of processes" in str(failure_of(make("Well", spawn=fail_to_start)))


def test_unknown_collector_is_a_failure_not_a_hang(make: Make) -> None:
    assert "There is no collector" in str(failure_of(make("NoSuchThing")))


def test_close_ends_the_process(make: Make, clock: Clock) -> None:
    spawn = Spawner(clock)
    child = make("Well", spawn=spawn)
    child.collect(0.0)
    child.close()
    assert spawn.processes[0].poll() is not None
    assert isinstance(failure_of(child), Temporary)


def test_close_from_another_thread_ends_a_reading_under_way(make: Make, here: Path, clock: Clock) -> None:
    (here / "hang").touch()
    child = make("Hanging", deadline=1e6, spawn=Spawner(clock))
    failures: list[PluginError] = []
    reading = threading.Thread(target=lambda: failures.append(failure_of(child)))
    reading.start()
    wait_until(lambda: (here / "hanging").exists() or None)
    child.close()
    reading.join(60)
    assert [type(failure) for failure in failures] == [Temporary]


def test_child_ends_when_its_parent_closes_the_pipe(here: Path) -> None:
    process = spawn_child("fakes_for_child:Well")
    process.communicate(frame(msgspec.msgpack.encode(CollectRequest(0.0))), timeout=60)
    assert process.returncode == 0
    assert (here / "closed").exists()


def test_settings_reach_the_collector_in_the_child(here: Path) -> None:
    child = ChildCollector("fakes_for_child:Configured", CollectorSettings(commands="name"), deadline=30.0)
    report = child.collect(0.0)
    child.close()
    assert report.os == "name"


def fork_well(_: str = "") -> ForkedProcess:
    return fork(partial(serve_and_end, "fakes_for_child:Well"))


def test_forked_child_serves_like_a_fresh_one(make: Make) -> None:
    child = make("Well", spawn=fork_well)
    reports = [child.collect(1.0), child.collect(2.0)]
    assert [report.labels["reads"] for report in reports] == ["1", "2"]
    assert reports[0].os != f"pid {os.getpid()}"


def test_forked_child_that_hangs_is_given_up_killed_and_replaced(make: Make, here: Path, clock: Clock) -> None:
    (here / "hang").touch()
    child = make("Hanging", 0.1, spawn=lambda _: fork(partial(serve_and_end, "fakes_for_child:Hanging")))
    assert "not answering" in str(failure_of(child))
    clock.now += 1000.0
    assert isinstance(failure_of(child), Temporary)
    (here / "hang").unlink()
    wait_until(lambda: try_to_collect(child), "a report of its successor")


def test_forked_child_keeps_nothing_of_its_parent_open_and_ends_with_it(here: Path) -> None:
    first, second = fork_well(), fork_well()
    try:
        second.stdin.write(frame(msgspec.msgpack.encode(CollectRequest(0.0))))
        second.stdin.flush()
        assert second.stdout.read(4)  # it has closed what it inherited
        assert {file.name for file in Path(f"/proc/{second.pid}/fd").iterdir()} == {"0", "1", "2", "3"}
        first.stdin.close()  # the only end of its pipe that is open: the second child has no copy
        assert first.wait(60) == 0
    finally:
        for process in (first, second):
            kill(process)
            process.stdin.close()
            process.stdout.close()


def test_a_process_with_threads_starts_a_fresh_interpreter(here: Path) -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    process = fork_child("fakes_for_child:Well")
    end.set()
    other.join()
    assert isinstance(process, subprocess.Popen)
    process.communicate(timeout=60)
