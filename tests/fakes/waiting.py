"""Waiting for a condition, in a test or in a coroutine of one: the only place that polls."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 20.0
"""Long enough for a loaded machine: a test that passes does not wait for it."""


def wait_until(condition: Callable[[], T], what: str = "the condition", seconds: float = SECONDS) -> T:
    """Return the first true result of the condition; fail if there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)  # a hub answers one address 50 times a second
    return result


async def until(condition: Callable[[], T], what: str = "the condition", seconds: float = SECONDS) -> T:
    """The same in an event loop."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        await asyncio.sleep(0.01)
    return result
