"""One hub, started as a person would start it, serves clients of several monitors beside an agent of its own."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from compat.gpu_cluster_status.test_poll import NODE, alive, node
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.reports import make_envelope, make_gpu
from fakes.vesta import captured_posts
from fakes.waiting import wait_until
from gpudeck.wire import encode

pytestmark = pytest.mark.slow


def ask(hub: HubProcess, path: str, body: bytes | None = None, **headers: str) -> Any:
    request = urllib.request.Request(hub.url + path, body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_clients_of_all_are_served_and_a_restart_loses_nobody(tmp_path: Path) -> None:
    with node(alive(NODE)) as port:
        (tmp_path / "hosts.txt").write_text(f"# nodes\n\n127.0.0.1:{port}\n127.0.0.2:9\n")
        (tmp_path / "gpudeck.yaml").write_text(
            "demo: never\nlocal: never\n"
            "discovery:\n  allow_addresses: [127.0.0.0/8]\n"
            f"  hosts_files: [{{path: {tmp_path}/hosts.txt, via: gpu-cluster-status}}]\n"
            'compat: {vesta: {token: "t0ken"}, gpu_cluster_status: {password: "s3cret", interval: 1s}}\n'
        )
        with running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")) as hub:
            told = ask(hub, "/register/?host_name=gputest002&token=t0ken")
            post = f"/update/host/{told['id']}?token=t0ken"
            assert ask(hub, post, captured_posts()[0])["status"] == "OK"
            agent = {"Authorization": f"Bearer {hub.token_file.read_text().strip()}", "Content-Encoding": "zstd"}
            report = encode(make_envelope("own01", gpus=[make_gpu(0)]))
            ask(hub, "/api/v1/reports", report, **agent | {"Content-Type": "application/msgpack"})
            wait_until(lambda: ask(hub, "/states/gputest001/").get("gputest001"), "the node is read")
            assert sorted(ask(hub, "/states/")) == ["127_0_0_2", "gputest001", "gputest002", "own01"]
            nodes = {one["hostname"]: one["status"] for one in ask(hub, "/get-status")["Nodes"]}
            assert nodes == {"gputest001": True, "gputest002": True, "127.0.0.2": False, "own01": True}
            assert hub.get("/?term=true").count(b"GeForce") == 4
        with running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")) as hub:
            assert ask(hub, post, captured_posts()[1])["status"] == "OK"
            assert ask(hub, "/states/gputest002/")["gputest002"]["status"] == "running"
        log = (tmp_path / "log").read_text()
        assert "t0ken" not in log
        assert "s3cret" not in log
        assert "Traceback" not in log


def test_the_agent_prints_one_report(tmp_path: Path) -> None:
    done = gpudeck(tmp_path, "agent", "--debug", "--simulate", "1")
    assert done.returncode == 0
    assert json.loads(done.stdout)["report"]["gpus"]
    assert not (tmp_path / "agent.token").exists()
