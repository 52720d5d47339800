"""What one NVIDIA device, a board or a MIG instance, says through NVML: its metrics, processes and instances.

Everything takes the module pynvml and a device handle. An `NVMLError` comes out only when the device as a whole cannot
be read, or, with a code in RELOADED, when no device can. Anything less is an unknown value with its reason.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from gpudeck.model.catalog import GPU_METRICS, Rollup
from gpudeck.model.report import Number

# Return codes of nvml.h, which never change their meaning.
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 12, 13, 15, 16
LIB_RM_VERSION_MISMATCH, NO_DATA, ARGUMENT_VERSION_MISMATCH, NOT_READY, GPU_NOT_FOUND = 18, 21, 25, 27, 28

RELOADED = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Nothing can be read before the driver is opened again."""
_FATAL = RELOADED | {GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND}
_NO_SUCH_INSTANCE = frozenset({NOT_FOUND, INVALID_ARGUMENT})
_NO_MEMORY_V2 = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED})

UNSUPPORTED = "not supported by this GPU"
NO_VALUE = "the driver gives no value"
WHOLE_BOARD = "measured on the whole board, not by MIG instance"
_REASONS = {
    NOT_SUPPORTED: UNSUPPORTED,
    NO_DATA: NO_VALUE,
    NOT_READY: NO_VALUE,
    NO_PERMISSION: "not permitted to read it",
    FUNCTION_NOT_FOUND: "the driver is too old to tell",
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or stopped answering",
    GPU_NOT_FOUND: "the driver no longer finds the GPU",
    RESET_REQUIRED: "the GPU needs a reset",
}

PROCESSES_AT_MOST = 1024
_BYTES_AT_MOST = 2**53

Values = tuple[Number | None, ...]


class Reading(NamedTuple):
    """Metrics that one call gives; None is "no value"."""

    names: tuple[str, ...]
    read: Callable[[Any, Any], Values]


class Measured(NamedTuple):
    """Metrics with their values, rounded as the catalog says, and the unknown ones with their reasons."""

    metrics: dict[str, Number]
    unknown: dict[str, str]


class Use(Struct):
    """What one process has on one device; unknown memory is None."""

    memory_bytes: int | None
    graphics_only: bool


class Instance(Struct, frozen=True):
    """A MIG instance. Compute instances of one GPU instance share its memory: all but the first say with whom."""

    uuid: str
    name: str
    handle: Any
    number: int
    shares_memory_with: int | None = None


def _read_utilization(nvml: Any, gpu: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu, rates.memory


def _read_memory(nvml: Any, gpu: Any) -> Values:
    """Version 2 leaves out what the driver keeps for itself; version 1 counts hundreds of MB of it as used."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value not in _NO_MEMORY_V2:
            raise
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    # Chips that share the host's memory (GB10, Jetson) answer 0 with success.
    return (memory.used, memory.total) if memory.total else (None, None)


def _read_temperature(nvml: Any, gpu: Any) -> Values:
    return (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),)


MEMORY = Reading(("memory_used_bytes", "memory_total_bytes"), _read_memory)
READINGS = (
    Reading(("utilization_percent", "memory_utilization_percent"), _read_utilization),
    MEMORY,
    Reading(("temperature_celsius",), _read_temperature),
    Reading(("power_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,)),
    Reading(("power_limit_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,)),
    Reading(("fan_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetFanSpeed(gpu),)),
    Reading(("clock_sm_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    Reading(("clock_memory_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
)
# The chip's temperature and clocks are every instance's; a sum would count them once for each.
_SHARED_BY_INSTANCES = frozenset(
    name for name, metric in GPU_METRICS.items() if metric.rollup is not Rollup.SUM and "utilization" not in name
)


def explain(error: Any) -> str:
    """Why NVML gave nothing, in words."""
    return _REASONS.get(error.value) or f"NVML says: {error}"


def measure(nvml: Any, handle: Any, readings: Iterable[Reading] = READINGS) -> Measured:
    """All readings of a device. One that fails leaves the others alone."""
    measured = Measured({}, {})
    for names, read in readings:
        try:
            values = read(nvml, handle)
        except nvml.NVMLError as error:
            if error.value in _FATAL:
                raise
            measured.unknown.update(dict.fromkeys(names, explain(error)))
        else:
            for name, value in zip(names, values, strict=True):
                _take(measured, name, value)
    return measured


def measure_instance(nvml: Any, instance: Instance, board: Measured) -> Measured:
    """The readings of a MIG instance: memory of its own, temperature and clocks of its board."""
    measured = measure(nvml, instance.handle, (MEMORY,))
    if instance.shares_memory_with is not None:
        measured.metrics.clear()
        measured.unknown.update(
            dict.fromkeys(MEMORY.names, f"shared with instance {instance.shares_memory_with}, counted there")
        )
    for name in GPU_METRICS.keys() - set(MEMORY.names):
        if name in _SHARED_BY_INSTANCES and name in board.metrics:
            measured.metrics[name] = board.metrics[name]
        else:
            measured.unknown[name] = board.unknown.get(name, WHOLE_BOARD)
    return measured


def _take(measured: Measured, name: str, value: Number | None) -> None:
    """2^32-1 and 2^64-1 are NVML's "not available": outside of any metric's range, like other nonsense."""
    metric = GPU_METRICS[name]
    if value is not None and metric.low <= value <= metric.high:
        measured.metrics[name] = metric.round(value)
    else:
        measured.unknown[name] = NO_VALUE


def read_uses(nvml: Any, handle: Any) -> tuple[dict[int, Use] | None, str | None]:
    """The processes on a device by pid, those with most memory first; or None and why they cannot be listed."""
    uses: dict[int, Use] = {}
    try:
        for process in _list_processes(nvml, handle, "Compute"):
            _note(uses, process, graphics_only=False)
    except nvml.NVMLError as error:
        if error.value in _FATAL:
            raise
        return None, explain(error)
    try:
        for process in _list_processes(nvml, handle, "Graphics"):
            _note(uses, process, graphics_only=True)
    except nvml.NVMLError as error:
        # Some boards and all MIG instances draw nothing: the compute list is then the whole list.
        if error.value in _FATAL:
            raise
    kept = sorted(uses.items(), key=lambda item: -(item[1].memory_bytes or 0))[:PROCESSES_AT_MOST]
    return dict(kept), None


def _list_processes(nvml: Any, handle: Any, kind: str) -> Any:
    """Asks for version 3 of the list, then 2: the unversioned call of pynvml fails with another kind of exception."""
    try:
        return getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
    except nvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:
            raise
        return getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")(handle)


def _note(uses: dict[int, Use], process: Any, *, graphics_only: bool) -> None:
    memory = process.usedGpuMemory
    if memory is not None and not 0 <= memory < _BYTES_AT_MOST:
        memory = None
    before = uses.setdefault(process.pid, Use(memory, graphics_only))
    # Both lists give the process's memory as a whole, so a process on both is not the sum.
    before.memory_bytes = max((m for m in (before.memory_bytes, memory) if m is not None), default=None)
    before.graphics_only = before.graphics_only and graphics_only


def find_instances(nvml: Any, handle: Any) -> list[Instance] | None:
    """The MIG instances of a board in MIG mode, which may be none; None where the board is used as a whole."""
    try:
        current_mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in _FATAL:
            raise
        return None
    return list(_walk_instances(nvml, handle)) if current_mode == nvml.NVML_DEVICE_MIG_ENABLE else None


def _walk_instances(nvml: Any, board: Any) -> Iterator[Instance]:
    memory_owners: dict[int, int] = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, number)
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            memory_owner = memory_owners.setdefault(nvml.nvmlDeviceGetGpuInstanceId(handle), number)
        except nvml.NVMLError as error:
            # Slots need not be filled from the front, and an instance may be destroyed while they are walked.
            if error.value not in _NO_SUCH_INSTANCE:
                raise
            continue
        yield Instance(uuid, name, handle, number, None if memory_owner == number else memory_owner)
