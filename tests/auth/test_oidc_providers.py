"""Logging in through real OIDC providers, without a browser: what becomes of it, and how it ends."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fakes.hubs import HubProcess
from fakes.oidc_hub import HubPlace, entry
from fakes.oidc_providers import NodeProvider, node_provider, pass_forms


@pytest.fixture
def place(tmp_path: Path) -> HubPlace:
    return HubPlace(tmp_path)


@pytest.fixture
def provider(place: HubPlace) -> Iterator[NodeProvider]:
    with node_provider(place.folder, place.url) as provider:
        yield provider


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as browser:
        yield browser


def log_in(browser: httpx.Client, hub: HubProcess, user: str, name: str = "node", after: str = "") -> httpx.Response:
    """The last answer of the hub."""
    start = f"{hub.url}/api/v1/login/oidc/{name}{after}"
    callback = pass_forms(browser, start, user, f"{hub.url}/api/v1/login/oidc/{name}/callback")
    return browser.get(callback)


def test_a_login_gives_role_and_group_and_goes_where_the_link_pointed(
    place: HubPlace, provider: NodeProvider, browser: httpx.Client
) -> None:
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:
        me = httpx.get(f"{hub.url}/api/v1/me").json()
        assert me["providers"] == [{"name": "node", "label": "Node account", "problem": None}]
        answer = log_in(browser, hub, "ada", after="?next=%3Fq%3Dfree%23%2Fevents")
        assert answer.headers["location"] == f"{hub.url}/?q=free#/events"
        me = browser.get(f"{hub.url}/api/v1/me").json()
        assert (me["name"], me["role"], me["logins"], me["provider"]) == ("ada", "admin", ["ada"], "Node account")
        actions = [(one["action"], one["details"]) for one in browser.get(f"{hub.url}/api/v1/audit").json()["entries"]]
        assert actions[:2] == [("log in", "by node"), ("add account", "by node")]
