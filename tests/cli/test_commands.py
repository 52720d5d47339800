"""The command line: exit codes, one-line errors, help."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fakes.commands import gpudeck_here
from fakes.hubs import environment, gpudeck, gpudeck_without_reader
from gpudeck import __version__
from gpudeck.cli import gpudeck as group


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["show", "--hub", "http://127.0.0.1:1"], 3, "no hub answers at http://127.0.0.1:1"),
        (["show", "--hub", "ftp://hub"], 2, "is not a URL"),
        (["sho"], 2, "Did you mean show?"),
        (["frobnicate"], 2, "Commands: up, agent, show"),
        (["up", "--listen", "nonsense"], 2, "is not HOST:PORT"),
        (["up", "--listen", "0.0.0.0:0"], 2, "(only users with an account) to ./gpudeck.yaml"),
        (["up", "--listen", "203.0.113.7:0"], 2, "`read: open`"),
        (["up", "--demo", "0"], 2, "--demo"),
        (["up", "--config", "absent.yaml"], 2, "absent.yaml"),
        (["check", "--config", "absent.yaml"], 2, "absent.yaml"),
        (["agent"], 2, "--token-file"),
        (["agent", "--token-file", "absent"], 2, "absent"),
        (["agent", "--token-file", "absent", "--hub", "ftp://hub"], 2, "is not a URL"),
        (["agent", "--token-file", "absent", "--interval", "0"], 2, "--interval must be between 100ms and 1h."),
        (["agent", "--token-file", "absent", "--name", "bad name"], 2, "'bad name' has to be at most 253 letters"),
        (["agent", "--token-file", "absent", "--interval", "soon"], 2, "'soon' is not a duration"),
    ],
)
def test_wrong_use_gets_a_line_that_says_what_to_do(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    answer = gpudeck_here(tmp_path, *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def shell(folder: Path, command: str, **others: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a line in which `gpudeck` stands for the command under test."""
    line = f'gpudeck() {{ "$PYTHON" -m gpudeck "$@"; }}; {command}'
    return subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        text=True,
        env=environment(folder) | {"PYTHON": sys.executable} | others,
        cwd=folder,
        timeout=60,
        check=False,
    )


def test_a_base_install_says_how_to_get_the_hub(tmp_path: Path) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; sys.argv[1:] = ['up']; from gpudeck.cli import main; main()"
    answer = shell(tmp_path, f'"$PYTHON" -c "{program}"')
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert f"{sys.executable} -m pip install 'gpudeck[hub]'" in answer.stderr


def test_the_version_is_told(tmp_path: Path) -> None:
    assert gpudeck(tmp_path, "--version").stdout == f"gpudeck {__version__}\n"


def all_commands() -> dict[str, click.Command]:
    """Every command as it is typed, also those below others."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    below = {
        f"{name} {part}": command
        for name, parent in found.items()
        for part, command in getattr(parent, "commands", {}).items()
    }
    return {**found, **below}


@pytest.mark.parametrize("typed", all_commands())
def test_help_of_every_command_has_examples_of_it(typed: str) -> None:
    text = all_commands()[typed].get_help(click.Context(click.Command(typed)))
    examples = text.partition("Examples:\n")[2]
    assert f"gpudeck {typed}" in examples


def test_help_of_show_reads_like_a_manual(tmp_path: Path) -> None:
    answer = gpudeck(tmp_path, "show", "--help")
    parts = ("Usage: gpudeck show", "WORDS work", "Options:", "Environment:", "Exit codes:", "Examples:", "See also:")
    places = [answer.stdout.index(part) for part in parts]
    assert (answer.returncode, places) == (0, sorted(places))


def test_check_reports_every_mistake_at_once_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("listn: 127.0.0.1:1\nfleet:\n  down_after: soon\n")
    answer = gpudeck(tmp_path, "check")
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        f"{tmp_path}/gpudeck.yaml:1: listn: unknown setting; did you mean listen?",
        f"{tmp_path}/gpudeck.yaml:3: fleet.down_after: found 'soon', expected a duration such as 10s, above 0s",
    ]


def test_check_reports_what_only_the_settings_themselves_know_too(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(
        "listen: 0.0.0.0:8042\npath_prefix: gpus\nagent:\n  interval: 0s\n"
        '  name: "bad name"\n  hub: ftp://localhost\n  nmae: x\n'
        "fleet: {health: {hot_celsius: 99, colour: red}}\n"
    )
    answer = gpudeck(tmp_path, "check")
    places = [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in answer.stderr.splitlines()]
    assert answer.returncode == 2
    assert places == [
        ["gpudeck.yaml:1", "listen"],
        ["gpudeck.yaml:2", "path_prefix"],
        ["gpudeck.yaml:4", "agent.interval"],
        ["gpudeck.yaml:5", "agent.name"],
        ["gpudeck.yaml:6", "agent.hub"],
        ["gpudeck.yaml:7", "agent.nmae"],
        ["gpudeck.yaml:8", "fleet.health.colour"],
        ["gpudeck.yaml:8", "fleet.health.hot_celsius"],
    ]
    assert "found 'bad name', expected at most 253 letters" in answer.stderr


@pytest.mark.parametrize("arguments", [["show", "--local"], ["show", "--help"], ["check"]])
def test_a_terminal_without_our_characters_gets_question_marks(tmp_path: Path, arguments: list[str]) -> None:
    answer = gpudeck(tmp_path, *arguments, PYTHONIOENCODING="iso-8859-1")
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["show --local", "show --local --json", "show --help", "check"])
def test_a_full_disk_below_the_output_gets_one_line(tmp_path: Path, arguments: str, unbuffered: str) -> None:
    answer = shell(tmp_path, f"gpudeck {arguments} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (answer.returncode, answer.stderr) == (
        1,
        "gpudeck: the output cannot be written: no space left on device.\n",
    )


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["show", "--local"], ["check"]])
def test_a_reader_that_has_gone_ends_a_command_without_a_word(tmp_path: Path, arguments: list[str]) -> None:
    assert gpudeck_without_reader(tmp_path, *arguments) == (128 + signal.SIGPIPE, "")


def test_mistake_is_told_by_the_exit_code_also_where_nobody_reads_the_complaint(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gpudeck", "show", "--hub", "ftp://hub"]
    ended = subprocess.run(command, stderr=writer, env=environment(tmp_path), timeout=60, check=False)
    os.close(writer)
    assert ended.returncode == 2


def test_ctrl_c_while_a_hub_is_asked_is_no_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "show", "--hub", f"http://127.0.0.1:{silent.getsockname()[1]}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            shown = process.communicate(timeout=20)
    assert (process.returncode, shown) == (128 + signal.SIGINT, ("", "\n"))


def test_show_without_any_output_gets_one_line(tmp_path: Path) -> None:
    answer = shell(tmp_path, "gpudeck show --local >&-")
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)
    assert "standard output is closed" in answer.stderr


def test_a_deleted_working_folder_is_passed_over(tmp_path: Path) -> None:
    answer = shell(tmp_path, "mkdir gone; cd gone; rmdir ../gone; gpudeck check")
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_password_in_the_hubs_address_is_not_printed(tmp_path: Path) -> None:
    addresses = ["http://me:hunter2@127.0.0.1:1", "http://me:hunter2@127.0.0.1:x", "ftp://me:hunter2@hub"]
    (tmp_path / "token").write_text("token")
    shown = [gpudeck(tmp_path, "show", "--hub", address) for address in addresses]
    reported = [gpudeck(tmp_path, "agent", "--token-file", "token", "--hub", address) for address in addresses[1:]]
    assert [answer.returncode for answer in shown + reported] == [3, 2, 2, 2, 2]
    assert "hunter2" not in "".join(answer.stderr for answer in shown + reported)


def test_check_of_a_good_file_and_of_none(tmp_path: Path) -> None:
    none = gpudeck(tmp_path, "check")
    (tmp_path / "gpudeck.yaml").write_text("listen: 0.0.0.0:8042\nread: open\n")
    good = gpudeck(tmp_path, "check")
    assert (none.returncode, good.returncode) == (0, 0)
    assert "default" in none.stdout
    assert good.stdout.endswith("gpudeck.yaml: no mistakes.\n")


def test_a_hub_in_the_open_without_a_decision_is_refused_by_check_and_up(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("listen: 0.0.0.0:0\n")
    assert [gpudeck(tmp_path, command).returncode for command in ("check", "up")] == [2, 2]


def test_this_machine_is_read_as_the_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("agent:\n  comands: none\n")
    answer = gpudeck(tmp_path, "show", "--local")
    assert answer.returncode == 2
    assert "gpudeck.yaml:2: agent.comands" in answer.stderr
    (tmp_path / "gpudeck.yaml").write_text("agent:\n  commands: none\n")
    assert gpudeck(tmp_path, "show", "--local").returncode == 0
