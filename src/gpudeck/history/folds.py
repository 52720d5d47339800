"""Readings of many moments and many devices become one point a step.

A `Block` is a stretch of readings of some devices. It is folded into the steps of a grid device by device, and then the
devices are put together as the metric's roll-up says:

    MEAN    the mean, weighted by the seconds that each device was observed
    SUM     the sum of the devices' means; the band is the sum of their bands
    MAX     the largest value that any of them had
    LAST    of one device the last value, of several as MEAN

An unknown reading is NaN and weighs nothing. A step that nobody observed is NaN and gives no point.
"""

from collections.abc import Iterable
from typing import Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.base import Point
from gpudeck.history.hour import Floats
from gpudeck.history.measures import Measure
from gpudeck.history.steps import Grid
from gpudeck.model.catalog import Rollup


class Block(Struct):
    """Readings in order of time, a row a device. `sums` are value × seconds; `seconds` may be one row for all."""

    devices: list[int]
    times: Floats
    sums: Floats
    seconds: Floats
    lows: Floats
    highs: Floats
    lasts: Floats


class Steps(Struct):
    """What came out of each step: arrays with the steps along the last axis."""

    sums: Floats
    seconds: Floats
    lows: Floats
    highs: Floats
    lasts: Floats

    @classmethod
    def nothing(cls, *shape: int) -> Self:
        zeros, unknown = np.zeros(shape), np.full(shape, np.nan)
        return cls(zeros, zeros.copy(), unknown, unknown.copy(), unknown.copy())

    def add(self, at: NDArray[np.int64], later: "Steps", row: int) -> None:
        """Takes in what `later`, folded from a later stretch of time, has of one device in the steps `at`."""
        self.sums[at] += later.sums[row]
        self.seconds[at] += later.seconds[row]
        self.lows[at] = np.fmin(self.lows[at], later.lows[row])
        self.highs[at] = np.fmax(self.highs[at], later.highs[row])
        self.lasts[at] = np.where(np.isnan(later.lasts[row]), self.lasts[at], later.lasts[row])


class Whole(Struct):
    """Several devices as one, by step. `totals` are the sums of their means. Can be put together again with others."""

    sums: Floats
    seconds: Floats
    lows: Floats
    highs: Floats
    totals: Floats

    def join(self, other: "Whole", rollup: Rollup) -> "Whole":
        lower, higher = (_known_sum, _known_sum) if rollup is Rollup.SUM else (np.fmin, np.fmax)
        return Whole(
            self.sums + other.sums,
            self.seconds + other.seconds,
            lower(self.lows, other.lows),
            higher(self.highs, other.highs),
            _known_sum(self.totals, other.totals),
        )

    def means(self, measure: Measure) -> Floats:
        if measure.rollup is Rollup.SUM:
            return self.totals
        return self.highs if measure.rollup is Rollup.MAX else _divide(self.sums, self.seconds)

    def points(self, grid: Grid, measure: Measure) -> list[Point]:
        return make_points(grid, self.means(measure), self.lows, self.highs, measure.digits)


def fold(blocks: Iterable[Block], grid: Grid, span: tuple[float, float] | None = None) -> dict[int, Steps]:
    """Each device's steps; only readings from within `span`, where it is given. Blocks come in
    order of time."""
    start, end = span or (grid.start, grid.end)
    limits = max(start, grid.start), min(end, grid.end)
    found: dict[int, Steps] = {}
    for block in map(_in_order, blocks):
        first, end = np.searchsorted(block.times, limits)
        if first >= end:
            continue
        at, steps = _fold_block(block, grid, slice(first, end))
        for row, device in enumerate(block.devices):
            found.setdefault(device, Steps.nothing(grid.count)).add(at, steps, row)
    return {device: steps for device, steps in found.items() if steps.seconds.any()}


def _in_order(block: Block) -> Block:
    """An hour that got late samples may come after the hours that follow it."""
    if (np.diff(block.times) >= 0).all():
        return block
    order = np.argsort(block.times, kind="stable")
    seconds = block.seconds[..., order]
    rows = (table[:, order] for table in (block.lows, block.highs, block.lasts))
    return Block(block.devices, block.times[order], block.sums[:, order], seconds, *rows)


def _fold_block(block: Block, grid: Grid, part: slice) -> tuple[NDArray[np.int64], Steps]:
    numbers = ((block.times[part] - grid.start) // grid.step).astype(np.int64)
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    lows, highs, lasts = block.lows[:, part], block.highs[:, part], block.lasts[:, part]
    is_known = ~np.isnan(lows)
    seconds = np.where(is_known, block.seconds[..., part], 0.0)
    sums = np.where(is_known, block.sums[:, part], 0.0)
    steps = Steps(
        np.add.reduceat(sums, firsts, axis=1),
        np.add.reduceat(seconds, firsts, axis=1),
        np.fmin.reduceat(lows, firsts, axis=1),
        np.fmax.reduceat(highs, firsts, axis=1),
        _last_known(lasts, is_known, firsts),
    )
    return numbers[firsts], steps


def _last_known(values: Floats, is_known: NDArray[np.bool_], firsts: NDArray[np.int64]) -> Floats:
    places = np.maximum.reduceat(np.where(is_known, np.arange(values.shape[1]), -1), firsts, axis=1)
    lasts = np.take_along_axis(values, places, axis=1)
    return np.where(places < firsts, np.nan, lasts)


def put_together(devices: Iterable[Steps], grid: Grid, rollup: Rollup) -> Whole:
    """Several devices as one."""
    every = list(devices) or [Steps.nothing(grid.count)]
    sums, seconds = np.array([steps.sums for steps in every]), np.array([steps.seconds for steps in every])
    lows, highs = np.array([steps.lows for steps in every]), np.array([steps.highs for steps in every])
    is_sum = rollup is Rollup.SUM
    return Whole(
        sums.sum(axis=0),
        seconds.sum(axis=0),
        _sum_of_known(lows) if is_sum else np.fmin.reduce(lows, axis=0),
        _sum_of_known(highs) if is_sum else np.fmax.reduce(highs, axis=0),
        _sum_of_known(_divide(sums, seconds)),
    )


def points_of_one(steps: Steps, grid: Grid, measure: Measure) -> list[Point]:
    """The points of a single device."""
    means = steps.lasts if measure.rollup is Rollup.LAST else _divide(steps.sums, steps.seconds)
    return make_points(grid, means, steps.lows, steps.highs, measure.digits)


def make_points(grid: Grid, means: Floats, lows: Floats, highs: Floats, digits: int) -> list[Point]:
    """Where the mean is known there is a point; its band may be unknown."""
    at = np.flatnonzero(np.isfinite(means))
    times: list[float] = (grid.start + at * float(grid.step)).tolist()
    columns = (tell(values[at], digits) for values in (means, lows, highs))
    return list(zip(times, *columns, strict=True))


def tell(values: Floats, digits: int) -> list[float | None]:
    """As JSON has them: None for unknown."""
    told: list[float | None] = np.round(values, digits).tolist()
    return [None if value != value else value for value in told] if np.isnan(values).any() else told  # noqa: PLR0124


def _divide(sums: Floats, seconds: Floats) -> Floats:
    means: Floats = np.divide(sums, seconds, out=np.full(np.shape(sums), np.nan), where=seconds > 0)
    return means


def _sum_of_known(rows: Floats) -> Floats:
    """Column by column; NaN where nothing is known."""
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0))


def _known_sum(one: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(one), other, np.where(np.isnan(other), one, one + other))
