"""Numbers of many GPUs or hosts as columns: a row each, and a column per metric of the catalog. NaN is unknown.

Rows are allocated in runs, so the GPUs of a host are adjacent. Never hold a column across an `await`: allocating rows
may replace it. `judge` implements the rules of model.gpu_state as column operations; tests compare the two. A
comparison with NaN is false, so unknown values are tested for explicitly.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import numpy as np
from msgspec import defstruct
from numpy.typing import NDArray

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Value
from gpudeck.model.gpu_state import (
    AVAILABILITIES,
    Availability,
    AvailabilitySettings,
    FleetSettings,
    HealthLevel,
    HealthSettings,
)
from gpudeck.model.view import HostStatus

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Codes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

_Kind = TypeVar("_Kind", bound=np.generic)
_encoder = msgspec.json.Encoder()

NAN: Final = float("nan")
NO_ROWS: Final = slice(0, 0)

_FEW: Final = 6
"""Up to this many rows are faster one by one."""
NONE: Final = 0
"""The code of a free row, or of no value."""
AVAILABILITY_WORDS: Final[tuple[Availability | None, ...]] = (None, *AVAILABILITIES)
AVAILABILITY_CODES: Final = {word: code for code, word in enumerate(AVAILABILITY_WORDS)}
FREE, BUSY, IDLE, ALLOCATED, RESERVED, DRAINED, UNKNOWN = (AVAILABILITY_CODES[word] for word in AVAILABILITIES)

HEALTH_WORDS: Final[tuple[HealthLevel, ...]] = ("ok", "unknown", "warning", "critical")
"""From best to worst: a worse level has a higher code."""
OK, UNREAD, WARNING, CRITICAL = range(4)


NEVER_SEEN, UP, LATE, DOWN = range(1, 5)
STATUS_CODES: Final[dict[HostStatus, int]] = {"never_seen": NEVER_SEEN, "up": UP, "late": LATE, "down": DOWN}
NOBODY: Final = -1
"""The user code of a GPU without users."""
_PLACE: Final = {name: place for place, name in enumerate(GPU_METRICS)}
_UTILIZATION: Final = _PLACE["utilization_percent"]
_MEMORY: Final = _PLACE["memory_used_bytes"]
_TEMPERATURE: Final = _PLACE["temperature_celsius"]
_ROWS_PENDING: Final = _PLACE["remapped_rows_pending"]
_UNCORRECTED: Final = _PLACE["ecc_uncorrected_count"]
_LINKS_DOWN: Final = _PLACE["nvlink_inactive_count"]

BY_ITSELF, NO_DATA, BLIND, ORPHANED, NO_USE, MISSING, SILENT, NO_RESERVATIONS, CLOSED, NO_SCHEDULER = range(10)
"""Why a GPU is in its state. BY_ITSELF: the state needs no reason. The text of MISSING is that of the GPU, of SILENT
that of its host, of CLOSED and NO_SCHEDULER that of its scheduler."""
WHY_AVAILABLE: Final = {
    NO_DATA: "neither its processes nor its memory could be read",
    BLIND: "it is in use; its utilization cannot be read",
    ORPHANED: "memory is in use, but no process is on it",
    NO_USE: "neither its processes nor its utilization could be read",
    NO_RESERVATIONS: "whether it is reserved is not known",
}
WELL, HEAT, NO_HEAT, WORN, FAULT, LOST, NO_REPORTS = range(7)
"""Why a GPU has its health."""

# The cases of `judge_availability`: the first that is true counts, and the last stands for all others.
_STATES: Final = np.array(
    (UNKNOWN, BUSY, UNKNOWN, BUSY, IDLE, BUSY, UNKNOWN, ALLOCATED, DRAINED, DRAINED, RESERVED, UNKNOWN, UNKNOWN, FREE),
    np.uint8,
)
_REASONS: Final = np.array(
    (MISSING, 0, NO_DATA, BLIND, 0, 0, NO_USE, 0, 0, CLOSED, 0, NO_SCHEDULER, NO_RESERVATIONS, 0), np.uint8
)
_IDLE_CASE, _BUSY_CASE, _FREE_CASE = 4, 5, 13


def _column(kind: type[_Kind], blank: float) -> NDArray[_Kind]:
    """A column that a class declares, as one empty row. Instances have a column with as many rows as they need."""
    return np.full(1, blank, kind)


class Columns:
    """Rows of one kind. `values` are [row, metric]; `published` are the last values sent to viewers, of the metrics at
    the places `live`. Each `_column` of a class is another column."""

    METRICS: ClassVar[dict[str, Metric]]

    values: Floats
    published: Floats
    is_changed = _column(np.bool_, False)

    def __init__(self, room: int = 64) -> None:
        metrics = self.METRICS.values()
        self.names = tuple(self.METRICS)
        self.place = {name: place for place, name in enumerate(self.names)}
        self.low = np.array([metric.low for metric in metrics])
        self.high = np.array([metric.high for metric in metrics])
        self.is_whole = np.array([metric.precision >= 1 for metric in metrics])
        self._shape = defstruct("Metrics", [(name, Any) for name in self.names], gc=False)
        self._whole = self.is_whole.tolist()
        self._bits = 2.0 ** np.arange(len(self.names))
        self.live = np.flatnonzero([metric.live for metric in metrics])
        self.end = 0
        self._room = 0
        self._free: dict[int, list[int]] = {}
        self._resting: list[slice] = []
        self._blank: dict[str, np.generic] = {
            name: column[0]
            for kind in type(self).__mro__
            for name, column in vars(kind).items()
            if isinstance(column, np.ndarray)
        }
        self._grow(room)

    def take(self, count: int) -> slice:
        free = self._free.get(count)
        if free:
            start = free.pop()
        else:
            if self.end + count > self._room:
                self._grow(max(self._room + self._room // 2, self.end + count))
            start = self.end
            self.end += count
        return slice(start, start + count)

    def give_back(self, rows: slice) -> None:
        """Free these rows and clear them. They are allocated again after `recycle`."""
        if rows.stop > rows.start:
            self.values[rows] = self.published[rows] = NAN
            for name, blank in self._blank.items():
                getattr(self, name)[rows] = blank
            self._resting.append(rows)

    def recycle(self) -> None:
        """Make freed rows available again: viewers know that their owners are gone."""
        for rows in self._resting:
            self._free.setdefault(rows.stop - rows.start, []).append(rows.start)
        self._resting.clear()

    def copy(self, target: int, source: int, other: "Columns | None" = None) -> None:
        """Copy one row to another, in this table or from a second one of the same kind."""
        before = other or self
        self.values[target], self.published[target] = before.values[source], before.published[source]
        for name in self._blank:
            getattr(self, name)[target] = getattr(before, name)[source]

    def metric(self, name: str) -> Floats:
        """One metric of all rows. Do not keep it: allocating rows may replace it."""
        return self.values[: self.end, self.place[name]]

    def numbers(self, row: int) -> list[Value]:
        """The metrics of one row as in JSON: None if unknown, and whole numbers without a fraction."""
        return list(map(_plain, self.values[row].tolist(), self._whole))

    def shown(self, rows: Rows | slice) -> tuple[Iterable[tuple[Value, ...]], list[tuple[str, ...]]]:
        """The metrics of many rows as in JSON, and the names of the unknown ones of each row."""
        values = self.values[rows]
        if len(values) < _FEW:
            plain = [tuple(map(_plain, row, self._whole)) for row in values.tolist()]
            return plain, [
                tuple(name for name, one in zip(self.names, row, strict=True) if one is None) for row in plain
            ]
        return zip(*as_json(values, self.is_whole), strict=True), self.unknown(rows)

    def unknown(self, rows: Rows | slice) -> list[tuple[str, ...]]:
        patterns = (np.isnan(self.values[rows]) @ self._bits).tolist()
        names = {
            pattern: tuple(name for place, name in enumerate(self.names) if int(pattern) >> place & 1)
            for pattern in set(patterns)
        }
        return [names[pattern] for pattern in patterns]

    def encoded(self, rows: Rows) -> list[bytes]:
        return _encoder.encode(list(map(self._shape, *as_json(self.values[rows], self.is_whole))))[2:-2].split(b"},{")

    def number(self, row: int, place: int) -> Value:
        return _plain(float(self.values[row, place]), self._whole[place])

    def _grow(self, room: int) -> None:
        for name in ("values", "published"):
            wide = np.full((room, len(self.names)), NAN)
            if self._room:
                wide[: self._room] = getattr(self, name)
            setattr(self, name, wide)
        for name, blank in self._blank.items():
            column = np.full(room, blank)
            if self._room:
                column[: self._room] = getattr(self, name)
            setattr(self, name, column)
        self._room = room


class GpuColumns(Columns):
    """All GPUs. `availability`, `last_seen` and `health` are codes; `why_available`, `why_healthy` and `health_number`
    are the rule and the number behind them. `last_work_at` and `occupied_since` are on the hub's clock, `oldest_start`
    on the host's. `workers` is -1 if the processes are unknown, `display_bytes` NaN if the share of display servers is.
    `fault` is the level of the worst driver fault of the last day. `depends_on_processes`: the memory of its processes
    decides the order of its users, or the share of display servers."""

    METRICS = GPU_METRICS
    host = _column(np.int32, -1)
    availability = _column(np.uint8, NONE)
    why_available = _column(np.uint8, 0)
    last_seen = _column(np.uint8, NONE)
    since = _column(np.float64, NAN)
    last_work_at = _column(np.float64, NAN)
    occupied_since = _column(np.float64, NAN)
    is_new = _column(np.bool_, True)
    workers = _column(np.int32, -1)
    display_bytes = _column(np.float64, 0.0)
    oldest_start = _column(np.float64, NAN)
    is_allocated = _column(np.bool_, False)
    is_drained = _column(np.bool_, False)
    is_closed = _column(np.bool_, False)
    is_allocation_unknown = _column(np.bool_, False)
    is_reserved = _column(np.bool_, False)
    is_reservation_unknown = _column(np.bool_, False)
    is_missing = _column(np.bool_, False)
    has_conflict = _column(np.bool_, False)
    fault = _column(np.uint8, OK)
    last_fault_at = _column(np.float64, NAN)
    last_critical_at = _column(np.float64, NAN)
    health = _column(np.uint8, UNREAD)
    why_healthy = _column(np.uint8, 0)
    health_number = _column(np.float64, 0.0)
    is_state_changed = _column(np.bool_, False)
    is_process_changed = _column(np.bool_, False)
    is_text_changed = _column(np.bool_, False)
    depends_on_processes = _column(np.bool_, False)
    user = _column(np.int32, NOBODY)
    model = _column(np.int32, -1)

    def __init__(self, room: int = 64) -> None:
        super().__init__(room)
        self.models: dict[str, int] = {}

    def model_code(self, name: str) -> int:
        return self.models.setdefault(name, len(self.models))


class HostColumns(Columns):
    """All hosts: what their status depends on (see HostState), and what alert rules read. `is_published`: viewers know
    the host and its rows. `agent_release` is the number of its agent's version. `late_times`: how often it was late
    within the last hour. `is_regrouped`: its GPUs or its name have changed since alerts were last evaluated.
    `is_unseen`: it has reported since then. `devices_version` changes with its GPUs and their processes."""

    METRICS = HOST_METRICS
    observed_at = _column(np.float64, NAN)
    reported_uptime = _column(np.float64, NAN)
    late_after = _column(np.float64, NAN)
    down_after = _column(np.float64, NAN)
    status = _column(np.uint8, NONE)
    is_restored = _column(np.bool_, False)
    is_published = _column(np.bool_, False)
    is_text_changed = _column(np.bool_, False)
    clock_skew = _column(np.float64, NAN)
    disk_percent = _column(np.float64, NAN)
    agent_release = _column(np.int64, -1)
    has_no_gpus = _column(np.bool_, False)
    late_times = _column(np.int32, 0)
    is_regrouped = _column(np.bool_, True)
    is_unseen = _column(np.bool_, True)
    devices_version = _column(np.int64, 0)


class ProcessColumns(Columns):
    """The processes of all GPUs, adjacent for each GPU; `gpu` is its row. Their text is in GpuState."""

    METRICS: ClassVar[dict[str, Metric]] = {
        "memory_used_bytes": Metric("bytes", "", high=2.0**53),
        "utilization_percent": Metric("percent", "", high=100.0, precision=0.1),
    }
    gpu = _column(np.int32, -1)


def as_json(values: Floats, is_whole: Flags) -> list[list[Value]]:
    """The columns of `values`, [row, metric], as in JSON: None if unknown, and whole metrics without a fraction."""
    is_unknown, is_int = np.isnan(values), ((values == np.trunc(values)) & is_whole).all(axis=0)
    is_mixed = is_unknown.any(axis=0) | (is_whole & ~is_int)
    is_blank: Any = is_unknown.all(axis=0)
    ints, others = iter(values.T[is_int].astype(np.int64).tolist()), iter(values.T[~is_int].tolist())
    columns: list[list[Value]] = []
    for place, mixed in enumerate(is_mixed.tolist()):
        column = next(ints if is_int[place] else others)
        if mixed:
            column = [None] * len(column) if is_blank[place] else [_plain(value, is_whole[place]) for value in column]
        columns.append(column)
    return columns


def _plain(value: float, whole: bool) -> Value:
    return None if value != value else int(value) if whole and value.is_integer() else value  # noqa: PLR0124 - NaN


def rows_of(runs: list[slice]) -> Rows:
    if len(runs) == 1:
        return np.arange(runs[0].start, runs[0].stop)
    starts = np.array([run.start for run in runs], np.int64)
    counts = np.array([run.stop for run in runs], np.int64) - starts
    ends = np.cumsum(counts)
    rows: Rows = np.arange(int(counts.sum())) + np.repeat(starts - (ends - counts), counts)
    return rows


def judge(gpus: GpuColumns, rows: Rows, now: Floats, collected_at: Floats, settings: FleetSettings) -> Rows:
    """Evaluate GPUs whose values were just stored; returns the rows whose health changed.

    `now` is the time of each reading on the hub's clock, `collected_at` on its host's.
    """
    availability, why = _judge_availability(gpus, rows, now, collected_at, settings.availability)
    health, cause, number = _judge_health(gpus, rows, settings.health)
    is_ill = (health != gpus.health[rows]) | (cause != gpus.why_healthy[rows]) | (number != gpus.health_number[rows])
    is_other = (
        is_ill
        | (availability != gpus.availability[rows])
        | (why != gpus.why_available[rows])
        | (gpus.last_seen[rows] != NONE)
    )
    gpus.availability[rows], gpus.why_available[rows], gpus.last_seen[rows] = availability, why, NONE
    gpus.is_new[rows] = False
    if is_ill.any():
        gpus.health[rows], gpus.why_healthy[rows], gpus.health_number[rows] = health, cause, number
    if is_other.any():
        gpus.is_state_changed[rows[is_other]] = True
    ill: Rows = rows[is_ill]
    return ill


def mark_stale(gpus: GpuColumns, rows: slice, now: float) -> None:
    """The host is silent or cannot read its GPUs: their last values stay readable, but their state is unknown."""
    before, last = gpus.availability[rows], gpus.last_seen[rows]
    gpus.last_seen[rows] = np.where(last == NONE, before, last)
    gpus.since[rows] = np.where(before == UNKNOWN, gpus.since[rows], round(now, 3))
    gpus.availability[rows], gpus.why_available[rows] = UNKNOWN, SILENT
    gpus.health[rows], gpus.why_healthy[rows], gpus.health_number[rows] = UNREAD, NO_REPORTS, 0.0
    gpus.is_state_changed[rows] = True


def _judge_availability(
    gpus: GpuColumns, rows: Rows, now: Floats, collected_at: Floats, rules: AvailabilitySettings
) -> tuple[Codes, Codes]:
    values = gpus.values[rows]
    utilization, workers, is_missing = values[:, _UTILIZATION], gpus.workers[rows], gpus.is_missing[rows]
    memory = values[:, _MEMORY] - gpus.display_bytes[rows]
    is_blind = np.isnan(utilization)
    is_working = utilization >= rules.work_percent
    is_occupied = (workers > 0) | (memory > rules.empty_bytes)
    is_seen = (workers >= 0) | ~np.isnan(memory)
    # When work was last seen, and when a user came. A clock that was set back restarts both; a missing GPU keeps both.
    last_work = gpus.last_work_at[rows]
    last_work = np.where((is_blind | is_working | (last_work > now)) & ~is_missing, now, last_work)
    came = gpus.occupied_since[rows]
    # A user who was there at the first reading may have come at any time before.
    arrived = np.where(np.isnan(came), np.where(gpus.is_new[rows], 0.0, now), came)
    came = np.where(is_missing, came, np.where(is_occupied, arrived, NAN))
    began = now - np.maximum(collected_at - gpus.oldest_start[rows], 0.0)
    # A user is idle for no longer than they have been on the GPU.
    idle = now - np.fmax(last_work, np.where(np.isnan(began), came, began))
    cases = (
        is_missing,
        is_working,
        ~is_seen,
        is_occupied & is_blind,
        is_occupied & (idle >= rules.idle_after),
        is_occupied,
        is_blind & (workers < 0),
        gpus.is_allocated[rows],
        gpus.is_drained[rows],
        gpus.is_closed[rows],
        gpus.is_reserved[rows],
        gpus.is_allocation_unknown[rows],
        gpus.is_reservation_unknown[rows],
    )
    case = np.full(len(rows), _FREE_CASE)
    for number in reversed(range(_FREE_CASE)):
        case[cases[number]] = number
    availability = _STATES[case]
    is_orphaned = ((case == _IDLE_CASE) | (case == _BUSY_CASE)) & (workers == 0)
    why = np.where(is_orphaned, np.uint8(ORPHANED), _REASONS[case])
    gpus.last_work_at[rows], gpus.occupied_since[rows] = last_work, came
    before = gpus.availability[rows]
    is_other = availability != before
    if is_other.any():
        # At first sight, and after a silence, the reading may know better since when.
        is_first_sight = ((before == NONE) | (before == UNKNOWN)) & (availability != UNKNOWN)
        beginning = np.where(availability == BUSY, began, last_work)
        since = np.where(is_first_sight & ~np.isnan(beginning), np.minimum(now, beginning), now)
        gpus.since[rows[is_other]] = np.round(since[is_other], 3)
    return availability, why


def _judge_health(gpus: GpuColumns, rows: Rows, limits: HealthSettings) -> tuple[Codes, Codes, Floats]:
    values = gpus.values[rows]
    heat, fault, is_missing = values[:, _TEMPERATURE], gpus.fault[rows], gpus.is_missing[rows]
    is_cool = heat < limits.hot_celsius
    wear = values[:, (_ROWS_PENDING, _UNCORRECTED, _LINKS_DOWN)]
    is_worn = (wear > 0).any(axis=1)
    if is_cool.all() and not fault.any() and not is_missing.any() and not is_worn.any():
        return np.full(len(rows), OK, np.uint8), np.full(len(rows), WELL, np.uint8), np.zeros(len(rows))
    is_read = ~np.isnan(heat)
    too_hot = np.where(heat >= limits.critical_celsius, CRITICAL, WARNING)
    hot = np.where(is_read, np.where(is_cool, OK, too_hot), UNREAD)
    worn = np.where(is_worn, WARNING, OK)
    level = np.maximum(np.maximum(fault, worn), hot)
    # At the same level, faults are shown before wear, and wear before heat.
    cause = np.select(
        (is_missing, (fault == level) & (fault > OK), (worn == level) & is_worn, ~is_read, ~is_cool),
        (LOST, FAULT, WORN, NO_HEAT, HEAT),
        WELL,
    )
    sign = np.where(wear[:, 0] > 0, 0.0, np.where(wear[:, 1] > 0, wear[:, 1], -wear[:, 2]))
    number = np.select((cause == HEAT, cause == WORN), (np.rint(heat), sign), 0.0)
    level = np.where(is_missing, CRITICAL, level)
    return level.astype(np.uint8), cause.astype(np.uint8), number
