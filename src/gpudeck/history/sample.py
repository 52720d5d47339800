"""A sample is a host at one moment, as plain tuples. The recorder makes samples of the live fleet; stores keep them."""

from typing import Final, NamedTuple

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

GPU_NAMES: Final = tuple(GPU_METRICS)
HOST_NAMES: Final = tuple(HOST_METRICS)
HOST_PREFIX: Final = "host_"
"""Precedes the names of a host's own metrics in one list with those of GPUs."""
ALL_NAMES: Final = (*GPU_NAMES, *(HOST_PREFIX + name for name in HOST_NAMES))
STATES: Final = ("absent", "unknown", "free", "busy", "idle", "reserved", "drained", "allocated")
"""A GPU's availability by number, as it is kept: a new one needs a migration. `absent`: not in the report at all."""
STATE_NUMBERS: Final = {word: number for number, word in enumerate(STATES)}

Values = tuple[float | None, ...]


class ProcessSample(NamedTuple):
    pid: int
    started_at: float | None
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    memory_bytes: int | None
    utilization_percent: float | None


class GpuSample(NamedTuple):
    """`values` are in the order of GPU_NAMES. `processes` is None if unknown."""

    uuid: str
    label: str
    model: str
    state: int
    values: Values
    processes: tuple[ProcessSample, ...] | None


class HostSample(NamedTuple):
    """`at` is on the hub's clock; `values` are in the order of HOST_NAMES; `interval` is the time to the next one."""

    host_id: str
    name: str
    at: float
    interval: float
    values: Values
    gpus: tuple[GpuSample, ...]


NOTHING: Final[Values] = (None,) * len(GPU_NAMES)
"""The values of a GPU without current readings."""
