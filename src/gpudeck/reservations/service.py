"""The reservations of a hub: those that count now are shown at their GPUs, and what is observed there is acted upon.

Everything that asks the database is done by one task at a time, off the way of reports and of the tick.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final

from msgspec import Struct

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
from gpudeck.model.reservation import MaintenanceWindow, Reservation, ReservationMark
from gpudeck.reservations.calendar import ReservationCalendar, show_at_gpu
from gpudeck.reservations.reconcile import Reconciler, release_event
from gpudeck.reservations.requests import ObservedGpu, Occupant, describe
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

log = logging.getLogger(__name__)

_HUB: Final = Caller(kind="local", role="admin", name="the hub")
RETRY_SECONDS: Final = 5.0
_COPY_SECONDS: Final = 600.0
FILE_NAME: Final = "reservations.json"
_NOT_READ: Final = "reservations are those of before: the hub's database does not answer."
_NOT_KNOWN: Final = "reservations are not known, so no GPU is called free: the hub's database does not answer."


def observe(fleet: FleetState, uuids: Set[str] | None = None) -> dict[str, ObservedGpu]:
    """The GPUs with these UUIDs, or all, by host and number. The users of a silent host are unknown."""
    fleet.settle()
    if uuids is None:
        return {uuid: _look_at(host, gpu) for host in fleet.ordered() for uuid, gpu in host.gpus.items()}
    # Few are reserved: walking over all of a large fleet once a second would cost more than all the rest.
    return {uuid: _look_at(host, host.gpus[uuid]) for host in fleet.hosts.values() for uuid in uuids & host.gpus.keys()}


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
    """What counted about `at`, in Unix seconds."""

    at: float
    reservations: list[Reservation]


class ReservationService(Service):
    """`calendar` is what others reserve with. `late` are unused reservations with the time of their release."""

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
        """`data_dir` has the copy of what was known last. Of several hubs the one with the `duty` acts upon what is
        observed, and writes that to `fenced`. `fleet` is the name under which a demo's reservations are
        kept apart. `maintenance` are windows in which nothing is reserved, `of_schedulers` reservations that
        schedulers have made: a new sequence whenever they change."""
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
        """Raises Temporary when the database does not answer; then those of the last time count."""
        try:
            await self.calendar.load()
        except Temporary:
            known = None if self._copy is None else self._copy.read()
            if known is not None:
                self.calendar.adopt(known.reservations, known.at)
            self.reconcile()
            raise

    def on_second(self) -> None:
        """Look, and ask the database unless the last question is still being answered."""
        self.reconcile()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._work_off())

    def reconcile(self) -> None:
        """Show what counts now, and note what follows from who is where."""
        near = self.calendar.near
        uuids = {gpu.uuid for one in near for gpu in one.gpus}
        now = self._now()
        found = self._rules.reconcile(near, observe(self._hub.fleet, uuids) if uuids else {}, now)
        unknown = {} if self.calendar.is_known else {"": ReservationMark(None, is_unknown=True)}
        # Only the jobs that its scheduler lets in may use such a GPU, no matter who has reserved it here.
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
            # The hub that has the duty now observes the same.
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
        """What is known already still counts, and is shown."""
        if not self._is_failing:
            log.warning("reservations cannot be read: %s", error)
        # Without the place: it is shown to everybody who may look.
        self._hub.fleet.set_problems("reservations", [_NOT_READ if self.calendar.is_known else _NOT_KNOWN])
        self._is_failing = True
        await asyncio.sleep(RETRY_SECONDS)

    def _logins_of(self, user: str) -> frozenset[str] | None:
        """No login has a blank in it. The names of tokens and of the caller on the hub's machine have one."""
        return None if " " in user else self._auth.users.logins_of(user)
