"""A node of Kubernetes with a real agent: its pods' GPUs are allocated in a real hub, and not handed out."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools", reason="grpcio-tools, for the tests with a kubelet, is not installed")

from all_sources.hub import Hub, hub_with
from fakes.hubs import environment
from fakes.kubelet import FakeKubelet, container, serve_kubelet
from fakes.nvml.driver import NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from fakes.waiting import wait_until

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

UUIDS = [f"GPU-{number}f1e8a30-0c5d-4b7e-9a61-2d3c4b5a6978" for number in range(3)]


@contextlib.contextmanager
def node(folder: Path, hub: Hub) -> Iterator[FakeKubelet]:
    values = FakeGpu("").values | {"utilization": 0, "memory_utilization": 0, "memory_used": 0}
    gpus = [FakeGpu(uuid, pci=f"00000000:{at + 1}8:00.0", values=values) for at, uuid in enumerate(UUIDS)]
    driver, socket = FakeDriver(folder, gpus), folder / "kubelet.sock"
    config = folder / "gpudeck.yaml"
    config.write_text(json.dumps({"agent": {"interval": "1s", "kubernetes": {"socket": str(socket)}}}))
    options = ("--config", str(config), "--hub", hub.url, "--token-file", str(hub.token_file), "--name", "gpu01")
    command = [sys.executable, "-m", "gpudeck", "agent", *options]
    with serve_kubelet(socket) as kubelet:
        kubelet.pods = [container("ml/train-0", {"nvidia.com/gpu": UUIDS[:2]}, name="trainer")]
        agent = subprocess.Popen(command, env=environment(folder) | driver.environment, start_new_session=True)
        try:
            yield kubelet
        finally:
            agent.terminate()
            agent.wait(20)


def states(hub: Hub) -> list[str]:
    return [gpu["availability"] for gpu in hub.hosts().get("gpu01", {}).get("gpus", ())]


def test_gpus_of_pods_are_allocated_until_the_kubelet_no_longer_lists_them(tmp_path: Path) -> None:
    with hub_with(tmp_path / "hub", {}) as hub, node(tmp_path, hub) as kubelet:
        wait_until(lambda: states(hub) == ["allocated", "allocated", "free"])
        allocation = hub.hosts()["gpu01"]["gpus"][0]["allocation"]
        assert allocation == {
            "scheduler": "kubernetes",
            "job": "ml/train-0",
            "namespace": "ml",
            "pod": "train-0",
            "container": "trainer",
        }
        kubelet.pods = []
        wait_until(lambda: states(hub) == ["free"] * 3)
