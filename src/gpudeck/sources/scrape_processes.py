"""The processes that an exporter lists on a GPU.

Exporters tell whole command lines. They are redacted here, before anybody else sees them, as an agent would have done.
"""

import math
import shlex
from collections.abc import Iterable

from gpudeck.collectors.redaction import Commands, show
from gpudeck.collectors.settings import DISPLAY_SERVERS
from gpudeck.model.report import Process
from gpudeck.sources.scrape_devices import Device
from gpudeck.sources.scrape_page import Sample
from gpudeck.sources.scrape_tables import Exporter, ProcessTable, Scaled

PROCESSES_AT_MOST = 1024
NOT_BY_INSTANCE = "its processes are told for the whole board, not by MIG instance"
_START_JITTER = 10.0
_NAMELESS = {"", "N/A"}


class Starts:
    """When processes started, kept still: "has been running for" is a little different on each page."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str | None], float] = {}
        self._seen: dict[tuple[int, str | None], float] = {}

    def settle(self, pid: int, user: str | None, started_at: float) -> float:
        kept = self._kept.get((pid, user), started_at)
        settled = kept if abs(kept - started_at) < _START_JITTER else started_at
        self._seen[pid, user] = settled
        return settled

    def turn(self) -> None:
        """Forget what the page that was just read did not list."""
        self._kept, self._seen = self._seen, {}


class ProcessReader:
    """Reads what one exporter lists. `commands` is how much of a command line is told."""

    def __init__(self, commands: Commands, starts: Starts) -> None:
        self._commands: Commands = commands
        self._starts = starts

    def read(self, exporter: Exporter, device: Device, board: Device | None, now: float) -> list[Process] | str:
        """The processes, or why they are not known. At most PROCESSES_AT_MOST of them."""
        table = exporter.processes
        if table is None:
            return _name_holders(exporter.processes_reason, device.holders)
        if table.listed_by not in device.values:
            if board is None or table.listed_by not in board.values:
                return exporter.processes_reason or f"{exporter.name} does not list this GPU's processes"
            if board.processes:
                return NOT_BY_INSTANCE
        by_pid: dict[tuple[int, str], list[Sample]] = {}
        for sample in device.processes:
            text = sample.labels.get(table.pid, "")
            pid = _read_pid(text)
            # One whose pid cannot be read is a process all the same: its GPU is not free.
            by_pid.setdefault((pid, "" if pid else text), []).append(sample)
        listed = sorted(by_pid.items())[:PROCESSES_AT_MOST]
        return [self._describe(exporter, table, pid, samples, now) for (pid, _), samples in listed]

    def _describe(
        self, exporter: Exporter, table: ProcessTable, pid: int, samples: list[Sample], now: float
    ) -> Process:
        """`pid` is 0 where it is not known."""
        user, line = _find_text(samples, table.user), _find_text(samples, table.command)
        arguments = _split(line or "")
        command = show(arguments, _program(arguments), self._commands) if line else None
        memory = _value(samples, table.memory, 2.0**53 - 1)
        running = _value(samples, table.running_seconds, 1e10)
        told = {
            "user": user,
            "command": command,
            "memory_used_bytes": None if memory is None else int(memory),
            "started_at": None if running is None else round(self._starts.settle(pid, user, now - running), 3),
            "utilization_percent": _value(samples, table.utilization, 100.0),
        }
        silent = f"{exporter.name} does not tell"
        hidden = {"command": "commands are not shown (commands: none)"} if line and command is None else {}
        return Process(
            pid=pid,
            **told,  # type: ignore[arg-type]  # the kind of each value is its field's
            evidence=f"as {exporter.name} says",
            display=_program(arguments) in DISPLAY_SERVERS,
            reasons={name: silent for name, value in ({"pid": pid or None} | told).items() if value is None} | hidden,
        )


def _name_holders(reason: str, holders: list[str]) -> str:
    """Whom a scheduler gave the GPU to is no process, but all there is to say about who is on it."""
    if not holders:
        return reason
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"{reason}; the GPU is given to {' and to '.join(holders[:3])}{more}"[:1024]


def _read_pid(text: str) -> int:
    """0 for what is no pid."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 10
    return int(text) if is_number and int(text) < 2**32 else 0


def _find_text(samples: Iterable[Sample], name: str | None) -> str | None:
    if name is None:
        return None
    return next((text for sample in samples if (text := sample.labels.get(name, "").strip()) not in _NAMELESS), None)


def _value(samples: Iterable[Sample], wanted: Scaled | None, high: float) -> float | None:
    if wanted is None:
        return None
    value = next((sample.value * wanted.factor for sample in samples if sample.name == wanted.series), math.nan)
    return value if 0 <= value <= high else None


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _program(arguments: list[str]) -> str:
    return arguments[0].rpartition("/")[2] if arguments else ""
