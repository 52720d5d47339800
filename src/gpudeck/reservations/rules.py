"""Limits of reservations, and the errors that refuse one, with a sentence for people and a code for programs. Pure."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate

from msgspec import Struct

from gpudeck.model.errors import GpudeckError
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.model.text import show_count, show_exactly, show_length
from gpudeck.reservations.settings import DAY, ReservationSettings

LATE_SECONDS = 120.0
"""A start that is past by no more than this means now: clocks differ, and people take a while to press a button."""
SHORTEST = 60.0
FURTHEST = 3660 * DAY
"""No reservation, not even an admin's, is longer or further ahead than ten years: that is a typing mistake."""


class ReservationRefused(GpudeckError):
    """What makes no sense, or is not allowed. `code` is for programs: `unknown_gpu`, `past`, `limit`, …"""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NoSuchReservation(ReservationRefused):
    """There is none of that number."""

    def __init__(self, number: int) -> None:
        super().__init__("not_found", f"there is no reservation {number}.", "`gpudeck reservations` lists them.")


class ReservationChanged(ReservationRefused):
    """The reservation was changed meanwhile: `newer` is its current version."""

    def __init__(self, newer: Reservation) -> None:
        message = f"reservation {newer.id} was changed meanwhile: it has version {newer.version} now."
        super().__init__("changed", message, "Look at it again.")
        self.newer = newer


def name_gpus(gpus: Sequence[ReservedGpu]) -> str:
    """GPUs 0, 1 of gpu07; GPU 3 of gpu08."""
    hosts = {gpu.host: [other.label for other in gpus if other.host == gpu.host] for gpu in gpus}
    named = [
        f"{'GPU' if len(labels) == 1 else 'GPUs'} {', '.join(labels[:16])} of {host}" for host, labels in hosts.items()
    ]
    return "; ".join([*named[:8], "…"] if len(named) > 8 else named)


class Requester(Struct, frozen=True):
    """The caller: `name` for the audit log and as the owner of new reservations, `logins` on the hosts."""

    name: str
    is_admin: bool = False
    logins: frozenset[str] = frozenset()

    def may_change(self, reservation: Reservation) -> bool:
        """Callers without an account have no name, and share the reservations that were made without one."""
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

    Whole seconds, as in calendars.
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
    gpus: Sequence[ReservedGpu],
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
        raise _limit("ahead", f"{ahead} ahead is too early: reservations are made {most} ahead")
    before = peak(others)
    if before + len(gpus) > settings.most_gpus:
        have = f", and {before} are reserved then already" if before else ""
        wanted = f"{show_count(len(gpus), 'GPU')} {'is' if len(gpus) == 1 else 'are'}"
        raise _limit("most_gpus", f"{wanted} too many{have}: the most is {settings.most_gpus}")


def peak(reservations: Iterable[Reservation]) -> int:
    """The most GPUs that these have at one time."""
    steps = [step for one in reservations for step in ((one.start, len(one.gpus)), (one.end, -len(one.gpus)))]
    # What ends at a moment ends before what begins then.
    return max(accumulate((change for _, change in sorted(steps)), initial=0))


def _limit(name: str, message: str) -> ReservationRefused:
    return ReservationRefused(
        "limit", f"{message}.", f"The limit is reservations.{name} of this hub; admins have none."
    )


def _compare(wanted: float, most: float) -> tuple[str, str]:
    """Two lengths in words, exact where they would read the same."""
    show = show_exactly if show_length(wanted) == show_length(most) else show_length
    return show(wanted), show(most)


def describe(one: Reservation) -> str:
    """For the audit log, in UTC."""
    note = f", note {one.note!r}" if one.note else ""
    return f"{one.user}, {name_gpus(one.gpus)}, {_write_utc(one.start)} to {_write_utc(one.end)}{note}"


def _write_utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")
