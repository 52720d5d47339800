"""`fetch_num` returns what was posted or imported, at its own times, and nothing else."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from fakes.reports import make_envelope, make_gpu
from fakes.vesta import CAPTURED_AT, VestaHub, make_post
from gpudeck.compat.vesta.routes import make_sample
from gpudeck.compat.vesta.store import Samples
from gpudeck.database.engine import Database
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.model.errors import Temporary

ADMIN = {"Authorization": "Bearer admin-token"}
BEGIN = CAPTURED_AT // 60 * 60 - 6 * 3600 + 7
"""Seven seconds past a minute: no step of the history begins there."""


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(tmp_path / "history.db", now=lambda: CAPTURED_AT)
    yield opened
    opened.close()


@pytest.fixture
def vesta(tmp_path: Path, store: EmbeddedStore) -> VestaHub:
    return VestaHub(tmp_path, history=store)


def bring(vesta: VestaHub, count: int) -> str:
    """Import a host with so many one-minute rows, the temperature counting up from 1; its id."""
    rows = [[BEGIN + 60.0 * number, make_post(2, temperature=1 + number % 99)] for number in range(count)]
    for start in range(0, count, 200):
        call(vesta, "abc1", rows[start : start + 200])
    return "abc1"


def call(vesta: VestaHub, host_id: str, rows: list[list[Any]]) -> None:
    body = json.dumps({"id": host_id, "name": "gpu1", "interval": 60.0, "rows": rows}).encode()
    answer = vesta.call("POST", "/api/v1/compat/vesta/import", content=body, headers=ADMIN)
    assert answer.status_code == 200


def record(store: EmbeddedStore, at: float, temperature: int) -> None:
    """What a hub's history keeps of a post: it stands for the whole interval before it."""
    store.take([make_sample("gpu1", at, 60.0, make_post(2, temperature=temperature))])
    assert store.flush()


def told(vesta: VestaHub, count: int = 1000, path: str = "/states/gpu1/") -> list[tuple[str, int]]:
    """The times of day and temperatures."""
    data = vesta.states(f"{path}?fetch_num={count}")["gpu1"]["data"]
    return [(str(one["timestamp"])[8:], one["gpu_data"]["gpu:0"]["temperature"]) for one in data]


@pytest.mark.parametrize("path", ["/states/gpu1/", "/states/"])
def test_one_post_is_one_sample(vesta: VestaHub, store: EmbeddedStore, path: str) -> None:
    vesta.report("gpu1", make_post(2, temperature=90))
    record(store, CAPTURED_AT, 90)
    assert told(vesta, 50, path) == [("063757", 90)]


def test_what_was_imported_comes_back_row_by_row(vesta: VestaHub) -> None:
    bring(vesta, 341)
    found = vesta.states("/states/gpu1/?fetch_num=1000")["gpu1"]["data"]
    assert len(found) == 341
    assert [one["timestamp"] for one in found[:2]] == [20261115003707, 20261115003807]
    assert found[0]["gpu_data"] == make_post(2, temperature=1)
    assert told(vesta, 2) == [("061607", 43), ("061707", 44)]


def test_a_post_after_an_import_changes_nothing_before_it(vesta: VestaHub, store: EmbeddedStore) -> None:
    host_id = bring(vesta, 5)
    vesta.post(host_id, make_post(2, temperature=90))
    record(store, CAPTURED_AT, 90)
    assert told(vesta)[-3:] == [("004007", 4), ("004107", 5), ("063757", 90)]
    assert len(told(vesta)) == 6


def test_last_update_of_a_host_that_is_down_is_the_newer_of_post_and_import(vesta: VestaHub) -> None:
    """The site went back to vesta for a while, and imports what that stored."""
    host_id = bring(vesta, 1)
    vesta.post(host_id, make_post(2))
    vesta.clock.advance(900)
    call(vesta, host_id, [[CAPTURED_AT + 600, make_post(2)]])
    assert vesta.states()["gpu1"]["data"] == [
        {"gpu_data": {}, "timestamp": 20261115064757, "timestamp_text": "15/11/2026 06:47:57"}
    ]
    assert "last update: 15/11/2026 06:47:57" in vesta.get("/?term=true").text


def test_a_restart_adds_and_loses_nothing(vesta: VestaHub, store: EmbeddedStore) -> None:
    host_id = vesta.report("gpu1", make_post(2, temperature=90))
    record(store, vesta.clock(), 90)
    vesta.clock.advance(60)
    vesta.post(host_id, make_post(2, temperature=91))
    record(store, vesta.clock(), 91)
    expected = [("063757", 90), ("063857", 91)]
    assert told(vesta) == expected
    vesta.start()
    assert told(vesta) == expected
    vesta.clock.advance(60)
    vesta.post(host_id, make_post(2, temperature=92))
    assert told(vesta) == told(vesta, path="/states/") == [*expected, ("063957", 92)]


def test_a_host_that_the_hub_remembers_is_not_told_twice(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, temperature=90))
    vesta.start()
    host = vesta.hub.fleet.make_host("gpu1", "vesta")
    host.restore(make_envelope("gpu1", gpus=[]), [make_gpu(0)], round(CAPTURED_AT, 3), until=CAPTURED_AT + 120)
    assert vesta.hub.fleet.restore(host)
    assert told(vesta) == told(vesta, 1) == [("063757", 90)]


def test_without_a_history_posts_are_kept_all_the_same(tmp_path: Path) -> None:
    vesta = VestaHub(tmp_path)
    vesta.report("gpu1", make_post(2, temperature=90))
    vesta.start()
    assert told(vesta) == [("063757", 90)]


def test_senders_that_post_at_once_are_all_kept(database: Database) -> None:
    posts = [(f"id{number}", CAPTURED_AT + more, make_post()) for number in range(20) for more in (0.0, 1.0, 1.0)]

    async def keep() -> list[int]:
        samples = Samples(database)
        await asyncio.gather(*(samples.keep(*post) for post in posts))
        return [len(await samples.newest(f"id{number}", CAPTURED_AT + 9, 10)) for number in range(20)]

    assert asyncio.run(keep()) == [2] * 20


def test_senders_that_post_at_once_share_transactions(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, sizes = Samples(database), list[int]()
    write = samples.write

    async def count(rows: list[dict[str, Any]]) -> None:
        sizes.append(len(rows))
        await write(rows)

    monkeypatch.setattr(samples, "write", count)

    async def send(host_id: str) -> None:
        for number in range(8):
            await samples.keep(host_id, BEGIN + number, make_post())

    async def live() -> None:
        await asyncio.gather(*(send(f"id{number}") for number in range(16)))

    asyncio.run(live())
    assert sum(sizes) == 8 * 16
    assert len(sizes) <= 2 * 8


def test_the_newest_thousand_are_kept(database: Database) -> None:
    async def fill() -> tuple[int, float]:
        samples = Samples(database)
        for start in range(1100, -1, -100):
            await samples.add("abc1", [(CAPTURED_AT + start + number, make_post()) for number in range(100)])
        async with database.begin() as connection:
            count = (await connection.execute(text("SELECT count(*) FROM vesta_samples"))).scalar_one()
        return count, (await samples.newest("abc1", float("inf"), 2000))[0][0]

    assert asyncio.run(fill()) == (1000, CAPTURED_AT + 200)


def test_a_database_that_does_not_answer_costs_no_post(vesta: VestaHub, monkeypatch: pytest.MonkeyPatch) -> None:
    host_id = vesta.report("gpu1", make_post())

    def begin(_: Database) -> None:
        raise Temporary("the database is locked.")

    monkeypatch.setattr(Database, "begin", begin)
    assert vesta.post(host_id, make_post(1, temperature=70))["status"] == "OK"
    assert vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]["temperature"] == 70


def test_a_host_with_an_agent_has_its_newest_state_behind_what_its_sender_posted(vesta: VestaHub) -> None:
    host_id = vesta.report("gpu1", make_post(1, temperature=90))
    vesta.clock.advance(35)
    envelope = make_envelope("gpu1", gpus=[make_gpu(0)], collected_at=vesta.clock())
    vesta.hub.fleet.apply(envelope, via="push", now=vesta.clock())
    assert [at for at, _ in told(vesta)] == ["063757", "063832"]
    assert vesta.register.get(host_id) is not None
