"""Times and durations as people and programs write them: `-24h` and ISO 8601 for the API, `14:00`, `tomorrow 9:00`,
`+2h` for the command line and chat.
"""

import re
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

from gpudeck.model.errors import UsageError

_SECONDS = {
    "y": Decimal(365 * 86400),
    "w": Decimal(7 * 86400),
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,30})?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|[ywdhms])(?![a-z])\s*")
_PLAIN_SECONDS = re.compile(rf"(?!0[0-9]){_NUMBER}")
_RELATIVE = re.compile(rf"(?:now)?-((?:{_NUMBER}(?:ms|[ywdhms]))+)")
_UNIX = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.,]{4,18} ?(?:Z|[+ -][0-9]{2}:?[0-9]{2})?)?", re.IGNORECASE)
# In a URL, a + means a space, so +02:00 arrives with one.
_LOST_PLUS = re.compile(r" (?=[0-9]{2}:?[0-9]{2}$)")
LATE_SECONDS = 120.0
"""A time of day that passed at most this long ago means today."""
LAST = 253_402_214_400.0
"""The last day that calendars support, 9999-12-31."""
LONGEST = 1e11
"""Seconds. Longer durations are rejected."""
_HINT = "Write 14:00, tomorrow 9:00, +2h, 2026-11-16 09:00, or 2026-11-16T09:00+01:00."
_CLOCK = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_TIME_OF_DAY = re.compile(rf"(?:(today|tomorrow)\s+)?{_CLOCK}")
_PAST_TIME_OF_DAY = re.compile(rf"(?:(today|yesterday)\s+)?{_CLOCK}")
_PAST_HINT = "Write 03:12, yesterday 17:00, 2h (ago), 2026-11-16 09:00, or 2026-11-16T09:00+01:00."
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ONE_DIGIT = re.compile(r"T(?=[0-9]:)")
_UNIX_SECONDS = re.compile(r"[0-9]{9,12}(?:\.[0-9]+)?")


def parse_duration(text: str, *, allow_plain_seconds: bool = False) -> float:
    """Seconds in `30d`, `90m`, `1d 12h` or `250ms`; a year has 365 days. Raises ValueError, also without a unit unless
    `allow_plain_seconds`."""
    text = text.strip()
    if allow_plain_seconds and _PLAIN_SECONDS.fullmatch(text):
        return float(Decimal(text))
    seconds, position = Decimal(0), 0
    while match := _PART.match(text, position):
        seconds, position = seconds + Decimal(match[1]) * _SECONDS[match[2]], match.end()
    if not text or position < len(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 90m, 24h or 1d 6h")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """The shortest exact text that `parse_duration` reads back as the same number."""
    left = Decimal(repr(float(seconds)))
    if left % _SECONDS["ms"]:
        return f"{left:f}s"
    if left and not left % _SECONDS["y"]:
        return f"{left / _SECONDS['y']:f}y"
    parts = []
    for unit, length in list(_SECONDS.items())[2:]:  # years and weeks are read, but days are easier to compare
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count:f}".split(".")[0] + unit)
    return " ".join(parts) or "0s"


def parse_time(text: str, now: float, zone: tzinfo = timezone.utc) -> float:
    """Unix seconds of `1767225600`, `2026-01-01`, `2026-01-01T08:30+01:00`, `now` or `-24h`; without a zone in `zone`.
    Raises ValueError."""
    text = text.strip()
    if text == "now":
        return now
    if _UNIX.fullmatch(text):
        return float(text)
    if match := _RELATIVE.fullmatch(text):
        return now - parse_duration(match[1])
    if _ISO.fullmatch(text):
        return _parse_iso(text, zone)
    raise _not_a_time(text)


def _parse_iso(text: str, zone: tzinfo) -> float:
    day, clock = text[:10], _LOST_PLUS.sub("+", text[11:].upper())
    try:
        moment = read_iso(f"{day}T{clock.replace(' ', '')}" if clock else day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise _not_a_time(text) from None


def _not_a_time(text: str) -> ValueError:
    return ValueError(f"{text[:40]!r} is not a time: give Unix seconds, 2026-01-31, 2026-01-31T08:30Z, now, or -24h")


def show_utc(time: float) -> str:
    """A time for logs and messages; works for invalid times too, which damaged data may contain."""
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError, TypeError):
        return f"{time!r} s"


def read_moment(option: str, text: str, now: float, zone: tzinfo, *, start: float | None = None) -> float:
    """Unix seconds. A time of day without a date is its next occurrence or, if `start` is given, on the same day as
    `start`. Raises UsageError, also for a time that the clock skips. Of a time that occurs twice, the first counts."""
    text = text.strip().lower()
    try:
        at = _check_reach(_read(text, now, zone, start))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text[:40]!r} is no time: {_reason(error)}.", _HINT) from error
    if start is not None and at <= start:
        shown = f"{show_moment(at, zone)} is not after the start, {show_moment(start, zone)}"
        raise UsageError(f"{option} {text[:40]!r}: {shown}.", "If it ends on another day, write the date or a length.")
    return at


def read_past_moment(option: str, text: str, now: float, zone: tzinfo) -> float:
    """Unix seconds. A time of day alone is the last one; `2h` is two hours ago. Raises UsageError."""
    words = text.strip().lower()
    try:
        if match := _PAST_TIME_OF_DAY.fullmatch(words):
            today = datetime.fromtimestamp(now, zone).date()
            at = _on(today - timedelta(days=match[1] == "yesterday"), match, zone)
            at = _on(today - timedelta(days=1), match, zone) if match[1] is None and at > now else at
        elif _PART.match(words):
            at = now - parse_duration(words.removesuffix("ago"))
        else:
            at = _read(words, now, zone, None)
        _check_reach(at)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text[:40]!r} is no time: {_reason(error)}.", _PAST_HINT) from error
    if at > now:
        raise UsageError(f"{option} {text[:40]!r} has not come yet.", _PAST_HINT)
    return at


def read_span(option: str, text: str, *, allow_plain_seconds: bool = False) -> float:
    """Seconds of `4h` or `1d 6h`. Raises UsageError."""
    try:
        seconds = parse_duration(text, allow_plain_seconds=allow_plain_seconds)
    except ValueError as error:
        raise UsageError(f"{option}: {error}.", "Write 4h or 1d 6h.") from error
    if seconds > LONGEST:
        raise UsageError(f"{option}: {text[:40]!r} is too long.", "Write 4h or 1d 6h.")
    return seconds


def show_moment(at: float, zone: tzinfo, now: float | None = None) -> str:
    """A day and a time of day; only the time if it is on the day of `now`. A time that the clock shows twice gets its
    offset."""
    moment = datetime.fromtimestamp(at, zone)
    is_today = now is not None and moment.date() == datetime.fromtimestamp(now, zone).date()
    shown = moment.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M")
    is_twice = moment.utcoffset() != moment.replace(fold=1 - moment.fold).utcoffset()
    return f"{shown} {moment.strftime('%z')}" if is_twice else shown


def _read(text: str, now: float, zone: tzinfo, start: float | None) -> float:
    if text == "now":
        return now
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if _UNIX_SECONDS.fullmatch(text):
        return float(text)
    if match := _TIME_OF_DAY.fullmatch(text):
        return _read_time_of_day(match, now, zone, start)
    if _DAY.fullmatch(text):
        return _at(datetime.fromisoformat(text), zone)
    return _at(read_iso(_ONE_DIGIT.sub("T0", text.upper().replace(" ", "T", 1))), zone)


def read_iso(text: str) -> datetime:
    """`datetime.fromisoformat` of Python 3.10 supports neither Z, nor an offset without a colon, nor all lengths of
    fractions: these are rewritten first. Raises ValueError."""
    clock = re.fullmatch(r"([^.,]*?)(?:[.,](\d+))?(?:(Z)|([+-]\d\d)(?::?(\d\d))?)?", text[10:])
    if clock is None:
        return datetime.fromisoformat(text)
    fraction = f".{clock[2]:0<6.6}" if clock[2] else ""
    offset = "+00:00" if clock[3] else f"{clock[4]}:{clock[5] or '00'}" if clock[4] else ""
    return datetime.fromisoformat(f"{text[:10]}{clock[1]}{fraction}{offset}")


def _read_time_of_day(match: re.Match[str], now: float, zone: tzinfo, start: float | None) -> float:
    if start is not None and match[1] is None:
        return _on(datetime.fromtimestamp(start, zone).date(), match, zone)
    if match[1] is not None:
        today = datetime.fromtimestamp(now, zone).date()
        return _on(today + timedelta(days=match[1] == "tomorrow"), match, zone)
    earliest = now - LATE_SECONDS
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
    """A valid text for a time that does not exist: too far away, or skipped when clocks are set forward."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NoSuchTime) else "it is not understood"


def load_zone(name: str) -> tzinfo:
    """The zone with that IANA name. UTC works without zone tables, which small containers lack. Raises ValueError."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"zone is {name[:40]!r}; write the name of a time zone: Europe/Berlin, UTC") from None
