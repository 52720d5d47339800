"""Where the numbers of a report stand: those of a whole report by name, those of a short one by their place.

Both become rows in the catalog's order. A host's layout is made anew only when it reports other metrics than before.
"""

from array import array
from collections.abc import Mapping
from math import isnan
from struct import Struct
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from msgspec.structs import replace

from gpudeck.fleet.columns import NAN, Floats, Rows
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import Disk, GpuReading, Number, Report
from gpudeck.wire import ShortReport

_DOUBLE: Final = 8
_MOST_IDLE: Final = 1e10
_END_OF_MEMORY: Final = 2**53
_END_OF_DISKS: Final = 2**60
"""What a short report may have of a number is what model.report says of it in a whole one."""
_NO_METRICS: Final[dict[str, Number]] = {}
_NAN_BYTES: Final = np.array(NAN, "<f8").tobytes()

Names = tuple[tuple[str, ...], ...]


def names_of(report: Report) -> Names:
    """Which metrics a report has: those of the host first, then those of each GPU."""
    return (tuple(report.metrics), *[tuple(gpu.metrics) for gpu in report.gpus or ()])


def find_layout(names: Names) -> "Layout":
    """Hosts that report the same metrics share one."""
    layout = _layouts.get(names)
    if layout is None:
        layout = _layouts[names] = Layout(names)
    return layout


class Layout:
    """Of reports with these metrics. `counts` are how many of them the catalog knows: of the host first, then of each
    GPU. A metric that it does not know has a place and no column. `metric_bytes` is the length of all in a short
    report."""

    def __init__(self, names: Names) -> None:
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


_layouts: WeakValueDictionary[Names, Layout] = WeakValueDictionary()


def _catalogs(names: Names) -> list[tuple[tuple[str, ...], Mapping[str, object]]]:
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


def refuse_undescribed(envelope: ShortReport) -> ReportRefused:
    """A short report that cannot be read without the whole one that it refers to."""
    return ReportRefused(
        428,
        "description_needed",
        f"this hub does not know the description {envelope.description!r} of {envelope.host}",
        "Send the whole report (wire version 1).",
    )


def _out_of_bounds(what: str) -> ReportRefused:
    return ReportRefused(422, "invalid_report", f"a number in `numbers` is out of bounds: {what}")
