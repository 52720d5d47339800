"""Completion in real shells: commands, options, words, and names of hosts that a real hub told."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import HubProcess, environment, gpudeck
from fakes.still_fleet import running_still_hub
from fakes.terminals import in_a_terminal
from fakes.waiting import wait_until
from gpudeck.cli.search import find_names

NOBODY = "http://127.0.0.1:1"


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


BASH, ZSH, FISH = (pytest.param(shell, marks=needs(shell)) for shell in ("bash", "zsh", "fish"))


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the command `gpudeck` and the script of each shell."""
    (tmp_path / "gpudeck").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpudeck "$@"\n')
    (tmp_path / "gpudeck").chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"script.{shell}").write_text(gpudeck(tmp_path, "completion", shell).stdout)
    return tmp_path


def path_with(home: Path) -> str:
    return f"{home}:{os.environ['PATH']}"


INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ". ./script.bash"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -D && . ./script.zsh"),
}


@pytest.mark.parametrize("shell", [BASH, ZSH])
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("gpudeck sho\t", "gpudeck show "),
        ("gpudeck show --det\t", "gpudeck show --detail "),
        ("gpudeck show unkn\t", "gpudeck show unknown "),
        ("gpudeck show free gpu01\t", "gpudeck show free gpu01 "),
        ("gpudeck hosts remove gpu01\t", "gpudeck hosts remove gpu01 "),
    ],
)
def test_tab_completes(still: HubProcess, home: Path, shell: str, typed: str, completed: str) -> None:
    command, source = INTERACTIVE[shell]
    variables = {"PATH": path_with(home), "GPUDECK_HUB": still.url, "PS1": "$ ", "TERM": "dumb"}
    wait_for_names(home, still)
    with in_a_terminal(home, *command, **variables) as terminal:
        terminal.press(f"{source} && echo read'y'\n")
        terminal.read_until("ready\r\n")
        terminal.press(typed)
        terminal.read_until(completed)


@pytest.mark.parametrize("shell", [FISH])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpudeck sho", "show"),
        ("gpudeck show --det", "--detail"),
        ("gpudeck show gpu01", "gpu01"),
        ("gpudeck show idl", "idle"),
    ],
)
def test_fish_offers(still: HubProcess, home: Path, shell: str, line: str, offered: str) -> None:
    def complete() -> list[str]:
        answer = subprocess.run(
            [shell, "--no-config", "-c", f'source script.fish; complete -C "{line}"'],
            capture_output=True,
            text=True,
            env=environment(home) | {"PATH": path_with(home), "GPUDECK_HUB": still.url},
            cwd=home,
            timeout=60,
            check=True,
        )
        return [found.split("\t")[0] for found in answer.stdout.splitlines()]

    wait_for_names(home, still)
    assert complete() == [offered]


def offer(home: Path, line: str, **variables: str) -> tuple[list[str], str]:
    """What is offered for the last word of a line, and what was written beside it, as bash asks."""
    words = line.split(" ")
    asked = {"_GPUDECK_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    answer = gpudeck(home, **asked, **variables)
    return [found.partition(",")[2] for found in answer.stdout.split()], answer.stderr


def wait_for_names(home: Path, hub: HubProcess) -> None:
    """A hub that takes long to answer, as at its start, is not waited for."""
    wait_until(lambda: offer(home, "gpudeck show gpu01", GPUDECK_HUB=hub.url)[0], "the names of its hosts", 60)


def test_hub_on_the_line_is_the_one_that_is_asked(still: HubProcess, tmp_path: Path) -> None:
    wait_for_names(tmp_path, still)
    assert offer(tmp_path, f"gpudeck show --hub {still.url} gpu01", GPUDECK_HUB=NOBODY) == (["gpu01"], "")


@pytest.mark.parametrize("line", ["wait --host gpu01", "reserve gpu01", "reservations gpu01"])
def test_hosts_are_offered_wherever_one_is_named(still: HubProcess, home: Path, line: str) -> None:
    wait_for_names(home, still)
    assert offer(home, f"gpudeck {line}", GPUDECK_HUB=still.url) == (["gpu01"], "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gpudeck show gpu", []),
        ("gpudeck show res", ["reserved"]),
        ("gpudeck nothing gpu", []),
        ("gpudeck show -detail gpu", []),
        ("gpudeck show --watch 5 cri", ["critical"]),
        ("gpudeck completion ", ["bash", "zsh", "fish"]),
        ("gpudeck show --color a", ["auto", "always"]),
    ],
)
def test_without_a_hub_everything_else_is_offered_in_silence(tmp_path: Path, line: str, offered: list[str]) -> None:
    assert offer(tmp_path, line, GPUDECK_HUB=NOBODY) == (offered, "")


def test_hub_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.cli.search.HUB_TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert find_names(f"http://127.0.0.1:{silent.getsockname()[1]}") == []
