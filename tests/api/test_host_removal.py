"""Many hosts leave at once: those of a token, of a pattern, or that are down."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import ADMIN_TOKEN, make_alerts, make_app, make_auth
from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from gpudeck.alerts.rule import FleetContext
from gpudeck.alerts.selection import HostSelector
from gpudeck.alerts.settings import AlertSettings
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.model.target import Target

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


class Crowded:
    """A hub with hosts of two tokens. The first token is called agent, as in `fakes.api_app`."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.alerts = make_alerts(self.auth.database, AlertSettings())
        self.app = make_app(self.hub, auth=self.auth, folder=folder, alerts=self.alerts)
        self.agent = next(token.id for token in asyncio.run(self.auth.tokens.list()) if token.name == "agent")

    def report(self, *names: str, token: int | None = None) -> None:
        for name in names:
            envelope = make_envelope(name, gpus=[make_gpu(uuid=name)], collected_at=self.clock())
            token_name = None if token is None else TokenName(token, "x")
            self.hub.fleet.apply(envelope, via="push", now=self.clock(), token=token_name)

    def remove(self, **query: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.request("DELETE", "/api/v1/hosts", params=query, headers=ADMIN)

        return asyncio.run(ask())

    def remove_one(self, name: str) -> int:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
                return await http.request("DELETE", f"/api/v1/hosts/{name}", headers=ADMIN)

        return asyncio.run(ask()).status_code

    def evaluate(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.hub.fleet.age(self.clock())
        selector = HostSelector(self.hub.fleet)
        self.alerts.engine.begin(FleetContext(now=self.clock()))
        for host in self.hub.fleet.hosts.values():
            self.alerts.engine.evaluate(selector.snapshot(host, self.clock()))
        self.alerts.engine.finish()

    def names(self) -> list[str]:
        return sorted(self.hub.fleet.hosts)


@pytest.fixture
def hub(tmp_path: Path) -> Crowded:
    return Crowded(tmp_path)


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ({"name": "inv*"}, ["gpu01"]),
        ({"token": "agent"}, ["gpu01", "inv1"]),
        ({"token": "agent", "name": "inv3"}, ["gpu01", "inv1", "inv2"]),
        ({"down": "true"}, ["gpu01", "inv3"]),
        ({"token": "nobody's"}, ["gpu01", "inv1", "inv2", "inv3"]),
    ],
)
def test_hosts_that_fit_all_that_is_given_are_removed(hub: Crowded, query: dict[str, str], left: list[str]) -> None:
    hub.report("inv1")
    hub.report("inv2", token=hub.agent)
    hub.clock.advance(500)
    hub.report("inv3", token=hub.agent)
    hub.report("gpu01")
    hub.hub.fleet.age(hub.clock())
    tried = hub.remove(**query, dry_run="true").json()
    assert hub.names() == ["gpu01", "inv1", "inv2", "inv3"]
    assert hub.remove(**query).json() == tried
    assert (hub.names(), tried["count"]) == (left, 4 - len(left))


def test_twenty_thousand_leave_in_one_update_and_one_entry_of_the_audit_log(hub: Crowded) -> None:
    for number in range(20_000):
        hub.hub.fleet.apply(make_envelope(f"inv{number}", gpus=[]), via="push", now=hub.clock())
    hub.hub.stream.tick()
    answer = hub.remove(name="inv*").json()
    assert (answer["count"], len(answer["names"]), hub.names()) == (20_000, 20, [])
    assert hub.hub.stream.tick().plain.count(b'"inv') == 20_000
    entry = asyncio.run(hub.auth.audit.list())[0]
    assert (entry.action, entry.subject, entry.details) == ("remove hosts", "inv*", "20000 hosts")


def test_nothing_given_is_refused(hub: Crowded) -> None:
    hub.report("gpu01")
    assert hub.remove().status_code == 400


def test_a_mistyped_dry_run_removes_nothing(hub: Crowded) -> None:
    hub.report("gpu01")
    assert hub.remove(name="gpu*", dryrun="true").status_code == 400
    assert hub.names() == ["gpu01"]
    assert hub.names() == ["gpu01"]


def test_host_of_a_configuration_file_stays(hub: Crowded) -> None:
    hub.hub.fleet.expect([Target(name="configured", via="ssh")])
    hub.report("gpu01")
    assert hub.remove(name="*").json() == {"count": 1, "names": ["gpu01"], "kept": 1}
    assert hub.names() == ["configured"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["in the fleet", "of which only the alert is left"])
def test_alerts_of_a_removed_host_are_over(hub: Crowded, is_gone: bool) -> None:
    hub.report("gpu01")
    for _ in range(20):
        hub.evaluate(10)
    assert [record.rule for record in hub.alerts.engine.firing()] == ["host_down"]
    for host_id in ["gpu01"] * is_gone:
        hub.hub.fleet.remove(host_id)
    assert hub.remove_one("gpu01") == 200
    assert hub.alerts.engine.firing() == []
    asyncio.run(hub.alerts.flush())
    assert hub.remove_one("gpu01") == 404
