"""The fleet's numbers in one place: columns over all GPUs and hosts, and the reports that wait to be judged.

numpy costs the same for one host as for a hundred, so reports are taken as they come and judged together: when there
are enough of them, when a host reports again, once a second, and before anybody looks. One event loop owns a table.

Numbers of whole and of short reports become rows in the catalog's order (`Layout`). A host's layout is made anew only
when it reports other metrics than before.
"""

import math
from array import array
from collections.abc import Callable, Mapping
from math import isnan
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from msgspec.structs import replace

from gpudeck.fleet.columns import (
    AVAILABILITY_WORDS,
    DOWN,
    LATE,
    NAN,
    NEVER,
    NOBODY,
    NONE,
    UNKNOWN,
    UP,
    Columns,
    Floats,
    GpuColumns,
    HostColumns,
    Rows,
    as_json,
    judge,
    rows_of,
)
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import ReportRefused
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.names import Names
from gpudeck.model.report import Disk, GpuReading, Number, Report
from gpudeck.model.reservation import Mark
from gpudeck.model.view import Totals
from gpudeck.wire import ShortReport

if TYPE_CHECKING:
    from gpudeck.hub.gpu import GpuState
    from gpudeck.hub.host import HostState

_DOUBLE: Final = 8
_MOST_IDLE: Final = 1e10
_END_OF_MEMORY: Final = 2**53
_END_OF_DISKS: Final = 2**60
"""What a short report may have of a number is what model.report says of it in a whole one."""
_NO_METRICS: Final[dict[str, Number]] = {}
_NAN_BYTES: Final = np.array(NAN, "<f8").tobytes()

MetricNames = tuple[tuple[str, ...], ...]
BATCH: Final = 512
"""GPUs, and a few for each host, that are judged together at most: more would keep the event loop busy for too long."""
_HOST_WEIGHT: Final = 8
_MOST_SPARSE: Final = 0.6
"""The part of the rows from which on a column is sent whole."""


def names_of(report: Report) -> MetricNames:
    """Which metrics a report has: those of the host first, then those of each GPU."""
    return (tuple(report.metrics), *[tuple(gpu.metrics) for gpu in report.gpus or ()])


def find_layout(names: MetricNames) -> "Layout":
    """Hosts that report the same metrics share one."""
    layout = _layouts.get(names)
    if layout is None:
        layout = _layouts[names] = Layout(names)
    return layout


class Layout:
    """Of reports with these metrics. `counts` are how many of them the catalog knows: of the host first, then of each
    GPU. A metric that it does not know has a place and no column. `metric_bytes` is the length of all in a short
    report."""

    def __init__(self, names: MetricNames) -> None:
        self.names = names
        self.counts = [sum(name in catalog for name in of) for of, catalog in _catalogs(names)]
        length, start, places = sum(map(len, names)), 0, list[int]()
        for of, catalog in _catalogs(names):
            place_of = dict(zip(of, range(start, start + len(of)), strict=True))
            # The place after the last one is that of all that is unknown.
            places += [place_of.get(name, length) for name in catalog]
            start += len(of)
        self._host_places: Rows = np.array(places[: len(HOST_METRICS)], np.int64)
        self._gpu_places: Rows = np.array(places[len(HOST_METRICS) :], np.int64)
        self.metric_bytes = _DOUBLE * length

    def read(self, report: Report) -> tuple[Floats, Floats]:
        """The metrics of a whole report in the catalog's order: of the host, and of all its GPUs."""
        numbers = array("d", report.metrics.values())
        for gpu in report.gpus or ():
            numbers.extend(gpu.metrics.values())
        numbers.append(NAN)
        return self._arrange(np.frombuffer(numbers))

    def read_short(self, numbers: bytes) -> tuple[Floats, Floats]:
        """The same of a short one."""
        return self._arrange(np.frombuffer(numbers[: self.metric_bytes] + _NAN_BYTES, "<f8"))

    def _arrange(self, values: Floats) -> tuple[Floats, Floats]:
        return values.take(self._host_places), values.take(self._gpu_places)


_layouts: WeakValueDictionary[MetricNames, Layout] = WeakValueDictionary()


def _catalogs(names: MetricNames) -> list[tuple[tuple[str, ...], Mapping[str, object]]]:
    return [(of, GPU_METRICS if at else HOST_METRICS) for at, of in enumerate(names)]


class Description:
    """The whole report that short ones of its host refer to, as far as it is needed again: `report` has no metrics, and
    of its GPUs the names and faults alone. `id` is the sender's name for it, `faulty` are the GPUs with faults, by
    their places."""

    def __init__(self, description: str, report: Report, layout: Layout) -> None:
        self.id = description
        # Of a GPU no more is needed again: thousands of these are kept.
        gpus = report.gpus and [GpuReading(gpu.uuid, gpu.index, gpu.name, events=gpu.events) for gpu in report.gpus]
        self.report = replace(report, metrics=_NO_METRICS, gpus=gpus)
        self.layout = layout
        self._disks = report.disks
        self.faulty = [(at, gpu) for at, gpu in enumerate(gpus or ()) if gpu.events]
        self._counts = [len(gpu.processes or ()) for gpu in report.gpus or ()]
        self._idle = Struct(f"<{len(self._counts)}d")
        self._rest = Struct(f"<{2 * sum(self._counts) + len(report.disks)}d")
        self._rest_at = layout.metric_bytes + self._idle.size
        processes = [one for gpu in report.gpus or () for one in gpu.processes or ()]
        numbers = [number for one in processes for number in (one.memory_used_bytes, one.utilization_percent)]
        used = [disk.used_bytes for disk in report.disks]
        self._last_rest = self._rest.pack(*(NAN if number is None else number for number in numbers), *used)

    def check(self, numbers: bytes) -> None:
        """Raises ReportRefused where the numbers of a short report do not fit it, as a whole one would be refused."""
        length = self._rest_at + self._rest.size
        if len(numbers) != length:
            told = f"`numbers` has {len(numbers)} bytes, and its description needs {length}"
            raise ReportRefused(422, "invalid_report", told)
        for idle in self.idle_seconds(numbers):
            if not 0 <= idle <= _MOST_IDLE and not isnan(idle):
                raise _out_of_bounds("idle_seconds of a GPU")
        if numbers[self._rest_at :] == self._last_rest:
            return
        rest, end = self._rest.unpack_from(numbers, self._rest_at), 2 * sum(self._counts)
        for size in rest[:end:2]:
            if not (0 <= size < _END_OF_MEMORY and size.is_integer()) and not isnan(size):
                raise _out_of_bounds("memory_used_bytes of a process")
        for percent in rest[1:end:2]:
            if not 0 <= percent <= 100 and not isnan(percent):
                raise _out_of_bounds("utilization_percent of a process")
        for size in rest[end:]:
            if not (0 <= size < _END_OF_DISKS and size.is_integer()):
                raise _out_of_bounds("used_bytes of a disk")

    def idle_seconds(self, numbers: bytes) -> tuple[float, ...]:
        """Of each GPU; NaN is unknown."""
        return self._idle.unpack_from(numbers, self.layout.metric_bytes)

    def take_rest(self, numbers: bytes) -> tuple[dict[int, tuple[float, ...]], list[Disk]]:
        """The numbers of the processes of those GPUs, by their places, of which one is another than in the report
        before; and the disks."""
        last, self._last_rest = self._last_rest, numbers[self._rest_at :]
        if last == self._last_rest:
            return {}, self._disks
        changed, start, rest = {}, 0, self._rest.unpack(self._last_rest)
        for at, count in enumerate(self._counts):
            end = start + 2 * count
            if last[_DOUBLE * start : _DOUBLE * end] != self._last_rest[_DOUBLE * start : _DOUBLE * end]:
                changed[at] = rest[start:end]
            start = end
        disks = zip(self.report.disks, rest[start:], strict=True)
        self._disks = [Disk(disk.mount, int(used), disk.total_bytes) for disk, used in disks]
        return changed, self._disks


def refuse_undescribed(envelope: ShortReport, why: str = "") -> ReportRefused:
    """A short report that cannot be read without the whole one that it refers to."""
    unknown = f"this hub does not know the description {envelope.description!r} of {envelope.host}"
    return ReportRefused(428, "description_needed", why or unknown, "Send the whole report (wire version 1).")


def _out_of_bounds(what: str) -> ReportRefused:
    return ReportRefused(422, "invalid_report", f"a number in `numbers` is out of bounds: {what}")


class Pending(NamedTuple):
    """A report that waits to be judged. `numbers` and `gpu_numbers` are in the catalog's order, `layout` says which of
    them were sent.

    `observed_at` is its moment on the hub's clock, `collected_at` the same on its host's, and it arrived at `now`.
    """

    host: "HostState"
    numbers: Floats
    gpu_numbers: Floats
    layout: Layout
    has_gpus: bool
    observed_at: float
    collected_at: float
    now: float
    is_backlog: bool


class FleetTable:
    """`gpus` and `hosts` are the columns; `gpu_at` and `host_at` say whose row each is.

    `marks` is what reservations say, by UUID, kept up to date by the fleet. `settled` is told of each batch of reports
    after it was judged. `rejected` counts the values that were not believed. `other_processes` are GPUs with processes
    of which nothing but numbers changed since viewers were last sent them, `shared` those with several users.
    `regroupings` counts how often the set of GPUs of any host changed.
    """

    def __init__(
        self,
        settings: FleetSettings,
        names: Names,
        marks: Mapping[str, Mark],
        settled: Callable[[list[Pending]], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.names = names
        self.marks = marks
        self.gpus = GpuColumns()
        self.hosts = HostColumns()
        self.gpu_at: list[GpuState | None] = []
        self.host_at: list[HostState | None] = []
        self.other_processes: set[GpuState] = set()
        self.shared: set[GpuState] = set()
        self.rejected = 0
        self.regroupings = 0
        self._user_codes: dict[str, int] = {}
        self._settled = settled
        self._pending: list[Pending] = []
        self._weight = 0
        self._disbelieved: set[GpuState | HostState] = set()

    def note_regrouped(self) -> None:
        """The set of GPUs of a host is another."""
        self.regroupings += 1

    def recycle(self) -> None:
        """Viewers know whose rows are whose: those that are nobody's may be given out again."""
        self.gpus.recycle()
        self.hosts.recycle()

    def rename(self, names: Names) -> None:
        """What hosts and models are called from here on."""
        self.names = names

    def put(self, report: Pending) -> None:
        """Keep a report until the next `settle`; a host has at most one that waits."""
        self._pending.append(report)
        self._weight += max(_HOST_WEIGHT, len(report.layout.counts))
        if self._weight >= BATCH:
            self.settle()

    def settle(self) -> None:
        """Judge all reports that wait. Whoever reads the fleet calls this first."""
        if not self._pending:
            return
        pending, self._pending, self._weight = self._pending, [], 0
        for report in pending:
            report.host.note_settled()
        if self._disbelieved:
            self._believe_again(pending)
        own = np.array([report.host.row for report in pending])
        self._store(self.hosts, own, [report.numbers for report in pending], pending, slice(1))
        self.hosts.is_unseen[own] = True
        self._judge([report for report in pending if len(report.gpu_numbers)])
        self._settled(pending)

    def find_aged(self, now: float, uptime: float) -> list["HostState"]:
        """The hosts whose status may be another by now. `uptime` is a clock that nobody sets."""
        hosts, end = self.hosts, self.hosts.end
        status, observed_at, heard = hosts.status[:end], hosts.observed_at[:end], hosts.heard_uptime[:end]
        silent = uptime - heard
        is_late = np.maximum(silent, now - observed_at) > hosts.late_after[:end]
        expected = np.where(silent > hosts.down_after[:end], DOWN, np.where(is_late, LATE, UP))
        is_aged = (expected != status) | hosts.is_recalled[:end] | (observed_at > now) | (heard > uptime)
        rows = np.flatnonzero(is_aged & (status > NEVER)).tolist()
        return [host for row in rows if (host := self.host_at[row]) is not None]

    def totals(self) -> Totals:
        """Counts over all hosts; the power is None when no host reports any. A GPU in an unknown state adds no power
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
        """The number that stands for a user in a column."""
        return self._user_codes.setdefault(user, len(self._user_codes))

    def take_numbers(self) -> dict[str, Any]:
        """What of the numbers viewers have not been sent yet, as arrays: see docs/api.md, *The stream*."""
        self.settle()
        delta: dict[str, Any] = {}
        # What is not published yet comes whole with the next delta.
        is_known = self.hosts.is_published[: self.hosts.end]
        reported = np.flatnonzero(self.hosts.is_changed[: self.hosts.end] & is_known).tolist()
        if reported:
            owners = [self.host_at[row] for row in reported]
            delta["reports"] = {
                **_take_columns(self.hosts, np.array(reported), with_unchanged=True),
                "last_report_at": [None if host is None else host.last_report_at for host in owners],
            }
        rows = np.flatnonzero(self.gpus.is_changed[: self.gpus.end])
        if changed := _take_columns(self.gpus, rows[is_known[self.gpus.host[rows]]]):
            delta["gpus"] = changed
        if self.other_processes:
            delta["processes"] = self._take_processes()
        self.gpus.is_changed[: self.gpus.end] = self.hosts.is_changed[: self.hosts.end] = False
        return delta

    def changed_rows(self) -> set[int]:
        """The hosts, by row, that viewers do not know yet, and those with a GPU that is in another state."""
        gpus, hosts = self.gpus, self.hosts
        owners = gpus.host[np.flatnonzero(gpus.is_state_changed[: gpus.end])]
        return {*owners.tolist(), *np.flatnonzero(~hosts.is_published[: hosts.end]).tolist()}

    def _take_processes(self) -> dict[str, Any]:
        is_known = self.hosts.is_published[self.gpus.host]
        changed = (gpu for gpu in self.other_processes if gpu.has_processes and is_known[gpu.row])
        gpus = sorted(changed, key=lambda gpu: gpu.row)
        for gpu in self.other_processes:
            gpu.forget_text()
        self.other_processes.clear()
        numbers = [gpu.process_numbers() for gpu in gpus]
        return {
            "rows": [gpu.row for gpu in gpus],
            "memory_used_bytes": [memory for memory, _ in numbers],
            "utilization_percent": [percent for _, percent in numbers],
        }

    def _judge(self, pending: list[Pending]) -> None:
        if not pending:
            return
        rows = rows_of([report.host.rows for report in pending])
        counts = [len(report.gpu_numbers) // len(self.gpus.names) for report in pending]
        self._store(self.gpus, rows, [report.gpu_numbers for report in pending], pending, slice(1, None))
        now = np.repeat([report.observed_at for report in pending], counts)
        collected_at = np.repeat([report.collected_at for report in pending], counts)
        for row in judge(self.gpus, rows, now, collected_at, self.settings).tolist():
            host = self.host_at[self.gpus.host[row]]
            if host is not None:
                host.has_news = True

    def _store(self, table: Columns, rows: Rows, numbers: list[Floats], pending: list[Pending], part: slice) -> None:
        """Put values into their rows. One that cannot be becomes unknown, and its owner says why.

        `part` of each report's layout is that of its rows: a NaN there was sent, and is not a value that was left out.
        """
        values: Floats = np.concatenate(numbers).reshape(-1, len(table.names))
        sent = [count for report in pending for count in report.layout.counts[part]]
        is_short = (values == values).sum(axis=1) < sent  # noqa: PLR0124 - NaN
        if is_short.any():
            names = [names for report in pending for names in report.layout.names[part]]
            for at in np.flatnonzero(is_short).tolist():
                for place in [table.place[name] for name in names[at] if name in table.place]:
                    if math.isnan(values[at, place]):
                        self._disbelieve(table, int(rows[at]), place, NAN)
        is_wrong = (values < table.low) | (values > table.high)
        if is_wrong.any():
            for at, place in zip(*(index.tolist() for index in np.nonzero(is_wrong)), strict=True):
                self._disbelieve(table, int(rows[at]), place, float(values[at, place]))
                values[at, place] = np.nan
        is_other = (np.isnan(values) != np.isnan(table.values[rows])).any(axis=1)
        if is_other.any():
            for row in rows[is_other].tolist():
                owner = self._owner(table, row)
                if owner is not None:
                    owner.changed.add("reasons")
        table.values[rows] = values
        table.is_changed[rows] = True

    def _disbelieve(self, table: Columns, row: int, place: int, value: float) -> None:
        owner = self._owner(table, row)
        self.rejected += 1
        if owner is None:
            return
        reason = f"the agent sent {value:.15g}, which cannot be" if math.isfinite(value) else "not a number"
        owner.rejected = {**owner.rejected, table.names[place]: reason}
        owner.changed.add("reasons")
        self._disbelieved.add(owner)

    def _believe_again(self, pending: list[Pending]) -> None:
        """What was not believed of the reports before says nothing about these."""
        for report in pending:
            owners: list[GpuState | HostState] = [report.host]
            if report.has_gpus:
                owners += report.host.gpus.values()
            for owner in owners:
                if owner.rejected:
                    owner.rejected = {}
                    owner.changed.add("reasons")
                    self._disbelieved.discard(owner)

    def _owner(self, table: Columns, row: int) -> "GpuState | HostState | None":
        return self.gpu_at[row] if table is self.gpus else self.host_at[row]


def _take_columns(table: Columns, rows: Rows, *, with_unchanged: bool = False) -> dict[str, Any]:
    """The metrics of these rows that are other than what was last sent: of one that changed on most of them the values
    of all, of others the places among the rows and the values there. `rows` are those of which one did, or all."""
    live = table.live
    values, before = table.values[np.ix_(rows, live)], table.published[np.ix_(rows, live)]
    is_other = (values != before) & ~(np.isnan(values) & np.isnan(before))
    if not with_unchanged:
        some = is_other.any(axis=1)
        rows, values, is_other = rows[some], values[some], is_other[some]
    if not len(rows):
        return {}
    table.published[np.ix_(rows, live)] = values
    counts = is_other.sum(axis=0)
    delta: dict[str, Any] = {"rows": rows.tolist()}
    for at in np.flatnonzero(counts).tolist():
        column, is_whole = values[:, at : at + 1], table.is_whole[live[at : at + 1]]
        if counts[at] > _MOST_SPARSE * len(rows):
            sent: Any = as_json(column, is_whole)[0]
        else:
            changed = np.flatnonzero(is_other[:, at])
            sent = {"at": changed.tolist(), "to": as_json(column[changed], is_whole)[0]}
        delta[table.names[live[at]]] = sent
    return delta
