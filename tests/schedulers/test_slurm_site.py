"""A hub beside a real Slurm cluster: what it shows is what Slurm and the processes say, and `wait` gives nobody a GPU
that Slurm has given away."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, environment, gpudeck, running_hub
from fakes.pushed import PushedHost, pushing
from fakes.slurm import SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.schedulers.service import RECENT_SECONDS


class SlurmSite:
    def __init__(self, hub: HubProcess, cluster: SlurmCluster, hosts: dict[str, PushedHost]) -> None:
        self.hub = hub
        self.cluster = cluster
        self.hosts = hosts

    def gpus(self, host: str) -> list[dict[str, Any]]:
        fleet = json.loads(self.hub.get("/api/v1/fleet"))
        return next((one["gpus"] for one in fleet["hosts"] if one["name"] == host), [])

    def restart(self) -> None:
        """Another hub in place of one that has ended."""
        folder = self.hub.data_dir
        self.hub = HubProcess(folder, ["--listen", "127.0.0.1:0", "--config", str(folder / "gpudeck.yaml")])
        for host in self.hosts.values():
            host.url = self.hub.url

    def see(self, host: str, *expected: str) -> None:
        """Wait until its GPUs are in these states."""

        def is_seen() -> bool:
            return [gpu["availability"] for gpu in self.gpus(host)] == list(expected)

        try:
            wait_until(is_seen, f"{host} with {expected}", 60)
        except AssertionError as error:
            found = [(gpu["availability"], gpu["availability_reason"]) for gpu in self.gpus(host)]
            raise AssertionError(f"{error}; it is {found}") from error


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlurmSite]:
    """Slurm is read every second, or as often as the parameter says."""
    interval = getattr(request, "param", 1)
    with tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder, slurm_cluster(Path(folder)) as cluster:
        command = ["env", *(f"{name}={cluster.environment[name]}" for name in ("SLURM_CONF", "PATH"))]
        settings = {
            "demo": "never",
            "local": "never",
            "schedulers": {"slurm": [{"command": command, "interval": interval, "timeout": 10}]},
        }
        (tmp_path / "gpudeck.yaml").write_text(json.dumps(settings))
        with (
            running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")) as hub,
            pushing(hub, "n1", 4, "machine-1") as n1,
            pushing(hub, "n2", 4, "machine-2") as n2,
        ):
            site = SlurmSite(hub, cluster, {"n1": n1, "n2": n2})
            yield site
            site.hub.stop()


def check_reservation(site: SlurmSite, tmp_path: Path) -> None:
    """Slurm's reservation is everywhere among the others, and can be changed nowhere."""
    (listed,) = json.loads(site.hub.get("/api/v1/reservations"))["reservations"]
    assert (listed["scheduler"], listed["name"], listed["user"]) == ("slurm", "paper", "root")
    assert (listed["is_read_only"], listed["state"], len(listed["gpus"])) == (True, "running", 4)
    assert b"Slurm reservation paper" in site.hub.get("/api/v1/reservations.ics")
    assert "slurm:paper" in gpudeck(tmp_path, "reservations", "--hub", site.hub.url).stdout
    assert "Slurm reservation paper" in gpudeck(tmp_path, "show", "n2", "--hub", site.hub.url).stdout
    released = gpudeck(tmp_path, "release", str(listed["id"]), "--hub", site.hub.url)
    assert released.returncode == 1
    assert "cannot be changed here" in released.stderr
    free = gpudeck(tmp_path, "free", "--hub", site.hub.url, "--json")
    assert {gpu["host"] for gpu in json.loads(free.stdout)["gpus"]} == {"n1"}


def test_a_job_that_never_touches_its_gpu_is_in_the_accounts_also_after_the_hub_was_killed(
    site: SlurmSite, tmp_path: Path
) -> None:
    def read(job: str) -> dict[str, Any]:
        return next(iter(json.loads(site.hub.get(f"/api/v1/jobs/{job}"))["jobs"]))

    site.see("n1", "free", "free", "free", "free")
    job = site.cluster.submit("--gres=gpu:1", "--nodelist=n1", "--job-name=idle", "--account=lab1")
    site.see("n1", "allocated", "free", "free", "free")
    wait_until(lambda: read(job)["allocated_hours"] * 3600 > 10, "ten seconds", 60)
    before = read(job)
    assert (before["name"], before["account"], before["used_hours"], before["gpu_count"]) == ("idle", "lab1", 0.0, 1)
    assert before["allocated_hours"] * 3600 == pytest.approx(before["wall_seconds"], abs=8)
    # What was read was written: nothing of it is lost, and nothing is counted twice.
    site.hub.stop(signal.SIGKILL)
    site.restart()
    site.see("n1", "allocated", "free", "free", "free")
    wait_until(lambda: read(job)["allocated_hours"] * 3600 > 20, "ten more seconds", 60)
    site.cluster.run("scancel", job)
    wait_until(lambda: read(job)["state"] == "ended", "the end of the job", 60)
    after = read(job)
    assert before["allocated_hours"] < after["allocated_hours"]
    assert after["allocated_hours"] * 3600 <= after["wall_seconds"] + 8
    assert after["used_hours"] == 0.0
    shown = gpudeck(tmp_path, "job", job, "--hub", site.hub.url)
    assert shown.stdout.startswith(f"Job {job} (idle) of root on slurm: ended"), shown.stderr
    listed = gpudeck(tmp_path, "jobs", "--state", "ended", "--account", "lab1", "--hub", site.hub.url, "--json")
    assert [one["job"] for one in json.loads(listed.stdout)["jobs"]] == [job]
    report = gpudeck(tmp_path, "report", "--by", "account", "--since", "1h", "--format", "json", "--hub", site.hub.url)
    (row,) = json.loads(report.stdout)["rows"]
    assert (row["account"], row["gpu_hours"]) == ("lab1", 0.0)
    assert row["allocated_hours"] == row["never_used_hours"] == pytest.approx(after["allocated_hours"], rel=0.01)


def test_states_follow_slurm_and_nothing_that_is_allocated_is_given_away(site: SlurmSite, tmp_path: Path) -> None:
    cluster = site.cluster
    site.see("n1", "free", "free", "free", "free")
    job = cluster.submit("--gres=gpu:2", "--nodelist=n1", "--job-name=train")
    site.see("n1", "allocated", "allocated", "free", "free")
    shown = site.gpus("n1")[0]["allocation"]
    assert (shown["job"], shown["user"], shown["name"], shown["partition"]) == (job, "root", "train", "gpu")
    # The job computes on one of its GPUs, and is suspended.
    site.hosts["n1"].begin("root", ["GPU-n1-0"])
    site.see("n1", "busy", "allocated", "free", "free")
    cluster.run("scontrol", "suspend", job)
    wait_until(lambda: site.gpus("n1")[1]["allocation"].get("is_suspended"), "a suspended job", 60)
    cluster.run("scontrol", "resume", job)
    reserved = ("ReservationName=paper", "StartTime=now", "Duration=30", "Users=root", "Nodes=n2")
    cluster.run("scontrol", "create", "reservation", *reserved)
    site.see("n2", "reserved", "reserved", "reserved", "reserved")
    check_reservation(site, tmp_path)
    cluster.run("scontrol", "delete", "ReservationName=paper")
    site.see("n2", "free", "free", "free", "free")
    # All that is left is given to other jobs: `wait` waits, `free` lists none, `reserve` refuses.
    others = [cluster.submit("--gres=gpu:2", "--nodelist=n1"), cluster.submit("--gres=gpu:4", "--nodelist=n2")]
    site.see("n1", "busy", "allocated", "allocated", "allocated")
    site.see("n2", "allocated", "allocated", "allocated", "allocated")
    listed = gpudeck(tmp_path, "free", "--hub", site.hub.url, "--json")
    assert json.loads(listed.stdout)["gpus"] == []
    refused = gpudeck(tmp_path, "reserve", "--gpus", "1", "--for", "1h", "--hub", site.hub.url)
    assert refused.returncode == 1, refused.stdout
    queued = subprocess.Popen(
        [sys.executable, "-m", "gpudeck", "wait", "--any-host", "--json", "--hub", site.hub.url],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        waiting = wait_until(lambda: json.loads(site.hub.get("/api/v1/queue"))["requests"], "a request in the queue")
        assert len(waiting) == 1
        # A drained node has no free GPUs either once its jobs have ended.
        cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=xid 79 on gpu 3")
        cluster.run("scancel", others[1])
        site.see("n2", "drained", "drained", "drained", "drained")
        assert site.gpus("n2")[0]["availability_reason"] == "drained in Slurm: xid 79 on gpu 3"
        assert queued.poll() is None
        cluster.run("scancel", others[0])
        told, _ = queued.communicate(timeout=60)
        assert '"GPU-n1-2"' in told or '"GPU-n1-3"' in told, told
    finally:
        queued.kill()
        queued.communicate()
    # While the controller is away nothing that is empty is called free; processes count as before.
    cluster.stop("slurmctld")
    wait_until(lambda: site.gpus("n1")[1]["availability"] == "unknown", "unknown GPUs", 150)
    assert site.gpus("n1")[0]["availability"] == "busy"
    assert "Slurm (slurm) cannot be read" in site.gpus("n1")[1]["availability_reason"]
    cluster.start_controller()
    wait_until(lambda: site.gpus("n1")[1]["availability"] == "allocated", "the allocation", 60)


@pytest.mark.slow
@pytest.mark.parametrize("site", [600], indirect=True)
def test_wait_hands_out_nothing_that_slurm_has_given_away_since_it_was_last_read(
    site: SlurmSite, tmp_path: Path
) -> None:
    cluster = site.cluster
    site.see("n1", "free", "free", "free", "free")
    site.see("n2", "free", "free", "free", "free")
    jobs = [cluster.submit("--gres=gpu:4", "--nodelist=n1"), cluster.submit("--gres=gpu:2", "--nodelist=n2")]
    for job in jobs:
        cluster.wait_for(job, "RUNNING")
    # No reading is near enough to say anything of these jobs.
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > RECENT_SECONDS, "an old reading")
    wait = ("wait", "--any-host", "--json", "--hub", site.hub.url)
    granted = gpudeck(tmp_path, *wait)
    assert {gpu["uuid"] for gpu in json.loads(granted.stdout)["gpus"]} < {"GPU-n2-2", "GPU-n2-3"}, granted
    # Nor does a controller that is gone.
    cluster.kill("slurmctld")
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > RECENT_SECONDS, "an old reading")
    assert gpudeck(tmp_path, *wait, "--timeout", "30").returncode == 1
    free = [gpu for host in ("n1", "n2") for gpu in site.gpus(host) if gpu["availability"] == "free"]
    assert free == []
