"""The reservations of a hub: shown at their GPUs while they count, and compared with the observed users of these GPUs.
A GPU that cannot be read counts neither as unused nor as used by others.

One task at a time uses the database, apart from reports and the tick."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller
from gpudeck.database.background import LocalCopy
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.service import EventLog
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cluster import Duty, LostDuty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event
from gpudeck.model.reservation import MaintenanceWindow, Reservation, ReservationMark, ReservedGpu
from gpudeck.model.text import show_length
from gpudeck.reservations.calendar import ReservationCalendar, show_at_gpu
from gpudeck.reservations.requests import ObservedGpu, Occupant, describe, name_gpus
from gpudeck.reservations.settings import DAY, ReservationSettings
from gpudeck.reservations.store import ReservationStore

OVERRUN_SECONDS: Final = DAY
"""For how long after its end a reservation's owner is reported who still uses the GPU."""

LoginsOf = Callable[[str], frozenset[str] | None]
"""The logins of a reservation's owner on the hosts; None if they are unknown: any user may be the owner then."""


class ReconcileResult(Struct, frozen=True):
    """`marks` are shown at GPUs, by UUID. `used` are reservations whose owners were seen for the first time, `unused`
    those to release as unused, `late` those that will be released soon, with the time."""

    marks: dict[str, ReservationMark] = field(default_factory=dict)
    used: list[Reservation] = field(default_factory=list)
    unused: list[Reservation] = field(default_factory=list)
    late: list[tuple[Reservation, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Reconciler:
    """`reconcile` every few seconds. Each event is reported once. After a restart of the hub the unused time starts
    again: a reservation is released too late rather than too early."""

    def __init__(self, settings: ReservationSettings, logins_of: LoginsOf) -> None:
        self._settings = settings
        self._logins_of = logins_of
        self._unused_since: dict[int, float] = {}
        self._warned: set[int] = set()
        self._told: set[tuple[int, str, str]] = set()

    def reconcile(self, near: Sequence[Reservation], seen: Mapping[str, ObservedGpu], now: float) -> ReconcileResult:
        """`near` are the reservations of about now, `seen` their GPUs that are in the fleet."""
        found = ReconcileResult()
        running = [one for one in near if one.counts_at(now)]
        for one in running:
            self._check_use(one, seen, now, found)
        latest: dict[str, tuple[Reservation, ReservedGpu]] = {}
        for one in sorted(near, key=lambda one: one.end):
            if one.kind == "reservation" and one.state_at(now) == "ended" and now - one.end < OVERRUN_SECONDS:
                latest |= {gpu.uuid: (one, gpu) for gpu in one.gpus if gpu.uuid not in found.marks}
        for one, gpu in latest.values():
            self._check_end(one, gpu, seen.get(gpu.uuid), found)
        # Forget reservations that are over.
        known, counting = {one.id for one in near}, {one.id for one in running}
        self._told = {key for key in self._told if key[0] in known}
        self._warned &= counting
        self._unused_since = {number: at for number, at in self._unused_since.items() if number in counting}
        return found

    def _check_use(self, one: Reservation, seen: Mapping[str, ObservedGpu], now: float, found: ReconcileResult) -> None:
        logins = self._logins_of(one.user)
        is_used = False
        for gpu in one.gpus:
            occupants = _occupants(seen.get(gpu.uuid))
            own = [other for other in occupants if logins is None or other.user in logins]
            others = {other.user: other for other in occupants if other.user is not None and other not in own}
            conflict = _describe_conflict(one, list(others)) if others else None
            found.marks[gpu.uuid] = ReservationMark(show_at_gpu(one), conflict, one.start)
            for occupant in others.values():
                self._emit_conflict(one, gpu, occupant, now, found)
            is_used |= bool(own)
        if one.used_at is None and is_used:
            found.used.append(one)
        elif one.used_at is None and one.kind == "reservation":
            self._check_no_show(one, seen, now, found)

    def _check_no_show(
        self, one: Reservation, seen: Mapping[str, ObservedGpu], now: float, found: ReconcileResult
    ) -> None:
        no_show = self._settings.no_show
        if no_show == "off":
            return
        if not all(_is_empty(seen.get(gpu.uuid)) for gpu in one.gpus):
            # Others use the GPUs, or the owner may do so without being seen.
            self._unused_since.pop(one.id, None)
            return
        deadline = self._unused_since.setdefault(one.id, now) + no_show
        if now >= deadline:
            found.unused.append(one)
        elif deadline < one.end and now >= deadline - self._settings.warn_before:
            found.late.append((one, deadline))
            if one.id not in self._warned:
                self._warned.add(one.id)
                what, left = f"{one.user}'s reservation of {name_gpus(one.gpus)}", show_length(deadline - now)
                title = f"{what} is released in {left} if nobody uses it"
                found.events.append(_event(now, "reservation_unused", title, one, user=one.user))

    def _check_end(self, one: Reservation, gpu: ReservedGpu, seen: ObservedGpu | None, found: ReconcileResult) -> None:
        """Users who stay after the end of their reservation."""
        logins = self._logins_of(one.user) or frozenset()
        own = [other for other in _occupants(seen) if other.user in logins]
        user = next((other.user for other in own if _was_there(other, one)), None)
        if user is None:
            return
        why = f"{one.user}'s reservation has ended"
        found.marks[gpu.uuid] = ReservationMark(None, f"{user} is still on it: {why}")
        if self._is_new(one, gpu, ""):
            title = f"{user} is still on GPU {gpu.label} of {gpu.host}: {why}"
            found.events.append(_event(one.end, "reservation_overrun", title, one, gpu=gpu, user=user))

    def _emit_conflict(
        self, one: Reservation, gpu: ReservedGpu, occupant: Occupant, now: float, found: ReconcileResult
    ) -> None:
        user = occupant.user or ""
        if not self._is_new(one, gpu, user):
            return
        began = now if occupant.started_at is None else max(one.start, min(now, occupant.started_at))
        what = "is claimed for" if one.kind == "claim" else "is reserved by"
        title = f"{user} is on GPU {gpu.label} of {gpu.host}, which {what} {one.user}"
        found.events.append(_event(began, "reservation_conflict", title, one, gpu=gpu, user=user))

    def _is_new(self, one: Reservation, gpu: ReservedGpu, user: str) -> bool:
        key = (one.id, gpu.uuid, user)
        is_new = key not in self._told
        self._told.add(key)
        return is_new


def release_event(one: Reservation, now: float) -> Event:
    title = f"{one.user}'s reservation of {name_gpus(one.gpus)} was released: nobody used it"
    return _event(now, "reservation_released", title, one, user=one.user)


def _event(at: float, kind: str, title: str, one: Reservation, *, user: str, gpu: ReservedGpu | None = None) -> Event:
    """An event has room for one GPU: of several, none is named."""
    place = gpu or (one.gpus[0] if len(one.gpus) == 1 else None)
    return make_event(
        at,
        kind,
        title,
        severity="info" if kind == "reservation_released" else "warning",
        host=None if place is None else place.host,
        gpu=None if place is None else place.uuid,
        label=None if place is None else place.label,
        user=user,
        detail=f"Reservation {one.id} of {one.user}{f': {one.note}' if one.note else ''}.",
    )


def _occupants(seen: ObservedGpu | None) -> Sequence[Occupant]:
    """The known ones."""
    return () if seen is None or seen.occupants is None else seen.occupants


def _describe_conflict(one: Reservation, users: Sequence[str]) -> str:
    what = "claimed for" if one.kind == "claim" else "reserved by"
    verb = "is" if len(users) == 1 else "are"
    return f"{' and '.join(users[:3])} {verb} on it, though it is {what} {one.user}"


def _is_empty(seen: ObservedGpu | None) -> bool:
    """False for a GPU that cannot be read."""
    return seen is not None and seen.availability in {"free", "reserved"} and not seen.occupants


def _was_there(process: Occupant, one: Reservation) -> bool:
    """Whether a process began before the end of the reservation. If its start is unknown, the owner may have come
    back."""
    return one.used_at is not None if process.started_at is None else process.started_at < one.end


log = logging.getLogger(__name__)

_HUB: Final = Caller(kind="local", role="admin", name="the hub")
RETRY_SECONDS: Final = 5.0
_COPY_SECONDS: Final = 600.0
FILE_NAME: Final = "reservations.json"
_NOT_READ: Final = "reservations are those of before: the hub's database does not answer."
_NOT_KNOWN: Final = "reservations are not known, so no GPU is called free: the hub's database does not answer."


def observe(fleet: FleetState, uuids: Set[str] | None = None) -> dict[str, ObservedGpu]:
    """The GPUs with these UUIDs, or all, by host. The users of a silent host are unknown."""
    fleet.settle()
    return {
        uuid: _look_at(host, host.gpus[uuid])
        for host in fleet.ordered()
        for uuid in (host.gpus if uuids is None else uuids & host.gpus.keys())
    }


def _look_at(host: HostState, gpu: GpuState) -> ObservedGpu:
    availability = gpu.availability
    processes = None if availability == "unknown" else gpu.processes
    return ObservedGpu(
        uuid=gpu.uuid,
        host=host.name,
        host_id=host.id,
        label=gpu.label,
        index=gpu.index,
        name=gpu.name,
        display_name=gpu.display_name,
        memory_total_bytes=gpu.value("memory_total_bytes"),
        availability=availability,
        health=gpu.health.level,
        occupants=None
        if processes is None
        else tuple(Occupant(process.user, process.started_at) for process in processes if not process.display),
        parent=gpu.parent,
    )


class KnownReservations(Struct, frozen=True):
    """The reservations that counted about `at`, in Unix seconds."""

    at: float
    reservations: list[Reservation]


class ReservationService(Service):
    """`calendar` makes reservations. `late` are unused reservations, with the time of their release."""

    name = "reservations"

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: ReservationSettings,
        events: EventLog,
        *,
        data_dir: Path | None = None,
        fleet: str = REAL,
        maintenance: Callable[[], Sequence[MaintenanceWindow]] = tuple,
        of_schedulers: Callable[[], Sequence[Reservation]] = tuple,
        now: Clock = clock.wall,
        duty: Duty | None = None,
        fenced: Database | None = None,
    ) -> None:
        """`data_dir` has a copy for a start without the database. Of several hubs the one with the `duty` acts upon
        what it observes, and writes that to `fenced`. `fleet` separates the reservations of a demo from real ones.
        `maintenance` are windows in which nothing is reserved, `of_schedulers` reservations that schedulers have made:
        a new sequence whenever they change."""
        self._duty = duty or Duty("reservations")
        self._hub = hub
        self._auth = auth
        self._events = events
        self._now = now
        store = ReservationStore(auth.database, fleet)
        self.calendar = ReservationCalendar(
            store,
            settings,
            now,
            changed=self.reconcile,
            maintenance=maintenance,
            of_schedulers=of_schedulers,
            fenced=None if fenced is None else ReservationStore(fenced, fleet),
        )
        self._rules = Reconciler(settings, self._logins_of)
        self.late: list[tuple[Reservation, float]] = []
        self._used: dict[int, Reservation] = {}
        self._unused: dict[int, Reservation] = {}
        self.task: asyncio.Task[None] | None = None
        self._is_failing = False
        self._copy = None if data_dir is None or fleet != REAL else LocalCopy(data_dir / FILE_NAME, KnownReservations)
        self._copied: list[Reservation] | None = None
        self._copied_at = 0.0

    async def open(self) -> None:
        """Raises Temporary if the database does not answer; the reservations of the copy count then."""
        try:
            await self.calendar.load()
        except Temporary:
            known = None if self._copy is None else self._copy.read()
            if known is not None:
                self.calendar.adopt(known.reservations, known.at)
            self.reconcile()
            raise

    def on_second(self) -> None:
        """Reconcile, and start to use the database unless that is still going on."""
        self.reconcile()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._work_off())

    def reconcile(self) -> None:
        """Show the reservations that count now, and note what follows from the observed users."""
        near = self.calendar.near
        uuids = {gpu.uuid for one in near for gpu in one.gpus}
        now = self._now()
        found = self._rules.reconcile(near, observe(self._hub.fleet, uuids) if uuids else {}, now)
        unknown = {} if self.calendar.is_known else {"": ReservationMark(None, is_unknown=True)}
        # A reservation of a scheduler is for its jobs only, even if the GPU is reserved here too.
        marks = {
            gpu.uuid: ReservationMark(show_at_gpu(one), since=one.start)
            for one in self.calendar.see_of_schedulers()
            if one.counts_at(now)
            for gpu in one.gpus
        }
        self._hub.fleet.mark(unknown | found.marks | marks, now)
        self._hub.stream.note_reservations(self.calendar.changes)
        self.late = found.late
        if not self._duty.is_held:
            return
        for event in found.events:
            self._events.add(event)
        self._used |= {one.id: one for one in found.used}
        self._unused |= {one.id: one for one in found.unused}

    async def close(self) -> None:
        await cancel_tasks(self.task)

    async def _work_off(self) -> None:
        try:
            await self.ask_database()
        except Temporary as error:
            await self._note_failure(error)
        except Exception:
            log.exception("reservations could not be brought up to date")
            await asyncio.sleep(RETRY_SECONDS)
        else:
            if self._is_failing:
                log.info("reservations can be read again")
                self._hub.fleet.set_problems("reservations", [])
            self._is_failing = False

    async def ask_database(self) -> None:
        await self.calendar.refresh()
        try:
            await self._write_observed()
        except LostDuty:
            # Another hub has the duty now, and observes the same.
            self._used, self._unused = {}, {}
        await self._keep_copy()

    async def _write_observed(self) -> None:
        for number, one in list(self._used.items()):
            await self.calendar.note_use(one)
            del self._used[number]
        for number in list(self._unused):
            await self._release(number)
            del self._unused[number]

    async def _keep_copy(self) -> None:
        near, now = self.calendar.near, self._now()
        if self._copy is not None and (near != self._copied or not 0 <= now - self._copied_at < _COPY_SECONDS):
            self._copied, self._copied_at = near, now
            await self._copy.write(KnownReservations(now, near))

    async def _release(self, number: int) -> None:
        edit = await self.calendar.release_unused(number)
        if edit is None:
            return
        self._events.add(release_event(edit.before, self._now()))
        details = f"before: {describe(edit.before)}; after: released, {edit.after.release_reason}"
        await self._auth.audit.record(_HUB, "release reservation", f"reservation {number}", details=details)

    async def _note_failure(self, error: Temporary) -> None:
        if not self._is_failing:
            log.warning("reservations cannot be read: %s", error)
        # Without the address of the database: every viewer sees this.
        self._hub.fleet.set_problems("reservations", [_NOT_READ if self.calendar.is_known else _NOT_KNOWN])
        self._is_failing = True
        await asyncio.sleep(RETRY_SECONDS)

    def _logins_of(self, user: str) -> frozenset[str] | None:
        """Names with a blank are those of tokens and of the caller on the hub's machine, not logins."""
        return None if " " in user else self._auth.users.logins_of(user)
