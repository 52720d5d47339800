"""gpudeck drain and undrain against a real hub with a simulated fleet."""

import json
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.waiting import wait_until


class Terminal:
    """An admin at the hub's machine."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        wait_until(lambda: len(self.hosts()) == 3, "the simulated fleet")
        self.name: str = self.hosts()[0]["name"]

    def hosts(self) -> list[dict[str, Any]]:
        return [host for host in json.loads(self.hub.get("/api/v1/fleet"))["hosts"] if host["gpus"]]

    def host(self) -> dict[str, Any]:
        return next(host for host in self.hosts() if host["name"] == self.name)

    def type(self, *arguments: str) -> CompletedProcess[str]:
        return gpudeck(self.hub.data_dir, *arguments, GPUDECK_HUB=self.hub.url, TZ="Europe/Berlin")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with running_hub(tmp_path_factory.mktemp("hub"), "--demo", "3") as hub:
        yield Terminal(hub)


def test_host_is_drained_listed_shown_changed_and_undrained(terminal: Terminal) -> None:
    name = terminal.name
    made = terminal.type("drain", name, "--for", "2h", "--reason", "new fans 🚧")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"{name} is drained until ")
    wait_until(lambda: terminal.host()["maintenance"] is not None, "the fleet of the next second")
    assert {gpu["availability"] for gpu in terminal.host()["gpus"]} <= {"drained", "busy", "idle", "unknown"}
    listed = terminal.type("drain").stdout
    assert all(word in listed for word in (name, "2h left", "new fans 🚧"))
    assert f"{name}:" not in terminal.type("free").stdout
    assert "in maintenance, 2h left: new fans" in terminal.type("show", name).stdout
    again = terminal.type("drain", name.upper(), "--reason", "still no fans")
    assert again.stdout == f"{name} is drained until you undrain it: still no fans\n"
    (one,) = json.loads(terminal.type("drain", "--json").stdout)["maintenance"]
    assert (one["end"], one["reason"]) == (None, "still no fans")
    ended = terminal.type("undrain", name)
    assert (ended.returncode, ended.stdout) == (0, f"The maintenance of {name} has ended: still no fans\n")
    assert terminal.type("drain").stdout == "Nothing is drained or planned.\n"
    wait_until(lambda: terminal.host()["maintenance"] is None, "the fleet of the next second")
    refused = terminal.type("undrain", name)
    assert (refused.returncode, refused.stderr) == (1, f"gpudeck: {name} is not drained. Nothing is drained.\n")


def test_one_gpu_is_planned_with_the_reservations_within_and_cancelled(terminal: Terminal) -> None:
    place = f"{terminal.name}:1"
    reserve = terminal.type("reserve", place, "--from", "+2h", "--for", "2h", "--user", "ann")
    assert reserve.returncode == 0, reserve.stderr
    made = terminal.type("drain", place, "--from", "+1h", "--for", "4h", "--reason", "memory test")
    assert made.stdout.startswith(f"{place} is drained from ")
    assert f"! Reserved within that time: {place} by ann" in made.stdout
    clash = terminal.type("reserve", place, "--from", "+1h", "--for", "30m")
    assert clash.returncode == 1
    assert f"{place} is in maintenance until" in clash.stderr
    assert "Next free:" in clash.stderr
    assert terminal.type("undrain", place).stdout == f"The maintenance of {place} is cancelled: memory test\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gpu", "--reason", "x"], "there is no host 'gpu'"),
        (["{name}:99", "--reason", "x"], "{name} has no GPU '99'. It has 0, 1"),
        (["{name}"], "--reason is missing."),
        (["{name}", "--reason", "  "], "--reason is missing."),
        (["{name}:x y", "--reason", "x"], "is not HOST or HOST:GPU."),
        (["{name}", "--reason", "x", "--until", "2001-01-01"], "ago. End later than now."),
        (["{name}", "--reason", "x", "--until", "+2h", "--for", "2h"], "--until and --for exclude each other."),
        (["--until", "+2h"], "--until needs a host."),
    ],
)
def test_mistakes_are_named(terminal: Terminal, arguments: list[str], told: str) -> None:
    answer = terminal.type("drain", *(one.format(name=terminal.name) for one in arguments))
    assert answer.returncode in {1, 2}
    assert told.format(name=terminal.name) in answer.stderr
