"""Left out: Slurm's own time, SSH, and a hub with other work.

Slurm's allocations: reading what `scontrol` and `squeue` print for 1,000 nodes of eight GPUs with 5,000 jobs, and
joining it with the fleet. The commands are scripts that print a file. The reference is printing the same bytes.
"""

import asyncio
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.reports import make_rounds
from bench.tables import print_table
from gpudeck.fleet.hub import Hub
from gpudeck.schedulers.service import FleetHosts, find_marks
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

NODES, JOBS = 1_000, 5_000


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command, text in {"nodes": make_nodes(), "queue": make_jobs(_QUEUED), "jobs": make_jobs(_JOB)}.items():
            (folder / command).write_text(text)
        (folder / "scontrol").write_text(
            f'#!/bin/sh\ncase "$*" in *node*) cat {folder}/nodes;; *job*) cat {folder}/jobs;; esac\n'
        )
        (folder / "squeue").write_text(f"#!/bin/sh\ncat {folder}/queue\n")
        for command in ("scontrol", "squeue"):
            (folder / command).chmod(0o755)
        measure(folder)


def measure(folder: Path) -> None:
    printing = cpu_of(lambda: subprocess.run(f"cat {folder}/*", shell=True, stdout=subprocess.PIPE, check=True))
    slurm = Slurm(SlurmSettings(command=["env", f"PATH={folder}:/usr/bin:/bin"], timeout=60.0))

    async def read() -> tuple[float, float, float]:
        """The longest turn of the event loop is the second, the third the most CPU of one: on a machine with other
        work a turn also waits."""
        longest, most, is_over = 0.0, 0.0, False

        async def watch() -> None:
            nonlocal longest, most
            while not is_over:
                before, used = time.perf_counter(), time.thread_time()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before - 0.001)
                most = max(most, time.thread_time() - used)

        watching = asyncio.create_task(watch())
        before = time.process_time()
        await slurm.read()
        cpu = time.process_time() - before
        is_over = True
        await watching
        return cpu, longest, most

    first, turn, work = asyncio.run(read())
    again, _, _ = asyncio.run(read())
    state = asyncio.run(slurm.read())
    hub = make_hub()
    hosts = FleetHosts(hub.fleet.hosts.values())
    before = time.process_time()
    marks = find_marks(state, [], None, hosts, time.time())
    joined = time.process_time() - before
    before = time.process_time()
    hub.fleet.allocate(marks, time.time())
    shown = time.process_time() - before
    print_table(
        f"Slurm: {NODES:,} nodes, {NODES * 8:,} GPUs, {JOBS:,} jobs",
        f"printing the same bytes, {printing * 1e3:.0f} ms of CPU",
        [
            ("a reading with new jobs, CPU", f"{first * 1e3:.0f} ms", "≤ 1000 ms", f"{first / printing:.1f} ×"),
            ("a reading without new jobs, CPU", f"{again * 1e3:.0f} ms", "", f"{again / printing:.1f} ×"),
            ("longest turn of the event loop", f"{turn * 1e3:.0f} ms", "", f"{turn / printing:.1f} ×"),
            ("most CPU of a turn", f"{work * 1e3:.0f} ms", "", f"{work / printing:.1f} ×"),
            ("joining with the fleet", f"{joined * 1e3:.0f} ms", "", f"{joined / printing:.1f} ×"),
            ("showing all of it for the first time", f"{shown * 1e3:.0f} ms", "", f"{shown / printing:.1f} ×"),
        ],
    )


_NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc=64 CPUEfctv=128 CPUTot=128 CPULoad=41.20
AvailableFeatures=h100 ActiveFeatures=h100 Gres=gpu:h100:8(S:0-1) GresDrain=N/A GresUsed=gpu:h100:5(IDX:0-4)
NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux 6.8.0-71-generic #71-Ubuntu SMP RealMemory=2000000
AllocMem=900000 FreeMem=1100000 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A
MCS_label=N/A Partitions=gpu  BootTime=1794923178 SlurmdStartTime=1794946698 LastBusyTime=1794946698
CfgTRES=cpu=128,mem=2000000M,billing=128,gres/gpu=8""".replace("\n", " ")
_QUEUED = "{job}|{job}|user{user}|lab1|gpu|normal|RUNNING|1794946712|1795000000|{name}"
_JOB = """JobId={job} JobName=train-{job} UserId=user{user}(1000) GroupId=users(100) MCS_label=N/A Priority=1 Nice=0
Account=lab1 QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0
ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:43 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1794946711
EligibleTime=1794946711 AccrueTime=1794946711 StartTime=1794946712 EndTime=1795000000 Deadline=N/A SuspendTime=None
SecsPreSuspend=0 LastSchedEval=1794946712 Scheduler=Main Partition=gpu AllocNode:Sid=login1:20730 ReqNodeList=(null)
ExcNodeList=(null) NodeList={name} BatchHost={name} NumNodes=1 NumCPUs=8 NumTasks=1 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
TRES=cpu=8,mem=64G,node=1,billing=8,gres/gpu=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=gpu:h100:1
  Nodes={name} CPU_IDs=0-7 Mem=65536 GRES=gpu:h100:1(IDX:{index}) MinCPUsNode=8 MinMemoryNode=64G MinTmpDiskNode=0
Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Command=/home/user{user}/train.sh WorkDir=/home/user{user}
StdErr=/home/user{user}/{job}.out StdIn=/dev/null StdOut=/home/user{user}/{job}.out TresPerNode=gres/gpu:1 """.replace(
    "\n", " "
)


def name_of(number: int) -> str:
    return f"gpu{number % NODES:05}"


def make_nodes() -> str:
    return "".join(_NODE.format(name=name_of(number)) + "\n" for number in range(NODES))


def make_jobs(form: str) -> str:
    jobs = range(1, JOBS + 1)
    return "".join(
        form.format(job=job, user=job % 200, name=name_of(job), index=job // NODES % 5) + "\n" for job in jobs
    )


def make_hub() -> Hub:
    hub = Hub()
    for body in make_rounds(NODES, 1)[0]:
        hub.ingest.take(body, "application/msgpack", "zstd")
    hub.fleet.settle()
    return hub


def cpu_of(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return max(0.001, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
