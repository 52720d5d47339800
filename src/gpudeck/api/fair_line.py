"""Who is next where many wait for one turn: the many questions of one asker keep nobody else's few waiting."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic

from gpudeck.model.errors import Temporary

MOST_BEHIND = 2.0
"""Seconds of turns for which an asker is behind others at most, however much it has had."""
FORGIVEN_PER_SECOND = 0.01
"""So much of that is forgotten in each second, so that nobody waits for ever behind others who are always new."""
_MOST_KEPT = 4_096


class FairLine:
    """One turn at a time. Of the askers who wait it is for the one who has had the least lately.

    Where `most` wait, the last question of the asker who has most of them there makes room for another's, and where
    all have as many, that of the asker who has had most. One event loop owns it.
    """

    def __init__(self, most: int, now: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._now = now
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._had: dict[Hashable, float] = {}
        self._level = 0.0
        """What everybody is taken to have had who has had less: nobody saves turns up by staying away."""
        self._seen = now()
        self._is_taken = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def enter(self, asker: Hashable) -> None:
        """Returns when it is the asker's turn, which ends with `leave`. Raises Temporary where too many wait."""
        if not self._is_taken:
            self._begin(asker)
            return
        if len(self) >= self._most:
            self._make_room(asker)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._drop(asker, turn)
            else:  # it was told that it may, and goes away all the same
                self._let_next_in()
            raise

    def leave(self, asker: Hashable, seconds: float) -> None:
        """The turn is over, after so many seconds."""
        had = min(self._had_by(asker) + seconds, self._level + MOST_BEHIND)
        self._had.pop(asker, None)
        if len(self._had) >= _MOST_KEPT:
            del self._had[next(iter(self._had))]
        self._had[asker] = had
        self._let_next_in()

    def _had_by(self, asker: Hashable) -> float:
        return max(self._level, self._had.get(asker, 0.0))

    def _begin(self, asker: Hashable) -> None:
        self._is_taken = True
        now = self._now()
        self._level = max(self._level + (now - self._seen) * FORGIVEN_PER_SECOND, self._had_by(asker))
        self._seen = now

    def _let_next_in(self) -> None:
        self._is_taken = False
        while self._waiting and not self._is_taken:
            asker = min(self._waiting, key=self._had_by)
            turn = self._waiting[asker][0]
            self._drop(asker, turn)
            if not turn.done():  # else whoever waited has gone
                self._begin(asker)
                turn.set_result(None)

    def _make_room(self, asker: Hashable) -> None:
        def share(one: Hashable) -> tuple[int, float]:
            return len(self._waiting[one]), self._had_by(one)

        largest = max(self._waiting, key=share)
        crowd = Temporary("too many questions about the past are waiting.", "Ask again in a few seconds.")
        if share(largest) <= (len(self._waiting.get(asker, ())) + 1, self._had_by(asker)):
            raise crowd
        turn = self._waiting[largest][-1]
        self._drop(largest, turn)
        if not turn.done():
            turn.set_exception(crowd)

    def _drop(self, asker: Hashable, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(asker, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[asker]
