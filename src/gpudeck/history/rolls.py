"""Quarter hours of each GPU of a host, and how they become bytes: what is kept for years.

Metrics share a block of bytes as long as they are few values, which an hour's are; of a day each metric is a block of
its own, so that to read one costs one. Of each quarter hour there are the smallest value and, above it, the largest,
the mean and the last one; seconds are the same for most metrics and are kept once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from gpudeck.history import codec
from gpudeck.history.codec import MOST_VALUES, Damaged
from gpudeck.history.frame import HOST, find_precision, pack_names, seal, split_wanted, unpack_names, unseal
from gpudeck.history.hour import QUARTER, Floats
from gpudeck.history.sample import STATES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric

VERSION: Final = 1
_SECOND: Final = 0.01
"""How exact seconds are kept."""
_FINER: Final = 8
"""A mean is kept so many times as exact as a value."""
_BLOCK: Final = 4096
"""Values that metrics may have together to share a block."""
_FIELDS: Final = ("sum", "seconds", "low", "high", "last")
_Size = Annotated[int, Meta(ge=0, le=MOST_VALUES)]


class Roll(Struct):
    """A metric: (GPUs, quarter hours) each. `sum` is value x seconds; where `seconds` is 0 the others are NaN."""

    sum: Floats
    seconds: Floats
    low: Floats
    high: Floats
    last: Floats


class Quarters(Struct):
    """`count` quarter hours from `start` on. `gpus` are keys of the store, one a row.

    `states` is (states, GPUs, quarter hours): for how many seconds each GPU was in each of sample.STATES. `host` has
    one row.
    """

    start: int
    count: int
    gpus: list[int]
    metrics: dict[str, Roll]
    states: Floats
    host: dict[str, Roll] = field(default_factory=dict)


class _Section(Struct, array_like=True, frozen=True):
    """The metrics of the GPUs, or of the host. `seconds_of` says which table in `seconds` is a metric's; 0 is none.

    A metric that has none is in no block either.
    """

    names: bytes
    precisions: list[int | float]
    seconds_of: list[_Size]
    seconds: bytes
    blocks: list[bytes]


class _Packed(Struct, array_like=True, frozen=True):
    start: int
    count: _Size
    gpus: list[int]
    states: bytes
    metrics: _Section
    host: _Section


_unpack = msgspec.msgpack.Decoder(_Packed).decode


def encode(quarters: Quarters) -> bytes:
    """A mean is exact to an eighth of its metric's precision, seconds to a hundredth."""
    states = codec.encode(quarters.states.reshape(-1, quarters.count), _SECOND)
    gpus = _pack_section(quarters.metrics, GPU_METRICS, len(quarters.gpus), quarters.count)
    host = _pack_section(quarters.host, HOST_METRICS, 1, quarters.count)
    packed = _Packed(quarters.start, quarters.count, quarters.gpus, states, gpus, host)
    return seal(VERSION, msgspec.msgpack.encode(packed))


def decode(body: bytes, metrics: Collection[str] | None = None) -> Quarters:
    """Only `metrics` (None: all), the host's with `host_` before their names. Raises Damaged."""
    try:
        packed = _unpack(unseal(VERSION, body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of quarter hours are damaged: {error}") from error
    rows, count = len(packed.gpus), packed.count
    states = _read(packed.states, len(STATES) * rows, count).reshape(len(STATES), rows, count)
    gpus = _unpack_section(packed.metrics, metrics, "", (rows, count))
    host = _unpack_section(packed.host, metrics, HOST, (1, count))
    return Quarters(packed.start, count, packed.gpus, gpus, states, host)


def join(parts: Sequence[Quarters]) -> Quarters:
    """All of them as one, from the first quarter hour to the last: gaps stay gaps, GPUs need not be the same."""
    if not parts:
        raise ValueError("there is nothing to join")
    start = min(part.start for part in parts)
    count = max((part.start - start) // QUARTER + part.count for part in parts)
    gpus = list(dict.fromkeys(gpu for part in parts for gpu in part.gpus))
    whole = Quarters(start, count, gpus, {}, np.zeros((len(STATES), len(gpus), count)))
    places = {gpu: place for place, gpu in enumerate(gpus)}
    for part in parts:
        rows = np.array([places[gpu] for gpu in part.gpus], dtype=np.int64)
        first = (part.start - start) // QUARTER
        span = slice(first, first + part.count)
        whole.states[:, rows, span] = part.states
        _put(whole.metrics, part.metrics, (len(gpus), count), rows, span)
        _put(whole.host, part.host, (1, count), np.zeros(1, dtype=np.int64), span)
    return whole


def stack(rolls: Sequence[Roll], kind: str, span: slice = slice(None)) -> Floats:
    """(metrics, GPUs, quarter hours) of one field. At least one."""
    # np.stack would take five times as long for so small ones.
    table = np.concatenate([getattr(roll, kind)[:, span] for roll in rolls])
    return table.reshape(len(rolls), -1, table.shape[1])


def nothing(shape: tuple[int, int]) -> Roll:
    """A metric that nobody has observed."""
    return Roll(np.zeros(shape), np.zeros(shape), *(np.full(shape, np.nan) for _ in range(3)))


def _put(
    whole: dict[str, Roll], part: Mapping[str, Roll], shape: tuple[int, int], rows: NDArray[np.int64], span: slice
) -> None:
    for name, roll in part.items():
        if name not in whole:
            whole[name] = nothing(shape)
        for kind in _FIELDS:
            getattr(whole[name], kind)[rows, span] = getattr(roll, kind)


def _pack_section(rolls: Mapping[str, Roll], catalog: Mapping[str, Metric], rows: int, count: int) -> _Section:
    tables: dict[bytes, int] = {}
    seconds_of = [
        tables.setdefault(roll.seconds.tobytes(), len(tables) + 1) if roll.seconds.any() else 0
        for roll in rolls.values()
    ]
    seconds = np.frombuffer(b"".join(tables)).reshape(len(tables) * rows, count)
    precisions = [find_precision(catalog, name, roll.low) for name, roll in rolls.items()]
    known = [(roll, step) for roll, step, which in zip(rolls.values(), precisions, seconds_of, strict=True) if which]
    each = _in_a_block(rows, count)
    blocks = [_pack_block(known[place : place + each]) for place in range(0, len(known), each)]
    shorter = [codec.short_precision(step) for step in precisions]
    return _Section(pack_names(tuple(rolls)), shorter, seconds_of, codec.encode(seconds, _SECOND), blocks)


def _in_a_block(rows: int, count: int) -> int:
    return max(1, _BLOCK // max(1, 4 * rows * count))


def _pack_block(known: Sequence[tuple[Roll, float]]) -> bytes:
    step = np.array([step for _, step in known])[:, None, None]
    rolls = [roll for roll, _ in known]
    low, high, last, sums, seconds = (stack(rolls, kind) for kind in ("low", "high", "last", "sum", "seconds"))
    means = np.divide(sums, seconds, out=np.full(sums.shape, np.nan), where=seconds > 0)
    low = np.rint(low / step)
    above = [np.rint(high / step) - low, (means / step - low) * _FINER, np.rint(last / step) - low]
    return codec.encode(np.concatenate([low, *above]).reshape(-1, low.shape[2]), 1.0)


def _unpack_section(
    section: _Section, wanted: Collection[str] | None, prefix: str, shape: tuple[int, int]
) -> dict[str, Roll]:
    names = unpack_names(section.names)
    if not len(names) == len(section.precisions) == len(section.seconds_of):
        raise Damaged(f"{len(names)} names of metrics, {len(section.precisions)} of what is known about them")
    places = split_wanted(wanted, names, prefix)
    found = {names[place]: nothing(shape) for place in places}
    known = [place for place in places if section.seconds_of[place]]
    if known:
        _fill_in(section, known, shape, found)
    return found


def _fill_in(section: _Section, known: list[int], shape: tuple[int, int], found: dict[str, Roll]) -> None:
    names, rows, each = unpack_names(section.names), shape[0], _in_a_block(*shape)
    tables = _read(section.seconds, max(section.seconds_of) * rows, shape[1])
    in_blocks = [place for place, which in enumerate(section.seconds_of) if which]
    blocks: dict[int, Floats] = {}
    for place in known:
        number, inside = divmod(in_blocks.index(place), each)
        if number not in blocks:
            blocks[number] = _unpack_block(section, number, min(each, len(in_blocks) - number * each), shape)
        last = section.seconds_of[place] * rows
        step = codec.full_precision(section.precisions[place])
        found[names[place]] = _make_roll(blocks[number][:, inside], tables[last - rows : last], step)


def _unpack_block(section: _Section, number: int, metrics: int, shape: tuple[int, int]) -> Floats:
    """(4, metrics, rows, quarter hours)."""
    if number >= len(section.blocks):
        raise Damaged(f"block {number} of {len(section.blocks)} is not there")
    return _read(section.blocks[number], 4 * metrics * shape[0], shape[1]).reshape(4, metrics, *shape)


def _make_roll(block: Floats, seconds: Floats, step: float) -> Roll:
    low, high, mean, last = np.where(seconds > 0, block, np.nan)
    sums = np.where(seconds > 0, (low + mean / _FINER) * step * seconds, 0.0)
    # A copy: whoever changes one metric's seconds means that metric.
    return Roll(sums, seconds.copy(), low * step, (low + high) * step, (low + last) * step)


def _read(blob: bytes, rows: int, count: int) -> Floats:
    matrix = codec.decode(blob)
    if matrix.shape != (rows, count):
        raise Damaged(f"a table is {matrix.shape[0]} × {matrix.shape[1]} and not {rows} × {count}")
    return matrix
