"""Every metric, declared once.

A metric added here is read, sent, checked, stored, exposed, documented and shown: wire, hub, API and page walk this
table and know no metric by themselves (the page lays out the ones it knows specially and lists the rest). The reading
itself is the only other line a new metric costs.

Values are in base units (bytes, watts, percent of one device). A value outside `low..high` is not believed: the hub
turns it into an unknown with its reason.
"""

from enum import Enum

from msgspec import Struct


class Scope(Enum):
    """What a metric is measured on."""

    GPU = "gpu"
    HOST = "host"


class Kind(Enum):
    """GAUGE goes up and down; COUNTER only grows until its device restarts; CONSTANT hardly ever changes."""

    GAUGE = "gauge"
    COUNTER = "counter"
    CONSTANT = "constant"


class Rollup(Enum):
    """How values of many devices or moments become one."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    LAST = "last"


class Metric(Struct, frozen=True):
    """`precision` is the smallest step worth keeping; readings are rounded to it before they leave the machine."""

    name: str
    scope: Scope
    unit: str
    label: str
    high: float
    low: float = 0.0
    kind: Kind = Kind.GAUGE
    rollup: Rollup = Rollup.MEAN
    precision: float = 1.0

    def round(self, value: float) -> float | int:
        """`value` rounded to the precision: an int where the precision is whole."""
        steps = round(value / self.precision)
        if self.precision >= 1:
            return int(steps * self.precision)
        return round(steps * self.precision, 6)


MIB = 1024.0 * 1024.0
TIB = MIB * MIB
_GPU, _HOST = Scope.GPU, Scope.HOST
_CONSTANT, _COUNTER = Kind.CONSTANT, Kind.COUNTER
_SUM, _MAX, _LAST = Rollup.SUM, Rollup.MAX, Rollup.LAST

CATALOG: tuple[Metric, ...] = (
    Metric("utilization_percent", _GPU, "percent", "Utilization", 100),
    Metric("memory_utilization_percent", _GPU, "percent", "Memory bandwidth in use", 100),
    Metric("memory_used_bytes", _GPU, "bytes", "Memory used", 4 * TIB, rollup=_SUM, precision=MIB),
    Metric("memory_total_bytes", _GPU, "bytes", "Memory", 4 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB),
    Metric("temperature_celsius", _GPU, "celsius", "Temperature", 150, low=-50, rollup=_MAX),
    Metric("power_watts", _GPU, "watts", "Power", 10_000, rollup=_SUM, precision=0.1),
    Metric("power_limit_watts", _GPU, "watts", "Power limit", 10_000, kind=_CONSTANT, rollup=_SUM),
    Metric("fan_percent", _GPU, "percent", "Fan", 150, rollup=_MAX),
    Metric("clock_sm_mhz", _GPU, "megahertz", "SM clock", 20_000),
    Metric("clock_memory_mhz", _GPU, "megahertz", "Memory clock", 40_000),
    Metric("encoder_percent", _GPU, "percent", "Video encoder", 100),
    Metric("decoder_percent", _GPU, "percent", "Video decoder", 100),
    Metric("memory_temperature_celsius", _GPU, "celsius", "Memory temperature", 150, low=-50, rollup=_MAX),
    Metric("performance_state", _GPU, "state", "Performance state (0 is fastest)", 15, rollup=_MAX),
    Metric("throttled_power", _GPU, "flag", "Slowed by its power limit", 1, rollup=_MAX),
    Metric("throttled_thermal", _GPU, "flag", "Slowed by heat", 1, rollup=_MAX),
    Metric("throttled_hardware", _GPU, "flag", "Slowed by the hardware (power brake, slowdown)", 1, rollup=_MAX),
    Metric(
        "ecc_corrected_count", _GPU, "count", "Memory errors corrected since start", 1e15, kind=_COUNTER, rollup=_SUM
    ),
    Metric("ecc_uncorrected_count", _GPU, "count", "Memory errors not corrected", 1e15, kind=_COUNTER, rollup=_SUM),
    Metric("remapped_rows_count", _GPU, "count", "Memory rows replaced by spares", 1e9, kind=_COUNTER, rollup=_SUM),
    Metric("remapped_rows_pending", _GPU, "flag", "Row replacement waits for a reset", 1, rollup=_MAX),
    Metric("nvlink_active_count", _GPU, "count", "NVLinks up", 64, rollup=_SUM),
    Metric("nvlink_inactive_count", _GPU, "count", "NVLinks down", 64, rollup=_SUM),
    Metric("energy_joules", _GPU, "joules", "Energy since start", 1e15, kind=_COUNTER, rollup=_SUM),
    Metric("pcie_receive_bytes_per_second", _GPU, "bytes_per_second", "PCIe in", 1e13, rollup=_SUM, precision=1e6),
    Metric("pcie_transmit_bytes_per_second", _GPU, "bytes_per_second", "PCIe out", 1e13, rollup=_SUM, precision=1e6),
    Metric("cpu_percent", _HOST, "percent", "CPU", 100, precision=0.1),
    Metric("cpu_count", _HOST, "count", "CPU threads", 100_000, kind=_CONSTANT, rollup=_SUM),
    Metric("load_1m", _HOST, "load", "Load, 1 min", 1e6, precision=0.01),
    Metric("memory_used_bytes", _HOST, "bytes", "RAM used", 4096 * TIB, rollup=_SUM, precision=MIB),
    Metric("memory_total_bytes", _HOST, "bytes", "RAM", 4096 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB),
    Metric("disk_used_bytes", _HOST, "bytes", "Disk used", 1e6 * TIB, rollup=_SUM, precision=MIB),
    Metric("disk_total_bytes", _HOST, "bytes", "Disk", 1e6 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB),
    Metric("swap_used_bytes", _HOST, "bytes", "Swap used", 4096 * TIB, rollup=_SUM, precision=MIB),
    Metric("swap_total_bytes", _HOST, "bytes", "Swap", 4096 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB),
    Metric(
        "network_receive_bytes_per_second", _HOST, "bytes_per_second", "Network in", 1e13, rollup=_SUM, precision=1e3
    ),
    Metric(
        "network_transmit_bytes_per_second", _HOST, "bytes_per_second", "Network out", 1e13, rollup=_SUM, precision=1e3
    ),
    Metric("uptime_seconds", _HOST, "seconds", "Up for", 1e10, kind=_COUNTER, rollup=_LAST, precision=60),
)

GPU_METRICS: dict[str, Metric] = {metric.name: metric for metric in CATALOG if metric.scope is Scope.GPU}
HOST_METRICS: dict[str, Metric] = {metric.name: metric for metric in CATALOG if metric.scope is Scope.HOST}
