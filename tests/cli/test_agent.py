"""gpudeck agent on the command line: what is refused at the start, and with which next step."""

import socket
from pathlib import Path

import pytest

from fakes.commands import gpudeck_here
from fakes.hubs import gpudeck


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--listen", "nonsense"], "--listen: 'nonsense' is not HOST:PORT."),
        (["--listen", ":70800"], "--listen: ':70800' is not HOST:PORT."),
        (["--listen", ":0"], "listening on :0 lets other machines read this agent"),
        (["--listen", "[::]:0"], "`token_file: FILE` below `agent:` in gpudeck.yaml"),
        (["--listen", "203.0.113.7:0", "--token-file", "t"], "cannot listen on 203.0.113.7:0: cannot assign requested"),
        (["--listen", "127.0.0.1:0", "--token-file", "no/such/folder/t"], "no/such/folder/t cannot be created"),
        (["--listen", "127.0.0.1:0", "--token-file", "empty"], "empty has no token"),
        (["--listen", "127.0.0.1:0", "--simulate", "2"], "answers for one host. Give --simulate 1"),
        (["--listen", "127.0.0.1:0", "--hub", "http://hub"], "the agent needs a token"),
        (["--listen", "127.0.0.1:0", "--hub", "http://hub", "--token-file", "t"], "the token file t cannot be read"),
        (["--token-file", "good", "--ca-file", "absent.pem"], "the certificates in absent.pem cannot be read: no such"),
        (["--token-file", "good", "--ca-file", "good"], "the certificates in good cannot be read: it holds no"),
    ],
)
def test_wrong_use_gets_a_line_that_says_what_to_do(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "good").write_text("s3cret\n")
    (tmp_path / "empty").touch()
    answer = gpudeck_here(tmp_path, "agent", *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_port_in_use_gets_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = gpudeck(tmp_path, "agent", "--listen", address)
    assert (answer.returncode, answer.stderr) == (
        2,
        f"gpudeck: cannot listen on {address}: address already in use. "
        "Stop what uses it, or choose another with --listen HOST:PORT.\n",
    )


def test_a_proxy_of_the_environment_that_is_none_gets_one_line_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    arguments = ("--hub", "http://hub.example", "--token-file", "token")
    answer = gpudeck(tmp_path, "agent", *arguments, HTTP_PROXY="socks5://me:hunter2@proxy:1080")
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "agent.proxy" in answer.stderr
    assert "hunter2" not in answer.stderr


def test_settings_of_the_agent_are_checked(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("agent:\n  listen: 7080\n  proxy: http://me:hunter2@proxy:99999\n")
    answer = gpudeck(tmp_path, "check")
    assert [line.split(": ")[1] for line in answer.stderr.splitlines()] == ["agent.listen", "agent.proxy"]
    assert "hunter2" not in answer.stderr
