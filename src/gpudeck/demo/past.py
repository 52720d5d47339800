"""Samples and events that a hub would have recorded of the simulated fleet, for any span of time.

The simulator answers about any moment, so a sample is made from the report of its moment alone. Events come from the
event detector of a running hub, which gets reports from just before and after each moment at which something may
happen.
"""

from typing import NamedTuple

from gpudeck import __version__
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.state import FleetState
from gpudeck.history.recorder import sample_processes
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, NOTHING, STATE_NUMBERS, GpuSample, HostSample, Values
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import RETURN_SECONDS, AvailabilitySettings, FleetSettings, judge
from gpudeck.model.report import GpuReading, occupancy_of
from gpudeck.wire import VERSION, Envelope

HOUR = 3600.0
DAY = 24 * HOUR
_RULES = AvailabilitySettings()
_UNKNOWN = STATE_NUMBERS["unknown"]
_NOTHING_OF_HOST: Values = (None,) * len(HOST_NAMES)
_INTERVAL_SECONDS = 2.0
_MAX_TURNS = 300
"""Only the last moments of a host that fails all the time are evaluated; earlier events would repeat."""
_SILENT = 65.0
"""Seconds after which a hub calls a host down that has stopped reporting."""


class Slice(NamedTuple):
    """A span of time in which all hosts are sampled every `step` seconds."""

    start: float
    end: float
    step: float


def sample_span(fleet: SimulatedFleet, host: int, span: Slice) -> list[HostSample]:
    """Samples of one host at whole multiples of the step, from the start until before the end. While the host is
    down, its GPUs are unknown, as in the live hub."""
    first = -int(-span.start // span.step)
    moments = [number * span.step for number in range(first, -int(-span.end // span.step))]
    reports = [fleet.report(host, moment) for moment in moments]
    known = next((report.gpus or () for report in reports if report), ())
    ghosts = tuple(GpuSample(gpu.uuid, _label(gpu), gpu.name, _UNKNOWN, NOTHING, None) for gpu in known)
    host_id, name = fleet.host_id(host), fleet.names[host]
    return [
        HostSample(
            host_id,
            name,
            moment,
            span.step,
            _NOTHING_OF_HOST if report is None else tuple(map(report.metrics.get, HOST_NAMES)),
            ghosts if report is None else tuple([_sample(gpu, moment) for gpu in report.gpus or ()]),
        )
        for moment, report in zip(moments, reports, strict=True)
    ]


def _sample(reading: GpuReading, now: float) -> GpuSample:
    return GpuSample(
        reading.uuid,
        _label(reading),
        reading.name,
        _state(reading, now),
        tuple(map(reading.metrics.get, GPU_NAMES)),
        sample_processes(reading.processes),
    )


def _state(reading: GpuReading, now: float) -> int:
    """As the live fleet judges (`fleet.columns`), with the idle time of the reading itself."""
    if reading.missing is not None:
        return _UNKNOWN
    there, memory = occupancy_of(reading.processes), reading.metrics.get("memory_used_bytes")
    idle_seconds = reading.idle_seconds or 0.0
    if there.oldest_start is not None:
        # Nobody holds a GPU for longer than they have been on it.
        idle_seconds = min(idle_seconds, now - there.oldest_start)
    availability, _ = judge(
        processes=there.workers,
        memory_used_bytes=None if memory is None else memory - (there.display_bytes or 0),
        utilization_percent=reading.metrics.get("utilization_percent"),
        idle_seconds=idle_seconds,
        reserved=False,
        settings=_RULES,
    )
    return STATE_NUMBERS[availability]


def _label(reading: GpuReading) -> str:
    return str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"


def past_events(simulated: SimulatedFleet, host: int, start: float, end: float) -> list[Event]:
    """Events of one host, the oldest first. The host is first seen when the span begins."""
    events: list[Event] = []
    fleet = FleetState(FleetSettings())
    fleet.observers.add(EventDetector(events.append, start - RETURN_SECONDS, {}))
    turns = simulated.event_times(host, start, end)[-_MAX_TURNS:]
    # In order: one turn may be within the silence after another.
    moments = {turn + offset for turn in turns for offset in (-_INTERVAL_SECONDS, _INTERVAL_SECONDS, _SILENT)}
    for sequence, now in enumerate([start, *(moment for moment in sorted(moments) if start < moment < end)], 1):
        report = simulated.report(host, now)
        if report is None:
            for state in fleet.hosts.values():
                if state.age(now):
                    fleet.observers.on_host_changed(state, now)
            continue
        envelope = Envelope(
            version=VERSION,
            host=simulated.names[host],
            boot_id=simulated.boot_id(host, now),
            sequence=sequence,
            collected_at=now,
            interval_seconds=_INTERVAL_SECONDS,
            report=report,
            host_id=simulated.host_id(host),
            agent_version=__version__,
            simulated=True,
        )
        fleet.apply(envelope, via="simulated", now=now)
    # The first report contains the faults of the day before.
    return [event for event in events if event.at >= start]
