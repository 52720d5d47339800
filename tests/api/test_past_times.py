"""`GET /api/v1/fleet?at=…` where the past is not regular: a gap, a clock that was set back, a host with another name,
and hosts that share a name."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from fakes.api_app import make_app
from fakes.store import FakeStore
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import MomentQuery, PastHost, Store
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import HOST_NAMES, NOTHING, STATES, GpuSample, HostSample
from gpudeck.history.settings import HistorySettings

BEGIN = time.time() // 3600 * 3600 - 3 * 3600
EVERY = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(tmp_path / "history.db", HistorySettings())) as made:
        yield made


def reports(
    start: float, end: float, state: str = "free", *, host_id: str = "id-1", name: str = "gpu01"
) -> list[HostSample]:
    gpu = GpuSample(f"GPU-{host_id}", "0", "NVIDIA H200", STATES.index(state), NOTHING, ())
    own = (3.5, *(None,) * (len(HOST_NAMES) - 1))
    times = (BEGIN + start + EVERY * number for number in range(int((end - start) / EVERY)))
    return [HostSample(host_id, name, at, EVERY, own, (gpu,)) for at in times]


def keep(store: EmbeddedStore, *parts: Iterable[HostSample]) -> None:
    """Each part comes after the one before, whatever its times."""
    for part in parts:
        store.take(list(part))
        assert store.flush()


def look(store: Store, at: float | str) -> dict[str, Any]:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Hub(), history=store))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return await client.get(f"/api/v1/fleet?at={at if isinstance(at, str) else BEGIN + at}")

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_nothing_is_free_in_a_gap(store: EmbeddedStore) -> None:
    keep(store, reports(0, 600), reports(1800, 2400))
    before, gap, after = (look(store, at)["hosts"][0] for at in (595, 1200, 1900))
    assert [one["status"] for one in (before, gap, after)] == ["up", "down", "up"]
    assert [one["gpus"][0]["availability"] for one in (before, gap, after)] == ["free", "unknown", "free"]
    assert "no report since" in gap["gpus"][0]["availability_reason"]
    assert (gap["last_report_at"], gap["gpus"][0]["last_seen"]) == (BEGIN + 590, "free")
    fleet = look(store, 1200)
    assert (fleet["totals"]["unknown"], fleet["totals"]["free"], fleet["coverage"]) == (1, 0, 0.0)
    assert "Nothing was recorded at" in fleet["problems"][0]


def test_a_clock_that_was_set_back_shows_no_report_of_the_future(store: EmbeddedStore) -> None:
    keep(store, reports(0, 600), reports(305, 405, "busy"), reports(605, 700, "busy"))
    for at in (300, 306, 350, 404, 500, 599, 690):
        (host,) = look(store, at)["hosts"]
        assert BEGIN + at - EVERY <= host["last_report_at"] <= BEGIN + at
        assert (host["status"], len(host["gpus"])) == ("up", 1)
    assert look(store, 690)["hosts"][0]["gpus"][0]["availability"] == "busy"


def test_an_hour_that_a_zone_has_twice_is_two_moments(store: EmbeddedStore) -> None:
    keep(store, reports(0, 3600), reports(3600, 7200, "busy"))

    def local(zone: int) -> str:
        """The same time of day before and after summer time ends."""
        moment = datetime.fromtimestamp(BEGIN + 1800, timezone(timedelta(hours=2))).replace(tzinfo=None)
        return moment.replace(tzinfo=timezone(timedelta(hours=zone))).isoformat()

    found = [look(store, quote(local(zone)))["hosts"][0]["gpus"][0]["availability"] for zone in (2, 1)]
    assert found == ["free", "busy"]
    # As it is typed for curl: a plus in an address is a space.
    assert look(store, local(1))["as_of"] == BEGIN + 5400


def test_a_renamed_host_is_one_host_with_the_name_of_today(store: EmbeddedStore) -> None:
    keep(store, reports(0, 600), reports(600, 1200, name="node-7"))
    for at in (300, 900):
        assert [(one["id"], one["name"]) for one in look(store, at)["hosts"]] == [("id-1", "node-7")]
    # A report that was on its way for long has the name of before.
    keep(store, reports(305, 315))
    assert [one["name"] for one in look(store, 900)["hosts"]] == ["node-7"]


def test_a_host_that_was_set_up_anew_is_another_one(store: EmbeddedStore) -> None:
    keep(store, reports(0, 600), reports(600, 1200, "busy", host_id="id-2"))
    fleet = look(store, 1190)
    assert [(one["id"], one["name"], one["status"]) for one in fleet["hosts"]] == [
        ("id-1", "gpu01", "down"),
        ("id-2", "gpu01", "up"),
    ]
    assert (fleet["totals"]["gpus"], fleet["totals"]["hosts_up"]) == (2, 1)
    assert [one["id"] for one in look(store, 300)["hosts"]] == ["id-1"]


class TwoOfOneId(FakeStore):
    def moment(self, ask: MomentQuery) -> Iterator[PastHost]:
        for first in (*reports(0, 10), *reports(0, 10, "busy")):
            yield PastHost(first, [None])


def test_hosts_with_one_name_and_one_id_do_not_hide_each_other() -> None:
    fleet = look(TwoOfOneId(), 5)
    assert sorted(one["gpus"][0]["availability"] for one in fleet["hosts"]) == ["busy", "free"]
    assert fleet["totals"]["hosts"] == len(fleet["hosts"]) == 2
