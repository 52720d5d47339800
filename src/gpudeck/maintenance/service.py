"""The maintenance of a hub: windows that count now are shown in the fleet, and events say when one begins and ends.
Notes on hosts, one short text each, are kept in the database and shown with the host."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import delete, select

from gpudeck.auth.auth import Auth
from gpudeck.database.background import LocalCopy
from gpudeck.database.engine import FleetStore
from gpudeck.database.schema import REAL
from gpudeck.database.schema import host_notes as table
from gpudeck.events.log import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.maintenance.windows import MaintenanceStore, MaintenanceWindows, event_of
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.reservation import MaintenanceWindow
from gpudeck.model.text import clean
from gpudeck.model.view import HostNote

log = logging.getLogger(__name__)

FILE_NAME: Final = "maintenance.json"
_RELOAD_SECONDS: Final = 600.0
_SHARED_RELOAD_SECONDS: Final = 1.0
"""Where other hubs write to the same tables."""


class KnownMaintenance(Struct, frozen=True):
    """What counted when it was written."""

    windows: list[MaintenanceWindow]


class MaintenanceService(Service):
    """`windows` is what others ask and plan with, `notes` are those on hosts."""

    name = "maintenance"

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        events: EventLog,
        *,
        data_dir: Path | None = None,
        fleet: str = REAL,
        now: Clock = clock.wall,
        add_found: Callable[[Event], None] | None = None,
    ) -> None:
        """`add_found` takes what each of several hubs finds: what has begun or ended. `data_dir` has the copy of what
        was known last. `fleet` is the name under which a demo's are kept apart."""
        self._add_found = add_found or events.add
        self._hub = hub
        self._now = now
        self.windows = MaintenanceWindows(MaintenanceStore(auth.database, fleet), hub.fleet, now, changed=self.update)
        self.notes = HostNotes(auth.database, fleet, hub.fleet, now, show=self._show_notes)
        self._running: dict[int, MaintenanceWindow] | None = None
        self._copy = None if data_dir is None or fleet != REAL else LocalCopy(data_dir / FILE_NAME, KnownMaintenance)
        self._copied: list[MaintenanceWindow] | None = None
        self._loaded_at = float("-inf")
        self.task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises Temporary when the database does not answer; then those of the last time count."""
        try:
            await self._load()
        except Temporary:
            known = None if self._copy is None else self._copy.read()
            if known is not None:
                self.windows.adopt(known.windows)
            raise

    def on_second(self) -> None:
        """Look, and ask the database unless the last question is still being answered."""
        self.update()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._bring_up_to_date())

    def update(self) -> None:
        """Show what counts now, and say what has begun or ended since the last look."""
        now = self._now()
        self._show_notes()
        self._hub.fleet.drain(self.windows.all, now)
        before, running = self._running, {one.id: one for one in self.windows.all if one.state_at(now) == "running"}
        self._running = running
        if before is None:
            return
        for one in running.values():
            if one.id not in before:
                self._add_found(event_of(one, "maintenance_started", f"Maintenance of {one.place} began", now))
        for one in before.values():
            if one.id not in running:
                self._add_found(event_of(one, "maintenance_ended", f"Maintenance of {one.place} ended", now))

    def _show_notes(self) -> None:
        if self.notes.all or self._hub.fleet.table.notes:
            self._hub.fleet.annotate(self.notes.by_host())

    async def close(self) -> None:
        await cancel_tasks(self.task)

    async def _bring_up_to_date(self) -> None:
        """What is known already counts while the database does not answer: the hub says so elsewhere."""
        try:
            pause = _SHARED_RELOAD_SECONDS if self.windows.is_shared else _RELOAD_SECONDS
            if not 0 <= self._now() - self._loaded_at < pause:
                await self._load()
            if self._copy is not None and self.windows.all != self._copied:
                self._copied = self.windows.all
                await self._copy.write(KnownMaintenance(self._copied))
        except Temporary as error:
            log.debug("maintenance windows cannot be read: %s", error)
        except Exception:
            log.exception("maintenance windows could not be brought up to date")

    async def _load(self) -> None:
        await self.windows.load()
        await self.notes.load()
        self._loaded_at = self._now()


MAX_NOTE: Final = 1000


class HostNotes(FleetStore):
    """`load` once; all that asks the database raises Temporary. `show` is called after each change."""

    def __init__(
        self, database: Any, fleet: str, state: FleetState, now: clock.Clock = clock.wall, *, show: Callable[[], None]
    ) -> None:
        super().__init__(database, fleet)
        self._state = state
        self._now = now
        self._show = show
        self.all: dict[tuple[str, str], HostNote] = {}
        """By the id and the name of their hosts."""

    async def load(self) -> None:
        rows = await self._database.execute(select(table).where(table.c.fleet == self._fleet))
        self.all = {
            (row["host_id"], row["host"]): HostNote(row["note"], row["written_by"], row["written_at"])
            for row in rows.mappings()
        }
        self._show()

    def by_host(self) -> dict[str, HostNote]:
        """By the id of the host. A host that was installed anew has another id: where none has that of a note, the one
        with its name is meant."""
        found: dict[str, HostNote] = {}
        for (host_id, name), note in self.all.items():
            if host_id in self._state.hosts:
                found[host_id] = note
            else:
                found |= {host.id: note for host in self._state.called(name) if host.id not in found}
        return found

    async def write(self, host_id: str, name: str, text: str, by: str) -> HostNote | None:
        """None where the text is empty: there is no note any more."""
        text = clean(" ".join(text.split()))[:MAX_NOTE]
        note = HostNote(text, by, round(self._now(), 3)) if text else None
        old = {key for key in self.all if host_id == key[0] or (name == key[1] and key[0] not in self._state.hosts)}
        async with self._database.begin() as connection:
            ids = [key[0] for key in old]
            await connection.execute(delete(table).where(table.c.fleet == self._fleet, table.c.host_id.in_(ids)))
            if note is not None:
                row = {"note": text, "written_at": note.at, "written_by": by}
                await connection.execute(
                    table.insert().values(row | {"fleet": self._fleet, "host_id": host_id, "host": name})
                )
        kept = {key: value for key, value in self.all.items() if key not in old}
        self.all = kept if note is None else kept | {(host_id, name): note}
        self._show()
        return note
