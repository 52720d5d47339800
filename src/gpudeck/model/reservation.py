"""A reservation of GPUs, or a short claim, as it is kept, sent out and shown. Pure.

Times are Unix seconds, whole ones. A reservation counts from `start` until before `end`.
"""

from typing import Literal

from msgspec import Struct

ReservationKind = Literal["reservation", "claim"]
ReservationState = Literal["planned", "running", "ended", "released", "cancelled"]


class ReservedGpu(Struct, frozen=True):
    """A GPU of a reservation, with the host and the number it had when it was reserved. `is_there` is None where that
    was not checked, false where the fleet knows no such GPU any more: the reservation stays all the same."""

    uuid: str
    host: str
    label: str
    is_there: bool | None = None


class Reservation(Struct, frozen=True, kw_only=True):
    """`version` grows with every change: a change of an older version is refused. `kind` is `claim` for GPUs that
    are claimed for a request of the queue until its process appears.

    `released_at` is when it was given back before its end: before its start it never counted, later its past part
    stays, and `end` is that moment. `used_at` is when its owner was first seen on one of its GPUs.

    `scheduler` is the scheduler that has made it, by its name in the hub's configuration, and `name` its name there:
    such a one is changed there, not here. It may have several users, in `user` with commas between.
    """

    id: int
    kind: ReservationKind
    user: str
    gpus: list[ReservedGpu]
    start: float
    end: float
    note: str
    version: int
    created_at: float
    created_by: str
    changed_at: float
    used_at: float | None
    released_at: float | None
    release_reason: str | None
    scheduler: str | None = None
    name: str | None = None

    @property
    def title(self) -> str:
        """reservation 12, or reservation paper of slurm."""
        return f"reservation {self.id}" if self.scheduler is None else f"reservation {self.name} of {self.scheduler}"

    @property
    def is_cancelled(self) -> bool:
        """Whether it was given back before it began, and so never counted."""
        return self.released_at is not None and self.released_at <= self.start

    def state_at(self, now: float) -> ReservationState:
        if self.is_cancelled:
            return "cancelled"
        if self.released_at is not None:
            return "released"
        if now < self.start:
            return "planned"
        return "running" if now < self.end else "ended"

    def counts_at(self, now: float) -> bool:
        return self.state_at(now) == "running"


class GpuReservation(Struct, frozen=True):
    """What of a reservation that counts now is shown at each of its GPUs. `scheduler` has made it; null: users of the
    hub."""

    id: int
    user: str
    until: float
    note: str
    kind: ReservationKind
    scheduler: str | None = None


class ReservationMark(Struct, frozen=True):
    """What reservations say of one GPU now. `conflict` is a sentence about a user without the reservation who is on it.
    `since` is when the reservation began: a report of before that is not judged by it. `is_unknown`: they could not be
    read."""

    reservation: GpuReservation | None
    conflict: str | None = None
    since: float = 0.0
    is_unknown: bool = False


class ShownReservation(Reservation, frozen=True, kw_only=True):
    """`state` is what it is now: `planned`, `running`, `ended`, or given back before its end (`released`) or before its
    beginning (`cancelled`). `is_read_only`: it is a scheduler's, and only changed there."""

    state: ReservationState
    is_read_only: bool = False


class ReservationList(Struct, frozen=True):
    """By their start. `time` is the hub's, `is_cut` says that there are more than were asked for."""

    reservations: list[ShownReservation]
    time: float
    is_cut: bool


class ShownSlot(Struct, frozen=True):
    """A time at which these GPUs are free."""

    start: float
    end: float
    gpus: list[ReservedGpu]
