"""Who is behind a pid, from a /proc that a test lays out, and from the real one."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpudeck.collectors.owners import ALL_HIDDEN, GONE, Owners, find_user_name

BOOTED_AT = 1_700_000_000
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 8 9 10\nbtime {BOOTED_AT}\n")
    return tmp_path


def add_process(proc: Path, pid: int, command: bytes, *, name: str = "python3", start_ticks: int = 500) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    zeros = " ".join("0" * 18)
    (folder / "stat").write_text(f"{pid} ({name}) S {zeros} {start_ticks} 4096 0\n")
    (folder / "cmdline").write_bytes(command)


def make(proc: Path) -> Owners:
    return Owners(proc, user_name={os.getuid(): "alice"}.__getitem__)


def test_owner_has_user_command_start_and_evidence(proc: Path) -> None:
    add_process(proc, 42, b"python3\0train.py\0--token\0abc\0", start_ticks=5 * TICKS)
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.command, owner.name) == ("alice", "python3 train.py --token ***", "python3")
    assert owner.started_at == BOOTED_AT + 5
    assert owner.evidence == f"uid {os.getuid()} of /proc/42"
    assert owner.reasons == {}


def test_program_name_may_hold_spaces_and_brackets(proc: Path) -> None:
    add_process(proc, 42, b"x\0", name="a) (b c")
    assert make(proc).find([42], 0.0)[42].name == "a) (b c"


def test_process_without_command_line_is_shown_by_its_name(proc: Path) -> None:
    add_process(proc, 42, b"")
    assert make(proc).find([42], 0.0)[42].command == "[python3]"


def test_process_that_is_just_being_started_is_looked_at_again(proc: Path) -> None:
    add_process(proc, 42, b"")
    owners = make(proc)
    owners.find([42], 0.0)
    add_process(proc, 42, b"train\0")
    assert owners.find([42], 1.0)[42].command == "train"


def test_overlong_command_line_loses_its_cut_argument(proc: Path) -> None:
    add_process(proc, 42, b"run\0--url\0" + b"x" * 4086 + b"@host\0")
    assert make(proc).find([42], 0.0)[42].command == "run --url"


def test_vanished_process_is_unknown_with_its_reason_and_its_neighbour_is_not(proc: Path) -> None:
    add_process(proc, 42, b"x\0")
    found = make(proc).find([42, 43], 0.0)
    assert found[43].user is None
    assert found[43].reasons == {"user": GONE, "command": GONE, "started_at": GONE}
    assert found[42].user == "alice"


def test_when_no_listed_process_is_in_proc_the_reason_says_what_that_looks_like(proc: Path) -> None:
    found = make(proc).find([42, 43], 0.0)
    assert {owner.reasons["user"] for owner in found.values()} == {ALL_HIDDEN}
    assert "PID namespace" in ALL_HIDDEN
    assert "struct mismatch" in ALL_HIDDEN


def test_process_that_vanishes_between_two_reads_is_unknown(proc: Path) -> None:
    add_process(proc, 42, b"x\0")
    (proc / "42" / "cmdline").unlink()
    assert make(proc).find([42], 0.0)[42].user is None


def test_owner_is_kept_while_the_process_lives(proc: Path) -> None:
    add_process(proc, 42, b"first\0")
    owners = make(proc)
    owners.find([42], 0.0)
    (proc / "42" / "cmdline").unlink()
    assert owners.find([42], 1.0)[42].command == "first"


def test_reused_pid_gets_a_new_owner(proc: Path) -> None:
    add_process(proc, 42, b"first\0", start_ticks=1)
    owners = make(proc)
    owners.find([42], 0.0)
    add_process(proc, 42, b"second\0", start_ticks=2)
    assert owners.find([42], 1.0)[42].command == "second"


def test_owner_dies_with_its_process(proc: Path) -> None:
    add_process(proc, 42, b"first\0")
    add_process(proc, 43, b"other\0")
    owners = make(proc)
    owners.find([42, 43], 0.0)
    shutil.rmtree(proc / "42")
    assert owners.find([42, 43], 1.0)[42].command is None


def test_program_that_renames_itself_is_noticed_after_a_while(proc: Path) -> None:
    add_process(proc, 42, b"first\0")
    owners = make(proc)
    owners.find([42], 0.0)
    add_process(proc, 42, b"second\0")
    assert owners.find([42], 61.0)[42].command == "second"


def test_start_is_unknown_where_the_kernel_does_not_say_when_it_booted(proc: Path) -> None:
    (proc / "stat").write_text("cpu 1\n")
    add_process(proc, 42, b"x\0")
    owner = make(proc).find([42], 0.0)[42]
    assert owner.started_at is None
    assert "time of boot" in owner.reasons["started_at"]
    assert owner.user == "alice"


def test_processes_that_may_not_be_looked_into_still_have_their_user(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_process(proc, 42, b"x\0")

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.command, owner.started_at) == ("alice", None, None)
    assert owner.reasons.keys() == {"command", "started_at"}


def test_uid_without_an_account_is_shown_as_its_number() -> None:
    unused = max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 2**31) + 1
    assert find_user_name(unused) == str(unused)


def test_real_process_has_its_real_owner() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "--api-key", "abc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        owner = Owners().find([process.pid], time.time())[process.pid]
        process.communicate(b"\n")
    assert owner.user == find_user_name(os.getuid())
    assert owner.command == f"{sys.executable} -c print(flush=True); input() --api-key ***"
    assert owner.started_at == pytest.approx(time.time(), abs=60)
