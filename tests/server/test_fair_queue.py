"""Which of the waiting callers is next."""

import asyncio

import pytest

from fakes.clock import FakeClock
from gpudeck.api.history import FORGOTTEN_PER_SECOND, MAX_DEBT
from gpudeck.model.errors import Temporary
from gpudeck.server.rate_limits import FairQueue, RateLimiter


class Queue:
    """A line, and who had a turn in which order. Each keeps it for a second of a clock that a test sets."""

    def __init__(self, most: int = 10) -> None:
        self.clock = FakeClock()
        debt = MAX_DEBT / FORGOTTEN_PER_SECOND
        self.usage = RateLimiter("usage", FORGOTTEN_PER_SECOND, 1, max_debt_seconds=debt)
        self.line = FairQueue(self.usage, most, self.clock)
        self.order: list[str] = []
        self.seconds = 1.0

    async def ask(self, asker: str) -> None:
        await self.line.acquire(asker)
        self.order.append(asker)
        await asyncio.sleep(0)
        self.usage.charge(asker, self.clock(), self.seconds)
        self.line.release()

    async def crowd(self, askers: str) -> list[str]:
        """How it ended for each, in the order in which they came."""
        ended = await asyncio.gather(*map(self.ask, askers), return_exceptions=True)
        return [type(one).__name__ if one else "" for one in ended]


def test_askers_take_turns_however_many_questions_each_of_them_has() -> None:
    queue = Queue()
    asyncio.run(queue.crowd("aaaabbc"))
    assert "".join(queue.order) == "abcabaa"


def test_line_that_is_full_takes_from_whoever_has_most_there() -> None:
    queue = Queue(most=3)
    ended = asyncio.run(queue.crowd("aaaabb"))
    assert ended == ["", "", "", "Temporary", "", "Temporary"]
    assert "".join(queue.order) == "abaa"


def test_line_full_of_others_who_had_turns_has_room_for_one_who_had_none() -> None:
    queue = Queue(most=2)

    async def come() -> list[str]:
        await queue.crowd("abc")
        await queue.crowd("bc")
        return await queue.crowd("abcd")

    assert asyncio.run(come())[-1] == ""
    assert "".join(queue.order) == "abcbcadc"


def test_nobody_waits_for_ever_behind_others_who_are_always_new() -> None:
    queue = Queue()
    queue.seconds = 100.0

    async def come() -> None:
        await queue.crowd("a")
        queue.clock.now += MAX_DEBT / FORGOTTEN_PER_SECOND
        await queue.crowd("bac")

    asyncio.run(come())
    assert "".join(queue.order) == "abac"


def test_who_goes_away_keeps_nobody_else_waiting() -> None:
    queue = Queue()

    async def come() -> None:
        async with asyncio.timeout(20):
            await queue.line.acquire("a")
            told, waiting, last = (asyncio.create_task(queue.ask(name)) for name in "bcd")
            await asyncio.sleep(0)
            waiting.cancel()
            queue.line.release()
            told.cancel()  # after it was told that it may
            await last

    asyncio.run(come())
    assert queue.order == ["d"]
    assert len(queue.line) == 0


def test_too_many_of_one_asker_are_refused() -> None:
    queue = Queue(most=1)

    async def come() -> None:
        await queue.line.acquire("a")
        waiting = asyncio.create_task(queue.line.acquire("a"))
        await asyncio.sleep(0)
        with pytest.raises(Temporary, match="too many requests are waiting"):
            await queue.line.acquire("a")
        waiting.cancel()

    asyncio.run(come())
