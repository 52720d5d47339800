"""Limits of reservations, and the errors that refuse one, with a sentence for people and a code for programs. Pure."""

import math
from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.errors import GpudeckError
from gpudeck.model.quantity import show_count, show_exactly, show_length
from gpudeck.model.reservation import BookedGpu, Reservation
from gpudeck.reservations.settings import DAY, ReservationSettings
from gpudeck.reservations.slots import FreeSlot, peak

LATE_SECONDS = 120.0
"""A start that is past by no more than this means now: clocks differ, and people take a while to press a button."""
SHORTEST = 60.0
FURTHEST = 3660 * DAY
"""Nobody's booking, an admin's neither, is longer or further ahead than ten years: that is a slip of the keyboard."""


class ReservationRefused(GpudeckError):
    """What makes no sense, or is not allowed. `code` is for programs: `unknown_gpu`, `past`, `limit`, …"""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NoSuchReservation(ReservationRefused):
    """There is none of that number."""

    def __init__(self, number: int) -> None:
        super().__init__("not_found", f"there is no reservation {number}.", "`gpudeck reservations` lists them.")


class Conflict(ReservationRefused):
    """Others have those GPUs then, as `conflicts` say, or are on them now. `next_free` is the first time at which as
    much is free for as long; None where no such time is known."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        conflicts: list[Reservation],
        next_free: FreeSlot | None,
        code: str = "conflict",
    ) -> None:
        super().__init__(code, message, hint)
        self.conflicts = conflicts
        self.next_free = next_free


class Changed(ReservationRefused):
    """Somebody else changed it meanwhile: `newer` is what it is now."""

    def __init__(self, newer: Reservation) -> None:
        message = f"reservation {newer.id} was changed meanwhile: it has version {newer.version} now."
        super().__init__("changed", message, "Look at it again.")
        self.newer = newer


def describe_taken(conflicts: list[Reservation], slot: FreeSlot | None) -> Conflict:
    first = conflicts[0]
    what = "held" if first.kind == "hold" else "booked"
    more = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    note = f" ({first.note[:80]})" if first.note else ""
    is_one = len(first.gpus) == 1
    return Conflict(
        f"{name_gpus(first.gpus)} {'is' if is_one else 'are'} {what} by {first.user}{note}: "
        f"reservation {first.id}{more}.",
        "Begin later, or choose others.",
        conflicts=conflicts,
        next_free=slot,
    )


def describe_too_few(count: int, slot: FreeSlot | None, *, same_host: bool) -> Conflict:
    where = " on one host" if same_host else ""
    hint = "Begin later." if slot is not None else "Ask for fewer, or for others."
    message = f"{count} such GPU{'s' if count != 1 else ''}{where} cannot be had for so long at that time."
    return Conflict(message, hint, conflicts=[], next_free=slot)


def describe_use(gpu: BookedGpu, users: Sequence[str]) -> Conflict:
    whose = " and ".join(users[:3]) or "somebody"
    return Conflict(
        f"GPU {gpu.label} of {gpu.host} is in use by {whose} now.",
        "Book it from a later time, or ask them.",
        conflicts=[],
        next_free=None,
        code="in_use",
    )


def name_gpus(gpus: Sequence[BookedGpu]) -> str:
    """GPUs 0, 1 of gpu07; GPU 3 of gpu08."""
    hosts = {gpu.host: [other.label for other in gpus if other.host == gpu.host] for gpu in gpus}
    named = [
        f"{'GPU' if len(labels) == 1 else 'GPUs'} {', '.join(labels[:16])} of {host}" for host, labels in hosts.items()
    ]
    return "; ".join([*named[:8], "…"] if len(named) > 8 else named)


class Who(Struct, frozen=True):
    """Whoever asks: `name` for the audit log and as the owner of what they book, `logins` on the hosts."""

    name: str
    is_admin: bool = False
    logins: frozenset[str] = frozenset()

    def may_change(self, reservation: Reservation) -> bool:
        """Whoever has no account has no name, and shares what was booked without one."""
        is_anybodys = not self.name and not reservation.created_by
        return self.is_admin or is_anybodys or (bool(self.name) and reservation.user == self.name)


class ReservationSpan(Struct, frozen=True):
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


def read_span(start: float | None, end: float | None, length: float | None, now: float) -> ReservationSpan:
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
    check_span(ReservationSpan(begins, ends), now)
    return ReservationSpan(begins, ends)


def check_span(span: ReservationSpan, now: float) -> None:
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
    span: ReservationSpan,
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
