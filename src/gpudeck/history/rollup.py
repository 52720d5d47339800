"""Roll-ups: an hour's samples as quarter hours of each GPU, which are kept for years, and as totals of host and fleet.

Means are kept as a sum of value × seconds and the seconds, so that unobserved time has no weight. As bytes, all metrics
share a matrix: the minimum of each quarter hour and, above it, maximum, mean and last value.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpudeck.history.codec import (
    Damaged,
    Flags,
    Floats,
    add_checksum,
    encode_matrix,
    find_precision,
    full_precision,
    pack_names,
    read_matrix,
    short_precision,
    split_wanted,
    strip_checksum,
    unpack_names,
)
from gpudeck.history.hour import QUARTER, SECONDS, Hour
from gpudeck.history.sample import HOST_PREFIX, STATES
from gpudeck.history.totals import UNKNOWN, StepTotals, which_sum
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric

QUARTERS_VERSION: Final = 1
_SECOND: Final = 0.01
"""How exact seconds are kept."""
_FINER: Final = 8
"""A mean is kept so many times as exact as a value."""
COUNT: Final = SECONDS // QUARTER
VALUES_AT_ONCE: Final = 1 << 18
"""Values that are worked on together: much fewer would cost more calls, more would not fit into the caches."""


class Roll(Struct):
    """One metric, time along the last axis: (GPUs, quarter hours), or the steps of one device. `sum` is value ×
    seconds; where `seconds` is 0, low, high and last are NaN."""

    sum: Floats
    seconds: Floats
    low: Floats
    high: Floats
    last: Floats


class Quarters(Struct):
    """The four quarter hours from `start` on. `gpus` are keys of the store, one a row. `states` is (states, GPUs,
    quarter hours): for how many seconds each GPU was in each of sample.STATES. `host` has one row."""

    start: int
    gpus: list[int]
    metrics: dict[str, Roll]
    states: Floats
    host: dict[str, Roll] = field(default_factory=dict)


class _Section(Struct, array_like=True, frozen=True):
    """The metrics of the GPUs or of the host. `seconds` has one table per metric and row, `values` one per kind, metric
    and row."""

    names: bytes
    precisions: list[int | float]
    seconds: bytes
    values: bytes


class _PackedQuarters(Struct, array_like=True, frozen=True):
    start: int
    gpus: list[int]
    states: bytes
    metrics: _Section
    host: _Section


_unpack = msgspec.msgpack.Decoder(_PackedQuarters).decode


def encode_quarters(quarters: Quarters) -> bytes:
    """A mean is exact to an eighth of its metric's precision, seconds to a hundredth."""
    states = encode_matrix(quarters.states.reshape(-1, COUNT), _SECOND)
    gpus, host = _pack_section(quarters.metrics, GPU_METRICS), _pack_section(quarters.host, HOST_METRICS)
    packed = _PackedQuarters(quarters.start, quarters.gpus, states, gpus, host)
    return add_checksum(QUARTERS_VERSION, msgspec.msgpack.encode(packed))


def decode_quarters(body: bytes, metrics: Collection[str] | None = None) -> Quarters:
    """Only `metrics` (None: all), the host's with `host_` before their names. Raises Damaged."""
    try:
        packed = _unpack(strip_checksum(QUARTERS_VERSION, body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of quarter hours are damaged: {error}") from error
    rows = len(packed.gpus)
    states = read_matrix(packed.states, len(STATES) * rows, COUNT).reshape(len(STATES), rows, COUNT)
    gpus = _unpack_section(packed.metrics, metrics, "", rows)
    return Quarters(packed.start, packed.gpus, gpus, states, _unpack_section(packed.host, metrics, HOST_PREFIX, 1))


def stack_rolls(rolls: Sequence[Roll], kind: str) -> Floats:
    # np.stack takes five times as long for small arrays.
    table = np.concatenate([getattr(roll, kind) for roll in rolls])
    return table.reshape(len(rolls), -1, table.shape[1])


def unknown_roll(shape: tuple[int, ...]) -> Roll:
    return Roll(np.zeros(shape), np.zeros(shape), *(np.full(shape, np.nan) for _ in range(3)))


def _pack_section(rolls: Mapping[str, Roll], catalog: Mapping[str, Metric]) -> _Section:
    """Leaves out metrics without any known value."""
    rolls = {name: roll for name, roll in rolls.items() if roll.seconds.any()}
    precisions = [find_precision(catalog, name) for name in rolls]
    if not rolls:
        return _Section(pack_names(()), [], b"", b"")
    step = np.array(precisions)[:, None, None]
    tables = (stack_rolls([*rolls.values()], kind) for kind in ("low", "high", "last", "sum", "seconds"))
    low, high, last, sums, seconds = tables
    means = np.divide(sums, seconds, out=np.full(sums.shape, np.nan), where=seconds > 0)
    low = np.rint(low / step)
    above = [np.rint(high / step) - low, (means / step - low) * _FINER, np.rint(last / step) - low]
    values = encode_matrix(np.concatenate([low, *above]).reshape(-1, COUNT), 1.0)
    # Quarter by quarter, because most metrics have the same seconds.
    lengths = encode_matrix(seconds.reshape(-1, COUNT).T, _SECOND)
    shorter = [short_precision(step) for step in precisions]
    return _Section(pack_names(tuple(rolls)), shorter, lengths, values)


def _unpack_section(section: _Section, wanted: Collection[str] | None, prefix: str, rows: int) -> dict[str, Roll]:
    names = unpack_names(section.names)
    if len(names) != len(section.precisions):
        raise Damaged(f"{len(names)} names of metrics, {len(section.precisions)} of what is known about them")
    places = split_wanted(wanted, names, prefix)
    if not places:
        return {}
    all_seconds = read_matrix(section.seconds, COUNT, len(names) * rows).T.reshape(len(names), rows, COUNT)
    all_values = read_matrix(section.values, 4 * len(names) * rows, COUNT).reshape(4, len(names), rows, COUNT)
    found = {}
    for place in places:
        step, seconds = full_precision(section.precisions[place]), all_seconds[place].copy()
        low, high, mean, last = np.where(seconds > 0, all_values[:, place], np.nan)
        sums = np.where(seconds > 0, (low + mean / _FINER) * step * seconds, 0.0)
        found[names[place]] = Roll(sums, seconds, low * step, (low + high) * step, (low + last) * step)
    return found


class _QuarterWeights:
    """The samples of an hour by quarter hour. A sample's seconds count where it falls."""

    def __init__(self, hour: Hour) -> None:
        number = np.clip((hour.times - hour.start) // QUARTER, 0, COUNT - 1).astype(np.int64)
        self._covered: Floats = hour.covered
        self.number: NDArray[np.int64] = number
        self.all_seconds: Floats = np.bincount(number, hour.covered, COUNT).astype(np.float64)
        self.there: NDArray[np.int64] = np.unique(number)
        self.first: NDArray[np.int64] = np.searchsorted(number, self.there)
        self.last: NDArray[np.int64] = np.searchsorted(number, self.there, side="right") - 1

    @cached_property
    def seconds(self) -> Floats:
        seconds = np.zeros((len(self.number), len(self.all_seconds)))
        seconds[np.arange(len(self.number)), self.number] = self._covered
        return seconds

    def add_up(self, values: Floats) -> Floats:
        return values @ self.seconds

    def repeat(self, values: Floats) -> Roll:
        seconds = np.repeat(self.all_seconds[None], len(values), axis=0)
        same = np.where(seconds > 0, values[:, None], np.nan)
        return Roll(values[:, None] * seconds, seconds, same, same, same)

    def roll(self, values: Floats) -> Roll:
        is_known = ~np.isnan(values)
        if is_known.all():
            seconds = np.repeat(self.all_seconds[None], len(values), axis=0)
            sums = self.add_up(values)
        else:
            seconds = self.add_up(is_known.astype(np.float64))
            sums = self.add_up(np.where(is_known, values, 0.0))
        is_seen = seconds > 0
        low, high, last = (np.where(is_seen, found, np.nan) for found in self._extremes(values, is_known))
        return Roll(sums, seconds, low, high, last)

    def _extremes(self, values: Floats, is_known: Flags) -> tuple[Floats, Floats, Floats]:
        low, high, last = (np.full((len(values), len(self.all_seconds)), np.nan) for _ in range(3))
        if values.size:
            low[:, self.there] = np.fmin.reduceat(values, self.first, axis=1)
            high[:, self.there] = np.fmax.reduceat(values, self.first, axis=1)
            last[:, self.there] = values[:, self.last]
            # Where a quarter hour ends with unknowns, its last value is the one before them.
            is_open = np.isnan(last[:, self.there]).any(axis=0)
            for number, first, end in zip(
                self.there[is_open], self.first[is_open], self.last[is_open] + 1, strict=True
            ):
                rows = np.flatnonzero(np.isnan(last[:, number]))
                back = is_known[rows, first:end][:, ::-1].argmax(axis=1)
                last[rows, number] = values[rows, end - 1 - back]
        return low, high, last


def roll_up(hour: Hour) -> Quarters:
    """Metrics without known values are included, with 0 seconds."""
    weights = _QuarterWeights(hour)
    rows = len(hour.gpus)
    states = weights.add_up((hour.states == np.arange(len(STATES))[:, None, None]).astype(np.float64))
    metrics = _roll_all(weights, hour.metrics, rows)
    host = _roll_all(weights, {name: values.reshape(1, -1) for name, values in hour.host.items()}, 1)
    return Quarters(hour.start, list(hour.gpus), metrics, states, host)


def _roll_all(weights: _QuarterWeights, metrics: Mapping[str, Floats], rows: int) -> dict[str, Roll]:
    """Metrics are processed together, as many as fit into the caches: a numpy call costs more than the work on the hour
    of one GPU. Most metrics are constant and take a shortcut."""
    values = {name: table[0, 0] for name, table in metrics.items() if table.size and _is_settled(table)}
    # Of an unknown one there is as little as of one that was never observed.
    shape = rows, len(weights.all_seconds)
    found = {name: unknown_roll(shape) for name, value in values.items() if np.isnan(value)}
    settled = [name for name in values if name not in found]
    found |= _split(weights.repeat(np.repeat([values[name] for name in settled], rows)), settled, rows)
    others = [name for name in metrics if name not in values]
    each = max(1, VALUES_AT_ONCE // max(1, rows * len(weights.number)))
    for place in range(0, len(others), each):
        some = others[place : place + each]
        found |= _split(weights.roll(np.concatenate([metrics[name] for name in some])), some, rows)
    return {name: found[name] for name in metrics}


def _is_settled(table: Floats) -> bool:
    first = table[0, 0]
    return bool((table == first).all() if first == first else np.isnan(table).all())  # noqa: PLR0124 - NaN is not itself


def _split(roll: Roll, names: list[str], rows: int) -> dict[str, Roll]:
    spans = [slice(place * rows, (place + 1) * rows) for place in range(len(names))]
    return {
        name: Roll(roll.sum[mine], roll.seconds[mine], roll.low[mine], roll.high[mine], roll.last[mine])
        for name, mine in zip(names, spans, strict=True)
    }


def hour_totals(part: Quarters) -> StepTotals:
    names, tables = _tables(part, as_one=True)
    return StepTotals(part.start, SECONDS, names, tables[0], part.states.sum(axis=(1, 2)))


def quarter_totals(part: Quarters) -> list[StepTotals]:
    """The quarter hours in which the host or any of its GPUs was observed."""
    names, tables = _tables(part, as_one=False)
    states = part.states.sum(axis=1)
    return [
        StepTotals(part.start + QUARTER * number, QUARTER, names, table, states[:, number])
        for number, table in enumerate(tables)
        if table[:, 1].any() or states[:, number].any()
    ]


def _tables(part: Quarters, *, as_one: bool) -> tuple[tuple[str, ...], Floats]:
    names = (*part.metrics, *(HOST_PREFIX + name for name in part.host))
    is_sum = which_sum(names)
    of_gpus, of_host = is_sum[: len(part.metrics)], is_sum[len(part.metrics) :]
    tables = [
        _table(list(rolls.values()), flags, as_one=as_one)
        for rolls, flags in ((part.metrics, of_gpus), (part.host, of_host))
        if rolls
    ]
    if not tables:
        return names, np.empty((1 if as_one else COUNT, 0, len(UNKNOWN)))
    return names, np.concatenate(tables, axis=1)


def _table(rolls: list[Roll], is_sum: Flags, *, as_one: bool) -> Floats:
    sums, seconds, low, high = (stack_rolls(rolls, kind) for kind in ("sum", "seconds", "low", "high"))
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
