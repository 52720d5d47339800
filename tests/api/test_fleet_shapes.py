"""The fleet as columns, and lists of GPUs and hosts with filters and pages: the same as one object at a time says."""

import asyncio
import random
from typing import Any

import httpx
import msgspec
import pytest

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.client.answers import read_columns
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import Unreachable
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.model.target import Target


class Api:
    """A hub on a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.app = make_app(self.hub)

    def report(self, host: str, sequence: int = 1, **others: Any) -> None:
        envelope = make_envelope(host, sequence, host_id=f"id-{host}", **others)
        self.hub.fleet.apply(envelope, via="push", now=self.clock())

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.get(path)

        return asyncio.run(ask())

    def check_columns(self) -> list[dict[str, Any]]:
        """Columns and objects say the same; returns the hosts."""
        told = self.get("/api/v1/fleet").json()
        for host in told["hosts"]:
            for gpu in host["gpus"]:
                gpu |= {"processes": None, "events": []}
        columns = self.get("/api/v1/fleet?shape=columns").content
        assert msgspec.to_builtins(read_columns(columns, "hub")) == told
        hosts: list[dict[str, Any]] = told["hosts"]
        return hosts


@pytest.fixture
def api() -> Api:
    return Api()


def live_in(api: Api) -> None:
    """A lab with boards cut into instances, unknown values, hosts that fall silent, leave and come back."""
    lab, chance = SimulatedFleet(hosts=30), random.Random(2)
    for sequence in range(1, 9):
        api.clock.advance(4)
        for host in range(30):
            report = lab.report(host, api.clock()) if chance.random() < 0.8 else None
            if report is not None:
                api.report(lab.names[host], sequence, interval_seconds=1.0, report=report)
        api.hub.fleet.remove(chance.choice(list(api.hub.fleet.hosts)))
        api.hub.stream.tick()


def test_columns_say_what_objects_say_of_a_lab(api: Api) -> None:
    live_in(api)
    hosts = api.check_columns()
    assert {host["status"] for host in hosts} >= {"up", "late"}
    assert {gpu["availability"] for host in hosts for gpu in host["gpus"]} >= {"free", "busy", "unknown"}


def test_unknown_values_are_null_beside_zeros_and_each_reason_is_told_once(api: Api) -> None:
    api.report("gpu01", gpus=[make_gpu(n, metrics={"fan_percent": (0, None)[n % 2]}) for n in range(4)])
    api.hub.stream.tick()
    told = api.get("/api/v1/fleet?shape=columns").json()
    assert told["gpus"]["fan_percent"] == [0, None, 0, None]
    assert [told["reasons"][code].get("fan_percent") for code in told["gpus"]["reasons"]] == [
        None,
        "not reported",
        None,
        "not reported",
    ]
    assert len(told["reasons"]) == len({str(sorted(one.items())) for one in told["reasons"]})


def test_columns_say_what_is_rare_too(api: Api) -> None:
    """Missing GPUs, values that cannot be, reservations, hosts that were never seen, and one that cannot read."""
    rare = [
        make_gpu(0, missing="it has fallen off the bus"),
        make_gpu(1, metrics={"temperature_celsius": 9000}),
        make_gpu(2, processes=None),
        make_busy_gpu(3),
        make_gpu(4, metrics={"temperature_celsius": 95}),
    ]
    api.report("gpu01", gpus=rare)
    api.report("gpu02", report=make_envelope().report.__class__(gpus=None, gpus_reason="the driver hangs"))
    api.hub.fleet.expect([Target(name="gpu09", origin="test")])
    reserved = GpuReservation(id=1, user="ann", until=api.clock() + 60, note="tests", kind="reservation")
    marks = {"GPU-1": ReservationMark(reserved), "GPU-3": ReservationMark(reserved, conflict="alice is on it")}
    api.hub.fleet.mark(marks, api.clock())
    api.hub.stream.tick()
    hosts = api.check_columns()
    assert [host["status"] for host in hosts] == ["up", "up", "never_seen"]
    assert hosts[0]["gpus"][3]["reservation_conflict"] == "alice is on it"


def test_an_empty_fleet_has_columns(api: Api) -> None:
    assert api.check_columns() == []


@pytest.mark.parametrize("query", ["shape=rows", "shape=", "shapes=columns"])
def test_a_shape_that_does_not_exist_is_refused_with_its_name(api: Api, query: str) -> None:
    answer = api.get(f"/api/v1/fleet?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


def test_columns_of_different_lengths_are_no_answer(api: Api) -> None:
    api.report("gpu01")
    told = api.get("/api/v1/fleet?shape=columns").json()
    told["gpus"]["uuid"].append("GPU-x")
    with pytest.raises(Unreachable):
        read_columns(msgspec.json.encode(told), "hub")


FILTERS = [
    {"availability": "free"},
    {"availability": "busy"},
    {"model": "a100"},
    {"model": "nothing"},
    {"min_memory": "60G"},
    {"user": "ruth"},
    {"user": "nobody-here"},
    {"host": "GPU01"},
    {"availability": "busy", "model": "h100", "min_memory": "40GiB"},
]


def fits(gpu: dict[str, Any], wanted: dict[str, str]) -> bool:
    """One GPU at a time."""
    amount = {"60G": 60e9, "40GiB": 40 * 2.0**30, "": 0.0}[wanted.get("min_memory", "")]
    return (
        gpu["availability"] == wanted.get("availability", gpu["availability"])
        and wanted.get("model", "").lower() in f"{gpu['name']} {gpu['display_name']}".lower()
        and (not amount or (gpu["memory_total_bytes"] or 0) >= amount)
        and ("user" not in wanted or wanted["user"] in gpu["users"])
        and wanted.get("host", gpu["host"]).lower() == gpu["host"].lower()
    )


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_a_list_of_gpus_has_those_that_fit_one_by_one(api: Api, wanted: dict[str, str]) -> None:
    live_in(api)
    api.report("shared", gpus=[make_gpu(0, processes=[make_process(1, "alice"), make_process(2, "ruth")])])
    api.hub.stream.tick()
    hosts = api.get("/api/v1/fleet").json()["hosts"]
    everything = [{"host": host["name"], "host_id": host["id"], **gpu} for host in hosts for gpu in host["gpus"]]
    told = api.get(f"/api/v1/gpus?{httpx.QueryParams(wanted)}").json()
    assert told["gpus"] == [gpu for gpu in everything if fits(gpu, wanted)]
    assert told["total"] == len(told["gpus"])


def test_lists_come_in_pages(api: Api) -> None:
    for number in range(9):
        api.report(f"gpu{number}", gpus=[make_gpu(number * 2), make_gpu(number * 2 + 1)])
    api.clock.advance(1)
    api.hub.stream.tick()
    for path, key, name in (("hosts", "hosts", "id"), ("gpus", "gpus", "uuid")):
        whole = api.get(f"/api/v1/{path}").json()
        pages = [api.get(f"/api/v1/{path}?limit=4&offset={offset}").json() for offset in range(0, 20, 4)]
        assert [one[name] for page in pages for one in page[key]] == [one[name] for one in whole[key]]
        assert {page["total"] for page in pages} == {whole["total"]} == {len(whole[key])}


def test_hosts_are_listed_by_status(api: Api) -> None:
    api.report("gpu01")
    api.hub.fleet.expect([Target(name="gpu09", origin="test")])
    told = api.get("/api/v1/hosts?status=never_seen&status=down").json()
    assert ([host["name"] for host in told["hosts"]], told["total"]) == (["gpu09"], 1)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "offset=-1", "limit=100001", "status=gone"])
@pytest.mark.parametrize("path", ["hosts", "gpus"])
def test_a_page_that_cannot_be_is_refused(api: Api, path: str, query: str) -> None:
    answer = api.get(f"/api/v1/{path}?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]
