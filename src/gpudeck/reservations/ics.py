"""Reservations as a calendar that phones and mail programs subscribe to (RFC 5545). Pure.

Times are in UTC, so that no time zone has to be described and no night of changing clocks is wrong anywhere.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from gpudeck import __version__
from gpudeck.model.reservation import Reservation
from gpudeck.reservations.requests import name_gpus

CONTENT_TYPE: Final = "text/calendar"
_OCTETS: Final = 75
"""The longest line, without its end; it continues in the next line, after a blank."""
_ESCAPES: Final = str.maketrans({"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n"})
_CONTROLS: Final = dict.fromkeys([*range(0x0A), *range(0x0B, 0x20), 0x7F])


def write_calendar(reservations: Iterable[Reservation], name: str) -> bytes:
    """The reservations as one calendar called `name`. Claims last minutes and are left out."""
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        f"PRODID:-//gpudeck//gpudeck {__version__}//EN",
        "CALSCALE:GREGORIAN",
        "METHOD:PUBLISH",
        _write_text("X-WR-CALNAME", name),
        # How often to read it again: the first is the standard, many programs know only the second.
        "REFRESH-INTERVAL;VALUE=DURATION:PT15M",
        "X-PUBLISHED-TTL:PT15M",
    ]
    for one in reservations:
        # A reservation that was released in its first second has no length, which an event needs.
        if one.kind == "reservation" and one.end > one.start:
            lines += _write_event(one)
    lines += ["END:VCALENDAR", ""]
    return "\r\n".join(lines).encode()


def _write_event(one: Reservation) -> list[str]:
    gpus = name_gpus(one.gpus)
    hosts = ", ".join(dict.fromkeys(gpu.host for gpu in one.gpus))
    details = [
        one.note,
        gpus,
        f"{one.title[0].upper()}{one.title[1:]}",
        *([] if one.release_reason is None else [one.release_reason]),
    ]
    return [
        "BEGIN:VEVENT",
        # Stable, and different from that of another hub's reservation with the same id.
        f"UID:reservation-{one.id}-{int(one.created_at)}@gpudeck",
        f"SEQUENCE:{one.version - 1}",
        f"DTSTAMP:{_moment(one.changed_at)}",
        f"CREATED:{_moment(one.created_at)}",
        f"LAST-MODIFIED:{_moment(one.changed_at)}",
        f"DTSTART:{_moment(one.start)}",
        f"DTEND:{_moment(one.end)}",
        _write_text("SUMMARY", f"{one.user}: {gpus}"),
        _write_text("LOCATION", hosts),
        _write_text("DESCRIPTION", "\n".join(filter(None, details))),
        "STATUS:CONFIRMED",
        # The GPU is busy then, not the subscriber.
        "TRANSP:TRANSPARENT",
        "END:VEVENT",
    ]


def _write_text(name: str, text: str) -> str:
    """A property with a text that may be long."""
    return "\r\n".join(fold(f"{name}:{escape(text)}"))


def _moment(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y%m%dT%H%M%SZ")


def escape(text: str) -> str:
    """The value of a property: without control characters, and with special ones escaped."""
    return text.replace("\r\n", "\n").translate(_CONTROLS).translate(_ESCAPES)


def fold(line: str) -> Iterator[str]:
    """The parts of a line, none longer than allowed and none that ends within a character."""
    if len(line) <= _OCTETS and line.isascii():
        yield line
        return
    part, room = "", _OCTETS
    for char in line:
        size = len(char.encode("utf-8", "replace"))
        if size > room:
            yield part
            part, room = " ", _OCTETS - 1
        part += char
        room -= size
    yield part
