"""What a job does at a moment: phases of even work, found by arithmetic and not by playing the job through."""

from math import exp
from typing import NamedTuple

from gpudeck.collectors.simulated.chance import draw
from gpudeck.collectors.simulated.jobs import Run, Tenure, Timeline
from gpudeck.collectors.simulated.rhythm import activity

_COOLING_S = 55.0
_LEAST_LEVEL = 0.08


class Phase(NamedTuple):
    """From `start` to `end` a job works at `level` (0–1); 0 is no work at all."""

    start: float
    end: float
    level: float


def phase_at(run: Run, t: float) -> Phase:
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


def _between_checkpoints(run: Run, t: float, begun: float) -> Phase:
    work = run.work
    first = begun + (t - begun) // work.period_s * work.period_s
    pause = first + work.period_s - work.rest_s
    if t < pause:
        return Phase(first, min(pause, run.end), work.level)
    return Phase(pause, min(first + work.period_s, run.end), work.rest_level)


def _by_bursts(run: Run, t: float, begun: float) -> Phase:
    number = int((t - begun) // run.work.period_s)
    here = _burst(run, begun, number)
    if here and here.start <= t < here.end:
        return Phase(here.start, min(here.end, run.end), here.level)
    return Phase(_work_ended(run, t, begun, number), _work_begins(run, t, begun, number), 0.0)


def _work_ended(run: Run, t: float, begun: float, number: int) -> float:
    for earlier in range(number, -1, -1):
        burst = _burst(run, begun, earlier)
        if burst and burst.end <= t:
            return burst.end
    return run.start


def _work_begins(run: Run, t: float, begun: float, number: int) -> float:
    while begun + number * run.work.period_s < run.end:
        burst = _burst(run, begun, number)
        if burst and burst.start > t:
            return min(burst.start, run.end)
        number += 1
    return run.end


def _burst(run: Run, begun: float, number: int) -> Phase | None:
    """The work within the `number`-th period: a server is asked all the time or not at all, a person tries things."""
    work = run.work
    opens = begun + number * work.period_s
    is_server = work.kind == "inference"
    if draw(work.salt, 3 * number) > (0.93 if is_server else 0.2 + 0.7 * activity(opens)):
        return None
    luck = draw(work.salt, 3 * number + 1)
    level = max(_LEAST_LEVEL, work.level * (0.4 + 0.6 * luck))
    if is_server:
        return Phase(opens, opens + work.period_s, level)
    offset, length = int(work.period_s * 0.3 * luck), int(work.period_s * (0.1 + 0.5 * draw(work.salt, 3 * number + 2)))
    return Phase(opens + offset, opens + offset + length, level)


class Stretch(NamedTuple):
    """From `start` to `end` nothing changes on a slot but noise: `parts` are its jobs with their levels.

    `heat` is their work as far as it warms the board (0–1). `idle_since` is when the last work ended or the slot became
    empty; None while there is work.
    """

    start: float
    end: float
    parts: tuple[tuple[Run, float], ...]
    heat: float
    idle_since: float | None


def stretch_at(tenure: Tenure, slot: int, t: float) -> Stretch:
    """The stretch of `tenure` that `t` falls into."""
    run = tenure.run
    if run is None:
        return Stretch(tenure.start, tenure.end, (), 0.0, tenure.start)
    phase, guest = phase_at(run, t), run.guest
    if guest is None or slot not in guest.slots:
        return _stretch(phase.start, phase.end, [(run, phase)])
    if t < guest.start:
        return _stretch(phase.start, min(phase.end, guest.start), [(run, phase)])
    if t >= guest.end:
        return _stretch(max(phase.start, guest.end), phase.end, [(run, phase)])
    beside = phase_at(guest, t)
    start, end = max(phase.start, beside.start, guest.start), min(phase.end, beside.end)
    return _stretch(start, end, [(run, phase), (guest, beside)])


def _stretch(start: float, end: float, together: list[tuple[Run, Phase]]) -> Stretch:
    parts = tuple([(run, phase.level) for run, phase in together])
    heat = min(1.0, sum([level * run.work.intensity for run, level in parts]))
    idle_since = None if any(level for _, level in parts) else max([phase.start for _, phase in together])
    return Stretch(start, end, parts, heat, idle_since)


def warmth_at_start(timeline: Timeline, tenure: Tenure, slot: int, stretch: Stretch) -> float:
    """How warm (0–1) the slot still or already is when a stretch of `tenure` begins, from the three before it."""
    stretches = [stretch]
    for _ in range(3):
        t = stretches[-1].start - 1.0
        if t < tenure.start:
            tenure = timeline.tenure(slot, t)
        stretches.append(stretch_at(tenure, slot, t))
    warmth = stretches[3].heat
    for earlier, later in ((stretches[2], stretches[1]), (stretches[1], stretch)):
        warmth = cooled(earlier.heat, warmth, later.start - earlier.start)
    return warmth


def cooled(heat: float, warmth: float, seconds: float) -> float:
    """What `warmth` has become after so many seconds of `heat`: it follows with a lag of about a minute."""
    return heat + (warmth - heat) * exp(-seconds / _COOLING_S)
