"""Real agents, a real hub and a real Slurm cluster with cgroups: through every transition each GPU's state, user
and job in gpudeck are what squeue, scontrol and the processes say."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.net import WHY_NOT, AgentOn, can_make_machines, machine
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler, values_of_an_h200
from fakes.slurm import NODES, SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.model.job import read_summary
from gpudeck.schedulers.slurm import expand_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER),
    pytest.mark.skipif(not can_make_machines(), reason=WHY_NOT),
    pytest.mark.skipif(not Path("/sys/fs/cgroup/memory/cgroup.procs").exists(), reason="needs cgroup v1"),
]
GIB = 2**30
FREE = values_of_an_h200() | {"utilization": 0, "memory_utilization": 0, "memory_used": 0}


class Seen(NamedTuple):
    """What is said of a GPU: its state, the job that it was given to and its user, and the user and job of the process
    on it."""

    state: str
    job: str | None = None
    owner: str | None = None
    is_suspended: bool = False
    user: str | None = None
    of: str | None = None


class SlurmSite:
    """Two nodes of four GPUs each. `compute` puts the program of a job on GPUs."""

    def __init__(self, cluster: SlurmCluster, hub: HubProcess, drivers: dict[str, FakeDriver]) -> None:
        self.cluster = cluster
        self.hub = hub
        self.drivers = drivers
        self.pids: dict[tuple[str, int], int] = {}

    def compute(self, node: str, index: int, pid: int) -> None:
        gpu = self.drivers[node].gpus[index]
        gpu.compute, gpu.values = [(pid, 20 * GIB)], values_of_an_h200()
        self.pids[node, index] = pid
        self.drivers[node].apply()

    def rest(self) -> None:
        """Programs that have ended are on no GPU."""
        for (node, index), pid in list(self.pids.items()):
            if not Path(f"/proc/{pid}").exists():
                del self.pids[node, index]
                gpu = self.drivers[node].gpus[index]
                gpu.compute, gpu.values = [], dict(FREE)
                self.drivers[node].apply()

    def pid_of(self, job: str) -> int:
        """A process of the job that is not Slurm's own, by its number."""

        def find() -> int | None:
            for file in Path("/proc").glob("[0-9]*/cgroup"):
                try:
                    groups, name = file.read_text(), (file.parent / "comm").read_text().strip()
                except OSError:
                    continue
                if re.search(rf":cpuacct:/slurm_n\d/uid_\d+/job_{job}/", groups) and name in {"sleep", "python3"}:
                    return int(file.parent.name)
            return None

        return wait_until(find, f"a process of job {job}")

    def expected(self) -> dict[str, Seen]:
        """As squeue, scontrol and the processes have it."""
        self.rest()
        queue = self.cluster.run("squeue", "-h", "-a", "-t", "R,S", "-o", "%A %i %u %T").splitlines()
        jobs = {number: (shown, user, state == "SUSPENDED") for number, shown, user, state in map(str.split, queue)}
        given: dict[tuple[str, int], str] = {}
        for line in self.cluster.run("scontrol", "-d", "-o", "show", "job").splitlines():
            number = line.split()[0].partition("=")[2]
            parts = re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=gpu\S*?\(IDX:([\d,-]+)\)", line)
            for nodes, indexes in parts if number in jobs else ():
                given |= {(node, index): number for node in expand_nodes(nodes) for index in _expand(indexes)}
        empty = {
            line.split()[0].partition("=")[2]: "drained"
            if re.search(r"State=\S*(DRAIN|DOWN|NOT_RESP)", line)
            else "free"
            for line in self.cluster.run("scontrol", "-o", "show", "node").splitlines()
        }
        for line in self.cluster.run("scontrol", "-o", "show", "reservation").splitlines():
            for nodes in re.findall(r" Nodes=(n\S+) ", line):
                empty |= {node: "reserved" for node in expand_nodes(nodes) if empty[node] == "free"}
        found = {}
        for place in ((node, index) for node in NODES for index in range(4)):
            number = given.get(place, "")
            process = self.process_on(place, {number: job[0] for number, job in jobs.items()})
            state = "busy" if process else "allocated" if number else empty[place[0]]
            found["{}:{}".format(*place)] = Seen(state, *jobs.get(number, ()))._replace(**process)
        return found

    def process_on(self, place: tuple[str, int], names: dict[str, str]) -> dict[str, Any]:
        """The user and the job of the process on a GPU, as the kernel says."""
        if place not in self.pids:
            return {}
        folder = Path(f"/proc/{self.pids[place]}")
        (number,) = set(re.findall(r"/job_(\d+)/", (folder / "cgroup").read_text()))
        return {"user": folder.owner(), "of": names.get(number, number)}

    def shown(self) -> dict[str, Seen]:
        """As gpudeck has it."""
        found = {}
        for host in json.loads(self.hub.get("/api/v1/fleet"))["hosts"]:
            for gpu in host["gpus"]:
                process = next(iter(gpu["processes"] or ()), {})
                job = gpu["allocation"] or {}
                found[f"{host['name']}:{gpu['index']}"] = Seen(
                    gpu["availability"],
                    job.get("job"),
                    job.get("user"),
                    job.get("is_suspended", False),
                    process.get("user"),
                    process.get("job"),
                )
        return found

    def agree(self, what: str) -> None:
        """Wait until both say the same."""
        try:
            wait_until(lambda: self.shown() == self.expected(), f"agreement about {what}", 90, every=0.2)
        except AssertionError as error:
            ours, theirs = self.shown(), self.expected()
            odd = {gpu: (ours.get(gpu), seen) for gpu, seen in theirs.items() if ours.get(gpu) != seen}
            raise AssertionError(f"{error}; gpudeck and Slurm: {odd}") from error

    def job(self, job: str) -> dict[str, Any]:
        first: dict[str, Any] = json.loads(self.hub.get(f"/api/v1/jobs/{job}"))["jobs"][0]
        return first


def _expand(indexes: str) -> Iterator[int]:
    for part in indexes.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpudeck-slurm-")))
        cluster = stack.enter_context(slurm_cluster(place, "SlurmdTimeout=20", has_cgroups=True))
        command = ["env", *(f"{name}={cluster.environment[name]}" for name in ("SLURM_CONF", "PATH"))]
        settings = {"slurm": [{"command": command, "interval": 1, "timeout": 5}]}
        config = folder / "gpudeck.yaml"
        config.write_text(json.dumps({"demo": "never", "local": "never", "schedulers": settings}))
        hub = stack.enter_context(running_hub(folder, "--config", str(config)))
        drivers = {}
        for node in NODES:
            host = stack.enter_context(machine(node, folder / node))
            gpus = [FakeGpu(f"GPU-{node}-{at}", pci=f"00000000:{at + 1}8:00.0", values=dict(FREE)) for at in range(4)]
            drivers[node] = FakeDriver(host.folder, gpus)
            options = ("--hub", hub.url, "--token-file", str(hub.token_file), "--interval", "1")
            agent = AgentOn(host, *options, driver=drivers[node])
            agent.start()
            stack.callback(agent.stop)
        yield SlurmSite(cluster, hub, drivers)


@pytest.fixture
def work(site: SlurmSite) -> Iterator[SlurmSite]:
    site.agree("an empty cluster")
    yield site
    site.cluster.clear()


def test_every_transition_of_a_job_is_as_slurm_and_the_processes_say(work: SlurmSite) -> None:
    cluster = work.cluster
    job = cluster.submit("--uid=daemon", "--gres=gpu:2", "--nodelist=n1")
    cluster.wait_for(job, "RUNNING")
    work.agree("a job that does not touch its GPUs")
    large = cluster.submit("--uid=games", "--gres=gpu:4", "--nodelist=n1")
    cluster.wait_for(large, "PENDING")
    work.agree("a job that waits")
    work.compute("n1", 0, work.pid_of(job))
    work.agree("a job that computes")
    assert list(work.shown().values())[:3] == [
        Seen("busy", job, "daemon", user="daemon", of=job),
        Seen("allocated", job, "daemon"),
        Seen("free"),
    ]
    cluster.run("scontrol", "suspend", job)
    cluster.wait_for(job, "SUSPENDED")
    work.agree("a suspended job")
    cluster.run("scontrol", "resume", job)
    work.agree("a job that runs again")
    cluster.run("scontrol", "requeuehold", job)
    cluster.wait_for(job, "PENDING")
    cluster.wait_for(large, "RUNNING")
    work.agree("a job on the GPUs of one that was requeued")
    work.compute("n1", 0, work.pid_of(large))
    work.agree("which computes")
    assert work.shown()["n1:0"] == Seen("busy", large, "games", user="games", of=large)
    cluster.run("scancel", job, large)
    wait_until(lambda: not cluster.run("squeue", "-h"), "the end of all jobs")
    work.agree("cancelled jobs")


def test_arrays_and_jobs_of_several_parts_are_as_slurm_and_the_processes_say(work: SlurmSite) -> None:
    cluster = work.cluster
    array = cluster.submit("--uid=daemon", "--array=0-2%2", "--gres=gpu:1", "--nodelist=n2")
    wait_until(lambda: cluster.run("squeue", "-h", "-t", "R").count("\n") == 2, "two running tasks")
    work.agree("two tasks of an array")
    numbers = cluster.run("squeue", "-h", "-t", "R", "-o", "%A %K").split()
    number = dict(zip(numbers[1::2], numbers[::2], strict=True))["1"]
    work.compute("n2", 1, work.pid_of(number))
    work.agree("a task that computes")
    assert work.shown()["n2:1"] == Seen("busy", f"{array}_1", "daemon", user="daemon", of=f"{array}_1")
    mixed = cluster.submit("--uid=games", "--gres=gpu:1", ":", "--gres=gpu:1")
    wait_until(lambda: cluster.run("squeue", "-h", "-t", "R").count("\n") == 4, "both parts of a job")
    work.agree("a heterogeneous job")
    assert {seen.job for seen in work.shown().values()} >= {f"{mixed}+0", f"{mixed}+1"}
    both = cluster.submit("-N2", "--ntasks-per-node=1", "--gpus-per-task=1")
    cluster.wait_for(both, "RUNNING")
    work.agree("a job on both nodes")
    cluster.run("scancel", f"{array}_1")
    wait_until(lambda: f"{array}_2" in cluster.run("squeue", "-h", "-t", "R", "-o", "%i"), "the last task")
    work.agree("the last task in the place of one that was cancelled")


def test_drained_reserved_and_lost_nodes_and_a_controller_that_starts_again(work: SlurmSite) -> None:
    cluster = work.cluster
    job = cluster.submit("--uid=daemon", "--gres=gpu:1", "--nodelist=n2")
    cluster.wait_for(job, "RUNNING")
    work.compute("n2", 0, work.pid_of(job))
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=xid 79")
    work.agree("a node that drains")
    cluster.stop("slurmctld")
    cluster.start_controller()
    work.agree("a controller that was restarted")
    # Before the node has registered there, the controller refuses.
    undrain = ("scontrol", "update", "NodeName=n2", "State=UNDRAIN")
    wait_until(lambda: not cluster.try_to_run(*undrain).returncode, "the node's registration", 60)
    work.agree("a node that takes jobs again")
    # What the controller has saved, another one knows.
    saved = cluster.folder / "state" / "node_state"
    wait_until(lambda: b"xid 79" not in saved.read_bytes(), "the saved state", 60)
    cluster.kill("slurmctld")
    wait_until(lambda: [seen.state for seen in work.shown().values()].count("unknown") == 7, "unknown GPUs", 120)
    assert work.shown()["n2:0"].user == "daemon"
    cluster.start_controller()
    work.agree("a controller that was killed and started")
    cluster.run("scancel", job)
    wait_until(lambda: not cluster.run("squeue", "-h"), "the end of the job")
    work.agree("the end of its job")
    reserved = ("ReservationName=paper", "StartTime=now", "Duration=30", "Users=root", "Nodes=n1")
    cluster.run("scontrol", "create", "reservation", *reserved)
    work.agree("a reserved node")
    inside = cluster.submit("--reservation=paper", "--gres=gpu:1", "--nodelist=n1")
    cluster.wait_for(inside, "RUNNING")
    work.agree("a job in a reservation")
    cluster.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=power")
    work.agree("a node that is down")
    cluster.kill("n2")
    wait_until(lambda: "DOWN" in cluster.run("sinfo", "-h", "-n", "n2", "-o", "%T").upper(), "a lost node", 120)
    work.agree("a node that does not respond")
    assert work.shown()["n2:0"] == Seen("drained")
    cluster.start_node("n2")


def test_cpu_and_memory_of_a_job_come_from_its_cgroup_and_stay(work: SlurmSite, tmp_path: Path) -> None:
    cluster = work.cluster
    program = "held = bytearray(b'x' * 200_000_000)\nwhile True: sum(range(50_000))"
    (cluster.folder / "jobs" / "train.py").write_text(program)
    script = f"--wrap=exec {shutil.which('python3')} {cluster.folder}/jobs/train.py"
    limits = ("--gres=gpu:1", "--nodelist=n1", "--mem=600M", "--output=/dev/null")
    job = cluster.run("sbatch", "--parsable", *limits, script).strip()
    work.compute("n1", 0, work.pid_of(job))
    node = wait_until(read_when(work, job, lambda node: node["cpu_peak_cores"]), "two readings of the cgroup", 120)
    assert (node["host"], node["memory_limit_bytes"], node["reason"]) == ("n1", 600 * 2**20, None)
    assert 200e6 <= node["memory_peak_bytes"] <= 600 * 2**20
    assert 0 < node["cpu_mean_cores"] <= 1.5
    assert node["cpu_limit_cores"] >= 1
    cluster.run("scancel", job)
    wait_until(lambda: work.job(job)["state"] == "ended", "the end of the job")
    (after,) = work.job(job)["nodes"]
    assert after["cpu_seconds"] >= node["cpu_seconds"]
    text = gpudeck(tmp_path, "job", job, "--hub", work.hub.url).stdout
    assert re.search(r"HOST +CORES +MAX", text), text
    summary = read_summary(gpudeck(tmp_path, "job", job, "--jobstats", "--hub", work.hub.url).stdout)
    assert summary is not None
    assert summary.nodes["n1"].total_memory == 600 * 2**20
    assert summary.nodes["n1"].total_time == pytest.approx(after["cpu_seconds"], abs=0.1)


def read_when(site: SlurmSite, job: str, is_there: Callable[[dict[str, Any]], object]) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        if f'"{job}"'.encode() not in site.hub.get("/api/v1/jobs"):
            return {}
        (node,) = site.job(job)["nodes"]
        return node if is_there(node) else {}

    return read
