"""The images of hub and agent: built, and run by podman with the arguments and limits of the Kubernetes manifests."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.debian import debian_root
from fakes.distribution import ROOT, build
from fakes.podman import Podman
from fakes.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_BASE = """
FROM scratch
ADD root.tar /
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """With the images gpudeck-agent and gpudeck-hub, on a fresh Debian in place of the image from a registry."""
    folder = tmp_path_factory.mktemp("podman")
    podman = Podman(folder)
    base, context = folder / "base", folder / "context"
    base.mkdir()
    absent = ("--exclude=./dev", "--exclude=./proc/*", "--exclude=./sys/*")
    subprocess.run(["tar", "-C", debian_root("bookworm"), *absent, "-cf", base / "root.tar", "."], check=True)
    (base / "Containerfile").write_text(_BASE)
    for part in ("requirements", "deploy/container"):
        shutil.copytree(ROOT / part, context / part)
    (context / "dist").mkdir()
    build(context / "dist")
    try:
        podman.build(base, "base")
        for target in ("agent", "hub"):
            where = ("--file", str(context / "deploy/container/Containerfile"), "--build-arg=BASE=localhost/base")
            podman.build(context, f"gpudeck-{target}", *where, f"--target={target}")
        yield podman
    finally:
        podman.close()


def container_of(file: str, kind: str) -> dict[str, Any]:
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / file).read_text())
    (pod,) = (one["spec"]["template"]["spec"] for one in manifests if one["kind"] == kind)
    return dict(pod["containers"][0])


LIMITS = ("--detach", "--network=host", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")


def test_agent_reports_to_a_hub_and_a_new_hub_has_the_old_ones_data(podman: Podman, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    hub = (*LIMITS, "--volume=data:/var/lib/gpudeck", "--name=hub", "gpudeck-hub")
    arguments = (*container_of("hub.yaml", "StatefulSet")["args"], f"--listen=127.0.0.1:{port}")
    podman("run", *hub, *arguments)

    def read(name: str) -> str:
        return podman("exec", "hub", "cat", f"/var/lib/gpudeck/{name}").strip()

    def status(host: str) -> str | None:
        asked = ("gpudeck", "hosts", "list", "--json", "--hub", url)
        answer = json.loads(podman("exec", f"--env=GPUDECK_TOKEN={read('admin.token')}", "hub", *asked))
        return next((one["status"] for one in answer["hosts"] if one["name"] == host), None)

    def is_ready() -> bool:
        asked = ["curl", "--silent", "--fail", f"{url}/readyz"]
        return subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode == 0

    wait_until(is_ready, "the hub is ready", 60)
    token = tmp_path / "token"
    token.write_text(read("agent.token"))
    token.chmod(0o400)
    tmp_path.chmod(0o755)
    words = [
        word.replace("$(NODE_NAME)", "node-a").replace("http://gpudeck-hub.gpudeck.svc:8042", url)
        for word in container_of("agent.yaml", "DaemonSet")["args"]
    ]
    places = (f"--volume={token}:/etc/gpudeck/token:ro", "--volume=/etc/passwd:/etc/passwd:ro")
    as_root = ("--user=0", "--pid=host", "--tmpfs=/var/lib/gpudeck")
    podman("run", *LIMITS, *as_root, *places, "--name=agent", "gpudeck-agent", *words)
    wait_until(lambda: status("node-a") == "up", "node-a reports", 60)
    assert podman("exec", "hub", "id", "--user").strip() == "8042"

    before = read("agent.token")
    podman("rm", "--force", "hub")
    podman("run", *hub, *arguments)
    wait_until(is_ready, "the new hub is ready", 60)
    assert read("agent.token") == before
    wait_until(lambda: status("node-a") == "up", "node-a reports to the new hub", 90)


def test_settings_in_the_image_of_the_hub_are_found(podman: Podman) -> None:
    assert "/etc/gpudeck/gpudeck.yaml" in podman("run", "--rm", "--network=none", "gpudeck-hub", "check")
