"""What a host's hour, or the fleet's quarter hour, comes to: one line a metric, and the GPUs' time in each state.

Totals are added up over hosts, and what a host had added is taken out again when late samples change its hour. Their
bytes are read by the thousand for a single metric, so nothing is deflated and each line is at a place that is known:

    `HEAD`       version, start, step, how many different seconds there are
    states       the seconds in each
    seconds      those that metrics have: nearly all have the same ones
    bits         a bit a name of the layout: whether anything is known
    lines        `_LINE` for each that is known: sum, total, low, high, which seconds
"""

import struct
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.codec import Damaged
from gpudeck.history.frame import HOST
from gpudeck.history.hour import Flags, Floats
from gpudeck.history.sample import STATES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup

SUM, SECONDS, LOW, HIGH, TOTAL = range(5)
"""The columns of a table."""
UNKNOWN: Final = (0.0, 0.0, np.nan, np.nan, np.nan)
"""The line of a metric that nobody has observed."""

VERSION: Final = 1
HEAD: Final = struct.Struct("<BqIH")
_STATES: Final = 8 * len(STATES)
_LINE: Final = struct.Struct("<ddffH")
LINES: Final = np.dtype([("sum", "<f8"), ("total", "<f8"), ("low", "<f4"), ("high", "<f4"), ("which", "<u2")])
_NO_TIME: Final = 1e-6
"""Seconds. What is left when as much was taken out as was put in is not always exactly 0."""


class Totals(Struct):
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


def add(one: Totals, other: Totals) -> Totals:
    """Both together; start and step are those of `one`. They need not have the same names."""
    names, mine, its = _align(one, other)
    table = mine + its
    table[:, TOTAL] = _sum_known(mine[:, TOTAL], its[:, TOTAL])
    is_sum = which_sum(names)
    for column, pick in ((LOW, np.fmin), (HIGH, np.fmax)):
        low_or_high = mine[:, column], its[:, column]
        table[:, column] = np.where(is_sum, _sum_known(*low_or_high), pick(*low_or_high))
    return Totals(one.start, one.seconds_per_step, names, table, one.states + other.states)


def extend(one: Totals, other: Totals) -> Totals:
    """Of the same devices at other moments of the same step: what they come to together is the mean of both, weighted
    by their seconds, and not the sum."""
    whole = add(one, other)
    _, mine, its = _align(one, other)
    seconds = whole.table[:, SECONDS]
    weighted = np.nan_to_num(mine[:, TOTAL]) * mine[:, SECONDS] + np.nan_to_num(its[:, TOTAL]) * its[:, SECONDS]
    whole.table[:, TOTAL] = np.divide(weighted, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    whole.table[:, LOW] = np.fmin(mine[:, LOW], its[:, LOW])
    whole.table[:, HIGH] = np.fmax(mine[:, HIGH], its[:, HIGH])
    return whole


def subtract(one: Totals, other: Totals) -> Totals:
    """`one` without `other`, which was added to it. Lows and highs of single GPUs stay: nobody knows the others."""
    names, mine, its = _align(one, other)
    less = np.nan_to_num(its)
    less[~which_sum(names), LOW : HIGH + 1] = 0.0
    table = mine - less
    table[table[:, SECONDS] < _NO_TIME] = UNKNOWN
    states = one.states - other.states
    return Totals(one.start, one.seconds_per_step, names, table, np.where(states < _NO_TIME, 0.0, states))


@lru_cache(maxsize=64)
def which_sum(names: tuple[str, ...]) -> Flags:
    """Which of those the catalog adds up over devices."""
    return np.array([_is_sum(name) for name in names], dtype=np.bool_)


def _is_sum(name: str) -> bool:
    metric = GPU_METRICS.get(name) or HOST_METRICS.get(name.removeprefix(HOST))
    return metric is not None and metric.rollup is Rollup.SUM


def _align(one: Totals, other: Totals) -> tuple[tuple[str, ...], Floats, Floats]:
    if one.names == other.names:
        return one.names, one.table, other.table
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    return names, spread(one, names), spread(other, names)


def spread(totals: Totals, names: tuple[str, ...]) -> Floats:
    """Its table with lines for these names, which have all of its own among them."""
    table = np.tile(np.array(UNKNOWN), (len(names), 1))
    places = {name: place for place, name in enumerate(names)}
    table[[places[name] for name in totals.names]] = totals.table
    return table


def _sum_known(one: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(one), other, one + np.nan_to_num(other))


def encode_totals(totals: Totals, layout: tuple[str, ...]) -> bytes:
    """`layout` are the names in the order that `decode_totals` will be told; it has all of the totals' own."""
    table = totals.table if totals.names == layout else spread(totals, layout)
    is_known = table[:, SECONDS] > 0
    known = table[is_known]
    seconds, which = np.unique(known[:, SECONDS], return_inverse=True)
    lines: NDArray[Any] = np.empty(len(known), dtype=LINES)
    lines["sum"], lines["total"], lines["which"] = known[:, SUM], known[:, TOTAL], which
    lines["low"], lines["high"] = known[:, LOW], known[:, HIGH]
    head = HEAD.pack(VERSION, totals.start, totals.seconds_per_step, len(seconds))
    times = np.concatenate([totals.states, seconds]).astype("<f8")
    return head + times.tobytes() + np.packbits(is_known, bitorder="little").tobytes() + lines.tobytes()


def decode_totals(body: bytes, layout: tuple[str, ...], names: Collection[str] | None = None) -> Totals:
    """Only `names` (None: all), in the order of the layout; those that the layout does not have are left out.

    Low and high have the seven digits of a float32. Raises Damaged.
    """
    wanted, places = _find_places(layout, None if names is None else tuple(names))
    try:
        version, start, step, count = HEAD.unpack_from(body)
        if version != VERSION:
            raise Damaged(f"version {version} of totals; this release reads version {VERSION}")
        at = HEAD.size + _STATES + 8 * count
        first = at + (len(layout) + 7) // 8
        bits = int.from_bytes(body[at:first], "little")
        if len(body) != first + bits.bit_count() * _LINE.size:
            raise Damaged(f"totals of {len(body)} bytes do not fit a layout of {len(layout)} names")
        lines = [_read_line(body, place, bits, first, count) for place in places]
    except struct.error as error:
        raise Damaged(f"the bytes of totals are damaged: {error}") from error
    table = np.array(lines) if lines else np.empty((0, 5))
    return Totals(start, step, wanted, table, np.frombuffer(body, "<f8", len(STATES), HEAD.size))


def _read_line(body: bytes, place: int, bits: int, first: int, count: int) -> tuple[float, ...]:
    if not bits >> place & 1:
        return UNKNOWN
    before = (bits & (1 << place) - 1).bit_count()
    line_sum, total, low, high, which = _LINE.unpack_from(body, first + before * _LINE.size)
    if which >= count:
        raise Damaged(f"seconds number {which} of {count}")
    return line_sum, _read_seconds(body, HEAD.size + _STATES + 8 * which)[0], low, high, total


_read_seconds: Final[Callable[[bytes, int], tuple[float]]] = struct.Struct("<d").unpack_from


@lru_cache(maxsize=256)
def _find_places(layout: tuple[str, ...], names: tuple[str, ...] | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    wanted = tuple(name for name in layout if names is None or name in names)
    return wanted, tuple(layout.index(name) for name in wanted)
