"""Backoff: the pauses between attempts after failures."""

from collections.abc import Callable


def pause_after(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after that many failures in a row: `first`, then twice as long each time, up to `longest`."""
    return min(longest, first * 2.0 ** min(max(failures, 1) - 1, 20))


class Backoff:
    """Counts failures in a row. Each pause is shortened at random by up to `jitter` (0–1), so that many that failed
    together are not retried together."""

    def __init__(
        self, first: float, longest: float, jitter: float = 0.0, random: Callable[[], float] | None = None
    ) -> None:
        self.failures = 0
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._random = random

    def fail(self, asked_for: float | None = None) -> float:
        """Count a failure; returns the pause before the next attempt, in seconds. A pause that the other side
        `asked_for` is the least, up to an hour, and made longer at random by up to half."""
        self.failures += 1
        if asked_for is not None:
            return min(asked_for, 3600.0) * (1.0 + 0.5 * self._draw())
        pause = pause_after(self.failures, self._first, self._longest)
        return pause * (1.0 - self._jitter * self._draw()) if self._jitter else pause

    def succeed(self) -> None:
        self.failures = 0

    def _draw(self) -> float:
        if self._random is None:
            from random import random  # noqa: PLC0415 - collectors' processes need none of it

            self._random = random
        return self._random()
