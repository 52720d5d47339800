"""Usage and wasted GPU-hours as tables for a terminal. Unknown values are a dash, never zero."""

import math
from collections.abc import Callable
from datetime import datetime, tzinfo

from gpudeck.model.text import clean, show_gib, show_length, without_maker
from gpudeck.model.usage import Day, Usage, UsageBy, UsageRow, Waste, WastedHours, WasteRow
from gpudeck.views.table import CellColumn, end_lines, tabulate, wrap

ShowTime = Callable[[float], str]
_MAX_MODELS = 5


def render_usage(usage: Usage, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, one line per row, their total, the days if there are any, and the coverage. Ends in a newline; times
    are in `zone`."""
    show = _clock(zone)
    lines = wrap(f"Usage by {usage.by}, {show(usage.start)} to {show(usage.end)} ({zone})", width)
    if usage.rows:
        lines += ["", *tabulate(_columns(usage), [*usage.rows, usage.total], width, colour, has_total=True)]
        lines += _days(usage, width, colour)
    elif usage.coverage is not None:
        lines += ["", "Nobody used a GPU." if usage.by in {"user", "group", "host", "model"} else "No job had a GPU."]
    return _with_notes(lines, [*_notes(usage, show), *describe_prices(usage), describe_coverage(usage, show)], width)


def _clock(zone: tzinfo) -> ShowTime:
    return lambda at: f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"


def _with_notes(lines: list[str], notes: list[str], width: int | None) -> str:
    return end_lines([*lines, *(line for note in notes for line in ("", *wrap(note, width)))])


def _columns(usage: Usage) -> list[CellColumn[UsageRow]]:
    """Cost columns if there are costs, allocated time if schedulers allocate GPUs."""
    total = usage.total
    allocated: list[CellColumn[UsageRow]] = [
        CellColumn("ALLOCATED", 97, "right", 12, cell=lambda row: _number(row.allocated_hours)),
        CellColumn("UNUSED", 96, "right", 12, cell=lambda row: _number(row.unused_hours)),
        CellColumn("NEVER USED", 88, "right", 12, cell=lambda row: _number(row.never_used_hours)),
    ]
    cost: CellColumn[UsageRow] = CellColumn(
        _cost_title(usage.currency), 85, "right", 16, cell=lambda row: _number(row.cost, 2)
    )
    return [
        CellColumn(usage.by.upper(), 100, cell=lambda row: "total" if row is total else name_of(usage, row)),
        *(allocated if total.allocated_hours is not None else []),
        CellColumn("GPU-HOURS", 99, "right", 12, cell=lambda row: _number(row.gpu_hours)),
        CellColumn("ACTIVE", 90, "right", 12, cell=lambda row: _number(row.active_hours)),
        CellColumn("IDLE", 95, "right", 12, cell=lambda row: _number(row.idle_hours)),
        CellColumn("SHARE", 80, "right", 8, cell=lambda row: None if row.share is None else f"{100 * row.share:.1f} %"),
        CellColumn("PEAK GiB", 60, "right", 10, cell=lambda row: show_gib(row.peak_memory_bytes)),
        CellColumn("kWh", 70, "right", 12, cell=lambda row: _number(row.energy_kwh)),
        *([cost] if total.cost is not None else []),
    ]


def describe_prices(usage: Usage | Waste) -> list[str]:
    """Costs are sums of what has a price."""
    if not usage.unpriced_models:
        return []
    models = clean(", ".join(map(without_maker, usage.unpriced_models)))
    return [f"Costs do not include models without a price in usage.prices: {models}."]


def _cost_title(currency: str) -> str:
    return clean(f"COST {currency}".rstrip())


def _days(usage: Usage, width: int | None, colour: bool) -> list[str]:
    """One line per day and row; a day without use has none."""
    found = [(day, name_of(usage, row)) for row in usage.rows for day in row.days]
    found.sort(key=lambda pair: (pair[0].time, -pair[0].gpu_hours))
    columns: list[CellColumn[tuple[Day, str]]] = [
        CellColumn("DAY", 98, widest=10, cell=lambda pair: pair[0].day),
        CellColumn(usage.by.upper(), 100, cell=lambda pair: pair[1]),
        CellColumn("GPU-HOURS", 99, "right", 12, cell=lambda pair: _number(pair[0].gpu_hours)),
        CellColumn("ACTIVE", 90, "right", 12, cell=lambda pair: _number(pair[0].active_hours)),
    ]
    return ["", *tabulate(columns, found, width, colour)] if found else []


def _notes(usage: Usage, show_time: ShowTime) -> list[str]:
    """The limits of figures about allocated time."""
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


def name_of(usage: Usage, row: UsageRow) -> str:
    """The name of a row for a terminal."""
    return _show_name(usage.by, row.name_by(usage.by), unknown=row.unknown)


def _show_name(by: UsageBy, name: str | None, *, unknown: bool) -> str:
    if name is None or unknown:
        return "(unknown)" if unknown else f"no {by}"
    return clean(without_maker(name) if by == "model" else name)


def _number(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"


def describe_coverage(usage: Usage | Waste, show_time: ShowTime) -> str:
    """Rounded down: a partly monitored period is never called 100 %."""
    since = usage.known_since
    if usage.coverage is None:
        begin = "" if since is None else f": the records begin {show_time(since)}"
        return f"No GPU was monitored in this period{begin}."
    span = "" if since is None else f" since {show_time(since)}"
    return f"Coverage {math.floor(1000 * usage.coverage + 1e-9) / 10:.1f} %{span}."


def render_waste(waste: Waste, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, one line per row, their total, what could have been saved, and the coverage. Ends in a newline; times
    are in `zone`."""
    show = _clock(zone)
    lines = wrap(f"Waste by {waste.by}, {show(waste.start)} to {show(waste.end)} ({zone})", width)
    if waste.rows:
        lines += ["", *tabulate(_waste_columns(waste), [*waste.rows, waste.total], width, colour, has_total=True)]
    elif waste.coverage is not None:
        lines += ["", "Nobody used a GPU."]
    notes = [*_savings(waste), *_missing(waste, show), *describe_prices(waste), describe_coverage(waste, show)]
    return _with_notes(lines, notes, width)


def _waste_columns(waste: Waste) -> list[CellColumn[WasteRow]]:
    """A column without any known value is left out: costs without prices, unused hours without a scheduler."""
    total, cost = waste.total, _cost_title(waste.currency)

    def column(title: str, keep: int, value: Callable[[WasteRow], float | None]) -> list[CellColumn[WasteRow]]:
        cells: CellColumn[WasteRow] = CellColumn(title, keep, "right", 16, cell=lambda row: _number(value(row)))
        return [] if value(total) is None else [cells]

    def columns(title: str, keep: int, one: Callable[[WasteRow], WastedHours]) -> list[CellColumn[WasteRow]]:
        return [
            *column(title, keep, lambda row: one(row).hours),
            # No hours cost nothing, even without a price.
            *column(cost, keep - 2, lambda row: 0.0 if row is not total and one(row).hours == 0 else one(row).cost),
            *column("BEFORE", keep - 30, lambda row: one(row).before),
        ]

    name: CellColumn[WasteRow] = CellColumn(
        waste.by.upper(),
        100,
        cell=lambda row: "total" if row is total else _show_name(waste.by, row.name, unknown=row.unknown),
    )
    return [
        name,
        CellColumn("GPU-HOURS", 60, "right", 12, cell=lambda row: _number(row.gpu_hours)),
        *columns("IDLE", 99, lambda row: row.idle),
        *columns("UNUSED", 95, lambda row: row.unused),
        *(one for one in columns("OVER-SIZED", 90, lambda row: row.oversized) if one.title != "BEFORE"),
        *column("RELEASABLE", 80, lambda row: row.released.hours),
    ]


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


def _missing(waste: Waste, show: ShowTime) -> list[str]:
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
