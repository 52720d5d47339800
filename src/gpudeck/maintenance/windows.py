"""Maintenance windows in the database, and the rules for planning and ending one.

All windows that count, or ended within the last day, are in memory: there are few of them, and everything that looks at
the fleet asks for them.
"""

import difflib
import math
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import delete, insert, or_, select, update

from gpudeck.database.engine import FleetStore
from gpudeck.database.schema import maintenance as table
from gpudeck.fleet.host import HostState
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.errors import GpudeckError
from gpudeck.model.event import Event, make_event
from gpudeck.model.reservation import MaintenanceList, MaintenanceWindow, ShownMaintenance
from gpudeck.model.text import clean, show_length

DAY: Final = 86_400.0
KEPT_SECONDS: Final = DAY
"""How long a window stays in memory after its end: reports of its time may still arrive."""
FURTHEST: Final = 3660 * DAY
LATE_SECONDS: Final = 120.0
"""A start that is past by no more than this means now."""
MAX_WINDOWS: Final = 1000
_NAMES = [column.name for column in table.c if column.name != "fleet"]


class MaintenanceRefused(GpudeckError):
    """What makes no sense. `status` and `code` are for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class MaintenanceRequest(Struct, frozen=True, kw_only=True):
    """`host` is a name or an id; `gpu` is a GPU's number there or its UUID, None: the whole host. None as `start` means
    now; without `end` and `length` it lasts until it is ended."""

    host: str
    gpu: str | None = None
    start: float | None = None
    end: float | None = None
    length: float | None = None
    reason: str


class MaintenanceStore(FleetStore):
    """One fleet's windows. All of it raises Temporary where the database does not answer."""

    async def list(self, since: float) -> list[MaintenanceWindow]:
        """All that had not ended by then."""
        columns = [table.c[name] for name in _NAMES]
        is_open = or_(table.c.end.is_(None), table.c.end > since)
        wanted = select(*columns).where(table.c.fleet == self._fleet, is_open).order_by(table.c.start, table.c.id)
        return [MaintenanceWindow(**dict(row)) for row in (await self._database.execute(wanted)).mappings()]

    async def add(self, window: MaintenanceWindow) -> MaintenanceWindow:
        """Its id is given here."""
        row = {name: getattr(window, name) for name in _NAMES if name != "id"} | {"fleet": self._fleet}
        made = await self._database.execute(insert(table).values(row).returning(table.c.id))
        return replace(window, id=made.scalar_one())

    async def change(self, number: int, values: dict[str, Any]) -> None:
        await self._database.execute(update(table).where(table.c.id == number).values(values))

    async def remove(self, number: int) -> None:
        await self._database.execute(delete(table).where(table.c.id == number))


class MaintenanceWindows:
    """`load` once. `changed` is called after each change. One event loop owns it."""

    def __init__(
        self,
        store: MaintenanceStore,
        fleet: FleetState,
        now: clock.Clock = clock.wall,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._now = now
        self._changed = changed
        self.is_loaded = False
        self.all: list[MaintenanceWindow] = []

    @property
    def is_shared(self) -> bool:
        """Whether other hubs may write to the same tables."""
        return self._store.is_shared

    async def load(self) -> None:
        """Raises Temporary."""
        self.adopt(await self._store.list(self._now() - KEPT_SECONDS))

    def adopt(self, windows: list[MaintenanceWindow]) -> None:
        """What was known last, until it can be read."""
        self._take(windows)
        self.is_loaded = True

    def open_at(self, now: float) -> list[MaintenanceWindow]:
        """Those that count now or later."""
        return [one for one in self.all if one.end is None or one.end > now]

    def show_all(self) -> MaintenanceList:
        now = self._now()
        return MaintenanceList([self.show(one) for one in self.open_at(now)], now)

    def show(self, window: MaintenanceWindow) -> ShownMaintenance:
        own = {name: getattr(window, name) for name in MaintenanceWindow.__struct_fields__}
        return ShownMaintenance(**own, state=window.state_at(self._now()), is_there=self._is_there(window))

    def find_gpus(self, window: MaintenanceWindow) -> set[str]:
        """The UUIDs of the GPUs that it is of, as far as they are in the fleet."""
        return {
            gpu.uuid
            for host in self._hosts_of(window)
            for gpu in host.gpus.values()
            if window.gpu is None or window.gpu in {gpu.uuid, gpu.parent}
        }

    async def plan(self, wanted: MaintenanceRequest, by: str) -> tuple[MaintenanceWindow, MaintenanceWindow | None]:
        """The window, and what it was before where one that runs then was changed. Raises MaintenanceRefused."""
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
                await self._store.change(before.id, {"end": end, "reason": reason, "created_by": by})
                self._take([after if one.id == before.id else one for one in self.all])
            return after, before
        if len(self.open_at(now)) >= MAX_WINDOWS:
            raise MaintenanceRefused(409, "full", f"there are {MAX_WINDOWS} windows already.", "End some of them.")
        made = await self._store.add(
            MaintenanceWindow(
                id=0,
                host=host.name,
                host_id=host.id,
                gpu=gpu,
                label=label,
                start=start,
                end=end,
                reason=reason,
                created_at=now,
                created_by=by,
            )
        )
        self._take([*self.all, made])
        return made, None

    async def end(self, number: int) -> MaintenanceWindow:
        """One that runs ends now, one that is planned is as if it had never been. Returns it as it was. Raises
        MaintenanceRefused."""
        now = self._now()
        before = next((one for one in self.open_at(now) if one.id == number), None)
        if before is None:
            raise MaintenanceRefused(404, "unknown_maintenance", f"there is no maintenance {number}.", _LIST)
        others = [one for one in self.all if one.id != number]
        if before.start >= now:
            await self._store.remove(number)
            self._take(others)
        else:
            await self._store.change(number, {"end": now})
            self._take([*others, replace(before, end=now)])
        return before

    def _take(self, windows: list[MaintenanceWindow]) -> None:
        self.all = sorted(windows, key=lambda one: (one.start, one.id))
        self._changed()

    def find_host(self, name: str) -> HostState:
        """By its id or its name, in any case. Raises MaintenanceRefused."""
        hosts = self._fleet.hosts
        found = [hosts[name]] if name in hosts else self._fleet.called(name)
        if not found:
            found = [host for host in hosts.values() if host.name.lower() == name.lower()]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(sorted(clean(host.id) for host in found)[:4])
            raise MaintenanceRefused(409, "ambiguous", f"{len(found)} hosts are called {name}.", f"Name an id: {ids}.")
        near = difflib.get_close_matches(name[:256], [host.name for host in hosts.values()], 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`gpudeck show` lists the hosts."
        raise MaintenanceRefused(404, "unknown_host", f"there is no host {clean(name)[:80]!r}.", hint)

    def _hosts_of(self, window: MaintenanceWindow) -> list[HostState]:
        if window.gpu is not None:
            here = self._fleet.hosts.values()
            return [host for host in here if any(window.gpu in {one.uuid, one.parent} for one in host.gpus.values())]
        own = self._fleet.hosts.get(window.host_id)
        return self._fleet.called(window.host) if own is None else [own]

    def _is_there(self, window: MaintenanceWindow) -> bool:
        return bool(self._hosts_of(window))


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


_LIST: Final = "`gpudeck drain` lists them."


def _find_gpu(host: HostState, wanted: str) -> tuple[str, str]:
    """UUID and number. A board that is cut into MIG instances is drained with all that it has or gets."""
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
    raise MaintenanceRefused(404, "unknown_gpu", f"{host.name} has no GPU {clean(wanted)[:80]!r}.", hint)


def _read_span(wanted: MaintenanceRequest, now: float) -> tuple[float, float | None]:
    start, end = wanted.start, wanted.end
    if wanted.length is not None:
        end = math.floor(now if start is None else max(start, now)) + wanted.length
    if start is not None and start < now - LATE_SECONDS:
        ago = show_length(now - start)
        raise MaintenanceRefused(400, "past", f"start: that is {ago} ago.", "Leave it out to begin now.")
    begins = now if start is None else max(start, now)
    if end is not None and end <= now:
        raise MaintenanceRefused(400, "past", f"end: that is {show_length(now - end)} ago.", "End later than now.")
    if end is not None and end <= begins:
        raise MaintenanceRefused(400, "bad_request", "end: it would end before it begins.", "Give a later end.")
    if max(begins, end or 0.0) > now + FURTHEST:
        hint = "Leave the end out to drain until it is ended."
        raise MaintenanceRefused(400, "bad_request", "that is more than ten years away.", hint)
    # Whole seconds, as reservations have them.
    return float(math.floor(begins)), None if end is None else float(math.ceil(end))
