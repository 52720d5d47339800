"""What a hub would have kept of the simulated fleet, had it been running all the time: samples of any span.

The simulator can be asked about any moment, so nothing has to be played through: a moment's report becomes a sample by
itself. Even how long a GPU has been idle is in it, which a live hub has to watch for.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample, Values
from gpudeck.model.availability import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading, Process, Report

HOUR = 3600.0
DAY = 24 * HOUR
_RULES = AvailabilitySettings()
_UNKNOWN = STATE_NUMBERS["unknown"]
_NOTHING: Values = (None,) * len(GPU_NAMES)
_NOTHING_OF_HOST: Values = (None,) * len(HOST_NAMES)


class Slice(NamedTuple):
    """A span of time in which all hosts are sampled every `step` seconds."""

    start: float
    end: float
    step: float


def slices(start: float, until: float, fine_step: float, step: float) -> Iterator[Slice]:
    """The span in pieces, the newest first: a few hours, then the rest of the last day, both in fine steps, then days.

    They meet at full hours, so that each hour is handed over once and whole.
    """
    end = until
    day_ago = _full_hour(until) - DAY + HOUR
    for hours in (21, 15, 9, 0):
        edge = day_ago + hours * HOUR
        if end > start:
            yield Slice(max(start, edge), end, fine_step)
            end = edge
    while end > start:
        yield Slice(max(start, end - DAY), end, step)
        end -= DAY


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
        None if reading.processes is None else tuple([_process(one) for one in reading.processes if not one.display]),
    )


def _state(reading: GpuReading, now: float) -> int:
    """As the live hub judges (`hub.gpu`), with the idle time that the reading itself tells."""
    if reading.missing is not None:
        return _UNKNOWN
    workers = displayed = 0
    arrived = now - (reading.idle_seconds or 0.0)
    first: float | None = None
    for process in reading.processes or ():
        if process.display:
            displayed += process.memory_used_bytes or 0
            continue
        workers += 1
        if process.started_at is not None and (first is None or process.started_at < first):
            first = process.started_at
    # Nobody holds a GPU for longer than they have been on it.
    idle_since = arrived if first is None else max(arrived, first)
    metrics = reading.metrics
    availability, _ = judge(
        processes=None if reading.processes is None else workers,
        memory_used_bytes=metrics["memory_used_bytes"] - displayed if "memory_used_bytes" in metrics else None,
        utilization_percent=metrics.get("utilization_percent"),
        idle_seconds=now - idle_since,
        booked=False,
        settings=_RULES,
    )
    return STATE_NUMBERS[availability]


def _process(process: Process) -> ProcessSample:
    return ProcessSample(
        process.pid,
        process.started_at,
        process.user,
        process.command,
        process.container,
        process.job,
        process.memory_used_bytes,
        process.utilization_percent,
    )


def _ghosts(report: Report) -> tuple[GpuSample, ...]:
    return tuple(GpuSample(gpu.uuid, _label(gpu), gpu.name, _UNKNOWN, _NOTHING, None) for gpu in report.gpus or ())


def _label(reading: GpuReading) -> str:
    return str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}"


def _full_hour(t: float) -> float:
    return t - t % HOUR
