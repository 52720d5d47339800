"""Periods as people type them: 30d, 2026-10-01, last-month; and the time zone in which they mean them."""

import os
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from gpudeck.history.time_range import day_begins, load_zone
from gpudeck.model.errors import UsageError
from gpudeck.model.times import parse_time

_DAY = timedelta(days=1)
_HINT = "Give a time ago such as 30d or 12h, a date such as 2026-10-01, or today, yesterday, this-month, last-month."
_ZONES = "/zoneinfo/"


def read_period(since: str, until: str | None, now: float, zone: str) -> tuple[float, float]:
    """Start and end. A day or a month as `since` means its beginning, as `until` its end.

    Without `until` the period ends now, but that of `yesterday` and `last-month` where they do. Raises UsageError.
    """
    start, end = _read("--since", since, now, zone)
    if until is not None:
        end = _read("--until", until, now, zone)[1]
    elif since not in {"yesterday", "last-month"}:
        end = now
    if start >= end:
        raise UsageError("the period ends before it begins.", "--since must be before --until, and before now.")
    return start, end


def local_zone() -> str:
    """The IANA name of the zone that this machine, or $TZ, is set to; UTC where there is none that has a name."""
    if named := os.environ.get("TZ", "").lstrip(":"):
        # A value that is no zone does not mean the machine's zone.
        names = [named.partition(_ZONES)[2] or named]
    else:
        names = [str(Path(os.path.realpath("/etc/localtime"))).partition(_ZONES)[2]]
        with suppress(OSError, ValueError):
            names.append(Path("/etc/timezone").read_text().strip())
    for name in names:
        with suppress(KeyError, ValueError, OSError):
            return ZoneInfo(name).key
    return "UTC"


def _read(option: str, text: str, now: float, zone: str) -> tuple[float, float]:
    """The first moment and the one after the last."""
    place = load_zone(zone)
    today = datetime.fromtimestamp(now, place).date()
    month = today.replace(day=1)
    try:
        if text in {"this-month", "last-month"}:
            first = month if text == "this-month" else (month - _DAY).replace(day=1)
            return day_begins(first, place), day_begins((first + 31 * _DAY).replace(day=1), place)
        if text in {"today", "yesterday"} or len(text) == len("2026-10-01"):
            day = {"today": today, "yesterday": today - _DAY}.get(text) or date.fromisoformat(text)
            return day_begins(day, place), day_begins(day + _DAY, place)
        # A time ago may be written as the other commands and the API have it.
        is_ago = text[:1].isdigit() and text[-1:].isalpha() and "-" not in text
        at = parse_time(f"-{text}".replace(" ", "") if is_ago else text, now, place)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text[:40]!r} is not a time.", _HINT) from error
    if text.isdigit() or at < 0:
        raise UsageError(f"{option} {text[:40]!r} is not a time.", _HINT)
    return at, at
