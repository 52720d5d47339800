"""The fleet's numbers: columns over all GPUs and hosts, and the reports that wait to be evaluated.

A numpy call costs the same for one host as for a hundred, so reports are evaluated in batches: when enough of them
wait, when a host reports again, once a second, and before every read. One event loop owns a table.
"""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isnan
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from msgspec.structs import replace

from gpudeck.fleet.columns import (
    AVAILABILITY_WORDS,
    DOWN,
    LATE,
    NAN,
    NEVER_SEEN,
    NOBODY,
    NONE,
    UNKNOWN,
    UP,
    Columns,
    Flags,
    Floats,
    GpuColumns,
    HostColumns,
    ProcessColumns,
    Rows,
    as_json,
    judge,
    rows_of,
)
from gpudeck.model.allocation import SchedulerMark
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Value
from gpudeck.model.cpu_budget import Steps
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import Disk, GpuReading, Number, Report
from gpudeck.model.reservation import MaintenanceSchedule, ReservationMark
from gpudeck.model.text import Names
from gpudeck.model.view import HostNote, Totals
from gpudeck.wire import ShortReport

if TYPE_CHECKING:
    from gpudeck.fleet.gpu import GpuState
    from gpudeck.fleet.host import HostState

_DOUBLE: Final = 8
_MAX_IDLE: Final = 1e10
_END_OF_MEMORY: Final = 2**53
_END_OF_DISKS: Final = 2**60
"""The bounds of numbers in a short report are those of model.report."""
_NO_METRICS: Final[dict[str, Number]] = {}
_NO_GPUS: Final[list[GpuReading]] = []
_encoder = msgspec.json.Encoder()
_NAN_BYTES: Final = np.array(NAN, "<f8").tobytes()

MetricNames = tuple[tuple[str, ...], ...]
BATCH: Final = 512
"""The most GPUs evaluated at a time, with a few added for each host: larger batches would block the event loop."""
_HOST_WEIGHT: Final = 8
_MAX_SPARSE: Final = 0.6
"""A column is sent whole if more than this part of its rows changed."""


def names_of(report: Report) -> MetricNames:
    return (tuple(report.metrics), *[tuple(gpu.metrics) for gpu in report.gpus or ()])


def find_layout(names: MetricNames) -> "Layout":
    layout = _layouts.get(names)
    if layout is None:
        layout = _layouts[names] = Layout(names)
    return layout


class Layout:
    """Where each metric is in reports with these metric names. `counts` are the numbers of known metrics: of the host,
    then of each GPU. Metrics outside the catalog have a place but no column. `metric_bytes` is the length of all
    metrics in a short report."""

    def __init__(self, names: MetricNames) -> None:
        self.names = names
        self.counts = [sum(name in catalog for name in of) for of, catalog in _catalogs(names)]
        length, start, places = sum(map(len, names)), 0, list[int]()
        for of, catalog in _catalogs(names):
            place_of = dict(zip(of, range(start, start + len(of)), strict=True))
            # The place after the last one stands for unknown.
            places += [place_of.get(name, length) for name in catalog]
            start += len(of)
        self._host_places: Rows = np.array(places[: len(HOST_METRICS)], np.int64)
        self._gpu_places: Rows = np.array(places[len(HOST_METRICS) :], np.int64)
        self.metric_bytes = _DOUBLE * length

    def read(self, report: Report) -> Floats:
        numbers = array("d", report.metrics.values())
        for gpu in report.gpus or ():
            numbers.extend(gpu.metrics.values())
        numbers.append(NAN)
        return np.frombuffer(numbers)

    def read_short(self, numbers: bytes) -> Floats:
        return np.frombuffer(numbers[: self.metric_bytes] + _NAN_BYTES, "<f8")

    def arrange(self, values: Sequence[Floats]) -> tuple[Floats, Floats]:
        """The numbers of some reports in the catalog's order: a row for each host, and a row for each GPU."""
        block: Floats = np.concatenate(values).reshape(len(values), -1)
        own, gpus = block.take(self._host_places, axis=1), block.take(self._gpu_places, axis=1)
        return own, gpus.reshape(-1, len(GPU_METRICS))


_layouts: WeakValueDictionary[MetricNames, Layout] = WeakValueDictionary()


def _catalogs(names: MetricNames) -> list[tuple[tuple[str, ...], Mapping[str, object]]]:
    return [(of, GPU_METRICS if at else HOST_METRICS) for at, of in enumerate(names)]


class Description:
    """The whole report that the short reports of a host refer to, reduced to what they need: `report` has no metrics
    and no GPUs. `faulty` are the GPUs with faults, by position."""

    def __init__(self, description: str, report: Report, layout: Layout, process_rows: list[slice]) -> None:
        gpus, processes = report.gpus or (), sum(rows.stop - rows.start for rows in process_rows)
        self.id = description
        # Thousands of these are kept, so they keep only what is needed.
        self.report = replace(report, metrics=_NO_METRICS, gpus=None if report.gpus is None else _NO_GPUS)
        self.layout = layout
        self._disks = report.disks
        self.faulty = [
            (at, GpuReading(gpu.uuid, gpu.index, gpu.name, events=gpu.events))
            for at, gpu in enumerate(gpus)
            if gpu.events
        ]
        self._idle = Struct(f"<{len(gpus)}d")
        self._process_rows: Rows | list[slice] = process_rows
        self._processes_at = layout.metric_bytes + self._idle.size
        self._disks_at = self._processes_at + 2 * _DOUBLE * processes
        self._rest = Struct(f"<{2 * processes + len(report.disks)}d")
        self._last_rest = self._last_disks = b""

    def check(self, numbers: bytes) -> None:
        """Check the numbers of a short report as a whole one is checked. Raises ReportRefused."""
        length = self._processes_at + self._rest.size
        if len(numbers) != length:
            message = f"`numbers` has {len(numbers)} bytes, and its description needs {length}"
            raise ReportRefused(422, "invalid_report", message)
        for idle in self.idle_seconds(numbers):
            if not 0 <= idle <= _MAX_IDLE and not isnan(idle):
                raise _out_of_bounds("idle_seconds of a GPU")
        packed = numbers[self._processes_at :]
        if packed == self._last_rest:
            return
        rest, end = self._rest.unpack(packed), (self._disks_at - self._processes_at) // _DOUBLE
        for size in rest[:end:2]:
            if not (0 <= size < _END_OF_MEMORY and size.is_integer()) and not isnan(size):
                raise _out_of_bounds("memory_used_bytes of a process")
        for percent in rest[1:end:2]:
            if not 0 <= percent <= 100 and not isnan(percent):
                raise _out_of_bounds("utilization_percent of a process")
        for size in rest[end:]:
            if not (0 <= size < _END_OF_DISKS and size.is_integer()):
                raise _out_of_bounds("used_bytes of a disk")
        self._last_rest = packed

    def idle_seconds(self, numbers: bytes) -> tuple[float, ...]:
        return self._idle.unpack_from(numbers, self.layout.metric_bytes)

    def read_processes(self, numbers: bytes) -> "ProcessNumbers":
        if isinstance(self._process_rows, list):
            self._process_rows = rows_of(self._process_rows)
        values = np.frombuffer(numbers, "<f8", 2 * len(self._process_rows), self._processes_at)
        return ProcessNumbers(self._process_rows, values.reshape(-1, 2))

    def changes_only_numbers(self, numbers: bytes) -> bool:
        """Whether only metrics and process numbers can differ from the report before."""
        return not self.faulty and self.report.gpus is not None and numbers[self._disks_at :] == self._last_disks

    def take_disks(self, numbers: bytes) -> list[Disk]:
        """The disks with their new numbers; the same objects if nothing changed."""
        packed = numbers[self._disks_at :]
        if packed != self._last_disks:
            self._last_disks = packed
            used = self._rest.unpack_from(numbers, self._processes_at)
            disks = zip(self._disks, used[len(used) - len(self._disks) :], strict=True)
            self._disks = [Disk(disk.mount, int(size), disk.total_bytes) for disk, size in disks]
        return self._disks


class ProcessNumbers(NamedTuple):
    """Memory and utilization of processes, by row."""

    rows: Rows
    values: Floats


NO_PROCESSES: Final = ProcessNumbers(np.empty(0, np.int64), np.empty((0, 2)))


def refuse_undescribed(envelope: ShortReport, why: str = "") -> ReportRefused:
    unknown = f"this hub does not know the description {envelope.description!r} of {envelope.host}"
    return ReportRefused(428, "description_needed", why or unknown, "Send the whole report (wire version 1).")


def _out_of_bounds(what: str) -> ReportRefused:
    return ReportRefused(422, "invalid_report", f"a number in `numbers` is out of bounds: {what}")


class Pending(NamedTuple):
    """A report that waits to be evaluated. `processes` are those of a short report; those of a whole one are in their
    rows already. `observed_at` is its time on the hub's clock, `collected_at` on its host's."""

    host: "HostState"
    numbers: Floats
    processes: ProcessNumbers
    layout: Layout
    has_gpus: bool
    observed_at: float
    collected_at: float
    now: float
    is_backlog: bool

    @property
    def gpu_count(self) -> int:
        return len(self.layout.counts) - 1


class FleetTable:
    """All columns. `gpu_at` and `host_at` map rows to their owners. `settled` is called with each batch of evaluated
    reports. `rejected` counts rejected values. `regroupings` counts changes of any host's set of GPUs."""

    def __init__(
        self,
        settings: FleetSettings,
        names: Names,
        marks: Mapping[str, ReservationMark],
        settled: Callable[[list[Pending]], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.names = names
        self.marks = marks
        self.maintenance = MaintenanceSchedule()
        self.scheduling: dict[str, SchedulerMark] = {}
        self.notes: dict[str, HostNote] = {}
        self.gpus = GpuColumns()
        self.hosts = HostColumns()
        self.processes = ProcessColumns()
        self.gpu_at: list[GpuState | None] = []
        self.host_at: list[HostState | None] = []
        self.shared: set[GpuState] = set()
        self.rejected = 0
        self.regroupings = self._devices_versions = 0
        self._user_codes: dict[str, int] = {}
        self._settled = settled
        self._pending: list[Pending] = []
        self._weight = 0
        self._with_rejected: set[GpuState | HostState] = set()

    def note_regrouped(self) -> None:
        self.regroupings += 1

    def note_devices(self, host_row: int) -> None:
        self._devices_versions += 1
        self.hosts.devices_version[host_row] = self._devices_versions

    def recycle(self) -> None:
        """Make free rows available again: viewers know that their owners are gone."""
        self.gpus.recycle()
        self.hosts.recycle()
        self.processes.recycle()

    def rename(self, names: Names) -> None:
        self.names = names

    def put(self, report: Pending) -> None:
        """Queue a report until the next `settle`; at most one per host."""
        self._pending.append(report)
        self._weight += max(_HOST_WEIGHT, len(report.layout.counts))
        if self._weight >= BATCH:
            self.settle()

    def settle(self) -> None:
        """Evaluate all waiting reports. Readers of the fleet call this first."""
        if not self._pending:
            return
        pending, self._pending, self._weight = self._pending, [], 0
        for report in pending:
            report.host.note_settled()
        if self._with_rejected:
            self._clear_rejected(pending)
        pending, numbers, gpu_numbers = _arrange(pending)
        own = np.array([report.host.row for report in pending])
        self._store(self.hosts, own, numbers, pending, slice(1))
        self.hosts.is_unseen[own] = True
        self._store_processes([report.processes for report in pending if len(report.processes.rows)])
        self._judge([report for report in pending if report.gpu_count], gpu_numbers)
        self._settled(pending)

    def find_aged(self, now: float, uptime: float) -> list["HostState"]:
        """The hosts whose status may have changed with time. `uptime` is a monotonic clock."""
        hosts, end = self.hosts, self.hosts.end
        status, observed_at, reported_at = hosts.status[:end], hosts.observed_at[:end], hosts.reported_uptime[:end]
        silent = uptime - reported_at
        is_late = np.maximum(silent, now - observed_at) > hosts.late_after[:end]
        expected = np.where(silent > hosts.down_after[:end], DOWN, np.where(is_late, LATE, UP))
        is_aged = (expected != status) | hosts.is_restored[:end] | (observed_at > now) | (reported_at > uptime)
        rows = np.flatnonzero(is_aged & (status > NEVER_SEEN)).tolist()
        return [host for row in rows if (host := self.host_at[row]) is not None]

    def totals(self) -> Totals:
        """Counts over all hosts; `power_watts` is None if no host reports it. A GPU in an unknown state adds no power
        and no user."""
        self.settle()
        gpus, end = self.gpus, self.gpus.end
        states = gpus.availability[:end]
        counts = np.bincount(states, minlength=len(AVAILABILITY_WORDS)).tolist()
        is_known = (states != NONE) & (states != UNKNOWN)
        watts = gpus.metric("power_watts")[is_known]
        watts = watts[~np.isnan(watts)]
        codes = set(np.unique(gpus.user[:end][is_known]).tolist()) - {NOBODY}
        for gpu in self.shared:
            if is_known[gpu.row]:
                codes.update(self.user_code(user) for user in gpu.users)
        status = self.hosts.status[: self.hosts.end]
        return Totals(
            gpus=sum(counts) - counts[NONE],
            **{word: counts[code] for code, word in enumerate(AVAILABILITY_WORDS) if word is not None},
            hosts=int((status != NONE).sum()),
            hosts_up=int((status == UP).sum()),
            users=len(codes),
            power_watts=round(float(watts.sum()), 1) if len(watts) else None,
        )

    def user_code(self, user: str) -> int:
        return self._user_codes.setdefault(user, len(self._user_codes))

    def find_user(self, user: str) -> int | None:
        return self._user_codes.get(user)

    def take_numbers(self) -> "ChangedNumbers":
        self.settle()
        # Unpublished hosts are sent whole with the next delta.
        is_known = self.hosts.is_published[: self.hosts.end]
        reported = np.flatnonzero(self.hosts.is_changed[: self.hosts.end] & is_known)
        owners = [self.host_at[row] for row in reported.tolist()]
        rows = np.flatnonzero(self.gpus.is_changed[: self.gpus.end])
        rows = rows[is_known[self.gpus.host[rows]]]
        is_changed = self.gpus.is_process_changed[: self.gpus.end]
        numbers = ChangedNumbers(
            _take_changed(self.hosts, reported, with_unchanged=True),
            [None if host is None else host.last_report_at for host in owners],
            _take_changed(self.gpus, rows),
            *self._take_processes(is_changed & is_known[self.gpus.host[: self.gpus.end]]),
        )
        self.gpus.is_changed[rows] = self.hosts.is_changed[reported] = False
        is_changed[:] = False
        return numbers

    def note_shown(self, hosts: Sequence["HostState"]) -> None:
        """Viewers get these hosts whole, with numbers newer than the last delta. The next delta repeats these numbers,
        even if they are then equal to those of the delta before."""
        self.settle()
        own: Rows = np.array([host.row for host in hosts if host.row >= 0], np.int64)
        for table, rows in ((self.hosts, own), (self.gpus, rows_of([host.rows for host in hosts]))):
            changed = _read_changed(table, rows[table.is_changed[rows]])
            at, place = np.nonzero(changed.is_other)
            table.published[changed.rows[at], table.live[place]] = np.inf

    def changed_hosts(self) -> list["HostState"]:
        """The hosts that viewers do not know yet, and those with changes other than numbers."""
        gpus, hosts, end = self.gpus, self.hosts, self.hosts.end
        is_changed = hosts.is_text_changed[:end] | ~hosts.is_published[:end]
        is_changed[gpus.host[: gpus.end][gpus.is_state_changed[: gpus.end] | gpus.is_text_changed[: gpus.end]]] = True
        return [host for row in np.flatnonzero(is_changed).tolist() if (host := self.host_at[row]) is not None]

    def _take_processes(self, is_wanted: Flags) -> tuple[Rows, Rows, Floats]:
        """Of the wanted GPUs with processes: their rows, where the processes of each begin, and the numbers."""
        owner_of = self.processes.gpu[: self.processes.end]
        rows = np.flatnonzero((owner_of >= 0) & is_wanted[owner_of])
        rows = rows[np.argsort(owner_of[rows], kind="stable")]
        owners, starts = np.unique(owner_of[rows], return_index=True)
        return owners.astype(np.int64), np.append(starts, len(rows)), self.processes.values[rows]

    def _store_processes(self, numbers: list[ProcessNumbers]) -> None:
        if not numbers:
            return
        rows = np.concatenate([one.rows for one in numbers])
        values = np.concatenate([one.values for one in numbers])
        before = self.processes.values[rows]
        is_other = ((values != before) & ~(np.isnan(values) & np.isnan(before))).any(axis=1)
        self.processes.values[rows] = values
        owners = self.processes.gpu[rows[is_other]]
        self.gpus.is_process_changed[owners] = True
        for row in np.unique(owners[self.gpus.depends_on_processes[owners]]).tolist():
            gpu = self.gpu_at[row]
            if gpu is not None:
                gpu.read_processes(gpu.processes)

    def _judge(self, pending: list[Pending], numbers: Floats) -> None:
        if not pending:
            return
        rows = rows_of([report.host.rows for report in pending])
        counts = [report.gpu_count for report in pending]
        self._store(self.gpus, rows, numbers, pending, slice(1, None))
        now = np.repeat([report.observed_at for report in pending], counts)
        collected_at = np.repeat([report.collected_at for report in pending], counts)
        for row in judge(self.gpus, rows, now, collected_at, self.settings).tolist():
            host = self.host_at[self.gpus.host[row]]
            if host is not None:
                host.has_changed = True

    def _store(self, table: Columns, rows: Rows, values: Floats, pending: list[Pending], part: slice) -> None:
        """Store values in their rows. A value out of range becomes unknown, with the reason at its owner. A NaN inside
        `part` of a report's layout was sent, in contrast to a value that was left out."""
        sent = [count for report in pending for count in report.layout.counts[part]]
        is_short = (values == values).sum(axis=1) < sent  # noqa: PLR0124 - NaN
        if is_short.any():
            names = [names for report in pending for names in report.layout.names[part]]
            for at in np.flatnonzero(is_short).tolist():
                for place in [table.place[name] for name in names[at] if name in table.place]:
                    if math.isnan(values[at, place]):
                        self._reject(table, int(rows[at]), place, NAN)
        is_wrong = (values < table.low) | (values > table.high)
        if is_wrong.any():
            for at, place in zip(*(index.tolist() for index in np.nonzero(is_wrong)), strict=True):
                self._reject(table, int(rows[at]), place, float(values[at, place]))
                values[at, place] = np.nan
        is_other = (np.isnan(values) != np.isnan(table.values[rows])).any(axis=1)
        if is_other.any():
            for row in rows[is_other].tolist():
                owner = self._owner(table, row)
                if owner is not None:
                    owner.note_change("reasons")
        table.values[rows] = values
        table.is_changed[rows] = True

    def _reject(self, table: Columns, row: int, place: int, value: float) -> None:
        owner = self._owner(table, row)
        self.rejected += 1
        if owner is None:
            return
        reason = f"the agent sent {value:.15g}, which cannot be" if math.isfinite(value) else "not a number"
        owner.rejected = {**owner.rejected, table.names[place]: reason}
        owner.note_change("reasons")
        self._with_rejected.add(owner)

    def _clear_rejected(self, pending: list[Pending]) -> None:
        """Reset the rejected values of the reports before."""
        for report in pending:
            owners: list[GpuState | HostState] = [report.host]
            if report.has_gpus:
                owners += report.host.gpus.values()
            for owner in owners:
                if owner.rejected:
                    owner.rejected = {}
                    owner.note_change("reasons")
                    self._with_rejected.discard(owner)

    def _owner(self, table: Columns, row: int) -> "GpuState | HostState | None":
        return self.gpu_at[row] if table is self.gpus else self.host_at[row]


def _arrange(pending: list[Pending]) -> tuple[list[Pending], Floats, Floats]:
    """The reports sorted by layout, with the numbers of hosts and of GPUs in that order."""
    groups: dict[Layout, list[Pending]] = {}
    for report in pending:
        groups.setdefault(report.layout, []).append(report)
    blocks = [layout.arrange([report.numbers for report in group]) for layout, group in groups.items()]
    own, gpus = (np.concatenate(part) for part in zip(*blocks, strict=True))
    return [report for group in groups.values() for report in group], own, gpus


class _Changed(NamedTuple):
    """The current metrics of some rows, and which of them differ from the last delta."""

    table: Columns
    rows: Rows
    values: Floats
    is_other: Flags

    def encode_in_steps(self, places: Rows) -> Steps[list[bytes]]:
        """The rows at these places as members of a JSON object, one step per metric. A metric that changed on most rows
        is sent for all of them, others with the places that changed."""
        table, values, is_other = self.table, self.values[places], self.is_other[places]
        counts, live = is_other.sum(axis=0), table.live
        members = [_encode_member("rows", self.rows[places].tolist())]
        for at in np.flatnonzero(counts).tolist():
            yield
            column, is_whole = values[:, at : at + 1], table.is_whole[live[at : at + 1]]
            if counts[at] > _MAX_SPARSE * len(places):
                sent: Any = as_json(column, is_whole)[0]
            else:
                changed = np.flatnonzero(is_other[:, at])
                sent = {"at": changed.tolist(), "to": as_json(column[changed], is_whole)[0]}
            members.append(_encode_member(table.names[live[at]], sent))
        return members


def _encode_member(name: str, value: object) -> bytes:
    return b'"%b":%b' % (name.encode(), _encoder.encode(value))


def _encode_nested(values: list[Value], starts: list[int]) -> bytes:
    """An array of arrays of these values. Each begins at one of `starts`, the first of which is 0."""
    separators = [b","] * len(values)
    for start in starts:
        separators[start] = b"],["
    encoded = _encoder.encode(values)[1:-1].split(b",")
    return b"[%b]]" % b"".join(chain.from_iterable(zip(separators, encoded, strict=True)))[2:]


def _encode_object(name: str, members: list[bytes]) -> bytes:
    return b'"%b":{%b}' % (name.encode(), b",".join(members))


def _read_changed(table: Columns, rows: Rows) -> _Changed:
    values, before = table.values[np.ix_(rows, table.live)], table.published[np.ix_(rows, table.live)]
    return _Changed(table, rows, values, (values != before) & ~(np.isnan(values) & np.isnan(before)))


def _take_changed(table: Columns, rows: Rows, *, with_unchanged: bool = False) -> _Changed:
    """The rows with a metric that differs from the last delta, or all rows."""
    changed = _read_changed(table, rows)
    if not with_unchanged:
        some = changed.is_other.any(axis=1)
        changed = _Changed(table, rows[some], changed.values[some], changed.is_other[some])
    table.published[np.ix_(changed.rows, table.live)] = changed.values
    return changed


class ChangedNumbers(NamedTuple):
    """The numbers that viewers have not been sent yet: of hosts, with the times of their reports, of GPUs, and of the
    processes on the GPUs in `process_rows`."""

    hosts: _Changed
    last_report_at: list[float | None]
    gpus: _Changed
    process_rows: Rows
    process_starts: Rows
    processes: Floats

    def encode_in_steps(self, hosts: Sequence["HostState"] | None = None) -> Steps[list[bytes]]:
        """The numbers of these hosts, or of all, as members of a JSON object (docs/api.md, *The stream*). The cost
        grows with the number of hosts."""
        own = gpus = None
        if hosts is not None:
            own = np.sort(np.array([host.row for host in hosts], np.int64))
            gpus = np.sort(rows_of([host.rows for host in hosts]))
        parts: list[bytes] = []
        if len(places := _find(self.hosts.rows, own)):
            times = [self.last_report_at[place] for place in places.tolist()]
            members = yield from self.hosts.encode_in_steps(places)
            parts.append(_encode_object("reports", [*members, _encode_member("last_report_at", times)]))
        if len(places := _find(self.gpus.rows, gpus)):
            parts.append(_encode_object("gpus", (yield from self.gpus.encode_in_steps(places))))
        if len(places := _find(self.process_rows, gpus)):
            yield
            starts, ends = self.process_starts[places], self.process_starts[places + 1]
            counts = ends - starts
            begin = np.cumsum(counts) - counts
            rows = np.repeat(starts - begin, counts) + np.arange(counts.sum())
            members = [_encode_member("rows", self.process_rows[places].tolist())]
            for at, (name, metric) in enumerate(ProcessColumns.METRICS.items()):
                (values,) = as_json(self.processes[rows, at : at + 1], np.array([metric.precision >= 1]))
                members.append(b'"%b":%b' % (name.encode(), _encode_nested(values, begin.tolist())))
                yield
            parts.append(_encode_object("processes", members))
        return parts

    def encode_memory_totals(self) -> list[bytes]:
        """The changed memory sizes of GPUs as a member of a JSON object; empty if none changed."""
        table = self.gpus.table
        at = int(np.flatnonzero(table.live == table.place["memory_total_bytes"])[0])
        places = np.flatnonzero(self.gpus.is_other[:, at])
        if not len(places):
            return []
        (totals,) = as_json(self.gpus.values[places, at : at + 1], np.array([True]))
        rows = _encode_member("rows", self.gpus.rows[places].tolist())
        return [_encode_object("gpus", [rows, _encode_member("memory_total_bytes", totals)])]


def _find(rows: Rows, wanted: Rows | None) -> Rows:
    """The places of the wanted rows (None: all) among `rows`. Both are sorted."""
    if wanted is None or not len(rows):
        return np.arange(len(rows))
    places = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    found: Rows = places[rows[places] == wanted]
    return found
