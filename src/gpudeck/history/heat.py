"""A map of hosts × time, made from the hosts' hours."""

from typing import Final

import numpy as np

from gpudeck.history import totals
from gpudeck.history.base import MOST_POINTS, Heat, HeatAsk, HeatRow, HistoryRefused
from gpudeck.history.folds import tell
from gpudeck.history.measures import Measure, find_measure
from gpudeck.history.past import KnownHost, Past
from gpudeck.history.steps import HOUR, Grid, check_range, cut

MOST_HOURS: Final = 1_000_000
"""Hours of hosts that are read for one map."""
MOST_CELLS: Final = 500_000


def heat(past: Past, ask: HeatAsk, now: float) -> Heat:
    """Rows are by name. A host is there if it was seen at some time in the range."""
    check_range(ask.start, ask.end)
    measure = find_measure(ask.metric, "host")
    grid = cut_map(ask)
    hosts = _hosts_within(past, grid)
    _check_cost(len(hosts), grid, now)
    values = _fill(past, measure, grid, {host.key: row for row, host in enumerate(hosts)}, now)
    rows = [
        HeatRow(host.host_id, host.name, values[row * grid.count : (row + 1) * grid.count])
        for row, host in enumerate(hosts)
    ]
    return Heat(measure.name, measure.unit, grid.step, grid.times(), rows)


def cut_map(ask: HeatAsk) -> Grid:
    """The columns of a map. Raises HistoryRefused."""
    if ask.step < HOUR or ask.step % HOUR or ask.step > 366 * 24 * HOUR:
        hint = "Give a whole number of hours in seconds: 3600, 7200 … up to a year."
        raise HistoryRefused("bad_step", f"a map cannot have columns of {ask.step} s", hint)
    grid = cut(ask.start, ask.end, ask.step)
    if grid.count > MOST_POINTS:
        hint = f"At most {MOST_POINTS:,} are possible: ask for a shorter range or a larger step."
        raise HistoryRefused("too_many_points", f"{grid.count:,} columns are too many", hint)
    return grid


def _hosts_within(past: Past, grid: Grid) -> list[KnownHost]:
    # When a host was last seen may be an hour behind.
    hosts = [host for host in past.hosts().values() if host.first < grid.end and host.last + 2 * HOUR >= grid.start]
    return sorted(hosts, key=lambda host: (host.name, host.host_id))


def _check_cost(hosts: int, grid: Grid, now: float) -> None:
    hours = hosts * max(0.0, min(grid.end, now) - grid.start) / HOUR
    if hours > MOST_HOURS or hosts * grid.count > MOST_CELLS:
        raise HistoryRefused(
            "too_long",
            f"{hosts:,} hosts × {grid.count:,} columns are too much for one map",
            "Ask for a shorter range or a larger step.",
        )


def _fill(past: Past, measure: Measure, grid: Grid, rows: dict[int, int], now: float) -> list[float | None]:
    """The cells, row after row."""
    stack = past.host_hours(grid.start, grid.end, totals.wanted_for(measure))
    stack = stack.only(np.isin(stack.hosts, list(rows)))
    places = np.array([rows[host] for host in stack.hosts.tolist()], dtype=np.int64)
    table = totals.read_table(stack, measure, now)
    whole = table.fold(places * grid.count + (stack.starts - grid.start) // grid.step, len(rows) * grid.count)
    return tell(whole.means(measure), measure.digits)
