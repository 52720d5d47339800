"""What CONTRIBUTING.md adds, at work. Runs in the copy that `test_contributing.py` makes, where all of it is there."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from alerts.watched import Watched
from discovery.servers import json_server
from fakes.api_app import ADMIN_TOKEN, make_app, make_auth
from fakes.clock import FakeClock
from fakes.commands import gpudeck_here
from fakes.nvml.driver import NO_COMPILER, find_compiler
from fakes.nvml.station import Station, an_h200
from fakes.reports import make_envelope, make_gpu
from generated import api_document, api_routes, page_catalog, settings_reference
from gpudeck.discovery.registry import DiscoverySettings, make_providers
from gpudeck.fleet.hub import Hub


def ask(app: Any, method: str, path: str, token: str | None = ADMIN_TOKEN) -> httpx.Response:
    async def asking() -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as http:
            return await http.request(method, path, headers=headers)

    return asyncio.run(asking())


@pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)
def test_metric_goes_from_the_driver_to_everything_that_shows_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Station(tmp_path, monkeypatch).read_one(an_h200())
    assert reading.metrics["clock_video_mhz"] == 1755
    hub = Hub(now=FakeClock())
    hub.fleet.apply(make_envelope("gpu01", 1, [reading]), via="push", now=hub.stream.time)
    hub.stream.tick()
    app = make_app(hub)
    (host,) = ask(app, "GET", "/api/v1/hosts").json()["hosts"]
    assert host["gpus"][0]["clock_video_mhz"] == 1755
    assert 'gpudeck_gpu_clock_video_hertz{host="gpu01"' in ask(app, "GET", "/metrics").text
    reading.metrics["clock_video_mhz"] = 345
    hub.fleet.apply(make_envelope("gpu01", 2, [reading]), via="push", now=hub.stream.time)
    assert b'"clock_video_mhz"' in hub.stream.tick().plain
    row = {"name": "clock_video_mhz", "scope": "gpu", "unit": "megahertz", "label": "Video clock", "live": True}
    assert row in msgspec.json.decode(page_catalog())
    assert "clock_video_mhz" in api_document()


def test_rule_fires_on_a_host_with_hot_memory_and_ends_when_it_has_cooled_down() -> None:
    watched = Watched()
    watched.report("gpu01", make_gpu(0), make_gpu(1, metrics={"memory_temperature_celsius": 107}))
    watched.run(120)
    assert watched.firing() == [("memory_hot", "GPU 1 of gpu01 has memory at 107 °C")]
    watched.report("gpu01", make_gpu(0), make_gpu(1))
    watched.run(180)
    assert watched.firing() == []
    assert watched.titles()[-1] == "Resolved: GPU 1 of gpu01 has memory at 107 °C"


def test_limits_of_the_rule_are_settings(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("alerts: {rules: {memory_hot: {above: 110, for: 1m}}}\n")
    assert gpudeck_here(tmp_path, "check").returncode == 0


def test_route_answers_admins_alone_and_is_documented(tmp_path: Path) -> None:
    auth = make_auth(tmp_path)
    asyncio.run(auth.accounts.add("ada", "user", "correct horse battery"))
    auth.note_account()
    app = make_app(Hub(now=FakeClock()), auth=auth)
    path = "/api/v1/accounts/ada/logout"
    statuses = {token: ask(app, "POST", path, token).status_code for token in (ADMIN_TOKEN, "user-token", None)}
    assert statuses == {ADMIN_TOKEN: 200, "user-token": 403, None: 401}
    assert ask(app, "POST", "/api/v1/accounts/nobody/logout").status_code == 404
    document = msgspec.json.decode(api_document())
    assert document["paths"]["/api/v1/accounts/{name}/logout"]["post"]["description"].startswith("End all sessions")
    assert "/api/v1/accounts/{name}/logout" in api_routes()


def test_provider_finds_hosts_and_says_what_it_left_out() -> None:
    body = b'{"results": [{"name": "gpu01", "primary_ip": {"address": "192.0.2.1/24"}}, {"name": null}]}'

    async def find() -> tuple[list[tuple[str, str]], int]:
        async with json_server(body) as url:
            settings = msgspec.convert({"netbox": [{"url": url}]}, DiscoverySettings)
            (provider,) = make_providers([], settings)
            found = [(target.name, target.host) for target in await provider.find()]
            await provider.close()
            return found, len(provider.problems)

    assert asyncio.run(find()) == ([("gpu01", "192.0.2.1")], 1)


def test_settings_of_the_provider_are_checked_and_documented(tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.yaml"
    file.write_text("discovery: {netbox: [{url: https://netbox.example/api/dcim/devices/?limit=0}]}\n")
    assert gpudeck_here(tmp_path, "check").returncode == 0
    file.write_text("discovery: {netbox: [{url: https://netbox.example/, intervall: 10s}]}\n")
    told = gpudeck_here(tmp_path, "check")
    assert told.returncode == 2
    assert "interval" in told.stderr
    assert "How often NetBox is asked." in settings_reference()
