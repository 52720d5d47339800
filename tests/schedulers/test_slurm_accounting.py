"""A hub beside a Slurm cluster with an accounting database: how jobs have ended, also while the hub was away."""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.pushed import pushing
from fakes.slurm import SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.model.job import read_summary
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Its controller has the scripts of deploy/slurm, with a program that keeps mails in a file."""
    with (
        tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder,
        tempfile.TemporaryDirectory(prefix="gpudeck-scripts-") as scripts,
    ):
        for file in SCRIPTS.glob("*.sh"):
            shutil.copy(file, scripts)
        mail = Path(scripts) / "mail"
        mail.write_text(f'#!/bin/sh\n{{ printf "%s\\n" "$@"; cat; }} >>{scripts}/mails\n')
        program = Path(scripts) / "gpudeck"
        program.write_text(f'#!/bin/sh\nHOME={scripts} exec {sys.executable} -m gpudeck "$@"\n')
        for file in (mail, program):
            file.chmod(0o755)
        extra = f"MailProg={scripts}/gpudeck-mail.sh\nEpilogSlurmctld={scripts}/gpudeck-epilog.sh"
        with slurm_cluster(Path(folder), extra, has_accounting=True) as found:
            yield found


def set_hub(cluster: SlurmCluster, hub: str) -> Path:
    """Where the scripts are."""
    folder = Path(cluster.run("sh", "-c", "scontrol show config | sed -n 's/^MailProg *= //p'").strip()).parent
    settings = {"GPUDECK_HUB": hub, "GPUDECK": folder / "gpudeck", "GPUDECK_MAIL": folder / "mail"}
    # This machine may be busy with other tests.
    told = settings | {"GPUDECK_SECONDS": 30, "PATH": cluster.environment["PATH"]}
    told["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
    (folder / "gpudeck.env").write_text("".join(f"export {name}='{value}'\n" for name, value in told.items()))
    return folder


def commands(cluster: SlurmCluster) -> list[str]:
    return ["env", *(f"{name}={cluster.environment[name]}" for name in ("SLURM_CONF", "PATH"))]


def read_jobs(hub: HubProcess, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hub.get(f"/api/v1/jobs/{job}"))["jobs"]
    return found


def test_ends_of_jobs_are_read_with_the_ids_that_users_know(cluster: SlurmCluster) -> None:
    short = cluster.submit("--gres=gpu:1", seconds=1)
    array = cluster.submit("--array=0-1", "--gres=gpu:1")
    mixed = cluster.submit("--gres=gpu:1", ":", "--gres=gpu:1")
    wait_until(lambda: cluster.run("squeue", "-h", "-t", "R").count("\n") >= 4, "running jobs", 60)
    wait_until(lambda: cluster.run("sacct", "-n", "-X", "-j", short, "-o", "State").split() == ["COMPLETED"], "", 60)
    cluster.run("scancel", array, mixed)
    expected = {short: "COMPLETED"} | dict.fromkeys(
        (f"{array}_0", f"{array}_1", f"{mixed}+0", f"{mixed}+1"), "CANCELLED"
    )

    def read_ended() -> dict[str, str]:
        state = asyncio.run(Slurm(SlurmSettings(command=commands(cluster))).read())
        assert all(one.end >= one.start for one in state.ended)
        return {one.job: one.outcome for one in state.ended}

    wait_until(lambda: read_ended() == expected, "all ends", 60)


def test_a_job_that_ended_while_the_hub_was_away_has_its_end_and_outcome(cluster: SlurmCluster, tmp_path: Path) -> None:
    settings = {
        "demo": "never",
        "local": "never",
        "schedulers": {"slurm": [{"command": commands(cluster), "interval": 1}]},
    }
    (tmp_path / "gpudeck.yaml").write_text(json.dumps(settings))
    job = cluster.submit("--gres=gpu:2", "--nodelist=n1")
    cluster.wait_for(job, "RUNNING")
    options = ("--config", str(tmp_path / "gpudeck.yaml"))
    with running_hub(tmp_path, *options) as hub, pushing(hub, "n1", 4, "machine-1"):
        wait_until(lambda: b"running" in hub.get("/api/v1/jobs"), "the job", 60)
    cluster.run("scancel", job)
    ask = ("sacct", "-n", "-P", "-X", "-j", job, "-o", "Start,End,State")
    ended = wait_until(lambda: "CANCELLED" in (told := cluster.run(*ask)) and told, "the end in the database", 60)
    with running_hub(tmp_path, *options) as hub, pushing(hub, "n1", 4, "machine-1"):
        (found,) = wait_until(lambda: [one for one in read_jobs(hub, job) if one["outcome"]], "the outcome", 90)
    assert (found["outcome"], found["state"], found["gpu_count"]) == ("CANCELLED", "ended", 2)
    assert ended.startswith("20"), "local times without SLURM_TIME_FORMAT"
    assert found["ended_at"] > found["start"]


def test_the_report_of_a_job_is_in_its_mail_and_its_comment(cluster: SlurmCluster, tmp_path: Path) -> None:
    settings = {
        "demo": "never",
        "local": "never",
        "schedulers": {"slurm": [{"command": commands(cluster), "interval": 1}]},
    }
    (tmp_path / "gpudeck.yaml").write_text(json.dumps(settings))
    with (
        running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")) as hub,
        pushing(hub, "n1", 4, "machine-1") as host,
    ):
        folder = set_hub(cluster, hub.url)
        job = cluster.submit("--gres=gpu:2", "--nodelist=n1", "--mail-type=END", "--mail-user=ada", "--job-name=train")
        cluster.wait_for(job, "RUNNING")
        host.begin("root", ["GPU-n1-0"])
        wait_until(lambda: f'"{job}"'.encode() in hub.get("/api/v1/jobs"), "the job", 60)
        cluster.run("scancel", job)
        mails = folder / "mails"

        def find_mail() -> str:
            return mails.read_text().partition(f"Job_id={job} ")[2] if mails.exists() else ""

        wait_until(lambda: "\nada\n" in find_mail() and "n1" in find_mail(), "the mail with the report", 90)
        array = cluster.submit("--array=0-1", "--gres=gpu:1", "--nodelist=n1", "--mail-type=END", "--mail-user=ada")
        wait_until(lambda: hub.get("/api/v1/jobs").count(f'"{array}_'.encode()) == 2, "two tasks", 60)
        cluster.run("scancel", array)
        wait_until(lambda: f"Array {array} (wrap) of root on slurm: " in mails.read_text(), "the array's mail", 90)
        # This Slurm writes comments in lower case: the epilog writes none.
        wait_until(lambda: not cluster.run("squeue", "-h"), "the end of the epilog", 90)
        assert "js1:" not in cluster.run("sacct", "-n", "-P", "-X", "-j", job, "-o", "AdminComment")
        printed = gpudeck(tmp_path, "job", job, "--jobstats", "--hub", hub.url)
    summary = read_summary(printed.stdout)
    assert summary is not None
    assert sorted(summary.nodes["n1"].gpu_utilization) == ["0", "1"]
