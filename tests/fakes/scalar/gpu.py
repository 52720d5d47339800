"""One GPU of the live fleet: its readings become what everybody outside sees.

Each update touches only what differs and returns it: at thousands of GPUs a second, copying what stays the same is what
costs. So a view is changed in place; whoever needs a moment to stand still encodes it (see hub.stream).
"""

from collections.abc import Callable, Mapping
from copy import copy

from msgspec import Struct
from msgspec.structs import asdict

from fakes.scalar.metrics import View, bounds_of, note, note_metrics
from gpudeck.model.allocation import NOT_SCHEDULED, SchedulerMark
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.gpu_state import (
    UNUSED,
    Availability,
    FleetSettings,
    Health,
    Verdict,
    find_xid,
    is_occupied,
    judge,
    judge_faults,
    judge_health,
    judge_wear,
)
from gpudeck.model.report import GpuEvent, GpuReading, Process
from gpudeck.model.reservation import Maintenance, ReservationMark
from gpudeck.model.text import Names
from gpudeck.model.view import Gpu

_BOUNDS = bounds_of(GPU_METRICS)
_BLANK: View = dict.fromkeys(sorted(Gpu.__struct_fields__, key=GPU_METRICS.__contains__))
"""What a GPU is comes before what is measured on it."""
_EVENT_SECONDS = 24 * 3600.0
_UNMARKED = ReservationMark(None)
_UNREAD = "whether it is reserved is not known"
FindMaintenance = Callable[[str, str | None], Maintenance | None]
"""Of a GPU by its UUID and that of its board."""


class Crowd(Struct, frozen=True):
    """Who is on a GPU, as far as its state depends on them: display servers do not count.

    `workers` is None when the list could not be read, `display_bytes` when a display server's share could not,
    `oldest_start` (by the host's clock) when no start is known.
    """

    workers: int | None = None
    display_bytes: int | None = 0
    oldest_start: float | None = None


class GpuState:
    """A GPU between reports: its newest reading and view, since when it is in its state, when it last worked.

    `missing` is why it cannot be read, None where it can. `faults` are the driver's, with whose process each was.
    `has_changed` says that one of both, or its health, changed since whoever tells of it last looked.
    """

    def __init__(
        self,
        reading: GpuReading,
        collected_at: float,
        now: float,
        settings: FleetSettings,
        names: Names,
        *,
        marks: Mapping[str, ReservationMark] | None = None,
        find_maintenance: FindMaintenance = lambda *_: None,
        scheduling: Mapping[str, SchedulerMark] | None = None,
    ) -> None:
        """Its first report: `view` is complete at once. `marks` is what reservations say, by UUID, kept up to date by
        the fleet."""
        self.view: View = _BLANK | {"users": [], "events": [], "reasons": {}}
        self.rejected = 0
        self.missing: str | None = None
        self.has_changed = True
        self._settings = settings
        self._names = names
        self._marks = {} if marks is None else marks
        self._mark = _UNMARKED
        self._find_maintenance = find_maintenance
        self._all_scheduling = {} if scheduling is None else scheduling
        self._scheduling = NOT_SCHEDULED
        self._parent = reading.parent
        self._is_new = True
        # Of the last reading only this is kept: whatever else changed shows in the view, and what is not kept need not
        # be fetched back from memory, which is what most of an update's time goes into.
        self.processes: list[Process] | None = None
        self.faults: dict[GpuEvent, str | None] = {}
        self._availability: Availability | None = None
        self._since = now
        # The agent has often watched for longer than this hub has been running. Later the hub's own eyes count: what
        # is work is decided here.
        self._last_work_at = now - (reading.idle_seconds or 0.0)
        self._occupied_since: float | None = None
        self._crowd = Crowd()
        self._verdict: tuple[Availability, str | None, float, Health] | None = None
        self.update(reading, collected_at, now)

    def update(self, reading: GpuReading, collected_at: float, now: float, *, after_gap: bool = False) -> View:
        """Take a reading of this GPU; returns the fields of its view that changed.

        `collected_at` is the host's clock, on which the starts of its processes were read; `now` is the same moment on
        ours. `after_gap`: readings are missing between the last one and this, and its agent has made them: what it
        says of the work in between counts.
        """
        view = self.view
        if after_gap and reading.idle_seconds is not None:
            self._last_work_at = max(self._last_work_at, now - reading.idle_seconds)
        changes: View = {}
        if reading.events != list(self.faults):
            self._take_events(reading)
            note(view, changes, {"events": [_show_event(event, user) for event, user in self.faults.items()]})
        if self._is_new or reading.processes != self.processes:
            self.processes = reading.processes
            self._crowd = _look_at(reading.processes)
            note(view, changes, _show_processes(reading.processes))
        reasons, self.rejected = note_metrics(
            view, changes, reading.metrics, reading.unknown, _BOUNDS, absent=reading.missing or "not reported"
        )
        if reading.processes is None:
            reasons["processes"] = reading.processes_reason or reading.missing or "not reported"
        if reasons != view["reasons"]:
            changes["reasons"] = reasons
        if _label(reading) != view["label"] or reading.name != view["name"]:
            note(view, changes, _identity(reading, self._names))
        self._apply_marks(reading.uuid, changes, now)
        view.update(changes)
        self._take_verdict(reading, changes, collected_at, now)
        self._is_new = False
        return changes

    def rename(self, names: Names) -> View:
        """Models are called by these names from here on; returns what changed of its view."""
        self._names = names
        changes: View = {}
        note(self.view, changes, {"display_name": names.of_model(self.view["name"])})
        self.view.update(changes)
        return changes

    def update_marks(self, now: float) -> View:
        """What reservations say of it has changed: a GPU that nobody is on becomes reserved, or free again, at once."""
        changes: View = {}
        self._apply_marks(self.view["uuid"], changes, now)
        self.view.update(changes)
        word, reason = self._empty_state()
        was_empty = self._availability in UNUSED or self.view["availability_reason"] == _UNREAD
        if self._verdict is not None and was_empty and word != self._availability:
            since = self._settle(word, None, now)
            self._verdict = (word, reason, since, self._verdict[3])
            note(self.view, changes, {"availability": word, "availability_reason": reason, "since": since})
            self.view.update(changes)
        return changes

    def mute(self, reason: str, now: float) -> View:
        """Its host fell silent: the last values stay to be read, but nothing is claimed any more."""
        self._verdict = None
        changes: View = {}
        facts = {
            "availability": "unknown",
            "availability_reason": reason,
            "last_seen": self.view["last_seen"] or self.view["availability"],
            "since": self._settle("unknown", None, now),
            "health": "unknown",
            "health_reason": reason,
            "health_action": "See the host's status and problems.",
        }
        note(self.view, changes, facts)
        self.view.update(changes)
        return changes

    def fork(
        self,
        marks: Mapping[str, ReservationMark],
        find_maintenance: FindMaintenance,
        scheduling: Mapping[str, SchedulerMark],
    ) -> "GpuState":
        """A second state that goes on from this one by itself. What is in a view is replaced, never changed in place,
        so that both may share it."""
        other = copy(self)
        other.view, other._marks, other._find_maintenance = dict(self.view), marks, find_maintenance
        other._all_scheduling = scheduling
        return other

    def _apply_marks(self, uuid: str, changes: View, now: float) -> None:
        mark = self._marks.get(uuid) or self._marks.get("", _UNMARKED)
        if mark is not self._mark:
            self._mark = mark
            note(self.view, changes, {"reservation": mark.reservation, "reservation_conflict": mark.conflict})
        note(self.view, changes, {"maintenance": self._find_maintenance(uuid, self._parent)})
        self._scheduling = self._all_scheduling.get(uuid, NOT_SCHEDULED)
        note(self.view, changes, {"allocation": self._scheduling.allocation})

    def _empty_state(self) -> Verdict:
        """What a GPU is that nobody is on."""
        scheduling = self._scheduling
        if scheduling.allocation is not None:
            return "allocated", None
        if self.view["maintenance"] is not None:
            return "drained", None
        if scheduling.closed is not None:
            return "drained", scheduling.closed
        if self._mark.reservation is not None:
            return "reserved", None
        if scheduling.unknown is not None:
            return "unknown", scheduling.unknown
        return ("unknown", _UNREAD) if self._mark.is_unknown else ("free", None)

    def _take_events(self, reading: GpuReading) -> None:
        """With their owners. Whoever is blamed is often gone by now, and was there in the reading before."""
        self.has_changed = True
        there = {process.pid: process for process in (*(self.processes or ()), *(reading.processes or ()))}
        self.faults = {
            event: self.faults[event] if event in self.faults else _find_user(event, there) for event in reading.events
        }

    def _take_verdict(self, reading: GpuReading, changes: View, collected_at: float, now: float) -> None:
        oldest = self._crowd.oldest_start
        began = None if oldest is None else now - max(0.0, collected_at - oldest)
        availability, reason = self._judge(reading, began, now)
        since = self._settle(availability, began, now)
        events = [event for event in reading.events if collected_at - event.at <= _EVENT_SECONDS]
        celsius, why = self.view["temperature_celsius"], self.view["reasons"].get("temperature_celsius")
        faults = judge_faults(events)
        health = judge_health(reading.missing, celsius, self._settings.health, faults, why, wear=judge_wear(self.view))
        verdict = (availability, reason, since, health)
        if verdict == self._verdict:
            return
        self._verdict = verdict
        self.missing = reading.missing
        self.has_changed |= (health.level, health.reason) != (self.view["health"], self.view["health_reason"])
        facts = {
            "availability": availability,
            "availability_reason": reason,
            "last_seen": None,
            "since": since,
            "health": health.level,
            "health_reason": health.reason,
            "health_action": health.action,
        }
        note(self.view, changes, facts)
        self.view.update(changes)

    def _judge(self, reading: GpuReading, began: float | None, now: float) -> Verdict:
        """`began` is when the oldest process on it was started, by our clock."""
        if reading.missing is not None:
            return "unknown", reading.missing
        rules, view, crowd = self._settings.availability, self.view, self._crowd
        utilization = view["utilization_percent"]
        memory = view["memory_used_bytes"]
        if memory is not None and crowd.display_bytes != 0:
            # Where a display server's share is not known, what is left for others is not known either.
            memory = None if crowd.display_bytes is None else memory - crowd.display_bytes
        self._watch(utilization, is_occupied(crowd.workers, memory, rules), now)
        # Nobody holds a GPU for longer than they have been on it, however long it was idle before.
        occupied_since = began if began is not None else self._occupied_since
        idle_since = self._last_work_at if occupied_since is None else max(self._last_work_at, occupied_since)
        verdict = judge(
            processes=crowd.workers,
            memory_used_bytes=memory,
            utilization_percent=utilization,
            idle_seconds=now - idle_since,
            reserved=self._mark.reservation is not None,
            drained=view["maintenance"] is not None,
            allocated=view["allocation"] is not None,
            settings=rules,
        )
        return self._empty_state() if verdict[0] in UNUSED else verdict

    def _watch(self, utilization: float | None, occupied: bool | None, now: float) -> None:
        """Remember when work was last seen and when somebody came. A clock that was set back starts both anew."""
        if utilization is None or utilization >= self._settings.availability.work_percent or self._last_work_at > now:
            self._last_work_at = now
        if not occupied:
            self._occupied_since = None
        elif self._occupied_since is None:
            # Somebody who was there when the hub first looked may have come at any time before.
            self._occupied_since = 0.0 if self._is_new else now

    def _settle(self, availability: Availability, began: float | None, now: float) -> float:
        """Since when it is in this state. On first visibility, and after a mute, the reading itself may know
        better."""
        if availability != self._availability:
            is_first_sight = self._availability in {None, "unknown"} and availability != "unknown"
            beginning = self._last_work_at if availability != "busy" else began
            self._since = round(now if beginning is None or not is_first_sight else min(now, beginning), 3)
            self._availability = availability
        return self._since


def _label(reading: GpuReading) -> str:
    return str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"


def _identity(reading: GpuReading, names: Names) -> View:
    return {
        "uuid": reading.uuid,
        "index": reading.index,
        "label": _label(reading),
        "name": reading.name,
        "display_name": names.of_model(reading.name),
        "vendor": reading.vendor,
        "parent": reading.parent,
        "pci_address": reading.pci_address,
    }


def _find_user(event: GpuEvent, there: dict[int, Process]) -> str | None:
    """A process that was started later has only been given the same pid."""
    process = None if event.process is None else there.get(event.process)
    is_later = process is not None and process.started_at is not None and process.started_at > event.at + 1
    return None if process is None or is_later else process.user


def _show_event(event: GpuEvent, user: str | None) -> View:
    xid = find_xid(event.code)
    return {
        "at": event.at,
        "code": event.code,
        "kind": xid.kind,
        "text": xid.text,
        "message": event.text,
        "process": event.process,
        "user": user,
    }


def _show_processes(processes: list[Process] | None) -> View:
    shown = None if processes is None else [asdict(process) for process in processes]
    return {"users": _users(processes), "processes": shown}


def _look_at(processes: list[Process] | None) -> Crowd:
    workers = [process for process in processes or () if not process.display]
    displays = [process.memory_used_bytes for process in processes or () if process.display]
    return Crowd(
        workers=None if processes is None else len(workers),
        display_bytes=None if None in displays else sum(share or 0 for share in displays),
        oldest_start=min((process.started_at for process in workers if process.started_at is not None), default=None),
    )


def _users(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    memory: dict[str, int] = {}
    for process in processes or ():
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))
