"""CPU and memory of jobs from their cgroups: real ones of this kernel where root may make them, and trees of files."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.reports import make_gpu, make_process
from gpudeck.collectors.cgroups import PAUSE_SECONDS, CgroupWatch
from gpudeck.model.report import JobCgroup, Report

POD = "3f1c2d4e-5a6b-47c8-9d0e-1f2a3b4c5d6e"
V1 = Path("/sys/fs/cgroup/memory")
MIB = 2**20
NONE = 2**63 - 4096
"""As v1 writes it."""


def report_of(*jobs: tuple[str, int]) -> Report:
    return Report(gpus=[make_gpu(0, processes=[make_process(pid, job=job) for job, pid in jobs])])


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def read(root: Path, job: str = "8812") -> JobCgroup:
    (found,) = CgroupWatch(root).add_to(report_of((job, 42)), 1000.0).job_cgroups
    return found


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ("system.slice/slurmstepd.scope/job_8812", "/system.slice/slurmstepd.scope/job_8812/step_0/user/task_0"),
        ("system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500", "/system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500/step_0"),
        (
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice",
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
            f"cri-containerd-{'9c' * 32}.scope",
        ),
        # As the agent sees it from its own container: the way from the root is not whole.
        (
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice",
            f"/../../kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{'9c' * 32}.scope",
        ),
    ],
)
@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "host/sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_a_job_of_cgroup_v2(tmp_path: Path, mount: str, group: str, path: str) -> None:
    files = {
        "proc/42/cgroup": f"0::{path}",
        f"{mount}/{group}/cpu.stat": "usage_usec 12500000\nuser_usec 12000000\nsystem_usec 500000",
        f"{mount}/{group}/memory.current": str(300 * MIB),
        f"{mount}/{group}/memory.stat": f"anon 1\ninactive_file {100 * MIB}\nactive_file 7",
        f"{mount}/{group}/memory.max": str(512 * MIB),
        f"{mount}/{group}/cpu.max": "250000 100000",
        f"{mount}/{group}/cpuset.cpus.effective": "0-3,8",
    }
    write(tmp_path, files)
    expected = JobCgroup("8812", 1000.0, 12.5, 200 * MIB, 2.5, 512 * MIB)
    assert read(tmp_path) == expected
    write(tmp_path, {f"{mount}/{group}/{name}": "max 100000" for name in ("cpu.max",)})
    write(tmp_path, {f"{mount}/{group}/memory.max": "max"})
    without = read(tmp_path)
    assert (without.cpu_limit_cores, without.memory_limit_bytes, without.reasons) == (5.0, None, {})


def test_a_pod_of_cgroup_v1(tmp_path: Path) -> None:
    group = f"kubepods/burstable/pod{POD}"
    write(
        tmp_path,
        {
            "proc/42/cgroup": f"11:memory:/{group}/{'9c' * 32}\n2:cpu,cpuacct:/{group}/{'9c' * 32}\n0::/",
            f"sys/fs/cgroup/memory/{group}/memory.usage_in_bytes": str(300 * MIB),
            f"sys/fs/cgroup/memory/{group}/memory.stat": f"total_inactive_file {MIB}\nhierarchical_memory_limit {NONE}",
            f"sys/fs/cgroup/cpuacct/{group}/cpuacct.usage": "2500000000",
            f"sys/fs/cgroup/cpu/{group}/cpu.cfs_quota_us": "-1",
            f"sys/fs/cgroup/cpu/{group}/cpu.cfs_period_us": "100000",
        },
    )
    assert read(tmp_path, "ml/train-0") == JobCgroup("ml/train-0", 1000.0, 2.5, 299 * MIB)


def test_what_cannot_be_read_has_its_reason_and_hides_nothing_else(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_8812"
    write(
        tmp_path,
        {
            "proc/42/cgroup": "0::/system.slice/slurmstepd.scope/job_8812/step_0",
            f"{group}/cpu.stat": "usage_usec nonsense",
            f"{group}/memory.current": str(MIB),
            f"{group}/memory.stat": "inactive_file 0",
        },
    )
    found = read(tmp_path)
    assert (found.cpu_seconds, found.memory_used_bytes, found.memory_limit_bytes) == (None, MIB, None)
    assert re.search(r"job_8812: .*usage_usec", found.reasons["cpu_seconds"])
    (tmp_path / "proc/42/cgroup").write_text("0::/user.slice/user-1000.slice\n")
    found = read(tmp_path)
    assert found.cpu_seconds is found.memory_used_bytes is None
    assert found.reasons["memory_used_bytes"] == "its process 42 is in no group of a job or pod that has memory"
    assert CgroupWatch(tmp_path).add_to(report_of(("1", 41)), 1.0).job_cgroups == []


def test_they_are_read_every_half_minute_and_when_another_job_appears(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_8812"
    write(
        tmp_path,
        {
            "proc/42/cgroup": "0::/system.slice/slurmstepd.scope/job_8812/step_0",
            f"{group}/cpu.stat": "usage_usec 1000000",
        },
    )
    watch, one, two = CgroupWatch(tmp_path), report_of(("8812", 42)), report_of(("8812", 42), ("9", 42))
    first = watch.add_to(one, 1000.0).job_cgroups
    assert watch.add_to(one, 1000.0 + PAUSE_SECONDS - 1).job_cgroups is first
    later = watch.add_to(one, 1000.0 + PAUSE_SECONDS).job_cgroups
    assert [cgroup.read_at for cgroup in later] == [1000.0 + PAUSE_SECONDS]
    assert [cgroup.job for cgroup in watch.add_to(two, 1031.0).job_cgroups] == ["8812", "9"]
    assert watch.add_to(report_of(), 1100.0).job_cgroups == []


@pytest.fixture
def real_groups() -> Iterator[str]:
    """A group of a job in every hierarchy of v1, with a limit of 64 MiB."""
    if os.getuid() or not os.access(V1, os.W_OK) or not (V1 / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and cgroup v1")
    name = f"slurm_test{os.getpid()}/uid_0/job_8812"
    folders = [V1.parent / controller / name for controller in ("memory", "cpuacct", "cpuset")]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / "memory.limit_in_bytes").write_text(str(64 * MIB))
    yield name
    for folder in folders:
        for made in (folder, *folder.parents[:2]):
            made.rmdir()


def test_a_real_group_of_cgroup_v1(real_groups: str) -> None:
    program = f"""
import pathlib, sys
for name in ("memory", "cpuacct"):
    pathlib.Path("{V1.parent}", name, "{real_groups}", "cgroup.procs").write_text("0")
held = bytearray(b"x" * {20 * MIB})
total = sum(range(3_000_000))
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            (found,) = CgroupWatch().add_to(report_of(("8812", process.pid)), 1000.0).job_cgroups
        finally:
            process.communicate()
    assert found.cpu_seconds is not None
    assert 0.01 < found.cpu_seconds < 60
    assert found.memory_used_bytes is not None
    assert 20 * MIB <= found.memory_used_bytes <= 64 * MIB
    assert (found.memory_limit_bytes, found.reasons) == (64 * MIB, {})
