"""Moments as people and programs write them. Pure, and the same in API and command line."""

import re
from datetime import UTC, datetime, tzinfo

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_SPAN = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdwy])+")
_PART = re.compile(r"([0-9.]+)([smhdwy])")
_RELATIVE = re.compile(rf"(?:now)?-({_SPAN.pattern})")
_UNIX = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.,]{4,18} ?(?:Z|[+ -][0-9]{2}:?[0-9]{2})?)?", re.IGNORECASE)
# In an address a + stands for a blank, so +02:00 arrives as that.
_LOST_PLUS = re.compile(r" (?=[0-9]{2}:?[0-9]{2}$)")


def parse_span(text: str) -> float:
    """Seconds in `30d`, `90m` or `1d12h`; a year has 365 days. Raises ValueError."""
    if not _SPAN.fullmatch(text.strip()):
        raise ValueError(f"{text[:40]!r} is not a span of time such as 90m, 24h or 30d")
    return sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(text))


def parse_time(text: str, now: float, zone: tzinfo = UTC) -> float:
    """Unix seconds of `1767225600`, `2026-01-01`, `2026-01-01T08:30+01:00`, `now` or `-24h`; raises ValueError.

    A date or time that names no zone is one of `zone`; a date alone is the beginning of that day.
    """
    text = text.strip()
    if text == "now":
        return now
    if _UNIX.fullmatch(text):
        return float(text)
    if match := _RELATIVE.fullmatch(text):
        return now - parse_span(match[1])
    if _ISO.fullmatch(text):
        return _parse_iso(text, zone)
    raise _not_a_time(text)


def _parse_iso(text: str, zone: tzinfo) -> float:
    day, clock = text[:10], _LOST_PLUS.sub("+", text[11:].upper())
    try:
        moment = datetime.fromisoformat(f"{day}T{clock.replace(' ', '')}" if clock else day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise _not_a_time(text) from None


def _not_a_time(text: str) -> ValueError:
    return ValueError(f"{text[:40]!r} is not a time: give Unix seconds, 2026-01-31, 2026-01-31T08:30Z, now, or -24h")


def show_utc(time: float) -> str:
    """A moment as logs and messages name it; also one that makes no sense, which damaged data may have."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError, TypeError):
        return f"{time!r} s"
