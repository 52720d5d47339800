"""The fleet's quarter hours and the hosts' hours, which are kept as sums over GPUs, put into the steps of an answer."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.folds import Whole
from gpudeck.history.hour import ABSENT, Floats
from gpudeck.history.measures import Measure
from gpudeck.history.rollup import Totals

CAPACITY: Final = "memory_total_bytes"
"""Which every GPU has and which hardly changes: it tells for how long the GPUs were observed."""
_UNKNOWN: Final = np.array((0.0, 0.0, np.nan, np.nan, np.nan))
_SUM, _SECONDS, _LOW, _HIGH, _TOTAL = range(5)


class Table(Struct):
    """A row a step of the store, columns as of Totals: sum, seconds, low, high, total."""

    times: Floats
    rows: Floats

    def fold(self, at: NDArray[np.int64], count: int) -> Whole:
        """`at` is the place among `count` to which each row belongs. A total is the mean of those it is made of."""
        rows = self.rows
        is_known = rows[:, _SECONDS] > 0
        at, rows = at[is_known], rows[is_known]
        sums, seconds, totals = (
            np.bincount(at, rows[:, column], count).astype(np.float64) for column in (_SUM, _SECONDS, _TOTAL)
        )
        made_of = np.bincount(at, minlength=count)
        lows, highs = np.full(count, np.nan), np.full(count, np.nan)
        np.fmin.at(lows, at, rows[:, _LOW])
        np.fmax.at(highs, at, rows[:, _HIGH])
        means = np.divide(totals, made_of, out=np.full(count, np.nan), where=made_of > 0)
        return Whole(sums, seconds, lows, highs, means)


def wanted_for(measure: Measure) -> tuple[str, ...]:
    return measure.wanted if measure.state is None else (CAPACITY,)


def read_table(totals: Sequence[Totals], measure: Measure, now: float) -> Table:
    times = np.array([total.start for total in totals], dtype=np.float64)
    if measure.state is None:
        return Table(times, _pick(totals, measure.name))
    return Table(times, _count_states(totals, measure.state, times, now))


def observed_seconds(totals: Sequence[Totals], now: float) -> Floats:
    """For how long the GPUs were observed on average in each of these steps.

    A sum of capacity × seconds over a sum of capacities. Where no GPU tells its memory, all of the step.
    """
    capacity = _pick(totals, CAPACITY)
    starts = np.array([total.start for total in totals], dtype=np.float64)
    lengths = np.array([total.seconds_per_step for total in totals], dtype=np.float64)
    lengths = np.clip(now - starts, 1.0, lengths)
    is_told = np.nan_to_num(capacity[:, _TOTAL]) > 0
    return np.divide(capacity[:, _SUM], capacity[:, _TOTAL], out=lengths, where=is_told)


def _count_states(totals: Sequence[Totals], state: int, times: Floats, now: float) -> Floats:
    """How many GPUs were in that state, as `total`. Between which numbers is not kept."""
    if not totals:
        return np.empty((0, 5))
    states = np.array([total.states for total in totals])
    rows = np.full((len(totals), 5), np.nan)
    rows[:, _SUM] = states[:, state]
    rows[:, _SECONDS] = states[:, ABSENT + 1 :].sum(axis=1)
    rows[:, _TOTAL] = rows[:, _SUM] / observed_seconds(totals, now)
    return rows


def _pick(totals: Sequence[Totals], name: str) -> Floats:
    rows = [total.table[total.names.index(name)] if name in total.names else _UNKNOWN for total in totals]
    return np.array(rows, dtype=np.float64).reshape(len(totals), 5)
