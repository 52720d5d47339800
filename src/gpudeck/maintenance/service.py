"""Maintenance windows of hosts and GPUs, shown in the fleet while they count, with events at their start and end; and
notes on hosts, one short text each.

All windows that count, or ended within the last day, are in memory: they are few, and needed everywhere.
"""

import asyncio
import difflib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace
from sqlalchemy import delete, insert, or_, select, update

from gpudeck.auth.auth import Auth
from gpudeck.database.background import LocalCopy
from gpudeck.database.engine import Database, FleetStore
from gpudeck.database.schema import REAL, host_notes
from gpudeck.database.schema import maintenance as table
from gpudeck.events.service import EventLog
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import RequestRefused, Temporary
from gpudeck.model.event import Event, make_event
from gpudeck.model.reservation import MaintenanceList, MaintenanceWindow, ShownMaintenance
from gpudeck.model.text import clean, show_length
from gpudeck.model.view import HostNote

log = logging.getLogger(__name__)

FILE_NAME: Final = "maintenance.json"
KEPT_SECONDS: Final = 86_400.0
"""How long a window stays in memory after its end: late reports of that time may still arrive."""
FURTHEST: Final = 3660 * 86_400.0
LATE_SECONDS: Final = 120.0
"""A start that is past by at most this means now."""
MAX_WINDOWS: Final = 1000
MAX_NOTE: Final = 1000
_RELOAD_SECONDS: Final = 600.0
_SHARED_RELOAD_SECONDS: Final = 1.0
"""Where other hubs write to the same tables."""


class MaintenanceService(Service):
    """`windows` plans maintenance and lists it, `notes` are those on hosts."""

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
        """`add_found` takes events that every hub of a cluster finds. `data_dir` has a copy for a start without the
        database. `fleet` separates the windows of a demo from real ones."""
        self._add_found = add_found or events.add
        self._hub = hub
        self._now = now
        self.windows = MaintenanceWindows(auth.database, fleet, hub.fleet, now, changed=self.update)
        self.notes = HostNotes(auth.database, fleet, hub.fleet, now, show=self._show_notes)
        self._running: dict[int, MaintenanceWindow] | None = None
        self._copy = (
            None if data_dir is None or fleet != REAL else LocalCopy(data_dir / FILE_NAME, list[MaintenanceWindow])
        )
        self._loaded_at = float("-inf")
        self.task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises Temporary if the database does not answer; the windows of the copy count then."""
        try:
            await self._load()
        except Temporary:
            known = None if self._copy is None else self._copy.read()
            if known is not None:
                self.windows.adopt(known)
            raise

    def on_second(self) -> None:
        """Update, and start to use the database unless that is still going on."""
        self.update()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._bring_up_to_date())

    def update(self) -> None:
        """Show the windows that count now, and emit events of those that have begun or ended since the last call."""
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
        try:
            pause = _SHARED_RELOAD_SECONDS if self.windows.is_shared else _RELOAD_SECONDS
            if not 0 <= self._now() - self._loaded_at < pause:
                await self._load()
            if self._copy is not None:
                await self._copy.write(self.windows.all)
        except Temporary as error:
            log.debug("maintenance windows cannot be read: %s", error)
        except Exception:
            log.exception("maintenance windows could not be brought up to date")

    async def _load(self) -> None:
        await self.windows.load()
        await self.notes.load()
        self._loaded_at = self._now()


class MaintenanceRequest(Struct, frozen=True, kw_only=True):
    """`host` is a name or an id; `gpu` is the number or UUID of a GPU, None for the whole host. None as `start`
    means now; without `end` and `length` it lasts until it is ended."""

    host: str
    gpu: str | None = None
    start: float | None = None
    end: float | None = None
    length: float | None = None
    reason: str


class MaintenanceWindows(FleetStore):
    """`load` once. `changed` is called after each change. Methods that use the database raise Temporary."""

    def __init__(
        self,
        database: Database,
        fleet: str,
        state: FleetState,
        now: Clock = clock.wall,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(database, fleet)
        self._state = state
        self._now = now
        self._changed = changed
        self.is_loaded = False
        self.all: list[MaintenanceWindow] = []

    async def load(self) -> None:
        is_open = or_(table.c.end.is_(None), table.c.end > self._now() - KEPT_SECONDS)
        self.adopt(await self.select(MaintenanceWindow, table, is_open))

    def adopt(self, windows: list[MaintenanceWindow]) -> None:
        """Use the windows of a copy until they can be read."""
        self._take(windows)
        self.is_loaded = True

    def open_at(self, now: float) -> list[MaintenanceWindow]:
        """Windows that count now or later."""
        return [one for one in self.all if one.end is None or one.end > now]

    def show_all(self) -> MaintenanceList:
        now = self._now()
        return MaintenanceList([self.show(one) for one in self.open_at(now)], now)

    def show(self, window: MaintenanceWindow) -> ShownMaintenance:
        is_there = bool(self._hosts_of(window))
        return ShownMaintenance(**asdict(window), state=window.state_at(self._now()), is_there=is_there)

    def find_gpus(self, window: MaintenanceWindow) -> set[str]:
        """The UUIDs of its GPUs that are in the fleet."""
        return {
            gpu.uuid
            for host in self._hosts_of(window)
            for gpu in host.gpus.values()
            if window.gpu is None or window.gpu in {gpu.uuid, gpu.parent}
        }

    async def plan(self, wanted: MaintenanceRequest, by: str) -> tuple[MaintenanceWindow, MaintenanceWindow | None]:
        """The window, and its state before if it changes one that runs then. Raises RequestRefused."""
        now = self._now()
        host = self.find_host(wanted.host)
        gpu, label = (None, None) if wanted.gpu is None else _find_gpu(host, wanted.gpu)
        start, end = _read_span(wanted, now)
        reason = clean(" ".join(wanted.reason.split()))
        before = next(
            (one for one in self.all if (one.host_id, one.gpu) == (host.id, gpu) and one.state_at(start) == "running"),
            None,
        )
        if before is not None:
            after = replace(before, end=end, reason=reason, created_by=by)
            if after != before:
                await self._change(before.id, end=end, reason=reason, created_by=by)
                self._take([after if one.id == before.id else one for one in self.all])
            return after, before
        if len(self.open_at(now)) >= MAX_WINDOWS:
            raise RequestRefused(409, "full", f"there are {MAX_WINDOWS} windows already.", "End some of them.")
        row: dict[str, Any] = {"host": host.name, "host_id": host.id, "gpu": gpu, "label": label, "reason": reason}
        row |= {"start": start, "end": end, "created_at": now, "created_by": by}
        added = insert(table).values(row | {"fleet": self._fleet}).returning(table.c.id)
        made = MaintenanceWindow(id=(await self._database.execute(added)).scalar_one(), **row)
        self._take([*self.all, made])
        return made, None

    async def end(self, number: int) -> MaintenanceWindow:
        """End a running window now, or delete a planned one. Returns it as it was. Raises RequestRefused."""
        now = self._now()
        before = next((one for one in self.open_at(now) if one.id == number), None)
        if before is None:
            raise RequestRefused(
                404, "unknown_maintenance", f"there is no maintenance {number}.", "`gpudeck drain` lists them."
            )
        others = [one for one in self.all if one.id != number]
        if before.start >= now:
            await self._database.execute(delete(table).where(table.c.id == number))
            self._take(others)
        else:
            await self._change(number, end=now)
            self._take([*others, replace(before, end=now)])
        return before

    async def _change(self, number: int, **values: Any) -> None:
        await self._database.execute(update(table).where(table.c.id == number).values(values))

    def _take(self, windows: list[MaintenanceWindow]) -> None:
        self.all = sorted(windows, key=lambda one: (one.start, one.id))
        self._changed()

    def find_host(self, name: str) -> HostState:
        """By its id or its name, in any case. Raises RequestRefused."""
        hosts = self._state.hosts
        found = [hosts[name]] if name in hosts else self._state.called(name)
        if not found:
            found = [host for host in hosts.values() if host.name.lower() == name.lower()]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(clean(host.id) for host in found)[:4])
            raise RequestRefused(409, "ambiguous", f"{len(found)} hosts are called {name}.", f"Name an id: {ids}.")
        near = difflib.get_close_matches(name[:256], [host.name for host in hosts.values()], 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`gpudeck show` lists the hosts."
        raise RequestRefused(404, "unknown_host", f"there is no host {clean(name)[:80]!r}.", hint)

    def _hosts_of(self, window: MaintenanceWindow) -> list[HostState]:
        if window.gpu is not None:
            here = self._state.hosts.values()
            return [host for host in here if any(window.gpu in {one.uuid, one.parent} for one in host.gpus.values())]
        own = self._state.hosts.get(window.host_id)
        return self._state.called(window.host) if own is None else [own]


def event_of(window: MaintenanceWindow, kind: str, title: str, now: float) -> Event:
    return make_event(
        now,
        kind,
        title,
        host=window.host,
        host_id=window.host_id,
        gpu=window.gpu,
        label=window.label,
        detail=f"{window.reason} (by {window.created_by})",
    )


def _find_gpu(host: HostState, wanted: str) -> tuple[str, str]:
    """UUID and number. A board that is split into MIG instances is drained with all present and later instances."""
    gpus = list(host.gpus.values())
    for gpu in gpus:
        if wanted in {gpu.label, gpu.uuid}:
            return gpu.uuid, gpu.label
    boards = {gpu.parent for gpu in gpus if gpu.parent is not None and wanted in {str(gpu.index), gpu.parent}}
    if len(boards) == 1:
        index = next(gpu.index for gpu in gpus if gpu.parent in boards)
        return boards.pop(), str(index)
    has = ", ".join(gpu.label for gpu in gpus[:16])
    hint = f"It has {has}." if has else "None of its GPUs is known."
    raise RequestRefused(404, "unknown_gpu", f"{host.name} has no GPU {clean(wanted)[:80]!r}.", hint)


def _read_span(wanted: MaintenanceRequest, now: float) -> tuple[float, float | None]:
    """In whole seconds, as reservations."""
    start = now if wanted.start is None else wanted.start
    if start < now - LATE_SECONDS:
        ago = show_length(now - start)
        raise RequestRefused(400, "past", f"start: that is {ago} ago.", "Leave it out to begin now.")
    start = float(math.floor(max(start, now)))
    end = wanted.end if wanted.length is None else start + wanted.length
    if end is not None and end <= now:
        raise RequestRefused(400, "past", f"end: that is {show_length(now - end)} ago.", "End later than now.")
    if end is not None and end <= start:
        raise RequestRefused(400, "bad_request", "end: it would end before it begins.", "Give a later end.")
    if max(start, end or 0.0) > now + FURTHEST:
        hint = "Leave the end out to drain until it is ended."
        raise RequestRefused(400, "bad_request", "that is more than ten years away.", hint)
    return start, None if end is None else float(math.ceil(end))


class HostNotes(FleetStore):
    """`load` once. `show` is called after each change. Methods that use the database raise Temporary."""

    def __init__(
        self,
        database: Database,
        fleet: str,
        state: FleetState,
        now: Clock = clock.wall,
        *,
        show: Callable[[], None],
    ) -> None:
        super().__init__(database, fleet)
        self._state = state
        self._now = now
        self._show = show
        self.all: dict[tuple[str, str], HostNote] = {}
        """By the id and the name of their hosts."""

    async def load(self) -> None:
        rows = await self._database.execute(select(host_notes).where(host_notes.c.fleet == self._fleet))
        self.all = {
            (row["host_id"], row["host"]): HostNote(row["note"], row["written_by"], row["written_at"])
            for row in rows.mappings()
        }
        self._show()

    def by_host(self) -> dict[str, HostNote]:
        """By the id of the host. If no host has the id of a note, the hosts with its name get it: a host that was
        installed again has another id."""
        found: dict[str, HostNote] = {}
        for (host_id, name), note in self.all.items():
            if host_id in self._state.hosts:
                found[host_id] = note
            else:
                found |= {host.id: note for host in self._state.called(name) if host.id not in found}
        return found

    async def write(self, host_id: str, name: str, text: str, by: str) -> HostNote | None:
        """None if the text is empty, which removes the note."""
        text = clean(" ".join(text.split()))[:MAX_NOTE]
        note = HostNote(text, by, round(self._now(), 3)) if text else None
        old = {key for key in self.all if host_id == key[0] or (name == key[1] and key[0] not in self._state.hosts)}
        async with self._database.begin() as connection:
            ids = [key[0] for key in old]
            await connection.execute(
                delete(host_notes).where(host_notes.c.fleet == self._fleet, host_notes.c.host_id.in_(ids))
            )
            if note is not None:
                row = {"note": text, "written_at": note.at, "written_by": by}
                await connection.execute(
                    host_notes.insert().values(row | {"fleet": self._fleet, "host_id": host_id, "host": name})
                )
        kept = {key: value for key, value in self.all.items() if key not in old}
        self.all = kept if note is None else kept | {(host_id, name): note}
        self._show()
        return note
