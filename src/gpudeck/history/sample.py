"""What the hub hands over to the history: one host at one moment, as plain tuples that nobody changes any more.

Taking a sample is what happens on the hub's event loop, so it costs about a microsecond a GPU: values are picked out of
the live view in the catalog's order, and everything else is done by whoever keeps them.
"""

from operator import itemgetter
from typing import Any, Final, NamedTuple

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

GPU_NAMES: Final = tuple(GPU_METRICS)
HOST_NAMES: Final = tuple(HOST_METRICS)
STATES: Final = ("absent", "unknown", "free", "busy", "held", "booked")
"""A GPU's availability by number. `absent`: it was not in the report at all."""
STATE_NUMBERS: Final = {word: number for number, word in enumerate(STATES)}

Values = tuple[float | None, ...]

_gpu_values = itemgetter(*GPU_NAMES)
_host_values = itemgetter(*HOST_NAMES)


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


def sample_gpu(view: dict[str, Any]) -> GpuSample:
    """A GPU out of the live view (`model.view.Gpu`). Of one in an unknown state, the values are old: none is kept."""
    state = STATE_NUMBERS[view["availability"]]
    if view["last_seen"] is not None:
        return GpuSample(view["uuid"], view["label"], view["name"], state, _NOTHING, None)
    processes = view["processes"]
    return GpuSample(
        view["uuid"],
        view["label"],
        view["name"],
        state,
        _gpu_values(view),
        None if processes is None else tuple([_sample_process(one) for one in processes if not one["display"]]),
    )


def sample_host(view: dict[str, Any], at: float, interval: float) -> HostSample:
    """A host out of the live view (`model.view.Host`)."""
    gpus = tuple(map(sample_gpu, view["gpus"]))
    return HostSample(view["id"], view["name"], at, interval, _host_values(view), gpus)


def _sample_process(shown: dict[str, Any]) -> ProcessSample:
    return ProcessSample(*_process_values(shown))


_process_values = itemgetter(
    "pid", "started_at", "user", "command", "container", "job", "memory_used_bytes", "utilization_percent"
)
_NOTHING: Values = (None,) * len(GPU_NAMES)
