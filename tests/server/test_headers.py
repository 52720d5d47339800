"""What every answer carries, whichever route gives it and whatever is wrong."""

import asyncio
from typing import Any

import httpx
import pytest

from fakes.api_app import make_app
from fakes.reports import make_envelope
from gpudeck.api.page import PAGE
from gpudeck.fleet.hub import Hub
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.asgi import SAFE_HEADERS, SafeApp

NAMES = [name.decode() for name, _ in SAFE_HEADERS]
_hub = Hub()
_hub.fleet.apply(make_envelope(), via="push", now=_hub.started_at)
_hub.stream.tick()
_DOOR = make_app(_hub)


def ask(method: str, path: str, app: Any = None, base: str = "http://hub", **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app or SafeApp(_DOOR))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **options)

    return asyncio.run(call())


def every_route() -> list[tuple[str, str]]:
    """All of the OpenAPI document, and those that are not in it. The stream has no end: it is asked for its head."""
    paths = ask("GET", "/schema/openapi.json").json()["paths"]
    told = [(method.upper(), path.replace("{host}", "gpu01")) for path, on in paths.items() for method in on]
    wrong = [("GET", "/nowhere"), ("PATCH", "/api/v1/fleet"), ("GET", "/api/v1/reports"), ("GET", "/assets/../x")]
    others = [("GET", "/"), ("HEAD", "/"), ("GET", "/schema/openapi.json"), ("HEAD", "/api/v1/stream")]
    return sorted({*told, *wrong, *others} - {("GET", "/api/v1/stream")})


def check(answer: httpx.Response) -> None:
    for name in NAMES:
        assert len(answer.headers.get_list(name)) == 1, name
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    policy = answer.headers["content-security-policy"]
    # One page is made to be framed by other sites: it has no script and no control.
    ancestors = "*" if answer.request.url.path == "/embed/fleet" else "'none'"
    assert policy.split("; ")[-1] == f"frame-ancestors {ancestors}"
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(("method", "path"), every_route())
def test_every_route_answers_with_all_of_them_once(method: str, path: str) -> None:
    check(ask(method, path))


def test_routes_are_found_in_the_document() -> None:
    routes = every_route()
    assert {("GET", "/api/v1/fleet"), ("POST", "/api/v1/reports"), ("GET", "/api/v1/hosts/gpu01")} <= set(routes)


def test_terminals_and_redirects_and_refusals_get_them_too() -> None:
    check(ask("GET", "/", headers={"User-Agent": "curl/8.0"}))
    check(ask("GET", "/gpus", SafeApp(make_app(_hub, "/gpus"))))
    limited = SafeApp(AdmissionGate(_DOOR, LimitsSettings(requests_burst=1, requests_per_second=0.001), hold=0.0))
    ask("GET", "/healthz", limited)
    refused = ask("GET", "/healthz", limited)
    assert refused.status_code == 429
    check(refused)


@pytest.mark.skipif(not (PAGE / "index.html").is_file(), reason="the page is not built: make page")
def test_the_page_may_load_its_own_scripts_and_holds_none() -> None:
    answer = ask("GET", "/")
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    for tag in answer.text.split("<script")[1:]:
        assert "src=" in tag.partition(">")[0]
        assert tag.partition(">")[2].startswith("</script>")
    assert " style=" not in answer.text
    assert "<style" not in answer.text


def test_answers_of_programs_may_load_nothing() -> None:
    assert "script-src" not in ask("GET", "/api/v1/fleet").headers["content-security-policy"]


@pytest.mark.parametrize(("base", "times"), [("http://hub", 0), ("https://hub", 1)])
def test_browsers_are_told_to_stay_with_tls_only_where_there_is_tls(base: str, times: int) -> None:
    assert len(ask("GET", "/healthz", base=base).headers.get_list("strict-transport-security")) == times


@pytest.mark.parametrize(("proxy", "times"), [("127.0.0.1", 1), ("192.0.2.1", 0)])
def test_tls_of_a_proxy_counts_where_the_proxy_is_trusted(proxy: str, times: int) -> None:
    app = SafeApp(AdmissionGate(_DOOR, LimitsSettings(), proxies=[proxy]))
    answer = ask("GET", "/healthz", app, headers={"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"})
    assert len(answer.headers.get_list("strict-transport-security")) == times
