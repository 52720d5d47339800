"""What nodes and files of other monitors tell, as readings of ours: bounded, and never zero for what is unknown."""

import math
from collections.abc import Mapping

from gpudeck.collectors.base import DISPLAY_SERVERS
from gpudeck.collectors.redaction import Commands, clean, show
from gpudeck.collectors.smi_command import explain
from gpudeck.model.catalog import Metric
from gpudeck.model.report import Number, Process
from gpudeck.wire import MAX_PROCESSES

MIB = 1024 * 1024
GPUS_AT_MOST = 512
_NO_NAMES = frozenset({"N/A", "Not Found", "Not Supported", "Insufficient Permissions", "Unknown Error"})
"""What NVML and nvidia-smi put in place of a process's name that they cannot read, without brackets."""
"""Seconds by which "has been running for" may be a different start each time it is asked."""


def processes_at_most(gpus: int) -> int:
    """How many processes of each GPU are taken of a host with so many: a host that lists more than all of them together
    can have is none that anybody looks at."""
    return MAX_PROCESSES // max(8, gpus)


class Figures:
    """Metrics of one GPU or one host, taken one by one. What is not taken is unknown, as `who` does not tell it."""

    def __init__(self, catalog: Mapping[str, Metric], who: str) -> None:
        self._catalog = catalog
        self.metrics: dict[str, Number] = {}
        self.unknown = dict.fromkeys(catalog, f"{who} does not tell")

    def take(self, name: str, value: object, factor: float = 1.0) -> None:
        """A number, times `factor` in the unit of the catalog; anything else is the reason why there is none."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            self.unknown[name] = (
                explain(value) if isinstance(value, str) else f"it is told as {type(value).__name__}, not as a number"
            )
            return
        metric = self._catalog[name]
        scaled = value * factor
        if not metric.low <= scaled <= metric.high:
            self.unknown[name] = f"{value:g} cannot be"
            return
        self.metrics[name] = metric.round(scaled)
        self.unknown.pop(name, None)


def describe_process(
    *,
    pid: object,
    user: str | None,
    name: str,
    memory: object,
    started_at: float | None,
    who: str,
    commands: Commands,
    why: str = "",
) -> Process:
    """A process as `who` tells it. `pid` is its number or what stands in its place: a process whose number cannot be
    read is there all the same. So is `memory`, in MiB; `why` is the reason for what is not known of its owner, where
    there is one."""
    number = read_pid(pid)
    name = "" if name.strip("[]") in _NO_NAMES else name
    command = show([clean(name)], name, commands) if name else None
    used, no_memory = _read_memory(memory)
    silent = f"{who} does not tell"
    reasons = {
        "pid": f"{who} tells no pid" if number is None else "",
        "user": (why or silent) if user is None else "",
        "started_at": (why or silent) if started_at is None else "",
        "command": "" if command else "commands are not shown (commands: none)" if name else silent,
        "memory_used_bytes": no_memory,
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


def _read_memory(memory: object) -> tuple[int | None, str]:
    is_number = isinstance(memory, int | float) and not isinstance(memory, bool) and math.isfinite(memory)
    if is_number and 0 <= memory * MIB < 2**53:  # type: ignore[operator]  # it is a number
        return int(memory * MIB), ""  # type: ignore[operator]  # the same
    return None, explain(memory) if isinstance(memory, str) else "its memory is not told"


def read_pid(value: object) -> int | None:
    """A process's number, also as text; None for what is none."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < 2**32 else None


def read_word(value: object) -> str | None:
    """A short text as a report holds it, such as a user's name; None where there is none."""
    text = clean(str(value)).strip()[:256] if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return text or None
