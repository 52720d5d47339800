"""Ending a real process: the right one or none, and only one's own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from fakes.fleets import make
from fakes.tops import make_top, press, some_fleet
from fakes.waiting import wait_until
from gpudeck.collectors.proc import Proc
from gpudeck.model.view import Host, ShownProcess
from gpudeck.tui.top import NotEnded, ProcessToEnd, Top, choose_process, end_process

TICKS = os.sysconf("SC_CLK_TCK")
STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def started_at(pid: int) -> float:
    return Proc().boot_time() + Proc().stat(pid).start_ticks / TICKS


def victim_of(process: subprocess.Popen[bytes]) -> ProcessToEnd:
    return ProcessToEnd(process.pid, started_at(process.pid), "sleep 60")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(10)


def test_own_process_is_ended(child: subprocess.Popen[bytes]) -> None:
    end_process(victim_of(child), signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM


def test_process_that_has_the_pid_by_now_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    other = msgspec.structs.replace(victim_of(child), started_at=started_at(child.pid) - 60)
    with pytest.raises(NotEnded, match="is another one by now"):
        end_process(other, signal.SIGKILL)
    assert child.poll() is None


def test_process_that_has_ended_is_said_to_have(child: subprocess.Popen[bytes]) -> None:
    victim = victim_of(child)
    child.kill()
    # The first time it is a zombie, or not even that; then it is gone.
    wait_until(lambda: Proc().stat(child.pid).state == "Z", "its end")
    for _ in range(2):
        with pytest.raises(NotEnded, match="has ended already"):
            end_process(victim, signal.SIGTERM)
        child.wait(10)


def test_process_of_somebody_else_is_left_alone(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(NotEnded, match="not to you"):
        end_process(victim_of(child), signal.SIGTERM)
    assert child.poll() is None


@pytest.mark.parametrize(("own_id", "host_id"), [("", "gpu01"), ("this", "other"), ("", "")])
def test_only_this_machine_is_touched(own_id: str, host_id: str) -> None:
    host = make(Host, id=host_id, display_name="gpu01")
    with pytest.raises(NotEnded, match="gpu01 is not this machine"):
        choose_process(host, ShownProcess(1, started_at=1.0), own_id, is_local=False)


def test_process_whose_start_is_not_known_is_left_alone() -> None:
    host = make(Host, id="this", display_name="gpu01")
    with pytest.raises(NotEnded, match="the start of process 7 is unknown"):
        choose_process(host, ShownProcess(7), "this", is_local=False)


def top_with(process: subprocess.Popen[bytes]) -> Top:
    fleet = some_fleet()
    told = fleet.hosts[0].gpus
    told[0].processes = [ShownProcess(process.pid, "me", "sleep 60", started_at=started_at(process.pid))]
    fleet.hosts = fleet.hosts[:1]
    return make_top(fleet, is_local=True)


def test_nothing_is_sent_before_it_is_confirmed(child: subprocess.Popen[bytes]) -> None:
    top = top_with(child)
    press(top, "p", "k", "n")
    assert (top.notice, top.ending) == ("no signal was sent", None)
    press(top, "k", "enter", "k")
    assert child.poll() is None
    press(top, "y")
    assert top.notice == f"SIGTERM was sent to process {child.pid}"
    assert child.wait(10) == -signal.SIGTERM


def test_process_that_ignores_sigterm_can_be_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        press(top_with(process), "p", "k", "y", "k", "9")
        assert process.wait(10) == -signal.SIGKILL


def test_process_on_another_host_is_not_ended() -> None:
    top = make_top(own_id="another machine")
    press(top, "p", "k")
    assert top.notice == "gpu1 is not this machine. Run `gpudeck top --local` there."
    assert top.ending is None


def test_nothing_is_ended_where_no_process_is_listed() -> None:
    top = make_top()
    press(top, "k")
    assert "a process can be ended where processes are listed" in top.notice
