"""One hub has nodes, files and clients of all five monitors at once, beside an agent of its own; one of them that fails
costs itself only."""

import contextlib
import json
import urllib.request
import xmlrpc.client
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from compat.gpu_cluster_status.test_poll import NODE, alive, node
from compat.nodes import CAPTURES, GPU_STATS, file_node, xmlrpc_node
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.reports import make_envelope, make_gpu
from fakes.sshd import IS_HERE, WHY_NOT, running_sshd
from fakes.vesta import captured_posts
from fakes.waiting import wait_until
from gpudeck.wire import encode

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)]

WAYS = {
    "vesta01": "vesta",
    "node01": "gpu-cluster-status",
    "rpc01": "gpumonitor",
    "ssh01": "ssh",
    "files01": "gpu-monitor-files",
    "served01": "gpu-monitor",
    "own01": "push",
}
UNTIL = f"{datetime.now(UTC).year + 1}-07-01 00:00"
COMMENTS = f'{{"files01": [{{"name": "sclaus", "date": "{UNTIL}", "comment": "<b>mine</b>"}}]}}  // until then\n'


def copy_files(folder: Path, host: str, digit: str) -> Path:
    """The captured files of gpu-monitor's scripts as those of another host, with GPUs of its own."""
    folder.mkdir(exist_ok=True)
    for file in (CAPTURES / "gpu-monitor-data").glob("gputest001_*.csv"):
        text = file.read_text().replace("GPU-11111111", f"GPU-{digit * 8}")
        (folder / file.name.replace("gputest001", host)).write_text(text)
    return folder


def captured_stats() -> str:
    """What the captured node answered to `gpu_stats()`."""
    (told,), _ = xmlrpc.client.loads(GPU_STATS)
    return str(told)


class Site:
    """A folder with the configuration of a hub that took the place of all five, and what they left behind."""

    def __init__(self, folder: Path, hub: HubProcess, talk: dict[str, Any]) -> None:
        """`talk` is what the nodes answer from now on."""
        self.folder = folder
        self.hub = hub
        self.talk = talk

    def ask(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self.hub.url + path, body)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def run(self, *arguments: str) -> str:
        done = gpudeck(self.folder, *arguments, "--hub", self.hub.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def hosts(self) -> dict[str, tuple[str, str]]:
        """After gpu-monitor's scripts have written once more: files that do not change are old."""
        for file in (*self.folder.glob("data/*.csv"), *self.folder.glob("served/*.csv")):
            written = file.with_suffix(".new")
            written.write_bytes(file.read_bytes() + b"\n")
            written.replace(file)
        return {host["name"]: (host["via"], host["status"]) for host in self.ask("/api/v1/hosts")["hosts"]}

    def named(self, status: str) -> set[str]:
        return {name for name, (_, told) in self.hosts().items() if told == status}

    def post_as_vesta(self) -> None:
        told = self.ask("/register/?host_name=vesta01&token=t0ken")
        answer = self.ask(f"/update/host/{told['id']}?token=t0ken", captured_posts()[0])
        assert answer == {"status": "OK", "status_code": 200}

    def report_as_agent(self) -> None:
        """One process of its own would be the very machine that is read over SSH here."""
        headers = {
            "Authorization": f"Bearer {self.hub.token_file.read_text().strip()}",
            "Content-Encoding": "zstd",
            "Content-Type": "application/msgpack",
        }
        report = encode(make_envelope("own01", gpus=[make_gpu(0)], interval_seconds=600.0))
        request = urllib.request.Request(f"{self.hub.url}/api/v1/reports", report, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.loads(answer.read()) == {"status": "taken"}

    def are_all_up(self) -> bool:
        return self.hosts() == {name: (via, "up") for name, via in WAYS.items()}


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def site(tmp_path: Path, stack: contextlib.ExitStack) -> Site:
    """All of it runs, and every host is up."""
    talk: dict[str, Any] = {"status": b"", "stats": captured_stats()}
    status = stack.enter_context(node(lambda: talk["status"] or alive(NODE)()))
    rpc = stack.enter_context(xmlrpc_node(lambda: talk["stats"]))
    sshd = stack.enter_context(running_sshd(tmp_path / "sshd"))
    data = copy_files(tmp_path / "data", "files01", "2")
    served = stack.enter_context(file_node(copy_files(tmp_path / "served", "served01", "3")))
    (data / "comments.json").write_text(COMMENTS)
    here = {"address": "127.0.0.1"}
    settings = {
        "demo": "never",
        "local": "never",
        "hosts": [
            {"name": "node01", "via": "gpu-cluster-status", "port": status} | here,
            {"name": "rpc01", "via": "gpumonitor", "port": rpc} | here,
            {"name": "ssh01", "via": "ssh", "port": sshd.port, "user": sshd.user} | here,
            {"name": "served01", "via": "gpu-monitor", "port": served} | here,
        ],
        "ssh": {"key_files": [str(sshd.key)], "known_hosts": [str(sshd.known_hosts)], "config_file": "/dev/null"},
        "compat": {
            "vesta": {"token": "t0ken", "down_after": "1h"},
            "gpu_cluster_status": {"password": "s3cret", "interval": "1s"},
            "gpumonitor": {"interval": "1s"},
            "gpu_monitor": {"folder": str(data), "interval": "1s", "old_after": "1d"},
        },
    }
    (tmp_path / "gpudeck.yaml").write_text(yaml.safe_dump(settings))
    hub = stack.enter_context(running_hub(tmp_path, "--config", str(tmp_path / "gpudeck.yaml")))
    built = Site(tmp_path, hub, talk)
    built.post_as_vesta()
    built.report_as_agent()
    wait_until(built.are_all_up, "all hosts are up", 60.0)
    return built


def test_readers_of_each_find_the_hosts_of_all(site: Site) -> None:
    assert set(site.ask("/states/")) == set(WAYS)
    nodes = site.ask("/get-status")["Nodes"]
    assert [one["status"] for one in nodes] == [True] * len(WAYS)
    table = site.hub.get("/?term=true").decode()
    assert all(f"|{name} " in table for name in WAYS)
    people = {one["user"]: one["gpus"] for one in site.ask("/api/v1/users")["users"]}
    assert {"files01-0", "rpc01-0", "served01-0", "vesta01-0"} <= set(people["root"])
    assert "files01-0" in site.hub.get("/?term=true&users").decode()
    lines = site.run("show", "--csv", "--columns", "web-gpu-monitor").splitlines()
    assert {line.split(",")[6] for line in lines[1:]} == set(WAYS)
    site.run("import", "gpu-monitor", str(site.folder / "data" / "comments.json"))
    written = json.loads(site.run("reservations", "--format", "comments-json"))
    assert written["files01"]["0"] == {
        "name": "sclaus",
        "date": UNTIL,
        "comment": "&lt;b&gt;mine&lt;/b&gt;",
    }
    log = (site.folder / "log").read_text()
    assert "Traceback" not in log
    assert not any(secret in log for secret in ("t0ken", "s3cret"))


def test_those_that_talk_rubbish_cost_themselves_only(site: Site) -> None:
    site.talk["status"] = b"rubbish"
    site.talk["stats"] = '{"gpus": 5}'
    assert site.ask("/update/host/abc?token=t0ken", b"rubbish")["status_code"] == 404
    broken = {"node01", "rpc01"}
    wait_until(lambda: not site.named("up") & broken, f"{broken} are up no more", 60.0)
    assert site.named("up") == set(WAYS) - broken
    problems = {host["name"]: " ".join(host["problems"]) for host in site.ask("/api/v1/hosts")["hosts"]}
    assert "answers no JSON of a node" in problems["node01"]
    assert "answers no gpu_stats() in JSON" in problems["rpc01"]
