"""The fleet's quarter hours and the hosts' hours, which are kept as sums over GPUs, put into the steps of an answer."""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.folds import Whole
from gpudeck.history.hour import ABSENT, Floats
from gpudeck.history.measures import Measure
from gpudeck.history.stacks import Stack
from gpudeck.history.sums import HIGH, LOW, SECONDS, SUM, TOTAL

CAPACITY: Final = "memory_total_bytes"
"""Which every GPU has and which hardly changes: it tells for how long the GPUs were observed."""


class Table(Struct):
    """A row a step of the store, columns as of Totals: sum, seconds, low, high, total."""

    times: Floats
    rows: Floats

    def fold(self, at: NDArray[np.int64], count: int) -> Whole:
        """`at` is the place among `count` to which each row belongs. A total is the mean of those it is made of."""
        rows = self.rows
        is_known = rows[:, SECONDS] > 0
        at, rows = at[is_known], rows[is_known]
        sums, seconds, totals = (
            np.bincount(at, rows[:, column], count).astype(np.float64) for column in (SUM, SECONDS, TOTAL)
        )
        made_of = np.bincount(at, minlength=count)
        lows, highs = np.full(count, np.nan), np.full(count, np.nan)
        np.fmin.at(lows, at, rows[:, LOW])
        np.fmax.at(highs, at, rows[:, HIGH])
        means = np.divide(totals, made_of, out=np.full(count, np.nan), where=made_of > 0)
        return Whole(sums, seconds, lows, highs, means)


def wanted_for(measure: Measure) -> tuple[str, ...]:
    return measure.wanted if measure.state is None else (CAPACITY,)


def read_table(stack: Stack, measure: Measure, now: float) -> Table:
    lines = stack.lines(measure.name) if measure.state is None else _count_states(stack, measure.state, now)
    return Table(stack.starts.astype(np.float64), lines)


def observed_seconds(stack: Stack, now: float) -> Floats:
    """For how long the GPUs were observed on average in each of these steps.

    A sum of capacity × seconds over a sum of capacities. Where no GPU tells its memory, all of the step.
    """
    capacity = stack.lines(CAPACITY)
    lengths: Floats = np.clip(now - stack.starts, 1.0, float(stack.seconds_per_step))
    is_told = np.nan_to_num(capacity[:, TOTAL]) > 0
    np.divide(capacity[:, SUM], capacity[:, TOTAL], out=lengths, where=is_told)
    return lengths


def _count_states(stack: Stack, state: int, now: float) -> Floats:
    """How many GPUs were in that state, as `total`. Between which numbers is not kept."""
    rows = np.full((len(stack.starts), 5), np.nan)
    rows[:, SUM] = stack.states[:, state]
    rows[:, SECONDS] = stack.states[:, ABSENT + 1 :].sum(axis=1)
    rows[:, TOTAL] = rows[:, SUM] / observed_seconds(stack, now)
    return rows
