"""One GPU of the live fleet: its readings become what everybody outside sees.

A view is a dictionary with exactly the fields of `model.view.Gpu`. It is never changed in place: the stream still
publishes the old one while the next is being made. Each update computes only the parts whose input changed and returns
what differs, so that neither a report nor a tick has to compare everything with everything.
"""

from typing import Any

from gpudeck.hub.metrics import bounds_of, check_metrics
from gpudeck.model.availability import Availability, Verdict, judge
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.health import judge_health
from gpudeck.model.report import GpuReading, Process

View = dict[str, Any]

_BOUNDS = bounds_of(GPU_METRICS)


def differences(old: View, new: View) -> View:
    """The fields of `new` that `old` has otherwise."""
    return {name: value for name, value in new.items() if value is not old[name] and value != old[name]}


class GpuState:
    """A GPU between reports: its newest reading and view, since when it is in its state, when it last worked."""

    def __init__(self, reading: GpuReading, now: float, settings: FleetSettings) -> None:
        """Its first report: `view` is complete at once."""
        self.rejected = 0
        self._settings = settings
        self._reading = reading
        self._availability: Availability | None = None
        self._since = now
        self._last_work_at = now
        self._metric_reasons: dict[str, str] = {}
        self.view: View = _identity(reading)
        values = self._take_metrics(reading)
        self.view |= values | _occupants(reading.processes) | {"reasons": self._reasons(reading), "reservation": None}
        self.view |= self._take_verdict(reading, values, now)

    def update(self, reading: GpuReading, now: float) -> View:
        """Take the next reading of the same GPU; returns the fields of its view that changed."""
        last, self._reading = self._reading, reading
        parts: View = {}
        other_metrics = reading.metrics != last.metrics or reading.unknown != last.unknown
        if other_metrics:
            parts |= self._take_metrics(reading)
        other_processes = reading.processes != last.processes
        if other_processes:
            parts |= _occupants(reading.processes)
        if other_metrics or other_processes:
            parts["reasons"] = self._reasons(reading)
        if reading.name != last.name or reading.index != last.index:
            parts |= _identity(reading)
        parts |= self._take_verdict(reading, parts if other_metrics else self.view, now)
        changes = differences(self.view, parts)
        self.view = self.view | changes
        return changes

    def silence(self, reason: str, now: float) -> View:
        """Its host fell silent: the last values stay to be read, but nothing is claimed any more."""
        changes = differences(
            self.view,
            {
                "availability": "unknown",
                "availability_reason": reason,
                "last_seen": self.view["last_seen"] or self.view["availability"],
                "since": self._settle("unknown", None, now),
                "health": "unknown",
                "health_reason": reason,
                "health_action": "See the host's status and problems.",
            },
        )
        self.view = self.view | changes
        return changes

    def _take_metrics(self, reading: GpuReading) -> View:
        values, self._metric_reasons, self.rejected = check_metrics(reading.metrics, reading.unknown, _BOUNDS)
        return values

    def _take_verdict(self, reading: GpuReading, values: View, now: float) -> View:
        availability, reason = self._judge(reading, values, now)
        health = judge_health(reading.missing, values["temperature_celsius"], self._settings.health)
        return {
            "availability": availability,
            "availability_reason": reason,
            "last_seen": None,
            "since": self._settle(availability, reading, now),
            "health": health.level,
            "health_reason": health.reason,
            "health_action": health.action,
        }

    def _judge(self, reading: GpuReading, values: View, now: float) -> Verdict:
        if reading.missing is not None:
            return "unknown", reading.missing
        rules = self._settings.availability
        utilization = values["utilization_percent"]
        if utilization is None or utilization >= rules.work_percent:
            self._last_work_at = now
        processes, memory = _relevant(reading.processes, values["memory_used_bytes"])
        return judge(
            processes=processes,
            memory_used_bytes=memory,
            utilization_percent=utilization,
            # The agent has often watched for longer than this hub has been running.
            idle_seconds=max(now - self._last_work_at, reading.idle_seconds or 0.0),
            booked=False,
            settings=rules,
        )

    def _settle(self, availability: Availability, reading: GpuReading | None, now: float) -> float:
        """Since when it is in this state. On first sight, and after a silence, the reading itself may know better."""
        if availability != self._availability:
            is_first_sight = self._availability in {None, "unknown"}
            self._since = round(_began(availability, reading, now) if is_first_sight and reading else now, 3)
            self._availability = availability
        return self._since

    def _reasons(self, reading: GpuReading) -> dict[str, str]:
        if reading.processes is not None:
            return self._metric_reasons
        return self._metric_reasons | {"processes": reading.processes_reason or reading.missing or "not reported"}


def _began(availability: Availability, reading: GpuReading, now: float) -> float:
    """When a state began that was already there when the hub first looked: as far as the reading can tell."""
    if availability == "busy":
        starts = [
            process.started_at for process in reading.processes or () if process.started_at and not process.display
        ]
        return min([now, *starts])
    return now - (reading.idle_seconds or 0.0)


def _identity(reading: GpuReading) -> View:
    return {
        "uuid": reading.uuid,
        "index": reading.index,
        "label": str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}",
        "name": reading.name,
        "vendor": reading.vendor,
        "parent": reading.parent,
    }


def _occupants(processes: list[Process] | None) -> View:
    return {"users": _users(processes), "processes": processes}


def _relevant(processes: list[Process] | None, memory_used: float | None) -> tuple[int | None, float | None]:
    """How many processes matter and how much memory is theirs: display servers are left out of both."""
    if not processes:
        return (None if processes is None else 0), memory_used
    displays = [process for process in processes if process.display]
    if displays and memory_used is not None:
        memory_used -= sum(process.memory_used_bytes or 0 for process in displays)
    return len(processes) - len(displays), memory_used


def _users(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    memory: dict[str, int] = {}
    for process in processes or ():
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))
