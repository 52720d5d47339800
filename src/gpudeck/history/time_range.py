"""Ranges of time: cut into round steps, aligned in UTC, and into days of a time zone.

A `Grid` consists of whole steps: the first may begin before the range, and the last may end after it. A `Period` weighs
hours: usage is kept by the hour, and an hour that is partly in the period, or on two days, is split in proportion to
time. The running hour ends now.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

from msgspec import Struct

from gpudeck.history.base import MAX_POINTS, HistoryRefused
from gpudeck.model import times

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
MAX_DAYS: Final = 400
_LAST_DAY_AT: Final = 2.0**33
"""The year 2242. Later times are rejected."""


class Grid(Struct, frozen=True):
    """`count` steps of `step` seconds each. `start` is a multiple of the step."""

    start: int
    step: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.step * self.count

    def times(self) -> list[float]:
        return [float(self.start + self.step * number) for number in range(self.count)]


def align(start: float, end: float, step: int) -> Grid:
    first = math.floor(start / step)
    return Grid(first * step, step, max(1, math.ceil(end / step) - first))


def choose_grid(start: float, end: float, points: int, least: int = STEPS[0]) -> Grid:
    """The smallest round step of at least `least` seconds that makes about `points` of them, at most 1.2 times as many.
    The range may lie anywhere between two steps, so there can be two more."""
    most = 1.2 * points
    step = next((step for step in STEPS if step >= least and end - start <= step * most), LONGEST)
    return align(start, end, step)


def check_range(start: float, end: float) -> None:
    """Raises HistoryRefused for an invalid range, and for one that is longer than any data are kept."""
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
    if not 1 <= points <= MAX_POINTS:
        code = "bad_points" if points < 1 else "too_many_points"
        raise HistoryRefused(code, f"{points:,} points cannot be returned", f"Ask for 1 to {MAX_POINTS:,} points.")


class Period:
    """From `start` until `end`, in Unix seconds. With a `zone` it is cut into the days there. Nothing was recorded
    before `since`. Raises HistoryRefused for a period that makes no sense or is too long, and for an unknown zone."""

    def __init__(
        self, start: float, end: float, now: float, zone: str | None = None, *, since: float = -math.inf
    ) -> None:
        check_range(start, end)
        self._since = since
        self.start, self.end, self._now = start, end, now
        self.first_hour = math.floor(start / HOUR) * HOUR
        self.end_hour = math.ceil(end / HOUR) * HOUR
        self.days: list[tuple[str, float]] = [] if zone is None else _days(start, end, load_zone(zone))
        self._begins = [begin for _, begin in self.days] or [-math.inf]

    def parts(self, hour: int) -> list[tuple[int, float]]:
        """The days on which the hour lies in the period, by their number, each with its share of the hour (0 to 1). All
        are of day 0 where there are no days."""
        until = min(hour + HOUR, self._now) if hour < self._now else hour + HOUR
        first = self._since if hour < self._since < until else hour
        begin, end = max(first, self.start), min(until, self.end)
        found: list[tuple[int, float]] = []
        while begin < end:
            day = bisect_right(self._begins, begin) - 1
            stop = min(end, self._begins[day + 1]) if day + 1 < len(self._begins) else end
            found.append((day, (stop - begin) / (until - first)))
            begin = stop
        return found

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yields (start, end) ranges of hours, in order. All hours of a range have the same `parts`. An hour that is
        split between days, or that lies only partly in the period, is a range of its own."""
        moments = (self.start, self.end, *(begin for _, begin in self.days))
        cuts = {round_(moment / HOUR) * HOUR for moment in moments for round_ in (math.floor, math.ceil)}
        yield from pairwise(sorted(cut for cut in cuts if self.first_hour <= cut <= self.end_hour))

    def weight(self, hour: int) -> float:
        return sum(share for _, share in self.parts(hour))


def load_zone(name: str) -> tzinfo:
    """The zone with that IANA name. Raises HistoryRefused."""
    try:
        return times.load_zone(name)
    except ValueError as error:
        hint = "Give a name such as Europe/Berlin, or UTC."
        raise HistoryRefused("unknown_zone", f"no time zone {name[:40]!r} is known here", hint) from error


def day_begins(day: date, zone: tzinfo) -> float:
    """The beginning of the day in that zone. If the clock skips midnight, the moment at which it does."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _days(start: float, end: float, zone: tzinfo) -> list[tuple[str, float]]:
    if end > _LAST_DAY_AT:
        raise HistoryRefused("bad_range", f"no calendar goes to {end:.15g}", "Times are Unix seconds.")
    if end - start > MAX_DAYS * DAY:
        days = f"{(end - start) / DAY:.0f} days are too many to list one by one"
        raise HistoryRefused("too_long", days, f"Ask for {MAX_DAYS} days at most, or without `daily`.")
    day = datetime.fromtimestamp(start, zone).date()
    found = []
    while (begin := day_begins(day, zone)) < end:
        found.append((day.isoformat(), begin))
        day += timedelta(days=1)
    return found
