"""The OpenAPI document as documentation, and as what generators of clients need: the clients that they make are used
against a real hub."""

import asyncio
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.hubs import running_hub
from fakes.waiting import wait_until
from gpudeck import Client
from gpudeck.api.app import read_routes
from gpudeck.api.descriptions import DESCRIPTIONS
from gpudeck.api.reference import render_reference
from gpudeck.api.schema import complete_schema
from gpudeck.fleet.hub import Hub
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

WEB = Path(__file__).parents[2] / "web"
DOCUMENT = complete_schema(read_routes())
SHAPES: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]


def test_every_property_says_what_it_means_and_what_null_means() -> None:
    properties = [
        (f"{shape}.{name}", one) for shape in SHAPES for name, one in SHAPES[shape].get("properties", {}).items()
    ]
    assert [name for name, one in properties if not one.get("description")] == []
    assert [
        name for name, one in properties if '"null"' in str(one).replace("'", '"') and "null:" not in one["description"]
    ] == []
    # Not nullable, and so nothing is said of null.
    assert SHAPES["Totals"]["properties"]["idle"]["description"] == DESCRIPTIONS["idle"]
    assert SHAPES["Gpu"]["properties"]["power_watts"]["description"] == "Power, in watts; null: unknown, see `reasons`"
    assert SHAPES["Host"]["properties"]["memory_used_bytes"]["description"].startswith("RAM used, in bytes; null:")
    assert SHAPES["Gpu"]["description"].startswith("A GPU with its metrics and its state.")


def test_no_description_is_of_a_property_that_does_not_exist() -> None:
    names = {name for shape in SHAPES.values() for name in shape.get("properties", ())}
    full = {f"{shape}.{name}" for shape in SHAPES for name in SHAPES[shape].get("properties", ())}
    assert set(DESCRIPTIONS) - names - full == set()
    assert set(DESCRIPTIONS) & ({*GPU_METRICS} | {*HOST_METRICS}) == set()


def test_every_operation_has_a_name_a_group_a_summary_and_says_who_may_call_it() -> None:
    ids = Counter(operation["operationId"] for operation in OPERATIONS)
    assert [name for name in ids if ids[name] > 1 or not re.fullmatch(r"[a-z]+[A-Za-z]*", name)] == []
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert [operation["operationId"] for operation in OPERATIONS if len(tags & {*operation["tags"]}) != 1] == []
    assert [
        operation["operationId"] for operation in OPERATIONS if not operation["summary"] or not operation["security"]
    ] == []
    by_id = {operation["operationId"]: operation for operation in OPERATIONS}
    assert by_id["addAccount"]["security"] == [{"bearer": []}, {"session": []}]
    assert {} in by_id["readFleet"]["security"]
    assert by_id["sendReport"]["security"] == [{"bearer": []}]
    told = [
        (operation["operationId"], one["name"])
        for operation in OPERATIONS
        for one in operation["parameters"]
        if not one.get("description")
    ]
    assert told == []


def test_examples_are_of_the_type_of_what_they_are_examples_for() -> None:
    free = SHAPES["Gpu"]["properties"]
    assert free["uuid"]["examples"][0].startswith("GPU-")
    assert free["availability"]["examples"][0] in free["availability"]["enum"]
    assert "examples" not in SHAPES["GpuHealth"]["properties"]["verdict"]
    metric = next(one for operation in OPERATIONS for one in operation["parameters"] if one["name"] == "metric")
    assert metric["schema"]["examples"] == ["utilization_percent"]


def test_client_that_openapi_python_client_generates_asks_a_real_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hub(tmp_path, "--demo", "3") as hub:
        wait_until(lambda: Client(hub.url).totals().gpus, "the simulated fleet")
        (tmp_path / "openapi.json").write_bytes(hub.get("/schema/openapi.json"))
        generator = Path(sys.executable).with_name("openapi-python-client")
        arguments = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "generated_hub")
        done = subprocess.run(
            [generator, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout
        assert "Unable to process" not in done.stdout
        assert [line for line in done.stdout.splitlines() if "will not be generated" in line] == []
        monkeypatch.syspath_prepend(tmp_path)
        package = importlib.import_module("generated_hub")
        with package.Client(base_url=hub.url, raise_on_unexpected_status=True) as client:
            fleet = importlib.import_module("generated_hub.api.fleet.read_fleet").sync(client=client)
            assert fleet.totals.gpus == sum(len(host.gpus) for host in fleet.hosts)
            assert {gpu.availability.value for host in fleet.hosts for gpu in host.gpus} <= {
                "free",
                "busy",
                "idle",
                "allocated",
                "reserved",
                "drained",
                "unknown",
            }
            free = importlib.import_module("generated_hub.api.fleet.list_gpus").sync(client=client, limit=2)
            assert len(free.gpus) == 2
            absent = importlib.import_module("generated_hub.api.fleet.read_host").sync(client=client, host="nowhere")
            assert absent.error.code == "unknown_host"
        history = importlib.import_module("generated_hub.api.history.read_history")

        async def read() -> str:
            async with package.Client(base_url=hub.url) as client:
                found = await history.asyncio(client=client, metric="power_watts", fleet=True, start="-1h")
            return str(found.unit)

        assert asyncio.run(read())


def test_page_shows_every_route_and_shape_and_needs_nothing_from_outside() -> None:
    app = make_app(Hub(now=FakeClock()))

    async def get(encoding: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub") as client:
            return await client.get("/api", headers={"Accept-Encoding": encoding})

    answer, packed = asyncio.run(get("identity")), asyncio.run(get("gzip"))
    assert answer.status_code == 200
    assert "script-src" not in answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert packed.text == answer.text
    anchors = re.findall(r" id=([\w-]+)>", answer.text)
    assert len(anchors) == len(set(anchors))
    assert {operation["operationId"] for operation in OPERATIONS} | set(SHAPES) <= set(anchors)
    assert set(re.findall(r"href=#([\w-]+)", answer.text)) <= set(anchors)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', answer.text)) == {"schema/openapi.json"}


def test_page_escapes_what_the_document_says() -> None:
    bad = "<script>alert(1)</script> `a<b`"
    operation = {"operationId": "readIt", "summary": bad, "description": bad, "security": [{}], "tags": ["Hub"]}
    operation |= {"parameters": [{"name": "q", "schema": {"type": "string", "examples": [bad]}}]}
    operation |= {"responses": {"200": {"description": bad}}}
    shape = {"description": bad, "properties": {bad: {"enum": [bad]}}}
    document = DOCUMENT | {"paths": {"/it": {"get": operation}}, "components": {"schemas": {"It": shape}}}
    page = render_reference(document)
    assert "<script" not in page
    assert "<code>a&lt;b</code>" in page


PROGRAM = """
import type { components, operations } from "./gpudeck";

type Gpu = components["schemas"]["Gpu"];
const watts = (gpu: Gpu): number | null => gpu.power_watts;
const asked: operations["readHistory"]["parameters"]["query"] = { metric: "power_watts", fleet: true };
export const first = (fleet: components["schemas"]["Fleet"]): number | null => watts(fleet.hosts[0]!.gpus[0]!);
export default asked;
// @ts-expect-error unknown is never a number
export const wrong = (gpu: Gpu): number => gpu.power_watts;
"""


@pytest.mark.skipif(
    not (WEB / "node_modules" / ".bin" / "tsc").exists(), reason="the page's packages are not installed"
)
def test_types_that_openapi_typescript_generates_compile(tmp_path: Path) -> None:
    tools = WEB / "node_modules" / ".bin"
    source = WEB / "src" / "api" / "openapi.json"
    for command in (
        [
            tools / "openapi-typescript",
            source,
            "--default-non-nullable",
            "false",
            "--output",
            tmp_path / "gpudeck.d.ts",
        ],
        [tools / "tsc", "--noEmit", "--strict", "--noUncheckedIndexedAccess", tmp_path / "program.ts"],
    ):
        (tmp_path / "program.ts").write_text(PROGRAM)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_structs_that_are_not_of_the_api_change_nothing() -> None:
    before = complete_schema(read_routes())

    class Alert(Struct, forbid_unknown_fields=True, omit_defaults=True):
        """A plugin's, with the name of one of the API."""

        rule: str = ""

    assert Alert.__name__ in before["components"]["schemas"]
    assert complete_schema(read_routes()) == before
