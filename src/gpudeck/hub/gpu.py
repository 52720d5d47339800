"""One GPU of the live fleet: its reading becomes what everybody outside sees.

The dictionaries made here have exactly the fields of `model.view.Gpu`; they are dictionaries because the stream
compares and encodes thousands of them a second.
"""

import math
from typing import Any

from gpudeck.model.availability import Availability, judge
from gpudeck.model.catalog import GPU_METRICS, Metric
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.health import judge_health
from gpudeck.model.report import GpuReading, Number, Process

View = dict[str, Any]


class GpuTrack:
    """What the hub remembers of a GPU between reports: since when it is in its state, when it last worked."""

    __slots__ = ("availability", "last_work_at", "since")

    def __init__(self, now: float) -> None:
        self.availability: Availability | None = None
        self.since = now
        self.last_work_at = now

    def settle(self, availability: Availability, now: float) -> float:
        """Since when the GPU has been in this state."""
        if availability != self.availability:
            self.availability = availability
            self.since = now
        return self.since


def check_metrics(
    metrics: dict[str, Number], unknown: dict[str, str], catalog: dict[str, Metric], view: View, reasons: dict[str, str]
) -> int:
    """Fill `view` with a value or None for every metric of the catalog, `reasons` with why; count the unbelievable."""
    rejected = 0
    for name, metric in catalog.items():
        value = metrics.get(name)
        if value is None:
            view[name] = None
            reasons[name] = unknown.get(name, "not reported")
        elif metric.low <= value <= metric.high:
            view[name] = value
        else:
            # NaN and the infinities land here too: every comparison with NaN is false.
            view[name] = None
            reasons[name] = f"the agent sent {value!r}, which cannot be" if math.isfinite(value) else "not a number"
            rejected += 1
    return rejected


def show_gpu(reading: GpuReading, track: GpuTrack, now: float, settings: FleetSettings) -> tuple[View, int]:
    """The GPU as seen from outside after a fresh reading, and how many of its values were not believed."""
    reasons: dict[str, str] = {}
    label = str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"
    view: View = {
        "uuid": reading.uuid,
        "index": reading.index,
        "label": label,
        "name": reading.name,
        "vendor": reading.vendor,
        "parent": reading.parent,
    }
    rejected = check_metrics(reading.metrics, reading.unknown, GPU_METRICS, view, reasons)
    availability, reason = _judge(reading, view, track, now, settings)
    health = judge_health(reading.missing, view["temperature_celsius"], settings.health)
    if reading.processes is None:
        reasons["processes"] = reading.processes_reason or reading.missing or "not reported"
    view["availability"] = availability
    view["availability_reason"] = reason
    view["last_seen"] = None
    view["since"] = track.settle(availability, now)
    view["health"] = health.level
    view["health_reason"] = health.reason
    view["health_action"] = health.action
    view["users"] = _users(reading.processes)
    view["processes"] = reading.processes
    view["reservation"] = None
    view["reasons"] = reasons
    return view, rejected


def show_silent(view: View, reason: str, track: GpuTrack, now: float) -> View:
    """The same GPU after its host fell silent: its last values stay to be read, but nothing is claimed any more."""
    return view | {
        "availability": "unknown",
        "availability_reason": reason,
        "last_seen": view["last_seen"] or view["availability"],
        "since": track.settle("unknown", now),
        "health": "unknown",
        "health_reason": reason,
        "health_action": "See the host's status and problems.",
    }


def _judge(
    reading: GpuReading, view: View, track: GpuTrack, now: float, settings: FleetSettings
) -> tuple[Availability, str | None]:
    if reading.missing is not None:
        return "unknown", reading.missing
    utilization = view["utilization_percent"]
    if utilization is None or utilization >= settings.availability.work_percent:
        track.last_work_at = now
    processes, memory = _occupants(reading.processes, view["memory_used_bytes"])
    return judge(
        processes=processes,
        memory_used_bytes=memory,
        utilization_percent=utilization,
        # The agent has often watched for longer than this hub has been running.
        idle_seconds=max(now - track.last_work_at, reading.idle_seconds or 0.0),
        booked=False,
        settings=settings.availability,
    )


def _occupants(processes: list[Process] | None, memory_used: float | None) -> tuple[int | None, float | None]:
    """How many processes matter and how much memory is theirs: display servers are left out of both."""
    if not processes:
        return (None if processes is None else 0), memory_used
    displays = [process for process in processes if process.display]
    if displays and memory_used is not None:
        memory_used -= sum(process.memory_used_bytes or 0 for process in displays)
    return len(processes) - len(displays), memory_used


def _users(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    if not processes:
        return []
    if len(processes) == 1:
        only = processes[0]
        return [only.user] if only.user is not None and not only.display else []
    memory: dict[str, int] = {}
    for process in processes:
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))
