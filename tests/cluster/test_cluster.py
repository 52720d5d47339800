"""A real cluster: hubs in processes of their own, a real NATS, PostgreSQL and VictoriaMetrics, HAProxy and nginx."""

import contextlib
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.clusters import ClusterUnderTest
from chaos.hosts import Fleet, reporting
from fakes.hubs import gpudeck
from fakes.nats_server import running_nats
from fakes.ports import free_port
from fakes.postgres import running_postgres
from fakes.prometheus import running_store
from fakes.waiting import wait_until

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "cluster"
HOSTS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    with contextlib.ExitStack() as stack:
        made = ClusterUnderTest(
            tmp_path_factory.mktemp("cluster"),
            stack.enter_context(running_nats()),
            stack.enter_context(running_postgres()),
            stack.enter_context(running_store("victoria-metrics")),
            "",
        )
        for hub in made.hubs:
            stack.callback(hub.kill)
            hub.start()
        wait_until(made.is_whole, "a whole cluster", 120)
        yield made


@pytest.fixture
def fleet(cluster: ClusterUnderTest) -> Iterator[Fleet]:
    first, *others = (hub.port for hub in cluster.hubs)
    wait_until(cluster.is_whole, "a whole cluster", 120)
    with reporting(first, cluster.hubs[0].token, HOSTS, others=others, deadline=3.0) as hosts:
        wait_until(lambda: all(up(hub.url) for hub in cluster.hubs), "all hosts on all hubs", 60)
        yield hosts


def up(url: str) -> bool:
    return [host["status"] for host in get(url, "/api/v1/fleet")["hosts"]] == ["up"] * HOSTS


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=20) as answer:
        return msgspec.json.decode(answer.read())


@pytest.mark.usefixtures("fleet")
def test_every_hub_shows_every_host_and_the_command_lists_the_hubs(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    told = gpudeck(tmp_path, "cluster", "status", "--hub", cluster.hubs[1].url)
    assert told.returncode == 0, told.stderr
    assert re.search(r"^hub1 \* +up ", told.stdout, re.MULTILINE)
    owned = get(cluster.hubs[0].url, "/api/v1/about")["cluster"]["duties"]
    assert {duty["name"] for duty in owned} >= {"alerts", "events", "schedulers", "reservations", "chat", "polling-00"}


def test_an_alert_is_the_same_on_every_hub_and_any_hub_takes_an_acknowledgement(
    cluster: ClusterUnderTest, fleet: Fleet
) -> None:
    fleet.mute("gpu01")
    try:
        wait_until(lambda: cluster.hubs[0].alerts("firing"), "an alert", 90)
        ids = [[alert["id"] for alert in hub.alerts("firing")] for hub in cluster.hubs]
        assert ids == [ids[0]] * len(cluster.hubs)
        owner = cluster.owners()["alerts"]
        other = next(hub for hub in cluster.hubs if hub.folder.name != owner)
        told = gpudeck(other.data_dir, "alerts", "ack", ids[0][0], "--hub", other.url)
        assert told.returncode == 0, told.stderr
        states = [[alert["state"] for alert in hub.alerts("firing,acknowledged")] for hub in cluster.hubs]
        assert states == [["acknowledged"]] * len(cluster.hubs)
    finally:
        fleet.mute()
    wait_until(lambda: not cluster.hubs[0].alerts("firing,acknowledged"), "the end of the alert", 90)


def test_events_are_kept_once(cluster: ClusterUnderTest, fleet: Fleet) -> None:
    del fleet

    def seen() -> list[str]:
        events = get(cluster.hubs[2].url, "/api/v1/events?limit=500")["events"]
        return sorted(event["host"] for event in events if event["kind"] == "host_seen")

    wait_until(lambda: len(seen()) >= HOSTS, "the events of all hosts", 30)
    assert seen() == [f"gpu{number:02}" for number in range(HOSTS)]


@contextlib.contextmanager
def running_proxy(kind: str, cluster: ClusterUnderTest, folder: Path) -> Iterator[str]:
    """The shipped configuration, with the addresses of these hubs."""
    program = shutil.which(kind) or shutil.which(kind, path="/usr/sbin")
    if program is None:
        pytest.skip(f"there is no {kind} on this machine: run tests/system-packages.sh")
    port = free_port()
    text = (DEPLOY / {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[kind]).read_text()
    for number, hub in enumerate(cluster.hubs, 1):
        text = text.replace(f"hub{number}.example:8042", f"127.0.0.1:{hub.port}")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    file = folder / "proxy.conf"
    if kind == "nginx":
        text = f"daemon off; pid {folder}/pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off;\n{text}\n}}\n"
    file.write_text(text)
    command = [program, "-db", "-f", str(file)] if kind == "haproxy" else [program, "-c", str(file), "-p", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_answering(url), f"the start of {kind}: {(folder / 'log').read_text()}", 30)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def is_answering(url: str) -> bool:
    with contextlib.suppress(OSError):
        get(url, "/readyz")
        return True
    return False


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_viewer_behind_a_load_balancer_sees_no_host_down_while_a_hub_is_killed(
    kind: str, cluster: ClusterUnderTest, fleet: Fleet, tmp_path: Path
) -> None:
    del fleet
    seen: list[str] = []
    with running_proxy(kind, cluster, tmp_path) as url:
        for hub in cluster.hubs:
            hub.kill()
            for _ in range(25):
                with contextlib.suppress(OSError):  # a connection that the killed hub had
                    seen += [host["status"] for host in get(url, "/api/v1/fleet")["hosts"]]
            hub.start()
            wait_until(cluster.is_whole, "a whole cluster", 120)
    assert len(seen) > 40 * HOSTS
    assert set(seen) <= {"up", "late"}


def test_a_cluster_without_its_database_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("cluster: {bus: 'nats://127.0.0.1:4222'}\n")
    told = gpudeck(tmp_path, "check", "--config", str(tmp_path / "gpudeck.yaml"))
    assert told.returncode != 0
    assert "`cluster` needs `database: postgresql://" in told.stdout + told.stderr
