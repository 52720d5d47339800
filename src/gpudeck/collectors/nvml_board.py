"""One NVIDIA board of the inventory: its readings by interval, its MIG instances, and the processes on them.

A MIG instance has memory and processes of its own, its board's temperature and clocks, and a utilization only with GPM.
Cheap calls are made at every reading, expensive ones every ten seconds. Unsupported calls are retried once a minute: a
refusal can cost much more than an answer.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.collectors.base import NO_INSTANCES, NO_VALUE, SHARED_BY_INSTANCES, WHOLE_BOARD, Measured, is_due
from gpudeck.collectors.nvml_device import (
    ARGUMENT_VERSION_MISMATCH,
    FATAL,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LASTING,
    MEMORY,
    NO_SUCH_INSTANCE,
    NOT_ASKED_FOR,
    NOT_FOUND,
    NOT_SUPPORTED,
    PCIE,
    READINGS,
    RELOADED,
    SLOW_READINGS,
    SUCCESS,
    NvmlReading,
    Values,
    call_newest,
    count_links,
    explain,
    measure,
    read_field,
    read_uuid_and_name,
)
from gpudeck.collectors.nvml_gpm import ACTIVITY_NAMES, BOARD_NAMES, INSTANCE_NAMES, OF_GPU_INSTANCE, ActivityWatch
from gpudeck.collectors.owners import MAX_PLAUSIBLE_BYTES, GpuDraft, ProcessUse, merge_uses
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import GpuReading

_NO_MARGIN = frozenset({FUNCTION_NOT_FOUND, NOT_SUPPORTED, INVALID_ARGUMENT, ARGUMENT_VERSION_MISMATCH})
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT; what is not one is 64 bits wide


def _read_nvlink_errors(nvml: Any, gpu: Any) -> Values:
    """Replays and recoveries of all links, and the link with the most. From Blackwell on the driver counts recoveries
    only; before Hopper some count no single links."""
    kinds = (
        nvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
        nvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    )
    asked = [(kind, link) for link in range(count_links(nvml, gpu)) for kind in kinds]
    errors: Counter[int] = Counter()
    for answer in nvml.nvmlDeviceGetFieldValues(gpu, asked) if asked else ():
        if not answer.nvmlReturn:
            value = answer.value
            errors[answer.scopeId] += value.uiVal if answer.valueType == _UNSIGNED_INT else value.ullVal
    if not errors:
        totals = (nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
        return sum(read_field(nvml, gpu, total) for total in totals), None
    ((worst, most),) = errors.most_common(1)
    return sum(errors.values()), worst if most else None


def _read_margin(nvml: Any, gpu: Any) -> Values:
    """Degrees until the driver slows the GPU down. Drivers and cards without it have the threshold."""
    try:
        return (nvml.nvmlDeviceGetMarginTemperature(gpu),)
    except nvml.NVMLError as error:
        if error.value not in _NO_MARGIN:
            raise
    limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    return (limit - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU) if limit else None,)


LINK_READINGS = (
    NvmlReading(("pcie_generation",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),)),
    NvmlReading(("pcie_generation_max",), lambda nvml, gpu: (nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),)),
    NvmlReading(("pcie_width",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),)),
    NvmlReading(("pcie_width_max",), lambda nvml, gpu: (nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),)),
    NvmlReading(("nvlink_error_count", "nvlink_error_link"), _read_nvlink_errors),
    NvmlReading(("temperature_margin_celsius",), _read_margin),
)
"""Signs of a fault before it stops work. The maximum of the PCIe link is that of card and slot together."""


_SLOW = (*SLOW_READINGS, *LINK_READINGS)


# Version 3 of the lists, then 2, each with its own layout: drivers 535.43 to 535.86 scramble the pids of one that is
# asked for as the other.
_LISTS = {
    kind: (f"nvmlDeviceGet{kind}RunningProcesses_v3", f"nvmlDeviceGet{kind}RunningProcesses_v2")
    for kind in ("Compute", "Graphics")
}

# How far back a first question goes, and how old an answer may be for the next one to go on from it.
_FIRST_SECONDS = 10.0
_RESUME_SECONDS = 60.0

UNDER_MIG = "not measured by process on a GPU in MIG mode"
NOT_YET = "not measured yet: it is read every few seconds"
# A little less than ten seconds and a minute, so that a slightly early reading counts.
_SLOW_SECONDS = 9.5
_EXPLORE_SECONDS = 59.5


def read_uses(nvml: Any, handle: Any) -> tuple[list[ProcessUse] | None, str | None]:
    listed: list[ProcessUse] = []
    for kind, functions in _LISTS.items():
        try:
            for process in call_newest(nvml, functions, handle):
                memory = process.usedGpuMemory
                known = memory if memory is not None and memory <= MAX_PLAUSIBLE_BYTES else None
                listed.append(ProcessUse(process.pid, known, graphics_only=kind == "Graphics"))
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # Some boards and all MIG instances draw nothing: the compute list is then the whole list.
            if kind == "Compute":
                return None, explain(error)
    uses = merge_uses(listed)
    for use in uses:
        if use.memory_bytes is None:
            use.reasons["memory_used_bytes"] = NO_VALUE
    return uses, None


class ProcessLoads(Struct):
    """The utilization by process of one board. `percents` has the active processes, with None for an invalid value;
    `listed` has all processes: the others were idle. `seen_at` is the driver's own time of the newest sample, in
    microseconds."""

    percents: dict[int, int | None] = field(default_factory=dict)
    listed: frozenset[int] = frozenset()
    reason: str | None = None
    seen_at: int = 0

    def find(self, pid: int) -> tuple[int | None, str | None]:
        if self.reason is not None:
            return None, self.reason
        percent = self.percents.get(pid, 0 if pid in self.listed else None)
        return percent, None if percent is not None else NO_VALUE if pid in self.percents else NOT_YET

    def update(self, nvml: Any, handle: Any, pids: frozenset[int], now: float) -> None:
        """Asks again, for what happened since the last time; from 0 on would be the driver's whole buffer, in which
        finished work still looks busy. Takes 1.5 ms on an H200."""
        if self.reason in LASTING:
            return
        # The clock may jump, and a machine may sleep: neither is to be filled with what is long over.
        is_fresh = abs(now - self.seen_at / 1e6) < _RESUME_SECONDS
        since = self.seen_at if is_fresh else max(0, int((now - _FIRST_SECONDS) * 1e6))
        self.percents, self.listed, self.reason = {}, pids, None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # No samples: no work. (pynvml makes an error of an empty list that is a success.)
            self.reason = None if error.value in {NOT_FOUND, SUCCESS} else explain(error)
            return
        for time, pid, percent in sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples):
            if time > since:  # drivers have been seen to return older ones too
                self.percents[pid] = percent if percent <= 100 else None
                self.seen_at = max(self.seen_at, time)


class NvmlInstance(Struct, frozen=True):
    """A MIG instance. Compute instances of one GPU instance share its memory: all but the first name the first."""

    gpu: GpuReading
    handle: Any
    gpu_instance: int
    shares_memory_with: int | None = None


class NvmlInstances(NamedTuple):
    """The MIG instances of a board in MIG mode, which may be none, and a sentence for each that cannot be opened."""

    opened: list[NvmlInstance]
    refused: list[str]


def find_instances(nvml: Any, board: GpuReading, handle: Any) -> NvmlInstances | None:
    """None where the board is used as a whole. An instance that cannot be opened hides no other: a container may have
    been given some of a board's instances only."""
    try:
        current_mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return None
    if current_mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = NvmlInstances([], [])
    memory_owners: dict[int, int] = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.opened.append(_open_instance(nvml, board, handle, number, memory_owners))
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # Slots need not be filled from the front, and an instance may be destroyed while they are walked.
            if error.value not in NO_SUCH_INSTANCE:
                found.refused.append(f"MIG instance {number} cannot be opened: {explain(error)}")
    return found


def _open_instance(
    nvml: Any, board: GpuReading, board_handle: Any, number: int, memory_owners: dict[int, int]
) -> NvmlInstance:
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board_handle, number)
    uuid, name = read_uuid_and_name(nvml, handle)
    gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
    memory_owner = memory_owners.setdefault(gpu_instance, number)
    gpu = replace(board, uuid=uuid, name=name, parent=board.uuid, instance=number)
    return NvmlInstance(gpu, handle, gpu_instance, None if memory_owner == number else memory_owner)


def measure_instance(nvml: Any, instance: NvmlInstance, board: Measured, activity: Measured) -> Measured:
    """The readings of a MIG instance. Raises a code of NO_SUCH_INSTANCE when it was destroyed."""
    measured = measure(nvml, instance.handle, (MEMORY,), FATAL | NO_SUCH_INSTANCE)
    if instance.shares_memory_with is not None:
        measured.metrics.clear()
        measured.unknown.update(
            dict.fromkeys(MEMORY.names, f"shared with instance {instance.shares_memory_with}, counted there")
        )
    for name in GPU_METRICS.keys() - set(MEMORY.names):
        if name in SHARED_BY_INSTANCES and name in board.metrics:
            measured.metrics[name] = board.metrics[name]
        else:
            measured.unknown[name] = board.unknown.get(name, WHOLE_BOARD)
    for name in activity.metrics:
        del measured.unknown[name]
    measured.metrics.update(activity.metrics)
    measured.unknown.update(activity.unknown)
    return measured


class NvmlBoard(Struct):
    """A GPU of the inventory. It stays there, with its reason in `missing`. `instances` is None where the board is used
    as a whole. `lasting` has the metrics that are not worth asking for, with their reasons."""

    gpu: GpuReading
    handle: Any = None
    has_pcie: bool = False
    missing: str | None = None
    instances: NvmlInstances | None = None
    lasting: dict[str, str] = field(default_factory=dict)
    slow: Measured = field(default_factory=lambda: Measured({}, {}))
    loads: ProcessLoads = field(default_factory=ProcessLoads)
    activity: ActivityWatch = field(default_factory=ActivityWatch)
    slow_at: float | None = None
    explored_at: float | None = None

    @property
    def problems(self) -> list[str]:
        refused = self.instances.refused if self.instances is not None and self.missing is None else []
        return [f"GPU {self.gpu.index}: {sentence}." for sentence in refused]

    def read(self, nvml: Any, now: float) -> list[GpuDraft]:
        """Its rows: itself, or its MIG instances. Raises only what concerns every board."""
        if self.missing is None:
            try:
                return list(self._read(nvml, now))
            except nvml.NVMLError as error:
                if error.value in RELOADED:
                    raise
                self.missing = explain(error)
        return [GpuDraft(replace(self.gpu, missing=self.missing))]

    def _read(self, nvml: Any, now: float) -> Iterator[GpuDraft]:
        is_slow_reading = is_due(self.slow_at, _SLOW_SECONDS, now)
        if is_slow_reading:
            self._read_slowly(nvml, now)
        measured = self._measure(nvml, READINGS)
        for part in (self.slow.unknown, self.lasting):
            measured.unknown.update(part)
        measured.metrics.update(self.slow.metrics)
        if self.instances is None:
            yield self._read_whole(nvml, measured, now if is_slow_reading else None)
        else:
            rows = list(self._read_instances(nvml, self.instances.opened, measured))
            reason = "; ".join(self.instances.refused[:1]) or NO_INSTANCES
            yield from rows or [_draft(self.gpu, measured, None, reason)]

    def _read_slowly(self, nvml: Any, now: float) -> None:
        if is_due(self.explored_at, _EXPLORE_SECONDS, now):
            self._explore(nvml)
            self.explored_at = now
        self.instances = find_instances(nvml, self.gpu, self.handle)
        # GPM measures PCIe, too.
        is_pcie_read = self.has_pcie and self.activity.reason is not None
        self.slow = self._measure(nvml, (*_SLOW, PCIE) if is_pcie_read else _SLOW)
        self._measure_activity(nvml, now)
        self.slow_at = now

    def _explore(self, nvml: Any) -> None:
        self.activity.explore(nvml, self.handle)
        self.lasting, self.loads.reason = {}, None
        if self.activity.reason is not None:
            self.lasting = dict.fromkeys(ACTIVITY_NAMES, self.activity.reason)
            self.lasting |= {} if self.has_pcie else dict.fromkeys(PCIE.names, NOT_ASKED_FOR)

    def _measure_activity(self, nvml: Any, now: float) -> None:
        if self.activity.reason is not None:
            self.activity.measure(nvml, self.handle, {}, now)
        elif self.instances is None:
            self.activity.measure(nvml, self.handle, {self.gpu.uuid: None}, now)
            metrics, unknown = self.activity.of_rows[self.gpu.uuid]
            self.slow.metrics.update(metrics)
            self.slow.unknown.update(unknown)
        else:
            opened = self.instances.opened
            shared = {instance.shares_memory_with for instance in opened}
            alone = {
                instance.gpu.uuid: instance.gpu_instance
                for instance in opened
                if instance.shares_memory_with is None and instance.gpu.instance not in shared
            }
            self.activity.measure(nvml, self.handle, alone, now)
            self.slow.unknown.update(dict.fromkeys(BOARD_NAMES, WHOLE_BOARD if opened else NO_INSTANCES))

    def _activity_of(self, instance: NvmlInstance) -> Measured:
        if self.activity.reason is not None:
            return Measured({}, {})
        shared = Measured({}, dict.fromkeys(INSTANCE_NAMES, OF_GPU_INSTANCE))
        return self.activity.of_rows.get(instance.gpu.uuid, shared)

    def close(self, nvml: Any) -> None:
        self.activity.close(nvml)

    def _measure(self, nvml: Any, readings: tuple[NvmlReading, ...]) -> Measured:
        measured = measure(nvml, self.handle, [one for one in readings if one.names[0] not in self.lasting])
        self.lasting |= {name: why for name, why in measured.unknown.items() if why in LASTING}
        return measured

    def _read_whole(self, nvml: Any, measured: Measured, slow_at: float | None) -> GpuDraft:
        uses, reason = read_uses(nvml, self.handle)
        if slow_at is not None and uses:
            self.loads.update(nvml, self.handle, frozenset(use.pid for use in uses), slow_at)
        for use in uses or ():
            use.percent, why_not = self.loads.find(use.pid)
            if why_not is not None:
                use.reasons["utilization_percent"] = why_not
        return _draft(self.gpu, measured, uses, reason)

    def _read_instances(self, nvml: Any, instances: list[NvmlInstance], measured: Measured) -> Iterator[GpuDraft]:
        for instance in instances:
            try:
                of_instance = measure_instance(nvml, instance, measured, self._activity_of(instance))
                uses, reason = read_uses(nvml, instance.handle)
            except nvml.NVMLError as error:
                if error.value not in NO_SUCH_INSTANCE:
                    raise
                self.slow_at = None  # destroyed since it was found: look again on the next reading
                continue
            for use in uses or ():
                use.reasons["utilization_percent"] = UNDER_MIG
            yield _draft(instance.gpu, of_instance, uses, reason)


def _draft(gpu: GpuReading, measured: Measured, uses: list[ProcessUse] | None, reason: str | None) -> GpuDraft:
    if uses:
        measured.add_up_memory([use.memory_bytes for use in uses])
    metrics, unknown = measured
    return GpuDraft(replace(gpu, metrics=metrics, unknown=unknown, processes_reason=reason), uses)
