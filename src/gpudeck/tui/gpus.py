"""The fleet as a table: a row a GPU, below its host, its model or its users."""

from collections.abc import Callable, Sequence

from gpudeck.model.availability import Availability
from gpudeck.model.quantity import show_count, show_gib, show_span
from gpudeck.model.view import Gpu, Host
from gpudeck.tui.layout import Column, Layout, draw_share, measure
from gpudeck.tui.rows import DASH, Row, Sort, arrange, group
from gpudeck.views.cells import COLOURS, SYMBOLS, gpu_note, show_number
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell

GROUPS = ("host", "model", "user", "none")
NOBODY = "nobody"
_STATES: dict[Availability, Cell] = {word: (f"{symbol} {word}", COLOURS[word]) for word, symbol in SYMBOLS.items()}
_RANK = {word: rank for rank, word in enumerate(SYMBOLS)}
_UTIL_BAR, _MEMORY_BAR = 4, 6


def _metric(value: Callable[[Gpu], float | None]) -> Sort:
    """What a silent host last told is shown, but puts no GPU before others."""
    return Sort(
        lambda row: value(row.gpu) if row.gpu is not None and row.gpu.availability != "unknown" else None,
        is_falling=True,
    )


def memory_share(gpu: Gpu) -> float | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return None if used is None or not total else used / total


SORTS: dict[str, Sort | None] = {
    "host": None,
    "state": Sort(lambda row: None if row.gpu is None else _RANK[row.gpu.availability]),
    "utilization": _metric(lambda gpu: gpu.utilization_percent),
    "memory": _metric(memory_share),
    "temperature": _metric(lambda gpu: gpu.temperature_celsius),
    "power": _metric(lambda gpu: gpu.power_watts),
    "user": Sort(lambda row: (row.gpu.users or None) if row.gpu else None),
    "time": Sort(lambda row: None if row.gpu is None else row.gpu.since),
}


def gpu_rows(hosts: Sequence[Host], sort: str, is_turned: bool, grouping: str) -> list[Row]:
    """A row a GPU, and one for a host without any. The group of those that have no user or no model has no name."""
    rows = [
        Row(f"{host.id} {gpu.uuid}" if gpu else host.id, host, gpu) for host in hosts for gpu in host.gpus or (None,)
    ]
    rows = arrange(rows, SORTS[sort], is_turned)
    if grouping == "host":
        return group(rows, lambda row: (row.host.id,) if row.host else (), lambda _, own: host_title(own[0].host))
    if grouping == "model":
        return group(rows, _model_of, lambda name, own: _title(name or "no GPUs", own))
    if grouping == "user":
        named = group([row for row in rows if row.gpu and row.gpu.users], _users_of, _title)
        rest = [row for row in rows if not (row.gpu and row.gpu.users)]
        return named + group(rest, lambda _: ("",), lambda _, own: _title(NOBODY, own))
    return rows


def host_title(host: Host | None) -> str:
    if host is None:
        return ""
    used, total = host.memory_used_bytes, host.memory_total_bytes
    free = sum(gpu.availability == "free" for gpu in host.gpus)
    said = [
        clean(host.display_name),
        host.status,
        f"{free} of {len(host.gpus)} GPUs free",
        f"CPU {show_number(host.cpu_percent, '%')}",
        f"RAM {show_gib(used, 0)}/{show_gib(total, 0)} GiB",
        f"load {show_number(host.load_1m, '')}",
        *map(clean, host.problems[:1]),
    ]
    return " · ".join(said)


def gpu_columns(hosts: Sequence[Host]) -> list[Column]:
    """As wide as the names in this fleet."""
    names = measure([clean(host.display_name) for host in hosts], 4, 24)
    models = measure(list({gpu.display_name for host in hosts for gpu in host.gpus}), 5, 20)
    return [
        Column("HOST", names, 100, sort="host"),
        Column("GPU", 3, 98, "right"),
        Column("MODEL", models, 45),
        Column("STATE", 9, 99, sort="state"),
        Column("UTIL", 4, 90, "right", sort="utilization"),
        Column("", _UTIL_BAR, 40, grow=1, widest=20, sort="utilization"),
        Column("MEMORY", _MEMORY_BAR, 55, grow=1, widest=20, sort="memory"),
        Column("GiB", 9, 80, "right", sort="memory"),
        Column("TEMP", 5, 47, "right", sort="temperature"),
        Column("POWER", 6, 30, "right", sort="power"),
        Column("USERS", 9, 95, grow=2, widest=28, sort="user"),
        Column("SINCE", 7, 50, "right", sort="time"),
        Column("NOTE", 12, 20, grow=4),
    ]


def gpu_cells(row: Row, now: float, layout: Layout) -> list[Cell]:
    """Of the columns above; for a row with a GPU."""
    host, gpu = row.host, row.gpu
    if host is None or gpu is None:
        return [DASH] * 13
    name: Cell = (clean(host.display_name), "" if host.status == "up" else "grey")
    state = gpu.availability
    dim = "grey" if state == "unknown" else ""
    note = _silence(host, now) or gpu_note(gpu, now)
    util = gpu.utilization_percent
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return [
        name,
        (gpu.label, dim),
        (clean(gpu.display_name), dim),
        _STATES[state],
        (show_number(util, "%"), dim),
        ("" if util is None else draw_share(util / 100, layout.widths[5]), dim or "green"),
        (draw_share(memory_share(gpu), layout.widths[6]), dim or "blue"),
        (f"{show_gib(used)}/{show_gib(total, 0)}", dim),
        (show_number(gpu.temperature_celsius, "°C"), dim),
        (show_number(gpu.power_watts, " W"), dim),
        (clean(", ".join(gpu.users)) or "–", dim),
        (show_span(now - gpu.since), dim),
        (clean(note), dim or "yellow"),
    ]


def bare_cells(host: Host, now: float) -> list[Cell]:
    """A host without any GPU: why, with the room of the whole line."""
    reason = host.problems[0] if host.problems else host.reasons.get("gpus", "no GPUs")
    return [(f"{clean(host.display_name)}  ", "grey"), (clean(_silence(host, now) or reason), "grey")]


def _silence(host: Host, now: float) -> str:
    if host.status in {"up", "never"} or host.last_report_at is None:
        return ""
    return f"{host.status}: last report {show_span(now - host.last_report_at)} ago"


def _model_of(row: Row) -> tuple[str]:
    return (clean(row.gpu.display_name) if row.gpu else "",)


def _users_of(row: Row) -> Sequence[str]:
    return row.gpu.users if row.gpu else ()


def _title(name: str, own: list[Row]) -> str:
    gpus = [row.gpu for row in own if row.gpu is not None]
    counts = {word: sum(gpu.availability == word for gpu in gpus) for word in SYMBOLS}
    told = [f"{SYMBOLS[word]} {count} {word}" for word, count in counts.items() if count]
    hosts = len({row.host.id for row in own if row.host})
    return " · ".join([clean(name), f"{show_count(len(gpus), 'GPU')} on {show_count(hosts, 'host')}", *told])
