"""How a range of time is cut into steps: round ones, aligned in UTC, so that the same question gets the same answer.

Every store cuts alike. An answer is made of whole steps: the first may begin before the range does, and the last may
end after it.
"""

import math
from typing import Final

from msgspec import Struct

from gpudeck.history.base import MOST_POINTS, HistoryRefused

QUARTER: Final = 900
HOUR: Final = 3600
DAY: Final = 86_400
LONGEST: Final = 3_660 * DAY
STEPS: Final = (
    *(10, 20, 30, 60, 120, 300, 600, QUARTER, 1_800),
    *(HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 56 * DAY, 112 * DAY, 364 * DAY, LONGEST),
)
_LATEST: Final = 253_402_300_800.0  # the year 10000


class Grid(Struct, frozen=True):
    """`count` steps of `step` seconds from `start` on, which is a multiple of the step."""

    start: int
    step: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.step * self.count

    def times(self) -> list[float]:
        return [float(self.start + self.step * number) for number in range(self.count)]


def cut(start: float, end: float, step: int) -> Grid:
    """The whole steps that cover the range."""
    first = math.floor(start / step)
    return Grid(first * step, step, max(1, math.ceil(end / step) - first))


def choose(start: float, end: float, points: int, least: int = STEPS[0]) -> Grid:
    """The smallest round step of at least `least` seconds that makes about `points` of them, at most 1.2 times as many.

    The range may lie anywhere between two steps, so there can be two more.
    """
    most = 1.2 * points
    step = next((step for step in STEPS if step >= least and end - start <= step * most), LONGEST)
    return cut(start, end, step)


def check_range(start: float, end: float) -> None:
    """Raises HistoryRefused for what is no range of time, or a longer one than anything is kept."""
    if not (0 <= start < _LATEST and 0 <= end < _LATEST):
        raise HistoryRefused(
            "bad_range",
            f"from {start:.15g} to {end:.15g} is no range of time",
            "Times are Unix seconds (not milliseconds), from 1970 on.",
        )
    if end <= start:
        raise HistoryRefused("bad_range", "the range ends before it begins", "`start` has to be before `end`.")
    if end - start > LONGEST:
        raise HistoryRefused(
            "too_long",
            f"{(end - start) / (365 * DAY):.1f} years are too long a range",
            "At most 10 years can be asked for.",
        )


def check_points(points: int) -> None:
    if points < 1:
        raise HistoryRefused("bad_points", f"{points} points are no answer", f"Ask for 1 to {MOST_POINTS:,} points.")
    if points > MOST_POINTS:
        raise HistoryRefused(
            "too_many_points", f"{points:,} points are too many", f"Ask for 1 to {MOST_POINTS:,} points."
        )
