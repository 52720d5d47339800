"""Usage as a table for people with a terminal. What is unknown is a dash, never a zero."""

import math
import textwrap
from datetime import datetime, tzinfo

from gpudeck.model.names import without_maker
from gpudeck.model.printable import clean
from gpudeck.model.quantity import show_gib
from gpudeck.model.usage import Usage, UsageRow
from gpudeck.views.table import Cell, Column, render

_NOBODY = "Nobody was seen on any GPU."


def render_usage(usage: Usage, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, their total, each day where there are days, and how much of the period was observed.
    Ends in a newline; times are those of the zone."""
    lines = _wrap(f"Use by {usage.by}, {_period(usage, zone)}", width)
    if usage.rows:
        columns = _columns(usage)
        rows = [_row(row, name_of(usage, row)) for row in usage.rows] + [_row(usage.total, "total", "bold")]
        lines += ["", *render(columns, [row[: len(columns)] for row in rows], width, colour)]
        lines += _days(usage, width, colour)
    else:
        lines += ["", _NOBODY]
    lines += ["", *_wrap(_coverage(usage, zone), width)]
    return "\n".join(lines) + "\n"


def _columns(usage: Usage) -> list[Column]:
    """Costs have a column where there are any."""
    columns = [
        Column(usage.by.upper(), keep=100, widest=40),
        Column("GPU-HOURS", keep=99, align="right", widest=12),
        Column("WORKED", keep=90, align="right", widest=12),
        Column("HELD IDLE", keep=95, align="right", widest=12),
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
        _number(row.gpu_hours),
        _number(row.worked_hours),
        _number(row.idle_held_hours),
        "–" if share is None else f"{100 * share:.1f} %",
        show_gib(row.peak_memory_bytes),
        _number(row.energy_kwh),
        _number(row.cost, 2),
    ]
    return [(cell, colour) for cell in cells]


def _days(usage: Usage, width: int | None, colour: bool) -> list[str]:
    """One line a day and row, by day; a day on which nobody was seen has none."""
    found = [(day, row) for row in usage.rows for day in row.days]
    if not found:
        return []
    found.sort(key=lambda pair: (pair[0].time, -pair[0].gpu_hours))
    columns = [Column("DAY", keep=98, widest=10), *_columns(usage)[:3]]
    figures = [(day.day, name_of(usage, row), day.gpu_hours, day.worked_hours) for day, row in found]
    rows = [
        [(clean(day), ""), (name, ""), (_number(held), ""), (_number(worked), "")]
        for day, name, held, worked in figures
    ]
    return ["", *render(columns, rows, width, colour)]


def name_of(usage: Usage, row: UsageRow) -> str:
    """What a row stands for, in words for a terminal."""
    name = row.name_by(usage.by)
    if row.unknown:
        return "(unknown)"
    if name is None:
        return "no group"
    return clean(without_maker(name) if usage.by == "model" else name)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _period(usage: Usage, zone: tzinfo) -> str:
    begin, end = (f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}" for at in (usage.start, usage.end))
    return f"{begin} to {end} ({zone})"


def _coverage(usage: Usage, zone: tzinfo) -> str:
    """Rounded down: what was not observed in full is never called 100 %."""
    coverage, since = usage.coverage, usage.known_since
    begin = "" if since is None else f"{datetime.fromtimestamp(since, zone):%Y-%m-%d %H:%M}"
    if coverage is None:
        return f"No GPU was known in the period{begin and f': the records begin {begin}'}."
    time = "the period" if since is None else f"the time since {begin}"
    return f"Observed {math.floor(1000 * coverage + 1e-9) / 10:.1f} % of {time}."


def _wrap(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, width or len(text))
