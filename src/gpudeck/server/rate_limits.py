"""Limits per caller: how often (`RateLimiter`, a token bucket) and how many at once (`ConcurrencyLimiter`)."""

from collections import OrderedDict
from collections.abc import Hashable
from math import inf

_TOLERANCE_SECONDS = 1e-6


class RateLimiter:
    """A token bucket for each caller: it holds `burst` tokens, and `per_second` tokens are added.

    One number is kept per caller: when its bucket is full again. A caller can owe tokens, at most `max_debt_seconds`
    worth. Only the `max_callers` seen last are kept; a forgotten caller starts with a full bucket.
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
        # Sums of times are not exact: without the tolerance the last token of a burst would be refused now and then.
        self._window = (burst - 1) * self._interval + _TOLERANCE_SECONDS
        self._max_debt = max_debt_seconds
        self._max_callers = max_callers
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def __contains__(self, caller: Hashable) -> bool:
        return caller in self._full_at

    def take(self, caller: Hashable, now: float) -> float:
        """Takes a token and returns 0.0, or takes none and returns the seconds until there is one."""
        wait = self.wait(caller, now)
        self.charge(caller, now, 0.0 if wait else 1.0)
        return wait

    def wait(self, caller: Hashable, now: float) -> float:
        """The seconds until there is a token; 0.0 where there is one."""
        return max(0.0, self.full_at(caller) - now - self._window)

    def charge(self, caller: Hashable, now: float, tokens: float) -> None:
        """Takes tokens whether there are any or not; a negative number gives tokens back."""
        full_at = max(now, self.full_at(caller)) + tokens * self._interval
        self._full_at[caller] = min(full_at, now + self._max_debt)
        self._full_at.move_to_end(caller)
        if len(self._full_at) > self._max_callers:
            self._full_at.popitem(last=False)

    def full_at(self, caller: Hashable) -> float:
        """When the caller's bucket is full again; 0.0 for an unknown caller."""
        return self._full_at.get(caller, 0.0)


class ConcurrencyLimiter:
    """How many of something are in use at once, by each caller and in all."""

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
