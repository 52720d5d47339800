"""What a reservation has to keep to: times that make sense, and the operator's limits. Pure."""

import math
from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.quantity import show_count, show_exactly, show_length
from gpudeck.model.reservation import BookedGpu, Reservation
from gpudeck.reservations.refusals import ReservationRefused
from gpudeck.reservations.settings import DAY, ReservationSettings
from gpudeck.reservations.slots import peak

LATE_SECONDS = 120.0
"""A start that is past by no more than this means now: clocks differ, and people take a while to press a button."""
SHORTEST = 60.0
FURTHEST = 3660 * DAY
"""Nobody's booking, an admin's neither, is longer or further ahead than ten years: that is a slip of the keyboard."""


class Who(Struct, frozen=True):
    """Whoever asks: `name` for the audit log and as the owner of what they book, `logins` on the hosts."""

    name: str
    is_admin: bool = False
    logins: frozenset[str] = frozenset()

    def may_change(self, reservation: Reservation) -> bool:
        """Whoever has no account has no name, and shares what was booked without one."""
        is_anybodys = not self.name and not reservation.created_by
        return self.is_admin or is_anybodys or (bool(self.name) and reservation.user == self.name)


class Span(Struct, frozen=True):
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


def read_span(start: float | None, end: float | None, length: float | None, now: float) -> Span:
    """From `start`, or now, until `end` or for `length` seconds. Raises ReservationRefused for what cannot be.

    Whole seconds: nobody books by less, and calendars know no others.
    """
    if (end is None) == (length is None):
        raise ReservationRefused("bad_request", "a reservation needs either an end or a length.", "Such as 4h.")
    for moment in (start, end, length):
        if moment is not None and not math.isfinite(moment):
            raise ReservationRefused("bad_request", "a time has to be a number.")
    begins = now if start is None else start
    if begins < now - LATE_SECONDS:
        raise ReservationRefused("past", f"the start is {show_length(now - begins)} ago.", "Begin now or later.")
    begins = math.floor(max(begins, now))
    ends = math.floor(end) if end is not None else begins + math.floor(length or 0.0)
    check_span(Span(begins, ends), now)
    return Span(begins, ends)


def check_span(span: Span, now: float) -> None:
    """Raises ReservationRefused."""
    if span.end <= now:
        raise ReservationRefused("past", "the end is in the past.", "End later than now.")
    if span.length <= 0:
        raise ReservationRefused("bad_request", "it would end before it begins.", "Give a later end.")
    if span.length < SHORTEST:
        raise ReservationRefused("bad_request", f"it would last {span.length:g} s.", "The shortest is a minute.")
    if span.end > now + FURTHEST:
        raise ReservationRefused("bad_request", "the end is more than ten years away.", "Give an earlier one.")


def check_limits(
    span: Span,
    gpus: Sequence[BookedGpu],
    others: Sequence[Reservation],
    settings: ReservationSettings,
    now: float,
    *,
    longest_before: float = 0.0,
) -> None:
    """Raises ReservationRefused that says which limit. `others` are the same person's, within that time.

    `longest_before` is how long it was before it is changed: what an admin allowed can at least be shortened.
    """
    if span.length > max(settings.longest, longest_before):
        raise _limit(
            "longest", f"{show_exactly(span.length)} is too long: the longest is {show_exactly(settings.longest)}"
        )
    if span.start - now > settings.ahead:
        ahead, most = _compare(span.start - now, settings.ahead)
        raise _limit("ahead", f"{ahead} ahead is too early: bookings are made {most} ahead")
    before = peak(others)
    if before + len(gpus) > settings.most_gpus:
        have = f", and {before} are booked then already" if before else ""
        wanted = f"{show_count(len(gpus), 'GPU')} {'is' if len(gpus) == 1 else 'are'}"
        raise _limit("most_gpus", f"{wanted} too many{have}: the most is {settings.most_gpus}")


def _limit(name: str, message: str) -> ReservationRefused:
    return ReservationRefused(
        "limit", f"{message}.", f"The limit is reservations.{name} of this hub; admins have none."
    )


def _compare(wanted: float, most: float) -> tuple[str, str]:
    """Two lengths in words, exact where they would read the same."""
    show = show_exactly if show_length(wanted) == show_length(most) else show_length
    return show(wanted), show(most)
