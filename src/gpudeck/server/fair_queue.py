"""One slot, many callers who wait for it: the caller that has used the least is next."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic

from gpudeck.model.errors import Temporary
from gpudeck.server.rate_limits import RateLimiter


class FairQueue:
    """Gives one slot to one request at a time. One event loop owns it.

    `usage` says what each caller has used: whose bucket is full again first is next. So a caller with many requests
    delays no caller with few, and since buckets fill up again, none waits for ever behind new callers. The owner
    charges `usage`; requests of one caller are served in their order.

    At most `max_waiting` requests wait. When they do, the newest request of the caller with the most of them makes room
    for that of another caller; among callers with equally many, of the one that has used the most.
    """

    def __init__(
        self, usage: RateLimiter, max_waiting: int | None = None, now: Callable[[], float] = monotonic
    ) -> None:
        self.is_taken = False
        self._usage = usage
        self._max_waiting = max_waiting
        self._now = now
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._order: list[tuple[float, int, Hashable]] = []
        """A heap with one entry for each caller of `_waiting`: the time of its bucket, which may have grown since."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def acquire(self, caller: Hashable) -> None:
        """Returns when the slot is the caller's, until `release`. Raises Temporary when too many wait."""
        if not self.is_taken:
            self.is_taken = True
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
        """Gives the slot to the next request, if one waits."""
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
        self.is_taken = False

    def _rank(self, caller: Hashable) -> tuple[float, int, Hashable]:
        return max(self._now(), self._usage.full_at(caller)), next(self._numbers), caller

    def _make_room(self, caller: Hashable) -> None:
        def share(one: Hashable, more: int = 0) -> tuple[int, float]:
            return len(self._waiting.get(one, ())) + more, self._usage.full_at(one)

        largest = max(self._waiting, key=share)
        full = Temporary("too many questions about the past are waiting.", "Ask again in a few seconds.")
        if share(largest) <= share(caller, 1):
            raise full
        turn = self._waiting[largest].pop()
        if not turn.done():
            turn.set_exception(full)
