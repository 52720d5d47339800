"""Reservations, short claims and maintenance windows, as they are kept, sent out and shown. Pure.

Times are Unix seconds, those of reservations whole ones. A reservation or a window counts from `start` until before
`end`; a window without an end until a user ends it.
"""

from collections import defaultdict
from collections.abc import Iterable
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


MAX_REASON = 500
MaintenanceState = Literal["planned", "running", "ended"]


class Maintenance(Struct, frozen=True):
    """What of a window that counts now is shown at its host and GPUs. `until` is null where it has no end yet."""

    id: int
    since: float
    until: float | None
    reason: str
    by: str


class MaintenanceWindow(Struct, frozen=True, kw_only=True):
    """`host` is the name that the host had when it was drained. `gpu` is the UUID of a single GPU and `label` its
    number then; null: the whole host, with every GPU that it has or gets."""

    id: int
    host: str
    host_id: str
    gpu: str | None
    label: str | None
    start: float
    end: float | None
    reason: str
    created_at: float
    created_by: str

    def state_at(self, now: float) -> MaintenanceState:
        if now < self.start:
            return "planned"
        return "running" if self.end is None or now < self.end else "ended"

    def overlaps(self, start: float, end: float) -> bool:
        """Whether it counts at some time from `start` until before `end`."""
        return self.start < end and (self.end is None or self.end > start)

    @property
    def place(self) -> str:
        """gpu07, or gpu07:3."""
        return self.host if self.label is None else f"{self.host}:{self.label}"

    @property
    def shown(self) -> Maintenance:
        return Maintenance(self.id, self.start, self.end, self.reason, self.created_by)

    @property
    def last_moment(self) -> float:
        return float("inf") if self.end is None else self.end


class MaintenanceSchedule:
    """The windows of a fleet as of one moment. Each GPU of a large fleet is looked up, and nearly always there is no
    window at all."""

    def __init__(self) -> None:
        self.windows: tuple[MaintenanceWindow, ...] = ()
        self._at = 0.0
        self.known: frozenset[str] = frozenset()
        self._running: tuple[MaintenanceWindow, ...] = ()
        self._by_host: dict[str, list[MaintenanceWindow]] = {}
        self._by_name: dict[str, list[MaintenanceWindow]] = {}
        self._by_gpu: dict[str, list[MaintenanceWindow]] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def running(self) -> tuple[MaintenanceWindow, ...]:
        return self._running

    def change(self, windows: Iterable[MaintenanceWindow], at: float, known: frozenset[str]) -> None:
        """`known` are the ids of those of their hosts that are in the fleet. A host that was installed anew has another
        id: where none has the id of a window, the one with its name is meant."""
        self.windows, self.known = tuple(windows), known
        self.move_to(at)

    def move_to(self, at: float) -> None:
        """What is asked from here on is what counted at that moment."""
        self._at = at
        self._running = tuple(one for one in self.windows if one.state_at(at) == "running")
        self._by_host, self._by_name, self._by_gpu = defaultdict(list), defaultdict(list), defaultdict(list)
        for one in self._running:
            if one.gpu is not None:
                self._by_gpu[one.gpu].append(one)
            else:
                self._by_host[one.host_id].append(one)
                if one.host_id not in self.known:
                    self._by_name[one.host].append(one)

    def is_of(self, window: MaintenanceWindow, host_id: str, name: str) -> bool:
        """Whether the window is of that host, or of a GPU that was there."""
        return window.host_id == host_id or (window.host == name and window.host_id not in self.known)

    def find(self, host_id: str, name: str) -> Maintenance | None:
        """Of a host as a whole; of several windows the one that ends last."""
        if not self._running:
            return None
        return _last([*self._by_host.get(host_id, ()), *self._by_name.get(name, ())])

    def find_gpu(self, host_id: str, name: str, uuids: tuple[str | None, ...]) -> Maintenance | None:
        """Of a GPU there: `uuids` are its own and that of its board. A GPU that moved is still drained."""
        if not self._running:
            return None
        own = [one for uuid in uuids if uuid is not None for one in self._by_gpu.get(uuid, ())]
        return _last([*self._by_host.get(host_id, ()), *self._by_name.get(name, ()), *own])


def _last(windows: Iterable[MaintenanceWindow]) -> Maintenance | None:
    found = max(windows, key=lambda one: (one.last_moment, -one.id), default=None)
    return None if found is None else found.shown


class ShownMaintenance(MaintenanceWindow, frozen=True, kw_only=True):
    """`state` is what it is now. `is_there` is false where the fleet knows no such host or GPU any more: the window
    counts again when it is back."""

    state: MaintenanceState
    is_there: bool


class MaintenanceList(Struct, frozen=True):
    """Those that count now, then those that are planned, by their start. `time` is the hub's."""

    maintenance: list[ShownMaintenance]
    time: float


class MaintenanceChange(Struct, frozen=True):
    """A window that was planned or changed. `reservations` are those of other users within it, which it does not end:
    their GPUs are drained nevertheless."""

    maintenance: ShownMaintenance
    reservations: list[ShownReservation]
