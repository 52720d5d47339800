"""What systemd hears: through a real socket, as systemd opens one."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.agent.signals import SystemdNotifier


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(tmp_path / "notify"))
        opened.setblocking(False)
        yield opened


def heard(ear: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(ear.recv(4096).decode())
    except BlockingIOError:
        return found


def test_start_reload_and_end_are_told(ear: socket.socket) -> None:
    supervisor = SystemdNotifier(ear.getsockname())
    supervisor.ready("gpu01,\nread every 2 s")
    supervisor.reloading()
    supervisor.stopping()
    ready, reloading, stopping = heard(ear)
    assert ready == "READY=1\nSTATUS=gpu01, read every 2 s"
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert reloading.partition("USEC=")[2].isdigit()
    assert stopping == "STOPPING=1"


def test_life_is_told_as_often_as_it_has_to_be(ear: socket.socket) -> None:
    clock = FakeClock()
    supervisor = SystemdNotifier(ear.getsockname(), watchdog=60.0, now=clock)
    for _ in range(45):
        supervisor.alive()
        clock.now += 1.0
    assert heard(ear) == ["WATCHDOG=1"] * 3


def test_one_without_a_watchdog_is_not_told_of_life(ear: socket.socket) -> None:
    supervisor = SystemdNotifier(ear.getsockname())
    supervisor.alive()
    assert supervisor.pause is None
    assert heard(ear) == []


def test_name_in_the_kernel_alone_is_reached() -> None:
    name = f"gpudeck-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(f"\0{name}")
        opened.setblocking(False)
        SystemdNotifier(f"@{name}").stopping()
        assert heard(opened) == ["STOPPING=1"]


def test_one_that_is_gone_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "gpudeck.agent.signals")
    supervisor = SystemdNotifier(str(tmp_path / "nobody"), watchdog=1.0)
    supervisor.ready()
    supervisor.alive()
    told = [message.partition("was not notified of ")[2].partition(":")[0] for message in caplog.messages]
    assert told == ["READY=1", "WATCHDOG=1"]


@pytest.mark.parametrize(
    ("environ", "pause"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "60000000"}, 15.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "60000000"}, None),
    ],
)
def test_it_is_found_in_the_environment(environ: dict[str, str], pause: float | None) -> None:
    assert SystemdNotifier.of_this_process(environ).pause == pause


def test_what_this_process_starts_is_not_told_of_it() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    SystemdNotifier.of_this_process(environ)
    assert environ == {"HOME": "/"}
