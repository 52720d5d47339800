"""From work to what a sensor would read: utilization, memory, power, temperature, fan and clocks at a moment."""

from math import pi, sin

from gpudeck.collectors.simulated.chance import wave
from gpudeck.collectors.simulated.hardware import Model
from gpudeck.collectors.simulated.kinds import Work

_CONTEXT_MIB = 420
HOTTEST_CELSIUS = 93.0
_STIFLED_CELSIUS = 88.0


def utilization(work: Work, level: float, salt: int, t: float) -> float:
    """What the job makes of one GPU, in percent: 0 without work, otherwise never below what counts as work."""
    if not level:
        return 0.0
    return min(100.0, max(6.0, 100.0 * level + work.swing * wave(work.salt + salt, t, 12.0)))


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


def clock_sm_mhz(model: Model, load: float, celsius: float, *, is_taken: bool) -> int:
    """Down while nobody is there; near its limits of power and temperature a GPU slows itself. Steps of 15 MHz."""
    empty, full = model.clock_sm_mhz
    if not is_taken:
        return empty
    pace = 1.0 - 0.14 * load * load - (0.22 if celsius >= _STIFLED_CELSIUS else 0.0)
    return int(full * pace) // 15 * 15
