"""Moments and lengths in the bodies of requests: numbers, or text as people write it."""

import re
from typing import Annotated, Final

from litestar.exceptions import ValidationException
from msgspec import Meta

from gpudeck.model.moments import LAST, LONGEST
from gpudeck.model.quantity import parse_bytes
from gpudeck.model.times import parse_span, parse_time

Moment = float | Annotated[str, Meta(min_length=1, max_length=64)]
"""Unix seconds, or ISO 8601 with its zone."""
Length = float | Annotated[str, Meta(min_length=1, max_length=64)]
"""Seconds, or a text such as `1d 6h`."""

_ZONED: Final = re.compile(r"now|[0-9.]+|.*(?:Z|[+-][0-9]{2}:?[0-9]{2})", re.IGNORECASE)


def read_moment(name: str, value: float | str | None, now: float) -> float | None:
    """Unix seconds; raises ValidationException. A time of day without its zone means something else to everybody."""
    if value is None:
        return None
    if not isinstance(value, str):
        return _check_moment(name, value)
    text = value.strip()
    if not _ZONED.fullmatch(text):
        raise ValidationException(f"{name}: {text!r} names no zone; write 2026-01-31T08:30+01:00, or Unix seconds")
    try:
        return _check_moment(name, parse_time(text, now))
    except ValueError as error:
        raise ValidationException(f"{name}: {error}") from error


def _check_moment(name: str, at: float) -> float:
    """In words of our own: a type's bounds tell nobody which year that is, or that these are milliseconds."""
    if not 0 <= at <= LAST:
        raise ValidationException(f"{name}: that is no time from 1970 to 9999; numbers are Unix seconds")
    return at


def read_length(value: float | str | None) -> float | None:
    """Seconds; raises ValidationException."""
    try:
        seconds = parse_span("".join(value.split())) if isinstance(value, str) else value
    except ValueError as error:
        raise ValidationException(f"for: {error}") from error
    if seconds is not None and not 0 <= seconds <= LONGEST:
        raise ValidationException(f"for: {seconds:.12g} seconds are no length")
    return seconds


def read_amount(text: str | None) -> int | None:
    """Bytes; raises ValidationException."""
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise ValidationException(f"memory: {error}") from error
