"""Waiting for a condition, in a test or in a coroutine of one: the only place that polls."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 60.0
"""Long enough for a loaded machine: a test that passes does not wait for it."""
_MAX_PAUSE = 0.2


def wait_until(
    condition: Callable[[], T], what: str = "the condition", seconds: float = SECONDS, every: float = 0.05
) -> T:
    """Return the first true result of the condition; fail if there is none within `seconds`. A hub answers one address
    50 times a second: many that wait for one hub at the same time ask it less often. What takes long is looked at five
    times a second: a look costs CPU time, here and in the hub."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(every)
        every = max(every, min(1.1 * every, _MAX_PAUSE))
    return result


async def until(
    condition: Callable[[], T] | Callable[[], Awaitable[T]], what: str = "the condition", seconds: float = SECONDS
) -> T:
    """The same in an event loop, where a condition may be a coroutine."""
    deadline = time.monotonic() + seconds
    while not (result := await _look(condition)):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        await asyncio.sleep(0.01)
    return result


async def _look(condition: Callable[[], T] | Callable[[], Awaitable[T]]) -> T:
    found = condition()
    return await found if isinstance(found, Awaitable) else found


async def close_listening(server: asyncio.Server) -> None:
    """A connection that was accepted just now has its handler some turns of the loop later. Python forgets to close it
    where the server is closed before, and some later test would be blamed for the warning."""
    for _ in range(5):
        await asyncio.sleep(0)
    server.close()
