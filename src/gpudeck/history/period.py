"""A period of time over hours and days: which part of an hour's sums lies inside, and on which day.

Uses are kept by the hour. Of an hour that lies only partly in the period, or on two days, each part has the share of
the sums that it has of the hour's time. The hour that is still running has time until now.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from gpudeck.history.base import HistoryRefused
from gpudeck.history.steps import DAY, HOUR, check_range

MOST_DAYS: Final = 400
_LATEST: Final = 2.0**33
"""The year 2242: what lies behind it is a mistake, and a calendar need not take it."""


class Period:
    """From `start` until `end`, in Unix seconds. With a `zone` it is cut into the days there.

    Raises HistoryRefused for a period that makes no sense or is too long, and for a zone that nobody knows.
    """

    def __init__(self, start: float, end: float, now: float, zone: str | None = None) -> None:
        check_range(start, end)
        self.start, self.end, self._now = start, end, now
        self.first_hour = math.floor(start / HOUR) * HOUR
        self.end_hour = math.ceil(end / HOUR) * HOUR
        self.days: list[tuple[str, float]] = [] if zone is None else _days(start, end, load_zone(zone))
        self._begins = [begin for _, begin in self.days] or [-math.inf]

    def parts(self, hour: int) -> list[tuple[int, float]]:
        """The days on which the hour lies in the period, by their number, each with its share of the hour (0 to 1).

        All are of day 0 where there are no days.
        """
        until = min(hour + HOUR, self._now) if hour < self._now else hour + HOUR
        begin, end = max(hour, self.start), min(until, self.end)
        found: list[tuple[int, float]] = []
        while begin < end:
            day = bisect_right(self._begins, begin) - 1
            stop = min(end, self._begins[day + 1]) if day + 1 < len(self._begins) else end
            found.append((day, (stop - begin) / (until - hour)))
            begin = stop
        return found

    def stretches(self) -> Iterator[tuple[int, int]]:
        """The hours from when until when, in order: as many as lie wholly in the period and on one day, or a single
        one of which that is not so. What `parts` says of the first hour of a stretch is so of all of them."""
        moments = (self.start, self.end, *(begin for _, begin in self.days))
        cuts = {round_(moment / HOUR) * HOUR for moment in moments for round_ in (math.floor, math.ceil)}
        yield from pairwise(sorted(cut for cut in cuts if self.first_hour <= cut <= self.end_hour))

    def weight(self, hour: int) -> float:
        """How much of the hour lies in the period, 0 to 1."""
        return sum(share for _, share in self.parts(hour))


def load_zone(name: str) -> tzinfo:
    """The zone of that IANA name. UTC needs no tables, which small containers do not have."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        hint = "Give a name such as Europe/Berlin, or UTC."
        raise HistoryRefused("unknown_zone", f"no time zone {name[:40]!r} is known here", hint) from error


def day_begins(day: date, zone: tzinfo) -> float:
    """When the day begins there. Where the clock skips midnight this is the moment at which it does."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _days(start: float, end: float, zone: tzinfo) -> list[tuple[str, float]]:
    """All days that have a part in the period, with their date and when they begin."""
    _check_days(start, end)
    day = datetime.fromtimestamp(start, zone).date()
    found = []
    while (begin := day_begins(day, zone)) < end:
        found.append((day.isoformat(), begin))
        day += timedelta(days=1)
    return found


def _check_days(start: float, end: float) -> None:
    if end > _LATEST:
        raise HistoryRefused("bad_range", f"no calendar goes to {end:.15g}", "Times are Unix seconds.")
    if end - start > MOST_DAYS * DAY:
        days = f"{(end - start) / DAY:.0f} days are too many to tell one by one"
        raise HistoryRefused("too_long", days, f"Ask for {MOST_DAYS} days at most, or without `daily`.")
