"""A running agent that is told something: to read its settings again, to end, and what it tells systemd meanwhile."""

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

from fakes.hubs import HubProcess, environment, gpudeck, running_hub
from fakes.waiting import wait_until


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as started:
        yield started


def hosts_of(hub: HubProcess) -> dict[str, dict[str, Any]]:
    return {host["name"]: host for host in json.loads(hub.get("/api/v1/fleet"))["hosts"]}


def write_settings(folder: Path, hub: HubProcess, name: str, **others: object) -> None:
    agent = {"hub": hub.url, "token_file": str(hub.token_file), "name": name, "interval": "0.2s", **others}
    (folder / "gpudeck.yaml").write_text(json.dumps({"agent": agent}))


@contextlib.contextmanager
def running_agent(folder: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "agent.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "agent"], cwd=folder, stderr=log, env=environment(folder) | environ
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def logged(folder: Path) -> str:
    return (folder / "agent.log").read_text()


def test_changed_settings_count_after_sighup_in_the_same_process(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "before")
    with running_agent(tmp_path) as agent:
        wait_until(lambda: "before" in hosts_of(hub), "the first report")
        write_settings(tmp_path, hub, "after")
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: "after" in hosts_of(hub), "the report under the new name")
        assert agent.poll() is None


def test_settings_that_make_no_sense_leave_those_from_before(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "steady")
    with running_agent(tmp_path) as agent:
        wait_until(lambda: "steady" in hosts_of(hub), "the first report")
        write_settings(tmp_path, hub, "steady", interval="often")
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: "the previous ones stay in effect" in logged(tmp_path), "the line in the log")
        assert "agent.interval" in logged(tmp_path)
        last = hosts_of(hub)["steady"]["last_report_at"]
        wait_until(lambda: hosts_of(hub)["steady"]["last_report_at"] > last, "another report")


def test_settings_that_cannot_be_used_leave_those_from_before(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "with-token")
    with running_agent(tmp_path) as agent:
        wait_until(lambda: "with-token" in hosts_of(hub), "the first report")
        write_settings(tmp_path, hub, "with-token", token_file=str(tmp_path / "absent"))
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: "the previous ones stay in effect" in logged(tmp_path), "the line in the log")
        last = hosts_of(hub)["with-token"]["last_report_at"]
        wait_until(lambda: hosts_of(hub)["with-token"]["last_report_at"] > last, "another report")


def test_systemd_hears_of_start_life_reload_and_end(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "watched")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(20)

        def hear(word: str) -> None:
            while word not in (heard[-1] if heard else ""):
                heard.append(ear.recv(4096).decode())

        told = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "400000"}
        with running_agent(tmp_path, **told) as agent:
            hear("READY=1")
            assert "watched, read every 0.2 s" in heard[-1]
            hear("WATCHDOG=1")
            agent.send_signal(signal.SIGHUP)
            hear("RELOADING=1")
            hear("READY=1")
            hear("WATCHDOG=1")
            agent.send_signal(signal.SIGTERM)
            hear("STOPPING=1")
            assert agent.wait(15) == 0


def test_closed_terminal_ends_it(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "in-a-terminal")
    ours, theirs = os.openpty()
    # setsid gives it a session of its own, whose terminal is the one on its standard input.
    command = ["setsid", "--ctty", sys.executable, "-m", "gpudeck", "agent"]
    with (tmp_path / "agent.log").open("w") as log:
        agent = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stderr=log, env=environment(tmp_path))
    os.close(theirs)
    try:
        wait_until(lambda: "in-a-terminal" in hosts_of(hub), "the first report")
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: "have not changed" in logged(tmp_path), "the settings read again, as the terminal is there")
        os.close(ours)
        assert agent.wait(15) == 0
    finally:
        agent.kill()
        agent.wait(10)


def test_one_report_for_a_crontab(hub: HubProcess, tmp_path: Path) -> None:
    write_settings(tmp_path, hub, "by-cron")
    answer = gpudeck(tmp_path, "agent", "--once")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    host = hosts_of(hub)["by-cron"]
    assert (host["status"], host["interval_seconds"]) == ("up", 60.0)
    assert host["cpu_percent"] is not None


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--hub", "http://127.0.0.1:1"), 3, "does not answer"),
        (("--token-file", "wrong"), 1, "answered 401"),
        (("--token-file", "absent"), 2, "cannot be read"),
        (("--listen", "127.0.0.1:0"), 2, "--once pushes one report"),
    ],
)
def test_one_report_that_does_not_arrive_has_an_exit_code(
    hub: HubProcess, tmp_path: Path, arguments: tuple[str, ...], code: int, told: str
) -> None:
    write_settings(tmp_path, hub, "by-cron")
    (tmp_path / "wrong").write_text("wrong\n")
    answer = gpudeck(tmp_path, "agent", "--once", *arguments)
    assert answer.returncode == code
    assert told in answer.stderr
