"""The errors of the client. Each is a GpudeckError, whose text says what failed and what to do.

GpudeckError
├── UsageError             a wrong argument, or a request that the hub does not accept
├── Unreachable            no hub answers
├── Forbidden              the hub does not allow it
│   └── NotLoggedIn        it needs to know who asks; also a UsageError
├── NotFound               no such host, GPU, run, reservation, …
├── Busy                   the hub cannot do it now; try again later
├── ReservationTaken       others have reserved those GPUs then
├── ImpossibleRequest      the fleet can never meet the request
└── WaitTimeout            the GPUs did not become free in time
"""

from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.reservation import ShownReservation, ShownSlot


class Forbidden(GpudeckError):
    """The hub does not allow it."""


class NotLoggedIn(Forbidden, UsageError):
    """The hub needs to know who asks."""


class NotFound(GpudeckError):
    """The hub knows such things, but not this one."""


class Busy(GpudeckError):
    """The hub cannot do it now, and may a little later."""


class LoginPending(Busy):
    """The login is not confirmed yet: ask again."""


class ReservationTaken(GpudeckError):
    """Others have reserved those GPUs then. `conflicts` are their reservations, `next_free` is when there are none;
    None where no such time is known."""

    def __init__(self, message: str, hint: str, conflicts: list[ShownReservation], next_free: ShownSlot | None) -> None:
        super().__init__(message, hint)
        self.conflicts = conflicts
        self.next_free = next_free


class ImpossibleRequest(GpudeckError):
    """The fleet can never meet the request, no matter which GPUs are given up."""


class WaitTimeout(GpudeckError):
    """The GPUs did not become free in time."""
