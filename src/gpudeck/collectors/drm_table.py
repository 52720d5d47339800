"""The table `gpu_metrics` of amdgpu: what an AMD GPU reports beside the files that hold one value each.

It is binary, and its layout changes with the generation of the card and the kernel (kgd_pp_interface.h). Its header has
its size and version: a table is read only if both are known here. 1.1 to 1.3 are those of Radeon cards and of Instinct
up to the MI200, 1.4 and 1.5 of the MI300. A field of ones is unknown.
"""

import os
from struct import Struct, unpack_from
from typing import Final, NamedTuple

from gpudeck.collectors.base import NO_VALUE, Measured
from gpudeck.collectors.sysfs import explain

_HEADER: Final = Struct("<HBB")
_BYTES: Final = 4096
_JOULES: Final = 2.0**-16
NOT_IN_TABLE: Final = "the driver does not report it for this generation"
# Of the throttle status that is the same for all generations: limits of power and current, temperatures, and signals by
# which regulators and chips ask for a slowdown.
_POWER, _HEAT, _HARDWARE = 0xFF00FF, 0xFFF << 32, 0xF << 44


class _Field(NamedTuple):
    """Where a metric is in the table; the first of several that is known counts."""

    name: str
    offset: int
    code: str = "H"
    scale: float = 1.0


class _Layout(NamedTuple):
    size: int
    fields: tuple[_Field, ...]
    throttling: int | None = None


_OF_CARDS: Final = (
    _Field("temperature_celsius", 4),
    _Field("temperature_celsius", 6),
    _Field("memory_temperature_celsius", 8),
    _Field("utilization_percent", 16),
    _Field("memory_utilization_percent", 18),
    _Field("power_watts", 22),
    _Field("clock_sm_mhz", 54),
    _Field("clock_memory_mhz", 58),
)
_OF_MI300: Final = (
    _Field("temperature_celsius", 4),
    _Field("memory_temperature_celsius", 6),
    _Field("power_watts", 10),
    _Field("utilization_percent", 12),
    _Field("memory_utilization_percent", 14),
)


def _of_mi300(energy: int, clock: int, memory_clock: int) -> tuple[_Field, ...]:
    return (
        *_OF_MI300,
        _Field("energy_joules", energy, "Q", _JOULES),
        _Field("clock_sm_mhz", clock),
        _Field("clock_memory_mhz", memory_clock),
    )


_LAYOUTS: Final = {
    (1, 1): _Layout(96, _OF_CARDS),
    (1, 2): _Layout(104, _OF_CARDS),
    (1, 3): _Layout(120, _OF_CARDS, throttling=112),
    (1, 4): _Layout(288, _of_mi300(24, 240, 280)),
    (1, 5): _Layout(360, _of_mi300(88, 312, 352)),
}
ONLY_IN_TABLE: Final = frozenset({"energy_joules", "throttled_power", "throttled_thermal", "throttled_hardware"})
"""What amdgpu has no other file for."""
TABLE_METRICS: Final = ONLY_IN_TABLE | {field.name for layout in _LAYOUTS.values() for field in layout.fields}


def read_table(device: str) -> Measured:
    """Each of TABLE_METRICS, known or unknown, of the card with this folder. Nothing is raised."""
    try:
        return parse_table(_read(f"{device}/gpu_metrics"))
    except (OSError, ValueError) as error:
        return Measured({}, dict.fromkeys(TABLE_METRICS, explain(error)))


def parse_table(table: bytes) -> Measured:
    """Raises ValueError for a table that is not known."""
    if len(table) < _HEADER.size:
        raise ValueError("the driver's table of metrics is cut off")
    size, *version = _HEADER.unpack_from(table)
    layout = _LAYOUTS.get((version[0], version[1]))
    if layout is None:
        raise ValueError(f"the driver's table of metrics has version {version[0]}.{version[1]}, which is not known")
    if size != layout.size or len(table) < size:
        raise ValueError(f"the driver's table of metrics has {min(size, len(table))} bytes instead of {layout.size}")
    measured = Measured({}, dict.fromkeys(TABLE_METRICS, NOT_IN_TABLE))
    for name, offset, code, scale in layout.fields:
        if name not in measured.metrics:
            value = _unpack(table, code, offset)
            # A counter of energy that was never counted is 0.
            measured.take(name, None if value is None or (code == "Q" and not value) else value * scale)
    if layout.throttling is not None:
        _take_throttling(measured, _unpack(table, "Q", layout.throttling))
    return measured


def _unpack(table: bytes, code: str, offset: int) -> int | None:
    (value,) = unpack_from(f"<{code}", table, offset)
    is_unknown = value == (1 << 8 * Struct(f"<{code}").size) - 1
    return None if is_unknown else int(value)


def _take_throttling(measured: Measured, status: int | None) -> None:
    for name, bits in (("throttled_power", _POWER), ("throttled_thermal", _HEAT), ("throttled_hardware", _HARDWARE)):
        measured.take(name, None if status is None else int(bool(status & bits)), NO_VALUE)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _BYTES)
    finally:
        os.close(descriptor)
