"""A host's hour as bytes and back: every sample, one block of bytes a metric, so that to read one costs one.

A metric that this release does not know is kept as it is: an older hub that opens an hour again loses nothing. The
host's own are a row each of one block: a block for so few values would be mostly the work of beginning it.

Times are kept to the millisecond, and what a sample covers by how it differs from the time since the one before, which
it hardly ever does. Runs are three tables with a row a run and GPU: whether it was there, its memory, its utilization.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history import codec
from gpudeck.history.codec import MOST_VALUES, Damaged, from_steps, short_precision, to_steps
from gpudeck.history.frame import HOST, find_precision, pack_names, seal, split_wanted, unpack_names, unseal
from gpudeck.history.hour import Floats, Hour, RunSlice
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB

VERSION: Final = 1
_PRESENT: Final = 1.0
_PERCENT: Final = 1.0


class _Runs(Struct, array_like=True, frozen=True):
    """`rows` are the GPUs' rows. The tables are each in as many parts as they need."""

    runs: list[int]
    rows: list[int]
    present: list[bytes]
    memory: list[bytes]
    utilization: list[bytes]


class _Packed(Struct, array_like=True, frozen=True):
    start: int
    gpus: list[int]
    moments: bytes
    states: bytes
    names: bytes
    metrics: list[bytes]
    host_names: bytes
    host_precisions: list[int | float]
    host: bytes
    runs: _Runs | None


_unpack = msgspec.msgpack.Decoder(_Packed).decode


def encode(hour: Hour) -> bytes:
    """Values come back as exact as the catalog's precision says; memory of runs to the MiB."""
    times, covered = np.rint((hour.times - hour.start) * 1000), np.rint(hour.covered * 1000)
    precisions = [short_precision(find_precision(HOST_METRICS, name, row)) for name, row in hour.host.items()]
    packed = _Packed(
        hour.start,
        hour.gpus,
        codec.encode(np.stack([times, covered - _since_before(times)]), 1.0),
        codec.encode(hour.states.astype(np.float64), 1.0),
        pack_names(tuple(hour.metrics)),
        _pack_metrics(hour.metrics),
        pack_names(tuple(hour.host)),
        precisions,
        _pack_host(hour, precisions),
        _pack_runs(hour.runs) if hour.runs else None,
    )
    return seal(VERSION, msgspec.msgpack.encode(packed))


def decode(body: bytes, metrics: Collection[str] | None = None, *, runs: bool = True) -> Hour:
    """Only `metrics` (None: all), the host's with `host_` before their names. Raises Damaged."""
    try:
        packed = _unpack(unseal(VERSION, body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of an hour are damaged: {error}") from error
    moments = codec.decode(packed.moments)
    samples = moments.shape[1]
    times, beyond = _checked(moments, (2, samples))
    shape = len(packed.gpus), samples
    with np.errstate(invalid="ignore"):
        states = _read(packed.states, shape).astype(np.uint8)
    covered = beyond + _since_before(times)
    hour = Hour(packed.start, packed.start + times / 1000, covered / 1000, packed.gpus, states)
    hour.metrics = _unpack_metrics(packed, metrics, shape)
    hour.host = _unpack_host(packed, metrics, samples)
    if runs and packed.runs is not None:
        hour.runs = _unpack_runs(packed.runs, shape)
    return hour


def verify(body: bytes) -> None:
    """Reads everything there is. Raises Damaged if a single bit has changed."""
    decode(body)


def _since_before(times: Floats) -> Floats:
    steps = times.copy()
    steps[1:] -= times[:-1]
    return steps


def _pack_metrics(metrics: Mapping[str, Floats]) -> list[bytes]:
    return [codec.encode(values, find_precision(GPU_METRICS, name, values)) for name, values in metrics.items()]


def _unpack_metrics(packed: _Packed, wanted: Collection[str] | None, shape: tuple[int, int]) -> dict[str, Floats]:
    names = unpack_names(packed.names)
    if len(names) != len(packed.metrics):
        raise Damaged(f"{len(names)} names of metrics, {len(packed.metrics)} metrics")
    return {names[place]: _read(packed.metrics[place], shape) for place in split_wanted(wanted, names)}


def _pack_host(hour: Hour, precisions: list[int | float]) -> bytes:
    rows = [to_steps(row.reshape(-1), short) for row, short in zip(hour.host.values(), precisions, strict=True)]
    return codec.encode(np.stack(rows) if rows else np.empty((0, len(hour.times))), 1.0)


def _unpack_host(packed: _Packed, wanted: Collection[str] | None, samples: int) -> dict[str, Floats]:
    names, precisions = unpack_names(packed.host_names), packed.host_precisions
    if len(names) != len(precisions):
        raise Damaged(f"{len(names)} names of the host's metrics, {len(precisions)} precisions")
    places = split_wanted(wanted, names, HOST)
    rows = _read(packed.host, (len(names), samples)) if places else ()
    return {names[place]: from_steps(rows[place], precisions[place]) for place in places}


def _pack_runs(runs: list[RunSlice]) -> _Runs:
    """In parts, because there may be more runs on a host than one table may have rows."""
    each = max(1, MOST_VALUES // max(1, len(runs[0].present)))
    parts = [runs[place : place + each] for place in range(0, len(runs), each)]
    return _Runs(
        [part.run for part in runs],
        [part.gpu for part in runs],
        [codec.encode(np.stack([run.present for run in part]).astype(np.float64), _PRESENT) for part in parts],
        [codec.encode(np.stack([run.memory for run in part]), MIB) for part in parts],
        [codec.encode(np.stack([run.utilization for run in part]), _PERCENT) for part in parts],
    )


def _unpack_runs(packed: _Runs, shape: tuple[int, int]) -> list[RunSlice]:
    gpus, samples = shape
    tables = [
        _checked(np.concatenate([codec.decode(part) for part in parts]), (len(packed.runs), samples))
        for parts in (packed.present, packed.memory, packed.utilization)
        if parts
    ]
    if len(tables) != 3 or len(packed.rows) != len(packed.runs) or not all(0 <= row < gpus for row in packed.rows):
        raise Damaged("the runs of an hour do not fit together")
    present, memory, utilization = tables
    return list(map(RunSlice, packed.runs, packed.rows, present > 0, memory, utilization))


def _read(blob: bytes, shape: tuple[int, int]) -> Floats:
    return _checked(codec.decode(blob), shape)


def _checked(matrix: Floats, shape: tuple[int, int]) -> Floats:
    if matrix.shape != shape:
        raise Damaged(f"a table is {matrix.shape[0]} × {matrix.shape[1]} and not {shape[0]} × {shape[1]}")
    return matrix
