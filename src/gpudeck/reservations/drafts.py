"""What is asked of the calendar: a new booking, or a change of one. Pure."""

import math

from msgspec import Struct

from gpudeck.model.reservation import Reservation
from gpudeck.reservations.refusals import ReservationRefused
from gpudeck.reservations.rules import Span, check_span, read_span
from gpudeck.reservations.wishes import Wish


class Draft(Struct, frozen=True, kw_only=True):
    """What is to be booked. None as `start` means now; one of `end` and `length` is given."""

    wish: Wish
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """What is to be another; None stays. With a `start` and neither `end` nor `length` it moves as it is.

    `version` is the one that whoever asks has seen; None: whatever it is now.
    """

    version: int | None = None
    wish: Wish | None = None
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str | None = None
    user: str | None = None


class Edit(Struct, frozen=True):
    """A reservation before and after, for the audit log."""

    before: Reservation
    after: Reservation


def changed_span(before: Reservation, change: Change, now: float) -> Span:
    """Raises ReservationRefused. The beginning of one that runs is past, and stays."""
    is_running = before.start <= now
    start = before.start if change.start is None else float(math.floor(change.start))
    if is_running and start != before.start:
        raise ReservationRefused("past", "it has begun: its start cannot be changed.", "Change its end.")
    if change.length is not None:
        end = start + math.floor(change.length)
    elif change.end is not None:
        end = float(math.floor(change.end))
    else:
        end = start + (before.end - before.start)
    if start != before.start:
        return read_span(start, end, None, now)
    check_span(Span(start, end), now)
    return Span(start, end)
