"""gpudeck reserve, reservations and release against a real hub with a simulated fleet."""

import getpass
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

from fakes.hubs import HubProcess, environment, gpudeck, gpudeck_without_reader, running_hub
from fakes.waiting import wait_until


class Terminal:
    """Somebody at the hub's machine."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        wait_until(self._has_hosts, "the simulated fleet")
        self.hosts: list[dict[str, Any]] = self.fleet()["hosts"]

    def fleet(self) -> dict[str, Any]:
        return dict(json.loads(self.hub.get("/api/v1/fleet")))

    def shown(self, host: str) -> dict[str, Any] | None:
        """The reservation of the host's first GPU, as everybody sees it."""
        view = next(one for one in self.fleet()["hosts"] if one["name"] == host)
        shown: dict[str, Any] | None = view["gpus"][0]["reservation"]
        return shown

    def _has_hosts(self) -> bool:
        hosts = self.fleet()["hosts"]
        return len(hosts) == 3 and all(host["gpus"] for host in hosts)

    def type(self, *arguments: str) -> CompletedProcess[str]:
        return gpudeck(self.hub.data_dir, *arguments, GPUDECK_HUB=self.hub.url, TZ="Europe/Berlin")

    def reserve(self, *arguments: str) -> dict[str, Any]:
        answer = self.type("reserve", *arguments, "--json")
        assert answer.returncode == 0, answer.stderr
        return dict(json.loads(answer.stdout))


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with running_hub(tmp_path_factory.mktemp("hub"), "--demo", "3") as hub:
        yield Terminal(hub)


@pytest.fixture
def host(terminal: Terminal) -> Iterator[str]:
    """A host on which nothing is reserved, also afterwards."""
    name = terminal.hosts[0]["name"]
    yield name
    for one in json.loads(terminal.type("reservations", name, "--json").stdout)["reservations"]:
        terminal.type("release", str(one["id"]))


def test_reservation_is_made_listed_shown_and_given_back(terminal: Terminal, host: str) -> None:
    answer = terminal.type("reserve", f"{host}:0", "--for", "4h", "--note", "訓練 🚀")
    assert answer.returncode == 0, answer.stderr
    assert f"{host}:0 for {getpass.getuser()} from " in answer.stdout
    assert "(4h): reservation" in answer.stdout
    number = answer.stdout.partition("reservation ")[2].partition(".")[0]
    listed = terminal.type("reservations", "--mine").stdout
    assert all(word in listed for word in (number, f"{host}:0", getpass.getuser(), "訓練 🚀", "left"))
    wait_until(lambda: terminal.shown(host) is not None, "the fleet of the next second")
    assert (terminal.shown(host) or {}).items() >= {"id": int(number), "user": getpass.getuser()}.items()
    released = terminal.type("release", number)
    assert (released.returncode, released.stdout) == (0, f"Reservation {number} of {host}:0 is ended.\n")
    assert terminal.type("release", number).returncode == 1
    assert f"Nothing is reserved on {host}." in terminal.type("reservations", host).stdout


def test_list_without_an_output_says_so(terminal: Terminal, host: str) -> None:
    terminal.reserve(f"{host}:0", "--for", "4h")
    closed = [sys.executable, "-m", "gpudeck", "reservations", "--hub", terminal.hub.url]
    answer = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *closed],
        stderr=subprocess.PIPE,
        env=environment(terminal.hub.data_dir),
        text=True,
        timeout=60,
        check=False,
    )
    said = "gpudeck: the standard output is closed: there is nowhere to show anything.\n"
    assert (answer.returncode, answer.stderr) == (1, said)


@pytest.mark.parametrize("form", [[], ["--json"], ["--format", "comments-json"]])
def test_reader_that_has_gone_ends_the_list_without_a_word(terminal: Terminal, host: str, form: list[str]) -> None:
    terminal.reserve(f"{host}:0", "--for", "2h")
    ended = gpudeck_without_reader(terminal.hub.data_dir, "reservations", host, *form, GPUDECK_HUB=terminal.hub.url)
    assert ended == (128 + signal.SIGPIPE, "")


def test_length_and_distance_are_those_that_were_typed(terminal: Terminal, host: str) -> None:
    answer = terminal.type("reserve", f"{host}:0", "--from", "+5d", "--for", "1d 6h")
    assert "(1d 6h): reservation" in answer.stdout
    assert "in 5d\n" in terminal.type("reservations", host).stdout


def test_conflict_names_the_reservation_and_the_next_free_time(terminal: Terminal, host: str) -> None:
    made = terminal.reserve(f"{host}:0", "--for", "2h", "--user", "ada", "--note", "paper")
    answer = terminal.type("reserve", f"{host}:0", "--for", "1h", "--from", "+1h")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert f"GPU 0 of {host} is reserved by ada (paper): reservation {made['id']}." in answer.stderr
    assert "Next free: " in answer.stderr
    assert f", {host}:0." in answer.stderr


def test_any_gpus_are_chosen(terminal: Terminal, host: str) -> None:
    made = terminal.reserve(host, "--gpus", "1", "--memory", "1G", "--from", "2030-01-01 09:00", "--for", "1h")
    assert [gpu["host"] for gpu in made["gpus"]] == [host]
    # Nine o'clock in Berlin in winter.
    assert made["start"] == 1_893_484_800.0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["reserve", "HOST:0"], 2, "needs either --for or --until"),
        (["reserve", "HOST:0", "--for", "4h", "--until", "18:00"], 2, "needs either --for or --until"),
        (["reserve", "--for", "4h"], 2, "no GPU is named"),
        (["reserve", "HOST:", "--for", "4h"], 2, "is not HOST or HOST:GPU,GPU"),
        (["reserve", "HOST:0,first", "--for", "4h"], 2, "is not HOST or HOST:GPU,GPU"),
        (["reserve", "HOST:99", "--for", "4h"], 1, "has no GPU '99'"),
        (
            ["reserve", "HOST:0", "--for", "4h", "--note", "x" * 1001],
            2,
            "has 1001 characters. The most is 1000.",
        ),
        (["reserve", "nowhere", "--for", "4h"], 1, "there is no host 'nowhere'"),
        (["reserve", "HOST", "--for", "4h", "--memory", "40G"], 2, "need --gpus"),
        (["reserve", "HOST:0", "--gpus", "2", "--for", "4h"], 2, "already names them"),
        (
            ["reserve", "--gpus", "2", "--memory", "much", "--for", "4h"],
            2,
            "--memory: 'much' is not an amount of memory",
        ),
        (["reserve", "--gpus", "2", "--model", "", "--for", "4h"], 2, "--model must have between 1 and 256"),
        (["reserve", "HOST:0", "--for", "soon"], 2, "is not a duration"),
        (["reserve", "HOST:0", "--for", "0h"], 2, "the end is in the past"),
        (["reserve", "HOST:0", "--for", "1h", "--from", "2020-01-01"], 2, "the start is"),
        (["reserve", "HOST:0", "--for", "1h", "--from", "whenever"], 2, "is no time"),
        (["reserve", "HOST:0", "--for", "1h", "--from", "9999-12-31"], 2, "the end is more than ten years away"),
        (["reserve", "HOST:0", "--for", "1h", "--from", "1960-01-01"], 2, "it is before 1970"),
        (["reserve", "HOST:0", "--for", "99999999d"], 2, "'99999999d' is too long"),
        (["reserve", "--gpus", "1", "--memory", "40000G", "--for", "1h"], 1, "no GPU of the fleet has 40000 GiB"),
        (["reservations", "--mine", "--user", "ada"], 2, "--mine and --user exclude each other"),
        (["reservations", "--json", "--format", "comments-json"], 2, "exclude each other"),
        (["reserve", "HOST:0", "--until", "2027-03-28 02:30"], 2, "the clock skips it in Europe/Berlin"),
        (["release", "999999"], 1, "there is no reservation 999999"),
        (["release", "none"], 2, "is not the id of a reservation"),
        (["release", "slurm:paper"], 2, "'slurm:paper' is a reservation of a scheduler. Change it there"),
        (["reservations", "--hub", "http://127.0.0.1:1"], 3, "no hub answers"),
        (["reserve", "HOST:0", "--for", "1h", "--hub", "http://127.0.0.1:1"], 3, "no hub answers"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(terminal: Terminal, arguments: list[str], code: int, told: str) -> None:
    name = terminal.hosts[1]["name"]
    answer = terminal.type(*(word.replace("HOST", name) for word in arguments))
    assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def test_calendar_of_the_hub_is_there(terminal: Terminal, host: str) -> None:
    terminal.reserve(f"{host}:0", "--for", "2h")
    with urllib.request.urlopen(f"{terminal.hub.url}/api/v1/reservations.ics?host={host}", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/calendar; charset=utf-8"
        assert f"SUMMARY:{getpass.getuser()}: GPU 0 of {host}".encode() in answer.read()
