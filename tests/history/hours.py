"""Hours of a host as tests need them."""

import numpy as np

from gpudeck.history.codec import Floats
from gpudeck.history.hour import BUSY, Hour, RunSlice, cover

START = 1_760_000_400 // 3600 * 3600


def make_hour(gpus: int = 8, samples: int = 360, seed: int = 1, start: int = START) -> Hour:
    """A busy host: noise, slow walks, counters, constants and a metric that no GPU tells."""
    random = np.random.default_rng(seed)
    times = start + 3.25 + np.arange(samples) * (3600 / max(1, samples)) + random.integers(0, 20, samples) / 1000
    shape = gpus, samples
    utilization = random.integers(80, 100, shape).astype(np.float64)
    hour = Hour(start, times, cover(times, 10.0, None), list(range(11, 11 + gpus)), np.full(shape, BUSY, np.uint8))
    hour.metrics = {
        "utilization_percent": utilization,
        "power_watts": (utilization * 6 + random.normal(0, 5, shape)).round(1),
        "temperature_celsius": np.rint(60 + random.normal(0, 0.3, shape).cumsum(axis=1)),
        "memory_used_bytes": random.integers(0, 3, shape).cumsum(axis=1) * 2.0**20,
        "memory_total_bytes": np.full(shape, 81_559 * 2.0**20),
        "energy_joules": 1e12 + random.integers(4000, 7000, shape).cumsum(axis=1).astype(np.float64),
        "fan_percent": np.full(shape, np.nan),
    }
    hour.host = {"cpu_percent": random.normal(50, 5, samples).round(1), "memory_used_bytes": np.full(samples, 2.0**40)}
    return hour


def make_run(hour: Hour, run: int, gpu: int, start: int, end: int) -> RunSlice:
    """A run that was there from one sample until before another, and told its memory but for its first sample."""
    places = np.arange(len(hour.times))
    present = (places >= start) & (places < end)
    memory = np.where(present & (places > start), 2.0**20 * (20_000 + places), np.nan)
    return RunSlice(run, gpu, present, memory, np.where(present, 40.0, np.nan))


def assert_same(found: Floats, expected: Floats, off: float = 0.0) -> None:
    """The same shape and unknowns, and values no more than `off` apart."""
    assert found.shape == expected.shape
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.nanmax(np.abs(found - expected), initial=0.0) <= off
