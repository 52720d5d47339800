"""How long somebody may have to wait: a guess from how long programs stayed, and none where there is none to make."""

from typing import Any

import pytest

from fakes.offers import make_offer, make_request
from gpudeck.model.gpu_request import CandidateGpu
from gpudeck.queueing.scheduler import RunLengths, WaitEstimate, estimate_waits

BUSY = [make_offer(index=index, state="taken") for index in range(4)]


def guess(gpus: list[CandidateGpu], *wishes: dict[str, Any], stays: RunLengths | None = None) -> list[WaitEstimate]:
    requests = [make_request(at, at=float(at), **wish) for at, wish in enumerate(wishes, 1)]
    return list(estimate_waits(requests, gpus, stays).values())


def staying(seconds: float, count: int = 5) -> dict[str, list[float]]:
    return {gpu.uuid: [seconds] * count for gpu in BUSY}


def test_one_of_four_becomes_free_four_times_as_often_as_programs_end() -> None:
    assert guess(BUSY, {}, stays=staying(3600)) == [WaitEstimate(900, None)]


def test_what_those_before_want_is_waited_for_too() -> None:
    found = guess(BUSY, {"gpus": 2}, {}, {"gpus": 3}, stays=staying(3600))
    assert [one.seconds for one in found] == [1800, 2700, 5400]


def test_who_wants_other_gpus_is_not_in_the_way() -> None:
    other = [make_offer("b", index, state="taken") for index in range(2)]
    stays = staying(3600) | {gpu.uuid: [60.0] * 10 for gpu in other}
    found = guess([*BUSY, *other], {"host": "gpu01", "gpus": 4}, {"host": "b"}, stays=stays)
    assert [one.seconds for one in found] == [3600, 30]


def test_what_is_free_need_not_be_waited_for() -> None:
    assert guess([make_offer(index=0), *BUSY[1:]], {"gpus": 2}, stays=staying(3600)) == [WaitEstimate(900, None)]


@pytest.mark.parametrize(
    ("wish", "stays", "reason"),
    [
        ({}, None, "this hub keeps no history of how long GPUs are in use"),
        ({}, {}, "fewer than 10 programs ended on such GPUs in the last days"),
        ({}, {"GPU-gpu01-0": [100.0] * 9}, "fewer than 10 programs ended on such GPUs in the last days"),
        (
            {"gpus": 2, "same_host": True},
            staying(60),
            "the history does not say when several GPUs of one host become free together",
        ),
    ],
)
def test_no_guess_stands_beside_its_reason(wish: dict[str, Any], stays: Any, reason: str) -> None:
    assert guess(BUSY, wish, stays=stays) == [WaitEstimate(None, reason)]
