"""Reservations meet the live fleet: what counts now is shown at its GPUs, what is observed there is acted upon.

Everything that asks the database is done by one task at a time, off the way of reports and of the tick.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpudeck.api.booking_desk import describe
from gpudeck.auth.caller import Caller
from gpudeck.auth.local_copy import LocalCopy
from gpudeck.auth.parts import Auth
from gpudeck.database.schema import name_fleet
from gpudeck.events.log import Events
from gpudeck.hub.hub import Hub
from gpudeck.hub.observed import observe
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.errors import Temporary
from gpudeck.model.reservation import Mark, Reservation
from gpudeck.reservations.calendar import Reservations
from gpudeck.reservations.reconcile import Reconciler, ReconcileResult, tell_release
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

log = logging.getLogger(__name__)

_HUB: Final = Caller(kind="local", role="admin", name="the hub")
_AGAIN_SECONDS: Final = 5.0
_COPY_SECONDS: Final = 600.0
FILE_NAME: Final = "reservations.json"
_NOT_READ: Final = "reservations are those of before: the hub's database does not answer."
_NOT_KNOWN: Final = "reservations are not known, so no GPU is called free: the hub's database does not answer."
_UNKNOWN: Final = Mark(None, is_unknown=True)


class KnownReservations(Struct, frozen=True):
    """What counted about `at`, in Unix seconds."""

    at: float
    reservations: list[Reservation]


class Bookings:
    """`calendar` is what others book with, `late` what is released soon, with the moment. `open` before the first
    report, `tick` once a second, `close` at the end, all in the event loop that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: ReservationSettings,
        events: Events,
        *,
        data_dir: Path | None = None,
        demo: int | None = None,
        now: Clock = clock.wall,
    ) -> None:
        """`data_dir` has the copy of what was known last. `demo` is how many hosts are simulated, None when none are:
        their bookings are apart from real ones."""
        self._hub = hub
        self._auth = auth
        self._events = events
        self._now = now
        store = ReservationStore(auth.database, name_fleet(demo))
        self.calendar = Reservations(store, settings, now, changed=self.look)
        self._rules = Reconciler(settings, self._logins_of)
        self.late: list[tuple[Reservation, float]] = []
        self._used: dict[int, Reservation] = {}
        self._unused: dict[int, Reservation] = {}
        self._work: asyncio.Task[None] | None = None
        self._is_failing = False
        self._copy = None if data_dir is None or demo else LocalCopy(data_dir / FILE_NAME, KnownReservations)
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
            self.look()
            raise

    def tick(self) -> None:
        """Look, and have the database asked unless that is still going on."""
        self.look()
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._work_off())

    def look(self) -> None:
        """Show what counts now, and note what follows from who is where."""
        near = self.calendar.near
        uuids = {gpu.uuid for one in near for gpu in one.gpus}
        now = self._now()
        found = self._rules.look(near, observe(self._hub.fleet, uuids) if uuids else {}, now)
        unknown = {} if self.calendar.is_known else {"": _UNKNOWN}
        self._hub.fleet.mark(unknown | found.marks, now)
        self._hub.stream.note_reservations(self.calendar.changes)
        self.late = found.late
        self._take(found)

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _take(self, found: ReconcileResult) -> None:
        for event in found.events:
            self._events.add(event)
        self._used |= {one.id: one for one in found.used}
        self._unused |= {one.id: one for one in found.unused}

    async def _work_off(self) -> None:
        try:
            await self._ask_database()
        except Temporary as error:
            await self._note_failure(error)
        except Exception:
            log.exception("reservations could not be brought up to date")
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            self._note_success()

    async def _ask_database(self) -> None:
        await self.calendar.refresh()
        for number, one in list(self._used.items()):
            await self.calendar.note_use(one)
            del self._used[number]
        for number in list(self._unused):
            await self._release(number)
            del self._unused[number]
        await self._keep_copy()

    async def _keep_copy(self) -> None:
        near, now = self.calendar.near, self._now()
        if self._copy is not None and (near != self._copied or not 0 <= now - self._copied_at < _COPY_SECONDS):
            self._copied, self._copied_at = near, now
            await self._copy.write(KnownReservations(now, near))

    async def _release(self, number: int) -> None:
        edit = await self.calendar.release_unused(number)
        if edit is None:
            return
        self._events.add(tell_release(edit.before, self._now()))
        details = f"before: {describe(edit.before)}; after: released, {edit.after.release_reason}"
        await self._auth.audit.record(_HUB, "release reservation", f"reservation {number}", details=details)

    async def _note_failure(self, error: Temporary) -> None:
        """What is known already still counts, and is shown."""
        if not self._is_failing:
            log.warning("reservations cannot be read: %s", error)
        # Without the place: it is shown to everybody who may look.
        self._hub.fleet.say("reservations", [_NOT_READ if self.calendar.is_known else _NOT_KNOWN])
        self._is_failing = True
        await asyncio.sleep(_AGAIN_SECONDS)

    def _note_success(self) -> None:
        if self._is_failing:
            log.info("reservations can be read again")
            self._hub.fleet.say("reservations", [])
        self._is_failing = False

    def _logins_of(self, user: str) -> frozenset[str] | None:
        """No login has a blank in it, as the name of a token or of whoever sits at the hub's machine has."""
        return None if " " in user else self._auth.people.logins_of(user)
