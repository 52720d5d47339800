"""How long somebody may have to wait: a guess from how long programs stayed, and none where there is none to make."""

from typing import Any

import pytest

from fakes.offers import make_offer, make_request
from gpudeck.model.gpu_request import CandidateGpu
from gpudeck.queueing.scheduler import Estimator, RunLengths, WaitEstimate, count_run_lengths

BUSY = [make_offer(index=index, state="taken") for index in range(4)]


def guess(
    gpus: list[CandidateGpu], *wishes: dict[str, Any], stays: dict[str, RunLengths] | None = None
) -> list[WaitEstimate]:
    estimator = Estimator()
    if stays is not None:
        estimator.learn(stays)
    requests = [make_request(at, at=float(at), **wish) for at, wish in enumerate(wishes, 1)]
    return list(estimator(requests, gpus).values())


def staying(seconds: float, count: int = 5) -> dict[str, RunLengths]:
    return {gpu.uuid: RunLengths(count, count * seconds) for gpu in BUSY}


def test_one_of_four_becomes_free_four_times_as_often_as_programs_end() -> None:
    assert guess(BUSY, {}, stays=staying(3600)) == [WaitEstimate(900, None)]


def test_what_those_before_want_is_waited_for_too() -> None:
    found = guess(BUSY, {"gpus": 2}, {}, {"gpus": 3}, stays=staying(3600))
    assert [one.seconds for one in found] == [1800, 2700, 5400]


def test_who_wants_other_gpus_is_not_in_the_way() -> None:
    other = [make_offer("b", index, state="taken") for index in range(2)]
    stays = staying(3600) | {gpu.uuid: RunLengths(10, 600) for gpu in other}
    found = guess([*BUSY, *other], {"host": "gpu01", "gpus": 4}, {"host": "b"}, stays=stays)
    assert [one.seconds for one in found] == [3600, 30]


def test_what_is_free_need_not_be_waited_for() -> None:
    assert guess([make_offer(index=0), *BUSY[1:]], {"gpus": 2}, stays=staying(3600)) == [WaitEstimate(900, None)]


@pytest.mark.parametrize(
    ("wish", "stays", "reason"),
    [
        ({}, None, "this hub keeps no history of how long GPUs are in use"),
        ({}, {}, "fewer than 10 programs ended on such GPUs in the last days"),
        ({}, {"GPU-gpu01-0": RunLengths(9, 900)}, "fewer than 10 programs ended on such GPUs in the last days"),
        (
            {"gpus": 2, "same_host": True},
            staying(60),
            "the history does not say when several GPUs of one host become free together",
        ),
    ],
)
def test_no_guess_stands_beside_its_reason(wish: dict[str, Any], stays: Any, reason: str) -> None:
    assert guess(BUSY, wish, stays=stays) == [WaitEstimate(None, reason)]


def test_program_on_several_gpus_counts_for_each() -> None:
    assert count_run_lengths([(["a", "b"], 10.0), (["a"], 20.0)]) == {
        "a": RunLengths(2, 30.0),
        "b": RunLengths(1, 10.0),
    }
