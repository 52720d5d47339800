"""Which GPUs somebody can use now, and which of them fit best."""

from typing import Any

import pytest

from fakes.fleets import make
from fakes.offers import GIB, make_offer
from gpudeck.model.gpu_request import GpuRequest, candidate_of, choose, is_usable, rank
from gpudeck.model.view import Gpu, Host

HOST = make(Host, name="gpu07", id="machine-7")
GPU: dict[str, Any] = {
    "uuid": "GPU-a",
    "index": 0,
    "label": "0",
    "name": "NVIDIA H200",
    "display_name": "H200",
    "vendor": "nvidia",
    "memory_total_bytes": 140 * GIB,
    "availability": "free",
    "health": "ok",
    "users": [],
    "reservation": None,
}
RESERVED = {"id": 1, "user": "ada", "until": 9e9, "note": "", "kind": "reservation"}


@pytest.mark.parametrize(
    ("others", "ada_can", "bob_can"),
    [
        ({}, True, True),
        ({"health": "warning"}, True, True),
        ({"health": "critical"}, False, False),
        ({"availability": "busy"}, False, False),
        ({"availability": "idle"}, False, False),
        ({"availability": "unknown"}, False, False),
        ({"availability": "reserved", "reservation": RESERVED}, True, False),
        ({"availability": "reserved", "reservation": RESERVED | {"kind": "claim"}}, False, False),
        ({"availability": "reserved", "reservation": None}, False, False),
        ({"availability": "busy", "reservation": RESERVED}, False, False),
    ],
)
def test_only_what_is_free_or_reserved_by_oneself_is_usable(
    others: dict[str, Any], ada_can: bool, bob_can: bool
) -> None:
    gpu = candidate_of(HOST, make(Gpu, **(GPU | others)))
    assert (is_usable(gpu, ("ada",)), is_usable(gpu, ("bob",))) == (ada_can, bob_can)


def test_least_memory_that_is_enough_comes_first() -> None:
    gpus = [make_offer(index=index, memory_total_bytes=gib * GIB) for index, gib in enumerate((80, 24, 48, 140))]
    assert [gpu.index for gpu in choose(GpuRequest(memory_bytes=40 * GIB, gpus=3), gpus) or ()] == [2, 0, 3]


def test_memory_that_is_not_known_fits_no_amount_and_comes_last() -> None:
    gpus = [make_offer(index=0, memory_total_bytes=None), make_offer(index=1)]
    assert [gpu.index for gpu in rank(gpus)] == [1, 0]
    assert choose(GpuRequest(memory_bytes=1, gpus=2), gpus) is None
    assert choose(GpuRequest(gpus=2), gpus) is not None


def test_of_equals_the_host_with_the_fewest_left_comes_first_then_its_name_then_the_number() -> None:
    gpus = [make_offer(host, index) for host in ("c", "b", "a") for index in (10, 9, 1)][:-1]
    assert [(gpu.host, gpu.index) for gpu in rank(gpus)] == [
        *(("a", 9), ("a", 10)),
        *(("b", 1), ("b", 9), ("b", 10)),
        *(("c", 1), ("c", 9), ("c", 10)),
    ]


def test_one_host_is_the_one_that_has_the_fewest_left_over() -> None:
    gpus = [make_offer(host, index) for host, count in (("a", 8), ("b", 3), ("c", 2)) for index in range(count)]
    assert {gpu.host for gpu in choose(GpuRequest(gpus=3, same_host=True), gpus) or ()} == {"b"}
    assert choose(GpuRequest(gpus=9, same_host=True), gpus) is None


def test_one_host_is_preferred_where_it_needs_no_larger_gpus() -> None:
    gpus = [make_offer("a", 0), make_offer("b", 0), make_offer("b", 1)]
    assert {gpu.host for gpu in choose(GpuRequest(gpus=2), gpus) or ()} == {"b"}
    large = [
        make_offer("a", 0),
        make_offer("b", 0),
        *(make_offer("c", at, memory_total_bytes=140.0 * GIB) for at in (0, 1)),
    ]
    assert {gpu.host for gpu in choose(GpuRequest(gpus=2), large) or ()} == {"a", "b"}


def test_near_host_comes_before_smaller_gpus_elsewhere() -> None:
    gpus = [make_offer("a", 0, memory_total_bytes=24.0 * GIB), make_offer("b", 0)]
    assert [gpu.host for gpu in choose(GpuRequest(near="b"), gpus) or ()] == ["b"]
    assert [gpu.host for gpu in choose(GpuRequest(near="elsewhere"), gpus) or ()] == ["a"]


@pytest.mark.parametrize(
    ("wanted", "is_found"),
    [
        ({"model": "a100"}, True),
        ({"model": "NVIDIA A100"}, True),
        ({"model": "h200"}, False),
        ({"host": "gpu01"}, True),
        ({"host": "gpu0"}, False),
        ({"host": "machine-1"}, True),
    ],
)
def test_model_is_a_part_of_its_name_and_host_a_whole_name_or_id(wanted: dict[str, Any], is_found: bool) -> None:
    assert (choose(GpuRequest(**wanted), [make_offer(host_id="machine-1")]) is not None) == is_found


def test_instances_count_as_they_are_and_stand_in_order() -> None:
    gpus = [make_offer(index=0, label=f"0.{at}", uuid=f"MIG-{at}", memory_total_bytes=10.0 * GIB) for at in (11, 2)]
    assert [gpu.uuid for gpu in choose(GpuRequest(gpus=2, mig=True), gpus) or ()] == ["MIG-2", "MIG-11"]


def test_wish_in_words() -> None:
    assert GpuRequest(gpus=2, memory_bytes=40 * GIB, same_host=True).describe() == "2 GPUs with 40 GiB on one host"
    assert GpuRequest(model="H200", host="gpu07").describe() == "1 GPU called H200 on gpu07"
