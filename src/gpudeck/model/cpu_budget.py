"""Bounds how long computations delay others: the hub has one event loop, and Python runs one thread at a time."""

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

HOSTS_AT_ONCE = 6
"""Work on all hosts yields after this many of them."""
THREAD_SECONDS = 0.0005
"""The interpreter's switch interval: how long a thread keeps the GIL while another waits. With the default of 5 ms, the
event loop would wait that long again and again while a thread seals an hour or answers a history query."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 128 * 1024
_STRETCH_SECONDS = 0.001
_MAX_SLEEP = 0.1

LOOP_SECONDS = 0.005
SLICE_SECONDS = 0.002

T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[None, None, T]
"""Work in the event loop, as a generator that yields where it may be interrupted: its state is consistent there."""

_parser = ThreadPoolExecutor(1, "parser")


async def parse_in_thread(parse: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `parse` in the one thread for large input from outside, so the event loop competes with at most one parser
    for the GIL. A call whose caller was cancelled ends before the next one begins. A single long call of C code still
    blocks the event loop: bound its input."""
    return await asyncio.get_running_loop().run_in_executor(_parser, lambda: parse(*args, **kwargs))


class LoopBudget:
    """For loops in the event loop whose length depends on input."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def checkpoint(self) -> None:
        """Yields to the event loop if 5 ms have passed since the last time."""
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
    """Runs steps for up to 2 ms; returns whether they are finished. Slices are short because steps may start or end
    tasks, which then run next."""
    end = time.perf_counter() + SLICE_SECONDS
    return all(time.perf_counter() < end for _ in steps)


class CpuBudget:
    """Limits threads to a share of one processor, in small steps, after a number of seconds at full speed: a thread
    that runs Python code delays the event loop whatever its priority. One thread at a time may use a budget; it sleeps
    in `checkpoint`."""

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
        """Applies the budget to everything that runs in this thread, or in this context of it, from now on."""
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
    """Called wherever long work can be interrupted; does nothing without a budget."""
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


def tune_process() -> None:
    """Settings of the process of a hub: few and short pauses of the garbage collector, prompt changes between threads,
    memory that returns to the system, and as many descriptors as are allowed."""
    # Each object takes up to 3 µs of a collection: the youngest generation stays small, the oldest is rarely scanned.
    gc.set_threshold(10_000, 5, 1_000)
    sys.setswitchinterval(THREAD_SECONDS)
    # Each viewer and each agent needs a descriptor; the usual limit of 1,024 is too low.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A delta of thousands of hosts has megabytes: glibc would keep them when small objects are allocated meanwhile.
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 2)
