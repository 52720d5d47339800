"""The last minutes of every GPU and host, kept by top itself, and how they are drawn in one line of text."""

import math
from array import array
from collections.abc import Iterable, Sequence

from gpudeck.model.view import Host

EVERY = 3.0
"""Seconds between two samples."""
SPAN = 900.0
"""How far back a line reaches, in seconds. What top has not seen itself comes from the hub's history."""
_MOST = int(SPAN / EVERY)
_STEPS = "▁▂▃▄▅▆▇█"
STEPS_IN_ASCII = dict(zip(map(ord, "▁▂▃▄▅▆▇≥"), "_.-:=+*>", strict=True))
"""For terminals that know ASCII alone; the rest of our signs is in views.safe."""

GPU_METRICS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
HOST_METRICS = ("cpu_percent", "memory_used_bytes", "load_1m")

Point = tuple[float, float]
"""A moment in Unix seconds and a value."""


class _Trail:
    """Samples as plain floats, a time and a value a metric: a thousand hosts need some 40 MB. Unknown is NaN."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics
        self._size = len(metrics)
        self._times = array("d")
        self._values = array("f")

    def note(self, now: float, *values: float | None) -> None:
        """In the order of its metrics; none of them where nothing is known."""
        self._times.append(now)
        self._values.extend(math.nan if value is None else value for value in values or [None] * self._size)
        # By a third at a time: taking one off at the front would move all others every time.
        if len(self._times) > _MOST * 4 // 3:
            gone = len(self._times) - _MOST
            del self._times[:gone], self._values[: gone * self._size]

    def points(self, metric: str) -> list[Point]:
        own = self._values[self._metrics.index(metric) :: self._size]
        return [(at, value) for at, value in zip(self._times, own, strict=True) if not math.isnan(value)]


class Trails:
    """Of all GPUs by UUID, and of all hosts by id. `older` is what a hub's history told, by subject and metric."""

    def __init__(self) -> None:
        self._trails: dict[str, _Trail] = {}
        self._noted_at = -math.inf
        self.older: dict[tuple[str, str], list[Point]] = {}

    def note(self, now: float, hosts: Iterable[Host]) -> None:
        """Take a sample, where the last one is old enough. Of a silent host there is nothing to take."""
        if 0 <= now - self._noted_at < EVERY - 0.5:
            return
        self._noted_at = now
        before, self._trails = self._trails, {}
        for host in hosts:
            trail = self._trails[host.id] = before.get(host.id) or _Trail(HOST_METRICS)
            known = (host.cpu_percent, host.memory_used_bytes, host.load_1m) if host.status == "up" else ()
            trail.note(now, *known)
            for gpu in host.gpus:
                trail = self._trails[gpu.uuid] = before.get(gpu.uuid) or _Trail(GPU_METRICS)
                if gpu.availability == "unknown":
                    trail.note(now)
                else:
                    trail.note(
                        now, gpu.utilization_percent, gpu.memory_used_bytes, gpu.temperature_celsius, gpu.power_watts
                    )

    def points(self, subject: str, metric: str) -> list[Point]:
        """The oldest first. Of what both know, what was seen here counts."""
        trail = self._trails.get(subject)
        own = [] if trail is None else trail.points(metric)
        first = own[0][0] if own else math.inf
        return [point for point in self.older.get((subject, metric), ()) if point[0] < first] + own


def draw_trail(points: Iterable[Point], now: float, width: int, high: float | None = None) -> str:
    """`width` signs for the SPAN until now, the mean of each step; a space where nothing is known.

    `high` is what the highest sign stands for; without it the largest value.
    """
    sums, counts = [0.0] * width, [0] * width
    for at, value in points:
        step = int((at - now + SPAN) / SPAN * width)
        if 0 <= step < width or at == now:
            sums[min(step, width - 1)] += value
            counts[min(step, width - 1)] += 1
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    top = high or max((mean for mean in means if mean is not None), default=0.0) or 1.0
    return "".join(_sign(mean, top) for mean in _bridge(means))


def _bridge(means: list[float | None]) -> list[float | None]:
    """A wide line has more steps than there are samples: what lies between two that are near is the earlier one."""
    bridged, last, age = [], None, 0
    most = max(1, round(len(means) * 20 / SPAN))
    for at, mean in enumerate(means):
        last, age = (mean, 0) if mean is not None else (last, age + 1)
        is_between = age <= most and any(later is not None for later in means[at : at + most])
        bridged.append(mean if mean is not None else last if is_between else None)
    return bridged


def _sign(value: float | None, high: float) -> str:
    return " " if value is None else _STEPS[min(len(_STEPS) - 1, max(0, int(value / high * len(_STEPS))))]
