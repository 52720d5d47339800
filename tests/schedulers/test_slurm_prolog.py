"""The prolog of deploy/slurm in a real Slurm: a job never starts on a node with a GPU that fell off the bus, and starts
where no hub answers."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import running_hub
from fakes.pushed import send
from fakes.reports import make_envelope, make_gpu
from fakes.slurm import SlurmCluster, slurm_cluster
from fakes.waiting import wait_until
from gpudeck.model.report import GpuEvent

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "gpudeck-prolog.sh"


@pytest.fixture
def scripts() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpudeck-scripts-") as folder:
        shutil.copy(SCRIPT, folder)
        program = Path(folder) / "gpudeck"
        program.write_text(f'#!/bin/sh\nHOME={folder} exec {sys.executable} -m gpudeck "$@"\n')
        program.chmod(0o755)
        yield Path(folder)


@pytest.fixture
def cluster(scripts: Path) -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="gpudeck-slurm-") as folder:
        extra = f"Prolog={scripts}/gpudeck-prolog.sh\nPrologFlags=Alloc"
        with slurm_cluster(Path(folder), extra) as found:
            yield found


def node_state(cluster: SlurmCluster, node: str) -> str:
    return cluster.run("sinfo", "-h", "-n", node, "-o", "%T %E").strip().lower()


def test_a_job_is_refused_on_a_bad_node_and_starts_where_no_hub_answers(
    cluster: SlurmCluster, scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(tmp_path) as hub:
        settings = {"GPUDECK_HUB": hub.url, "GPUDECK": scripts / "gpudeck", "GPUDECK_SECONDS": 30}
        (scripts / "gpudeck.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        bad = make_gpu(1, uuid="GPU-n1-1", events=[GpuEvent(at=time.time() - 60, code=79)])
        for node, gpus in (
            ("n1", [make_gpu(0, uuid="GPU-n1-0"), bad]),
            ("n2", [make_gpu(0, uuid="GPU-n2-0")]),
        ):
            send(hub, make_envelope(node, gpus=gpus, collected_at=time.time(), interval_seconds=3600.0))
        wait_until(lambda: json.loads(hub.get("/api/v1/totals"))["hosts_up"] == 2, "both nodes")
        refused = cluster.submit("--gres=gpu:1", "--nodelist=n1")
        started = cluster.submit("--gres=gpu:1", "--nodelist=n2")
        cluster.wait_for(started, "RUNNING")
        wait_until(lambda: node_state(cluster, "n1").startswith("drain"), "the drained node", 60)
        assert "prolog" in node_state(cluster, "n1")
        cluster.wait_for(refused, "PENDING")
    cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    without_hub = cluster.submit("--gres=gpu:1", "--nodelist=n1")
    cluster.wait_for(without_hub, "RUNNING")
