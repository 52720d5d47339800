"""Bounds how long any computation delays others: the hub has one event loop, and Python runs one thread at a time."""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

HOSTS_AT_ONCE = 6
"""Work on all hosts is interrupted after so many of them."""
THREAD_SECONDS = 0.0005
"""After which Python makes a thread give up its lock while another waits for it. With the default of 5 ms the event
loop would wait that long again and again while a thread seals an hour or answers a question about the past."""
_STRETCH_SECONDS = 0.001
_MAX_SLEEP = 0.1

LOOP_SECONDS = 0.005
SLICE_SECONDS = 0.002

T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[None, None, T]
"""Work in the event loop that yields wherever it may be interrupted: its state is consistent there."""

_parser = ThreadPoolExecutor(1, "parser")


async def parse_in_thread(parse: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `parse` in the one thread for large input from outside: the event loop competes with at most one parser for
    Python's lock. A call whose caller was cancelled ends before the next one begins. A single call of C code that takes
    long still stops the event loop: bound its input."""
    return await asyncio.get_running_loop().run_in_executor(_parser, lambda: parse(*args, **kwargs))


class LoopBudget:
    """For loops in the event loop whose number of rounds comes from outside."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def checkpoint(self) -> None:
        """Yields to the event loop if the last time was 5 ms ago or more."""
        if time.perf_counter() - self._began >= LOOP_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


def finish(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


async def run_in_steps(steps: Steps[T]) -> T:
    budget = LoopBudget()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        await budget.checkpoint()


def advance(steps: Iterator[None]) -> bool:
    """Does what can be done in 2 ms; returns whether that was the rest of it. A slice is short as its steps may start
    or end tasks, whose own work comes right after it."""
    end = time.perf_counter() + SLICE_SECONDS
    return all(time.perf_counter() < end for _ in steps)


class CpuBudget:
    """Limits threads to a share of one processor, in small steps, after so many seconds at full speed: a thread that
    works in Python delays the event loop, whatever its priority. One thread at a time may use a budget; it sleeps in
    `checkpoint`."""

    def __init__(
        self,
        share: float,
        seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._most = self._left = seconds
        self._now = now
        self._worked = worked
        self._sleep = sleep
        self._seen = now()
        self._counted = 0.0

    def apply(self) -> None:
        """Holds whatever runs in this thread, or in this context of it, to the budget from here on."""
        _budget.set(self)
        self._counted = self._worked()

    def checkpoint(self) -> None:
        worked = self._worked() - self._counted
        if worked < _STRETCH_SECONDS:
            return
        now = self._now()
        self._left = min(self._most, self._left + (now - self._seen) * self._share) - worked
        self._seen = now
        self._counted += worked
        if self._left < 0:
            self._sleep(min(-self._left / self._share, _MAX_SLEEP))


_budget: ContextVar[CpuBudget] = ContextVar("budget")


def checkpoint() -> None:
    """Called wherever long work can be interrupted; without a budget it does nothing."""
    budget = _budget.get(None)
    if budget is not None:
        budget.checkpoint()


def checkpointed(things: Iterable[T]) -> Iterator[T]:
    for thing in things:
        checkpoint()
        yield thing


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
