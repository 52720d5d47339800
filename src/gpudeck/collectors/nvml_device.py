"""The metrics and names of one NVIDIA device through NVML, and what NVML's return codes mean.

An `NVMLError` is raised only when the device as a whole cannot be read, or, with a code in RELOADED, when no device
can. On an H200 with driver 580 a call takes about 1 µs, but 2,500 for the energy, 1,450 for the processes' utilization,
about 100 for the MIG mode, and 20,700 for each direction of PCIe.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpudeck.collectors.base import NO_VALUE, UNSUPPORTED, Measured
from gpudeck.collectors.redaction import clean
from gpudeck.model.report import GpuReading, Number

# Return codes of nvml.h, which never change their meaning.
SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 9, 12, 13, 15, 16
LIB_RM_VERSION_MISMATCH, NO_DATA, ARGUMENT_VERSION_MISMATCH, NOT_READY, GPU_NOT_FOUND = 18, 21, 25, 27, 28

RELOADED = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Nothing can be read before the driver is opened again."""
FATAL = RELOADED | {GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND}
"""Nothing can be read of the device that returned it."""
NO_SUCH_INSTANCE = frozenset({NOT_FOUND, INVALID_ARGUMENT})
"""There is no such MIG instance, or no longer."""

TOO_OLD = "the driver is too old to report it"
NEEDS_HOPPER = "needs a Hopper GPU or newer"
LASTING = frozenset({UNSUPPORTED, TOO_OLD, NEEDS_HOPPER})
"""Reasons that another question a second later does not change."""
_REASONS = {
    NOT_SUPPORTED: UNSUPPORTED,
    NO_DATA: NO_VALUE,
    NOT_READY: NO_VALUE,
    NO_PERMISSION: "not permitted to read it",
    FUNCTION_NOT_FOUND: TOO_OLD,
    GPU_IS_LOST: "the GPU is lost: it fell off the bus or stopped answering",
    GPU_NOT_FOUND: "the driver no longer finds the GPU",
    RESET_REQUIRED: "the GPU needs a reset",
}
_NO_MEMORY_V2 = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED})
_NO_SUCH_LINK = NO_SUCH_INSTANCE | {NOT_SUPPORTED}

# Bits of nvmlClocksEventReasons. HW slowdown is set as well whenever heat or the power brake make the hardware act.
_POWER_CAP = 0x04
_HEAT = 0x20 | 0x40  # software and hardware thermal slowdown
_HARDWARE = 0x08 | 0x80  # HW slowdown, external power brake
# Driver 535 brought the first name; the second is that of all drivers before.
_CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

NOT_ASKED_FOR = "read only when asked for: it takes 40 ms a GPU"

Values = tuple[Number | None, ...]
_LENGTH = 128
_UNNAMED = "NVIDIA GPU"


def explain(error: Any) -> str:
    return _REASONS.get(error.value) or f"NVML says: {error}"


def call_newest(nvml: Any, names: tuple[str, ...], handle: Any) -> Any:
    """The result of the first of these functions that the driver has. Raises NVMLError."""
    for name in names[:-1]:
        try:
            return getattr(nvml, name)(handle)
        except nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
    return getattr(nvml, names[-1])(handle)


class NvmlReading(NamedTuple):
    """Metrics that one call gives; None is "no value"."""

    names: tuple[str, ...]
    read: Callable[[Any, Any], Values]


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
    if not memory.total:
        return None, None
    return memory.used if memory.used <= memory.total else None, memory.total


def _read_temperature(nvml: Any, gpu: Any) -> Values:
    return (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),)


def read_field(nvml: Any, gpu: Any, field: int) -> int:
    """Raises its own code: the call succeeds also without the field, and the value is then undefined. An L4 has 0 there
    for its memory's temperature (NVIDIA/DCGM pull request 311)."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _read_throttling(nvml: Any, gpu: Any) -> Values:
    reasons = call_newest(nvml, _CLOCK_REASONS, gpu)
    return tuple(int(bool(reasons & bits)) for bits in (_POWER_CAP, _HEAT, _HARDWARE))


def _read_ecc(kind: str) -> Callable[[Any, Any], Values]:
    """Errors since the driver was loaded, not those of the card's whole life."""
    return lambda nvml, gpu: (
        nvml.nvmlDeviceGetTotalEccErrors(gpu, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC),
    )


def _read_remapped_rows(nvml: Any, gpu: Any) -> Values:
    corrected, uncorrected, is_pending, _ = nvml.nvmlDeviceGetRemappedRows(gpu)
    return corrected + uncorrected, is_pending


def _read_links(nvml: Any, gpu: Any) -> Values:
    """Links that are up and down. A link that does not exist is neither."""
    states = []
    for link in range(count_links(nvml, gpu)):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except nvml.NVMLError as error:
            if error.value not in _NO_SUCH_LINK:
                raise
    if not states:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return sum(map(bool, states)), sum(not state for state in states)


def count_links(nvml: Any, gpu: Any) -> int:
    """How many links to ask; all, where it is not known. An H200 without links refuses each in 7 µs."""
    try:
        count = read_field(nvml, gpu, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        count = nvml.NVML_NVLINK_MAX_LINKS
    return min(count, int(nvml.NVML_NVLINK_MAX_LINKS))


def _read_pcie(nvml: Any, gpu: Any) -> Values:
    """Measured over 20 ms each; NVML counts in KB/s."""
    directions = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
    return tuple(1000 * nvml.nvmlDeviceGetPcieThroughput(gpu, direction) for direction in directions)


MEMORY = NvmlReading(("memory_used_bytes", "memory_total_bytes"), _read_memory)
READINGS = (
    NvmlReading(("utilization_percent", "memory_utilization_percent"), _read_utilization),
    MEMORY,
    NvmlReading(("temperature_celsius",), _read_temperature),
    NvmlReading(
        ("memory_temperature_celsius",), lambda nvml, gpu: (read_field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),)
    ),
    NvmlReading(("power_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,)),
    NvmlReading(("fan_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetFanSpeed(gpu),)),
    NvmlReading(("clock_sm_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    NvmlReading(("clock_memory_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
    NvmlReading(("encoder_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetEncoderUtilization(gpu)[0],)),
    NvmlReading(("decoder_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetDecoderUtilization(gpu)[0],)),
    # 32 is "unknown", outside of the catalog's range.
    NvmlReading(("performance_state",), lambda nvml, gpu: (nvml.nvmlDeviceGetPerformanceState(gpu),)),
    NvmlReading(("throttled_power", "throttled_thermal", "throttled_hardware"), _read_throttling),
)
"""Values that change between readings, and are cheap enough for every reading."""
SLOW_READINGS = (
    NvmlReading(("power_limit_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,)),
    NvmlReading(("ecc_corrected_count",), _read_ecc("CORRECTED")),
    NvmlReading(("ecc_uncorrected_count",), _read_ecc("UNCORRECTED")),
    NvmlReading(("remapped_rows_count", "remapped_rows_pending"), _read_remapped_rows),
    NvmlReading(("nvlink_active_count", "nvlink_inactive_count"), _read_links),
    NvmlReading(("energy_joules",), lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,)),
)
"""Values that seldom change or are expensive: read every ten seconds, and kept in between."""
PCIE = NvmlReading(("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"), _read_pcie)
"""Read along with the slow ones, if `pcie_throughput` is set."""


def measure(
    nvml: Any, handle: Any, readings: Iterable[NvmlReading] = READINGS, fatal: frozenset[int] = FATAL
) -> Measured:
    """These readings of a device. One that fails leaves the others alone, unless its code is `fatal`."""
    measured = Measured({}, {})
    for names, read in readings:
        try:
            values = read(nvml, handle)
        except nvml.NVMLError as error:
            if error.value in fatal:
                raise
            measured.unknown.update(dict.fromkeys(names, explain(error)))
        else:
            for name, value in zip(names, values, strict=True):
                measured.take(name, value)
    return measured


def _read_text(nvml: Any, read: Callable[[], str], fatal: frozenset[int] = FATAL) -> str:
    """A name, fit for a screen; empty where the driver has none. Raises NVMLError with a `fatal` code only."""
    try:
        return clean(read() or "").strip()[:_LENGTH]
    except UnicodeDecodeError:
        return ""
    except nvml.NVMLError as error:
        if error.value in fatal:
            raise
        return ""


def read_driver_version(nvml: Any) -> str | None:
    """None where it is not known. Raises NVMLError where nothing can be read at all."""
    return _read_text(nvml, nvml.nvmlSystemGetDriverVersion) or None


def read_uuid_and_name(nvml: Any, handle: Any) -> tuple[str, str]:
    """The UUID, and the model or some word for it. Raises NVMLError also where the driver gives no UUID."""
    uuid = _read_text(nvml, lambda: nvml.nvmlDeviceGetUUID(handle), FATAL | _REASONS.keys() | NO_SUCH_INSTANCE)
    if not uuid:
        raise nvml.NVMLError(NO_DATA)
    return uuid, _read_text(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or _UNNAMED


def identify(nvml: Any, handle: Any, index: int) -> GpuReading:
    """A board without its values. Raises NVMLError where nothing of it can be read."""
    uuid, name = read_uuid_and_name(nvml, handle)
    written = _read_text(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    # As the kernel writes it (0000:18:00.0): NVML gives the domain eight digits.
    address = written[4:] if len(written) == len("00000000:18:00.0") else written
    return GpuReading(uuid, index, name, "nvidia", pci_address=address or None)
