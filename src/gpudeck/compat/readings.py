"""Converts the values of other monitors' nodes and files to our readings: bounded, and unknown is never zero."""

from collections.abc import Mapping
from typing import TypeGuard

from msgspec import Struct

from gpudeck.collectors.base import DISPLAY_SERVERS
from gpudeck.collectors.redaction import clean, show
from gpudeck.collectors.smi_command import explain
from gpudeck.model.catalog import GPU_METRICS, Metric
from gpudeck.model.report import GpuReading, Number, Process
from gpudeck.model.text import read_whole
from gpudeck.wire import MAX_PROCESSES

MIB = 1024 * 1024
MAX_GPUS = 512
_NO_NAMES = frozenset({"N/A", "Not Found", "Not Supported", "Insufficient Permissions", "Unknown Error"})
"""What NVML and nvidia-smi put in place of a process's name that they cannot read, without brackets."""


class NodeFacts(Struct, frozen=True):
    """What a node of GPU Cluster Status Monitor says of itself; `last_update` is on its own clock, in its own words."""

    hostname: str
    last_update: str


Nodes = dict[str, NodeFacts]
"""By the name under which a node is watched. Its source writes it, in the event loop."""


def processes_at_most(gpus: int) -> int:
    return MAX_PROCESSES // max(8, gpus)


class Figures:
    """Metrics of one GPU or one host, taken one by one. What is not taken is unknown, as `who` does not report it."""

    def __init__(self, catalog: Mapping[str, Metric], who: str) -> None:
        self._catalog = catalog
        self.metrics: dict[str, Number] = {}
        self.unknown = dict.fromkeys(catalog, f"{who} does not report it")

    def take(self, name: str, value: object, factor: float = 1.0) -> None:
        """A number, times `factor` in the unit of the catalog; anything else is the reason why there is none."""
        if not _is_number(value):
            self.unknown[name] = (
                explain(value) if isinstance(value, str) else f"it is given as {type(value).__name__}, not as a number"
            )
            return
        metric = self._catalog[name]
        scaled = value * factor
        if not metric.low <= scaled <= metric.high:
            self.unknown[name] = f"{value:g} cannot be"
            return
        self.metrics[name] = metric.round(scaled)
        self.unknown.pop(name, None)

    def take_fields(self, raw: Mapping[str, object], fields: Mapping[str, tuple[str, float]]) -> None:
        """Those of `fields` that are in `raw`: the name and the factor of each metric, by its key."""
        for key, (name, factor) in fields.items():
            if key in raw:
                self.take(name, raw[key], factor)


def describe_gpu_reading(
    uuid: str,
    index: int,
    name: str | None,
    figures: Figures,
    processes: list[Process] | str,
    *,
    idle_seconds: float | None,
) -> GpuReading:
    """A GPU of NVIDIA. `processes` is also the reason why they are not known."""
    return GpuReading(
        uuid=uuid,
        index=index,
        name=name or "NVIDIA GPU",
        vendor="nvidia",
        metrics=figures.metrics,
        unknown=figures.unknown,
        processes=None if isinstance(processes, str) else processes,
        processes_reason=processes if isinstance(processes, str) else None,
        idle_seconds=idle_seconds,
    )


def describe_missing_gpu(uuid: str, index: int, reason: str) -> GpuReading:
    return GpuReading(uuid, index, "unknown", missing=reason, unknown=dict.fromkeys(GPU_METRICS, reason))


def describe_process(
    *,
    pid: object,
    user: str | None,
    name: str,
    memory: object,
    started_at: float | None,
    who: str,
    why: str = "",
) -> Process:
    """A process as `who` reports it. `pid` is its number or what stands in its place: it is there all the same.
    `memory` is in MiB; `why` is the reason for what is not known of its owner."""
    number = read_pid(pid)
    name = "" if name.strip("[]") in _NO_NAMES else name
    command = show([clean(name)], name, "redacted") if name else None
    used = int(memory * MIB) if _is_number(memory) and 0 <= memory * MIB < 2**53 else None
    no_memory = explain(memory) if isinstance(memory, str) else "its memory is not reported"
    silent = f"{who} does not report it"
    reasons = {
        "pid": f"{who} reports no pid" if number is None else "",
        "user": (why or silent) if user is None else "",
        "started_at": (why or silent) if started_at is None else "",
        "command": "" if command else silent,
        "memory_used_bytes": no_memory if used is None else "",
        "utilization_percent": silent,
    }
    return Process(
        pid=number or 0,
        user=user,
        command=command,
        memory_used_bytes=used,
        started_at=started_at,
        evidence=f"as {who} says",
        display=is_display_server(name),
        reasons={field: reason for field, reason in reasons.items() if reason},
    )


def is_display_server(command: str) -> bool:
    """Whether a command line, or a program's name or path alone, is that of Xorg and the like."""
    return "".join(command.split()[:1]).rpartition("/")[2] in DISPLAY_SERVERS


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def mebibytes(size: float | None) -> int | None:
    return None if size is None else int(size // MIB)


def round_known(value: float | None) -> int | None:
    return None if value is None else round(value)


def read_pid(value: object) -> int | None:
    return read_whole(str(value), 2**32 - 1) if isinstance(value, int | str) and not isinstance(value, bool) else None


def read_word(value: object) -> str | None:
    text = clean(str(value)).strip()[:256] if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return text or None
