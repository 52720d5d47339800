"""The list of agents for Prometheus: those that the hub asks, where they listen, and no secret."""

import asyncio

import httpx
import pytest

from fakes.api_app import make_app
from gpudeck.api.fleet import TargetGroup, list_targets
from gpudeck.discovery.inputs import HostFindings
from gpudeck.discovery.prometheus_sd import read_groups
from gpudeck.fleet.hub import Hub
from gpudeck.model.target import Target


def agents_of(*targets: Target, port: int = 7080) -> list[TargetGroup]:
    hub = Hub()
    hub.fleet.expect(targets)
    return list_targets(hub.fleet, port)


def test_only_hosts_that_are_asked_are_listed_by_name() -> None:
    found = agents_of(
        Target(name="gpu02", via="pull"),
        Target(name="gpu01", via="pull"),
        Target(name="gpu03", via="push"),
        Target(name="gpu04", via="ssh"),
        Target(name="gpu05", via="scrape", port=9400),
    )
    assert [group.targets for group in found] == [["gpu01:7080"], ["gpu02:7080"]]


@pytest.mark.parametrize(
    ("target", "place", "labels"),
    [
        (Target(name="gpu01", via="pull", address="10.0.0.7", port=7081), "10.0.0.7:7081", {}),
        (Target(name="gpu01", via="pull", address="fd00::7"), "[fd00::7]:7999", {}),
        (Target(name="gpu01", via="pull", scheme="https"), "gpu01:7999", {"__scheme__": "https"}),
        (
            Target(name="gpu01", via="pull", path="/node/api/v1/report"),
            "gpu01:7999",
            {"__metrics_path__": "/node/metrics"},
        ),
        (
            Target(name="gpu01", via="pull", labels={"rack": "b3", "data center": "ß"}),
            "gpu01:7999",
            {"__meta_gpudeck_label_rack": "b3", "__meta_gpudeck_label_data_center": "ß"},
        ),
    ],
)
def test_a_host_is_listed_as_it_is_reached(target: Target, place: str, labels: dict[str, str]) -> None:
    (group,) = agents_of(target, port=7999)
    own = {"__scheme__": "http", "__metrics_path__": "/metrics", "__meta_gpudeck_host": "gpu01"}
    assert group == TargetGroup([place], own | labels)


def test_no_token_is_told() -> None:
    assert "secret" not in str(agents_of(Target(name="gpu01", via="pull", token_file="/etc/secret.token")))


def test_another_hub_reads_it_as_its_own_list() -> None:
    hub = Hub()
    hub.fleet.expect([Target(name="gpu01", via="pull", port=7081)])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(hub))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.get("/api/v1/sd")

    answer = asyncio.run(ask())
    findings = HostFindings()
    read_groups(answer.json(), "http_sd", "pull", findings)
    assert answer.headers["content-type"].startswith("application/json")
    assert [(target.name, target.port) for target in findings.targets] == [("gpu01", 7081)]
