"""A GPU as a line of cells: what the table and the boxes have in common. What is unknown is a dash, never a zero."""

import functools

from gpudeck.model.availability import Availability
from gpudeck.model.quantity import show_gib, show_length, show_span
from gpudeck.model.view import Gpu, Host
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column

SYMBOLS: dict[Availability, str] = {"free": "●", "busy": "■", "held": "◐", "booked": "◆", "unknown": "?"}
COLOURS: dict[Availability, str] = {
    "free": "green",
    "busy": "red",
    "held": "yellow",
    "booked": "blue",
    "unknown": "grey",
}

HOST_COLUMN = Column("HOST", keep=100, widest=32)
GPU_COLUMNS = (
    Column("GPU", keep=98, align="right", widest=8),
    Column("MODEL", keep=45, widest=24, least=10),
    Column("STATE", keep=99, widest=9),
    Column("UTIL", keep=90, align="right", widest=6),
    Column("MEMORY", keep=55, widest=8),
    Column("GiB", keep=80, align="right", widest=15),
    Column("TEMP", keep=47, align="right", widest=6),
    Column("POWER", keep=30, align="right", widest=7),
    Column("USERS", keep=95, widest=32, least=10),
    Column("SINCE", keep=50, align="right", widest=8),
    Column("NOTE", keep=20, widest=60, least=12),
)
_STATES: dict[Availability, Cell] = {word: (f"{symbol} {word}", COLOURS[word]) for word, symbol in SYMBOLS.items()}
_BAR = 8
_BARS = ["█" * filled + "░" * (_BAR - filled) for filled in range(_BAR + 1)]
_UNKNOWN: Cell = ("–", "grey")


def gpu_rows(host: Host, now: float) -> list[list[Cell]]:
    """A row a GPU for HOST_COLUMN and GPU_COLUMNS, or one that says why there is none."""
    name: Cell = (clean(host.display_name), "grey" if host.status != "up" else "")
    note = _host_note(host, now)
    if not host.gpus:
        # What keeps a host from reporting says more than that it has not.
        is_awaited = host.status == "never" and host.problems
        reason = host.problems[0] if is_awaited else host.reasons.get("gpus", "no GPUs")
        return [[name, *[_UNKNOWN] * (len(GPU_COLUMNS) - 1), (clean(note or reason), "grey")]]
    return [[name, *_cells(gpu, note, now)] for gpu in host.gpus]


def _cells(gpu: Gpu, note: str, now: float) -> list[Cell]:
    state = gpu.availability
    dim = "grey" if state == "unknown" else ""
    note = note or gpu_note(gpu, now)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return [
        (gpu.label, dim),
        (clean(gpu.display_name), dim),
        _STATES[state],
        (show_number(gpu.utilization_percent, "%"), dim),
        (draw_bar(used, total), dim),
        (f"{show_gib(used)}/{show_gib(total, 0)}", dim),
        (show_number(gpu.temperature_celsius, "°C"), dim),
        (show_number(gpu.power_watts, " W"), dim),
        (clean(", ".join(gpu.users)) or "–", dim),
        (show_span(now - gpu.since), dim),
        (clean(note), dim or "yellow"),
    ]


def gpu_note(gpu: Gpu, now: float) -> str:
    """What is wrong with it, why it is held or unknown, and who has it booked."""
    reason = gpu.availability_reason if gpu.availability in {"held", "unknown"} else None
    wrong = gpu.health_reason or reason or ""
    # Most have no booking, and a fleet has thousands of them.
    booked = reservation_note(gpu, now) if gpu.reservation or gpu.reservation_conflict else ""
    return f"{wrong} · {booked}" if wrong and booked else wrong or booked


def reservation_note(gpu: Gpu, now: float) -> str:
    """Who has it, for how long and why; or who is on it and should not be."""
    found = gpu.reservation
    if conflict := gpu.reservation_conflict:
        return conflict
    if found is None:
        return ""
    if found.kind == "hold":
        # It protects nobody's GPU any more once a process is there.
        return f"taken by {found.user}, starting" if gpu.availability == "booked" else ""
    why = f": {found.note}" if found.note else ""
    return f"booked by {found.user}, {show_length(found.until - now)} left{why}"


def draw_bar(used: float | None, total: float | None) -> str:
    """How full something is. What holds anything to speak of is never drawn as empty, what has room left never as full;
    a dash when unknown."""
    if used is None or not total:
        return "–"
    share = used / total
    if share < 0.01:
        return _BARS[0]
    return _BARS[_BAR] if share > 0.99 else _BARS[min(max(round(share * _BAR), 1), _BAR - 1)]


@functools.lru_cache(maxsize=4096)
def show_number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.0f}{unit}"


def _host_note(host: Host, now: float) -> str:
    if host.status in {"up", "never"} or host.last_report_at is None:
        return ""
    note = f"{host.status}: last report {show_span(now - host.last_report_at)} ago"
    # Of a host that is remembered from before the hub was started there are none.
    has_values = any(gpu.memory_used_bytes is not None for gpu in host.gpus)
    return f"{note}, values are from then" if has_values else note
