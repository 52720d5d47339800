"""Converts the values of other monitors' nodes and files to our readings: bounded, and unknown is never zero."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

from msgspec import Struct

from gpudeck.collectors.base import DISPLAY_SERVERS, IdleWatch
from gpudeck.collectors.redaction import show
from gpudeck.collectors.smi_command import explain
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.report import GpuReading, Number, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.text import clean, read_whole
from gpudeck.wire import MAX_PROCESSES

MIB: Final = 1024 * 1024
MAX_GPUS: Final = 512
_MAX_LISTED: Final = 1024
_NUMBER: Final = re.compile(r"\s*(-?[0-9]{1,15}(?:[.,][0-9]{1,15})?)\s*(?:%|C|MiB)?\s*")
_NO_NAMES: Final = frozenset({"N/A", "Not Found", "Not Supported", "Insufficient Permissions", "Unknown Error"})
"""The values of NVML and nvidia-smi, without brackets, for the name of a process that they cannot read."""

Fields = Mapping[str, tuple[str, float]]
"""By the key in another monitor's data: the metric of the catalog, and the factor to its unit."""


class ProcessKeys(Struct, frozen=True):
    """The keys of a process's fields in another monitor's data."""

    pid: str
    user: str
    name: str
    memory: str


class Figures:
    """Metrics of one GPU or one host. Those that are not taken are unknown, because `who` does not report them."""

    def __init__(self, catalog: Mapping[str, Metric], who: str) -> None:
        self._catalog = catalog
        self.metrics: dict[str, Number] = {}
        self.unknown = dict.fromkeys(catalog, f"{who} does not report it")

    def take(self, name: str, value: object, factor: float = 1.0) -> None:
        """A number, also as text, times `factor` in the unit of the catalog; any other value is the reason why the
        metric is unknown."""
        number = read_number(value)
        if number is None:
            reason = f"it is given as {type(value).__name__}, not as a number"
            self.unknown[name] = explain(value) if isinstance(value, str) else reason
            return
        metric, scaled = self._catalog[name], number * factor
        if metric.low <= scaled <= metric.high:
            self.metrics[name] = metric.round(scaled)
            self.unknown.pop(name, None)
        else:
            self.unknown[name] = f"{number:g} cannot be"


class GpuReader:
    """Reads the GPUs of one host as `who` reports them. It keeps how long each GPU has been idle."""

    def __init__(self, who: str, fields: Fields) -> None:
        self._who = who
        self._fields = fields
        self._idle = IdleWatch()

    def read(  # noqa: PLR0917 - an entry of a list of GPUs
        self,
        uuid: str,
        index: int,
        name: object,
        raw: Mapping[str, object],
        processes: list[Process] | str,
        now: float | None,
    ) -> GpuReading:
        """A GPU of NVIDIA. `processes` is also the reason why they are unknown. Without `now` idle time is unknown."""
        figures = Figures(GPU_METRICS, self._who)
        for key, (metric, factor) in self._fields.items():
            if key in raw:
                figures.take(metric, raw[key], factor)
        return GpuReading(
            uuid=uuid,
            index=index,
            name=read_word(name, 128) or "NVIDIA GPU",
            vendor="nvidia",
            metrics=figures.metrics,
            unknown=figures.unknown,
            processes=None if isinstance(processes, str) else processes,
            processes_reason=processes if isinstance(processes, str) else None,
            idle_seconds=None
            if now is None
            else self._idle.track(uuid, figures.metrics.get("utilization_percent"), now),
        )


def describe_host(gpus: list[GpuReading], who: str, target: Target, **facts: Any) -> Report:
    """A report of GPUs alone: `who` reports no metrics of the host."""
    return Report(gpus=gpus, unknown=Figures(HOST_METRICS, who).unknown, labels=target.labels, **facts)


def describe_missing_gpu(uuid: str, index: int, reason: str, name: str = "unknown") -> GpuReading:
    return GpuReading(uuid, index, name, missing=reason, unknown=dict.fromkeys(GPU_METRICS, reason))


def read_processes(
    listed: object,
    who: str,
    keys: ProcessKeys,
    gpus: int,
    started_at: Callable[[Mapping[str, object]], float | None] = lambda _: None,
) -> list[Process] | str:
    """The processes on one of `gpus` GPUs, or why they are unknown. An invalid entry is a process without known
    fields: its GPU is not free."""
    if not isinstance(listed, list):
        return explain(listed) if isinstance(listed, str) else f"{who} does not list this GPU's processes"
    entries = (entry if isinstance(entry, dict) else {} for entry in listed[: max_processes(gpus)])
    return [
        describe_process(
            pid=entry.get(keys.pid),
            user=read_word(entry.get(keys.user)),
            name=read_word(entry.get(keys.name), _MAX_LISTED) or "",
            memory=entry.get(keys.memory),
            started_at=started_at(entry),
            who=who,
        )
        for entry in entries
    ]


def max_processes(gpus: int) -> int:
    """How many processes of each GPU are taken, so that the host's report is small enough."""
    return min(_MAX_LISTED, MAX_PROCESSES // max(8, gpus))


def describe_process(
    *,
    pid: object,
    user: str | None,
    name: str,
    memory: object,
    started_at: float | None,
    who: str,
    why: str = "",
    evidence: str = "",
) -> Process:
    """A process as `who` reports it, also without a valid `pid`. `memory` is in MiB; `why` is the reason for an unknown
    owner."""
    number, mebibytes = read_pid(pid), read_number(memory)
    name = "" if name.strip("[]") in _NO_NAMES else name
    command = show([clean(name)], name, "redacted") if name else None
    used = int(mebibytes * MIB) if mebibytes is not None and 0 <= mebibytes * MIB < 2**53 else None
    silent = f"{who} does not report it"
    reasons = {
        "pid": f"{who} reports no pid" if number is None else "",
        "user": (why or silent) if user is None else "",
        "started_at": (why or silent) if started_at is None else "",
        "command": "" if command else silent,
        "memory_used_bytes": "" if used is not None else explain(memory) if isinstance(memory, str) else silent,
        "utilization_percent": silent,
    }
    return Process(
        pid=number or 0,
        user=user,
        command=command,
        memory_used_bytes=used,
        started_at=started_at,
        evidence=evidence or f"as {who} says",
        display=_is_display_server(name),
        reasons={field: reason for field, reason in reasons.items() if reason},
    )


def _is_display_server(command: str) -> bool:
    """Whether a command line, or a program's name or path alone, is that of Xorg and the like."""
    return "".join(command.split()[:1]).rpartition("/")[2] in DISPLAY_SERVERS


def read_number(value: object) -> float | None:
    """A number, also as text with %, C or MiB behind it."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return None if match is None else float(match[1].replace(",", "."))
    return value if _is_number(value) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def mebibytes(size: float | None) -> int | None:
    return None if size is None else int(size // MIB)


def round_known(value: float | None) -> int | None:
    return None if value is None else round(value)


def read_pid(value: object) -> int | None:
    return read_whole(str(value), 2**32 - 1) if isinstance(value, int | str) and not isinstance(value, bool) else None


def read_word(value: object, longest: int = 256) -> str | None:
    text = clean(str(value)).strip()[:longest] if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return text or None
