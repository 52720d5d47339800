"""The processes on GPUs as a table. One on four GPUs is four rows, each with its memory there."""

from collections.abc import Callable, Sequence

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Host, ShownProcess
from gpudeck.tui.layout import Column, Layout, measure
from gpudeck.tui.rows import DASH, Row, Sort, arrange
from gpudeck.views.cells import show_number
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell


def _sort(value: Callable[[ShownProcess], float | str | None], *, is_falling: bool = False) -> Sort:
    return Sort(lambda row: None if row.process is None else value(row.process), is_falling)


SORTS: dict[str, Sort | None] = {
    "host": None,
    "pid": _sort(lambda process: process.pid),
    "user": _sort(lambda process: process.user),
    "memory": _sort(lambda process: process.memory_used_bytes, is_falling=True),
    "utilization": _sort(lambda process: process.utilization_percent, is_falling=True),
    "time": _sort(lambda process: process.started_at),
}


def process_rows(hosts: Sequence[Host], sort: str, is_turned: bool, *, uuid: str | None = None) -> list[Row]:
    """Of all GPUs, or of the one with this UUID. A GPU whose processes could not be read has a row that says so."""
    rows: list[Row] = []
    for host in hosts:
        for gpu in host.gpus:
            if uuid is not None and gpu.uuid != uuid:
                continue
            if gpu.processes is None:
                rows.append(Row(f"{host.id} {gpu.uuid}", host, gpu))
            rows += [Row(f"{host.id} {gpu.uuid} {process.pid}", host, gpu, process) for process in gpu.processes or ()]
    return arrange(rows, SORTS[sort], is_turned)


def process_columns(hosts: Sequence[Host]) -> list[Column]:
    names = measure([clean(host.display_name) for host in hosts], 4, 24)
    return [
        Column("HOST", names, 60, sort="host"),
        Column("GPU", 3, 99, "right"),
        Column("PID", 8, 98, "right", sort="pid"),
        Column("USER", 10, 97, grow=1, widest=24, sort="user"),
        Column("GiB", 6, 90, "right", sort="memory"),
        Column("UTIL", 4, 80, "right", sort="utilization"),
        Column("FOR", 7, 70, "right", sort="time"),
        Column("WHERE", 8, 50, grow=1, widest=28),
        Column("COMMAND", 20, 96, grow=6),
    ]


def process_cells(row: Row, now: float, _: Layout) -> list[Cell]:
    """Of the columns above."""
    host, gpu, process = row.host, row.gpu, row.process
    if host is None or gpu is None:
        return [DASH] * 9
    dim = "grey" if gpu.availability == "unknown" else ""
    name: Cell = (clean(host.display_name), dim)
    if process is None:
        reason = gpu.reasons.get("processes", "unknown")
        return [name, (gpu.label, dim), *[DASH] * 6, (clean(f"not known: {reason}"), "grey")]
    started = process.started_at
    where = [part for part in (process.container, process.job) if part]
    return [
        name,
        (gpu.label, dim),
        (str(process.pid), dim),
        (clean(process.user or "–"), dim),
        (show_gib(process.memory_used_bytes), dim),
        (show_number(process.utilization_percent, "%"), dim),
        (show_span(None if started is None else now - started), dim),
        (clean(", ".join(where)) or "–", dim),
        (clean(process.command or "–"), dim or "grey"),
    ]
