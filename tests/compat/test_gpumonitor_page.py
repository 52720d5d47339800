"""Where gpumonitor's page was: its bookmarks, its own block for Caddy, its totals by user."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import httpx
import pytest

from compat.nodes import xmlrpc_node
from compat.test_gpumonitor import captured
from fakes.api_app import make_app
from fakes.fleets import fleet_of
from fakes.hubs import running_hub
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.reverse_proxies import caddy_with
from fakes.waiting import wait_until
from gpudeck.compat.gpumonitor import GpusPageRoute, list_processes, sum_by_user
from gpudeck.fleet.hub import Hub
from gpudeck.model.report import GpuReading, Process
from gpudeck.views.static_page import POLICY

CADDY = """
    redir /gpus/ /gpus
    reverse_proxy /gpus localhost:8042
"""
"""The block of its README, without the name of the site around it."""


def ask(
    path: str, method: str = "GET", prefix: str = "", *, is_readable: bool = True, **headers: str
) -> httpx.Response:
    hub = Hub()
    hub.ingest.take_fetched(
        make_envelope("gpu01", gpus=[make_busy_gpu(0, user="<b>ada"), make_gpu(1)]), via="pull", target="gpu01"
    )
    app = make_app(
        hub,
        prefix,
        is_readable=is_readable,
        foreign_routes=lambda house, keeper: [GpusPageRoute(house.hub, identify=keeper.identify, policy=house.policy)],
    )

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("path", "refresh"), [("/gpus", 60), ("/index", 60), ("/gpus?refresh=5", 5), ("/gpus?refresh=x", 60)]
)
@pytest.mark.parametrize("prefix", ["", "/gpus"])
def test_bookmarks_lead_to_a_page_that_needs_nothing_else(path: str, refresh: int, prefix: str) -> None:
    answer = ask(path, prefix=prefix)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == POLICY
    assert f"<meta http-equiv=refresh content={refresh}>" in answer.text
    assert "<tr><td>&lt;b&gt;ada<td>20.00 GiB<td>1<td>gpu01-0" in answer.text
    assert "<tr><td>gpu01<td>0<td>&lt;b&gt;ada<td>20.00 GiB<td>–<td>4711" in answer.text
    assert not re.search(r"(?:src|href)=", answer.text)


def test_page_is_only_read_and_only_by_those_who_may_look() -> None:
    assert ask("/gpus", "POST").status_code == 405
    assert ask("/gpus", "HEAD").text == ""
    assert ask("/gpus", is_readable=False).status_code == 401
    assert ask("/gpus", is_readable=False, Authorization="Bearer viewer-token").status_code == 200


def test_process_on_four_gpus_counts_four_times_as_there() -> None:
    def gpu(number: int, *processes: Process) -> GpuReading:
        return make_gpu(number, processes=list(processes))

    ada, bob, lost = make_process(1, "ada", gib=2), make_process(2, "bob", gib=9), make_process(3, None)
    fleet = fleet_of(("a", [gpu(0, ada, bob), gpu(1, ada), gpu(2, ada), gpu(3, ada, lost)]))
    assert sum_by_user(fleet) == [("bob", "9.00 GiB", "1", "a-0"), ("ada", "8.00 GiB", "4", "a-0,1,2,3")]


def test_processes_are_listed_with_gpu_user_memory_time_and_pid_as_there() -> None:
    ada = make_process(24571, "ada", gib=5, started_at=fleet_of().time - 359)
    nobody = Process(pid=0, user=None, memory_used_bytes=None)
    fleet = fleet_of(("a", [make_gpu(0, processes=[ada, nobody]), make_gpu(1, processes=[ada])]))
    assert list_processes(fleet) == [
        ("a", "0", "ada", "5.00 GiB", "5m", "24571"),
        ("a", "0", "–", "– GiB", "–", "–"),
        ("a", "1", "ada", "5.00 GiB", "5m", "24571"),
    ]


def test_its_own_block_for_caddy_works_unchanged(tmp_path: Path) -> None:
    with xmlrpc_node(lambda: json.dumps(captured())) as node:
        (tmp_path / "gpudeck.yaml").write_text(
            f"demo: never\nlocal: never\nread: open\npath_prefix: /gpus\ncompat: {{gpumonitor: {{port: {node}}}}}\n"
            "hosts: [{name: host1, via: gpumonitor, address: 127.0.0.1}]\n"
        )
        with running_hub(tmp_path) as hub:
            block = CADDY.replace("localhost:8042", hub.url.removeprefix("http://"))
            wait_until(lambda: b"host1-" in hub.get("/index"), "the node's users")
            with caddy_with(tmp_path, block) as site:
                for path in ("/gpus", "/gpus/"):
                    with urllib.request.urlopen(f"{site}{path}", timeout=20) as answer:
                        text = answer.read().decode()
                    assert answer.url == f"{site}/gpus"
                    assert "host1" in text
