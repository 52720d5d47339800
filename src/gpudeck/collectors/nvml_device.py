"""What one NVIDIA board says of itself through NVML: its metrics.

Everything takes the module pynvml and a device handle. An `NVMLError` comes out only when the device as a whole cannot
be read, or, with a code in RELOADED, when no device can. Anything less is an unknown value with its reason.

What is asked how often follows from what a call costs on an H200 with driver 580: about 1 µs, but 2,500 for the energy,
1,450 for the processes' utilization, about 100 for the MIG mode, and 20,700 for each direction of PCIe.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpudeck.collectors.nvml_errors import (
    ARGUMENT_VERSION_MISMATCH,
    FATAL,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_SUCH_INSTANCE,
    NO_VALUE,
    NOT_SUPPORTED,
    call_newest,
    explain,
)
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import Number

_NO_MEMORY_V2 = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED})
_NO_SUCH_LINK = NO_SUCH_INSTANCE | {NOT_SUPPORTED}

# Bits of nvmlClocksEventReasons. HW slowdown is set as well whenever heat or the power brake make the hardware act.
_POWER_CAP = 0x04
_HEAT = 0x20 | 0x40  # software and hardware thermal slowdown
_HARDWARE = 0x08 | 0x80  # HW slowdown, external power brake
# Driver 535 brought the first name; the second is that of all drivers before.
_CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")

# On every beat for every metric: a look into a tuple instead of a metric's four attributes.
_RULES = {name: (m.low, m.high, m.precision == 1, m.round) for name, m in GPU_METRICS.items()}

NOT_ASKED_FOR = "read only when asked for: it takes 40 ms a GPU"

Values = tuple[Number | None, ...]


class Reading(NamedTuple):
    """Metrics that one call gives; None is "no value"."""

    names: tuple[str, ...]
    read: Callable[[Any, Any], Values]


class Measured(NamedTuple):
    """Metrics with their values, rounded as the catalog says, and the unknown ones with their reasons."""

    metrics: dict[str, Number]
    unknown: dict[str, str]


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


def _read_field(nvml: Any, gpu: Any, field: int) -> int:
    """A field's number. Raises its own code: the call succeeds also without it, and the value is then undefined.

    An L4 has 0 there for its memory's temperature (NVIDIA/DCGM pull request 311).
    """
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
    for link in range(_count_links(nvml, gpu)):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except nvml.NVMLError as error:
            if error.value not in _NO_SUCH_LINK:
                raise
    if not states:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return sum(map(bool, states)), sum(not state for state in states)


def _count_links(nvml: Any, gpu: Any) -> int:
    """How many links to ask; all, where it is not told. An H200 without links refuses each in 7 µs."""
    try:
        count = _read_field(nvml, gpu, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        count = nvml.NVML_NVLINK_MAX_LINKS
    return min(count, int(nvml.NVML_NVLINK_MAX_LINKS))


def _read_pcie(nvml: Any, gpu: Any) -> Values:
    """Measured over 20 ms each; NVML counts in KB/s."""
    directions = (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
    return tuple(1000 * nvml.nvmlDeviceGetPcieThroughput(gpu, direction) for direction in directions)


MEMORY = Reading(("memory_used_bytes", "memory_total_bytes"), _read_memory)
READINGS = (
    Reading(("utilization_percent", "memory_utilization_percent"), _read_utilization),
    MEMORY,
    Reading(("temperature_celsius",), _read_temperature),
    Reading(
        ("memory_temperature_celsius",),
        lambda nvml, gpu: (_read_field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),),
    ),
    Reading(("power_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,)),
    Reading(("fan_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetFanSpeed(gpu),)),
    Reading(("clock_sm_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)),
    Reading(("clock_memory_mhz",), lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),)),
    Reading(("encoder_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetEncoderUtilization(gpu)[0],)),
    Reading(("decoder_percent",), lambda nvml, gpu: (nvml.nvmlDeviceGetDecoderUtilization(gpu)[0],)),
    # 32 is "unknown", outside of the catalog's range.
    Reading(("performance_state",), lambda nvml, gpu: (nvml.nvmlDeviceGetPerformanceState(gpu),)),
    Reading(("throttled_power", "throttled_thermal", "throttled_hardware"), _read_throttling),
)
"""What changes from beat to beat, and is cheap enough for every one."""
SLOW_READINGS = (
    Reading(("power_limit_watts",), lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,)),
    Reading(("ecc_corrected_count",), _read_ecc("CORRECTED")),
    Reading(("ecc_uncorrected_count",), _read_ecc("UNCORRECTED")),
    Reading(("remapped_rows_count", "remapped_rows_pending"), _read_remapped_rows),
    Reading(("nvlink_active_count", "nvlink_inactive_count"), _read_links),
    Reading(("energy_joules",), lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,)),
)
"""What hardly ever changes, or is dear: read every few seconds; until then the last value stays."""
PCIE = Reading(("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"), _read_pcie)
"""Read along with the slow ones, and only when somebody asks for it."""


def measure(nvml: Any, handle: Any, readings: Iterable[Reading] = READINGS, fatal: frozenset[int] = FATAL) -> Measured:
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
                _take(measured, name, value)
    return measured


def _take(measured: Measured, name: str, value: Number | None) -> None:
    """2^32-1 and 2^64-1 are NVML's "not available": outside of any metric's range, like other nonsense."""
    low, high, is_whole, round_ = _RULES[name]
    if value is None or not low <= value <= high:
        measured.unknown[name] = NO_VALUE
    elif is_whole and type(value) is int:
        measured.metrics[name] = value
    else:
        measured.metrics[name] = round_(value)
