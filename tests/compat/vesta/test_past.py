"""`fetch_num` after a restart: what the history has of a host, in vesta's words."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.vesta import CAPTURED_AT, VestaHub, make_post
from gpudeck.compat.vesta.imports import make_sample
from gpudeck.history.embedded.store import EmbeddedStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(tmp_path / "history.db", now=lambda: CAPTURED_AT)
    yield opened
    opened.close()


def fill(store: EmbeddedStore, begin: float, every: float, count: int) -> None:
    """`count` samples from `begin` on, the temperature counting up from 40."""
    samples = [
        make_sample("gpu1", begin + every * number, every, make_post(2, temperature=40 + number))
        for number in range(count)
    ]
    store.take(samples)
    assert store.flush()


def temperatures(vesta: VestaHub, count: int, path: str = "/states/gpu1/") -> list[int]:
    data = vesta.states(f"{path}?fetch_num={count}")["gpu1"]["data"]
    assert [one["timestamp"] for one in data] == sorted(one["timestamp"] for one in data)
    return [one["gpu_data"]["gpu:0"]["temperature"] for one in data]


def test_a_host_that_was_silent_since_the_start_is_told_from_the_history(tmp_path: Path, store: EmbeddedStore) -> None:
    vesta = VestaHub(tmp_path, history=store)
    vesta.add("gpu1")
    fill(store, CAPTURED_AT // 60 * 60 - 600, 10.0, 30)
    assert temperatures(vesta, 5) == [65, 66, 67, 68, 69]
    (newest,) = vesta.states("/states/gpu1/")["gpu1"]["data"]
    gpu = newest["gpu_data"]["gpu:1"]
    assert (gpu["uuid"], gpu["used_memory"], gpu["gpu_name"]) == ("GPU-1", 8018, "GeForce GTX 1080 Ti")
    assert gpu["processes"] == [{"pid": "4711", "name": "train", "user": "alice", "used_memory": 6400}]


def test_a_gpu_that_nobody_was_on_has_its_name_too(tmp_path: Path, store: EmbeddedStore) -> None:
    vesta = VestaHub(tmp_path, history=store)
    vesta.add("gpu1")
    store.take([make_sample("gpu1", CAPTURED_AT - 600, 60.0, make_post(2, processes=[]))])
    assert store.flush()
    (newest,) = vesta.states("/states/gpu1/")["gpu1"]["data"]
    names = [(gpu["gpu_name"], gpu["processes"]) for gpu in newest["gpu_data"].values()]
    assert names == [("GeForce GTX 1080 Ti", [])] * 2


def test_what_was_posted_since_stands_behind_what_was_stored_before(tmp_path: Path, store: EmbeddedStore) -> None:
    fill(store, CAPTURED_AT // 60 * 60 - 3600, 60.0, 30)
    vesta = VestaHub(tmp_path, history=store)
    host_id = vesta.report("gpu1", make_post(2, temperature=90))
    vesta.clock.advance(60)
    vesta.post(host_id, make_post(2, temperature=91))
    assert temperatures(vesta, 4) == [68, 69, 90, 91]
    assert temperatures(vesta, 4, "/states/") == [68, 69, 90, 91]


def test_long_ago_is_told_in_minutes(tmp_path: Path, store: EmbeddedStore) -> None:
    vesta = VestaHub(tmp_path, history=store)
    vesta.add("gpu1")
    fill(store, CAPTURED_AT // 3600 * 3600 - 5 * 86_400, 60.0, 30)
    assert len(temperatures(vesta, 2)) == 2


def test_without_a_history_there_is_the_newest_alone(tmp_path: Path) -> None:
    vesta = VestaHub(tmp_path)
    vesta.report("gpu1", make_post(2, temperature=90))
    assert temperatures(vesta, 50) == [90]
    vesta.start()
    assert temperatures(vesta, 50) == []
