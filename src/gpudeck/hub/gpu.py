"""One GPU of the live fleet: what of it is text, and its row among the columns with its numbers.

What a report says in numbers waits for the fleet's table to judge it with others (see hub.table); what it says in words
is compared with what is known, which nearly always is the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import isnan
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import Struct, defstruct
from msgspec.structs import astuple

from gpudeck.fleet.columns import (
    AVAILABILITY_CODES,
    AVAILABILITY_WORDS,
    HEALTH_WORDS,
    LOST,
    MISSING,
    NAN,
    NO_RESERVATIONS,
    NOBODY,
    OK,
    SILENT,
    UNHEARD,
    WHY_AVAILABLE,
    Rows,
)
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.model.availability import Availability
from gpudeck.model.catalog import GPU_METRICS, Value
from gpudeck.model.health import Health, judge_faults, judge_health, judge_wear
from gpudeck.model.names import Names
from gpudeck.model.report import GpuEvent, GpuReading, Process
from gpudeck.model.reservation import Mark
from gpudeck.model.view import Gpu, ShownEvent, ShownProcess
from gpudeck.model.xid import find_xid

if TYPE_CHECKING:
    from gpudeck.hub.table import FleetTable

_EVENT_SECONDS: Final = 24 * 3600.0
_UNMARKED: Final = Mark(None)
_SILENT_ACTION: Final = "See the host's status and problems."
_HEALTH_CODES: Final = {word: code for code, word in enumerate(HEALTH_WORDS)}
_STATE_FIELDS: Final = (
    "availability",
    "availability_reason",
    "last_seen",
    "since",
    "health",
    "health_reason",
    "health_action",
)
_WEAR: Final = ("remapped_rows_pending", "ecc_uncorrected_count", "nvlink_inactive_count")
_WELL: Final = Health("ok")
NO_REASONS: Final[dict[str, str]] = {}
NO_TEXTS: Final[dict[Sight, tuple[bytes, bytes]]] = {}
_METRICS_BEGIN: Final = f',"{next(iter(GPU_METRICS))}":'.encode()
_METRICS_END: Final = b',"availability":'
_encoder = msgspec.json.Encoder()
_make_gpu = cast("Callable[..., Gpu]", defstruct("Gpu", [(name, Any) for name in Gpu.__struct_fields__], gc=False))
"""The same as `Gpu`, from the fields in their order: that takes a tenth of the time."""


class Occupancy(Struct, frozen=True):
    """Who is on a GPU, as far as its state depends on them: display servers do not count.

    `workers` is None when the list could not be read, `display_bytes` when a display server's share could not,
    `oldest_start` (by the host's clock) when no start is known.
    """

    workers: int | None = None
    display_bytes: int | None = 0
    oldest_start: float | None = None


class GpuState:
    """A GPU between reports. `row` is its place among the columns of `table`.

    `missing` is why it cannot be read, None where it can. `faults` are the driver's, with whose process each was.
    `unknown` says why metrics are unknown, `rejected` which values of the last report were not believed. `changed` are
    the fields of its view in words that viewers have not been sent yet.

    `_hangs_on_numbers`: the memory of its processes decides the order of its users, or what display servers take.
    """

    __slots__ = (
        "_fault",
        "_hangs_on_numbers",
        "_instance",
        "_mark",
        "_newer_numbers",
        "_processes",
        "_processes_reason",
        "_shown",
        "_table",
        "_texts",
        "changed",
        "display_name",
        "faults",
        "index",
        "label",
        "missing",
        "name",
        "parent",
        "pci_address",
        "rejected",
        "row",
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
        self.faults: dict[GpuEvent, str | None] = {}
        self.unknown: dict[str, str] = NO_REASONS
        self.rejected: dict[str, str] = NO_REASONS
        self.users: list[str] = []
        self._processes: list[Process] | None = None
        self._newer_numbers: tuple[float, ...] = ()
        self.silent_reason = ""
        self.changed: set[str] = set()
        self._fault = Health("ok")
        self._processes_reason: str | None = None
        self._mark = _UNMARKED
        self._shown: list[ShownProcess] | None = None
        self._texts: dict[Sight, tuple[bytes, bytes]] = NO_TEXTS
        self._hangs_on_numbers = False

    def begin(self, reading: GpuReading, now: float) -> None:
        """It was not known before. The agent has often watched for longer than this hub has been running. Later the
        hub's own eyes count: what is work is decided here."""
        self._table.gpus.last_work_at[self.row] = now - (reading.idle_seconds or 0.0)

    def recall(self, reading: GpuReading, reason: str) -> None:
        """Be the GPU of before this start of the hub, of which little but its identity is known."""
        self.unknown, self._processes_reason, self.silent_reason = reading.unknown, reading.processes_reason, reason
        for name, value in reading.metrics.items():
            self._table.gpus.values[self.row, self._table.gpus.place[name]] = value
        if self._table.marks:
            self._take_mark()

    def describe(self, reading: GpuReading, collected_at: float, now: float, *, after_gap: bool = False) -> bool:
        """Take what a report says of it in words; returns whether that may be news.

        `collected_at` is the host's clock, `now` is the same moment on ours. `after_gap`: readings are missing between
        the last one and this, and its agent has made them: what it says of the work in between counts.
        """
        is_news = False
        gpus = self._table.gpus
        if after_gap and reading.idle_seconds is not None:
            self.note_work(now - reading.idle_seconds)
        if reading.events or self.faults:
            is_news = self.take_events(reading, collected_at)
        if reading.processes != self.processes or reading.processes_reason != self._processes_reason:
            self._take_processes(reading)
        if reading.missing != self.missing:
            self.missing = reading.missing
            gpus.is_missing[self.row] = reading.missing is not None
            gpus.is_state_changed[self.row] = is_news = True
            self.changed.add("reasons")
        if reading.unknown != self.unknown:
            self.unknown = reading.unknown
            gpus.is_state_changed[self.row] = is_news = True
            self.changed.add("reasons")
        if reading.name != self.name or reading.index != self.index or reading.instance != self._instance:
            self._identify(reading)
            gpus.model[self.row] = gpus.model_code(self.name)
            self._table.hosts.is_regrouped[gpus.host[self.row]] = True
            self.changed.update(("index", "label", "name", "display_name", "vendor", "parent", "pci_address"))
        if self._table.marks or self._mark is not _UNMARKED:
            self._take_mark()
        return is_news

    def note_work(self, at: float) -> None:
        """Its agent has seen work on it at that moment, in a report that has not arrived."""
        gpus = self._table.gpus
        gpus.last_work_at[self.row] = max(gpus.last_work_at[self.row], at)

    def take_process_numbers(self, numbers: tuple[float, ...]) -> None:
        """Of the processes that are there already: memory and utilization of each, NaN where unknown."""
        self._newer_numbers, self._shown = numbers, None
        self._table.other_processes.add(self)
        if self._hangs_on_numbers:
            self._look_at_processes()

    @property
    def processes(self) -> list[Process] | None:
        """None where they could not be read."""
        if self._newer_numbers:
            self._processes, self._newer_numbers = _with_numbers(self._processes or (), self._newer_numbers), ()
        return self._processes

    @property
    def has_processes(self) -> bool:
        """Whether they could be read, and be it that there are none."""
        return self._processes is not None

    def process_numbers(self) -> tuple[list[int | None], list[float | None]]:
        """Memory and utilization of each process."""
        if numbers := self._newer_numbers:
            # NaN is the only number that is not itself: this takes half the time of isnan.
            memory = [int(number) if number == number else None for number in numbers[::2]]  # noqa: PLR0124
            return memory, [number if number == number else None for number in numbers[1::2]]  # noqa: PLR0124
        there = self._processes or ()
        return [one.memory_used_bytes for one in there], [one.utilization_percent for one in there]

    def rename(self, names: Names) -> None:
        """Models are called by these names from here on."""
        self.display_name = names.of_model(self.name)
        self.changed.add("display_name")

    def remark(self, now: float) -> None:
        """What reservations say of it has changed: a GPU that nobody is on becomes reserved, or free again, at once."""
        self._take_mark()
        gpus, row = self._table.gpus, self.row
        is_empty = self.availability in {"free", "booked"} or gpus.why_available[row] == NO_RESERVATIONS
        word, why = self._name_empty()
        if is_empty and word != self.availability:
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
        return self.silent_reason if why == SILENT else WHY_AVAILABLE.get(why)

    @property
    def last_seen(self) -> Availability | None:
        """The availability before its host fell silent; None while its values are of now."""
        word: Availability | None = AVAILABILITY_WORDS[self._table.gpus.last_seen[self.row]]
        return word

    @property
    def is_current(self) -> bool:
        """Whether its values are of now."""
        return self.last_seen is None

    @property
    def health(self) -> Health:
        """With the reason and the next step."""
        gpus, row = self._table.gpus, self.row
        level = HEALTH_WORDS[gpus.health[row]]
        if level == "ok":
            return _WELL
        if gpus.why_healthy[row] == UNHEARD:
            return Health("unknown", self.silent_reason, _SILENT_ACTION)
        celsius = self.value("temperature_celsius")
        wear = judge_wear({name: self.value(name) for name in _WEAR})
        missing = self.missing if gpus.why_healthy[row] == LOST else None
        why = None if celsius is not None else self.why("temperature_celsius")
        return judge_health(missing, celsius, self._table.settings.health, self._fault, why, wear=wear)

    def value(self, metric: str) -> Value:
        """None where it is unknown: `why` tells the reason."""
        gpus = self._table.gpus
        return gpus.number(self.row, gpus.place[metric])

    def numbers(self) -> list[Value]:
        """All metrics, in the catalog's order."""
        return self._table.gpus.numbers(self.row)

    def why(self, metric: str) -> str:
        """Of a metric that is unknown."""
        return self.rejected.get(metric) or self.unknown.get(metric) or self.missing or "not reported"

    def view(self) -> Gpu:
        """As everybody outside sees it now."""
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
        """Its view from its row; `unknown` are the metrics that are."""
        if self.rejected or self.missing is not None:
            reasons = {name: self.why(name) for name in unknown}
        else:
            reasons = {name: self.unknown.get(name) or "not reported" for name in unknown}
        if self.processes is None:
            reasons["processes"] = self._processes_reason or self.missing or "not reported"
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
            self.shown_processes(),
            [_show_event(event, user) for event, user in self.faults.items()] if self.faults else [],
            self._mark.reservation,
            self._mark.conflict,
            reasons,
        )

    def kept_text(self, sight: Sight, is_state_changed: bool) -> tuple[bytes, bytes] | None:
        """The JSON of its view before and after its metrics; None where it is not kept, or other by now."""
        if is_state_changed or self.changed or self in self._table.other_processes:
            return None
        return self._texts.get(sight if self._processes else EVERYTHING)

    def keep_text(self, sight: Sight, view: Gpu) -> tuple[bytes, bytes]:
        """Until viewers are sent what changed of it next."""
        text = _encoder.encode(sight.gpu(view))
        kept = text[: text.index(_METRICS_BEGIN) + 1], text[text.index(_METRICS_END) :]
        self._texts = {**self._texts, sight if self._processes else EVERYTHING: kept}
        return kept

    def shown_processes(self) -> list[ShownProcess] | None:
        if self._shown is None and self.processes is not None:
            self._shown = [ShownProcess(*astuple(process)) for process in self.processes]
        return self._shown

    def take_changes(self) -> set[str]:
        """The fields of its view other than metrics that viewers have not been sent yet."""
        names, self.changed = self.changed, set()
        self.forget_text()
        if self._table.gpus.is_state_changed[self.row]:
            self._table.gpus.is_state_changed[self.row] = False
            names.update(_STATE_FIELDS)
        return names

    def forget_text(self) -> None:
        self._texts = NO_TEXTS

    def release(self) -> None:
        """Its row is nobody's any more."""
        self._table.other_processes.discard(self)
        self._table.shared.discard(self)

    def fork(self, table: "FleetTable", row: int) -> "GpuState":
        """A second state, in a row of another table, that goes on from this one by itself."""
        other = GpuState.__new__(GpuState)
        for name in GpuState.__slots__:
            setattr(other, name, getattr(self, name))
        other._table, other.row, other.changed, other._texts = table, row, set(), NO_TEXTS
        table.gpus.copy(row, self.row, self._table.gpus)
        table.gpus.model[row] = table.gpus.model_code(self.name)
        return other

    def _identify(self, reading: GpuReading) -> None:
        self.index, self._instance, self.name = reading.index, reading.instance, reading.name
        self.label = str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"
        self.display_name = self._table.names.of_model(reading.name)
        self.vendor, self.parent, self.pci_address = reading.vendor, reading.parent, reading.pci_address

    def _take_mark(self) -> None:
        """Of those that count now, also where the values were read before one of them began."""
        marks = self._table.marks
        mark = marks.get(self.uuid) or marks.get("", _UNMARKED)
        if mark is not self._mark:
            self._mark = mark
            gpus = self._table.gpus
            gpus.is_reserved[self.row] = mark.reservation is not None
            gpus.is_reservation_unknown[self.row] = mark.is_unknown
            gpus.has_conflict[self.row] = mark.conflict is not None
            self.changed.update(("reservation", "reservation_conflict"))

    def _name_empty(self) -> tuple[Availability, int]:
        """What a GPU is that nobody is on."""
        if self._mark.reservation is not None:
            return "booked", 0
        return ("unknown", NO_RESERVATIONS) if self._mark.is_unknown else ("free", 0)

    def take_events(self, reading: GpuReading, collected_at: float) -> bool:
        """With their owners. Whoever is blamed is often gone by now, and was there in the reading before. A fault
        counts for a day; returns whether any of this may be news."""
        is_news = reading.events != list(self.faults)
        if is_news:
            there = {process.pid: process for process in (*(self.processes or ()), *(reading.processes or ()))}
            self.faults = {
                event: self.faults[event] if event in self.faults else _find_user(event, there)
                for event in reading.events
            }
            self.changed.add("events")
            critical = (event.at for event in reading.events if find_xid(event.code).kind == "critical")
            self._table.gpus.last_fault_at[self.row] = max((event.at for event in reading.events), default=NAN)
            self._table.gpus.last_critical_at[self.row] = max(critical, default=NAN)
        fault = judge_faults([event for event in reading.events if collected_at - event.at <= _EVENT_SECONDS])
        if fault != self._fault:
            self._fault = fault
            self._table.gpus.fault[self.row] = _HEALTH_CODES[fault.level]
            self._table.gpus.is_state_changed[self.row] = is_news = True
        return is_news

    def _take_processes(self, reading: GpuReading) -> None:
        if (reading.processes is None) != (self.processes is None) or reading.processes is None:
            self.changed.add("reasons")
        if _without_numbers(reading.processes) == _without_numbers(self.processes):
            self._table.other_processes.add(self)
        else:
            self.changed.add("processes")
        self._processes, self._processes_reason = reading.processes, reading.processes_reason
        self._newer_numbers, self._shown = (), None
        self._look_at_processes()

    def _look_at_processes(self) -> None:
        """Tell the columns who is on it."""
        processes = self.processes
        there, gpus, row = look_at(processes), self._table.gpus, self.row
        gpus.workers[row] = -1 if there.workers is None else there.workers
        gpus.display_bytes[row] = NAN if there.display_bytes is None else there.display_bytes
        gpus.oldest_start[row] = NAN if there.oldest_start is None else there.oldest_start
        users = users_of(processes)
        if users != self.users:
            self.users = users
            self.changed.add("users")
            gpus.user[row] = self._table.user_code(users[0]) if users else NOBODY
            (self._table.shared.add if len(users) > 1 else self._table.shared.discard)(self)
        self._hangs_on_numbers = len(users) > 1 or any(one.display for one in processes or ())


def _with_numbers(processes: Iterable[Process], numbers: tuple[float, ...]) -> list[Process]:
    return [
        Process(
            one.pid,
            one.user,
            one.command,
            None if isnan(memory) else int(memory),
            one.started_at,
            None if isnan(percent) else percent,
            one.container,
            one.job,
            one.evidence,
            one.display,
            one.reasons,
        )
        for one, memory, percent in zip(processes, numbers[::2], numbers[1::2], strict=True)
    ]


def show_gpus(table: "FleetTable", gpus: Sequence[GpuState], rows: Rows | slice) -> list[Gpu]:
    """As everybody outside sees them now: many at once take less than half the time of one after another."""
    columns = table.gpus
    state = (columns.availability, columns.why_available, columns.last_seen, columns.since, columns.health)
    numbers, unknown = columns.shown(rows)
    return list(map(GpuState.show, gpus, numbers, unknown, *(column[rows].tolist() for column in state)))


def encode_gpus(
    table: "FleetTable", gpus: Sequence[GpuState], rows: Rows, sight: Sight
) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
    """Their views as JSON, in parts, each after a comma: where nothing but metrics changed only these are written."""
    kept = list(map(GpuState.kept_text, gpus, repeat(sight), table.gpus.is_state_changed[rows].tolist()))
    new = [at for at, text in enumerate(kept) if text is None]
    views = iter(show_gpus(table, [gpus[at] for at in new], rows[new]) if new else ())
    for gpu, text, metrics in zip(gpus, kept, table.gpus.encoded(rows), strict=True):
        head, tail = text or gpu.keep_text(sight, next(views))
        yield b",", head, metrics, tail


def _find_user(event: GpuEvent, there: Mapping[int, Process]) -> str | None:
    """A process that was started later has only been given the same pid."""
    process = None if event.process is None else there.get(event.process)
    is_later = process is not None and process.started_at is not None and process.started_at > event.at + 1
    return None if process is None or is_later else process.user


def _show_event(event: GpuEvent, user: str | None) -> ShownEvent:
    xid = find_xid(event.code)
    return ShownEvent(
        at=event.at,
        code=event.code,
        kind=xid.kind,
        text=xid.text,
        message=event.text,
        process=event.process,
        user=user,
    )


def look_at(processes: list[Process] | None) -> Occupancy:
    """Who is on a GPU."""
    workers = [process for process in processes or () if not process.display]
    displays = [process.memory_used_bytes for process in processes or () if process.display]
    return Occupancy(
        workers=None if processes is None else len(workers),
        display_bytes=None if None in displays else sum(share or 0 for share in displays),
        oldest_start=min((process.started_at for process in workers if process.started_at is not None), default=None),
    )


def _without_numbers(processes: list[Process] | None) -> list[tuple[object, ...]] | None:
    """What of processes is sent to viewers only when it changes."""
    if processes is None:
        return None
    return [
        (one.pid, one.user, one.command, one.started_at, one.container, one.job, one.evidence, one.display, one.reasons)
        for one in processes
    ]


def users_of(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    memory: dict[str, int] = {}
    for process in processes or ():
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))
