"""What a hub would have kept of the simulated fleet, had it been running all the time: samples of any span.

The simulator can be asked about any moment, so nothing has to be played through: a moment's report becomes a sample by
itself. Even how long a GPU has been idle is in it, which a live hub has to watch for.

For events a real fleet gets the reports from just before and after each moment at which something may happen, and the
same code as in a running hub detects them.
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
from gpudeck.model.report import GpuReading, Report, occupancy_of
from gpudeck.wire import VERSION, Envelope

HOUR = 3600.0
DAY = 24 * HOUR
_RULES = AvailabilitySettings()
_UNKNOWN = STATE_NUMBERS["unknown"]
_NOTHING_OF_HOST: Values = (None,) * len(HOST_NAMES)
_BEAT = 2.0
_MAX_TURNS = 300
"""Of a host that fails all the time the last days are enough: before, events say again that it does."""
_SILENT = 65.0
"""Seconds after which a hub calls a host down that has stopped reporting."""


class Slice(NamedTuple):
    """A span of time in which all hosts are sampled every `step` seconds."""

    start: float
    end: float
    step: float


def sample_span(fleet: SimulatedFleet, host: int, span: Slice) -> list[HostSample]:
    """One host's samples from the span's start until before its end, at whole multiples of the step.

    While the host is dead, its GPUs are there in an unknown state, as the live hub has them.
    """
    first = -int(-span.start // span.step)
    moments = [number * span.step for number in range(first, -int(-span.end // span.step))]
    reports = [fleet.report(host, moment) for moment in moments]
    ghosts = next((_ghosts(report) for report in reports if report), ())
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


def _ghosts(report: Report) -> tuple[GpuSample, ...]:
    return tuple(GpuSample(gpu.uuid, _label(gpu), gpu.name, _UNKNOWN, NOTHING, None) for gpu in report.gpus or ())


def _label(reading: GpuReading) -> str:
    return str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"


def past_events(simulated: SimulatedFleet, host: int, start: float, end: float) -> list[Event]:
    """What happened to one host, which is seen for the first time when the span begins. The oldest first."""
    events: list[Event] = []
    fleet = FleetState(FleetSettings())
    fleet.observers.add(EventDetector(events.append, start - RETURN_SECONDS, {}))
    turns = simulated.turns(host, start, end)[-_MAX_TURNS:]
    # In order: one turn may be within the silence after another.
    moments = {turn + offset for turn in turns for offset in (-_BEAT, _BEAT, _SILENT)}
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
            interval_seconds=_BEAT,
            report=report,
            host_id=simulated.host_id(host),
            agent_version=__version__,
            simulated=True,
        )
        fleet.apply(envelope, via="simulated", now=now)
    return events
