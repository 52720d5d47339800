"""Moments as people type them for a booking, in a zone: 14:00, tomorrow 9:00, +2h. Pure: for the command line and for
chat."""

import re
from datetime import date, datetime, timedelta, tzinfo

from gpudeck.model.errors import UsageError
from gpudeck.model.times import parse_span

LATE_SECONDS = 120.0
"""A time of day that has passed by no more than this means today."""
LAST = 253_402_214_400.0
"""The last day that calendars know, 9999-12-31."""
LONGEST = 1e11
"""Seconds. Whatever is longer is a slip of the keyboard."""
_HINT = "Write 14:00, tomorrow 9:00, +2h, 2026-11-16 09:00, or 2026-11-16T09:00+01:00."
_CLOCK = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_TIME_OF_DAY = re.compile(rf"(?:(today|tomorrow)\s+)?{_CLOCK}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNIX = re.compile(r"[0-9]{9,12}(?:\.[0-9]+)?")


def read_moment(option: str, text: str, now: float, zone: tzinfo, *, start: float | None = None) -> float:
    """Unix seconds. A time of day alone is the next one; as an end the next one after its `start`. Raises UsageError,
    also for a time that a clock skips there; of a time that it shows twice the first is meant."""
    text = text.strip().lower()
    try:
        return _check_reach(_read(text, now, zone, start))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text[:40]!r} is no time: {_reason(error)}.", _HINT) from error


def read_span(option: str, text: str) -> float:
    """Seconds of `4h` or `1d 6h`. Raises UsageError."""
    try:
        seconds = parse_span("".join(text.split()))
    except ValueError as error:
        raise UsageError(f"{option}: {error}.", "Write 4h or 1d 6h.") from error
    if seconds > LONGEST:
        raise UsageError(f"{option}: {text[:40]!r} is too long.", "Write 4h or 1d 6h.")
    return seconds


def show_moment(at: float, zone: tzinfo, now: float | None = None) -> str:
    """A day and a time of day, the time alone where it is of the day of `now`. The offset stands with a time that the
    clock shows twice."""
    moment = datetime.fromtimestamp(at, zone)
    is_today = now is not None and moment.date() == datetime.fromtimestamp(now, zone).date()
    shown = moment.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M")
    is_twice = moment.utcoffset() != moment.replace(fold=1 - moment.fold).utcoffset()
    return f"{shown} {moment.strftime('%z')}" if is_twice else shown


def _read(text: str, now: float, zone: tzinfo, start: float | None) -> float:
    if text == "now":
        return now
    if text.startswith("+"):
        return now + parse_span("".join(text[1:].split()))
    if _UNIX.fullmatch(text):
        return float(text)
    if match := _TIME_OF_DAY.fullmatch(text):
        return _read_time_of_day(match, now, zone, now - LATE_SECONDS if start is None else start + 1)
    if _DAY.fullmatch(text):
        return _at(datetime.fromisoformat(text), zone)
    return _at(datetime.fromisoformat(text.upper().replace(" ", "T", 1)), zone)


def _read_time_of_day(match: re.Match[str], now: float, zone: tzinfo, earliest: float) -> float:
    if match[1] is not None:
        today = datetime.fromtimestamp(now, zone).date()
        return _on(today + timedelta(days=match[1] == "tomorrow"), match, zone)
    day = datetime.fromtimestamp(earliest, zone).date()
    moment = _on(day, match, zone)
    return moment if moment >= earliest else _on(day + timedelta(days=1), match, zone)


def _on(day: date, match: re.Match[str], zone: tzinfo) -> float:
    return _at(datetime(day.year, day.month, day.day, int(match[2]), int(match[3])), zone)  # noqa: DTZ001 - `_at` knows


def _at(moment: datetime, zone: tzinfo) -> float:
    """Raises ValueError for a time that the clock skips."""
    if moment.tzinfo is not None:
        return moment.timestamp()
    at = moment.replace(tzinfo=zone).timestamp()
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) != moment:
        raise NoSuchTime(f"the clock skips it in {zone}")
    return at


def _check_reach(at: float) -> float:
    if at < 0:
        raise NoSuchTime("it is before 1970")
    if at > LAST:
        raise NoSuchTime("it is after the year 9999")
    return at


class NoSuchTime(ValueError):
    """A time that is understood and that there is not: one too far away, or one of the hour that is left out in the
    night in which clocks are set forward."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NoSuchTime) else "it is not understood"
