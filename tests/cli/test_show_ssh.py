"""gpudeck show --ssh: hosts without any hub, against a real sshd."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import environment, gpudeck
from fakes.sshd import IS_HERE, WHY_NOT, Sshd, running_sshd
from fakes.terminals import in_a_terminal

pytestmark = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def home(sshd: Sshd, tmp_path: Path) -> Path:
    """The home of somebody whose ssh reaches every host, as every name that begins with gpu."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    shutil.copy(sshd.key, folder / ".ssh/id_ed25519")
    shutil.copy(sshd.known_hosts, folder / ".ssh/known_hosts")
    (folder / ".ssh/config").write_text(f"Host gpu*\n HostName 127.0.0.1\n Port {sshd.port}\n")
    return folder


def test_host_is_shown_as_a_hub_would_show_it(home: Path) -> None:
    answer = gpudeck(home, "show", "--ssh", "gpu01", "--detail", SSH_AUTH_SOCK="")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "gpu01" in answer.stdout
    assert "H200" in answer.stdout


def test_json_of_hosts_that_fail_has_their_reason_beside_those_that_answer(home: Path) -> None:
    answer = gpudeck(home, "show", "--ssh", "gpu01,root@127.0.0.1:1", "--json", SSH_AUTH_SOCK="")
    fleet = json.loads(answer.stdout)
    hosts = {host["name"]: host for host in fleet["hosts"]}
    assert answer.returncode == 0
    assert (hosts["gpu01"]["status"], hosts["127.0.0.1"]["status"]) == ("up", "never_seen")
    assert abs(hosts["gpu01"]["clock_skew_seconds"]) < 5
    assert {gpu["since"] for gpu in hosts["gpu01"]["gpus"]} == {None}
    reason = "127.0.0.1:1 refuses connections: no sshd listens on port 1."
    assert hosts["127.0.0.1"]["problems"] == [reason]
    assert answer.stderr == f"gpudeck: 127.0.0.1: {reason}\n"


def test_a_single_reading_does_not_claim_to_know_since_when(home: Path) -> None:
    sheet = gpudeck(home, "show", "--ssh", "gpu01", "--csv", SSH_AUTH_SOCK="")
    assert {row["since"] for row in csv.DictReader(sheet.stdout.splitlines())} == {""}
    page = gpudeck(home, "show", "--ssh", "gpu01", "--html", "-", SSH_AUTH_SOCK="")
    assert (page.returncode, "H200" in page.stdout, ", for " in page.stdout) == (0, True, False)


def test_no_answer_at_all_is_exit_code_1(home: Path) -> None:
    answer = gpudeck(home, "show", "--ssh", "127.0.0.1:1", SSH_AUTH_SOCK="")
    assert answer.returncode == 1
    assert "refuses connections" in answer.stdout
    assert answer.stderr == ""


def test_settings_of_the_configuration_file_are_used(home: Path, sshd: Sshd) -> None:
    (home / ".ssh/id_ed25519").rename(home / "key")
    (home / "gpudeck.yaml").write_text(f"ssh:\n  key_files: [{home}/key]\n")
    answer = gpudeck(home, "show", "--ssh", "gpu01", SSH_AUTH_SOCK="")
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ssh", ","], "--ssh names no host"),
        (["--ssh", "gpu01:port"], "is no host"),
        (["--ssh", "gpu01", "--local"], "exclude each other"),
    ],
)
def test_wrong_use_is_exit_code_2(tmp_path: Path, arguments: list[str], told: str) -> None:
    answer = gpudeck(tmp_path, "show", *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr


def test_base_install_says_how_to_get_ssh(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['asyncssh'] = None; sys.argv[1:] = ['show', '--ssh', 'gpu01']; "
        "from gpudeck.cli import main; main()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (
        2,
        "gpudeck: reading hosts over SSH needs asyncssh. pip install 'gpudeck[ssh]'\n",
    )


def test_password_is_asked_for_on_a_terminal_and_not_shown(home: Path, sshd: Sshd) -> None:
    (home / ".ssh/id_ed25519").unlink()
    with in_a_terminal(home, "gpudeck", "show", "--ssh", "gpu01") as terminal:
        said = terminal.read_until("Password: ")
        terminal.press("very-secret\n")
        said += terminal.read_until("ssh-copy-id")
    assert "No key is accepted by gpu01. Password: " in said
    assert "the password was not accepted either" in said
    assert "very-secret" not in said
