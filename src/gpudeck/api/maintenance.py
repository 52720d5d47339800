"""/api/v1/maintenance (GET, POST), /api/v1/maintenance/{id} (DELETE) and /api/v1/hosts/{host}/note (PUT). Everyone
who may read sees windows and notes, admins plan, end and write them."""

from typing import Annotated

from litestar import delete, get, post, put
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct, field

from gpudeck.api.access import TheCaller, access
from gpudeck.api.login import TheAuth
from gpudeck.api.parameters import HostPath, Length, Moment, read_length, read_moment
from gpudeck.api.reservations import show_reservation
from gpudeck.api.services import TheServices
from gpudeck.maintenance.service import MAX_NOTE, HostNotes, MaintenanceRequest, MaintenanceWindows, event_of
from gpudeck.model import clock
from gpudeck.model.reservation import (
    MAX_REASON,
    MaintenanceChange,
    MaintenanceList,
    MaintenanceWindow,
    ShownMaintenance,
    ShownReservation,
)
from gpudeck.model.times import show_utc
from gpudeck.model.view import HostNote
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.store import ReservationQuery

_Number = Annotated[int, PathParameter(ge=1, le=2**63 - 1, description="Its id")]

TheWindows = NamedDependency[MaintenanceWindows]


class NewMaintenance(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`host` is a name or an id, `gpu` the number or UUID of one of its GPUs; without it the whole host is drained.
    From `start`, or now, until `end` or for a length; without both until it is ended."""

    host: Annotated[str, Meta(min_length=1, max_length=384, pattern=r"\S")]
    gpu: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")] | None = None
    start: Moment | None = None
    end: Moment | None = None
    length: Length | None = field(default=None, name="for")
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON, pattern=r"\S")]


@get("/api/v1/maintenance", opt=access("read"))
async def list_maintenance(maintenance: TheWindows) -> MaintenanceList:
    """Current and planned maintenance of hosts and GPUs, with its time, author and reason."""
    return maintenance.show_all()


@post("/api/v1/maintenance", opt=access("admin"))
async def plan_maintenance(
    caller: TheCaller,
    data: JSONBody[NewMaintenance],
    auth: TheAuth,
    maintenance: TheWindows,
    services: TheServices,
) -> MaintenanceChange:
    """Drain a host or a GPU. It is not free then, cannot be reserved, and does not alert; processes on it go on. A
    window of the same host or GPU that runs at its start gets the new end and reason."""
    made, before = await maintenance.plan(_read(data), caller.name)
    if made != before:
        title = f"{caller.name} {'planned' if before is None else 'changed'} maintenance of {made.place}"
        if before is not None or made.state_at(clock.wall()) == "planned":
            # One that begins now has its own event.
            services.events.add(event_of(made, "maintenance_changed", f"{title}, {_describe(made)}", clock.wall()))
        details = _describe(made) if before is None else f"before: {_describe(before)}; after: {_describe(made)}"
        await auth.audit.record(caller, "drain", made.place, details=f"{details}: {made.reason}")
    return MaintenanceChange(maintenance.show(made), await _find_conflicts(made, maintenance, services.reservations))


@delete("/api/v1/maintenance/{number:int}", status_code=200, opt=access("admin"))
async def end_maintenance(
    caller: TheCaller, number: _Number, auth: TheAuth, maintenance: TheWindows, services: TheServices
) -> ShownMaintenance:
    """End maintenance now, or cancel it where it has not begun. Alerts are judged as usual again."""
    now = clock.wall()
    ended = await maintenance.end(number)
    if ended.state_at(now) == "planned":
        title = f"{caller.name} cancelled maintenance of {ended.place}, {_describe(ended)}"
        services.events.add(event_of(ended, "maintenance_changed", title, now))
    await auth.audit.record(caller, "undrain", ended.place, details=f"{_describe(ended)}: {ended.reason}")
    return maintenance.show(ended)


TheNotes = NamedDependency[HostNotes]


class NewNote(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty text removes the note."""

    text: Annotated[str, Meta(max_length=MAX_NOTE)]


class NoteAnswer(Struct, frozen=True):
    """The note as it is now; null: there is none."""

    note: HostNote | None


@put("/api/v1/hosts/{host:str}/note", status_code=200, opt=access("admin"))
async def write_note(
    *,
    caller: TheCaller,
    host: HostPath,
    data: JSONBody[NewNote],
    auth: TheAuth,
    notes: TheNotes,
    maintenance: TheWindows,
) -> NoteAnswer:
    """Write a note on a host, in place of the one that it has. Everybody who may read sees it."""
    found = maintenance.find_host(host)
    note = await notes.write(found.id, found.name, data.text, caller.name)
    await auth.audit.record(caller, "note host", found.name, details="removed" if note is None else note.text)
    return NoteAnswer(note)


def _read(data: NewMaintenance) -> MaintenanceRequest:
    now = clock.wall()
    if data.end is not None and data.length is not None:
        raise ValidationException('give "end" or "for", and not both')
    start, end = read_moment("start", data.start, now), read_moment("end", data.end, now)
    gpu = None if data.gpu is None else data.gpu.strip()
    length = read_length(data.length)
    return MaintenanceRequest(host=data.host.strip(), gpu=gpu, start=start, end=end, length=length, reason=data.reason)


def _describe(window: MaintenanceWindow) -> str:
    until = "open end" if window.end is None else f"until {show_utc(window.end)}"
    return f"from {show_utc(window.start)}, {until}"


async def _find_conflicts(
    window: MaintenanceWindow, maintenance: MaintenanceWindows, reservations: ReservationCalendar
) -> list[ShownReservation]:
    """The reservations of its GPUs within it. Claims last for seconds."""
    gpus, now = maintenance.find_gpus(window), clock.wall()
    found = await reservations.search(ReservationQuery(start=max(window.start, now), end=window.end))
    return [
        show_reservation(one, now)
        for one in found
        if one.kind == "reservation" and any(gpu.uuid in gpus for gpu in one.gpus)
    ]
