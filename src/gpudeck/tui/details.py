"""The details of one GPU or host above its processes, and its last minutes as lines of text."""

import math
from array import array
from collections.abc import Iterable, Sequence

from gpudeck.model.text import clean, show_age, show_gib, show_span
from gpudeck.model.view import Gpu, Host
from gpudeck.tui.table_views import Line, host_title, text_line
from gpudeck.views.table import Cell, fit
from gpudeck.views.text import COLOURS, SYMBOLS, allocation_note, maintenance_note, reservation_note, show_number

EVERY = 3.0
"""Seconds between two samples."""
SPAN = 900.0
"""How far back a sparkline reaches, in seconds."""
_MOST = int(SPAN / EVERY)
_STEPS = "▁▂▃▄▅▆▇█"
STEPS_IN_ASCII = dict(zip(map(ord, "▁▂▃▄▅▆▇≥"), "_.-:=+*>", strict=True))
"""For ASCII terminals; the other symbols are in views.table."""

TREND_GPU_METRICS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
TREND_HOST_METRICS = ("cpu_percent", "memory_used_bytes", "load_1m")

Point = tuple[float, float]
"""A time in Unix seconds and a value."""
_LABEL, _VALUE = 12, 16


class _Trail:
    """Samples as plain floats, a time and one value per metric: a thousand hosts need about 40 MB. Unknown is NaN."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics
        self._size = len(metrics)
        self._times = array("d")
        self._values = array("f")

    def note(self, now: float, subject: Host | Gpu, *, is_known: bool) -> None:
        """Add a sample. All of its values are unknown unless `is_known`."""
        values = [getattr(subject, name) if is_known else None for name in self._metrics]
        self._times.append(now)
        self._values.extend(math.nan if value is None else value for value in values)
        # Drop a third at a time: deleting one at the front would move all others every time.
        if len(self._times) > _MOST * 4 // 3:
            gone = len(self._times) - _MOST
            del self._times[:gone], self._values[: gone * self._size]

    def points(self, metric: str) -> list[Point]:
        own = self._values[self._metrics.index(metric) :: self._size]
        return [(at, value) for at, value in zip(self._times, own, strict=True) if not math.isnan(value)]


class Sparklines:
    """The samples of all GPUs by UUID, and of all hosts by id, since top was started."""

    def __init__(self) -> None:
        self._trails: dict[str, _Trail] = {}
        self._noted_at = -math.inf

    def note(self, now: float, hosts: Iterable[Host]) -> None:
        """Take a sample if the last one is old enough. Silent hosts have none."""
        if 0 <= now - self._noted_at < EVERY - 0.5:
            return
        self._noted_at = now
        before, self._trails = self._trails, {}
        for host in hosts:
            trail = self._trails[host.id] = before.get(host.id) or _Trail(TREND_HOST_METRICS)
            trail.note(now, host, is_known=host.status == "up")
            for gpu in host.gpus:
                trail = self._trails[gpu.uuid] = before.get(gpu.uuid) or _Trail(TREND_GPU_METRICS)
                trail.note(now, gpu, is_known=gpu.availability != "unknown")

    def points(self, subject: str, metric: str) -> list[Point]:
        """The oldest first."""
        trail = self._trails.get(subject)
        return [] if trail is None else trail.points(metric)


def draw_sparkline(points: Iterable[Point], now: float, width: int, high: float | None = None) -> str:
    """A sparkline of `width` symbols for the last SPAN seconds, with the mean of each step; a space if unknown. `high`
    is the value of the highest symbol, by default the largest value."""
    sums, counts = [0.0] * width, [0] * width
    for at, value in points:
        step = int((at - now + SPAN) / SPAN * width)
        if 0 <= step < width or at == now:
            sums[min(step, width - 1)] += value
            counts[min(step, width - 1)] += 1
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    top = high or max((mean for mean in means if mean is not None), default=0.0) or 1.0
    return "".join(_sign(mean, top) for mean in means)


def _sign(value: float | None, high: float) -> str:
    return " " if value is None else _STEPS[min(len(_STEPS) - 1, max(0, int(value / high * len(_STEPS))))]


def gpu_lines(host: Host, gpu: Gpu, trails: Sparklines, now: float, width: int) -> list[Line]:
    state = gpu.availability
    used, total, limit = gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.power_limit_watts
    title = [
        (f"{clean(host.display_name)} · GPU {gpu.label} · {clean(gpu.name)} · ", "bold"),
        (f"{SYMBOLS[state]} {state}", COLOURS[state]),
        (f" for {show_age(gpu.since, now)}", ""),
    ]
    rows: list[tuple[str, str, str, float | None]] = [
        ("utilization", show_number(gpu.utilization_percent, "%"), "utilization_percent", 100.0),
        ("memory", f"{show_gib(used)}/{show_gib(total, 0)} GiB", "memory_used_bytes", total),
        ("temperature", show_number(gpu.temperature_celsius, "°C"), "temperature_celsius", 100.0),
        ("power", f"{show_number(gpu.power_watts, '')}/{show_number(limit, ' W')}", "power_watts", limit),
    ]
    drawn = [_trail_line(trails, gpu.uuid, row, now, width) for row in rows]
    uuid = text_line([(gpu.uuid, "grey")], width)
    return [text_line(title, width), *_notes(gpu, now, width), *drawn, _legend(width), uuid]


def host_lines(host: Host, trails: Sparklines, now: float, width: int) -> list[Line]:
    used, total, count = host.memory_used_bytes, host.memory_total_bytes, host.cpu_count
    title = [(host_title(host), "bold")]
    rows: list[tuple[str, str, str, float | None]] = [
        ("CPU", show_number(host.cpu_percent, "%"), "cpu_percent", 100.0),
        ("RAM", f"{show_gib(used, 0)}/{show_gib(total, 0)} GiB", "memory_used_bytes", total),
        ("load", show_number(host.load_1m, ""), "load_1m", count),
    ]
    about = (("via", host.via), ("driver", host.driver_version), ("OS", host.os))
    told = [f"{key} {clean(value)}" for key, value in about if value]
    up_for = [f"up for {show_span(host.uptime_seconds)}"] if host.uptime_seconds is not None else []
    problems = [text_line([(f"! {clean(problem)}", "yellow")], width) for problem in host.problems[:4]]
    drawn = [_trail_line(trails, host.id, row, now, width) for row in rows]
    facts = text_line([(" · ".join([*told, *up_for]), "grey")], width)
    gpus = [_gpu_line(gpu, trails, now, width) for gpu in host.gpus]
    return [text_line(title, width), *problems, facts, *drawn, *gpus, _legend(width)]


def _gpu_line(gpu: Gpu, trails: Sparklines, now: float, width: int) -> Line:
    """One of a host's GPUs: its state, its utilization, and a sparkline."""
    state = gpu.availability
    value = fit(show_number(gpu.utilization_percent, "%"), _VALUE - 10, "right")
    head: Line = [(fit(f"{SYMBOLS[state]} {state}", 10), COLOURS[state]), (f"{value}  ", "")]
    return _draw_trail(f"GPU {gpu.label}", head, trails.points(gpu.uuid, "utilization_percent"), now, width, high=100.0)


def _trail_line(
    trails: Sparklines, subject: str, row: tuple[str, str, str, float | None], now: float, width: int
) -> Line:
    label, value, metric, high = row
    head: Line = [(f"{fit(value, _VALUE, 'right')}  ", "")]
    return _draw_trail(label, head, trails.points(subject, metric), now, width, high=high)


def _draw_trail(label: str, head: Line, points: list[Point], now: float, width: int, *, high: float | None) -> Line:
    """Without the sparkline if there is no room. Each of its symbols is one column wide."""
    line: Line = [(fit(label, _LABEL), "grey"), *head]
    room = width - _LABEL - _VALUE - 2
    if room < 8:
        return text_line(line, width)
    # A wider one would have gaps between samples.
    trail = draw_sparkline(points, now, min(room, _MOST // 2), high)
    return [*line, (trail, "green"), (" " * (room - len(trail)), "")]


def _legend(width: int) -> Line:
    before = " " * (_LABEL + _VALUE + 2)
    return text_line([(f"{before}the last {SPAN / 60:.0f} minutes, now on the right", "grey")], width)


def _notes(gpu: Gpu, now: float, width: int) -> list[Line]:
    """Its problems with next steps, and its reservation."""
    wrong = (gpu.health_reason, gpu.health_action, gpu.availability_reason, gpu.reservation_conflict)
    told: list[Cell] = [(f"! {clean(text)}", "yellow") for text in dict.fromkeys(wrong) if text]
    if gpu.allocation is not None:
        told.append((clean(allocation_note(gpu.allocation, now)), COLOURS["allocated"]))
    if gpu.maintenance is not None:
        told.append((clean(maintenance_note(gpu.maintenance, now)), COLOURS["drained"]))
    if gpu.reservation_conflict is None and (reserved := reservation_note(gpu, now)):
        told.append((clean(reserved), COLOURS["reserved"]))
    return [text_line([cell], width) for cell in told]
