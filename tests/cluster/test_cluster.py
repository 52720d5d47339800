"""A real cluster: hubs in processes of their own, a real NATS, PostgreSQL and VictoriaMetrics, HAProxy and nginx."""

import contextlib
import re
import secrets
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.__main__ import run_scenario
from chaos.clusters import ClusterUnderTest
from chaos.hosts import Fleet, reporting
from fakes.hubs import gpudeck
from fakes.load_balancers import running_load_balancer
from fakes.nats_server import running_nats
from fakes.postgres import running_postgres
from fakes.prometheus import running_store
from fakes.waiting import wait_until

pytestmark = pytest.mark.slow

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
    """Agents that have just started: their reports are not taken for repeated ones of the test before."""
    first, *others = (hub.port for hub in cluster.hubs)
    wait_until(cluster.is_whole, "a whole cluster", 120)
    run_id = secrets.token_hex(4)
    with reporting(first, cluster.hubs[0].token, HOSTS, others=others, deadline=3.0, run_id=run_id) as hosts:
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


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
def test_a_viewer_behind_a_load_balancer_sees_no_host_down_while_a_hub_is_killed(
    kind: str, cluster: ClusterUnderTest, fleet: Fleet, tmp_path: Path
) -> None:
    del fleet
    seen: list[str] = []
    places = [f"{hub.host}:{hub.port}" for hub in cluster.hubs]
    with running_load_balancer(kind, places, tmp_path) as url:
        for hub in cluster.hubs:
            hub.kill()
            for _ in range(25):
                with contextlib.suppress(OSError, HTTPException):  # a connection, or half an answer, of the killed hub
                    seen += [host["status"] for host in get(url, "/api/v1/fleet")["hosts"]]
            hub.start()
            wait_until(cluster.is_whole, "a whole cluster", 120)
    assert len(seen) > 40 * HOSTS
    assert set(seen) <= {"up", "late"}


def test_agents_and_the_page_behind_a_load_balancer_go_on_while_each_hub_is_killed() -> None:
    """Times are not judged here: `make chaos` shows them."""
    outcome = run_scenario("load_balancer", short=True)
    assert not outcome.missed, "\n".join([*outcome.missed, *outcome.notes])


def test_a_cluster_without_its_database_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("cluster: {bus: 'nats://127.0.0.1:4222'}\n")
    told = gpudeck(tmp_path, "check", "--config", str(tmp_path / "gpudeck.yaml"))
    assert told.returncode != 0
    assert "`cluster` needs `database: postgresql://" in told.stdout + told.stderr
