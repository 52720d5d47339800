"""Limits per caller: requests per second (`RateLimiter`, a token bucket), concurrent requests (`ConcurrencyLimiter`),
and a fair queue for expensive ones (`FairQueue`)."""

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from math import inf
from time import monotonic

from gpudeck.model.errors import Temporary

_TOLERANCE_SECONDS = 1e-6


class RateLimiter:
    """A token bucket for each caller: it holds `burst` tokens and gains `per_second`. One number is kept per caller:
    when its bucket is full again.

    A caller can owe tokens, at most `max_debt_seconds` worth. Only the `max_callers` seen last are kept; a forgotten
    caller starts with a full bucket.
    """

    def __init__(
        self,
        name: str,
        per_second: float,
        burst: int,
        *,
        max_debt_seconds: float = inf,
        max_callers: int = 16_384,
    ) -> None:
        self.name = name
        self._interval = 1.0 / per_second
        # Sums of times are inexact: without the tolerance the last token of a burst would be refused now and then.
        self._window = (burst - 1) * self._interval + _TOLERANCE_SECONDS
        self._max_debt = max_debt_seconds
        self._max_callers = max_callers
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def __contains__(self, caller: Hashable) -> bool:
        return caller in self._full_at

    def take(self, caller: Hashable, now: float) -> float:
        """Takes a token and returns 0.0, or returns the seconds until there is one."""
        wait = self.wait(caller, now)
        self.charge(caller, now, 0.0 if wait else 1.0)
        return wait

    def wait(self, caller: Hashable, now: float) -> float:
        """The seconds until there is a token; 0.0 if there is one."""
        return max(0.0, self.full_at(caller) - now - self._window)

    def charge(self, caller: Hashable, now: float, tokens: float) -> None:
        """Takes tokens even if there are none; a negative number returns tokens."""
        full_at = max(now, self.full_at(caller)) + tokens * self._interval
        self._full_at[caller] = min(full_at, now + self._max_debt)
        self._full_at.move_to_end(caller)
        if len(self._full_at) > self._max_callers:
            self._full_at.popitem(last=False)

    def full_at(self, caller: Hashable) -> float:
        """When the caller's bucket is full again; 0.0 for an unknown caller."""
        return self._full_at.get(caller, 0.0)


class ConcurrencyLimiter:
    """Limits concurrent use, per caller and in total."""

    def __init__(self, per_caller: int, in_all: int) -> None:
        self._per_caller = per_caller
        self._in_all = in_all
        self.in_use: dict[str, int] = {}
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= self._in_all

    def has_room_for(self, caller: str) -> bool:
        return self.in_use.get(caller, 0) < self._per_caller

    def acquire(self, caller: str) -> None:
        self.in_use[caller] = self.in_use.get(caller, 0) + 1
        self.total += 1

    def release(self, caller: str) -> None:
        self.total -= 1
        self.in_use[caller] -= 1
        if not self.in_use[caller]:
            del self.in_use[caller]


class FairQueue:
    """Gives `slots` to at most that many requests at a time. One event loop owns it.

    `usage` has the token bucket of each caller: the one whose bucket is full first is next. So a caller with many
    requests delays no caller with few, and since buckets refill, nobody starves behind new callers. The owner charges
    `usage`; requests of one caller are served in order.

    At most `max_waiting` requests wait. When they do, a request of another caller displaces the newest request of the
    caller with the most waiting requests (of equals, the one that has used most). Its `acquire` raises Temporary with
    the text `refusal`.
    """

    def __init__(
        self,
        usage: RateLimiter,
        max_waiting: int | None = None,
        now: Callable[[], float] = monotonic,
        *,
        slots: int = 1,
        refusal: str = "too many requests are waiting.",
    ) -> None:
        self._free = slots
        self._refusal = refusal
        self._usage = usage
        self._max_waiting = max_waiting
        self._now = now
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._order: list[tuple[float, int, Hashable]] = []
        """A heap with one entry per waiting caller: the time of its bucket, which may have grown since."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_taken(self) -> bool:
        """Whether a request would have to wait."""
        return self._free == 0

    async def acquire(self, caller: Hashable) -> None:
        """Returns when the caller has a slot, until `release`. Raises Temporary if too many wait."""
        if self._free:
            self._free -= 1
            return
        if self._max_waiting is not None and len(self) >= self._max_waiting:
            self._make_room(caller)
        turn = asyncio.get_running_loop().create_future()
        if caller not in self._waiting:
            self._waiting[caller] = deque()
            heapq.heappush(self._order, self._rank(caller))
        self._waiting[caller].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the slot was given to it before it was cancelled
                self.release()
            elif turn in self._waiting.get(caller, ()):
                self._waiting[caller].remove(turn)
            raise

    def release(self) -> None:
        """Gives the slot to the next waiting request."""
        while self._order:
            rank, _, caller = self._order[0]
            turns = self._waiting[caller]
            if turns and self._usage.full_at(caller) > rank:
                heapq.heapreplace(self._order, self._rank(caller))
                continue
            turn = turns.popleft() if turns else None
            if turns:
                heapq.heapreplace(self._order, (rank, next(self._numbers), caller))
            else:
                heapq.heappop(self._order)
                del self._waiting[caller]
            if turn is not None and not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _rank(self, caller: Hashable) -> tuple[float, int, Hashable]:
        return max(self._now(), self._usage.full_at(caller)), next(self._numbers), caller

    def _make_room(self, caller: Hashable) -> None:
        def share(one: Hashable, more: int = 0) -> tuple[int, float]:
            return len(self._waiting.get(one, ())) + more, self._usage.full_at(one)

        largest = max(self._waiting, key=share)
        full = Temporary(self._refusal, "Ask again in a few seconds.")
        if share(largest) <= share(caller, 1):
            raise full
        turn = self._waiting[largest].pop()
        if not turn.done():
            turn.set_exception(full)
