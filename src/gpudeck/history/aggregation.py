"""Readings of many moments and devices become one point per step.

A `Block` holds readings of some devices over some time. It is folded into the steps of a grid device by device, and
then the devices are combined by the metric's roll-up:

    MEAN    the mean, weighted by the seconds that each device was observed
    SUM     the sum of the devices' means; low and high are the sums of theirs
    MAX     the largest value of any device
    LAST    of one device the last value, of several as MEAN

An unknown reading is NaN and has no weight. A step without readings is NaN and has no point. A state is read as 1 while
the GPU is in it, 0 in another, unknown while the GPU is absent.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from gpudeck.history.codec import Floats
from gpudeck.history.hour import ABSENT, QUARTER, Hour, or_none
from gpudeck.history.metrics import HistoryMetric
from gpudeck.history.rollup import COUNT, Quarters, Roll, unknown_roll
from gpudeck.history.time_range import Grid
from gpudeck.history.totals import HIGH, LOW, SECONDS, SUM, TOTAL, TotalsStack, sum_ignoring_nan
from gpudeck.model.catalog import Rollup
from gpudeck.model.history import Point

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

HOURS_AT_ONCE: Final = 24
"""What is in memory at a time: a month of samples of a host with many GPUs would be hundreds of megabytes."""
Mask = Callable[[Hour, list[int]], NDArray[np.bool_]]
CAPACITY: Final = "memory_total_bytes"
"""Every GPU has it and it hardly changes: it shows for how long the GPUs were observed."""


class Block(Struct):
    """Readings in order of time, a row per device. `roll.seconds` may be one row for all."""

    devices: list[int]
    times: Floats
    roll: Roll


class CombinedSteps(Struct):
    """Several devices as one, by step. `totals` are the sums of their means. Can be combined further."""

    sums: Floats
    seconds: Floats
    lows: Floats
    highs: Floats
    totals: Floats

    def join(self, other: "CombinedSteps", rollup: Rollup) -> "CombinedSteps":
        lower, higher = (sum_ignoring_nan, sum_ignoring_nan) if rollup is Rollup.SUM else (np.fmin, np.fmax)
        return CombinedSteps(
            self.sums + other.sums,
            self.seconds + other.seconds,
            lower(self.lows, other.lows),
            higher(self.highs, other.highs),
            sum_ignoring_nan(self.totals, other.totals),
        )

    def means(self, metric: HistoryMetric) -> Floats:
        if metric.rollup is Rollup.SUM:
            return self.totals
        return self.highs if metric.rollup is Rollup.MAX else divide(self.sums, self.seconds)

    def points(self, grid: Grid, metric: HistoryMetric) -> list[Point]:
        return make_points(grid, self.means(metric), self.lows, self.highs, metric.digits)


def fold(blocks: Iterable[Block], grid: Grid, span: tuple[float, float] | None = None) -> dict[int, Roll]:
    """The steps of each device. With `span`, only readings within it count. Blocks come in order of time."""
    start, end = span or (grid.start, grid.end)
    limits = max(start, grid.start), min(end, grid.end)
    found: dict[int, Roll] = {}
    for block in map(_in_order, blocks):
        first, end = np.searchsorted(block.times, limits)
        if first >= end:
            continue
        at, steps = _fold_block(block, grid, slice(first, end))
        for row, device in enumerate(block.devices):
            if device not in found:
                found[device] = unknown_roll((grid.count,))
            _add_later(found[device], at, steps, row)
    return {device: steps for device, steps in found.items() if steps.seconds.any()}


def _add_later(into: Roll, at: NDArray[np.int64], later: Roll, row: int) -> None:
    into.sum[at] += later.sum[row]
    into.seconds[at] += later.seconds[row]
    into.low[at] = np.fmin(into.low[at], later.low[row])
    into.high[at] = np.fmax(into.high[at], later.high[row])
    into.last[at] = np.where(np.isnan(later.last[row]), into.last[at], later.last[row])


def _in_order(block: Block) -> Block:
    """An hour with late samples may come after the hours that follow it."""
    if (np.diff(block.times) >= 0).all():
        return block
    order = np.argsort(block.times, kind="stable")
    return Block(block.devices, block.times[order], Roll(*(rows[..., order] for rows in astuple(block.roll))))


def _fold_block(block: Block, grid: Grid, part: slice) -> tuple[NDArray[np.int64], Roll]:
    numbers = ((block.times[part] - grid.start) // grid.step).astype(np.int64)
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    sums, seconds, lows, highs, lasts = (rows[..., part] for rows in astuple(block.roll))
    is_known = ~np.isnan(lows)
    steps = Roll(
        np.add.reduceat(np.where(is_known, sums, 0.0), firsts, axis=1),
        np.add.reduceat(np.where(is_known, seconds, 0.0), firsts, axis=1),
        np.fmin.reduceat(lows, firsts, axis=1),
        np.fmax.reduceat(highs, firsts, axis=1),
        _last_known(lasts, is_known, firsts),
    )
    return numbers[firsts], steps


def _last_known(values: Floats, is_known: NDArray[np.bool_], firsts: NDArray[np.int64]) -> Floats:
    places = np.maximum.reduceat(np.where(is_known, np.arange(values.shape[1]), -1), firsts, axis=1)
    lasts = np.take_along_axis(values, places, axis=1)
    return np.where(places < firsts, np.nan, lasts)


def combine(devices: Iterable[Roll], grid: Grid, rollup: Rollup) -> CombinedSteps:
    every = list(devices) or [unknown_roll((grid.count,))]
    sums, seconds = np.array([steps.sum for steps in every]), np.array([steps.seconds for steps in every])
    lows, highs = np.array([steps.low for steps in every]), np.array([steps.high for steps in every])
    is_sum = rollup is Rollup.SUM
    return CombinedSteps(
        sums.sum(axis=0),
        seconds.sum(axis=0),
        sum_of_known(lows) if is_sum else np.fmin.reduce(lows, axis=0),
        sum_of_known(highs) if is_sum else np.fmax.reduce(highs, axis=0),
        sum_of_known(divide(sums, seconds)),
    )


def device_points(steps: Roll, grid: Grid, metric: HistoryMetric) -> list[Point]:
    means = steps.last if metric.rollup is Rollup.LAST else divide(steps.sum, steps.seconds)
    return make_points(grid, means, steps.low, steps.high, metric.digits)


def make_points(grid: Grid, means: Floats, lows: Floats, highs: Floats, digits: int) -> list[Point]:
    """One point per step with a known mean; its low and high may be unknown."""
    at = np.flatnonzero(np.isfinite(means))
    times: list[float] = (grid.start + at * float(grid.step)).tolist()
    columns = (or_none(np.round(values[at], digits)) for values in (means, lows, highs))
    return list(zip(times, *columns, strict=True))


def divide(sums: Floats, seconds: Floats) -> Floats:
    """Means; NaN where there are no seconds."""
    means: Floats = np.divide(sums, seconds, out=np.full(np.shape(sums), np.nan), where=seconds > 0)
    return means


def sum_of_known(rows: Floats) -> Floats:
    """Sums each column; NaN if the whole column is NaN."""
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0))


def read_samples(
    view: "HistoryView",
    host: int,
    metric: HistoryMetric,
    grid: Grid,
    *,
    only: Collection[int] | None = None,
    mask: Mask | None = None,
) -> Iterator[Block]:
    """Readings of the host's GPUs (only those in `only`, if given), or of the host itself for a host metric."""
    hours = view.hours(host, grid.start, grid.end, metric.wanted, runs=mask is not None)
    for gpus, same in groupby(hours, lambda hour: tuple(hour.gpus)):
        devices, rows = _rows_of(metric, host, gpus, only)
        while devices and (some := list(islice(same, HOURS_AT_ONCE))):
            times = np.concatenate([hour.times for hour in some])
            values = np.concatenate([_values(hour, metric, rows, mask) for hour in some], axis=1)
            yield make_block(devices, times, values, np.concatenate([hour.covered for hour in some]), grid.step)


def read_quarters(
    view: "HistoryView", host: int, metric: HistoryMetric, grid: Grid, *, only: Collection[int] | None = None
) -> Iterator[Block]:
    stretches = view.quarters(host, grid.start, grid.end, metric.wanted)
    for gpus, same in groupby(stretches, lambda quarters: tuple(quarters.gpus)):
        devices, rows = _rows_of(metric, host, gpus, only)
        if devices:
            parts = list(same)
            times = np.concatenate([part.start + QUARTER * np.arange(COUNT, dtype=np.float64) for part in parts])
            columns = zip(*(astuple(_roll(part, metric, rows)) for part in parts), strict=True)
            yield Block(devices, times, Roll(*(np.concatenate(column, axis=1) for column in columns)))


def _rows_of(
    metric: HistoryMetric, host: int, gpus: tuple[int, ...], only: Collection[int] | None
) -> tuple[list[int], list[int]]:
    if metric.is_of_host:
        return [host], [0]
    rows = [row for row, gpu in enumerate(gpus) if only is None or gpu in only]
    return [gpus[row] for row in rows], rows


def make_block(devices: list[int], times: Floats, values: Floats, seconds: Floats, step: float) -> Block:
    """Makes a block of samples. A sample that covers more time than a step is repeated in each step of that time."""
    copies = np.maximum(np.ceil(seconds / step), 1).astype(np.int64)
    if len(copies) and copies.max() > 1:
        which = np.repeat(np.arange(len(times)), copies)
        back = np.cumsum(copies)[which] - 1 - np.arange(len(which))
        times, values, seconds = times[which] - back * step, values[:, which], (seconds / copies)[which]
    return Block(devices, times, Roll(values * seconds, seconds, values, values, values))


def _values(hour: Hour, metric: HistoryMetric, rows: list[int], mask: Mask | None) -> Floats:
    if metric.is_of_host:
        found = hour.host.get(metric.plain)
        return np.full((1, len(hour.times)), np.nan) if found is None else np.reshape(found, (1, -1))
    if metric.state is not None:
        states = hour.states[rows]
        values = np.where(states == ABSENT, np.nan, states == metric.state)
    else:
        values = hour.metric(metric.name)[rows]
    return values if mask is None else np.where(mask(hour, rows), values, np.nan)


def _roll(part: Quarters, metric: HistoryMetric, rows: list[int]) -> Roll:
    if metric.state is not None:
        # What was seen at the quarter's end is not kept of a state: its share stands for it.
        states = part.states[:, rows]
        inside = np.nan_to_num(states[metric.state])
        seconds = np.nan_to_num(states[ABSENT + 1 :]).sum(axis=0)
        share = divide(inside, seconds)
        is_seen = seconds > 0
        low = np.where(is_seen, share > 1 - 1e-6, np.nan)
        return Roll(inside, seconds, low, np.where(is_seen, share > 1e-6, np.nan), share)
    table, name = (part.host, metric.plain) if metric.is_of_host else (part.metrics, metric.name)
    if name not in table:
        return unknown_roll((len(rows), COUNT))
    roll = table[name]
    return Roll(*(values[rows] for values in astuple(roll)))


def fold_totals(
    stack: TotalsStack, metric: HistoryMetric, now: float, at: NDArray[np.int64], count: int
) -> CombinedSteps:
    """`at` is the index (below `count`) of the point to which each step of the stack belongs. A total is the mean of
    the totals of its steps."""
    rows = stack.lines(metric.name) if metric.state is None else _count_states(stack, metric.state, now)
    is_known = rows[:, SECONDS] > 0
    at, rows = at[is_known], rows[is_known]
    sums, seconds, totals = (
        np.bincount(at, rows[:, column], count).astype(np.float64) for column in (SUM, SECONDS, TOTAL)
    )
    lows, highs = np.full(count, np.nan), np.full(count, np.nan)
    np.fmin.at(lows, at, rows[:, LOW])
    np.fmax.at(highs, at, rows[:, HIGH])
    return CombinedSteps(
        sums, seconds, lows, highs, divide(totals, np.bincount(at, minlength=count).astype(np.float64))
    )


def wanted_for(metric: HistoryMetric) -> tuple[str, ...]:
    return metric.wanted if metric.state is None else (CAPACITY,)


def observed_seconds(stack: TotalsStack, now: float) -> Floats:
    """The mean observed time of the GPUs in each step: sum of capacity × seconds divided by the sum of capacities. If
    no GPU reports its memory, the whole step."""
    capacity = stack.lines(CAPACITY)
    lengths: Floats = np.clip(now - stack.starts, 1.0, float(stack.seconds_per_step))
    is_told = np.nan_to_num(capacity[:, TOTAL]) > 0
    np.divide(capacity[:, SUM], capacity[:, TOTAL], out=lengths, where=is_told)
    return lengths


def _count_states(stack: TotalsStack, state: int, now: float) -> Floats:
    """The mean number of GPUs in that state, as `total`. Lows and highs are not stored."""
    rows = np.full((len(stack.starts), 5), np.nan)
    rows[:, SUM] = stack.states[:, state]
    rows[:, SECONDS] = stack.states[:, ABSENT + 1 :].sum(axis=1)
    rows[:, TOTAL] = rows[:, SUM] / observed_seconds(stack, now)
    return rows
