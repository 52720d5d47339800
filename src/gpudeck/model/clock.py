"""Clocks, and the time up to which old data may be deleted.

A hub whose clock is 40 days ahead at its start would consider every sample old. The `RetentionClock` is a time that has
certainly passed: the last certain one plus the seconds that this process has run. It catches up when another clock, or
an admin, confirms the hub's. All deletion by age uses it.
"""

import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]
"""Returns seconds: since 1970 for a `wall` clock, since boot for `boottime`."""

wall: Clock = time.time
FIRST_HOUR: Final = 3600.0
"""Nothing is deleted for this long after a start, so that a mistake can be noticed."""
AGREES: Final = 600.0
"""Seconds by which clocks may differ and still confirm each other."""
_WAY: Final = 0.1
_FRESH: Final = 300.0
"""A confirmation is current for this long."""


def boottime() -> float:
    """Seconds since boot, including suspended time. This clock is never set, and is the same for all processes of one
    boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class RetentionClock:
    """May be read from any thread; one thread confirms it. `known` is a time that had certainly passed when the last
    process ended; `monotonic` is a clock that is never set."""

    def __init__(self, known: float | None = None, now: Clock = wall, monotonic: Clock = time.monotonic) -> None:
        self._now = now
        self._monotonic = monotonic
        self._started = monotonic()
        self._certain = now() if known is None else known, self._started
        self._confirmed: float | None = None

    def confirm(self, true_time: float) -> None:
        """Record that clocks independent of the hub's say that it is `true_time` now."""
        self._certain = min(true_time, self._now()), self._monotonic()
        self._confirmed = self._monotonic() if abs(true_time - self._now()) <= AGREES else None

    def limit(self, newest: float) -> None:
        """Record the time of the newest record from before this start: nothing later is certain by itself."""
        at, moment = self._certain
        if self._confirmed is None:
            self._certain = min(at, newest), moment

    @property
    def certain(self) -> float:
        at, moment = self._certain
        return min(self._now(), at + self._monotonic() - moment)

    @property
    def ahead(self) -> float:
        return self._now() - self.certain

    @property
    def is_confirmed(self) -> bool:
        """Whether other clocks confirmed the hub's within the last minutes."""
        moment = self._confirmed
        return moment is not None and self._monotonic() - moment <= _FRESH and self.ahead <= AGREES

    def deletion_time(self) -> float | None:
        """Records whose retention ended before this time may be deleted; None: nothing may be deleted now."""
        return None if self._monotonic() - self._started < FIRST_HOUR else self.certain


class SharedClock:
    """The clock of the bus that several hubs share: they date reports alike, and setting one hub's clock has no effect.
    Before it is known, the clock of this machine."""

    def __init__(self, now: Clock = wall, monotonic: Clock = time.monotonic) -> None:
        self._now = now
        self._monotonic = monotonic
        self._known: tuple[float, float] | None = None

    def __call__(self) -> float:
        if self._known is None:
            return self._now()
        at, moment = self._known
        return at + self._monotonic() - moment

    def adjust(self, at: float) -> None:
        """Set the time to `at`. Small differences are network delay."""
        if self._known is None or abs(at - self()) > _WAY:
            self._known = at, self._monotonic()
