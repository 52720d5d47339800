"""Simulated processes are told of in the words that real ones are."""

from pathlib import Path

import pytest

from gpudeck.collectors.containers import ContainerNames
from gpudeck.collectors.owners import Attributed, Attribution
from gpudeck.collectors.proc import Proc
from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob

NOON = 1_760_356_800.0
DAY = 86_400.0


@pytest.fixture(scope="module")
def runs(fleet: SimulatedFleet) -> list[SimulatedJob]:
    return [run for host in range(24) for run in fleet.runs(host, NOON, NOON + 2 * DAY)]


def attribute(proc: Path, run: SimulatedJob, uid: int, cgroup: str, login_uid: int) -> Attributed:
    """What is concluded from such a process in /proc."""
    pid = run.pids[0]
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "loginuid").write_text(str(login_uid))
    names = {0: "root", run.uid: run.user}
    return Attribution(Proc(str(proc)), ContainerNames(proc).find, names.__getitem__).attribute(pid, uid)


def told_of(run: SimulatedJob) -> Attributed:
    return Attributed(run.user, run.describe_owner(run.pids[0]), run.container, run.job)


def test_a_process_of_its_owner(tmp_path: Path, runs: list[SimulatedJob]) -> None:
    run = next(run for run in runs if run.job is None and run.container is None)
    assert told_of(run) == attribute(tmp_path, run, run.uid, "/user.slice", run.uid)


def test_a_process_of_a_slurm_job(tmp_path: Path, runs: list[SimulatedJob]) -> None:
    run = next(run for run in runs if run.job)
    cgroup = f"/slurm/uid_{run.uid}/job_{run.job}/step_0"
    assert told_of(run) == attribute(tmp_path, run, run.uid, cgroup, run.uid)


def test_a_process_in_a_container(tmp_path: Path, runs: list[SimulatedJob]) -> None:
    run = next(run for run in runs if run.container)
    assert told_of(run) == attribute(tmp_path, run, 0, f"/lxc.payload.{run.container}/init.scope", run.uid)


def test_each_process_of_a_job_is_told_of_by_its_own_pid(fleet: SimulatedFleet) -> None:
    reports = [fleet.report(host, NOON) for host in range(24)]
    gpus = [gpu for report in reports if report for gpu in report.gpus or ()]
    processes = [process for gpu in gpus for process in gpu.processes or ()]
    named = [process for process in processes if process.evidence and "/proc/" in process.evidence]
    assert len(named) > 20
    assert all(process.evidence and process.evidence.endswith(f" of /proc/{process.pid}") for process in named)
