"""Totals of a host's hour, or of the fleet's quarter hour: one line per metric, and the GPUs' seconds in each state.

Totals are added over hosts, and subtracted again when late samples change a host's hour. Questions over weeks read
thousands of them for one metric (`decode_stack`), so their bytes are not deflated and each line has a known place:

    `HEAD`       version, start, step, how many different seconds there are
    states       the seconds in each
    seconds      those that metrics have: nearly all have the same ones
    bits         a bit a name of the layout: whether anything is known
    lines        `LINES` for each that is known: sum, total, low, high, which seconds
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.codec import Damaged, Flags, Floats
from gpudeck.history.sample import HOST_PREFIX, OLDEST_STATES, STATES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup

SUM, SECONDS, LOW, HIGH, TOTAL = range(5)
"""The columns of a table."""
UNKNOWN: Final = (0.0, 0.0, np.nan, np.nan, np.nan)
"""The line of a metric without readings."""

TOTALS_VERSION: Final = 1 + len(STATES) - OLDEST_STATES
"""Another one for each state that was added to sample.STATES."""
HEAD: Final = struct.Struct("<BqIH")
LINES: Final = np.dtype([("sum", "<f8"), ("total", "<f8"), ("low", "<f4"), ("high", "<f4"), ("which", "<u2")])
_NO_TIME: Final = 1e-6
"""Seconds. What is left when as much was taken out as was put in is not always exactly 0."""
FLEET: Final = 0
"""Stands for the host where the totals are of all hosts together."""
TotalsRow = tuple[int, int, int, bytes]
"""Of a step: the host, the start, the number of the layout, the bytes."""

UTILIZATION: Final = "utilization_percent"

_Places = NDArray[np.int64]
_HEADS: Final = np.dtype([("version", "u1"), ("start", "<i8"), ("step", "<u4"), ("count", "<u2")])
_SECONDS: Final = np.dtype("<f8")


class StepTotals(Struct):
    """`names` are GPUs' metrics, and the host's with `host_` before them; a line of `table` each.

    Its columns are sum, seconds, low, high and total. Sum is value x seconds of all GPUs. Total is what they come to
    together: the sum of each one's mean. Low and high are of all of them together where the catalog says SUM, and of
    any one of them elsewhere. `states` is GPU-seconds in each of sample.STATES.
    """

    start: int
    seconds_per_step: int
    names: tuple[str, ...]
    table: Floats
    states: Floats


def utilization_of(totals: StepTotals) -> tuple[float, float]:
    """The sum of utilization × seconds, and the seconds; 0 of it was not measured."""
    if UTILIZATION not in totals.names:
        return 0.0, 0.0
    line = totals.table[totals.names.index(UTILIZATION)]
    return float(line[SUM]), float(line[SECONDS])


def add_totals(one: StepTotals, other: StepTotals) -> StepTotals:
    """Both together; start and step are those of `one`. They need not have the same names."""
    names, mine, its = _align(one, other)
    table = mine + its
    table[:, TOTAL] = sum_known(mine[:, TOTAL], its[:, TOTAL])
    is_sum = which_sum(names)
    for column, pick in ((LOW, np.fmin), (HIGH, np.fmax)):
        low_or_high = mine[:, column], its[:, column]
        table[:, column] = np.where(is_sum, sum_known(*low_or_high), pick(*low_or_high))
    return StepTotals(one.start, one.seconds_per_step, names, table, one.states + other.states)


def sum_totals(parts: Sequence[StepTotals]) -> StepTotals:
    """As `add_totals`, of many at once; at least one."""
    names = tuple(dict.fromkeys(name for one in parts for name in one.names))
    tables = np.array([one.table if one.names == names else spread(one, names) for one in parts])
    sums = np.where(np.isnan(tables).all(axis=0), np.nan, np.nansum(tables, axis=0))
    is_sum = which_sum(names)
    for column, pick in ((LOW, np.fmin), (HIGH, np.fmax)):
        sums[:, column] = np.where(is_sum, sums[:, column], pick.reduce(tables[:, :, column], axis=0))
    states = np.sum([one.states for one in parts], axis=0)
    return StepTotals(parts[0].start, parts[0].seconds_per_step, names, sums, states)


def extend_totals(one: StepTotals, other: StepTotals) -> StepTotals:
    """Of the same devices at other moments of the same step: what they come to together is the mean of both, weighted
    by their seconds, and not the sum."""
    whole = add_totals(one, other)
    _, mine, its = _align(one, other)
    seconds = whole.table[:, SECONDS]
    weighted = np.nan_to_num(mine[:, TOTAL]) * mine[:, SECONDS] + np.nan_to_num(its[:, TOTAL]) * its[:, SECONDS]
    whole.table[:, TOTAL] = np.divide(weighted, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    whole.table[:, LOW] = np.fmin(mine[:, LOW], its[:, LOW])
    whole.table[:, HIGH] = np.fmax(mine[:, HIGH], its[:, HIGH])
    return whole


def subtract_totals(one: StepTotals, other: StepTotals) -> StepTotals:
    """`one` without `other`, which was added to it. Lows and highs of single GPUs stay."""
    names, mine, its = _align(one, other)
    less = np.nan_to_num(its)
    less[~which_sum(names), LOW : HIGH + 1] = 0.0
    table = mine - less
    table[table[:, SECONDS] < _NO_TIME] = UNKNOWN
    states = one.states - other.states
    return StepTotals(one.start, one.seconds_per_step, names, table, np.where(states < _NO_TIME, 0.0, states))


@lru_cache(maxsize=64)
def which_sum(names: tuple[str, ...]) -> Flags:
    metrics = (GPU_METRICS.get(name) or HOST_METRICS.get(name.removeprefix(HOST_PREFIX)) for name in names)
    return np.array([metric is not None and metric.rollup is Rollup.SUM for metric in metrics], dtype=np.bool_)


def _align(one: StepTotals, other: StepTotals) -> tuple[tuple[str, ...], Floats, Floats]:
    if one.names == other.names:
        return one.names, one.table, other.table
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    return names, spread(one, names), spread(other, names)


def spread(totals: StepTotals, names: tuple[str, ...]) -> Floats:
    table = np.tile(np.array(UNKNOWN), (len(names), 1))
    places = {name: place for place, name in enumerate(totals.names)}
    for at, name in enumerate(names):
        if name in places:
            table[at] = totals.table[places[name]]
    return table


def sum_known(one: Floats, other: Floats) -> Floats:
    """NaN only where neither is known."""
    return np.where(np.isnan(one), other, one + np.nan_to_num(other))


def encode_totals(totals: StepTotals, layout: tuple[str, ...]) -> bytes:
    """`layout` are the names in the order that `decode_totals` gets; it has all of the totals' own."""
    table = totals.table if totals.names == layout else spread(totals, layout)
    is_known = table[:, SECONDS] > 0
    known = table[is_known]
    seconds, which = np.unique(known[:, SECONDS], return_inverse=True)
    lines: NDArray[Any] = np.empty(len(known), dtype=LINES)
    lines["sum"], lines["total"], lines["which"] = known[:, SUM], known[:, TOTAL], which
    lines["low"], lines["high"] = known[:, LOW], known[:, HIGH]
    head = HEAD.pack(TOTALS_VERSION, totals.start, totals.seconds_per_step, len(seconds))
    times = np.concatenate([totals.states, seconds]).astype("<f8")
    return head + times.tobytes() + np.packbits(is_known, bitorder="little").tobytes() + lines.tobytes()


def decode_totals(body: bytes, layout: tuple[str, ...], names: Collection[str] | None = None) -> StepTotals:
    """Only `names` (None: all), in the order of the layout; those that the layout does not have are left out. Low and
    high have the seven digits of a float32. Raises Damaged."""
    bodies = _Bodies([body], len(layout))
    places = [place for place, name in enumerate(layout) if names is None or name in names]
    table = np.array([bodies.lines(place)[0] for place in places]).reshape(-1, len(UNKNOWN))
    _, start, step, _ = HEAD.unpack_from(body)
    return StepTotals(start, step, tuple(layout[place] for place in places), table, bodies.states()[0])


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
    """Those of the same names and steps, at least one, as one."""
    first, *others = stacks
    if not others:
        return first
    columns = ("hosts", "starts", "tables", "states")
    joined = (np.concatenate([getattr(one, name) for one in stacks]) for name in columns)
    return TotalsStack(first.seconds_per_step, first.names, *joined)


def decode_stack(
    rows: Sequence[TotalsRow], layouts: Mapping[int, tuple[str, ...]], names: Collection[str], seconds_per_step: int
) -> TotalsStack:
    """As `sums.decode_totals` of each row. Raises Damaged."""
    hosts, starts, numbers = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(3))
    tables = np.tile(np.array(UNKNOWN), (len(rows), len(names), 1))
    states = np.zeros((len(rows), len(STATES)))
    for number in set(numbers.tolist()):
        at, layout = np.flatnonzero(numbers == number), layouts[number]
        bodies = _Bodies([rows[place][3] for place in at.tolist()], len(layout))
        states[at] = bodies.states()
        for place, name in enumerate(names):
            if name in layout:
                tables[at, place] = bodies.lines(layout.index(name))
    return TotalsStack(seconds_per_step, tuple(names), hosts, starts, tables, states)


class _Bodies:
    """The bytes of many totals of the same layout, one after another, with the places of what is in them."""

    def __init__(self, bodies: Sequence[bytes], names: int) -> None:
        sizes = np.array([len(body) for body in bodies], dtype=np.int64)
        if sizes.min() < HEAD.size:
            raise Damaged(f"totals of {sizes.min()} bytes")
        self._bytes = np.frombuffer(b"".join(bodies), dtype=np.uint8)
        self._begins = np.cumsum(sizes) - sizes
        head = self._read(self._begins, _HEADS)
        version = head["version"].astype(np.int64)
        if not ((version >= 1) & (version <= TOTALS_VERSION)).all():
            raise Damaged(f"version {version.max()} of totals; this release reads version {TOTALS_VERSION}")
        self._states = version - 1 + OLDEST_STATES
        self._count = head["count"].astype(np.int64)
        self._seconds = self._begins + HEAD.size + _SECONDS.itemsize * self._states
        at, width = self._seconds + _SECONDS.itemsize * self._count, (names + 7) // 8
        self._first = at + width
        ends = self._begins + sizes
        if (self._first > ends).any():
            raise Damaged(f"totals of {sizes.min()} bytes are too short for a layout of {names} names")
        self._known = np.unpackbits(self._bytes[at[:, None] + np.arange(width)], axis=1, bitorder="little")
        if (self._first + LINES.itemsize * self._known.sum(axis=1, dtype=np.int64) != ends).any():
            raise Damaged(f"totals do not fit a layout of {names} names")

    def states(self) -> Floats:
        """In those that an older release did not know was no GPU."""
        states = np.zeros((len(self._begins), len(STATES)))
        for place in range(len(STATES)):
            is_known = place < self._states
            begins = self._begins[is_known] + HEAD.size + _SECONDS.itemsize * place
            states[is_known, place] = self._read(begins, _SECONDS)
        return states

    def lines(self, place: int) -> Floats:
        lines = np.tile(np.array(UNKNOWN), (len(self._begins), 1))
        is_known = self._known[:, place] == 1
        before = self._known[is_known, :place].sum(axis=1, dtype=np.int64)
        found = self._read(self._first[is_known] + LINES.itemsize * before, LINES)
        which = found["which"].astype(np.int64)
        if (which >= self._count[is_known]).any():
            raise Damaged(f"seconds number {which.max()} of {self._count.max()}")
        seconds = self._read(self._seconds[is_known] + _SECONDS.itemsize * which, _SECONDS)
        lines[is_known] = np.column_stack([found["sum"], seconds, found["low"], found["high"], found["total"]])
        return lines

    def _read(self, places: _Places, kind: np.dtype[Any]) -> NDArray[Any]:
        table = self._bytes[places[:, None] + np.arange(kind.itemsize)]
        return np.asarray(table.view(kind.base).reshape(len(places), *kind.shape))
