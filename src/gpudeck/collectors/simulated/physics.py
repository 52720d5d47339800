"""From work to what a sensor would read: utilization, memory, power, temperatures, fan and clocks at a moment."""

from collections.abc import Iterable
from math import pi, sin
from typing import NamedTuple

from gpudeck.collectors.simulated.chance import wave
from gpudeck.collectors.simulated.hardware import Model
from gpudeck.collectors.simulated.jobs import Run
from gpudeck.collectors.simulated.kinds import Work

_CONTEXT_MIB = 420
HOTTEST_CELSIUS = 93.0
_STIFLED_CELSIUS = 88.0
_SLOWDOWN_CELSIUS = 92.0
_CAPPED = 0.95


def utilization(work: Work, level: float, salt: int, t: float) -> float:
    """What the job makes of one GPU, in percent: 0 without work, otherwise never below what counts as work."""
    if not level:
        return 0.0
    return min(100.0, max(6.0, 100.0 * level + work.swing * wave(work.salt + salt, t, 12.0)))


class Doing(NamedTuple):
    """What the jobs on a GPU make of it together, each 0–1.

    `effort` is the load as far as it takes power, `video` that of the video engines.
    """

    load: float
    effort: float
    bandwidth: float
    video: float


def add_up(parts: Iterable[tuple[Run, float]], salt: int, t: float) -> Doing:
    """`parts` are jobs with their levels. Some servers are sent films: the decoder works then as well."""
    load = effort = bandwidth = video = 0.0
    for run, level in parts:
        work = run.work
        share = utilization(work, level, salt, t) / 100
        load += share
        effort += share * work.intensity
        bandwidth += share * work.bandwidth
        video += 0.4 * share if work.kind == "inference" and work.salt % 4 == 0 else 0.0
    return Doing(min(1.0, load), min(1.0, effort), min(1.0, bandwidth), video)


def memory_mib(work: Work, total_mib: int, age_s: float) -> int:
    """What the job holds on each of its GPUs `age_s` after its start: a context first, then it grows, then it stays."""
    full = int(work.memory_share * total_mib)
    if age_s >= work.ramp_s:
        return full
    context = min(_CONTEXT_MIB, full)
    return context + int((full - context) * age_s / work.ramp_s)


def power_watts(model: Model, effort: float, *, is_taken: bool, ripple: float) -> float:
    """`effort` is the work weighted with its intensity (0–1), `ripple` the noise (-1–1)."""
    rest = model.ready_watts if is_taken else model.idle_watts
    drawn = rest + (model.limit_watts - rest) * effort
    return min(float(model.limit_watts), drawn + ripple * (0.6 + drawn * 0.012))


def temperature(model: Model, warmth: float, room: float) -> float:
    """`warmth` is the lagged work (0–1), `room` how many degrees its surroundings are above the usual."""
    return model.cool_celsius + (model.hot_celsius - model.cool_celsius) * warmth + room


def stifled_temperature(warmth: float, room: float) -> float:
    """What a GPU without airflow reads: always too hot, a little more so when it works."""
    return min(HOTTEST_CELSIUS, max(_STIFLED_CELSIUS, _STIFLED_CELSIUS + 4.0 * warmth + room))


def room_offset(salt: int, t: float) -> float:
    """How much warmer the surroundings are than usual: the afternoon, the neighbours, the cooling."""
    return 1.2 * sin(2 * pi * (t / 86_400 - 0.38)) + 1.1 * wave(salt, t, 900.0)


def fan_percent(celsius: float) -> float:
    """Fans follow the temperature, and never stand still."""
    return min(100.0, max(30.0, 30.0 + (celsius - 42.0) * 1.7))


def is_capped(model: Model, watts: float) -> bool:
    """Whether the GPU slows itself to stay within its power limit."""
    return watts >= _CAPPED * model.limit_watts


def is_slowed_by_heat(celsius: float) -> bool:
    """Whether the driver slows the GPU because of its temperature."""
    return celsius >= _STIFLED_CELSIUS


def is_slowed_down(celsius: float) -> bool:
    """Whether the GPU itself goes slow, a few degrees before it would switch off."""
    return celsius >= _SLOWDOWN_CELSIUS


def clock_sm_mhz(model: Model, load: float, celsius: float, *, is_taken: bool) -> int:
    """Down while nobody is there; near its limits of power and temperature a GPU slows itself. Steps of 15 MHz."""
    empty, full = model.clock_sm_mhz
    if not is_taken:
        return empty
    pace = 1.0 - 0.14 * load * load - (0.22 if is_slowed_by_heat(celsius) else 0.0)
    return int(full * pace) // 15 * 15
