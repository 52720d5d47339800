"""Ending a real process: the right one or none, and only one's own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from fakes.fleets import make
from fakes.tops import make_top, press, some_fleet
from fakes.waiting import wait_until
from gpudeck.collectors.proc import Proc
from gpudeck.model.view import Host, ShownProcess
from gpudeck.tui.dialogs import NotEnded, ProcessToEnd, check, choose_process, is_running, send
from gpudeck.tui.top import Top

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
    victim = victim_of(child)
    assert is_running(victim)
    send(victim, signal.SIGTERM)
    assert child.wait(10) == -signal.SIGTERM
    assert not is_running(victim)


def test_process_that_ignores_it_is_still_running_and_can_be_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        victim = victim_of(process)
        send(victim, signal.SIGTERM)
        assert is_running(victim)
        send(victim, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


def test_process_that_has_the_pid_by_now_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    other = msgspec.structs.replace(victim_of(child), started_at=started_at(child.pid) - 60)
    with pytest.raises(NotEnded, match="is another one by now"):
        send(other, signal.SIGKILL)
    assert child.poll() is None


def test_process_that_has_ended_is_said_to_have(child: subprocess.Popen[bytes]) -> None:
    victim = victim_of(child)
    child.kill()
    wait_until(lambda: not is_running(victim), "its end, though nobody has waited for it")
    with pytest.raises(NotEnded, match="has ended already"):
        check(victim)
    child.wait(10)
    with pytest.raises(NotEnded, match="has ended already"):
        send(victim, signal.SIGTERM)


def test_process_of_somebody_else_is_left_alone(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(NotEnded, match="not to you"):
        send(victim_of(child), signal.SIGTERM)
    assert child.poll() is None


@pytest.mark.parametrize(("own_id", "host_id"), [("", "gpu01"), ("this", "other"), ("", "")])
def test_only_this_machine_is_touched(own_id: str, host_id: str) -> None:
    host = make(Host, id=host_id, display_name="gpu01")
    with pytest.raises(NotEnded, match="gpu01 is not this machine"):
        choose_process(host, ShownProcess(1, started_at=1.0), own_id, is_local=False)


def test_process_whose_start_is_not_known_is_left_alone() -> None:
    host = make(Host, id="this", display_name="gpu01")
    with pytest.raises(NotEnded, match="when process 7 started is not known"):
        choose_process(host, ShownProcess(7), "this", is_local=False)


def top_with(process: subprocess.Popen[bytes], ended: list[tuple[ProcessToEnd, bool]]) -> Top:
    fleet = some_fleet()
    told = fleet.hosts[0].gpus
    told[0].processes = [ShownProcess(process.pid, "me", "sleep 60", started_at=started_at(process.pid))]
    fleet.hosts = fleet.hosts[:1]
    return make_top(fleet, end=lambda *what: ended.append(what), is_local=True)


def test_nothing_is_sent_before_it_is_confirmed(child: subprocess.Popen[bytes]) -> None:
    ended: list[tuple[ProcessToEnd, bool]] = []
    top = top_with(child, ended)
    press(top, "p", "k", "n")
    assert (ended, top.question) == ([], None)
    press(top, "k", "enter", "k")
    assert ended == []
    press(top, "y")
    assert [(victim.pid, is_hard) for victim, is_hard in ended] == [(child.pid, False)]


def test_start_of_this_test_is_within_what_is_tolerated() -> None:
    check(ProcessToEnd(os.getpid(), started_at(os.getpid()), ""))
    assert started_at(os.getpid()) <= time.time() + 1
