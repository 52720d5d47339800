"""What the hub hands over to the history: one host at one moment, as plain tuples that nobody changes any more.

Taking a sample is what happens on the hub's event loop (see hub.recorder), everything else is done by whoever keeps
them.
"""

from typing import Final, NamedTuple

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

GPU_NAMES: Final = tuple(GPU_METRICS)
HOST_NAMES: Final = tuple(HOST_METRICS)
STATES: Final = ("absent", "unknown", "free", "busy", "held", "booked")
"""A GPU's availability by number. `absent`: it was not in the report at all."""
STATE_NUMBERS: Final = {word: number for number, word in enumerate(STATES)}

Values = tuple[float | None, ...]


class ProcessSample(NamedTuple):
    """A program on one GPU. Display servers are no part of a sample."""

    pid: int
    started_at: float | None
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    memory_bytes: int | None
    utilization_percent: float | None


class GpuSample(NamedTuple):
    """`values` are in the order of GPU_NAMES. `processes` is None when nobody knows who is on it."""

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
"""The values of a GPU of which none is of now."""
