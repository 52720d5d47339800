"""A box a host: its GPUs, the processes on them and the faults of the last day. All boxes are equally wide."""

from collections.abc import Sequence

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Gpu, Host, ShownEvent, ShownProcess
from gpudeck.views.cells import GPU_COLUMNS, gpu_rows, show_number
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, lay_out, paint, shorten, width_of

_PROCESS_COLUMNS = (
    Column("GPU", keep=99, align="right", widest=8),
    Column("PID", keep=98, align="right", widest=10),
    Column("USER", keep=97, widest=24),
    Column("GiB", keep=90, align="right", widest=10),
    Column("UTIL", keep=80, align="right", widest=6),
    Column("FOR", keep=70, align="right", widest=8),
    Column("WHERE", keep=50, widest=28),
    Column("COMMAND", keep=96, widest=160, least=20),
)
_EVENT_COLUMNS = (
    Column("GPU", keep=99, align="right", widest=8),
    Column("AGO", keep=97, align="right", widest=8),
    Column("XID", keep=98, align="right", widest=10),
    Column("PID", keep=60, align="right", widest=10),
    Column("USER", keep=70, widest=24),
    Column("FAULT", keep=96, widest=160, least=20),
)
_KIND_COLOURS = {"critical": "red", "warning": "yellow"}
_STATUS_COLOURS = {"up": "green", "late": "yellow", "down": "red", "never": "grey"}
_FRAME = 4
"""The columns that a box needs for itself."""

Rows = list[list[Cell]]
Part = tuple[str, list[str], int]
"""The name of a part of a box, its lines, and how wide each of them is."""


def draw_boxes(hosts: Sequence[Host], now: float, width: int | None, colour: bool) -> list[str]:
    """The lines of all boxes, none wider than `width`. What is wrong with a host stands below its box, in full."""
    inner = None if width is None else width - _FRAME
    parts = _lay_out_parts(hosts, now, inner, colour)
    titles = [_title(host, now, inner) for host in hosts]
    # Beside a title there is a rule, and the longest name of a part has room too.
    widest = max(12, *(width_of(title) + 2 for title, _ in titles), *(part[2] for own in parts for part in own))
    lines: list[str] = []
    for host, title, own in zip(hosts, titles, parts, strict=True):
        lines += ["", *_draw(title, own, widest, colour)]
        lines += [paint(f"! {clean(problem)}", "yellow", colour) for problem in host.problems]
    return lines


def _lay_out_parts(hosts: Sequence[Host], now: float, width: int | None, colour: bool) -> list[list[Part]]:
    """A host's parts, beginning with its GPUs. Each kind is one table over all hosts, so that columns stand in line."""
    kinds = [
        ("", GPU_COLUMNS, [[row[1:] for row in gpu_rows(host, now)] for host in hosts]),
        ("processes", _PROCESS_COLUMNS, [_process_rows(host, now) for host in hosts]),
        ("faults", _EVENT_COLUMNS, [_event_rows(host, now) for host in hosts]),
    ]
    found: list[list[Part]] = [[] for _ in hosts]
    for name, columns, groups in kinds:
        lines, wide = lay_out(columns, [row for group in groups for row in group], width, colour)
        at = 1
        for own, group in zip(found, groups, strict=True):
            if group:
                own.append((name, [lines[0], *lines[at : at + len(group)]], wide))
            at += len(group)
    return found


def _title(host: Host, now: float, width: int | None) -> Cell:
    """The host's name and what else there is room for."""
    said = [clean(host.display_name), f"{host.status} via {clean(host.via)}"]
    if host.status != "up" and host.last_report_at is not None:
        said.append(f"last report {show_span(now - host.last_report_at)} ago")
    used, total = host.memory_used_bytes, host.memory_total_bytes
    said += [f"CPU {show_number(host.cpu_percent, '%')}", f"RAM {show_gib(used, 0)}/{show_gib(total, 0)} GiB"]
    said += [f"driver {clean(host.driver_version)}"] if host.driver_version else []
    while len(said) > 1 and width is not None and width_of(" · ".join(said)) > width - 2:
        said.pop()
    return shorten(" · ".join(said), None if width is None else max(1, width - 2)), _STATUS_COLOURS[host.status]


def _draw(title: Cell, parts: Sequence[Part], width: int, colour: bool) -> list[str]:
    lines = [_rule("╭", title, "╮", width, colour)]
    for at, (name, own, wide) in enumerate(parts):
        lines += [_rule("├", (name, "bold"), "┤", width, colour)] if at else []
        lines += [f"│ {line}{' ' * (width - wide)} │" for line in own]
    return [*lines, f"╰{'─' * (width + 2)}╯"]


def _rule(left: str, word: Cell, right: str, width: int, colour: bool) -> str:
    return f"{left}─ {paint(*word, colour)} {'─' * (width - 1 - width_of(word[0]))}{right}"


def _process_rows(host: Host, now: float) -> Rows:
    rows: Rows = []
    for gpu in host.gpus:
        if gpu.processes is None:
            reason = gpu.reasons.get("processes", "unknown")
            rows.append([(gpu.label, ""), *[("–", "grey")] * 6, (clean(f"not known: {reason}"), "grey")])
        rows += [_process_cells(gpu, process, now) for process in gpu.processes or ()]
    return rows


def _process_cells(gpu: Gpu, process: ShownProcess, now: float) -> list[Cell]:
    started = process.started_at
    where = [part for part in (process.container, process.job) if part]
    return [
        (gpu.label, ""),
        (str(process.pid), ""),
        (clean(process.user or "–"), ""),
        (show_gib(process.memory_used_bytes), ""),
        (show_number(process.utilization_percent, "%"), ""),
        (show_span(None if started is None else now - started), ""),
        (clean(", ".join(where)) or "–", ""),
        (clean(process.command or "–"), "grey"),
    ]


def _event_rows(host: Host, now: float) -> Rows:
    """The newest first."""
    return [_event_cells(gpu, event, now) for gpu in host.gpus for event in reversed(gpu.events)]


def _event_cells(gpu: Gpu, event: ShownEvent, now: float) -> list[Cell]:
    process = event.process
    return [
        (gpu.label, ""),
        (show_span(now - event.at), ""),
        (str(event.code), _KIND_COLOURS.get(event.kind, "")),
        ("–" if process is None else str(process), ""),
        (clean(event.user or "–"), ""),
        (clean(": ".join(filter(None, [event.text, event.message]))), "grey"),
    ]
