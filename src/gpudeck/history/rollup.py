"""An hour summed up: quarter hours of each GPU, and the host's and the fleet's share, which can be added and taken out.

A mean is never kept by itself: a sum of value x seconds and the seconds are, so that what nobody observed weighs
nothing. The way on: Hour → `quarters` → Quarters (`rolls`) → `hour_totals`, `quarter_totals` → Totals (`sums`; many at
once: `stacks`).
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history.frame import HOST
from gpudeck.history.hour import QUARTER, SECONDS, Flags, Floats, Hour
from gpudeck.history.rolls import Quarters, Roll, decode, encode, join, nothing, stack
from gpudeck.history.sample import STATES
from gpudeck.history.sums import (
    UNKNOWN,
    Totals,
    add,
    decode_totals,
    encode_totals,
    extend,
    subtract,
    which_sum,
)

__all__ = [
    "Quarters",
    "Roll",
    "Totals",
    "add",
    "decode",
    "decode_totals",
    "encode",
    "encode_totals",
    "extend",
    "hour_totals",
    "join",
    "quarter_totals",
    "quarters",
    "subtract",
]

_COUNT: Final = SECONDS // QUARTER
_AT_ONCE: Final = 1 << 18
"""Values that are worked on together: much fewer would cost more calls, more would not fit into the caches."""


class _Beats:
    """The samples of an hour by quarter hour. A sample's seconds count where it falls."""

    def __init__(self, hour: Hour) -> None:
        number = np.clip((hour.times - hour.start) // QUARTER, 0, _COUNT - 1).astype(np.int64)
        self.seconds: Floats = np.zeros((len(number), _COUNT))
        """(samples, quarter hours): what each sample covers, in its own quarter hour."""
        self.seconds[np.arange(len(number)), number] = hour.covered
        self.all_seconds: Floats = self.seconds.sum(axis=0)
        self.there: NDArray[np.int64] = np.unique(number)
        self.first: NDArray[np.int64] = np.searchsorted(number, self.there)
        self.last: NDArray[np.int64] = np.searchsorted(number, self.there, side="right") - 1

    def repeat(self, values: Floats) -> Roll:
        """As `roll` of rows that each have the same value in all samples."""
        seconds = np.repeat(self.all_seconds[None], len(values), axis=0)
        same = np.where(seconds > 0, values[:, None], np.nan)
        return Roll(values[:, None] * seconds, seconds, same, same, same)

    def roll(self, values: Floats) -> Roll:
        """Of (rows, samples)."""
        is_known = ~np.isnan(values)
        if is_known.all():
            seconds = np.repeat(self.all_seconds[None], len(values), axis=0)
            sums = values @ self.seconds
        else:
            seconds = is_known.astype(np.float64) @ self.seconds
            sums = np.where(is_known, values, 0.0) @ self.seconds
        is_seen = seconds > 0
        low, high, last = (np.where(is_seen, found, np.nan) for found in self._extremes(values, is_known))
        return Roll(sums, seconds, low, high, last)

    def _extremes(self, values: Floats, is_known: Flags) -> tuple[Floats, Floats, Floats]:
        low, high, last = (np.full((len(values), _COUNT), np.nan) for _ in range(3))
        if values.size:
            low[:, self.there] = np.fmin.reduceat(values, self.first, axis=1)
            high[:, self.there] = np.fmax.reduceat(values, self.first, axis=1)
            last[:, self.there] = values[:, self.last]
            self._look_back(values, is_known, last)
        return low, high, last

    def _look_back(self, values: Floats, is_known: Flags, last: Floats) -> None:
        """Where a quarter hour ends with unknowns, its last value is the one before them."""
        for number, first, end in zip(self.there, self.first, self.last + 1, strict=True):
            rows = np.flatnonzero(np.isnan(last[:, number]))
            if len(rows):
                back = is_known[rows, first:end][:, ::-1].argmax(axis=1)
                last[rows, number] = values[rows, end - 1 - back]


def quarters(hour: Hour) -> Quarters:
    """The four quarter hours of an hour. A metric that nobody knew is there, with no seconds."""
    beats = _Beats(hour)
    rows = len(hour.gpus)
    states = (hour.states == np.arange(len(STATES))[:, None, None]).astype(np.float64) @ beats.seconds
    metrics = _roll_all(beats, hour.metrics, rows)
    host = _roll_all(beats, {name: values.reshape(1, -1) for name, values in hour.host.items()}, 1)
    return Quarters(hour.start, _COUNT, list(hour.gpus), metrics, states, host)


def _roll_all(beats: _Beats, metrics: Mapping[str, Floats], rows: int) -> dict[str, Roll]:
    """All at once, as far as they fit: a call of numpy costs more than to work on one GPU's hour. Most metrics are the
    same number all the time, and need not be looked through."""
    values = {name: table[0, 0] for name, table in metrics.items() if table.size and _is_settled(table)}
    # Of an unknown one there is as little as of one that was never observed.
    found = {name: nothing((rows, _COUNT)) for name, value in values.items() if np.isnan(value)}
    settled = [name for name in values if name not in found]
    found |= _split(beats.repeat(np.repeat([values[name] for name in settled], rows)), settled, rows)
    others = [name for name in metrics if name not in values]
    each = max(1, _AT_ONCE // max(1, rows * len(beats.seconds)))
    for place in range(0, len(others), each):
        some = others[place : place + each]
        found |= _split(beats.roll(np.concatenate([metrics[name] for name in some])), some, rows)
    return {name: found[name] for name in metrics}


def _is_settled(table: Floats) -> bool:
    """Whether it has one value only, or none at all."""
    first = table[0, 0]
    return bool((table == first).all() if first == first else np.isnan(table).all())  # noqa: PLR0124 - NaN is not itself


def _split(roll: Roll, names: list[str], rows: int) -> dict[str, Roll]:
    """So many rows each."""
    spans = [slice(place * rows, (place + 1) * rows) for place in range(len(names))]
    return {
        name: Roll(roll.sum[mine], roll.seconds[mine], roll.low[mine], roll.high[mine], roll.last[mine])
        for name, mine in zip(names, spans, strict=True)
    }


def hour_totals(part: Quarters, place: int = 0) -> Totals:
    """Four quarter hours of a host as one step; `place` is which hour of `part`."""
    span = slice(place * _COUNT, (place + 1) * _COUNT)
    names, tables = _tables(part, span, as_one=True)
    start = part.start + place * SECONDS
    return Totals(start, SECONDS, names, tables[0], part.states[:, :, span].sum(axis=(1, 2)))


def quarter_totals(part: Quarters) -> list[Totals]:
    """Each quarter hour in which anything was observed, of the GPUs or of the host."""
    names, tables = _tables(part, slice(None), as_one=False)
    states = part.states.sum(axis=1)
    return [
        Totals(part.start + QUARTER * number, QUARTER, names, table, states[:, number])
        for number, table in enumerate(tables)
        if table[:, 1].any() or states[:, number].any()
    ]


def _tables(part: Quarters, span: slice, *, as_one: bool) -> tuple[tuple[str, ...], Floats]:
    """(steps, names, columns of Totals)."""
    names = (*part.metrics, *(HOST + name for name in part.host))
    is_sum = which_sum(names)
    of_gpus, of_host = is_sum[: len(part.metrics)], is_sum[len(part.metrics) :]
    tables = [
        _table(list(rolls.values()), flags, span, as_one=as_one)
        for rolls, flags in ((part.metrics, of_gpus), (part.host, of_host))
        if rolls
    ]
    if not tables:
        return names, np.empty((1 if as_one else part.count, 0, len(UNKNOWN)))
    return names, np.concatenate(tables, axis=1)


def _table(rolls: list[Roll], is_sum: Flags, span: slice, *, as_one: bool) -> Floats:
    """From (metrics, GPUs, quarter hours) to (steps, metrics, columns)."""
    sums, seconds, low, high = (stack(rolls, kind, span) for kind in ("sum", "seconds", "low", "high"))
    if as_one:
        sums, seconds = sums.sum(axis=2, keepdims=True), seconds.sum(axis=2, keepdims=True)
        low, high = np.fmin.reduce(low, axis=2, keepdims=True), np.fmax.reduce(high, axis=2, keepdims=True)
    is_seen = seconds > 0
    means = np.divide(sums, seconds, out=np.zeros(sums.shape), where=is_seen)
    is_sum = is_sum[:, None]
    table = np.stack(
        [
            sums.sum(axis=1),
            seconds.sum(axis=1),
            np.where(is_sum, np.nansum(low, axis=1), np.fmin.reduce(low, axis=1, initial=np.nan)),
            np.where(is_sum, np.nansum(high, axis=1), np.fmax.reduce(high, axis=1, initial=np.nan)),
            means.sum(axis=1),
        ],
        axis=-1,
    )
    table[~is_seen.any(axis=1)] = UNKNOWN
    return np.swapaxes(table, 0, 1)
