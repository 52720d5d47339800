"""The work of a job and the values of sensors at any time, in closed form."""

from collections.abc import Iterable
from math import pi, sin
from typing import NamedTuple

from gpudeck.collectors.simulated.chance import activity, draw, wave
from gpudeck.collectors.simulated.inventory import SimulatedModel
from gpudeck.collectors.simulated.jobs import SimulatedJob, Tenure, Timeline
from gpudeck.collectors.simulated.work import ACTIVITY_METRICS, Work
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import Number

CONTEXT_MIB = 420
HOTTEST_CELSIUS = 93.0
THROTTLE_CELSIUS = 88.0
"""The driver throttles a GPU at this temperature and above."""
SLOWDOWN_CELSIUS = 92.0
"""The hardware throttles a GPU at this temperature and above, a few degrees below its shutdown temperature."""
CAPPED = 0.95
"""A GPU that uses at least this share of its power limit throttles itself to stay within the limit."""
MIN_LEVEL = 0.08
WORKING_HEAT = 0.3
"""A board with at least this `heat` is warm from work."""


def utilization(work: Work, level: float, salt: int, t: float) -> float:
    """The utilization of one GPU by the job, in percent: 0 without work, otherwise at least what counts as work."""
    if not level:
        return 0.0
    return min(100.0, max(6.0, 100.0 * level + work.swing * wave(work.salt + salt, t, 12.0)))


class GpuLoad(NamedTuple):
    """The use of a GPU by all its jobs. All values are 0–1. `effort` is the part of the load that draws power."""

    load: float
    effort: float
    bandwidth: float
    video: float


def sum_loads(parts: Iterable[tuple[SimulatedJob, float]], salt: int, t: float) -> GpuLoad:
    """`parts` are jobs with their levels. Some servers decode video."""
    load = effort = bandwidth = video = 0.0
    for run, level in parts:
        work = run.work
        share = utilization(work, level, salt, t) / 100
        load += share
        effort += share * work.intensity
        bandwidth += share * work.bandwidth
        video += 0.4 * share if work.kind == "inference" and work.salt % 4 == 0 else 0.0
    return GpuLoad(min(1.0, load), min(1.0, effort), min(1.0, bandwidth), video)


def sum_activity(parts: Iterable[tuple[SimulatedJob, float]], salt: int, t: float) -> dict[str, Number]:
    sums = [0.0] * len(ACTIVITY_METRICS)
    for run, level in parts:
        share = utilization(run.work, level, salt, t) / 100
        sums = [value + share * full for value, full in zip(sums, run.work.activity, strict=True)]
    return {name: _to_metric(name, value) for name, value in zip(ACTIVITY_METRICS, sums, strict=True)}


def _to_metric(name: str, value: float) -> Number:
    return round(100 * min(1.0, value)) if name.endswith("_percent") else GPU_METRICS[name].round(value)


def memory_mib(work: Work, total_mib: int, age_s: float) -> int:
    """The memory on each GPU of the job `age_s` after its start: a context first, then it grows, then it stays."""
    full = int(work.memory_share * total_mib)
    if age_s >= work.ramp_s:
        return full
    context = min(CONTEXT_MIB, full)
    return context + int((full - context) * age_s / work.ramp_s)


def power_watts(model: SimulatedModel, effort: float, *, is_taken: bool, noise: float) -> float:
    """`effort` is the load weighted with its intensity (0–1); `noise` is between -1 and 1."""
    rest = model.ready_watts if is_taken else model.idle_watts
    drawn = rest + (model.limit_watts - rest) * effort
    return min(float(model.limit_watts), drawn + noise * (0.6 + drawn * 0.012))


def temperature(model: SimulatedModel, heat: float, ambient_offset: float) -> float:
    """`heat` is the load that warms the board (0–1); `ambient_offset` is in °C above the usual room temperature."""
    return model.cool_celsius + (model.hot_celsius - model.cool_celsius) * heat + ambient_offset


def throttled_temperature(heat: float, ambient_offset: float) -> float:
    """The temperature of a GPU without airflow: always too hot, a little more so when it works."""
    return min(HOTTEST_CELSIUS, max(THROTTLE_CELSIUS, THROTTLE_CELSIUS + 4.0 * heat + ambient_offset))


def ambient_offset(salt: int, t: float) -> float:
    """°C above the usual room temperature: a daily cycle, and slow random changes."""
    return 1.2 * sin(2 * pi * (t / 86_400 - 0.38)) + 1.1 * wave(salt, t, 900.0)


def fan_percent(celsius: float) -> float:
    """Fans follow the temperature, and never stand still."""
    return min(100.0, max(30.0, 30.0 + (celsius - 42.0) * 1.7))


def clock_sm_mhz(model: SimulatedModel, load: float, celsius: float, *, is_taken: bool) -> int:
    """Down while unused; near its limits of power and temperature a GPU slows itself. Steps of 15 MHz."""
    empty, full = model.clock_sm_mhz
    if not is_taken:
        return empty
    pace = 1.0 - 0.14 * load * load - (0.22 if celsius >= THROTTLE_CELSIUS else 0.0)
    return int(full * pace) // 15 * 15


class Phase(NamedTuple):
    """From `start` to `end` a job works at `level` (0–1); 0 is no work at all."""

    start: float
    end: float
    level: float


def phase_at(run: SimulatedJob, t: float) -> Phase:
    """The job's phase at `t`, which lies between its start and its end. A phase of no work begins when work ended."""
    work = run.work
    begun = run.start + work.load_s
    if t < begun:
        return Phase(run.start, min(begun, run.end), 0.0)
    if work.kind == "training":
        return _between_checkpoints(run, t, begun)
    if work.kind == "holder":
        done = begun + work.period_s
        return Phase(begun, min(done, run.end), work.level) if t < done else Phase(done, run.end, 0.0)
    if work.kind == "loader":
        return Phase(begun, run.end, work.level)
    return _by_bursts(run, t, begun)


def _between_checkpoints(run: SimulatedJob, t: float, begun: float) -> Phase:
    work = run.work
    first = begun + (t - begun) // work.period_s * work.period_s
    pause = first + work.period_s - work.rest_s
    if t < pause:
        return Phase(first, min(pause, run.end), work.level)
    return Phase(pause, min(first + work.period_s, run.end), work.rest_level)


def _by_bursts(run: SimulatedJob, t: float, begun: float) -> Phase:
    number = int((t - begun) // run.work.period_s)
    here = _burst(run, begun, number)
    if here and here.start <= t < here.end:
        return Phase(here.start, min(here.end, run.end), here.level)
    return Phase(_work_ended(run, t, begun, number), _work_begins(run, t, begun, number), 0.0)


def _work_ended(run: SimulatedJob, t: float, begun: float, number: int) -> float:
    for earlier in range(number, -1, -1):
        burst = _burst(run, begun, earlier)
        if burst and burst.end <= t:
            return burst.end
    return run.start


def _work_begins(run: SimulatedJob, t: float, begun: float, number: int) -> float:
    while begun + number * run.work.period_s < run.end:
        burst = _burst(run, begun, number)
        if burst and burst.start > t:
            return min(burst.start, run.end)
        number += 1
    return run.end


def _burst(run: SimulatedJob, begun: float, number: int) -> Phase | None:
    """The work within the `number`-th period: a server has requests all the time or not at all, a person tries
    things."""
    work = run.work
    opens = begun + number * work.period_s
    is_server = work.kind == "inference"
    if draw(work.salt, 3 * number) > (0.93 if is_server else 0.2 + 0.7 * activity(opens)):
        return None
    luck = draw(work.salt, 3 * number + 1)
    level = max(MIN_LEVEL, work.level * (0.4 + 0.6 * luck))
    if is_server:
        return Phase(opens, opens + work.period_s, level)
    offset, length = int(work.period_s * 0.3 * luck), int(work.period_s * (0.1 + 0.5 * draw(work.salt, 3 * number + 2)))
    return Phase(opens + offset, opens + offset + length, level)


class LoadSegment(NamedTuple):
    """From `start` to `end` nothing changes on a slot but noise. `heat` is the work as far as it warms the board (0–1).
    `idle_since` is when the last work ended or the slot became empty."""

    start: float
    end: float
    parts: tuple[tuple[SimulatedJob, float], ...]
    heat: float
    idle_since: float | None


def segment_at(tenure: Tenure, slot: int, t: float) -> LoadSegment:
    run = tenure.run
    if run is None:
        return LoadSegment(tenure.start, tenure.end, (), 0.0, tenure.start)
    phase, guest = phase_at(run, t), run.guest
    if guest is None or slot not in guest.slots:
        return _make_segment(phase.start, phase.end, [(run, phase)])
    if t < guest.start:
        return _make_segment(phase.start, min(phase.end, guest.start), [(run, phase)])
    if t >= guest.end:
        return _make_segment(max(phase.start, guest.end), phase.end, [(run, phase)])
    second = phase_at(guest, t)
    start, end = max(phase.start, second.start, guest.start), min(phase.end, second.end)
    return _make_segment(start, end, [(run, phase), (guest, second)])


def _make_segment(start: float, end: float, together: list[tuple[SimulatedJob, Phase]]) -> LoadSegment:
    parts = tuple([(run, phase.level) for run, phase in together])
    heat = min(1.0, sum([level * run.work.intensity for run, level in parts]))
    idle_since = None if any(level for _, level in parts) else max([phase.start for _, phase in together])
    return LoadSegment(start, end, parts, heat, idle_since)


_NO_SEGMENT = LoadSegment(0.0, 0.0, (), 0.0, 0.0)


class SlotTrack:
    """Caches the last segment, because the next request is nearly always for the same one."""

    def __init__(self, timeline: Timeline, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot
        self._tenure = Tenure(0.0, 0.0, None, 0.0)
        self._segment = _NO_SEGMENT
        self._known_from = 0.0

    def at(self, t: float) -> LoadSegment:
        """The segment at `t`. Consecutive calls within one segment return the same object."""
        if not self._known_from <= t < self._segment.end:
            if not self._tenure.known_from <= t < self._tenure.end:
                self._tenure = self._timeline.tenure(self._slot, t)
            self._segment = segment_at(self._tenure, self._slot, t)
            self._known_from = max(self._segment.start, self._tenure.known_from)
        return self._segment
