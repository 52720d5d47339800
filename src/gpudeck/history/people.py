"""What a person used over time, and who had the memory of a GPU."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history import totals
from gpudeck.history.base import Answer, Ask, HistoryRefused, Series, Use
from gpudeck.history.blocks import make_block
from gpudeck.history.folds import Block, fold, points_of_one
from gpudeck.history.hour import BUSY, HELD, UNKNOWN, Flags, Floats, Hour
from gpudeck.history.measures import Measure
from gpudeck.history.past import KnownGpu, Past
from gpudeck.history.steps import DAY, HOUR, Grid, choose
from gpudeck.history.subjects import cut_range, find_gpu, make_answer

MOST_HOURS: Final = 1_000
_MEMORY: Final = "memory_used_bytes"
_AMOUNTS: Final = {"gpus_used": "held", "gpus_worked": "worked", "gpus_idle": "idle", "power_watts": "joules"}
_KNOWN_BY: Final = {"gpus_worked": "measured", "power_watts": "metered"}
"""The part of what was held for which a figure is known at all."""


def user_series(past: Past, ask: Ask, measure: Measure, now: float) -> Answer:
    """Hour by hour. An hour that was observed and in which they had nothing is a zero."""
    grid = choose(ask.start, ask.end, ask.points, HOUR)
    amounts, is_known, in_use = _add_up(past, ask.user or "", measure.name, grid)
    observed = _observed(past, grid, now)
    seconds = np.where((observed == 0) & in_use, float(HOUR), observed)
    is_seen = is_known & (seconds > 0)
    values = np.divide(amounts, seconds, out=np.full((1, len(seconds)), np.nan), where=is_seen)
    times = grid.start + HOUR * np.arange(len(seconds), dtype=np.float64)
    block = Block([0], times, amounts[None], seconds, values, values, values)
    points = [points_of_one(steps, grid, measure) for steps in fold([block], grid).values()]
    return make_answer(ask, measure, grid, [Series(points[0] if points else [], user=ask.user)], "hour")


def _add_up(past: Past, user: str, metric: str, grid: Grid) -> tuple[Floats, Flags, Flags]:
    """By hour: the amount, whether it can be known, and whether anybody used anything."""
    uses = list(past.hourly_uses(grid.start, grid.end))
    mine = [(key[0], use) for key, use in uses if key[2] == user]
    held, known = _by_hour(mine, "held", grid), _by_hour(mine, _KNOWN_BY.get(metric, "held"), grid)
    in_use = np.zeros(len(held), dtype=np.bool_)
    in_use[_places(list({key[0] for key, _ in uses}), grid)] = True
    return _by_hour(mine, _AMOUNTS[metric], grid), (known > 0) | (held == 0), in_use


def _by_hour(mine: list[tuple[int, Use]], what: str, grid: Grid) -> Floats:
    places = _places([hour for hour, _ in mine], grid)
    amounts = [getattr(use, what) for _, use in mine]
    return np.bincount(places, amounts, (grid.end - grid.start) // HOUR).astype(np.float64)


def _places(hours: list[int], grid: Grid) -> NDArray[np.int64]:
    return (np.array(hours, dtype=np.int64) - grid.start) // HOUR


def _observed(past: Past, grid: Grid, now: float) -> Floats:
    """For how long the fleet was observed in each hour."""
    stack = past.fleet_quarters(grid.start, grid.end, (totals.CAPACITY,))
    places = (stack.starts - grid.start) // HOUR
    return np.bincount(places, totals.observed_seconds(stack, now), (grid.end - grid.start) // HOUR).astype(np.float64)


def memory_by_user(past: Past, ask: Ask, measure: Measure, now: float) -> Answer:
    """From samples alone, as only they tell who was there. Memory in use by nobody known has no user."""
    gpu = find_gpu(past, ask.gpu or "")
    start = max(ask.start, gpu.first)
    _check_kept(past, start, min(ask.end, now))
    grid = cut_range(past, ask, gpu.first)
    block, users = _split(past, gpu, grid)
    found = fold([block], grid)
    points = {row: points_of_one(steps, grid, measure) for row, steps in found.items()}
    # A step in which somebody was not there at all is no point of theirs.
    series = [
        Series([point for point in points[row] if point[3]], gpu=gpu.uuid, label=gpu.label, user=user)
        for row, user in enumerate(users)
        if row in points
    ]
    return make_answer(ask, measure, grid, series, "raw")


def _check_kept(past: Past, start: float, end: float) -> None:
    since = past.raw_since()
    if start < since:
        raise HistoryRefused(
            "too_old",
            "who had which memory is known as long as each sample is kept, and some of that range is older",
            f"Ask from start={since:.0f} on.",
        )
    if end - start > MOST_HOURS * HOUR:
        days = MOST_HOURS * HOUR // DAY
        raise HistoryRefused(
            "too_long", "that is too long a range to tell users apart", f"Ask for at most {days} days."
        )


def _split(past: Past, gpu: KnownGpu, grid: Grid) -> tuple[Block, list[str | None]]:
    """A row a user; 0 where the GPU was seen without them."""
    hours = [hour for hour in past.hours(gpu.host, grid.start, grid.end, (_MEMORY,), runs=True) if gpu.key in hour.gpus]
    parts = [_memory_of_users(past, hour, hour.gpus.index(gpu.key)) for hour in hours]
    users = sorted({user for part, _ in parts for user in part}, key=lambda user: (user is None, user or ""))
    rows = [np.concatenate([part.get(user, base) for part, base in parts]) for user in users]
    times = np.concatenate([hour.times for hour in hours]) if hours else np.empty(0)
    seconds = np.concatenate([hour.covered for hour in hours]) if hours else np.empty(0)
    values = np.array(rows).reshape(len(users), len(times))
    return make_block(list(range(len(users))), times, values, seconds, grid.step), users


def _memory_of_users(past: Past, hour: Hour, row: int) -> tuple[dict[str | None, Floats], Floats]:
    base = np.where(hour.states[row] > UNKNOWN, 0.0, np.nan)
    found: dict[str | None, Floats] = {}
    is_alone = np.isin(hour.states[row], (BUSY, HELD))
    for part in hour.runs:
        if part.gpu == row:
            user = past.owner(part.run)
            found[user] = found.get(user, base) + np.where(part.present, part.memory, 0.0)
            is_alone &= ~part.present
    table = hour.metrics.get(_MEMORY)
    if is_alone.any() and table is not None:
        found[None] = found.get(None, base) + np.where(is_alone, table[row], 0.0)
    return found, base
