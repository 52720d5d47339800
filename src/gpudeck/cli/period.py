"""Periods as people type them: 30d, 2026-10-01, last-month; and the time zone in which they mean them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpudeck.history.time_range import day_begins, load_zone
from gpudeck.model.errors import UsageError
from gpudeck.model.times import parse_duration, read_iso

_WORDS = ("today", "yesterday", "this-month", "last-month", "now")
_HINT = f"Give a time ago such as 30d or 12h, a date such as 2026-10-01, or {', '.join(_WORDS[:-1])}."
_ZONES = "/zoneinfo/"
_LINK = Path("/etc/localtime")
_NAME = Path("/etc/timezone")


class Span(NamedTuple):
    """Unix seconds. `is_whole` marks what is over and meant from its start to its end, as `last-month` is."""

    start: float
    end: float
    is_whole: bool = False


def read_period(since: str, until: str | None, now: float, zone: str) -> tuple[float, float]:
    """Start and end. A day or a month as `since` means its beginning, as `until` its end.

    Without `until` the period ends now, but that of `yesterday` and `last-month` where they do. Raises UsageError.
    """
    first = _read("--since", since, now, zone)
    if until is None:
        start, end = first.start, first.end if first.is_whole else now
    else:
        start, end = first.start, _read("--until", until, now, zone).end
    if start >= end:
        raise UsageError("the period ends before it begins.", "--since must be before --until, and before now.")
    return start, end


def local_zone() -> str:
    """The IANA name of the zone that this machine, or $TZ, is set to; UTC where there is none that has a name."""
    for name in _zone_names():
        with suppress(KeyError, ValueError, OSError):
            return ZoneInfo(name).key
    return "UTC"


def _zone_names() -> Iterator[str]:
    if named := os.environ.get("TZ", "").lstrip(":"):
        yield named.partition(_ZONES)[2] or named
        # A value that is no zone does not mean the machine's zone.
        return
    with suppress(OSError, ValueError):
        yield str(_LINK.resolve()).partition(_ZONES)[2]
    with suppress(OSError, ValueError):
        yield _NAME.read_text().strip()


def _read(option: str, text: str, now: float, zone: str) -> Span:
    try:
        return _read_word(text, now, zone) or _read_date(text, zone) or _read_ago(text, now)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text[:40]!r} is not a time.", _HINT) from error


def _read_word(text: str, now: float, zone: str) -> Span | None:
    if text == "now":
        return Span(now, now)
    if text not in _WORDS:
        return None
    today = datetime.fromtimestamp(now, load_zone(zone)).date()
    month = today.replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    first, last, is_whole = {
        "today": (today, today + timedelta(days=1), False),
        "yesterday": (today - timedelta(days=1), today, True),
        "this-month": (month, (month + timedelta(days=31)).replace(day=1), False),
        "last-month": (before, month, True),
    }[text]
    return _span(first, last, zone, is_whole=is_whole)


def _read_date(text: str, zone: str) -> Span | None:
    """A day, or a moment such as 2026-10-01T12:00, which may have an offset of its own."""
    if len(text) < len("2026-10-01") or text[4] != "-":
        return None
    if len(text) == len("2026-10-01"):
        day = date.fromisoformat(text)
        return _span(day, day + timedelta(days=1), zone)
    moment = read_iso(text)
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=load_zone(zone))).timestamp()
    return Span(seconds, seconds)


def _read_ago(text: str, now: float) -> Span:
    # A time ago may be written as the other commands and the API have it.
    ago = text.removeprefix("now").removeprefix("-")
    if ago.strip().isdigit():
        raise ValueError(f"{text!r} has no unit")
    moment = now - parse_duration(ago)
    if moment < 0:
        raise ValueError(f"{text!r} is before 1970")
    return Span(moment, moment)


def _span(first: date, after: date, zone: str, *, is_whole: bool = False) -> Span:
    place = load_zone(zone)
    return Span(day_begins(first, place), day_begins(after, place), is_whole)
