"""Every route × every role × every mode: who gets in, and who does not. A route without an entry fails here."""

import asyncio
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from fakes.api_app import ADMIN_TOKEN, AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.api.app import read_routes
from gpudeck.fleet.hub import Hub
from gpudeck.wire import encode

EVERYBODY = {"nobody", "agent", "viewer", "user", "admin"}
READERS = {"viewer", "user", "admin"}
USERS, ADMINS = {"user", "admin"}, {"admin"}
NOBODY: set[str] = set()

# Who gets in where reading is open, and who where it needs a login.
MATRIX: dict[tuple[str, str], tuple[set[str], set[str]]] = {
    ("GET", "/"): (EVERYBODY, EVERYBODY),
    ("GET", "/api"): (EVERYBODY, EVERYBODY),
    ("GET", "/{host:str}"): (EVERYBODY, EVERYBODY),
    ("GET", "/assets/{name:str}"): (EVERYBODY, EVERYBODY),
    ("GET", "/badge/free.svg"): (EVERYBODY, READERS),
    ("GET", "/embed/fleet"): (EVERYBODY, READERS),
    ("GET", "/healthz"): (EVERYBODY, EVERYBODY),
    ("GET", "/install.sh"): (EVERYBODY, EVERYBODY),
    ("GET", "/install/{name:str}"): (EVERYBODY, EVERYBODY),
    ("GET", "/readyz"): (EVERYBODY, EVERYBODY),
    ("GET", "/schema"): (EVERYBODY, EVERYBODY),
    ("GET", "/schema/openapi.json"): (EVERYBODY, EVERYBODY),
    ("GET", "/schema/{path:path}"): (EVERYBODY, EVERYBODY),
    ("GET", "/api/v1/me"): (EVERYBODY, EVERYBODY),
    ("POST", "/api/v1/login"): (EVERYBODY, EVERYBODY),
    ("POST", "/api/v1/logout"): (EVERYBODY, EVERYBODY),
    ("GET", "/api/v1/login/oidc/{name:str}"): (EVERYBODY, EVERYBODY),
    ("GET", "/api/v1/login/oidc/{name:str}/callback"): (EVERYBODY, EVERYBODY),
    ("POST", "/api/v1/login/oidc/{name:str}/logout"): (EVERYBODY, EVERYBODY),
    ("POST", "/api/v1/login/trials"): (ADMINS, ADMINS),
    ("GET", "/api/v1/login/trials/{trial_id:str}"): (ADMINS, ADMINS),
    ("POST", "/api/v1/first-admin"): (EVERYBODY, EVERYBODY),
    ("GET", "/metrics"): (EVERYBODY, READERS),
    ("GET", "/api/v1/sd"): (EVERYBODY, READERS),
    ("GET", "/api/v1/fleet"): (EVERYBODY, READERS),
    ("GET", "/api/v1/totals"): (EVERYBODY, READERS),
    ("GET", "/api/v1/users"): (EVERYBODY, READERS),
    ("GET", "/api/v1/stream"): (EVERYBODY, READERS),
    ("GET", "/api/v1/hosts"): (EVERYBODY, READERS),
    ("GET", "/api/v1/hosts/{host:str}"): (EVERYBODY, READERS),
    ("GET", "/api/v1/hosts/{host:str}/health"): (EVERYBODY, READERS),
    ("GET", "/api/v1/gpus"): (EVERYBODY, READERS),
    ("GET", "/api/v1/history"): (EVERYBODY, READERS),
    ("GET", "/api/v1/history/heat"): (EVERYBODY, READERS),
    ("GET", "/api/v1/history/overview"): (EVERYBODY, READERS),
    ("GET", "/api/v1/usage"): (EVERYBODY, READERS),
    ("GET", "/api/v1/waste"): (EVERYBODY, READERS),
    ("GET", "/api/v1/digest"): (USERS, USERS),
    ("GET", "/api/v1/idle-policy"): (EVERYBODY, READERS),
    ("GET", "/api/v1/idle-policy/dry-run"): (EVERYBODY, READERS),
    ("GET", "/api/v1/keeps"): (EVERYBODY, READERS),
    ("POST", "/api/v1/keeps"): (USERS, USERS),
    ("DELETE", "/api/v1/keeps/{number:int}"): (USERS, USERS),
    ("GET", "/api/v1/runs"): (EVERYBODY, READERS),
    ("GET", "/api/v1/runs/{run:int}"): (EVERYBODY, READERS),
    ("GET", "/api/v1/jobs"): (EVERYBODY, READERS),
    ("GET", "/api/v1/jobs/{job:str}"): (EVERYBODY, READERS),
    ("GET", "/api/v1/jobs/{namespace:str}/{job:str}"): (EVERYBODY, READERS),
    ("GET", "/api/v1/events"): (EVERYBODY, READERS),
    ("GET", "/api/v1/export/samples"): (EVERYBODY, READERS),
    ("GET", "/api/v1/export/runs"): (EVERYBODY, READERS),
    ("GET", "/api/v1/export/usage"): (EVERYBODY, READERS),
    ("GET", "/api/v1/export/events"): (EVERYBODY, READERS),
    ("GET", "/api/v1/reliability"): (EVERYBODY, READERS),
    ("GET", "/api/v1/alerts"): (EVERYBODY, READERS),
    ("GET", "/api/v1/alerts/test"): (EVERYBODY, READERS),
    ("POST", "/api/v1/alerts/acknowledge"): (USERS, USERS),
    ("POST", "/api/v1/alerts/unacknowledge"): (USERS, USERS),
    ("POST", "/api/v1/alerts/{key:str}/acknowledge"): (USERS, USERS),
    ("GET", "/api/v1/mutes"): (EVERYBODY, READERS),
    ("POST", "/api/v1/mutes"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/mutes/{key:str}"): (ADMINS, ADMINS),
    ("GET", "/api/v1/maintenance"): (EVERYBODY, READERS),
    ("POST", "/api/v1/maintenance"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/maintenance/{number:int}"): (ADMINS, ADMINS),
    ("PUT", "/api/v1/hosts/{host:str}/note"): (ADMINS, ADMINS),
    ("POST", "/api/v1/ask"): (USERS, USERS),
    ("GET", "/api/v1/about"): (EVERYBODY, READERS),
    ("GET", "/api/v1/reservations"): (EVERYBODY, READERS),
    ("GET", "/api/v1/reservations/{number:int}"): (EVERYBODY, READERS),
    ("GET", "/api/v1/reservations/next"): (EVERYBODY, READERS),
    ("GET", "/api/v1/reservations.ics"): (EVERYBODY, READERS),
    ("POST", "/api/v1/reservations"): (USERS, USERS),
    ("POST", "/api/v1/reservations/preview"): (USERS, USERS),
    ("PATCH", "/api/v1/reservations/{number:int}"): (USERS, USERS),
    ("DELETE", "/api/v1/reservations/{number:int}"): (USERS, USERS),
    ("POST", "/api/v1/reports"): ({"agent"}, {"agent"}),
    ("GET", "/api/v1/host-origins"): (ADMINS, ADMINS),
    ("POST", "/api/v1/jobs/import"): (ADMINS, ADMINS),
    ("POST", "/api/v1/hosts"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/hosts"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/hosts/{host:str}"): (ADMINS, ADMINS),
    ("POST", "/api/v1/device"): (EVERYBODY, EVERYBODY),
    ("POST", "/api/v1/device/token"): (EVERYBODY, EVERYBODY),
    ("GET", "/api/v1/sessions"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/sessions/{session_id:str}"): (ADMINS, ADMINS),
    # Tokens without an account have no self.
    ("GET", "/api/v1/device/{user_code:str}"): (NOBODY, NOBODY),
    ("POST", "/api/v1/device/{user_code:str}"): (NOBODY, NOBODY),
    ("DELETE", "/api/v1/me/sessions/{session_id:str}"): (NOBODY, NOBODY),
    ("GET", "/api/v1/me/tokens"): (NOBODY, NOBODY),
    ("DELETE", "/api/v1/me/tokens/{token_id:int}"): (NOBODY, NOBODY),
    ("POST", "/api/v1/logout-everywhere"): (NOBODY, NOBODY),
    ("GET", "/api/v1/me/sessions"): (NOBODY, NOBODY),
    ("POST", "/api/v1/me/password"): (NOBODY, NOBODY),
    ("POST", "/api/v1/me/token"): (NOBODY, NOBODY),
    ("DELETE", "/api/v1/me/token"): (NOBODY, NOBODY),
    ("GET", "/api/v1/me/mutes"): (NOBODY, NOBODY),
    ("PUT", "/api/v1/me/mutes"): (NOBODY, NOBODY),
    ("GET", "/api/v1/me/views"): (NOBODY, NOBODY),
    ("PUT", "/api/v1/me/views"): (NOBODY, NOBODY),
    ("GET", "/api/v1/tokens"): (USERS, USERS),
    ("POST", "/api/v1/tokens"): (USERS, USERS),
    ("DELETE", "/api/v1/tokens/{token_id:int}"): (USERS, USERS),
    ("GET", "/api/v1/accounts"): (ADMINS, ADMINS),
    ("POST", "/api/v1/accounts"): (ADMINS, ADMINS),
    ("PATCH", "/api/v1/accounts/{name:str}"): (ADMINS, ADMINS),
    ("DELETE", "/api/v1/accounts/{name:str}"): (ADMINS, ADMINS),
    ("GET", "/api/v1/queue"): (EVERYBODY, READERS),
    ("POST", "/api/v1/queue"): (USERS, USERS),
    ("GET", "/api/v1/queue/{number:int}"): (USERS, USERS),
    ("DELETE", "/api/v1/queue/{number:int}"): (USERS, USERS),
    ("GET", "/api/v1/watches"): (USERS, USERS),
    ("POST", "/api/v1/watches"): (USERS, USERS),
    ("DELETE", "/api/v1/watches/{number:int}"): (USERS, USERS),
    ("GET", "/api/v1/audit"): (ADMINS, ADMINS),
}
RAW = {("POST", "/api/v1/reports"), ("GET", "/api/v1/stream")}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/api/v1/tokens"): {"name": "t", "role": "viewer"},
}
SECRETS = {
    "stranger": "gd_admin_made-up",
    "agent": AGENT_TOKEN,
    "viewer": "viewer-token",
    "user": "user-token",
    "admin": ADMIN_TOKEN,
}
REFUSED = {401, 403}


def routes_of(app: Litestar) -> set[tuple[str, str]]:
    return {
        (method, route.path_format)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }


def in_words(route: tuple[str, str]) -> tuple[str, str]:
    """As the framework writes a path with parameters."""
    method, path = route
    return method, path.replace(":str}", "}").replace(":int}", "}").replace(":path}", "}")


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    """A hub that is open to readers, and one that is not."""
    made = {}
    for is_readable in (True, False):
        hub = Hub(now=FakeClock())
        hub.fleet.apply(make_envelope(), via="push", now=hub.stream.time)
        hub.stream.tick()
        made[is_readable] = make_app(hub, is_readable=is_readable, folder=tmp_path_factory.mktemp("hub"))
    return made


def ask(app: Any, route: tuple[str, str], role: str) -> int:
    """The status; a stream is left as soon as it has begun."""
    method, path = route
    filled = (
        path.replace("{host:str}", "nobody")
        .replace("{name:str}", "nobody")
        .replace("{key:str}", "0")
        .replace("{user_code:str}", "BCDF-GHJK")
        .replace("{session_id:str}", "0123456789abcdef")
        .replace("{token_id:int}", "999")
        .replace("{trial_id:str}", "nothing")
        .replace("{run:int}", "999")
        .replace("{number:int}", "999")
        .replace("{number:int}", "999")
        .replace("{path:path}", "x")
    )
    headers = {"Authorization": f"Bearer {SECRETS[role]}"} if role in SECRETS else {}
    options: dict[str, Any] = {"json": BODIES.get(route, {})} if method in {"POST", "PATCH", "PUT"} else {}
    if route == ("POST", "/api/v1/reports"):
        options = {"content": encode(make_envelope("gpu09"))}
        headers |= {"Content-Type": "application/msgpack", "Content-Encoding": "zstd"}
    # A stream never ends; who may open it may look at its head.
    method = "HEAD" if route[1] == "/api/v1/stream" else method

    async def call() -> int:
        transport = httpx.ASGITransport(app, client=("192.0.2.7", 40000))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return (await client.request(method, filled, headers=headers, **options)).status_code

    return asyncio.run(call())


def test_every_route_has_an_entry_and_every_entry_a_route() -> None:
    app = read_routes()
    assert routes_of(app) | RAW == {in_words(route) for route in MATRIX}


@pytest.mark.parametrize("is_readable", [True, False], ids=["read-open", "read-login"])
@pytest.mark.parametrize("route", MATRIX, ids=" ".join)
def test_route_lets_in_whom_it_should_and_nobody_else(
    apps: dict[bool, Any], route: tuple[str, str], is_readable: bool
) -> None:
    wanted = MATRIX[route][0 if is_readable else 1]
    let_in = {role for role in EVERYBODY if ask(apps[is_readable], route, role) not in REFUSED}
    assert let_in == wanted


@pytest.mark.parametrize("route", [("GET", "/api/v1/fleet"), ("POST", "/api/v1/hosts")], ids=" ".join)
def test_token_that_nobody_knows_opens_nothing(apps: dict[bool, Any], route: tuple[str, str]) -> None:
    assert ask(apps[True], route, "stranger") == 401
