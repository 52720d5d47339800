"""A CPU budget: a thread works at full speed for a while, then for a share of the time."""

import asyncio
import threading
from contextvars import copy_context
from itertools import repeat

import pytest

from gpudeck.model.cpu_budget import (
    CpuBudget,
    LoopBudget,
    Steps,
    advance,
    checkpoint,
    checkpointed,
    finish,
    parse_in_thread,
    run_in_steps,
)


class Worker:
    """Works for ten milliseconds at a time; a clock that goes on while it works and while it sleeps."""

    def __init__(self, share: float, seconds: float) -> None:
        self.now = 100.0
        self.worked = 0.0
        self.slept = list[float]()
        self.budget = CpuBudget(share, seconds, now=lambda: self.now, worked=lambda: self.worked, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.worked += seconds
        self.now += seconds

    def go(self, times: int) -> None:
        def apply_and_work() -> None:
            self.budget.apply()
            for _ in checkpointed(repeat(None, times)):
                self.work(0.01)

        copy_context().run(apply_and_work)


def test_what_is_short_never_sleeps() -> None:
    worker = Worker(0.25, 0.5)
    worker.go(30)
    assert worker.slept == []


def test_what_does_not_end_has_its_share() -> None:
    worker = Worker(0.25, 0.5)
    worker.go(100)
    worked, began = worker.worked, worker.now
    worker.go(100)
    assert (worker.worked - worked) / (worker.now - began) < 0.26
    assert (worker.worked - worked) / (worker.now - began) > 0.2
    assert max(worker.slept) < 0.05  # in small steps


def test_a_rest_gives_the_full_speed_back() -> None:
    worker = Worker(0.25, 0.5)
    worker.go(100)
    worker.now += 60
    worker.slept.clear()
    worker.go(30)
    assert worker.slept == []


def test_a_checkpoint_without_a_budget_does_nothing() -> None:
    checkpoint()
    assert list(checkpointed("abc")) == ["a", "b", "c"]


def test_large_input_is_parsed_by_one_thread_in_its_order() -> None:
    seen: list[tuple[str, int]] = []

    async def parse_all() -> None:
        work = [lambda n=n: seen.append((threading.current_thread().name, n)) for n in range(20)]
        await asyncio.gather(*(parse_in_thread(one) for one in work))

    asyncio.run(parse_all())
    assert seen == [("parser_0", n) for n in range(20)]


def test_a_checkpoint_serves_others_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(seconds: float) -> int:
        monkeypatch.setattr("gpudeck.model.cpu_budget.LOOP_SECONDS", seconds)
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        budget = LoopBudget()
        for _ in range(100):
            await budget.checkpoint()
        ticking.cancel()
        return turns

    assert asyncio.run(count(0.0)) == 100
    assert asyncio.run(count(1000.0)) == 0


def count_to(last: int, counted: list[int]) -> Steps[str]:
    for number in range(last):
        counted.append(number)
        yield
    return "done"


def test_steps_are_done_in_one_go_in_turns_or_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count_turns(counted: list[int]) -> list[int]:
        monkeypatch.setattr("gpudeck.model.cpu_budget.LOOP_SECONDS", 0.0)
        work = asyncio.create_task(run_in_steps(count_to(5, counted)))
        seen = []
        while not work.done():
            await asyncio.sleep(0)
            seen.append(len(counted))
        assert await work == "done"
        return seen

    assert finish(count_to(5, [])) == "done"
    assert set(asyncio.run(count_turns([]))) == {1, 2, 3, 4, 5}
    monkeypatch.setattr("gpudeck.model.cpu_budget.SLICE_SECONDS", 0.0)
    steps = count_to(3, counted := [])
    assert [(advance(steps), len(counted)) for _ in range(4)] == [(False, 1), (False, 2), (False, 3), (True, 3)]
    monkeypatch.setattr("gpudeck.model.cpu_budget.SLICE_SECONDS", 1000.0)
    assert advance(count_to(3, []))
