"""Reservations, short claims and maintenance windows, as they are stored, sent and shown. Pure.

Times are Unix seconds, those of reservations whole ones. A reservation or a window counts from `start` up to but not
including `end`; a window without an end counts until a user ends it.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

ReservationKind = Literal["reservation", "claim"]
ReservationState = Literal["planned", "running", "ended", "released", "cancelled"]


class ReservedGpu(Struct, frozen=True):
    """A GPU of a reservation, with its host and number at the time it was reserved. `is_there` is None if that was not
    checked, false if the fleet no longer has such a GPU: the reservation stays."""

    uuid: str
    host: str
    label: str
    is_there: bool | None = None


class Reservation(Struct, frozen=True, kw_only=True):
    """`version` grows with every change; a change based on an older version is refused. `kind` is `claim` for GPUs
    claimed for a request of the queue until its process appears. `released_at` is when it was released before its end:
    before its start it never counted, later its past part stays, and `end` is that time. `used_at` is when its owner
    was first seen on one of its GPUs. `scheduler` is the name, in the hub's configuration, of the scheduler that made
    it, and `name` its name there: it can only be changed there. It may have several users, separated by commas in
    `user`."""

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
        """Whether it was released before its start, and so never counted."""
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
    """A current reservation as shown at each of its GPUs. `scheduler` has made it; null: users of the hub."""

    id: int
    user: str
    until: float
    note: str
    kind: ReservationKind
    scheduler: str | None = None


class ReservationMark(Struct, frozen=True):
    """The current reservation of one GPU. `conflict` is a sentence about a user of the GPU without the reservation.
    `since` is when the reservation began: earlier reports are not affected by it. `is_unknown`: the reservations could
    not be read."""

    reservation: GpuReservation | None
    conflict: str | None = None
    since: float = 0.0
    is_unknown: bool = False


class ShownReservation(Reservation, frozen=True, kw_only=True):
    """`state` is its current state: `planned`, `running`, `ended`, or released before its end (`released`) or before
    its start (`cancelled`). `is_read_only`: it belongs to a scheduler, and can only be changed there."""

    state: ReservationState
    is_read_only: bool = False


class ReservationList(Struct, frozen=True):
    """By their start. `time` is the hub's, `is_cut` means that there are more than requested."""

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
    """A current maintenance window as shown at its host and GPUs. `until` is null if it has no end yet."""

    id: int
    since: float
    until: float | None
    reason: str
    by: str


class MaintenanceWindow(Struct, frozen=True, kw_only=True):
    """`host` was the name of the host when it was drained. `gpu` is the UUID of a single GPU and `label` its number
    then; null: the whole host, with every GPU that it has or gets."""

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
        """Whether it counts at some time from `start` up to `end`."""
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
    """The maintenance windows of a fleet as of one time. Every GPU of a large fleet is looked up, and usually there is
    no window at all."""

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
        """`known` are the ids of their hosts that are in the fleet. A reinstalled host has another id: if no host has
        the id of a window, the one with its name is meant."""
        self.windows, self.known = tuple(windows), known
        self.move_to(at)

    def move_to(self, at: float) -> None:
        """Later lookups return the windows of that time."""
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
        """Whether the window is for that host, or for a GPU that was in it."""
        return window.host_id == host_id or (window.host == name and window.host_id not in self.known)

    def find(self, host_id: str, name: str) -> Maintenance | None:
        """The window for a host as a whole; of several the one that ends last."""
        if not self._running:
            return None
        return _last([*self._by_host.get(host_id, ()), *self._by_name.get(name, ())])

    def find_gpu(self, host_id: str, name: str, uuids: tuple[str | None, ...]) -> Maintenance | None:
        """The window for one of its GPUs: `uuids` are its own and that of its board. A GPU that moved is still
        drained."""
        if not self._running:
            return None
        own = [one for uuid in uuids if uuid is not None for one in self._by_gpu.get(uuid, ())]
        return _last([*self._by_host.get(host_id, ()), *self._by_name.get(name, ()), *own])


def _last(windows: Iterable[MaintenanceWindow]) -> Maintenance | None:
    found = max(windows, key=lambda one: (one.last_moment, -one.id), default=None)
    return None if found is None else found.shown


class ShownMaintenance(MaintenanceWindow, frozen=True, kw_only=True):
    """`state` is its current state. `is_there` is false if the fleet no longer has such a host or GPU: the window
    counts again when it returns."""

    state: MaintenanceState
    is_there: bool


class MaintenanceList(Struct, frozen=True):
    """The current windows, then planned ones, by their start. `time` is the hub's."""

    maintenance: list[ShownMaintenance]
    time: float


class MaintenanceChange(Struct, frozen=True):
    """A window that was planned or changed. `reservations` are reservations of other users during it, which it does not
    end: their GPUs are drained nevertheless."""

    maintenance: ShownMaintenance
    reservations: list[ShownReservation]
