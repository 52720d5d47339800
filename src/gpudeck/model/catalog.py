"""Every metric, declared once: one line of `GpuMetrics` or `HostMetrics`.

Wire, hub, API and page use the catalog; a new metric needs only this line and its reading. Values are in base units.
The hub replaces a value outside `low..high` by unknown, with the reason.
"""

from enum import Enum
from typing import Annotated, get_type_hints

from msgspec import Struct
from msgspec.structs import replace


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
    """How values of many devices or times are combined."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    LAST = "last"


class Metric(Struct, frozen=True):
    """A value outside `low` to `high` becomes unknown. `/metrics` exposes a COUNTER as a counter whose name ends with
    `_total`, unless its roll-up is LAST, and all other metrics as gauges. In the history SUM adds the means of several
    devices and MAX takes their highest value; for one device, LAST takes the last value of each step, not the mean.

    `precision` is the smallest step worth keeping. `live`: every change is sent to viewers; other metrics are read with
    the host. `name` and `scope` are those of the field that it describes."""

    unit: str
    label: str
    high: float
    low: float = 0.0
    kind: Kind = Kind.GAUGE
    rollup: Rollup = Rollup.MEAN
    precision: float = 1.0
    live: bool = True
    name: str = ""
    scope: Scope = Scope.GPU

    def round(self, value: float) -> float | int:
        """`value` rounded to the precision: an int where the precision is whole."""
        steps = round(value / self.precision)
        if self.precision >= 1:
            return int(steps * self.precision)
        return round(steps * self.precision, 6)


MIB = 1024.0 * 1024.0
TIB = MIB * MIB
Value = float | None
"""None is unknown: the reason is next to it."""
_CONSTANT, _COUNTER = Kind.CONSTANT, Kind.COUNTER
_SUM, _MAX, _LAST = Rollup.SUM, Rollup.MAX, Rollup.LAST


class GpuIdentity(Struct, kw_only=True):
    """The identity of a GPU. `label` is its index, or index.instance for a MIG instance. `name` is the driver's model
    name, `display_name` the common one."""

    uuid: str
    index: int
    label: str
    name: str
    display_name: str
    vendor: str
    parent: str | None = None
    pci_address: str | None = None


class GpuMetrics(GpuIdentity, kw_only=True):
    """A GPU and what is measured on it; None is unknown."""

    utilization_percent: Annotated[Value, Metric("percent", "Utilization", 100)] = None
    memory_utilization_percent: Annotated[Value, Metric("percent", "Memory bandwidth utilization", 100, live=False)] = (
        None
    )
    memory_used_bytes: Annotated[Value, Metric("bytes", "Memory used", 4 * TIB, rollup=_SUM, precision=MIB)] = None
    memory_total_bytes: Annotated[
        Value, Metric("bytes", "Memory", 4 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB)
    ] = None
    temperature_celsius: Annotated[Value, Metric("celsius", "Temperature", 150, low=-50, rollup=_MAX)] = None
    power_watts: Annotated[Value, Metric("watts", "Power", 10_000, rollup=_SUM, precision=0.1)] = None
    power_limit_watts: Annotated[Value, Metric("watts", "Power limit", 10_000, kind=_CONSTANT, rollup=_SUM)] = None
    fan_percent: Annotated[Value, Metric("percent", "Fan speed", 150, rollup=_MAX, live=False)] = None
    clock_sm_mhz: Annotated[Value, Metric("megahertz", "SM clock", 20_000, live=False)] = None
    clock_memory_mhz: Annotated[Value, Metric("megahertz", "Memory clock", 40_000, live=False)] = None
    encoder_percent: Annotated[Value, Metric("percent", "Video encoder", 100, live=False)] = None
    decoder_percent: Annotated[Value, Metric("percent", "Video decoder", 100, live=False)] = None
    memory_temperature_celsius: Annotated[
        Value, Metric("celsius", "Memory temperature", 150, low=-50, rollup=_MAX, live=False)
    ] = None
    performance_state: Annotated[
        Value, Metric("state", "Performance state (0 is fastest)", 15, rollup=_MAX, live=False)
    ] = None
    throttled_power: Annotated[Value, Metric("flag", "Power throttling", 1, rollup=_MAX, live=False)] = None
    throttled_thermal: Annotated[Value, Metric("flag", "Thermal throttling", 1, rollup=_MAX, live=False)] = None
    throttled_hardware: Annotated[Value, Metric("flag", "Hardware slowdown", 1, rollup=_MAX, live=False)] = None
    ecc_corrected_count: Annotated[
        Value, Metric("count", "Corrected ECC errors", 1e15, kind=_COUNTER, rollup=_SUM, live=False)
    ] = None
    ecc_uncorrected_count: Annotated[
        Value, Metric("count", "Uncorrected ECC errors", 1e15, kind=_COUNTER, rollup=_SUM, live=False)
    ] = None
    remapped_rows_count: Annotated[
        Value, Metric("count", "Remapped rows", 1e9, kind=_COUNTER, rollup=_SUM, live=False)
    ] = None
    remapped_rows_pending: Annotated[Value, Metric("flag", "Row remap pending", 1, rollup=_MAX, live=False)] = None
    nvlink_active_count: Annotated[Value, Metric("count", "Active NVLinks", 64, rollup=_SUM, live=False)] = None
    nvlink_inactive_count: Annotated[Value, Metric("count", "Inactive NVLinks", 64, rollup=_SUM, live=False)] = None
    nvlink_error_count: Annotated[
        Value, Metric("count", "NVLink errors", 1e15, kind=_COUNTER, rollup=_SUM, live=False)
    ] = None
    nvlink_error_link: Annotated[
        Value, Metric("state", "NVLink with the most errors", 64, rollup=_LAST, live=False)
    ] = None
    pcie_generation: Annotated[Value, Metric("state", "PCIe generation", 16, rollup=_MAX, live=False)] = None
    pcie_generation_max: Annotated[
        Value, Metric("state", "PCIe generation, best", 16, kind=_CONSTANT, rollup=_MAX, live=False)
    ] = None
    pcie_width: Annotated[Value, Metric("state", "PCIe lanes", 64, rollup=_MAX, live=False)] = None
    pcie_width_max: Annotated[
        Value, Metric("state", "PCIe lanes, best", 64, kind=_CONSTANT, rollup=_MAX, live=False)
    ] = None
    temperature_margin_celsius: Annotated[Value, Metric("celsius", "Thermal headroom", 150, low=-150, live=False)] = (
        None
    )
    energy_joules: Annotated[Value, Metric("joules", "Total energy", 1e15, kind=_COUNTER, rollup=_SUM, live=False)] = (
        None
    )
    pcie_receive_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "PCIe in", 1e13, rollup=_SUM, precision=1e6, live=False)
    ] = None
    pcie_transmit_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "PCIe out", 1e13, rollup=_SUM, precision=1e6, live=False)
    ] = None
    sm_activity_percent: Annotated[Value, Metric("percent", "SM activity", 100, live=False)] = None
    sm_occupancy_percent: Annotated[Value, Metric("percent", "SM occupancy", 100, live=False)] = None
    tensor_activity_percent: Annotated[Value, Metric("percent", "Tensor core activity", 100, live=False)] = None
    dram_activity_percent: Annotated[Value, Metric("percent", "Memory activity", 100, live=False)] = None
    fp64_activity_percent: Annotated[Value, Metric("percent", "FP64 activity", 100, live=False)] = None
    fp32_activity_percent: Annotated[Value, Metric("percent", "FP32 activity", 100, live=False)] = None
    fp16_activity_percent: Annotated[Value, Metric("percent", "FP16 activity", 100, live=False)] = None
    nvlink_receive_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "NVLink in", 1e13, rollup=_SUM, precision=1e6, live=False)
    ] = None
    nvlink_transmit_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "NVLink out", 1e13, rollup=_SUM, precision=1e6, live=False)
    ] = None


class HostIdentity(Struct, kw_only=True):
    """The identity of a host. `id` is its machine id if known, `display_name` the name to show."""

    id: str
    name: str
    display_name: str


class HostMetrics(HostIdentity, kw_only=True):
    """A host and what is measured on it; None is unknown."""

    cpu_percent: Annotated[Value, Metric("percent", "CPU", 100, precision=0.1)] = None
    cpu_count: Annotated[Value, Metric("count", "CPU threads", 100_000, kind=_CONSTANT, rollup=_SUM)] = None
    load_1m: Annotated[Value, Metric("load", "Load average (1 min)", 1e6, precision=0.01)] = None
    memory_used_bytes: Annotated[Value, Metric("bytes", "RAM used", 4096 * TIB, rollup=_SUM, precision=MIB)] = None
    memory_total_bytes: Annotated[
        Value, Metric("bytes", "RAM", 4096 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB)
    ] = None
    disk_used_bytes: Annotated[Value, Metric("bytes", "Disk used", 1e6 * TIB, rollup=_SUM, precision=MIB)] = None
    disk_total_bytes: Annotated[
        Value, Metric("bytes", "Disk", 1e6 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB)
    ] = None
    swap_used_bytes: Annotated[
        Value, Metric("bytes", "Swap used", 4096 * TIB, rollup=_SUM, precision=MIB, live=False)
    ] = None
    swap_total_bytes: Annotated[
        Value, Metric("bytes", "Swap", 4096 * TIB, kind=_CONSTANT, rollup=_SUM, precision=MIB)
    ] = None
    network_receive_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "Network in", 1e13, rollup=_SUM, precision=1e3, live=False)
    ] = None
    network_transmit_bytes_per_second: Annotated[
        Value, Metric("bytes_per_second", "Network out", 1e13, rollup=_SUM, precision=1e3, live=False)
    ] = None
    uptime_seconds: Annotated[Value, Metric("seconds", "Uptime", 1e10, kind=_COUNTER, rollup=_LAST, precision=60)] = (
        None
    )


def _read(metrics: type[Struct], scope: Scope) -> dict[str, Metric]:
    hints = get_type_hints(metrics, include_extras=True)
    return {
        name: replace(hint.__metadata__[0], name=name, scope=scope)
        for name, hint in hints.items()
        if hasattr(hint, "__metadata__")
    }


GPU_METRICS: dict[str, Metric] = _read(GpuMetrics, Scope.GPU)
HOST_METRICS: dict[str, Metric] = _read(HostMetrics, Scope.HOST)
CATALOG: tuple[Metric, ...] = (*GPU_METRICS.values(), *HOST_METRICS.values())
