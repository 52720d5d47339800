"""A host's hour as bytes and back: every sample, one block of bytes a metric, so that to read one costs one.

A metric that this release does not know is kept as it is: an older hub that opens an hour again loses nothing.

Times are kept to the millisecond, and what a sample covers by how it differs from the time since the one before, which
it hardly ever does. Runs are three tables with a row a run and GPU: whether it was there, its memory, its utilization.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history import codec
from gpudeck.history.codec import MOST_VALUES, Damaged
from gpudeck.history.frame import HOST, find_precision, pack_names, seal, split_wanted, unpack_names, unseal
from gpudeck.history.hour import Floats, Hour, RunSlice
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, MIB, Metric

VERSION: Final = 1
_MILLISECOND: Final = 0.001
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
    times: bytes
    covered: bytes
    states: bytes
    names: bytes
    metrics: list[bytes]
    host_names: bytes
    host: list[bytes]
    runs: _Runs | None


_unpack = msgspec.msgpack.Decoder(_Packed).decode


def encode(hour: Hour) -> bytes:
    """Values come back as exact as the catalog's precision says; memory of runs to the MiB."""
    times = np.rint((hour.times - hour.start) / _MILLISECOND)
    covered = np.rint(hour.covered / _MILLISECOND)
    packed = _Packed(
        hour.start,
        hour.gpus,
        codec.encode(times[None], 1.0),
        codec.encode((covered - np.diff(times, prepend=0.0))[None], 1.0),
        codec.encode(hour.states.astype(np.float64), 1.0),
        pack_names(tuple(hour.metrics)),
        _pack_metrics(hour.metrics, GPU_METRICS),
        pack_names(tuple(hour.host)),
        _pack_metrics({name: values.reshape(1, -1) for name, values in hour.host.items()}, HOST_METRICS),
        _pack_runs(hour.runs) if hour.runs else None,
    )
    return seal(VERSION, msgspec.msgpack.encode(packed))


def decode(body: bytes, metrics: Collection[str] | None = None, *, runs: bool = True) -> Hour:
    """Only `metrics` (None: all), the host's with `host_` before their names. Raises Damaged."""
    try:
        packed = _unpack(unseal(VERSION, body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of an hour are damaged: {error}") from error
    steps = codec.decode(packed.times)
    samples = steps.shape[1]
    shape = len(packed.gpus), samples
    times = _checked(steps, (1, samples))[0]
    covered = _read(packed.covered, (1, samples))[0] + np.diff(times, prepend=0.0)
    states = np.nan_to_num(_read(packed.states, shape)).astype(np.uint8)
    hour = Hour(packed.start, packed.start + times / 1000, covered / 1000, packed.gpus, states)
    hour.metrics = _unpack_metrics(packed.names, packed.metrics, metrics, "", shape)
    of_host = _unpack_metrics(packed.host_names, packed.host, metrics, HOST, (1, samples))
    hour.host = {name: values[0] for name, values in of_host.items()}
    if runs and packed.runs is not None:
        hour.runs = _unpack_runs(packed.runs, shape)
    return hour


def verify(body: bytes) -> None:
    """Reads everything there is. Raises Damaged if a single bit has changed."""
    decode(body)


def _pack_metrics(metrics: Mapping[str, Floats], catalog: Mapping[str, Metric]) -> list[bytes]:
    return [codec.encode(values, find_precision(catalog, name, values)) for name, values in metrics.items()]


def _unpack_metrics(
    packed_names: bytes, blobs: list[bytes], wanted: Collection[str] | None, prefix: str, shape: tuple[int, int]
) -> dict[str, Floats]:
    names = unpack_names(packed_names)
    if len(names) != len(blobs):
        raise Damaged(f"{len(names)} names of metrics, {len(blobs)} metrics")
    return {names[place]: _read(blobs[place], shape) for place in split_wanted(wanted, names, prefix)}


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
