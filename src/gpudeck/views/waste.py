"""Wasted GPU-hours as a table for people with a terminal. What is unknown is a dash, never a zero."""

from collections.abc import Callable
from datetime import datetime, tzinfo

from gpudeck.model.text import clean, show_length, without_maker
from gpudeck.model.usage import Waste, WastedHours, WasteRow
from gpudeck.views.table import Cell, Column, render, wrap
from gpudeck.views.usage import describe_coverage, show_name

_MAX_MODELS = 5


def render_waste(waste: Waste, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, their total, what could have been saved, and how much was observed. Ends in a newline;
    times are those of the zone."""

    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    lines = wrap(f"Waste by {waste.by}, {show(waste.start)} to {show(waste.end)} ({zone})", width)
    if waste.rows:
        rows = [_row(row, show_name(waste.by, row.name, unknown=row.unknown)) for row in waste.rows]
        rows.append(_row(waste.total, "total", "bold"))
        columns = _columns(waste)
        wanted = [place for place, column in enumerate(_columns(waste)) if column is not None]
        shown = [column for column in columns if column is not None]
        lines += ["", *render(shown, [[row[place] for place in wanted] for row in rows], width, colour)]
    elif waste.coverage is not None:
        lines += ["", "Nobody used a GPU."]
    notes = [*_savings(waste), *_missing(waste, show), describe_coverage(waste, show)]
    return "\n".join([*lines, *(line for note in notes for line in ("", *wrap(note, width)))]) + "\n"


def _columns(waste: Waste) -> list[Column | None]:
    """None where nothing is known of any row: costs without a price, unused hours without a scheduler."""
    total, cost = waste.total, clean(f"COST {waste.currency}".rstrip())

    def column(title: str, keep: int, known: float | None) -> Column | None:
        return None if known is None else Column(title, keep=keep, align="right", widest=16)

    def columns(title: str, keep: int, one: WastedHours) -> list[Column | None]:
        return [
            column(title, keep, one.hours),
            column(cost, keep - 2, one.cost),
            column("BEFORE", keep - 30, one.before),
        ]

    over, over_cost, _ = columns("OVER-SIZED", 90, total.oversized)
    return [
        Column(waste.by.upper(), keep=100, widest=40),
        Column("GPU-HOURS", keep=60, align="right", widest=12),
        *columns("IDLE", 99, total.idle),
        *columns("UNUSED", 95, total.unused),
        *(over, over_cost),
        column("RELEASABLE", 80, total.released.hours),
    ]


def _row(row: WasteRow, name: str, colour: str = "") -> list[Cell]:
    idle, unused, over = row.idle, row.unused, row.oversized
    hours = [idle.hours, _price(idle), idle.before, unused.hours, _price(unused), unused.before]
    cells = [row.gpu_hours, *hours, over.hours, _price(over), row.released.hours]
    return [(name, colour), *((_number(cell), colour) for cell in cells)]


def _price(one: WastedHours) -> float | None:
    """No hours cost nothing, also where no price is known."""
    return 0.0 if one.hours == 0 else one.cost


def _savings(waste: Waste) -> list[str]:
    found = []
    if (hours := waste.total.released.hours) is not None:
        since = show_length(waste.released_after_seconds)
        cost = _cost(waste.total.released.cost, waste.currency)
        found.append(f"If idle GPUs had been released after {since}: {hours:,.1f} GPU-hours{cost}.")
    for one in waste.smaller[:_MAX_MODELS]:
        model, smaller = clean(without_maker(one.model)), clean(without_maker(one.smaller))
        saved = _cost(one.cost, waste.currency)
        found.append(f"{one.hours:,.1f} hours on {model} would have fitted in the memory of {smaller}{saved}.")
    return found


def _missing(waste: Waste, show: Callable[[float], str]) -> list[str]:
    notes = [] if waste.problem is None else [waste.problem]
    if waste.allocated_since is not None:
        notes.append(f"Jobs are recorded since {show(waste.allocated_since)}: what was allocated before is unknown.")
    if waste.total.idle.before is None:
        notes.append(f"There is no trend: the period from {show(waste.before_start)} was not recorded as a whole.")
    if waste.total.oversized.hours is not None:
        notes.append(f"Over-sized hours are of the {waste.judged_hours:,.1f} GPU-hours with known memory.")
    return notes


def _cost(cost: float | None, currency: str) -> str:
    return "" if cost is None else f" ({cost:,.2f} {clean(currency)}".rstrip() + ")"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
