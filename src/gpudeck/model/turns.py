"""How long anything may keep others from their turn: a hub has one event loop, and Python one thread at work."""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar, cast

HOSTS_AT_ONCE = 6
"""Whatever looks at all hosts lets others have a turn after so many of them."""
THREAD_SECONDS = 0.0005
"""After which Python takes the turn from a thread while the event loop waits for it. Its own 5 ms would pass at each
turn of the loop while a thread seals an hour or answers a question about the past."""
_STRETCH_SECONDS = 0.001
_LONGEST_BREATH = 0.1

_LOOP_SECONDS = 0.005
_SLICE_SECONDS = 0.002

T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[None, None, T]
"""Work in the event loop that yields wherever others may have a turn: what it has changed by then is consistent."""

_parser = ThreadPoolExecutor(1, "parser")


async def parse_aside(parse: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `parse` in the one thread for large input from outside.

    One thread for all of it: the event loop competes with at most one parser for Python's lock, however many hosts send
    large answers at once. `parse` may change state of its caller: a call whose caller was cancelled ends before the
    next one begins. A single call of C code that takes long still stops the event loop: bound its input.
    """
    return await asyncio.get_running_loop().run_in_executor(_parser, lambda: parse(*args, **kwargs))


class LoopBudget:
    """For loops in the event loop whose number of rounds comes from outside, and which may never really wait."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def checkpoint(self) -> None:
        """Lets others have a turn if the last one was 5 ms ago or more."""
        if time.perf_counter() - self._began >= _LOOP_SECONDS:
            await asyncio.sleep(0)
            self._began = time.perf_counter()


def finish(steps: Steps[T]) -> T:
    """Does all of it in one go, for callers that nobody waits for."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


async def take_turns(steps: Steps[T]) -> T:
    """Does all of it, and lets others have a turn every 5 ms."""
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
    end = time.perf_counter() + _SLICE_SECONDS
    return all(time.perf_counter() < end for _ in steps)


class Pace:
    """Holds threads to a share of one processor, in small steps, once they have had so many seconds of it in a row.

    A thread that works in Python takes the event loop's turns, whatever the system says of priorities: the loop then
    waits at each of the many places where it hands its turn over. Threads keep the pace one after the other, not two at
    once, and only where they `breathe`.
    """

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
        self._told = 0.0

    def keep(self) -> None:
        """What runs in this thread, or in this context of it, keeps the pace from here on."""
        _pace.set(self)
        self._told = self._worked()

    def breathe(self) -> None:
        worked = self._worked() - self._told
        if worked < _STRETCH_SECONDS:
            return
        now = self._now()
        self._left = min(self._most, self._left + (now - self._seen) * self._share) - worked
        self._seen = now
        self._told += worked
        if self._left < 0:
            self._sleep(min(-self._left / self._share, _LONGEST_BREATH))


_pace: ContextVar[Pace] = ContextVar("pace")


def breathe() -> None:
    """Called wherever long work can be interrupted: costs nothing where nobody has to keep a pace."""
    pace = _pace.get(None)
    if pace is not None:
        pace.breathe()


def paced(things: Iterable[T]) -> Iterator[T]:
    """The same things; whoever works through them breathes before each."""
    for thing in things:
        breathe()
        yield thing
