"""One GPU of the live fleet: its readings become what everybody outside sees.

Each update touches only what differs and returns it: at thousands of GPUs a second, copying what stays the same is what
costs. So a view is changed in place; whoever needs a moment to stand still encodes it (see hub.stream).
"""

from gpudeck.hub.metrics import View, bounds_of, note, note_metrics
from gpudeck.model.availability import Availability, Verdict, judge
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.health import Health, judge_health
from gpudeck.model.report import GpuReading, Process
from gpudeck.model.view import Gpu

_BOUNDS = bounds_of(GPU_METRICS)
_BLANK: View = dict.fromkeys(Gpu.__struct_fields__)


class GpuState:
    """A GPU between reports: its newest reading and view, since when it is in its state, when it last worked."""

    def __init__(self, reading: GpuReading, now: float, settings: FleetSettings) -> None:
        """Its first report: `view` is complete at once."""
        self.view: View = _BLANK | {"users": [], "reasons": {}}
        self.rejected = 0
        self._settings = settings
        self._reading: GpuReading | None = None
        self._availability: Availability | None = None
        self._since = now
        self._last_work_at = now
        self._metric_reasons: dict[str, str] = {}
        self._verdict: tuple[Verdict, float, Health] | None = None
        self.update(reading, now)

    def update(self, reading: GpuReading, now: float) -> View:
        """Take a reading of this GPU; returns the fields of its view that changed."""
        view, last = self.view, self._reading
        changes: View = {}
        other_metrics = last is None or reading.metrics != last.metrics or reading.unknown != last.unknown
        other_processes = last is None or reading.processes != last.processes
        if other_metrics:
            self._metric_reasons, self.rejected = note_metrics(view, changes, reading.metrics, reading.unknown, _BOUNDS)
        if other_processes:
            note(view, changes, {"users": _users(reading.processes), "processes": reading.processes})
        if other_metrics or other_processes:
            note(view, changes, {"reasons": self._reasons(reading)})
        if last is None or reading.name != last.name or reading.index != last.index:
            note(view, changes, _identity(reading))
        view.update(changes)
        changes |= self._take_verdict(reading, now)
        self._reading = reading
        return changes

    def silence(self, reason: str, now: float) -> View:
        """Its host fell silent: the last values stay to be read, but nothing is claimed any more."""
        self._verdict = None
        changes: View = {}
        facts = {
            "availability": "unknown",
            "availability_reason": reason,
            "last_seen": self.view["last_seen"] or self.view["availability"],
            "since": self._settle("unknown", None, now),
            "health": "unknown",
            "health_reason": reason,
            "health_action": "See the host's status and problems.",
        }
        note(self.view, changes, facts)
        self.view.update(changes)
        return changes

    def _take_verdict(self, reading: GpuReading, now: float) -> View:
        availability, reason = self._judge(reading, now)
        since = self._settle(availability, reading, now)
        health = judge_health(reading.missing, self.view["temperature_celsius"], self._settings.health)
        verdict = ((availability, reason), since, health)
        if verdict == self._verdict:
            return {}
        self._verdict = verdict
        changes: View = {}
        facts = {
            "availability": availability,
            "availability_reason": reason,
            "last_seen": None,
            "since": since,
            "health": health.level,
            "health_reason": health.reason,
            "health_action": health.action,
        }
        note(self.view, changes, facts)
        self.view.update(changes)
        return changes

    def _judge(self, reading: GpuReading, now: float) -> Verdict:
        if reading.missing is not None:
            return "unknown", reading.missing
        rules = self._settings.availability
        utilization = self.view["utilization_percent"]
        if utilization is None or utilization >= rules.work_percent:
            self._last_work_at = now
        processes, memory = _relevant(reading.processes, self.view["memory_used_bytes"])
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
        workers = [process for process in reading.processes or () if not process.display]
        return min([now, *(process.started_at for process in workers if process.started_at)])
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
