"""Why a reservation is not made or changed, in words for a person and a code for programs."""

from collections.abc import Sequence

from gpudeck.model.errors import GpudeckError
from gpudeck.model.reservation import BookedGpu, Reservation
from gpudeck.reservations.slots import Slot


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
        next_free: Slot | None,
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


def describe_taken(conflicts: list[Reservation], slot: Slot | None) -> Conflict:
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


def describe_too_few(count: int, slot: Slot | None, *, same_host: bool) -> Conflict:
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
