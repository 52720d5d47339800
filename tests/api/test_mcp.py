"""The tools of MCP, asked by the official client: over stdio and HTTP, in both generations of the protocol."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from fakes.api_app import make_app
from fakes.hubs import HubProcess, environment
from fakes.reports import make_envelope
from fakes.still_fleet import running_still_hub
from gpudeck.api.access import Policy
from gpudeck.api.mcp import McpApp
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.client import Client as HubClient
from gpudeck.fleet.hub import Hub
from gpudeck.mcp.server import make_server
from gpudeck.server.asgi import Scope

READ = {"free_gpus", "who_is_where", "history", "usage", "runs", "run", "events", "health", "job_report"}
CHANGE = {"reserve", "release", "watch"}
PASSWORD = "correct horse battery"


class Place(NamedTuple):
    hub: HubProcess
    ada: str
    viewer: str
    admin: str

    def http(self, token: str | None, mode: str = "auto") -> AbstractAsyncContextManager[Client]:
        @asynccontextmanager
        async def connect() -> AsyncIterator[Client]:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                transport = streamable_http_client(f"{self.hub.url}/mcp", http_client=http)
                async with Client(transport, mode=mode) as client:
                    yield client

        return connect()

    def stdio(self, token: str | None, mode: str = "auto") -> AbstractAsyncContextManager[Client]:
        own = environment(self.hub.data_dir) | ({} if token is None else {"GPUDECK_TOKEN": token})
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "gpudeck", "mcp", "--hub", self.hub.url], env=own
        )
        return Client(command, mode=mode)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_still_hub(tmp_path_factory.mktemp("hub")) as hub:
        admin = HubClient(hub.url, token=(hub.data_dir / "admin.token").read_text().strip())
        admin.post("/api/v1/accounts", {"name": "ada", "role": "user", "password": PASSWORD})
        viewer = json.loads(admin.post("/api/v1/tokens", {"name": "screen", "role": "viewer"}))["secret"]
        ada = HubClient(hub.url).log_in("ada", PASSWORD, "assistant", 3600.0).secret
        yield Place(hub, ada, viewer, (hub.data_dir / "admin.token").read_text().strip())


def ask(connect: AbstractAsyncContextManager[Client], *calls: tuple[str, dict[str, Any]]) -> list[CallToolResult]:
    async def run() -> list[CallToolResult]:
        async with connect as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def names(connect: AbstractAsyncContextManager[Client]) -> set[str]:
    async def run() -> set[str]:
        async with connect as client:
            listed = (await client.list_tools()).tools
            hints = {tool.name: tool.annotations.read_only_hint for tool in listed if tool.annotations is not None}
            assert {name for name, is_read in hints.items() if is_read} == READ
            return set(hints)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("way", "mode"),
    [
        pytest.param(Place.http, "auto", id="http"),
        pytest.param(Place.http, "legacy", id="http-legacy"),
        pytest.param(Place.stdio, "auto", id="stdio"),
        pytest.param(Place.stdio, "legacy", id="stdio-legacy", marks=pytest.mark.slow),
    ],
)
def test_free_gpus_with_what_is_not_known(
    place: Place, way: Callable[..., AbstractAsyncContextManager[Client]], mode: str
) -> None:
    wanted = {"gpus": 2, "memory": "40G", "model": "a100", "same_host": False}
    (answer,) = ask(way(place, place.viewer, mode), ("free_gpus", wanted))
    told = answer.structured_content
    assert not answer.is_error
    assert told["found"]["enough"]
    assert len(told["found"]["choice"]) == 2
    assert told["found"]["fitting_count"] == 11
    assert told["unknown"] == ["GPU 3 of gpu01: neither its processes nor its memory could be read"]
    assert told["evidence"] == ["GET /api/v1/fleet?shape=columns", "GET /api/v1/queue"]
    assert told["time"].startswith(time.strftime("%Y-", time.gmtime()))
    assert json.loads(answer.content[0].text) == told


def test_each_reading_tool_answers(place: Place) -> None:
    where, graph, hours, listed, past, one, whole, job, wrong, strange = ask(
        place.http(place.viewer),
        ("who_is_where", {"user": "alice"}),
        ("history", {"metric": "gpus_free", "fleet": True, "start": "-1h"}),
        ("usage", {"by": "host", "start": "-1h"}),
        ("runs", {"now": True, "limit": 3}),
        ("events", {"kind": "host_seen", "limit": 5}),
        ("health", {"host": "gpu01"}),
        ("health", {}),
        ("job_report", {"job": "4711"}),
        ("free_gpus", {"gpus": 0}),
        ("no_such_tool", {}),
    )
    (gpu,) = where.structured_content["found"]["gpus"]
    assert (gpu["host"], gpu["users"]) == ("gpu01", ["alice"])
    assert all("evidence" in process for process in gpu["processes"])
    assert graph.structured_content["found"]["metric"] == "gpus_free"
    assert hours.structured_content["found"]["by"] == "host"
    assert all("verdict" in run for run in listed.structured_content["found"]["runs"])
    assert len(past.structured_content["found"]["events"]) == 5
    assert past.structured_content["unknown"] == [
        "there are older events that are not listed: raise the limit or shorten the time"
    ]
    assert one.structured_content["found"]["verdict"] == "unknown"
    assert any(text.startswith("GPU 3:") for text in one.structured_content["unknown"])
    assert whole.structured_content["found"]["totals"]["hosts"] == 24
    assert [answer.is_error for answer in (job, wrong, strange)] == [True] * 3
    assert "4711" in job.content[0].text
    assert "gpus" in wrong.content[0].text
    assert "there is no tool 'no_such_tool'" in strange.content[0].text


@pytest.mark.parametrize("way", [Place.http, Place.stdio], ids=["http", "stdio"])
def test_a_user_changes_what_the_user_may_and_it_is_in_the_audit_log(
    place: Place, way: Callable[..., AbstractAsyncContextManager[Client]]
) -> None:
    wanted = {"host": "gpu05", "indexes": [0], "length": "1h", "note": "by an assistant"}
    (made,) = ask(way(place, place.ada), ("reserve", wanted))
    assert not made.is_error, made.content
    reservation = made.structured_content["found"]
    assert (reservation["user"], reservation["note"]) == ("ada", "by an assistant")
    taken, released, again, watched = ask(
        way(place, place.ada),
        ("reserve", wanted),
        ("release", {"reservation": reservation["id"]}),
        ("release", {"reservation": 999_999}),
        ("watch", {"gpus": 4, "memory": "70G"}),
    )
    assert [answer.is_error for answer in (taken, released, again, watched)] == [True, False, True, False]
    assert "reserved by ada" in taken.content[0].text
    assert watched.structured_content["found"]["wanted"]["gpus"] == 4
    audit = json.loads(HubClient(place.hub.url, token=place.admin).get("/api/v1/audit"))["entries"]
    done = {entry["action"] for entry in audit if entry["who"].startswith("ada (token")}
    assert {"reserve GPUs", "release reservation", "add watch"} <= done


def test_a_viewer_changes_nothing(place: Place) -> None:
    (refused,) = ask(place.http(place.viewer), ("reserve", {"host": "gpu07", "length": "1h"}))
    assert refused.is_error
    assert "needs the role user" in refused.content[0].text


def test_tools_that_change_something_are_listed_for_tokens(place: Place) -> None:
    assert names(place.http(place.ada)) == READ | CHANGE


def test_who_may_not_read_gets_nothing(place: Place) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepted = {"Accept": "application/json, text/event-stream"}
    for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401)):
        answer = httpx.post(f"{place.hub.url}/mcp", json=call, headers=accepted | headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, "unauthorized")
    own = accepted | {"Authorization": f"Bearer {place.viewer}"}
    assert httpx.get(f"{place.hub.url}/mcp", headers=own).status_code == 405
    assert httpx.post(f"{place.hub.url}/mcp", content=b" " * 300_000, headers=own).status_code == 413


class TrustedMachine:
    """A hub that its own machine may use without a token."""

    has_token = False

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        raise AssertionError(f"a test asks for {method} {path}")


def test_without_a_token_nothing_is_changed() -> None:
    server = make_server(TrustedMachine())
    assert names(Client(server)) == READ
    (refused,) = ask(Client(server), ("reserve", {"host": "gpu01", "length": "1h"}))
    assert refused.is_error
    assert "needs your own token" in refused.content[0].text


def test_a_hub_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    hub.fleet.apply(make_envelope(), via="push", now=time.time())
    app = make_app(hub)

    async def identify(_: Scope) -> Caller:
        return NOBODY

    async def post(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(McpApp(app, Policy(is_readable=True), identify, "/gpus"))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return await client.post(path)

    monkeypatch.setattr("gpudeck.model.plugins.find_spec", lambda name: None)
    for path in ("/mcp", "/gpus/mcp"):
        answer = asyncio.run(post(path))
        assert answer.status_code == 501
        assert "gpudeck[mcp]" in answer.json()["error"]["hint"]
    assert asyncio.run(post("/mcp/")).status_code in {404, 405}


def test_the_command_names_the_missing_package(tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415

    program = "import sys; sys.modules['mcp'] = None; from gpudeck.cli import main; main()"
    command = [sys.executable, "-c", program, "mcp", "--hub", "127.0.0.1:1"]
    ended = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "gpudeck mcp needs gpudeck[mcp], which is not installed" in ended.stderr
