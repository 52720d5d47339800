"""Settings that are read again while a hub runs: what changes at once, what waits, and what a broken file does."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, environment, running_hub
from fakes.waiting import wait_until

FIRST = """
demo: never
local: never
read: open
hosts: [{name: gpu01, via: push}, {name: gpu02, via: push}]
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    (tmp_path / "gpudeck.yaml").write_text(FIRST)
    with running_hub(tmp_path) as started:
        wait_until(lambda: names(started) == {"gpu01", "gpu02"}, "the hosts of the file")
        yield started


def fleet_of(hub: HubProcess) -> dict[str, Any]:
    fleet: dict[str, Any] = json.loads(hub.get("/api/v1/fleet"))
    return fleet


def names(hub: HubProcess) -> set[str]:
    return {host["name"] for host in fleet_of(hub)["hosts"]}


def reload(hub: HubProcess, text: str) -> None:
    (hub.data_dir / "gpudeck.yaml").write_text(text)
    hub.process.send_signal(signal.SIGHUP)


def logged(hub: HubProcess) -> str:
    return (hub.data_dir / "log").read_text()


def test_hosts_and_names_change_at_once_and_those_that_stay_are_not_left(hub: HubProcess) -> None:
    reload(hub, FIRST.replace("{name: gpu02,", "{name: gpu03,") + "names: {hosts: {gpu01: Big one}}\n")
    wait_until(lambda: names(hub) == {"gpu01", "gpu03"}, "the hosts of the new file")
    shown = {host["name"]: host["display_name"] for host in fleet_of(hub)["hosts"]}
    assert shown == {"gpu01": "Big one", "gpu03": "gpu03"}
    assert "read the settings again: hosts, names changed" in logged(hub)


def test_list_of_hosts_is_followed_from_then_on(hub: HubProcess) -> None:
    (hub.data_dir / "more.txt").write_text("gpu04\n")
    reload(hub, f"{FIRST}discovery: {{hosts_files: [{hub.data_dir}/more.txt]}}\nssh: {{interval: 30s}}\n")
    wait_until(lambda: names(hub) == {"gpu01", "gpu02", "gpu04"}, "the host of the list")
    (hub.data_dir / "more.txt").write_text("gpu04\ngpu05\n")
    wait_until(lambda: names(hub) == {"gpu01", "gpu02", "gpu04", "gpu05"}, "the host that the list names now")
    assert logged(hub).count("read the settings again") == 1


def test_what_needs_a_restart_is_said_each_time(hub: HubProcess) -> None:
    changed = FIRST.replace("read: open", "read: login") + "fleet: {down_after: 2m}\n"
    reload(hub, changed)
    wait_until(lambda: "take effect after a restart: fleet, read" in logged(hub), "the line in the log")
    reload(hub, changed)
    wait_until(lambda: logged(hub).count("take effect after a restart: fleet, read") == 2, "the same line again")
    assert names(hub) == {"gpu01", "gpu02"}


def test_broken_file_changes_nothing_and_is_shown_until_it_is_mended(hub: HubProcess) -> None:
    reload(hub, f"{FIRST}namse: {{}}\n")
    wait_until(lambda: "the previous ones stay in effect" in logged(hub), "the line in the log")
    assert "did you mean names" in logged(hub)
    wait_until(lambda: "gpudeck.yaml" in str(fleet_of(hub)["problems"]), "the problem on the page")
    assert names(hub) == {"gpu01", "gpu02"}
    reload(hub, FIRST)
    wait_until(lambda: fleet_of(hub)["problems"] == [], "an end of the problem")
    assert "nothing has changed" in logged(hub)


def test_option_counts_before_the_file_also_when_that_is_read_again(hub: HubProcess) -> None:
    reload(hub, f"{FIRST}listen: 127.0.0.1:1\n")
    wait_until(lambda: "nothing has changed" in logged(hub), "the settings read again")
    assert "take effect after a restart" not in logged(hub)
    assert names(hub) == {"gpu01", "gpu02"}


def hear(ear: socket.socket, word: str) -> str:
    while word not in (heard := ear.recv(4096).decode()):
        pass
    return heard


@contextlib.contextmanager
def watched_hub(folder: Path, ear: socket.socket, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    ear.bind(str(folder / "notify"))
    ear.settimeout(30)
    told = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "400000"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "gpudeck", "up", "--listen", "127.0.0.1:0", *options]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment(folder) | told)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_systemd_hears_of_start_life_reload_and_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear, watched_hub(tmp_path, ear, "--demo", "1") as process:
        assert "STATUS=serving http://127.0.0.1:" in hear(ear, "READY=1")
        hear(ear, "WATCHDOG=1")
        process.send_signal(signal.SIGHUP)
        hear(ear, "RELOADING=1")
        hear(ear, "READY=1")
        hear(ear, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        hear(ear, "STOPPING=1")
        assert process.wait(15) == 0


def test_closed_terminal_ends_the_hub(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "gpudeck", "up", "--listen", "127.0.0.1:0", "--demo", "1"]
    with (tmp_path / "log").open("w") as log:
        hub = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=log, stderr=log, env=environment(tmp_path))
    os.close(theirs)
    try:
        wait_until(lambda: "Ctrl-C" in (tmp_path / "log").read_text(), "the greeting")
        os.close(ours)
        assert hub.wait(20) == 0
    finally:
        hub.kill()
        hub.wait(10)


def test_limits_of_alerts_change_without_a_restart(hub: HubProcess) -> None:
    reload(hub, f"{FIRST}alerts: {{rules: {{gpu_hot: {{above: 70}}}}}}\n")
    wait_until(lambda: "read the settings again: alerts changed" in logged(hub), "the line in the log")
    assert "take effect after a restart" not in logged(hub)
