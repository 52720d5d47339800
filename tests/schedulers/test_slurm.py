"""Slurm as its controller sees it: a real cluster, and what other versions print."""

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.slurm import BACKUP, SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.collectors.owners import Owners
from gpudeck.model.errors import PluginError, Temporary, Wrong
from gpudeck.schedulers.base import SchedulerNode, SchedulerState
from gpudeck.schedulers.slurm import (
    JobDetails,
    Slurm,
    SlurmSettings,
    expand_nodes,
    join,
    read_details,
    read_gres,
    read_jobs,
)

CAPTURES = Path(__file__).parents[1] / "captures" / "slurm"
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(scope="module")
def started() -> Iterator[SlurmCluster]:
    # Other users read it too: they cannot enter pytest's own folders.
    with (
        tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder,
        slurm_cluster(Path(folder), extra="PrivateData=jobs") as cluster,
    ):
        yield cluster


@pytest.fixture
def shards() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder, slurm_cluster(Path(folder), shards=8) as found:
        yield found


@pytest.fixture
def cluster(started: SlurmCluster) -> Iterator[SlurmCluster]:
    yield started
    started.clear()


def make_reader(cluster: SlurmCluster, *before: str, timeout: float = 30.0) -> Slurm:
    environment = (f"{name}={cluster.environment[name]}" for name in ("SLURM_CONF", "PATH"))
    return Slurm(SlurmSettings(command=[*before, "env", *environment], timeout=timeout))


def read(cluster: SlurmCluster, *before: str) -> SchedulerState:
    return asyncio.run(make_reader(cluster, *before).read())


def jobs_of(node: SchedulerNode) -> dict[int, str]:
    return {index: allocation.job for index, allocation in sorted(node.gpus.items())}


def test_allocated_gpus_are_those_of_jobs_that_hold_them(cluster: SlurmCluster) -> None:
    first = cluster.submit("--gres=gpu:2", "--job-name=train me")
    cluster.wait_for(first, "RUNNING")
    second = cluster.submit("--gres=gpu:h100:1", "--nodelist=n1", "--time=7")
    cluster.wait_for(second, "RUNNING")
    too_large = cluster.submit("--gres=gpu:4", "--nodelist=n1")
    cluster.wait_for(too_large, "PENDING")
    n1 = read(cluster).nodes["n1"]
    assert jobs_of(n1) == {0: first, 1: first, 2: second}
    assert (n1.count, n1.closed, n1.uncertain) == (4, None, None)
    found = n1.gpus[0]
    assert (found.name, found.user, found.partition, found.is_suspended) == ("train me", "root", "gpu", False)
    short = n1.gpus[2]
    assert short.since is not None
    assert short.until == short.since + 7 * 60
    assert abs(short.since - time.time()) < 120


def test_every_transition_is_seen_at_the_next_reading(cluster: SlurmCluster) -> None:
    reader = make_reader(cluster)

    def look() -> dict[int, str]:
        return jobs_of(asyncio.run(reader.read()).nodes["n1"])

    assert look() == {}
    job = cluster.submit("--gres=gpu:1", "--nodelist=n1")
    cluster.wait_for(job, "RUNNING")
    assert look() == {0: job}
    cluster.run("scontrol", "suspend", job)
    suspended = asyncio.run(reader.read()).nodes["n1"].gpus[0]
    assert (suspended.job, suspended.is_suspended) == (job, True)
    cluster.run("scontrol", "resume", job)
    assert look() == {0: job}
    cluster.run("scontrol", "requeue", job)
    cluster.run("scontrol", "hold", job)
    cluster.wait_for(job, "PENDING")
    assert look() == {}
    other = cluster.submit("--gres=gpu:1", "--nodelist=n1")
    cluster.wait_for(other, "RUNNING")
    assert look() == {0: other}
    cluster.run("scancel", other)
    wait_until(lambda: look() == {}, "the end of the job", 60)


def test_arrays_several_nodes_tasks_and_heterogeneous_jobs(cluster: SlurmCluster) -> None:
    both = cluster.submit("-N2", "--ntasks-per-node=1", "--gpus-per-task=1")
    cluster.wait_for(both, "RUNNING")
    array = cluster.submit("--array=0-3%2", "--gres=gpu:1", "--nodelist=n2")
    mixed = cluster.submit("--gres=gpu:1", ":", "--gres=gpu:1")
    wait_until(lambda: cluster.run("squeue", "-h", "-t", "R").count("\n") == 5, "five running jobs", 90)
    nodes = read(cluster).nodes
    found = sorted(job for node in nodes.values() for job in jobs_of(node).values())
    assert found == sorted([both, both, f"{mixed}+0", f"{mixed}+1", f"{array}_0", f"{array}_1"])
    assert {both, f"{array}_0", f"{array}_1"} <= set(jobs_of(nodes["n2"]).values())
    assert both in jobs_of(nodes["n1"]).values()


def test_processes_of_jobs_have_the_number_of_their_allocation(cluster: SlurmCluster) -> None:
    array = cluster.submit("--array=3", "--gres=gpu:1", "--nodelist=n1", seconds=4711)
    wait_until(lambda: cluster.run("squeue", "-h", "-t", "R"), "a running task", 60)
    # Another number in the environment changes nothing.
    liar = cluster.run(
        "sbatch", "--parsable", "--gres=gpu:1", "--nodelist=n1", "--output=/dev/null",
        "--wrap=SLURM_JOB_ID=99999 exec sleep 4712",
    ).strip()  # fmt: skip
    pids = {seconds: wait_until(lambda: find_sleeping(seconds), "its process", 60) for seconds in (4711, 4712)}  # noqa: B023
    owners = Owners().find(pids.values(), time.time())
    gpus = read(cluster).nodes["n1"].gpus
    assert (gpus[0].job, gpus[0].number) == (f"{array}_3", owners[pids[4711]].job)
    assert (gpus[1].job, gpus[1].number, owners[pids[4712]].job) == (liar, liar, liar)


def find_sleeping(seconds: int) -> int | None:
    command = f"sleep\0{seconds}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes() == command:
                return int(folder.name)
    return None


def test_shards_belong_to_their_job_unless_several_have_some(shards: SlurmCluster) -> None:
    first = shards.submit("--gres=shard:3", "--nodelist=n1")
    shards.wait_for(first, "RUNNING")
    assert jobs_of(read(shards).nodes["n1"]) == {0: first}
    second = shards.submit("--gres=shard:2", "--nodelist=n1")
    shards.wait_for(second, "RUNNING")
    whole = shards.submit("--gres=gpu:1", "--nodelist=n1")
    shards.wait_for(whole, "RUNNING")
    found = read(shards).nodes["n1"].gpus
    assert {index: one.job for index, one in found.items()} == {0: "", 1: whole}
    assert found[0].unknown == f"shards of it are allocated to jobs {first}, {second}"


def test_a_drained_node_and_one_that_is_down_are_closed_with_their_reason(cluster: SlurmCluster) -> None:
    job = cluster.submit("--gres=gpu:1", "--nodelist=n2")
    cluster.wait_for(job, "RUNNING")
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=gpu 3, xid 79")
    nodes = read(cluster).nodes
    assert nodes["n2"].closed == "drained in Slurm: gpu 3, xid 79"
    assert jobs_of(nodes["n2"]) == {0: job}
    assert nodes["n1"].closed is None
    cluster.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=power")
    assert read(cluster).nodes["n1"].closed == "down in Slurm: power"


def test_reservations_of_slurm(cluster: SlurmCluster) -> None:
    later = ("StartTime=now+3600", "Duration=30", "Users=root")
    cluster.run("scontrol", "create", "reservation", *later, "Nodes=n2", "Flags=MAINT", "ReservationName=upkeep")
    cluster.run("scontrol", "create", "reservation", *later, "Nodes=n1", "CoreCnt=2", "ReservationName=two-cores")
    now = ("StartTime=now", "Duration=30", "Users=root,daemon", "Nodes=n1", "ReservationName=paper")
    cluster.run("scontrol", "create", "reservation", *now)
    state = read(cluster)
    upkeep, paper = sorted(state.reservations, key=lambda one: one.name, reverse=True)
    assert (upkeep.name, upkeep.nodes, upkeep.users, upkeep.is_maintenance) == ("upkeep", ("n2",), ("root",), True)
    assert upkeep.end - upkeep.start == 1800
    assert 3000 < upkeep.start - time.time() < 3700
    assert (paper.name, paper.users, paper.is_maintenance) == ("paper", ("root", "daemon"), False)
    assert (upkeep.note, paper.note) == ("in maintenance in Slurm: reservation upkeep", "Slurm reservation paper")
    # Its reservation says for whom the node is reserved, whatever its state says.
    assert state.nodes["n1"].closed is None


def test_a_job_whose_name_pretends_to_be_another_takes_no_gpu_from_it(cluster: SlurmCluster) -> None:
    victim = cluster.submit("--gres=gpu:1", "--nodelist=n1", "--job-name=honest")
    cluster.wait_for(victim, "RUNNING")
    made_up = (
        f"JobId={victim} JobName=x UserId=bob(1001) GroupId=bob(1001) MCS_label=N/A"
        "   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:3(IDX:1-3)"
    )
    name = f"a\n{made_up}\nJobId=9999 JobName=b\x1b[2J"
    more = "a Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:2(IDX:2-3)"
    liar = cluster.submit("--gres=gpu:1", "--nodelist=n1", f"--job-name={name}", f"--comment={more}")
    cluster.wait_for(liar, "RUNNING")
    gpus = read(cluster).nodes["n1"].gpus
    assert gpus.keys() == {0, 1}
    assert {allocation.user for allocation in gpus.values()} <= {"root", None}
    assert {allocation.job for allocation in gpus.values()} <= {victim, liar, ""}


def test_jobs_that_may_not_be_seen_are_allocated_all_the_same(cluster: SlurmCluster) -> None:
    job = cluster.submit("--gres=gpu:2", "--nodelist=n1")
    cluster.wait_for(job, "RUNNING")
    hidden = read(cluster, *AS_NOBODY).nodes["n1"].gpus
    assert hidden.keys() == {0, 1}
    assert all(one.job == "" and one.unknown is not None and "may not see it" in one.unknown for one in hidden.values())


def test_a_controller_that_is_away_is_an_error_and_back_it_is_read_again(cluster: SlurmCluster) -> None:
    job = cluster.submit("--gres=gpu:1", "--nodelist=n1")
    cluster.wait_for(job, "RUNNING")
    cluster.stop("slurmctld")
    try:
        with pytest.raises(Temporary, match=r"did not answer within 4 s|failed: .*nable to contact"):
            asyncio.run(make_reader(cluster, timeout=4.0).read())
    finally:
        cluster.start_controller()
    assert jobs_of(read(cluster).nodes["n1"]) == {0: job}


@pytest.mark.slow
def test_while_another_controller_takes_over_no_allocated_gpu_is_called_free() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder,
        slurm_cluster(Path(folder), extra=BACKUP) as cluster,
    ):
        cluster.start_backup()
        job = cluster.submit("--gres=gpu:2", "--nodelist=n1")
        cluster.wait_for(job, "RUNNING")
        cluster.run("scontrol", "update", f"JobId={job}", "Comment=it-runs")
        saved = Path(folder) / "state" / "job_state"
        wait_until(lambda: saved.exists() and b"it-runs" in saved.read_bytes(), "the saved job", 60)
        reader = make_reader(cluster, timeout=5.0)
        cluster.kill("slurmctld")

        def is_read_again() -> bool:
            try:
                assert jobs_of(asyncio.run(reader.read()).nodes["n1"]) == {0: job, 1: job}
            except Temporary:
                return False
            return True

        wait_until(is_read_again, "the second controller", 120)
        # It stays so once the nodes have registered there.
        wait_until(lambda: "backup is UP" in cluster.run("scontrol", "ping"), "the second controller", 60)
        assert is_read_again()
        cluster.run("scancel", job)
        wait_until(lambda: not jobs_of(asyncio.run(reader.read()).nodes["n1"]), "the end of the job", 60)


def make_commands(folder: Path, *, timeout: float, before: tuple[str, ...] = (), **programs: str) -> Slurm:
    """Scripts in place of Slurm's commands; one that is not named prints a node."""
    for name in ("scontrol", "squeue"):
        (folder / name).write_text(f"#!/bin/sh\n{programs.get(name, 'echo NodeName=n1')}\n")
        (folder / name).chmod(0o755)
    return Slurm(SlurmSettings(command=[*before, "env", f"PATH={folder}:/usr/bin:/bin"], timeout=timeout))


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        ({"scontrol": "exec sleep 60"}, "scontrol show node did not answer within 1 s"),
        ({"squeue": "exec sleep 60"}, "squeue did not answer within 1 s"),
        ({"scontrol": "case $* in *reserv*) exec sleep 60;; esac"}, "scontrol show reservation did not answer within"),
    ],
)
def test_the_command_that_hangs_is_named(tmp_path: Path, programs: dict[str, str], told: str) -> None:
    with pytest.raises(Temporary, match=re.escape(told)):
        asyncio.run(make_commands(tmp_path, timeout=1.0, **programs).read())


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("echo 'NodeName=n1 '; kill -9 $(ps -o ppid= -p $PPID)", "the output ends too early"),
        (
            "echo 'slurm_load_node error: Access' >&2; exit 1",
            "scontrol show node failed: slurm_load_node error: Access",
        ),
        ("head -c 20000000 /dev/zero | tr '\\0' x", "squeue printed a line that is not understood"),
    ],
)
def test_commands_that_fail_or_print_rubbish_are_errors(tmp_path: Path, program: str, told: str) -> None:
    with pytest.raises(PluginError, match=re.escape(told)):
        asyncio.run(make_commands(tmp_path, timeout=60.0, scontrol=program, squeue=program).read())


def test_a_command_that_hangs_is_ended_where_it_runs(tmp_path: Path) -> None:
    # As over SSH: what is killed here does not reach it.
    reader = make_commands(
        tmp_path, timeout=2.0, before=("setsid", "--wait"), squeue=f"echo $$ >{tmp_path}/pid; exec sleep 600"
    )
    with pytest.raises(Temporary, match="squeue did not answer"):
        asyncio.run(reader.read())
    process = Path("/proc") / (tmp_path / "pid").read_text().strip()
    wait_until(lambda: not process.exists(), "the end of the command")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "echo 'gpudeck@login1: Permission denied (publickey).' >&2; exit 255",
            "ssh failed with exit code 255: gpudeck@l",
        ),
        ("echo 'Welcome. This account has no shell.'", "ssh printed nothing that is understood: Welcome. This account"),
        ("exec sleep 60", "ssh did not answer within 1 s"),
    ],
)
def test_a_login_that_fails_is_told_with_its_own_words(tmp_path: Path, program: str, told: str) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "ssh").chmod(0o755)
    with pytest.raises(Temporary, match=re.escape(told)):
        asyncio.run(Slurm(SlurmSettings(command=[str(tmp_path / "ssh"), "login1"], timeout=1.0)).read())


def test_what_a_login_prints_before_is_ignored(tmp_path: Path) -> None:
    for name, text in {
        "scontrol": "echo 'NodeName=n1 Gres=gpu:4 GresUsed=gpu:0 NodeAddr=n1 State=IDLE'",
        "squeue": "",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "login").write_text(f'#!/bin/sh\nprintf "NodeName=evil"; PATH={tmp_path}:$PATH exec "$@"\n')
    (tmp_path / "login").chmod(0o755)
    state = asyncio.run(Slurm(SlurmSettings(command=[str(tmp_path / "login")])).read())
    assert state.nodes.keys() == {"n1"}


def test_a_program_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(Temporary, match="no-such-program cannot be started"):
        asyncio.run(Slurm(SlurmSettings(command=["/no-such-program"])).read())


def one_line_each(capture: str) -> str:
    """What `-o` prints is the same text without line breaks inside of a record."""
    text = (CAPTURES / capture).read_text().partition("\n")[2]
    return re.sub(r"\n {3,}", " ", text)


@pytest.mark.parametrize("capture", ["22.05/scontrol-job-d-all.txt", "22.05/scontrol-oneliner.txt"])
def test_jobs_of_22_05(capture: str) -> None:
    details = read_details(one_line_each(capture))
    assert details["1"] == JobDetails("train", {"n1": frozenset({0, 1})})
    assert details["3"] == JobDetails("two-node", {"n1": frozenset({3}), "n2": frozenset({0})})
    assert details["10"].name == "arr"
    assert details["4"] == JobDetails("toobig", {})


def test_jobs_and_nodes_of_24_11() -> None:
    details = read_details(one_line_each("24.11/scontrol-job-d.txt"))
    assert details["1"] == JobDetails("train", {"n1": frozenset({0, 1})})
    assert details["3"].gpus == {"n1": frozenset({3}), "n2": frozenset({0})}
    jobs = read_jobs("1|1|root|(null)|gpu|(null)|RUNNING|1794946712|Unknown|n1\n", "slurm")
    known = {(job.id, job.started): details[job.id] for job in jobs}
    nodes = join(one_line_each("24.11/scontrol-node-d.txt"), jobs, known, "", "slurm").nodes
    assert jobs_of(nodes["n1"]) == {0: "1", 1: "1", 2: "", 3: ""}
    assert nodes["n1"].gpus[0].until is None
    assert jobs_of(nodes["n2"]) == {0: "", 1: ""}


def test_jobs_nodes_and_reservations_of_26_05() -> None:
    details = read_details(one_line_each("26.05/scontrol-oneliner.txt"))
    assert details["1"] == JobDetails("train", {"x1": frozenset({0, 1})})
    assert [details[number].name for number in ("2", "3", "4", "5")] == ["wrap"] * 4
    queue = (CAPTURES / "26.05" / "squeue.txt").read_text().partition("\n")[2]
    jobs = read_jobs(queue, "slurm")
    known = {(job.id, job.started): details[job.id] for job in jobs}
    reservations = one_line_each("26.05/reservation.txt")
    state = join(one_line_each("26.05/node-draining.txt"), jobs, known, reservations, "slurm")
    assert jobs_of(state.nodes["x1"]) == {0: "1", 1: "1"}
    assert state.nodes["x1"].closed == "drained in Slurm: xid 79, gpu 3"
    assert [(one.name, one.nodes, one.users) for one in state.reservations] == [("paper", ("x1",), ("root",))]


@pytest.mark.parametrize(
    "text",
    [
        "JobId=7 JobName=x {gpus} UserId=a(1) ReqB:S:C:T=0:0:*:* {own} MinCPUsNode=1 WorkDir=/",
        "JobId=7 JobName=x UserId=a(1) ReqB:S:C:T=0:0:*:* {own} MinCPUsNode=1 Comment=x {gpus} WorkDir=/ {gpus}",
    ],
)
def test_what_users_choose_gives_their_jobs_no_gpus(text: str) -> None:
    gpus = " Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:3(IDX:1-3)"
    own = " Nodes=n1 CPU_IDs=1 Mem=0 GRES=gpu:h100:1(IDX:0)"
    assert read_details(text.format(gpus=gpus, own=own))["7"].gpus == {"n1": frozenset({0})}
    marked = f"ReqB:S:C:T=0:0:*:* {gpus} MinCPUsNode=1"
    assert read_details(text.format(gpus=marked, own=own))["7"].gpus is None


@pytest.mark.parametrize(
    ("capture", "closed"),
    [
        ("22.05/scontrol-node-draining.txt", "drained in Slurm: gpu 3 xid 79"),
        ("22.05/node-down.txt", "down in Slurm: lost"),
    ],
)
def test_closed_nodes_of_22_05(capture: str, closed: str) -> None:
    (node,) = join(one_line_each(capture), [], {}, "", "slurm").nodes.values()
    assert node.closed == closed
    assert node.names[0] == "n2"


@pytest.mark.parametrize(
    ("text", "number", "indexes", "shared"),
    [
        ("gpu:h100:4(IDX:0-3)", 4, {0, 1, 2, 3}, set()),
        ("gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:5)", 3, {0, 2, 5}, set()),
        ("gpu:(null):0(IDX:N/A)", 0, set(), set()),
        ("gpu:8(S:0-1)", 8, set(), set()),
        ("gpu:2", 2, set(), set()),
        ("gpu:1g.10gb:1(IDX:3),tmpdisk:0", 1, {3}, set()),
        ("gpu:h100:0(IDX:N/A),shard:h100:5(4/8,0/8,1/8,0/8)", 0, set(), {0, 2}),
        ("gpu:h100:2(IDX:1-2),shard:h100:1(IDX:0)", 2, {1, 2}, {0}),
        ("(null)", 0, set(), set()),
        ("", 0, set(), set()),
        ("craynetwork:4", 0, set(), set()),
    ],
)
def test_gres(text: str, number: int, indexes: set[int], shared: set[int]) -> None:
    assert read_gres(text) == (number, indexes, shared)


@pytest.mark.parametrize(
    ("state", "closed"),
    [
        ("IDLE", None),
        ("IDLE-", None),
        ("IDLE*", "not responding in Slurm"),
        ("MIXED+NOT_RESPONDING", "not responding in Slurm"),
        ("DOWN*+DRAIN", "drained in Slurm"),
    ],
)
def test_states_of_a_node(state: str, closed: str | None) -> None:
    line = f"NodeName=n1 Gres=gpu:4 GresUsed=gpu:0 NodeAddr=n1 State={state} Partitions=gpu"
    assert join(line, [], {}, "", "slurm").nodes["n1"].closed == closed


def test_a_node_with_a_reservation_that_may_not_be_seen_is_closed() -> None:
    line = "NodeName=n1 Gres=gpu:4 GresUsed=gpu:0 NodeAddr=n1 State=IDLE+RESERVED "
    node = join(line, [], {}, "No reservations in the system", "slurm").nodes["n1"]
    assert node.closed == "reserved in Slurm, for whom this account may not see"


def test_allocated_gpus_without_their_indexes_leave_the_node_uncertain() -> None:
    line = "NodeName=n1 Gres=gpu:4 GresUsed=gpu:2 NodeAddr=n1 NodeHostName=n1 State=MIXED "
    node = join(line, [], {}, "", "slurm").nodes["n1"]
    assert node.uncertain == "2 of its GPUs are allocated, and Slurm does not say which"
    assert node.gpus == {}


def test_lists_of_nodes() -> None:
    assert expand_nodes("gpu[01-02,7],login1,r[1-2]n[1-2]") == [
        *("gpu01", "gpu02", "gpu7", "login1"),
        *("r1n1", "r1n2", "r2n1", "r2n2"),
    ]
    with pytest.raises(Wrong, match="list of nodes"):
        expand_nodes("gpu[1-999999999]")


@pytest.mark.parametrize("line", ["not|enough", "x|1|u|a|p|q|RUNNING|1|2|n1", "Anfrage fehlgeschlagen"])
def test_a_line_of_another_form_is_an_error(line: str) -> None:
    with pytest.raises(Wrong, match="squeue printed a line"):
        read_jobs(line, "slurm")


@pytest.mark.parametrize("settings", [{"name": "a\x1b[2J"}, {"command": ["ssh", "login1\0"]}])
def test_names_and_commands_have_to_be_printable(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be printed"):
        SlurmSettings(**settings)
