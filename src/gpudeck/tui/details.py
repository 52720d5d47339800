"""What stands above the processes of one GPU or one host: its facts, and its last minutes as lines."""

from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Gpu, Host
from gpudeck.tui.gpus import host_title
from gpudeck.tui.layout import Line, text_line
from gpudeck.tui.trails import SPAN, Trails, draw_trail
from gpudeck.views.cells import COLOURS, SYMBOLS, reservation_note, show_number
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, fit

_LABEL, _VALUE = 12, 16
_UNITS = {"percent": "%", "celsius": "°C", "watts": " W", "megahertz": " MHz"}


def gpu_lines(host: Host, gpu: Gpu, trails: Trails, now: float, width: int) -> list[Line]:
    """The head of a GPU's page."""
    state = gpu.availability
    used, total, limit = gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.power_limit_watts
    title = [
        (f"{clean(host.display_name)} · GPU {gpu.label} · {clean(gpu.name)} · ", "bold"),
        (f"{SYMBOLS[state]} {state}", COLOURS[state]),
        (f" for {show_span(now - gpu.since)}", ""),
    ]
    rows: list[tuple[str, str, str, float | None]] = [
        ("utilization", show_number(gpu.utilization_percent, "%"), "utilization_percent", 100.0),
        ("memory", f"{show_gib(used)}/{show_gib(total, 0)} GiB", "memory_used_bytes", total),
        ("temperature", show_number(gpu.temperature_celsius, "°C"), "temperature_celsius", 100.0),
        ("power", f"{show_number(gpu.power_watts, '')}/{show_number(limit, ' W')}", "power_watts", limit),
    ]
    drawn = [_trail_line(trails, gpu.uuid, row, now, width) for row in rows]
    return [text_line(title, width), *_notes(gpu, now, width), *drawn, _legend(width), _others(gpu, width)]


def host_lines(host: Host, trails: Trails, now: float, width: int) -> list[Line]:
    """The head of a host's page."""
    used, total, count = host.memory_used_bytes, host.memory_total_bytes, host.cpu_count
    title = [(host_title(host), "bold")]
    rows: list[tuple[str, str, str, float | None]] = [
        ("CPU", show_number(host.cpu_percent, "%"), "cpu_percent", 100.0),
        ("RAM", f"{show_gib(used, 0)}/{show_gib(total, 0)} GiB", "memory_used_bytes", total),
        ("load", show_number(host.load_1m, ""), "load_1m", count),
    ]
    told = [
        f"{key} {clean(str(value))}"
        for key, value in (("via", host.via), ("driver", host.driver_version), ("OS", host.os))
        if value
    ]
    up_for = [f"up for {show_span(host.uptime_seconds)}"] if host.uptime_seconds is not None else []
    problems = [text_line([(f"! {clean(problem)}", "yellow")], width) for problem in host.problems[:4]]
    drawn = [_trail_line(trails, host.id, row, now, width) for row in rows]
    facts = text_line([(" · ".join([*told, *up_for]), "grey")], width)
    gpus = [_gpu_line(gpu, trails, now, width) for gpu in host.gpus]
    return [text_line(title, width), *problems, facts, *drawn, *gpus, _legend(width)]


def _gpu_line(gpu: Gpu, trails: Trails, now: float, width: int) -> Line:
    """One of a host's GPUs: its state, its utilization, and how that was."""
    state = gpu.availability
    label = fit(f"GPU {gpu.label}", _LABEL)
    value = fit(show_number(gpu.utilization_percent, "%"), _VALUE - 10, "right")
    room = max(8, width - _LABEL - _VALUE - 2)
    drawn = draw_trail(trails.points(gpu.uuid, "utilization_percent"), now, room, 100.0)
    line: Line = [(label, "grey"), (fit(f"{SYMBOLS[state]} {state}", 10), COLOURS[state]), (f"{value}  ", "")]
    return [*line, (drawn, "green")] if _LABEL + _VALUE + 2 + room == width else text_line(line, width)


def _trail_line(trails: Trails, subject: str, row: tuple[str, str, str, float | None], now: float, width: int) -> Line:
    label, value, metric, high = row
    room = max(8, width - _LABEL - _VALUE - 2)
    drawn = draw_trail(trails.points(subject, metric), now, room, high)
    # Width by construction: each of its signs is one column wide.
    line: Line = [(fit(label, _LABEL), "grey"), (f"{fit(value, _VALUE, 'right')}  ", ""), (drawn, "green")]
    return line if _LABEL + _VALUE + 2 + room == width else text_line(line[:2], width)


def _legend(width: int) -> Line:
    before = " " * (_LABEL + _VALUE + 2)
    return text_line([(f"{before}the last {SPAN / 60:.0f} minutes, now on the right", "grey")], width)


def _notes(gpu: Gpu, now: float, width: int) -> list[Line]:
    """What is wrong with it, and what to do; and who has it booked."""
    wrong = (gpu.health_reason, gpu.health_action, gpu.availability_reason, gpu.reservation_conflict)
    told: list[Cell] = [(f"! {clean(text)}", "yellow") for text in dict.fromkeys(wrong) if text]
    if gpu.reservation_conflict is None and (booked := reservation_note(gpu, now)):
        told.append((clean(booked), COLOURS["booked"]))
    return [text_line([cell], width) for cell in told]


def _others(gpu: Gpu, width: int) -> Line:
    figures = {
        "clock_sm_mhz": gpu.clock_sm_mhz,
        "clock_memory_mhz": gpu.clock_memory_mhz,
        "fan_percent": gpu.fan_percent,
        "memory_utilization_percent": gpu.memory_utilization_percent,
        "performance_state": gpu.performance_state,
    }
    told = [
        f"{GPU_METRICS[name].label.lower()} {value:.0f}{_UNITS.get(GPU_METRICS[name].unit, '')}"
        for name, value in figures.items()
        if value is not None
    ]
    return text_line([(clean(" · ".join([gpu.uuid, *told])), "grey")], width)
