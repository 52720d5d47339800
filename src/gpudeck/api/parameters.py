"""Parameters that many routes have: times, spans and amounts (numbers, or text as people write it), names, and parts of
lists. Those that are shared are types here; the readers raise ValidationException."""

import re
from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Annotated, Final, TypeVar

from litestar.exceptions import ValidationException
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from gpudeck.model.text import parse_memory
from gpudeck.model.times import LAST, LONGEST, parse_duration, parse_time

Moment = float | Annotated[str, Meta(min_length=1, max_length=64)]
"""Unix seconds, or ISO 8601 with its zone."""
Length = float | Annotated[str, Meta(min_length=1, max_length=64)]
"""Seconds, or a text such as `1d 6h`."""

Limit = Annotated[int | None, QueryParameter(description="At most so many; without it all", ge=1, le=100_000)]
Offset = Annotated[int, QueryParameter(description="So many are left out before", ge=0, le=10_000_000)]
"""Of a list in its order, which changes when hosts come and go: `total` in the answer says how many there are."""

_W = TypeVar("_W", bound=str)
_ZONED: Final = re.compile(r"now|[0-9.]+|.*(?:Z|[+-][0-9]{2}:?[0-9]{2})", re.IGNORECASE)


def page_of(limit: int | None, offset: int) -> slice:
    """The part of a list that was asked for."""
    return slice(offset, None if limit is None else offset + limit)


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
    """Checked here for a better message than that of a type's bounds: often the value is in milliseconds."""
    if not 0 <= at <= LAST:
        raise ValidationException(f"{name}: that is no time from 1970 to 9999; numbers are Unix seconds")
    return at


def read_length(value: float | str | None) -> float | None:
    """Seconds; raises ValidationException."""
    try:
        seconds = parse_duration(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValidationException(f"for: {error}") from error
    if seconds is not None and not 0 <= seconds <= LONGEST:
        raise ValidationException(f"for: {seconds:.12g} seconds are no length")
    return seconds


def read_amount(name: str, text: str | None) -> int | None:
    """Bytes; raises ValidationException."""
    try:
        return None if text is None else parse_memory(text)
    except ValueError as error:
        raise ValidationException(f"{name}: {error}") from error


TIME: Final = "Unix seconds, ISO 8601 (2026-01-31T08:30Z), `now`, or `-24h`"


TIME_SCHEMA: Final = {
    "anyOf": [
        {"format": "date-time"},
        {"format": "date"},
        {"pattern": r"^(now|(now)?-([1-9][0-9]{0,5}[smhdwy]){1,4}|(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?)$"},
    ]
}
"""For the API's document: how a time is written."""

Time = Annotated[str, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
MaybeTime = Annotated[str | None, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
ZonedTime = Annotated[
    str, QueryParameter(max_length=64, description=f"{TIME}; a date alone begins in the zone", schema_extra=TIME_SCHEMA)
]
Zone = Annotated[str, QueryParameter(max_length=64, description="Where days begin and end: an IANA name")]
HostName = Annotated[str | None, QueryParameter(max_length=384, description="Only this host, by its name or id")]
HostPath = Annotated[str, PathParameter(description="A host's name or id")]
GpuUuid = Annotated[str | None, QueryParameter(max_length=256, description="Only this GPU, by its UUID")]
OnlyName = Annotated[str | None, QueryParameter(max_length=256)]
"""A name; PARAMETERS in descriptions.py describes it by the parameter."""
JobLabel = Annotated[str | None, QueryParameter(max_length=256, description="The label, with by=label")]
AtMost = Annotated[int, QueryParameter(ge=1, le=1000, description="At most so many")]


def read_time(name: str, text: str, now: float, zone: tzinfo = UTC) -> float:
    """The parameter of that name as Unix seconds; raises ValidationException."""
    try:
        return parse_time(text, now, zone)
    except ValueError as error:
        raise ValidationException(f"{name}: {error}") from error


def read_span(start: str, end: str, now: float, zone: tzinfo = UTC) -> tuple[float, float]:
    """The parameters `start` and `end`; raises ValidationException."""
    return read_time("start", start, now, zone), read_time("end", end, now, zone)


def read_past(start: str, end: str, now: float, zone: tzinfo = UTC) -> tuple[float, float]:
    """The same, until now at most."""
    begin, until = read_span(start, end, now, zone)
    return begin, min(until, now)


def word_list(words: Sequence[str], name: str | None = None) -> QueryParameter:
    """A parameter of one of these words, or of several with commas between them."""
    word = "|".join(words)
    told = "One word, or several with commas: any of them fits"
    pattern = f"^({word})(,({word}))*$"
    return QueryParameter(name=name, max_length=64, description=told, schema_extra={"pattern": pattern})


def read_words(name: str, text: str | None, words: Sequence[_W]) -> tuple[_W, ...]:
    """The words that the parameter lists; raises ValidationException for any not in `words`."""
    known = {str(word): word for word in words}
    found = [known.get(word) for word in text.split(",")] if text is not None else []
    if None in found:
        raise ValidationException(f"{name}: give {', '.join(known)}, or several of them with commas")
    return tuple(word for word in found if word is not None)
