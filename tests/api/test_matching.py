"""One fleet, one request: free, wait, watch, reserve, the search and the API agree on the GPUs that match it."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from msgspec.structs import replace

from fakes.api_app import make_app, make_auth
from fakes.clock import FakeClock
from fakes.offers import make_request
from fakes.reports import GIB, make_busy_gpu, make_envelope, make_gpu
from gpudeck.alerts.watches import SETTLED_SECONDS, Watches
from gpudeck.fleet.hub import Hub
from gpudeck.model.gpu_request import GpuRequest, candidates, choose, is_usable, matches
from gpudeck.queueing.scheduler import schedule
from gpudeck.reservations.requests import find_matching
from gpudeck.reservations.service import observe
from gpudeck.views.filter import choose_words

H200 = "NVIDIA H200"
MI300 = {"name": "AMD Instinct MI300X", "vendor": "amd"}


class MatchingFleet:
    """Two hosts with all kinds of GPUs, and every way to ask for some of them."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.app: Any = make_app(self.hub, auth=self.auth)
        self._report(
            "gpu01",
            make_gpu(0, uuid="free", name=H200, metrics={"memory_total_bytes": 140 * GIB}),
            make_busy_gpu(1, uuid="busy", name=H200, metrics={"memory_total_bytes": 140 * GIB}),
            make_gpu(2, uuid="hot", name=H200, metrics={"memory_total_bytes": 140 * GIB, "temperature_celsius": 120}),
            make_gpu(3, uuid="lost", name=H200, missing="it has fallen off the bus"),
        )
        self._report(
            "gpu02",
            make_gpu(0, uuid="mig", parent="board", instance=5, metrics={"memory_total_bytes": 40 * GIB}),
            make_gpu(1, uuid="unknown", metrics={"memory_total_bytes": None}),
            make_gpu(2, uuid="amd", metrics={"memory_total_bytes": 192 * GIB}, **MI300),
        )

    def _report(self, host: str, *gpus: Any) -> None:
        self.hub.fleet.apply(make_envelope(host, gpus=list(gpus)), via="push", now=self.clock())

    def free(self, request: GpuRequest) -> set[str]:
        found = candidates(self.hub.fleet.view(self.clock()).hosts)
        return {gpu.uuid for gpu in found if matches(gpu, request) and is_usable(gpu, ())}

    def wait(self, request: GpuRequest) -> set[str]:
        all_gpus = [gpu for host in self.hub.fleet.ordered() for gpu in host.candidates()]
        found = schedule([make_request(1, **_fields(request))], all_gpus, now=1.0)
        return {gpu.uuid for grant in found.grants for gpu in grant.gpus}

    def watch(self, request: GpuRequest) -> set[str]:
        async def look() -> set[str]:
            watches = Watches(self.auth.database, now=self.clock)
            await watches.load()
            await watches.add("ada", None, request)
            free = [gpu for host in self.hub.fleet.ordered() for gpu in host.candidates(only_open=True)]
            watches.evaluate(free)
            self.clock.advance(SETTLED_SECONDS)
            return {gpu.uuid for _, gpus in watches.evaluate(free) for gpu in gpus}

        return asyncio.run(look())

    def reserve(self, request: GpuRequest) -> list[list[str]]:
        tiers = find_matching(request, observe(self.hub.fleet), is_near=True, reserved=())
        return [[gpu.uuid for gpu in tier] for tier in tiers]

    def choices(self, request: GpuRequest) -> list[set[str]]:
        """By gpudeck free, wait, watch and reserve."""
        free = self.free(request)
        every = replace(request, gpus=len(free))
        return [free, self.wait(every), self.watch(every), set(self.reserve(request)[-1])]

    def search(self, request: GpuRequest) -> set[str]:
        words = ["free", "-critical"]
        words += [] if request.model is None else [f'model:"{request.model}"']
        words += [] if request.host is None else [f"host:{request.host}"]
        words += [] if not request.memory_bytes else [f">={request.memory_bytes // GIB}GiB"]
        part, _ = choose_words(self.hub.fleet.view(self.clock()), " ".join(words))
        return {gpu.uuid for host in part.hosts for gpu in host.gpus}

    def ask_api(self, request: GpuRequest) -> set[str]:
        least = None if request.memory_bytes is None else f"{request.memory_bytes // GIB}G"
        query = {"min_memory": least, "model": request.model, "host": request.host}
        text = urlencode({name: value for name, value in query.items() if value is not None})

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://hub") as http:
                return await http.get(f"/api/v1/gpus?availability=free&{text}")

        gpus = asyncio.run(ask()).json()["gpus"]
        return {gpu["uuid"] for gpu in gpus if gpu["health"] != "critical"}


@pytest.fixture
def fleet(tmp_path: Path) -> MatchingFleet:
    return MatchingFleet(tmp_path)


def _fields(request: GpuRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in GpuRequest.__struct_fields__}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (GpuRequest(), {"free", "unknown", "amd"}),
        (GpuRequest(memory_bytes=0), {"free", "unknown", "amd"}),
        (GpuRequest(memory_bytes=1 * GIB), {"free", "amd"}),
        (GpuRequest(memory_bytes=140 * GIB), {"free", "amd"}),
        (GpuRequest(memory_bytes=141 * GIB), {"amd"}),
        (GpuRequest(model="h200"), {"free"}),
        (GpuRequest(model="NVIDIA"), {"free", "unknown"}),
        (GpuRequest(model="instinct MI300"), {"amd"}),
        (GpuRequest(host="gpu02"), {"unknown", "amd"}),
        (GpuRequest(host="GPU02", model="A100"), {"unknown"}),
    ],
)
def test_all_ways_to_ask_find_the_same_gpus(fleet: MatchingFleet, kind: GpuRequest, found: set[str]) -> None:
    assert fleet.choices(kind) == [found] * 4
    # Searching shows slices, too; nothing is chosen by it.
    assert (fleet.search(kind) - {"mig"}, fleet.ask_api(kind) - {"mig"}) == (found, found)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (GpuRequest(mig=True), {"mig"}),
        (GpuRequest(mig=True, memory_bytes=40 * GIB), {"mig"}),
        (GpuRequest(mig=True, model="a100"), {"mig"}),
        (GpuRequest(allow_mig=True, memory_bytes=40 * GIB), {"mig", "free", "amd"}),
        (GpuRequest(allow_mig=True, memory_bytes=41 * GIB), {"free", "amd"}),
        (GpuRequest(allow_mig=True), {"free", "unknown", "amd"}),
    ],
)
def test_slices_are_chosen_only_when_requested(fleet: MatchingFleet, kind: GpuRequest, found: set[str]) -> None:
    assert fleet.choices(kind) == [found] * 4


def test_the_smallest_that_is_enough_is_chosen_and_unknown_memory_last(fleet: MatchingFleet) -> None:
    free = [gpu for gpu in candidates(fleet.hub.fleet.view(fleet.clock()).hosts) if is_usable(gpu, ())]
    chosen = [gpu.uuid for gpu in choose(GpuRequest(gpus=3), free) or ()]
    assert chosen == fleet.reserve(GpuRequest())[-1] == ["free", "amd", "unknown"]
    assert fleet.reserve(GpuRequest())[0] == ["free"]


def test_a_host_is_named_by_its_name_or_its_id(fleet: MatchingFleet) -> None:
    by_id = GpuRequest(host=next(host.id for host in fleet.hub.fleet.ordered() if host.name == "gpu02"))
    assert fleet.free(by_id) == set(fleet.reserve(by_id)[-1]) == fleet.ask_api(by_id) - {"mig"} == {"unknown", "amd"}
