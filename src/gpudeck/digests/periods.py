"""The weeks and months of digests, in a user's time zone. Pure."""

from datetime import date, datetime, time, timedelta, tzinfo
from typing import Literal

from msgspec import Struct

from gpudeck.digests.settings import DigestSettings
from gpudeck.history.time_range import day_begins
from gpudeck.idle_policy.settings import DAYS


class DigestPeriod(Struct, frozen=True):
    """`before` is the start of the period before, `due` the time at which the digest is sent. `name` is the week or
    month: 2026-W46, 2026-11."""

    name: str
    first: date
    last: date
    before: float
    start: float
    end: float
    due: float


def find_period(every: Literal["week", "month"], settings: DigestSettings, zone: tzinfo, now: float) -> DigestPeriod:
    """The newest period whose digest is due."""
    today = datetime.fromtimestamp(now, zone).date()
    found = _describe(every, _first_day(every, today), settings, zone)
    return found if found.due <= now else _describe(every, found.first, settings, zone)


def _describe(every: Literal["week", "month"], end: date, settings: DigestSettings, zone: tzinfo) -> DigestPeriod:
    """The period that ends when the day `end` begins."""
    first = _first_day(every, end - timedelta(days=1))
    offset = DAYS.index(settings.day) if every == "week" else 0
    due = datetime.combine(end + timedelta(days=offset), time.fromisoformat(settings.at), zone)
    year, week, _ = first.isocalendar()
    return DigestPeriod(
        name=f"{year}-W{week:02}" if every == "week" else f"{first:%Y-%m}",
        first=first,
        last=end - timedelta(days=1),
        before=day_begins(_first_day(every, first - timedelta(days=1)), zone),
        start=day_begins(first, zone),
        end=day_begins(end, zone),
        due=due.timestamp(),
    )


def _first_day(every: Literal["week", "month"], day: date) -> date:
    return day - timedelta(days=day.weekday()) if every == "week" else day.replace(day=1)
