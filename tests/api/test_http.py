"""The API in-process: what each route answers, and that every error has one shape."""

import asyncio
import math
from typing import Any

import httpx
import msgspec
import pytest

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import GIB, make_busy_gpu, make_envelope, make_gpu
from gpudeck.api import schema
from gpudeck.api.app import MOST_BODY_BYTES
from gpudeck.api.stream import read_hosts
from gpudeck.fleet.hub import Hub
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess
from gpudeck.server.asgi import ErrorBody
from gpudeck.wire import MAX_BODY_BYTES, encode

AGENT = {"Authorization": "Bearer agent-token", "Content-Type": "application/msgpack", "Content-Encoding": "zstd"}


class Api:
    """The ASGI application of a hub on a clock of its own."""

    def __init__(self, prefix: str = "") -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.app = make_app(self.hub, prefix)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        return self.call("POST", "/api/v1/reports", content=body, headers=AGENT | headers)

    def report(self, *args: Any, **kwargs: Any) -> httpx.Response:
        answer = self.post(encode(make_envelope(*args, **kwargs)))
        self.hub.stream.tick()
        return answer


@pytest.fixture
def api() -> Api:
    return Api()


def error_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/json"
    return msgspec.json.decode(answer.content, type=ErrorBody).error.code


def test_a_report_is_taken_and_shown(api: Api) -> None:
    assert api.report(gpus=[make_gpu(0), make_busy_gpu(1)]).status_code == 202
    fleet = api.get("/api/v1/fleet")
    decoded = msgspec.json.decode(fleet.content, type=Fleet)
    assert decoded.totals.busy == 1  # type: ignore[attr-defined]
    assert fleet.json()["hosts"][0]["gpus"][1]["users"] == ["alice"]


def test_the_counts_are_to_be_had_alone(api: Api) -> None:
    api.report(gpus=[make_gpu(0), make_busy_gpu(1)])
    assert api.get("/api/v1/totals").json() == api.get("/api/v1/fleet").json()["totals"]


def test_agents_are_told_that_late_reports_are_taken(api: Api) -> None:
    assert [api.report(sequence=5).headers["Gpudeck-Late-Reports"] for _ in range(2)] == ["1", "1"]


def test_a_repeated_report_is_answered_kindly(api: Api) -> None:
    api.report(sequence=5)
    assert (api.report(sequence=5).status_code, api.report(sequence=5).json()) == (200, {"status": "repeated"})


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic agent-token", "agent-token"])
def test_ingest_needs_the_token(api: Api, authorization: str) -> None:
    answer = api.post(encode(make_envelope()), Authorization=authorization)
    assert (answer.status_code, error_of(answer)) == (401, "unauthorized")
    assert api.hub.fleet.hosts == {}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"rubbish", {}, 400),
        (encode(make_envelope())[:50], {}, 400),
        (b"rubbish", {"Content-Encoding": ""}, 422),
        (b"{}", {"Content-Encoding": "", "Content-Type": "application/json"}, 422),
        (b"x", {"Content-Type": "text/html"}, 415),
        (b"x", {"Content-Encoding": "br"}, 415),
        (bytes(MAX_BODY_BYTES + 1), {}, 413),
        (b'{"version":7}', {"Content-Encoding": "", "Content-Type": "application/json"}, 400),
    ],
)
def test_bad_reports_get_a_clear_4xx_and_harm_nobody(
    api: Api, body: bytes, headers: dict[str, str], status: int
) -> None:
    api.report("healthy")
    answer = api.post(body, **headers)
    assert (answer.status_code, bool(error_of(answer))) == (status, True)
    assert [host["name"] for host in api.get("/api/v1/fleet").json()["hosts"]] == ["healthy"]
    assert sum(count for name, count in api.hub.fleet.counters.items() if name.startswith("refused_")) == 1


def test_a_chunked_body_over_the_limit_is_cut_off(api: Api) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield bytes(64 * 1024)

    answer = api.call("POST", "/api/v1/reports", content=chunks(), headers=AGENT)
    assert (answer.status_code, error_of(answer)) == (413, "too_large")


def test_a_body_that_is_too_large_for_any_route_is_refused_in_our_words(api: Api) -> None:
    answer = api.call(
        "POST", "/api/v1/login", content=b" " * (MOST_BODY_BYTES + 1), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "the body of the request is too large")


def test_not_a_number_never_reaches_the_json(api: Api) -> None:
    api.report(gpus=[make_gpu(metrics={"power_watts": math.nan, "temperature_celsius": -math.inf})])
    gpu = api.get("/api/v1/fleet").json()["hosts"][0]["gpus"][0]
    assert (gpu["power_watts"], gpu["temperature_celsius"]) == (None, None)
    assert set(gpu["reasons"]) == {"power_watts", "temperature_celsius"}


def test_a_sender_whose_clock_header_is_rubbish_is_still_heard(api: Api) -> None:
    assert api.post(encode(make_envelope()), **{"Gpudeck-Sent-At": "yesterday"}).status_code == 202


def test_a_real_hub_takes_no_simulated_reports(api: Api) -> None:
    answer = api.report(simulated=True)
    assert (answer.status_code, error_of(answer)) == (409, "not_a_demo")


def test_a_host_is_found_by_name_and_by_id(api: Api) -> None:
    api.report("gpu01", host_id="machine-7")
    by_name, by_id = api.get("/api/v1/hosts/gpu01"), api.get("/api/v1/hosts/machine-7")
    assert by_name.content == by_id.content
    assert msgspec.json.decode(by_name.content, type=Host).name == "gpu01"  # type: ignore[attr-defined]
    assert [host["id"] for host in api.get("/api/v1/hosts").json()["hosts"]] == ["machine-7"]


@pytest.mark.parametrize("name", ["nobody", "..", "%00", "a%2Fb", "x" * 500])
def test_a_host_that_is_not_there_is_a_404(api: Api, name: str) -> None:
    answer = api.get(f"/api/v1/hosts/{name}")
    assert answer.status_code == 404
    # A name with a slash is another path.
    assert error_of(answer) in {"unknown_host", "not_found"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["a0", "a1", "b0"]),
        ("availability=free", ["a0", "b0"]),
        ("availability=busy", ["a1"]),
        ("availability=busy&availability=free", ["a0", "a1", "b0"]),
        ("min_memory=40GiB", ["a0", "a1"]),
        ("min_memory=80G&availability=free", ["a0"]),
        ("model=4090", ["b0"]),
        ("user=alice", ["a1"]),
        ("host=b", ["b0"]),
        ("host=c", []),
    ],
)
def test_gpus_are_filtered(api: Api, query: str, found: list[str]) -> None:
    api.report("a", gpus=[make_gpu(0, uuid="a0"), make_busy_gpu(1, uuid="a1")])
    small = make_gpu(0, uuid="b0", name="NVIDIA GeForce RTX 4090", metrics={"memory_total_bytes": 24 * GIB})
    api.report("b", gpus=[small])
    gpus = api.get(f"/api/v1/gpus?{query}").json()["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == found
    assert all(set(gpu) == {*Gpu.__struct_fields__, "host", "host_id"} for gpu in gpus)


@pytest.mark.parametrize("query", ["availability=maybe", "min_memory=lots", f"model={'x' * 300}"])
def test_a_filter_that_makes_no_sense_is_refused(api: Api, query: str) -> None:
    answer = api.get(f"/api/v1/gpus?{query}")
    assert (answer.status_code, error_of(answer)) == (400, "bad_request")


@pytest.mark.parametrize(
    "hosts",
    [
        "a,",
        ",",
        "a,,b",
        "%ff",
        "x" * 513,
        ",".join(map(str, range(201))),
        "1&hosts=" + "2," * 200 + "3",
        "a&host=b",
        "&shape=overview",
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(api: Api, hosts: str) -> None:
    answer = api.get(f"/api/v1/stream?hosts={hosts}")
    assert (answer.status_code, error_of(answer)) == (400, "bad_request")


def test_a_shape_that_there_is_not_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/stream?shape=columns")
    assert (answer.status_code, error_of(answer)) == (400, "bad_request")
    answer = api.get("/api/v1/stream?shape=overview&hosts=a")
    assert answer.json()["error"]["message"].startswith("shape goes with no other parameter")


@pytest.mark.parametrize(
    ("query", "hosts"),
    [
        (b"", None),
        (b"hosts=", set()),
        (b"hosts", set()),
        (b"hosts=a,b,a", {"a", "b"}),
        (b"hosts=a&hosts=b%2Cc,d%20e", {"a", "b,c", "d e"}),
        (b"shape=overview", "overview"),
    ],
)
def test_a_stream_is_of_all_hosts_or_of_those_that_are_named(query: bytes, hosts: set[str] | str | None) -> None:
    assert read_hosts(query) == hosts


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/api/v1/fleet", 405),
        ("GET", "/api/v1/reports", 405),
        ("POST", "/api/v1/stream", 405),
        ("GET", "/assets/nothing.js", 404),
        ("GET", f"/assets/{'x' * 5000}.js", 404),
        ("GET", "/assets/..%2f..%2fapp.py", 404),
    ],
)
def test_every_error_has_one_shape(api: Api, method: str, path: str, status: int) -> None:
    answer = api.call(method, path)
    assert (answer.status_code, bool(error_of(answer))) == (status, True)


def test_probes_answer(api: Api) -> None:
    assert api.get("/healthz").json()["status"] == "ok"
    assert api.get("/readyz").status_code == 200


def test_a_hub_that_no_longer_publishes_is_not_ready(api: Api) -> None:
    api.clock.advance(60)
    assert api.get("/readyz").status_code == 503


@pytest.mark.parametrize("agent", ["curl/8.5.0", "Wget/1.21", "HTTPie/3.2"])
def test_terminals_get_text(api: Api, agent: str) -> None:
    api.report()
    answer = api.get("/", headers={"User-Agent": agent})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "● 1 free" in answer.text


@pytest.mark.parametrize(("query", "kind"), [("term=true", "text/plain"), ("term", "text/plain")])
def test_a_browser_may_ask_for_text(api: Api, query: str, kind: str) -> None:
    assert api.get(f"/?{query}", headers={"User-Agent": "Mozilla/5.0"}).headers["content-type"].startswith(kind)


def test_browsers_get_the_page_with_a_strict_policy(api: Api) -> None:
    answer = api.get("/?term=false", headers={"User-Agent": "curl/8"})
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_everything_works_below_a_prefix_with_and_without_it() -> None:
    api = Api(prefix="/gpus")
    api.report()
    paths = ["/gpus/api/v1/fleet", "/api/v1/fleet", "/gpus/", "/gpus/healthz", "/gpus/schema/openapi.json"]
    assert {path: api.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)


def test_a_prefix_without_its_last_slash_leads_to_the_page() -> None:
    answer = Api(prefix="/gpus/").get("/gpus?q=free")
    assert (answer.status_code, answer.headers["location"]) == (308, "/gpus/?q=free")


def test_a_bug_while_taking_a_report_is_answered_in_shape(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api.hub.fleet, "take", lambda *_, **__: 1 / 0)
    answer = api.post(encode(make_envelope()))
    assert (answer.status_code, error_of(answer)) == (500, "bug")
    assert "ZeroDivisionError" in caplog.text


def test_a_mistyped_filter_does_not_find_everything(api: Api) -> None:
    answer = api.get("/api/v1/gpus?availibility=free")
    assert answer.status_code == 400
    assert "did you mean availability?" in answer.text


@pytest.mark.parametrize("path", ["/", "/api/v1/fleet", "/healthz", "/api/v1/stream"])
def test_head_is_answered_where_get_is(api: Api, path: str) -> None:
    assert api.call("HEAD", path, headers={"User-Agent": "curl/8"}).status_code == 200


def test_raw_routes_are_not_sniffed_either(api: Api) -> None:
    assert api.post(b"").headers["x-content-type-options"] == "nosniff"


def test_a_process_has_every_field_of_the_contract(api: Api) -> None:
    api.report(gpus=[make_busy_gpu()])
    process = api.get("/api/v1/fleet").json()["hosts"][0]["gpus"][0]["processes"][0]
    assert set(process) == set(ShownProcess.__struct_fields__)
    assert process["container"] is None


def test_a_prefix_is_a_whole_part_of_the_path() -> None:
    assert Api(prefix="/gpus").get("/gpusapi/v1/fleet").status_code == 404


def test_the_document_describes_the_raw_routes_too(api: Api) -> None:
    document = api.get("/schema/openapi.json").json()
    assert {"/api/v1/reports", "/api/v1/stream", "/api/v1/fleet", "/api/v1/gpus"} <= set(document["paths"])
    assert "utilization_percent" in document["components"]["schemas"]["Gpu"]["properties"]


def test_the_document_is_made_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    document = api.get("/schema/openapi.json").content
    monkeypatch.setattr(schema, "complete_schema", lambda _: 1 / 0)
    assert api.get("/schema/openapi.json").content == document


def test_the_document_says_of_every_route_what_it_is_for(api: Api) -> None:
    paths = api.get("/schema/openapi.json").json()["paths"]
    told = {
        f"{way} {path}": route.get("description", "") for path, ways in paths.items() for way, route in ways.items()
    }
    assert [route for route, text in told.items() if not text.rstrip().endswith(".")] == []


def test_a_bug_is_answered_in_shape_and_logged(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api.hub.fleet, "totals", lambda: 1 / 0)
    answer = api.get("/api/v1/fleet")
    assert (answer.status_code, error_of(answer)) == (500, "bug")
    assert "ZeroDivisionError" in caplog.text
    assert "ZeroDivisionError" not in answer.text
