"""Totals of a host's hour, or of the fleet's quarter hour: one line per metric, and the GPUs' seconds in each state.

Totals are added over hosts, and subtracted again when late samples change a host's hour. Questions over weeks read
thousands of them for one metric: so their bytes are records of a fixed size, which numpy reads all at once.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.codec import Damaged, Flags, Floats
from gpudeck.history.sample import HOST_PREFIX, STATES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup

SUM, SECONDS, LOW, HIGH, TOTAL = range(5)
"""The columns of a table."""
UNKNOWN: Final = (0.0, 0.0, np.nan, np.nan, np.nan)
"""The line of a metric without readings."""

_LINE: Final = np.dtype([("sum", "<f8"), ("seconds", "<f8"), ("low", "<f4"), ("high", "<f4"), ("total", "<f8")])
"""In the order of the columns."""
_NO_TIME: Final = 1e-6
"""Seconds. Tolerance for rounding errors after subtraction."""
FLEET: Final = 0
"""Stands for the host where the totals are of all hosts together."""
TotalsRow = tuple[int, int, int, bytes]
"""Of a step: the host, the start, the number of the layout, the bytes."""

UTILIZATION: Final = "utilization_percent"

_Places = NDArray[np.int64]


class StepTotals(Struct):
    """`names` are GPUs' metrics, and the host's with `host_` before them; a line of `table` each.

    Its columns are `sum`, `seconds`, `low`, `high` and `total`. `sum` is value x seconds of all GPUs; `total` is the
    sum of the per-device means. For metrics with the rollup SUM in the catalog, `low` and `high` are of that sum;
    otherwise of single devices. `states` has the GPU-seconds in each of sample.STATES.
    """

    start: int
    seconds_per_step: int
    names: tuple[str, ...]
    table: Floats
    states: Floats


def utilization_of(totals: StepTotals) -> tuple[float, float]:
    """The sum of utilization × seconds, and the seconds in which it was measured."""
    if UTILIZATION not in totals.names:
        return 0.0, 0.0
    line = totals.table[totals.names.index(UTILIZATION)]
    return float(line[SUM]), float(line[SECONDS])


def sum_totals(parts: Sequence[StepTotals]) -> StepTotals:
    """Adds totals of different hosts, at least one. Start and step are those of the first. The names may differ."""
    names = tuple(dict.fromkeys(name for one in parts for name in one.names))
    tables = np.array([one.table if one.names == names else spread(one, names) for one in parts])
    sums = np.where(np.isnan(tables).all(axis=0), np.nan, np.nansum(tables, axis=0))
    is_sum = which_sum(names)
    for column, pick in ((LOW, np.fmin), (HIGH, np.fmax)):
        sums[:, column] = np.where(is_sum, sums[:, column], pick.reduce(tables[:, :, column], axis=0))
    states = np.sum([one.states for one in parts], axis=0)
    return StepTotals(parts[0].start, parts[0].seconds_per_step, names, sums, states)


def extend_totals(one: StepTotals, other: StepTotals) -> StepTotals:
    """Adds totals of the same devices from other moments of the same step: the total is the mean of both, weighted by
    seconds, and not the sum."""
    whole = sum_totals([one, other])
    _, mine, its = _align(one, other)
    seconds = whole.table[:, SECONDS]
    weighted = np.nan_to_num(mine[:, TOTAL]) * mine[:, SECONDS] + np.nan_to_num(its[:, TOTAL]) * its[:, SECONDS]
    whole.table[:, TOTAL] = np.divide(weighted, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    whole.table[:, LOW] = np.fmin(mine[:, LOW], its[:, LOW])
    whole.table[:, HIGH] = np.fmax(mine[:, HIGH], its[:, HIGH])
    return whole


def subtract_totals(one: StepTotals, other: StepTotals) -> StepTotals:
    """`one` without `other`, which had been added to it. The lows and highs of single GPUs stay."""
    names, mine, its = _align(one, other)
    less = np.nan_to_num(its)
    less[~which_sum(names), LOW : HIGH + 1] = 0.0
    table = mine - less
    table[table[:, SECONDS] < _NO_TIME] = UNKNOWN
    states = one.states - other.states
    return StepTotals(one.start, one.seconds_per_step, names, table, np.where(states < _NO_TIME, 0.0, states))


@lru_cache(maxsize=64)
def which_sum(names: tuple[str, ...]) -> Flags:
    """For each name, whether the metric has the rollup SUM. False for unknown metrics."""
    metrics = (GPU_METRICS.get(name) or HOST_METRICS.get(name.removeprefix(HOST_PREFIX)) for name in names)
    return np.array([metric is not None and metric.rollup is Rollup.SUM for metric in metrics], dtype=np.bool_)


def _align(one: StepTotals, other: StepTotals) -> tuple[tuple[str, ...], Floats, Floats]:
    if one.names == other.names:
        return one.names, one.table, other.table
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    return names, spread(one, names), spread(other, names)


def spread(totals: StepTotals, names: tuple[str, ...]) -> Floats:
    """The table of `totals` with a line for each of `names`, in that order. Missing metrics are UNKNOWN."""
    table = np.tile(np.array(UNKNOWN), (len(names), 1))
    places = {name: place for place, name in enumerate(totals.names)}
    for at, name in enumerate(names):
        if name in places:
            table[at] = totals.table[places[name]]
    return table


def sum_ignoring_nan(one: Floats, other: Floats) -> Floats:
    """The elementwise sum. NaN counts as 0; the sum is NaN only if both values are."""
    return np.where(np.isnan(one), other, one + np.nan_to_num(other))


def encode_totals(totals: StepTotals) -> bytes:
    """Low and high keep the seven digits of a float32. Start, step and names are not among the bytes."""
    record = np.empty((), _record_of(len(totals.names)))
    record["states"] = totals.states
    for column, name in enumerate(_LINE.names or ()):
        record["lines"][name] = totals.table[:, column]
    return record.tobytes()


def decode_totals(row: TotalsRow, names: tuple[str, ...], seconds_per_step: int) -> StepTotals:
    """`names` are those of its layout. Raises Damaged."""
    records = _read_records([row[3]], len(names))
    return StepTotals(row[1], seconds_per_step, names, _read_lines(records["lines"][0]), records["states"][0].copy())


@cache
def _record_of(names: int) -> np.dtype[Any]:
    return np.dtype([("states", "<f8", len(STATES)), ("lines", _LINE, names)])


def _read_records(bodies: Sequence[bytes], names: int) -> NDArray[Any]:
    kind = _record_of(names)
    if wrong := [len(body) for body in bodies if len(body) != kind.itemsize]:
        raise Damaged(f"totals of {names} metrics are {wrong[0]} bytes, not {kind.itemsize}")
    return np.frombuffer(b"".join(bodies), kind)


def _read_lines(lines: NDArray[Any]) -> Floats:
    return np.stack([lines[name].astype(np.float64) for name in _LINE.names or ()], axis=-1)


class TotalsStack(Struct):
    """Steps in any order. `tables` is (steps, names, columns of Totals), `states` is (steps, states)."""

    seconds_per_step: int
    names: tuple[str, ...]
    hosts: _Places
    starts: _Places
    tables: Floats
    states: Floats

    def lines(self, name: str) -> Floats:
        if name not in self.names:
            return np.tile(np.array(UNKNOWN), (len(self.starts), 1))
        lines: Floats = self.tables[:, self.names.index(name)]
        return lines

    def only(self, which: Flags) -> "TotalsStack":
        hosts, starts = self.hosts[which], self.starts[which]
        return TotalsStack(self.seconds_per_step, self.names, hosts, starts, self.tables[which], self.states[which])


def stack_totals(
    found: Mapping[tuple[int, int], StepTotals], names: Collection[str], seconds_per_step: int
) -> TotalsStack:
    count, wanted = len(found), tuple(names)
    return TotalsStack(
        seconds_per_step,
        wanted,
        np.array([host for host, _ in found], dtype=np.int64),
        np.array([start for _, start in found], dtype=np.int64),
        np.array([spread(totals, wanted) for totals in found.values()]).reshape(count, len(wanted), len(UNKNOWN)),
        np.array([totals.states for totals in found.values()]).reshape(count, len(STATES)),
    )


def join_stacks(stacks: Sequence[TotalsStack]) -> TotalsStack:
    """Joins stacks with the same names and steps, at least one."""
    first, *others = stacks
    if not others:
        return first
    columns = ("hosts", "starts", "tables", "states")
    joined = (np.concatenate([getattr(one, name) for one in stacks]) for name in columns)
    return TotalsStack(first.seconds_per_step, first.names, *joined)


def decode_stack(
    rows: Sequence[TotalsRow], layouts: Mapping[int, tuple[str, ...]], names: Collection[str], seconds_per_step: int
) -> TotalsStack:
    """As `decode_totals` for each row, but only these metrics. Raises Damaged."""
    hosts, starts, numbers = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(3))
    tables = np.tile(np.array(UNKNOWN), (len(rows), len(names), 1))
    states = np.zeros((len(rows), len(STATES)))
    for number in set(numbers.tolist()):
        at, layout = np.flatnonzero(numbers == number), layouts[number]
        records = _read_records([rows[place][3] for place in at.tolist()], len(layout))
        states[at] = records["states"]
        for place, name in enumerate(names):
            if name in layout:
                tables[at, place] = _read_lines(records["lines"][:, layout.index(name)])
    return TotalsStack(seconds_per_step, tuple(names), hosts, starts, tables, states)
