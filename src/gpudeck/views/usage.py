"""Usage as a table for people with a terminal. What is unknown is a dash, never a zero."""

import math
import textwrap
from collections.abc import Callable
from datetime import datetime, tzinfo

from gpudeck.model.text import clean, show_gib, without_maker
from gpudeck.model.view import Usage, UsageRow
from gpudeck.views.table import Cell, Column, render

_NOBODY = "Nobody used a GPU."


def render_usage(usage: Usage, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, their total, each day where there are days, and how much of the period was observed.
    Ends in a newline; times are those of the zone."""

    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    lines = _wrap(f"Usage by {usage.by}, {show(usage.start)} to {show(usage.end)} ({zone})", width)
    if usage.rows:
        columns = _columns(usage)
        rows = [_row(row, name_of(usage, row)) for row in usage.rows] + [_row(usage.total, "total", "bold")]
        if usage.total.allocated_hours is None:
            rows = [[row[0], *row[4:]] for row in rows]
        lines += ["", *render(columns, [row[: len(columns)] for row in rows], width, colour)]
        lines += _days(usage, width, colour)
    elif usage.coverage is not None:
        lines += ["", _NOBODY if usage.by in {"user", "group", "host", "model"} else "No job had a GPU."]
    lines += [line for note in _notes(usage, show) for line in ("", *_wrap(note, width))]
    lines += ["", *_wrap(describe_coverage(usage, show), width)]
    return "\n".join(lines) + "\n"


def _notes(usage: Usage, show_time: Callable[[float], str]) -> list[str]:
    """What the figures of allocated time leave out."""
    notes, total = [], usage.total
    if usage.allocated_since is not None:
        told = f"Jobs are recorded since {show_time(usage.allocated_since)}."
        notes.append(f"{told} Of the time before, only imported jobs are counted.")
    if (total.unmonitored_hours or 0.0) >= 0.05:
        notes.append(f"{total.unmonitored_hours:,.1f} of the allocated hours were not monitored: their use is unknown.")
    if (total.shared_hours or 0.0) >= 0.05:
        told = "were on GPUs that others had or used too. They count for the job or pod that started first."
        notes.append(f"{total.shared_hours:,.1f} of the allocated hours {told}")
    return notes


def _columns(usage: Usage) -> list[Column]:
    """Costs have a column where there are any, allocated time where schedulers give GPUs to jobs."""
    is_allocated = usage.total.allocated_hours is not None
    allocated = [
        Column("ALLOCATED", keep=97, align="right", widest=12),
        Column("UNUSED", keep=96, align="right", widest=12),
        Column("NEVER USED", keep=88, align="right", widest=12),
    ]
    columns = [
        Column(usage.by.upper(), keep=100, widest=40),
        *(allocated if is_allocated else []),
        Column("GPU-HOURS", keep=99, align="right", widest=12),
        Column("ACTIVE", keep=90, align="right", widest=12),
        Column("IDLE", keep=95, align="right", widest=12),
        Column("SHARE", keep=80, align="right", widest=8),
        Column("PEAK GiB", keep=60, align="right", widest=10),
        Column("kWh", keep=70, align="right", widest=12),
    ]
    if usage.total.cost is None:
        return columns
    return [*columns, Column(clean(f"COST {usage.currency}".rstrip()), keep=85, align="right", widest=16)]


def _row(row: UsageRow, name: str, colour: str = "") -> list[Cell]:
    """The cost stands last: a table without costs is without that column."""
    share = row.share
    cells = [
        name,
        _number(row.allocated_hours),
        _number(row.unused_hours),
        _number(row.never_used_hours),
        _number(row.gpu_hours),
        _number(row.active_hours),
        _number(row.idle_hours),
        "–" if share is None else f"{100 * share:.1f} %",
        show_gib(row.peak_memory_bytes),
        _number(row.energy_kwh),
        _number(row.cost, 2),
    ]
    return [(cell, colour) for cell in cells]


def _days(usage: Usage, width: int | None, colour: bool) -> list[str]:
    """One line a day and row, by day; a day without use has none."""
    found = [(day, row) for row in usage.rows for day in row.days]
    if not found:
        return []
    found.sort(key=lambda pair: (pair[0].time, -pair[0].gpu_hours))
    wanted = {usage.by.upper(), "GPU-HOURS", "ACTIVE"}
    columns = [Column("DAY", keep=98, widest=10), *(one for one in _columns(usage) if one.title in wanted)]
    figures = [(day.day, name_of(usage, row), day.gpu_hours, day.active_hours) for day, row in found]
    rows = [
        [(clean(day), ""), (name, ""), (_number(used), ""), (_number(active), "")]
        for day, name, used, active in figures
    ]
    return ["", *render(columns, rows, width, colour)]


def name_of(usage: Usage, row: UsageRow) -> str:
    """What a row stands for, in words for a terminal."""
    name = row.name_by(usage.by)
    if row.unknown:
        return "(unknown)"
    if name is None:
        return f"no {usage.by}"
    return clean(without_maker(name) if usage.by == "model" else name)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def describe_coverage(usage: Usage, show_time: Callable[[float], str]) -> str:
    """Rounded down: a period that was not monitored in full is never called 100 %."""
    since = usage.known_since
    if usage.coverage is None:
        return (
            f"No GPU was monitored in this period{'' if since is None else f': the records begin {show_time(since)}'}."
        )
    span = "" if since is None else f" since {show_time(since)}"
    return f"Coverage {math.floor(1000 * usage.coverage + 1e-9) / 10:.1f} %{span}."


def _wrap(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, width or len(text))
