"""How long to wait after failed log-ins: long enough against guessing, never so long that an attacker locks out the
account's owner.

Three things are counted, all in memory. A name from one address: after a few tries each failure doubles the wait. An
address, whatever the names: a number of tries an hour. A name, wherever the tries come from: past a great number of
them an address that is new to it waits a few seconds, once for each try, whatever others do meanwhile. An address from
which a name logged in before answers for that name alone: others behind the same address do not make it wait.
"""

from collections.abc import Callable, Sized
from typing import TypeVar

from msgspec import Struct

from gpudeck.model.backoff import pause_after
from gpudeck.server.addresses import count_as

FREE_TRIES = 5
"""Of one name from one address, before any wait."""
LONGEST_WAIT = 300.0
FORGET_AFTER = 3600.0
"""How long after the last failure of a name from one address nothing is left of it."""
ADDRESS_BURST = 20.0
ADDRESS_REFILL_SECONDS = 90.0
"""Each so often an address gets another try: 60 within any hour, all names together."""
NAME_BURST = 100.0
NAME_REFILL_SECONDS = 30.0
NAME_WAIT = 3.0
TURN_SECONDS = 30.0
"""How long it is remembered at least that an address has waited for a name."""
MOST_KEPT = 10_000
"""Of each kind of counter. When there are more, that which changed longest ago goes."""

_ROUNDING = 0.001
_Pair = tuple[str, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Bucket(Struct):
    """Failures that run out by one each so often."""

    level: float
    at: float

    def settle(self, now: float, refill: float) -> float:
        """The level now. A clock that went back counts as one that stood still."""
        self.level = max(0.0, self.level - max(0.0, now - self.at) / refill)
        self.at = now
        return self.level


class _Streak(Struct):
    """Failures one after another."""

    count: int
    at: float


class LoginThrottle:
    """Counts failures. `now` is in seconds; it need not be the time of day.

    Between `wait_before` and `note_failure` nothing may be awaited: of many tries at once each has to count before the
    next is let through. So a try is noted as a failure when it begins, and `note_success` takes that back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._streaks: dict[_Pair, _Streak] = {}
        self._addresses: dict[str, _Bucket] = {}
        self._names: dict[str, _Bucket] = {}
        self._told: dict[_Pair, float] = {}
        self._friends: dict[_Pair, None] = {}

    def __len__(self) -> int:
        """Entries of its longest table."""
        tables: tuple[Sized, ...] = (self._streaks, self._addresses, self._names, self._told, self._friends)
        return max(len(table) for table in tables)

    def wait_before(self, name: str, address: str) -> float:
        """Seconds until that name may be tried from that address; 0: now."""
        pair, now = _pair_of(name, address), self._now()
        wait = self._wait_of_pair(pair, now)
        if pair not in self._friends:
            wait = max(wait, self._wait_of_address(pair[1], now))
            wait = wait or self._wait_of_name(pair, now)
        return wait if wait > _ROUNDING else 0.0

    def note_failure(self, name: str, address: str) -> None:
        pair, now = _pair_of(name, address), self._now()
        streak = self._live_streak(pair, now)
        _put(self._streaks, pair, _Streak(streak.count + 1 if streak else 1, now))
        _add(self._addresses, pair[1], now, ADDRESS_REFILL_SECONDS)
        _add(self._names, pair[0], now, NAME_REFILL_SECONDS)
        self._told.pop(pair, None)

    def note_success(self, name: str, address: str) -> None:
        """Takes back the failure that this try was noted as. Others of the same address stay: an attacker with an
        account could otherwise erase failed guesses at other names with it."""
        pair = _pair_of(name, address)
        self._streaks.pop(pair, None)
        for buckets, key in ((self._addresses, pair[1]), (self._names, pair[0])):
            if key in buckets:
                buckets[key].level = max(0.0, buckets[key].level - 1)
        _put(self._friends, pair, None)

    def _wait_of_pair(self, pair: _Pair, now: float) -> float:
        streak = self._live_streak(pair, now)
        if streak is None or streak.count < FREE_TRIES:
            return 0.0
        wait = pause_after(streak.count - FREE_TRIES + 1, 1.0, LONGEST_WAIT)
        return max(0.0, streak.at + wait - now)

    def _live_streak(self, pair: _Pair, now: float) -> _Streak | None:
        streak = self._streaks.get(pair)
        if streak is None or now - streak.at >= FORGET_AFTER:
            return None
        streak.at = min(streak.at, now)  # a clock that went back makes no wait longer
        return streak

    def _wait_of_address(self, address: str, now: float) -> float:
        bucket = self._addresses.get(address)
        if bucket is None:
            return 0.0
        over = bucket.settle(now, ADDRESS_REFILL_SECONDS) - (ADDRESS_BURST - 1)
        return max(0.0, over * ADDRESS_REFILL_SECONDS)

    def _wait_of_name(self, pair: _Pair, now: float) -> float:
        """A caller who waited as asked may try, even if a thousand others failed meanwhile."""
        bucket = self._names.get(pair[0])
        if bucket is None or bucket.settle(now, NAME_REFILL_SECONDS) < NAME_BURST:
            return 0.0
        until = self._told.get(pair)
        if until is not None:
            return min(NAME_WAIT, max(0.0, until - now))
        if not self._has_room_to_tell(now):
            return 0.0
        self._told[pair] = now + NAME_WAIT
        return NAME_WAIT

    def _has_room_to_tell(self, now: float) -> bool:
        """No turn is forgotten to note another one: in such a flood a name's own limit is of no use any more."""
        while len(self._told) >= MOST_KEPT:
            oldest = next(iter(self._told))
            if self._told[oldest] > now - TURN_SECONDS:
                return False
            del self._told[oldest]
        return True


def _pair_of(name: str, address: str) -> _Pair:
    return name[:64].lower(), count_as(address[:64])


def _add(buckets: dict[str, _Bucket], key: str, now: float, refill: float) -> None:
    bucket = buckets.get(key) or _Bucket(0.0, now)
    bucket.settle(now, refill)
    bucket.level += 1
    _put(buckets, key, bucket)


def _put(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Puts it behind all others; the first goes when there are too many."""
    kept.pop(key, None)
    if len(kept) >= MOST_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value
