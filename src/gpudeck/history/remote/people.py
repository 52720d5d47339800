"""What a person used over time, and who had the memory of a GPU, out of the store."""

from collections.abc import Iterable

import numpy as np

from gpudeck.history.base import Ask, Point, Series
from gpudeck.history.folds import make_points
from gpudeck.history.hour import Floats
from gpudeck.history.measures import Measure, find_measure
from gpudeck.history.remote.names import HELD, OBSERVED, OF_USERS, STATE, USER_MEMORY
from gpudeck.history.remote.promql import at_once, over, select
from gpudeck.history.remote.reach import find_reach
from gpudeck.history.remote.read import Reader
from gpudeck.history.remote.roster import Roster
from gpudeck.history.steps import HOUR, QUARTER, Grid, choose

_COUNTER = "by (host_id, host, model)"


def user_series(reader: Reader, ask: Ask) -> tuple[Grid, list[Series]]:
    """Hour by hour. An hour that was observed and in which they had nothing is a zero."""
    grid = choose(ask.start, ask.end, ask.points, HOUR)
    hours = Grid(grid.start, HOUR, (grid.end - grid.start) // HOUR)
    user = ask.user or ""
    held, amounts = (_grown(reader, name, user, hours) for name in (HELD, OF_USERS[ask.metric]))
    amounts = np.where(np.isnan(amounts) & ~(held > 0), 0.0, amounts)
    seconds = np.where(np.isnan(amounts), 0.0, _observed(reader, hours))
    values = np.divide(amounts, seconds, out=np.full(hours.count, np.nan), where=seconds > 0)
    total, weight = (_by_step(np.nansum, rows, grid) for rows in (np.where(seconds > 0, amounts, 0.0), seconds))
    means = np.divide(total, weight, out=np.full(grid.count, np.nan), where=weight > 0)
    lows, highs = (_by_step(fold, values, grid) for fold in (np.fmin.reduce, np.fmax.reduce))
    points = make_points(grid, means, lows, highs, find_measure(ask.metric, "user").digits)
    return grid, [Series(points, user=ask.user)]


def memory_by_user(reader: Reader, roster: Roster, ask: Ask, measure: Measure) -> tuple[Grid, list[Series]]:
    """A moment at which the GPU was seen without somebody counts as none of its memory for them."""
    label = roster.find_gpu(ask.gpu or "")
    grid = choose(ask.start, ask.end, ask.points)
    where = {"gpu": ask.gpu or ""}
    longer, told_by = find_reach(reader, grid, roster.hosts_of([ask.gpu or ""]))
    at = over(select(USER_MEMORY, where), grid.step)
    asked = at_once({stat: f"{over} by (user) ({of}_over_time({at}))" for stat, over, of in _OF_MEMORY})
    users: dict[str, dict[str, Floats]] = {}
    for labels, values in reader.values(asked, longer):
        users.setdefault(labels.get("user", ""), {})[labels["stat"]] = values[told_by]
    known = over(select(STATE, where, 'state!="unknown"'), grid.step)
    seen = _first(reader.values(f"sum by (gpu) (count_over_time({known}))", longer), longer)[told_by]
    order = sorted(users, key=lambda user: (not user, user))
    points = {user: _memory_of(users[user], seen, grid, measure) for user in order}
    return grid, [Series(points[user], gpu=ask.gpu, label=label, user=user or None) for user in order]


_OF_MEMORY = (("sum", "sum", "sum"), ("count", "sum", "count"), ("low", "min", "min"), ("high", "max", "max"))


def _memory_of(found: dict[str, Floats], seen: Floats, grid: Grid, measure: Measure) -> list[Point]:
    nothing = np.full(grid.count, np.nan)
    total, count, low, high = (found.get(stat, nothing) for stat, _, _ in _OF_MEMORY)
    moments = np.fmax(seen, count)
    mean = np.divide(total, moments, out=nothing.copy(), where=moments > 0)
    points = make_points(grid, mean, np.where(count < moments, 0.0, low), high, measure.digits)
    return [point for point in points if point[3]]


def _grown(reader: Reader, counter: str, user: str, hours: Grid) -> Floats:
    """By how much a user's counters grew in each hour, added up; NaN while there was none.

    The hour before the first is asked for too, to know where the first began.
    """
    earlier = Grid(hours.start - HOUR, HOUR, hours.count + 1)
    at = over(select(counter, {"user": user}), HOUR)
    found = reader.stats(
        {"mean": f"max {_COUNTER} (last_over_time({at}))", "low": f"min {_COUNTER} (min_over_time({at}))"}, earlier
    )
    grown = [_differences(one.mean, one.low)[1:] for one in found]
    return _sum_of_known(grown, hours.count)


def _differences(lasts: Floats, firsts: Floats) -> Floats:
    """A counter that is smaller than before began again from 0."""
    grown, before = np.full(len(lasts), np.nan), np.nan
    for hour in np.flatnonzero(~np.isnan(lasts)).tolist():
        base = firsts[hour] if np.isnan(before) else before
        grown[hour] = lasts[hour] - base if lasts[hour] >= base else lasts[hour]
        before = lasts[hour]
    return grown


def _observed(reader: Reader, hours: Grid) -> Floats:
    """For how long the hosts were observed in each hour, on average."""
    quarters = Grid(hours.start, QUARTER, hours.count * (HOUR // QUARTER))
    asked = f"avg(sum by (host_id) (sum_over_time({over(select(OBSERVED), QUARTER)})))"
    seconds = np.fmin(np.nan_to_num(_first(reader.values(asked, quarters), quarters)), QUARTER)
    return _by_step(np.nansum, seconds, hours)


def _by_step(fold: np.ufunc | object, rows: Floats, grid: Grid) -> Floats:
    return fold(rows.reshape(grid.count, -1), axis=1)  # type: ignore[operator,no-any-return]


def _first(found: Iterable[tuple[dict[str, str], Floats]], grid: Grid) -> Floats:
    return next((values for _, values in found), np.full(grid.count, np.nan))


def _sum_of_known(rows: list[Floats], count: int) -> Floats:
    table = np.array(rows).reshape(len(rows), count)
    return np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))
