"""One GPU of the live fleet: its text fields, and its row in the columns with its numbers.

The numbers of a report are evaluated in batches (see fleet.table). The text is compared with the known text, which is
nearly always the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from math import isnan
from sys import intern
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
import numpy as np
from msgspec import defstruct

from gpudeck.fleet.columns import (
    AVAILABILITY_CODES,
    AVAILABILITY_WORDS,
    CLOSED,
    HEALTH_WORDS,
    LOST,
    MISSING,
    NAN,
    NO_REPORTS,
    NO_RESERVATIONS,
    NO_ROWS,
    NO_SCHEDULER,
    NOBODY,
    OK,
    SILENT,
    WHY_AVAILABLE,
    Rows,
    as_json,
    rows_of,
)
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.allocation import NOT_SCHEDULED, SchedulerMark, join_marks
from gpudeck.model.catalog import GPU_METRICS, Value
from gpudeck.model.gpu_state import (
    FAULT_SECONDS,
    UNUSED,
    Availability,
    Health,
    find_xid,
    judge_faults,
    judge_health,
    judge_wear,
)
from gpudeck.model.report import GpuEvent, GpuReading, Process, find_user, occupancy_of, users_of
from gpudeck.model.reservation import Maintenance, ReservationMark
from gpudeck.model.text import Names
from gpudeck.model.view import Gpu, ShownProcess, show_event

if TYPE_CHECKING:
    from gpudeck.fleet.table import FleetTable

_UNMARKED: Final = ReservationMark(None)
_SILENT_ACTION: Final = "See the host's status and problems."
_HEALTH_CODES: Final = {word: code for code, word in enumerate(HEALTH_WORDS)}
_STATE_FIELDS: Final = frozenset(
    (
        "availability",
        "availability_reason",
        "last_seen",
        "since",
        "health",
        "health_reason",
        "health_action",
    )
)
_WEAR: Final = ("remapped_rows_pending", "ecc_uncorrected_count", "nvlink_inactive_count")
_WELL: Final = Health("ok")
NO_REASONS: Final[dict[str, str]] = {}
_NO_FAULTS: Final[dict[GpuEvent, str | None]] = {}
_NO_USERS: Final[list[str]] = []
NOTHING_CHANGED: Final[frozenset[str]] = frozenset()
_IDENTITY: Final = ("index", "label", "name", "display_name", "vendor", "parent", "pci_address")
ALL_CHANGED: Final = frozenset(
    (
        *_IDENTITY,
        "users",
        "processes",
        "events",
        "reservation",
        "reservation_conflict",
        "maintenance",
        "allocation",
        "reasons",
    )
)
"""All text fields of a GPU."""
_Text = tuple[bytes, ...]
"""JSON of a GPU without its numbers. Its metrics follow the first piece; the two numbers of each process follow one of
the next pieces each. Many GPUs share the last piece."""
NO_TEXTS: Final[dict[Visibility, _Text]] = {}
_METRICS_BEGIN: Final = f',"{next(iter(GPU_METRICS))}":'.encode()
_METRICS_END: Final = b',"availability":'
_FIRST_PROCESS, _NEXT_PROCESS = b',"processes":[', b'},{"pid":'
_PROCESS_CUTS: Final = (
    (b',"memory_used_bytes":', b',"started_at":'),
    (b',"utilization_percent":', b',"container":'),
)
"""The JSON around each number of a process. Quotation marks in strings are escaped, so these cannot occur inside a
string."""
_LAST_PIECE: Final = b',"events":'
_MIN_PIECES: Final = 3
_encoder = msgspec.json.Encoder()
_AnyProcess = TypeVar("_AnyProcess", Process, ShownProcess)
_make_gpu = cast("Callable[..., Gpu]", defstruct("Gpu", [(name, Any) for name in Gpu.__struct_fields__], gc=False))
"""The same as `Gpu`, built from positional fields in a tenth of the time."""


class GpuState:
    """A GPU between reports. `missing` is why it cannot be read. `faults` are driver faults of the last day, each with
    the user of its process. `unknown` has the reasons for unknown metrics, `rejected` those for values that were
    rejected. `changed` has the fields that viewers have not been sent."""

    __slots__ = (
        "_fault",
        "_instance",
        "_mark",
        "_processes",
        "_processes_reason",
        "_table",
        "_texts",
        "changed",
        "display_name",
        "faults",
        "index",
        "label",
        "maintenance",
        "missing",
        "name",
        "parent",
        "pci_address",
        "process_rows",
        "rejected",
        "row",
        "scheduling",
        "silent_reason",
        "unknown",
        "users",
        "uuid",
        "vendor",
    )

    def __init__(self, table: "FleetTable", row: int, reading: GpuReading) -> None:
        self._table = table
        self.row = row
        self.uuid = reading.uuid
        self._identify(reading)
        self.missing: str | None = None
        self.faults: dict[GpuEvent, str | None] = _NO_FAULTS
        self.unknown: dict[str, str] = NO_REASONS
        self.rejected: dict[str, str] = NO_REASONS
        self.users: list[str] = _NO_USERS
        self._processes: list[Process] | None = None
        self.process_rows = NO_ROWS
        self.silent_reason = ""
        self.changed: frozenset[str] = NOTHING_CHANGED
        self._fault = _WELL
        self._processes_reason: str | None = None
        self._mark = _UNMARKED
        self.maintenance: Maintenance | None = None
        self.scheduling: SchedulerMark = NOT_SCHEDULED
        self._texts: dict[Visibility, _Text] = NO_TEXTS

    def begin(self, reading: GpuReading, now: float) -> None:
        """Start the state of a new GPU. The agent may know since when it is idle; later the hub decides what counts as
        work."""
        self.changed = ALL_CHANGED
        self._table.gpus.last_work_at[self.row] = now - (reading.idle_seconds or 0.0)

    def restore(self, reading: GpuReading, reason: str) -> None:
        """Restore the GPU as known before the hub's restart: its identity, and little else."""
        self.unknown = _share(tuple(reading.unknown.items()))
        self._processes_reason, self.silent_reason = reading.processes_reason, reason
        for name, value in reading.metrics.items():
            self._table.gpus.values[self.row, self._table.gpus.place[name]] = value
        self._apply_marks()

    def describe(self, reading: GpuReading, collected_at: float, now: float, *, after_gap: bool = False) -> bool:
        """Apply the text of a report; returns whether events may follow from it. `now` is `collected_at` on the hub's
        clock. `after_gap`: reports in between have not arrived, so the agent's own idle time counts."""
        may_matter = False
        gpus = self._table.gpus
        if after_gap and reading.idle_seconds is not None:
            self.note_work(now - reading.idle_seconds)
        if reading.events or self.faults:
            may_matter = self.take_events(reading, collected_at)
        if reading.processes != self.processes or reading.processes_reason != self._processes_reason:
            self._take_processes(reading)
        if reading.missing != self.missing:
            self.missing = reading.missing
            gpus.is_missing[self.row] = reading.missing is not None
            gpus.is_state_changed[self.row] = may_matter = True
            self.note_change("reasons")
        if reading.unknown != self.unknown:
            self.unknown = _share(tuple(reading.unknown.items()))
            gpus.is_state_changed[self.row] = may_matter = True
            self.note_change("reasons")
        if reading.name != self.name or reading.index != self.index or reading.instance != self._instance:
            self._identify(reading)
            gpus.model[self.row] = gpus.model_code(self.name)
            self._table.hosts.is_regrouped[gpus.host[self.row]] = True
            self._table.note_devices(int(gpus.host[self.row]))
            self.note_change(*_IDENTITY)
        self._apply_marks()
        return may_matter

    def note_work(self, at: float) -> None:
        """Record that the agent saw work at that time, in a report that has not arrived."""
        gpus = self._table.gpus
        gpus.last_work_at[self.row] = max(gpus.last_work_at[self.row], at)

    @property
    def processes(self) -> list[Process] | None:
        if not self._processes:
            return self._processes
        return self._with_numbers(Process)

    @property
    def reported_processes(self) -> list[Process] | None:
        """The processes with the numbers of the last whole report."""
        return self._processes

    @property
    def has_processes(self) -> bool:
        """Whether processes could be read; there may be none."""
        return self._processes is not None

    def rename(self, names: Names) -> None:
        self.display_name = names.of_model(self.name)
        self.note_change("display_name")

    def update_marks(self, now: float) -> None:
        """Apply changed reservations, maintenance or allocations. The state of an unused GPU changes at once."""
        self._apply_marks()
        gpus, row = self._table.gpus, self.row
        is_empty = self.availability in UNUSED or gpus.why_available[row] in {NO_RESERVATIONS, NO_SCHEDULER}
        word, why = self._empty_state()
        if is_empty and (word, why) != (self.availability, gpus.why_available[row]):
            is_first_sight = self.availability == "unknown"
            gpus.availability[row], gpus.why_available[row] = AVAILABILITY_CODES[word], why
            gpus.since[row] = round(min(now, gpus.last_work_at[row]) if is_first_sight else now, 3)
            gpus.is_state_changed[row] = True

    @property
    def availability(self) -> Availability:
        return AVAILABILITY_WORDS[self._table.gpus.availability[self.row]] or "unknown"

    @property
    def availability_reason(self) -> str | None:
        why = int(self._table.gpus.why_available[self.row])
        if why == MISSING:
            return self.missing
        if why in {CLOSED, NO_SCHEDULER}:
            return self.scheduling.closed if why == CLOSED else self.scheduling.unknown
        return self.silent_reason if why == SILENT else WHY_AVAILABLE.get(why)

    @property
    def last_seen(self) -> Availability | None:
        """The availability before its host fell silent; None while its values are current."""
        word: Availability | None = AVAILABILITY_WORDS[self._table.gpus.last_seen[self.row]]
        return word

    @property
    def is_current(self) -> bool:
        return self.last_seen is None

    @property
    def health(self) -> Health:
        gpus, row = self._table.gpus, self.row
        level = HEALTH_WORDS[gpus.health[row]]
        if level == "ok":
            return _WELL
        if gpus.why_healthy[row] == NO_REPORTS:
            return Health("unknown", self.silent_reason, _SILENT_ACTION)
        celsius = self.value("temperature_celsius")
        wear = judge_wear({name: self.value(name) for name in _WEAR})
        missing = self.missing if gpus.why_healthy[row] == LOST else None
        why = None if celsius is not None else self.why("temperature_celsius")
        return judge_health(missing, celsius, self._table.settings.health, self._fault, why, wear=wear)

    def value(self, metric: str) -> Value:
        gpus = self._table.gpus
        return gpus.number(self.row, gpus.place[metric])

    def numbers(self) -> list[Value]:
        return self._table.gpus.numbers(self.row)

    def why(self, metric: str) -> str:
        return self.rejected.get(metric) or self.unknown.get(metric) or self.missing or "not reported"

    def view(self) -> Gpu:
        return show_gpus(self._table, [self], slice(self.row, self.row + 1))[0]

    def show(  # noqa: PLR0917 - a row
        self,
        numbers: Iterable[Value],
        unknown: Iterable[str],
        availability: int,
        why_available: int,
        last_seen: int,
        since: float,
        health: int,
    ) -> Gpu:
        judged = _WELL if health == OK else self.health
        return _make_gpu(
            self.uuid,
            self.index,
            self.label,
            self.name,
            self.display_name,
            self.vendor,
            self.parent,
            self.pci_address,
            *numbers,
            AVAILABILITY_WORDS[availability] or "unknown",
            self.availability_reason if why_available else None,
            AVAILABILITY_WORDS[last_seen],
            since,
            judged.level,
            judged.reason,
            judged.action,
            self.users,
            self._with_numbers(ShownProcess) if self._processes else self._processes,
            [show_event(event, user) for event, user in self.faults.items()] if self.faults else [],
            self._mark.reservation,
            self._mark.conflict,
            self.maintenance,
            self.scheduling.allocation,
            self.reasons(unknown),
        )

    def reasons(self, unknown: Iterable[str]) -> dict[str, str]:
        if self.rejected or self.missing is not None:
            reasons = {name: self.why(name) for name in unknown}
        else:
            reasons = {name: self.unknown.get(name) or "not reported" for name in unknown}
        if self._processes is None:
            reasons["processes"] = self._processes_reason or self.missing or "not reported"
        return reasons

    @property
    def mark(self) -> ReservationMark:
        return self._mark

    def cached_text(self, visibility: Visibility, is_state_changed: bool) -> _Text | None:
        """The cached text, or None if there is none or it is outdated."""
        if is_state_changed or self.changed:
            return None
        return self._texts.get(visibility if self._processes else EVERYTHING)

    def cache_text(self, visibility: Visibility, view: Gpu) -> _Text:
        kept = _cut(_encoder.encode(visibility.gpu(view)), len(self._processes or ()))
        self._texts = {**self._texts, visibility if self._processes else EVERYTHING: kept}
        return kept

    def note_change(self, *fields: str) -> None:
        """These fields of its view must be sent to viewers."""
        if self.changed is not ALL_CHANGED:
            self.changed = self.changed.union(fields)
        if self.row >= 0:
            self._table.gpus.is_text_changed[self.row] = True

    def take_changes(self) -> frozenset[str]:
        """The fields of its view, except metrics, that viewers have not been sent yet."""
        names, self.changed = self.changed, NOTHING_CHANGED
        self._texts = NO_TEXTS
        if self._table.gpus.is_state_changed[self.row]:
            self._table.gpus.is_state_changed[self.row] = False
            names |= _STATE_FIELDS
        return names

    def release(self) -> None:
        self._table.processes.give_back(self.process_rows)
        self.process_rows = NO_ROWS
        self._table.shared.discard(self)

    def place(self, row: int) -> None:
        self.row = row
        self._table.processes.gpu[self.process_rows] = row

    def fork(self, table: "FleetTable", row: int) -> "GpuState":
        """A copy in a row of another table, which continues independently."""
        other = GpuState.__new__(GpuState)
        for name in GpuState.__slots__:
            setattr(other, name, getattr(self, name))
        other._table, other.row, other.changed, other._texts = table, row, NOTHING_CHANGED, NO_TEXTS
        table.gpus.copy(row, self.row, self._table.gpus)
        other.process_rows = table.processes.take(len(self._processes or ()))
        table.processes.values[other.process_rows] = self._table.processes.values[self.process_rows]
        table.processes.gpu[other.process_rows] = row
        table.gpus.model[row] = table.gpus.model_code(self.name)
        return other

    def _identify(self, reading: GpuReading) -> None:
        self.index, self._instance, self.name = reading.index, reading.instance, intern(reading.name)
        self.label = intern(str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}")
        self.display_name = self._table.names.of_model(reading.name)
        self.vendor, self.parent, self.pci_address = reading.vendor, reading.parent, reading.pci_address

    def _apply_marks(self) -> None:
        """Apply the reservation, maintenance and allocation that count now, even if the values were read before."""
        marks, gpus, schedule = self._table.marks, self._table.gpus, self._table.maintenance
        host = self._table.host_at[gpus.host[self.row]]
        if schedule or self.maintenance is not None:
            own = (self.uuid, self.parent)
            found = None if host is None else schedule.find_gpu(host.id, host.name, own)
            if found != self.maintenance:
                self.maintenance = found
                gpus.is_drained[self.row] = found is not None
                self.note_change("maintenance")
        scheduling = self._table.scheduling.get(self.uuid, NOT_SCHEDULED)
        if host is not None and host.pod_marks:
            scheduling = join_marks(scheduling, host.pod_marks.get(self.uuid, NOT_SCHEDULED))
        if scheduling != self.scheduling:
            self.scheduling = scheduling
            gpus.is_allocated[self.row] = scheduling.allocation is not None
            gpus.is_closed[self.row] = scheduling.closed is not None
            gpus.is_allocation_unknown[self.row] = scheduling.unknown is not None
            gpus.is_state_changed[self.row] = True
            self.note_change("allocation", *(("processes",) if self._processes else ()))
        if not marks and self._mark is _UNMARKED:
            return
        mark = marks.get(self.uuid) or marks.get("", _UNMARKED)
        if mark is not self._mark:
            self._mark = mark
            gpus.is_reserved[self.row] = mark.reservation is not None
            gpus.is_reservation_unknown[self.row] = mark.is_unknown
            gpus.has_conflict[self.row] = mark.conflict is not None
            self.note_change("reservation", "reservation_conflict")

    def _empty_state(self) -> tuple[Availability, int]:
        if self.scheduling.allocation is not None:
            return "allocated", 0
        if self.maintenance is not None:
            return "drained", 0
        if self.scheduling.closed is not None:
            return "drained", CLOSED
        if self._mark.reservation is not None:
            return "reserved", 0
        if self.scheduling.unknown is not None:
            return "unknown", NO_SCHEDULER
        return ("unknown", NO_RESERVATIONS) if self._mark.is_unknown else ("free", 0)

    def _with_numbers(self, make: Callable[..., _AnyProcess]) -> list[_AnyProcess]:
        numbers = self._table.processes.values[self.process_rows].tolist()
        # Users know an array task by another number than its cgroup does.
        given = self.scheduling.allocation
        names = {} if given is None or given.number is None else {given.number: given.job}
        return [
            make(
                one.pid,
                one.user,
                one.command,
                None if isnan(memory) else int(memory),
                one.started_at,
                None if isnan(percent) else percent,
                one.container,
                names.get(one.job, one.job) if names and one.job is not None else one.job,
                one.evidence,
                one.display,
                one.reasons,
            )
            for one, (memory, percent) in zip(self._processes or (), numbers, strict=True)
        ]

    def take_events(self, reading: GpuReading, collected_at: float) -> bool:
        """Apply driver faults, each with the user of its process, which may have ended since the reading before. A
        fault counts for a day. Returns whether events may follow."""
        may_matter = reading.events != list(self.faults)
        if may_matter:
            processes = {process.pid: process for process in (*(self.processes or ()), *(reading.processes or ()))}
            self.faults = {
                event: self.faults[event] if event in self.faults else find_user(event, processes)
                for event in reading.events
            }
            self.note_change("events")
            critical = (event.at for event in reading.events if find_xid(event.code).kind == "critical")
            self._table.gpus.last_fault_at[self.row] = max((event.at for event in reading.events), default=NAN)
            self._table.gpus.last_critical_at[self.row] = max(critical, default=NAN)
        fault = judge_faults([event for event in reading.events if collected_at - event.at <= FAULT_SECONDS])
        if fault != self._fault:
            self._fault = fault
            self._table.gpus.fault[self.row] = _HEALTH_CODES[fault.level]
            self._table.gpus.is_state_changed[self.row] = may_matter = True
        return may_matter

    def _take_processes(self, reading: GpuReading) -> None:
        is_as_known = (reading.processes is None) == (self._processes is None)
        if not is_as_known or reading.processes is None:
            self.note_change("reasons")
        columns, found, before = self._table.processes, reading.processes or (), self._processes or ()
        if is_as_known and len(found) == len(before) and _without_numbers(found) == _without_numbers(before):
            self._table.gpus.is_process_changed[self.row] = True
        else:
            self.note_change("processes")
            columns.give_back(self.process_rows)
            self.process_rows = columns.take(len(found))
            columns.gpu[self.process_rows] = self.row
            self._table.note_devices(int(self._table.gpus.host[self.row]))
        if found:
            numbers = [(one.memory_used_bytes, one.utilization_percent) for one in found]
            columns.values[self.process_rows] = np.array(numbers, np.float64)
        self._processes, self._processes_reason = reading.processes, reading.processes_reason
        self.read_processes(reading.processes)

    def read_processes(self, processes: list[Process] | None) -> None:
        occupancy, gpus, row = occupancy_of(processes), self._table.gpus, self.row
        gpus.workers[row] = -1 if occupancy.workers is None else occupancy.workers
        gpus.display_bytes[row] = NAN if occupancy.display_bytes is None else occupancy.display_bytes
        gpus.oldest_start[row] = NAN if occupancy.oldest_start is None else occupancy.oldest_start
        users = users_of(processes)
        if users != self.users:
            self.users = users
            self.note_change("users")
            gpus.user[row] = self._table.user_code(users[0]) if users else NOBODY
            (self._table.shared.add if len(users) > 1 else self._table.shared.discard)(self)
        gpus.depends_on_processes[row] = len(users) > 1 or any(one.display for one in processes or ())


def show_gpus(table: "FleetTable", gpus: Sequence[GpuState], rows: Rows | slice) -> list[Gpu]:
    """The views of many GPUs: less than half the time of one after another."""
    columns = table.gpus
    state = (columns.availability, columns.why_available, columns.last_seen, columns.since, columns.health)
    numbers, unknown = columns.shown(rows)
    return list(map(GpuState.show, gpus, numbers, unknown, *(column[rows].tolist() for column in state)))


def encode_gpus(table: "FleetTable", gpus: Sequence[GpuState], rows: Rows, visibility: Visibility) -> Iterator[_Text]:
    """The views as JSON pieces, each starting with a comma. If only numbers changed, only numbers are encoded."""
    kept = list(map(GpuState.cached_text, gpus, repeat(visibility), table.gpus.is_state_changed[rows].tolist()))
    new = [at for at, text in enumerate(kept) if text is None]
    views = iter(show_gpus(table, [gpus[at] for at in new], rows[new]) if new else ())
    numbers = _encode_processes(table, rows_of([gpu.process_rows for gpu in gpus]))
    for gpu, known, metrics in zip(gpus, kept, table.gpus.encoded(rows), strict=True):
        text = known or gpu.cache_text(visibility, next(views))
        if len(text) == _MIN_PIECES:
            yield b",", text[0], metrics, text[1], text[2]
        else:
            processes = chain.from_iterable(zip(text[1:-2], numbers, strict=False))
            yield b",", text[0], metrics, *processes, text[-2], text[-1]


def _encode_processes(table: "FleetTable", rows: Rows) -> Iterator[bytes]:
    values = table.processes.values[rows]
    columns = (_encoder.encode(column)[1:-1].split(b",") for column in as_json(values, table.processes.is_whole))
    return chain.from_iterable(zip(*columns, strict=True)) if len(rows) else iter(())


def _cut(text: bytes, processes: int) -> _Text:
    start = text.index(_METRICS_BEGIN) + 1
    pieces, start = [text[:start]], text.index(_METRICS_END, start)
    at = start
    for process in range(processes):
        at = text.index(_NEXT_PROCESS if process else _FIRST_PROCESS, at)
        for before, after in _PROCESS_CUTS:
            at = text.index(before, at) + len(before)
            pieces.append(text[start:at])
            at = start = text.index(after, at)
    end = text.index(_LAST_PIECE, at)
    return (*pieces, text[start:end], _share_piece(text[end:]))


@lru_cache(4096)
def _share_piece(text: bytes) -> bytes:
    return text


@lru_cache(4096)
def _share(reasons: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """One shared object for all GPUs with the same reasons, which are most of a GPU's text."""
    return dict(reasons)


def _without_numbers(processes: Iterable[Process]) -> list[tuple[object, ...]]:
    """The part of processes that is sent to viewers only when it changes."""
    return [
        (one.pid, one.user, one.command, one.started_at, one.container, one.job, one.evidence, one.display, one.reasons)
        for one in processes
    ]
