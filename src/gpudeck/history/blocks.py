"""A host's samples and quarter hours as blocks that can be folded: all devices of the host, or some of its GPUs.

A state is read as a number: 1 while the GPU is in it, 0 while it is in another, unknown while it is not there at all.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history.folds import Block
from gpudeck.history.hour import ABSENT, QUARTER, Floats, Hour
from gpudeck.history.measures import Measure
from gpudeck.history.past import Past
from gpudeck.history.rollup import Quarters, Roll
from gpudeck.history.steps import Grid

HOURS_AT_ONCE: Final = 24
"""What is in memory at a time: a month of samples of a host with many GPUs would be hundreds of megabytes."""
Mask = Callable[[Hour, list[int]], NDArray[np.bool_]]
"""Which samples of these rows count."""


def read_samples(
    past: Past,
    host: int,
    measure: Measure,
    grid: Grid,
    *,
    only: Collection[int] | None = None,
    mask: Mask | None = None,
) -> Iterator[Block]:
    """Of the host's GPUs, those in `only` where it is given; of a metric of the host itself, the host alone."""
    hours = past.hours(host, grid.start, grid.end, measure.wanted, runs=mask is not None)
    for gpus, same in groupby(hours, lambda hour: tuple(hour.gpus)):
        devices, rows = _rows_of(measure, host, gpus, only)
        if devices:
            yield from (_join_hours(some, measure, devices, rows, mask, grid.step) for some in _some_at_once(same))


def read_quarters(
    past: Past, host: int, measure: Measure, grid: Grid, *, only: Collection[int] | None = None
) -> Iterator[Block]:
    stretches = past.quarters(host, grid.start, grid.end, measure.wanted)
    for gpus, same in groupby(stretches, lambda quarters: tuple(quarters.gpus)):
        devices, rows = _rows_of(measure, host, gpus, only)
        if devices:
            yield _join_quarters(list(same), measure, devices, rows)


def _some_at_once(hours: Iterator[Hour]) -> Iterator[list[Hour]]:
    some: list[Hour] = []
    for hour in hours:
        some.append(hour)
        if len(some) == HOURS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _rows_of(
    measure: Measure, host: int, gpus: tuple[int, ...], only: Collection[int] | None
) -> tuple[list[int], list[int]]:
    """Whose rows are read, and which they are."""
    if measure.is_of_host:
        return [host], [0]
    rows = [row for row, gpu in enumerate(gpus) if only is None or gpu in only]
    return [gpus[row] for row in rows], rows


def _join_hours(  # noqa: PLR0917 - one call, in whose middle it was too long
    hours: list[Hour], measure: Measure, devices: list[int], rows: list[int], mask: Mask | None, step: float
) -> Block:
    seconds = np.concatenate([hour.covered for hour in hours])
    values = np.concatenate([_values(hour, measure, rows, mask) for hour in hours], axis=1)
    times = np.concatenate([hour.times for hour in hours])
    return make_block(devices, times, values, seconds, step)


def make_block(devices: list[int], times: Floats, values: Floats, seconds: Floats, step: float) -> Block:
    """Of samples. One that stands for a longer time than a step has tells of all the steps in that time."""
    copies = np.maximum(np.ceil(seconds / step), 1).astype(np.int64)
    if len(copies) and copies.max() > 1:
        which = np.repeat(np.arange(len(times)), copies)
        back = np.cumsum(copies)[which] - 1 - np.arange(len(which))
        times, values, seconds = times[which] - back * step, values[:, which], (seconds / copies)[which]
    return Block(devices, times, values * seconds, seconds, values, values, values)


def _values(hour: Hour, measure: Measure, rows: list[int], mask: Mask | None) -> Floats:
    if measure.is_of_host:
        found = hour.host.get(measure.plain)
        return np.full((1, len(hour.times)), np.nan) if found is None else np.reshape(found, (1, -1))
    if measure.state is not None:
        states = hour.states[rows]
        values = np.where(states == ABSENT, np.nan, states == measure.state)
    else:
        table = hour.metrics.get(measure.name)
        values = np.full((len(rows), len(hour.times)), np.nan) if table is None else table[rows]
    return values if mask is None else np.where(mask(hour, rows), values, np.nan)


def _join_quarters(parts: list[Quarters], measure: Measure, devices: list[int], rows: list[int]) -> Block:
    times = np.concatenate([part.start + QUARTER * np.arange(part.count, dtype=np.float64) for part in parts])
    rolls = [_roll(part, measure, rows) for part in parts]
    columns = ([getattr(roll, name) for roll in rolls] for name in ("sum", "seconds", "low", "high", "last"))
    return Block(devices, times, *(np.concatenate(column, axis=1) for column in columns))


def _roll(part: Quarters, measure: Measure, rows: list[int]) -> Roll:
    if measure.state is not None:
        return _roll_of_state(part.states[:, rows], measure.state)
    table, name = (part.host, measure.plain) if measure.is_of_host else (part.metrics, measure.name)
    if name not in table:
        return _nothing(len(rows), part.count)
    roll = table[name]
    return Roll(*(getattr(roll, field)[rows] for field in ("sum", "seconds", "low", "high", "last")))


def _roll_of_state(states: Floats, state: int) -> Roll:
    """What was seen at the quarter's end is not kept of a state: its share stands for it."""
    inside = np.nan_to_num(states[state])
    seconds = np.nan_to_num(states[ABSENT + 1 :]).sum(axis=0)
    share = np.divide(inside, seconds, out=np.full(seconds.shape, np.nan), where=seconds > 0)
    is_seen = seconds > 0
    low = np.where(is_seen, share > 1 - 1e-6, np.nan)
    return Roll(inside, seconds, low, np.where(is_seen, share > 1e-6, np.nan), share)


def _nothing(rows: int, count: int) -> Roll:
    zeros, unknown = np.zeros((rows, count)), np.full((rows, count), np.nan)
    return Roll(zeros, zeros, unknown, unknown, unknown)
