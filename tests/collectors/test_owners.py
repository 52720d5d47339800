"""Who is behind a pid, from a /proc that a test lays out, and from the real one."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpudeck.collectors.containers import ContainerNames
from gpudeck.collectors.owners import (
    ALL_HIDDEN,
    DEAD,
    GONE,
    HIDDEN,
    OTHER_NAMESPACE,
    Owners,
    ProcessOwner,
    find_user_name,
)
from gpudeck.collectors.proc import Proc

CAPTURES = Path(__file__).parent.parent / "captures" / "cgroup"
ACCOUNTS = {0: "root", 998: "ollama", 1000: "alice", 1001: "bob", 65534: "nobody"}
BOOTED_AT = 1_700_000_000
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 8 9 10\nbtime {BOOTED_AT}\n")
    return tmp_path


def add_process(
    proc: Path,
    pid: int,
    command: bytes,
    *,
    name: str = "python3",
    start_ticks: int = 500,
    state: str = "S",
    parent: int = 1,
    **files: str,
) -> None:
    """Other files of /proc/<pid> go by their names; without a status it is one of alice."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    zeros = " ".join("0" * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {zeros} {start_ticks} 4096 0\n")
    (folder / "cmdline").write_bytes(command)
    for file, text in {"status": of_uid(1000), **files}.items():
        (folder / file).write_text(text)


def of_uid(uid: int) -> str:
    return f"Name:\tpython3\nPPid:\t1\nUid:\t{uid}\t0\t0\t0\nGid:\t{uid}\n"


def groups(capture: str) -> str:
    return (CAPTURES / capture).read_text()


def find_name(uid: int) -> str:
    return ACCOUNTS.get(uid, str(uid))


class NamedContainers(ContainerNames):
    """Stands for the runtime behind its socket, which has a test of its own."""

    def __init__(self, **names: str) -> None:
        super().__init__()
        self.names = names

    def find(self, container: str, uid: int | None = None) -> str | None:
        return self.names.get(container[:2])


def make(proc: Path, **options: Any) -> Owners:
    options.setdefault("container_name", NamedContainers().find)
    return Owners(Proc(str(proc)), user_name=find_name, **options)


def test_owner_has_user_command_start_and_evidence(proc: Path) -> None:
    add_process(proc, 42, b"python3\0train.py\0--token\0abc\0", start_ticks=5 * TICKS)
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.command, owner.name) == ("alice", "python3 train.py --token ***", "python3")
    assert owner.started_at == BOOTED_AT + 5
    assert owner.evidence == "uid 1000 of /proc/42"
    assert owner.reasons == {}
    assert (owner.container, owner.job) == (None, None)


@pytest.mark.parametrize(
    ("uid", "login", "capture", "user", "evidence"),
    [
        (1000, 1000, "session-v2", "alice", "uid 1000 of /proc/42"),
        (1001, 1000, "session-v2", "bob", "uid 1001 of /proc/42, logged in as alice"),
        (0, 1000, "session-v2", "alice", "root, started by alice (login uid 1000)"),
        (0, None, "session-v2", "alice", "root, started by alice (session of uid 1000)"),
        (0, 0, "service-v2", "root", "uid 0 of /proc/42"),
        (998, None, "service-v2", "ollama", "uid 998 of /proc/42"),
        (65534, 1001, "root-v2", "bob", "nobody, started by bob (login uid 1001)"),
        (7777, None, "root-v2", "7777", "uid 7777 of /proc/42"),
        (0, 1000, "docker-v2-systemd", "alice", "root in container trainer, started by alice (login uid 1000)"),
        (0, None, "docker-v1-cgroupfs", "root", "root in container trainer"),
        (0, 7777, "hybrid-docker", "7777", "root in container trainer, started by uid 7777 (login uid 7777)"),
        (1000, None, "podman-v2", "alice", "alice in container trainer, a uid that its image may use for itself"),
        (
            *(100999, None, "podman-rootless-v2", "alice"),
            "uid 100999 in container trainer, started by alice (session of uid 1000)",
        ),
        (0, None, "lxc-v2", "root", "root in container trainer"),
        (1000, None, "slurm-v1", "alice", "slurm job 8812 of alice"),
        (0, 1001, "slurm-v1", "alice", "slurm job 8812 of alice, logged in as bob"),
        (1000, None, "slurm-v2", "alice", "slurm job 8812 of alice"),
        (
            *(0, None, "kubernetes-containerd-v2", "root"),
            "root in container trainer of pod 3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e",
        ),
        (
            *(0, None, "kubernetes-docker-in-pod-v1", "root"),
            "root in container trainer within runner of pod 3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e",
        ),
    ],
)
def test_person_behind_a_process_is_found_and_the_evidence_told(
    proc: Path, uid: int, login: int | None, capture: str, user: str, evidence: str
) -> None:
    loginuid = str(4294967295 if login is None else login)
    add_process(proc, 42, b"x\0", status=of_uid(uid), loginuid=loginuid, cgroup=groups(capture))
    owner = make(proc, container_name=NamedContainers(**{"9c": "trainer", "c0": "runner"}).find).find([42], 0.0)[42]
    assert (owner.user, owner.evidence) == (user, evidence)


def test_container_without_a_known_name_has_its_short_id(proc: Path) -> None:
    add_process(proc, 42, b"x\0", cgroup=groups("docker-v2-systemd"))
    assert make(proc).find([42], 0.0)[42].container == "9c38b7f4a9ab"


def test_job_is_that_of_the_group(proc: Path) -> None:
    add_process(proc, 42, b"x\0", cgroup=groups("slurm-v2"), environ="SLURM_JOB_ID=1\0")
    assert make(proc).find([42], 0.0)[42].job == "8812"


def test_job_of_a_process_in_a_pod_is_the_pods_uid(proc: Path) -> None:
    add_process(proc, 42, b"x\0", cgroup=groups("kubernetes-containerd-v2"))
    assert make(proc).find([42], 0.0)[42].job == "3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e"


def test_job_is_that_of_the_environment_where_the_groups_name_none(proc: Path) -> None:
    add_process(proc, 42, b"x\0", status=of_uid(1000), environ="A=SLURM_JOB_ID=7\0SLURM_JOB_ID=8813\0B=1\0")
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.job) == ("alice", "8813")
    assert owner.evidence == "slurm job 8813 of alice (SLURM_JOB_ID of its environment)"


def test_job_is_that_of_the_slurmstepd_above_whatever_the_environment_says(proc: Path) -> None:
    add_process(proc, 40, b"slurmstepd: [8814.batch]\0", name="slurmstepd", status=of_uid(0))
    add_process(proc, 41, b"bash\0", parent=40)
    add_process(proc, 42, b"x\0", parent=41, environ="SLURM_JOB_ID=1\0")
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.job, owner.evidence) == ("8814", "slurm job 8814 of alice (its slurmstepd)")


def test_nobody_but_root_is_a_slurmstepd(proc: Path) -> None:
    add_process(proc, 40, b"slurmstepd: [1.batch]\0", name="slurmstepd", status=of_uid(1000))
    add_process(proc, 42, b"x\0", parent=40, environ="SLURM_JOB_ID=8815\0")
    assert make(proc).find([42], 0.0)[42].job == "8815"


def test_job_that_has_a_sluid_for_a_group_is_found_by_its_number(proc: Path) -> None:
    add_process(proc, 40, b"slurmstepd: [8816.0]\0", name="slurmstepd", status=of_uid(0))
    add_process(proc, 41, b"x\0", parent=40, cgroup=groups("slurm-v2-sluid"))
    add_process(proc, 42, b"x\0", cgroup=groups("slurm-v2-sluid"), environ="SLURM_JOB_ID=8816\0")
    add_process(proc, 43, b"x\0", cgroup=groups("slurm-v2-sluid"))
    found = make(proc).find([41, 42, 43], 0.0)
    assert [found[pid].job for pid in (41, 42, 43)] == ["8816", "8816", "sEKNKTV3WPV500"]


@pytest.mark.parametrize("job", ["", "x", "1 2", "9" * 21, "²"])
def test_job_that_is_no_number_is_none(proc: Path, job: str) -> None:
    add_process(proc, 42, b"x\0", environ=f"SLURM_JOB_ID={job}\0")
    assert make(proc).find([42], 0.0)[42].job is None


def test_person_among_the_parents_started_it(proc: Path) -> None:
    add_process(proc, 40, b"bash\0", status=of_uid(1000))
    add_process(proc, 41, b"sudo\0", status=of_uid(0), parent=40)
    add_process(proc, 42, b"train\0", status=of_uid(0), parent=41)
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.evidence) == ("alice", "root, started by alice (uid 1000 of its parent 40)")


def test_uid_of_a_parent_in_the_same_container_is_no_evidence(proc: Path) -> None:
    inside = groups("docker-v2-systemd")
    add_process(proc, 40, b"shim\0", status=of_uid(0))
    add_process(proc, 41, b"notebook\0", status=of_uid(1000), cgroup=inside, parent=40)
    add_process(proc, 42, b"train\0", status=of_uid(0), cgroup=inside, parent=41)
    owner = make(proc).find([42], 0.0)[42]
    assert (owner.user, owner.evidence) == ("root", "root in container 9c38b7f4a9ab")


def test_watcher_of_a_rootless_container_tells_whose_it_is(proc: Path) -> None:
    add_process(proc, 41, b"conmon\0", status=of_uid(1000), cgroup=groups("podman-rootless-conmon"))
    add_process(proc, 42, b"train\0", status=of_uid(100999), cgroup=groups("podman-cgroupfs"), parent=41)
    owner = make(proc).find([42], 0.0)[42]
    assert owner.user == "alice"
    assert owner.evidence == "uid 100999 in container 9c38b7f4a9ab, started by alice (uid 1000 of its parent 41)"


def test_circle_of_parents_comes_to_an_end(proc: Path) -> None:
    add_process(proc, 41, b"x\0", status=of_uid(0), parent=42)
    add_process(proc, 42, b"x\0", status=of_uid(0), parent=41)
    assert make(proc).find([42], 0.0)[42].user == "root"


def test_program_with_anothers_rights_belongs_to_who_started_it(proc: Path) -> None:
    add_process(proc, 42, b"x\0", status="Name:\tx\nUid:\t1001\t0\t0\t0\n")
    assert make(proc).find([42], 0.0)[42].user == "bob"


@pytest.mark.parametrize(
    ("commands", "command"),
    [
        ("full", "python3 train.py --token abc"),
        ("redacted", "python3 train.py --token ***"),
        ("name", "python3"),
        ("none", None),
    ],
)
def test_operator_decides_how_much_of_a_command_is_told(proc: Path, commands: str, command: str | None) -> None:
    add_process(proc, 42, b"python3\0train.py\0--token\0abc\0")
    owner = make(proc, commands=commands).find([42], 0.0)[42]
    assert owner.command == command
    assert (owner.user, owner.name) == ("alice", "python3")


def test_command_that_is_not_sent_has_that_as_its_reason(proc: Path) -> None:
    add_process(proc, 42, b"x\0")
    assert "commands: none" in make(proc, commands="none").find([42], 0.0)[42].reasons["command"]


@pytest.mark.parametrize("commands", ["name", "none"])
def test_command_line_that_is_not_told_is_not_even_read(proc: Path, commands: str) -> None:
    add_process(proc, 42, b"x\0")
    (proc / "42" / "cmdline").unlink()
    assert make(proc, commands=commands).find([42], 0.0)[42].user == "alice"


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
    assert found[43].evidence == DEAD == "no such process: memory in use by a dead process"
    assert found[42].user == "alice"


def test_when_no_listed_process_is_in_proc_the_reason_says_what_that_looks_like(proc: Path) -> None:
    found = make(proc).find([42, 43], 0.0)
    assert {owner.reasons["user"] for owner in found.values()} == {ALL_HIDDEN}
    assert "PID namespace" in ALL_HIDDEN
    assert "struct mismatch" in ALL_HIDDEN


def test_last_process_that_dies_is_dead_and_not_hidden(proc: Path) -> None:
    add_process(proc, 42, b"x\0")
    owners = make(proc)
    owners.find([42], 0.0)
    shutil.rmtree(proc / "42")
    for now in (1.0, 2.0):
        owner = owners.find([42], now)[42]
        assert (owner.evidence, owner.reasons["user"]) == (DEAD, GONE)


def test_hidden_processes_are_not_called_dead(proc: Path) -> None:
    assert make(proc).find([42], 0.0)[42].evidence is None


def test_zombie_is_told_to_hold_memory_also_when_its_owner_was_kept(proc: Path) -> None:
    add_process(proc, 42, b"x\0", status=of_uid(1000))
    owners = make(proc)
    owners.find([42], 0.0)
    add_process(proc, 42, b"", status=of_uid(1000), state="Z")
    owner = owners.find([42], 1.0)[42]
    assert owner.user == "alice"
    assert owner.evidence == (
        "uid 1000 of /proc/42; the process has ended but is not gone (zombie): its memory is still in use"
    )


def test_process_that_waits_for_a_disk_is_called_stuck_only_after_a_while(proc: Path) -> None:
    add_process(proc, 42, b"x\0", status=of_uid(1000), state="D")
    owners = make(proc)
    told = [owners.find([42], now)[42].evidence for now in (0.0, 29.0, 30.0)]
    assert told == [*["uid 1000 of /proc/42"] * 2, "uid 1000 of /proc/42; stuck in the kernel (state D)"]
    add_process(proc, 42, b"x\0", status=of_uid(1000), state="R")
    owners.find([42], 31.0)
    add_process(proc, 42, b"x\0", status=of_uid(1000), state="D")
    assert owners.find([42], 32.0)[42].evidence == "uid 1000 of /proc/42"


def owner_when_it_vanishes(proc: Path, monkeypatch: pytest.MonkeyPatch, reads: int) -> ProcessOwner:
    """What is found of a process that goes away after so many files of it were opened."""
    real_open, left = os.open, iter(range(reads))

    def open_until(path: str, *arguments: Any, **options: Any) -> int:
        if next(left, None) is None:
            raise ProcessLookupError
        return real_open(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_until)
        return make(proc).find([42], 0.0)[42]


def test_process_may_vanish_between_any_two_reads(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"status": of_uid(0), "loginuid": "4294967295", "cgroup": groups("docker-v2-systemd"), "environ": "A=1\0"}
    add_process(proc, 41, b"shim\0", **files)
    add_process(proc, 42, b"x\0", parent=41, **files)
    found = [owner_when_it_vanishes(proc, monkeypatch, reads) for reads in range(40)]
    users = [owner.user for owner in found]
    first = users.index("root")
    assert first > 6
    assert users == [None] * first + ["root"] * (40 - first)
    assert {owner.reasons["user"] for owner in found[:first]} == {ALL_HIDDEN}


def test_pid_that_is_reused_between_two_reads_gets_no_mixed_owner(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_process(proc, 42, b"first\0", start_ticks=1)
    owners = make(proc)

    def reuse(pid: int) -> int:
        add_process(proc, pid, b"second\0", start_ticks=2)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr("gpudeck.collectors.proc.Proc.uid", lambda _, pid: reuse(pid))
        assert owners.find([42], 0.0)[42].user is None
    assert owners.find([42], 1.0)[42].command == "second"


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


def test_reused_pid_inherits_neither_container_nor_job(proc: Path) -> None:
    add_process(proc, 42, b"first\0", start_ticks=1, cgroup=groups("slurm-v2"))
    owners = make(proc)
    assert owners.find([42], 0.0)[42].job == "8812"
    add_process(proc, 42, b"second\0", start_ticks=2, cgroup=groups("session-v2"))
    assert owners.find([42], 1.0)[42].job is None


def test_process_that_becomes_another_program_is_noticed_at_once(proc: Path) -> None:
    add_process(proc, 42, b"bash\0", name="bash")
    owners = make(proc)
    owners.find([42], 0.0)
    add_process(proc, 42, b"python3\0train.py\0")
    assert owners.find([42], 1.0)[42].command == "python3 train.py"


def test_names_of_accounts_are_looked_up_once_a_minute(proc: Path) -> None:
    asked = []
    for pid in (42, 43):
        add_process(proc, pid, b"x\0", status=of_uid(1000))
    owners = Owners(
        Proc(str(proc)), lambda uid: asked.append(uid) or f"user{len(asked)}", container_name=NamedContainers().find
    )  # type: ignore[func-returns-value]
    assert {owner.user for owner in owners.find([42, 43], 100.0).values()} == {"user1"}
    assert {owner.user for owner in owners.find([42, 43], 160.0).values()} == {"user2"}


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
    assert (owner.user, owner.command, owner.started_at) == (find_name(os.getuid()), None, None)
    assert owner.reasons.keys() == {"command", "started_at"}


def test_process_without_a_status_has_the_owner_of_its_folder(proc: Path) -> None:
    add_process(proc, 42, b"x\0")
    (proc / "42" / "status").unlink()
    assert make(proc).find([42], 0.0)[42].user == find_name(os.getuid())


def test_uid_without_an_account_is_shown_as_its_number() -> None:
    unused = max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 2**31) + 1
    assert find_user_name(unused) == str(unused)


def test_real_process_has_its_real_owner() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "--api-key", "abc"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = Owners().find([process.pid, os.getpid()], time.time())
        process.communicate(b"\n")
    owner = found[process.pid]
    # Where this runs under sudo, both belong to the person who called it.
    assert owner.user == found[os.getpid()].user
    assert owner.command == f"{sys.executable} -c print(flush=True); input() --api-key ***"
    assert owner.started_at == pytest.approx(time.time(), abs=60)
    assert owner.evidence is not None


def enter(proc: Path, namespace: str) -> None:
    """The /proc of a process in that namespace of processes."""
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(namespace)


def test_in_another_namespace_no_process_is_mistaken_for_the_drivers(proc: Path) -> None:
    enter(proc, "pid:[4026532199]")
    add_process(proc, 1, b"init\0")
    add_process(proc, 42, b"x\0")
    owner = Owners(Proc(str(proc)), find_name, are_hosts_pids=True).find([42], 100.0)[42]
    assert (owner.user, owner.command, owner.evidence) == (None, None, None)
    assert owner.reasons == dict.fromkeys(("user", "command", "started_at"), OTHER_NAMESPACE)


def test_pids_read_in_the_same_namespace_have_their_owners(proc: Path) -> None:
    enter(proc, "pid:[4026532199]")
    add_process(proc, 1, b"init\0")
    add_process(proc, 42, b"x\0")
    assert Owners(Proc(str(proc)), find_name).find([42], 100.0)[42].user == "alice"


def test_process_that_hidepid_hides_is_not_called_dead_beside_one_that_is_seen(proc: Path) -> None:
    enter(proc, "pid:[4026531836]")
    add_process(proc, 42, b"x\0")
    owners = Owners(Proc(str(proc)), find_name, are_hosts_pids=True).find([42, 43], 100.0)
    assert owners[42].user == "alice"
    assert owners[43].evidence is None
    assert owners[43].reasons == dict.fromkeys(("user", "command", "started_at"), HIDDEN)


def test_dead_process_is_dead_where_everything_is_seen(proc: Path) -> None:
    enter(proc, "pid:[4026531836]")
    add_process(proc, 1, b"init\0")
    add_process(proc, 42, b"x\0")
    owners = Owners(Proc(str(proc)), find_name, are_hosts_pids=True).find([42, 43], 100.0)
    assert (owners[43].evidence, owners[43].reasons["user"]) == (DEAD, GONE)
