"""The journal: each batch of samples as one row, until its hours are sealed.

    byte 0       the version
    bytes 1–4    CRC-32 of everything after them
    the rest     msgpack: `_PackedEntry`

A `SampleBatch` holds the samples that came in at once as one table of all hosts, one of all GPUs and one line of all
runs, so that numpy is called a few times per batch. Values that all GPUs share are written once. Version 2 had no
checksum. Version 1 wrote every value of every GPU; its entries are msgpack arrays, whose first byte is no version.
"""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history.codec import Bytes, Damaged, Floats, add_checksum, strip_checksum
from gpudeck.history.embedded.tables import key_of
from gpudeck.history.hour import SECONDS
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, Values
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

MOMENT: Final = 2
"""The first columns of a host's own: when it was, and the time to the next sample."""
log = logging.getLogger(__name__)

_VERSION: Final = 3
_UNCHECKED: Final = b"\x02"
_FIRST: Final = bytes([_VERSION])
_ARRAY: Final = b"\x80"
_LAST: Final = 7e9
"""Unix seconds that no sample is taken after."""
_Head = tuple[int, bytes, tuple[tuple[int, ...], tuple[tuple[int, ...] | None, ...]]]


class MetricLayout(NamedTuple):
    """The names of a sample's values: those of the version that wrote it."""

    gpu: tuple[str, ...] = GPU_NAMES
    host: tuple[str, ...] = HOST_NAMES


class GpuRuns(NamedTuple):
    """The GPUs of a host, and the runs on each of them; None where they are unknown."""

    gpus: tuple[int, ...]
    runs: tuple[tuple[int, ...] | None, ...]


class SampleHead(NamedTuple):
    """Whose sample it is, and the states of the GPUs in the order of the gpu_runs."""

    host: int
    states: bytes
    gpu_runs: GpuRuns


class SampleRow(NamedTuple):
    """One sample of a batch. `own` is moment, interval and the host's values; `table` is (GPUs, values). `run_values`
    is the memory in bytes of each run, GPU by GPU, and after those the utilization of each."""

    host: int
    gpu_runs: GpuRuns
    own: Floats
    states: Bytes
    table: Floats
    run_values: Floats


class SampleBatch(Struct):
    """`own`, `table` and `run_values` are those of all rows, one after another."""

    heads: list[SampleHead]
    own: Floats
    table: Floats
    run_values: Floats

    def rows(self) -> Iterator[SampleRow]:
        states = np.frombuffer(b"".join([head.states for head in self.heads]), dtype=np.uint8)
        own, table, run_values = self.own, self.table, self.run_values
        gpu = run = 0
        for place, (host, _, gpu_runs) in enumerate(self.heads):
            gpus, runs = gpu + len(gpu_runs.gpus), run + 2 * count_runs(gpu_runs)
            yield SampleRow(host, gpu_runs, own[place], states[gpu:gpus], table[gpu:gpus], run_values[run:runs])
            gpu, run = gpus, runs


def count_runs(gpu_runs: GpuRuns) -> int:
    """How many there are, on each GPU by itself."""
    return sum([len(runs) for runs in gpu_runs.runs if runs])


def make_batch(
    heads: list[SampleHead],
    own: Sequence[Values],
    tables: Sequence[Values],
    run_values: Iterable[Sequence[float | None]],
) -> SampleBatch:
    """`own` are two for each head: moment with interval, and values. `tables` are the values of each GPU."""
    others = list(run_values)
    hosts, gpus, runs = sum(map(len, own)), sum(map(len, tables)), sum(map(len, others))
    # All in one go: to begin an array costs more than to fill it.
    numbers = np.fromiter(chain.from_iterable((*own, *tables, *others)), "<f8", hosts + gpus + runs)
    return SampleBatch(
        heads,
        numbers[:hosts].reshape(len(heads), -1),
        numbers[hosts : hosts + gpus].reshape(len(tables), -1 if tables else 0),
        numbers[hosts + gpus :],
    )


@cache
def precisions_of(layout: MetricLayout) -> tuple[Floats, Floats]:
    """The smallest step worth keeping of each metric; of one that is no longer in the catalog, a millionth."""
    return (
        np.array([GPU_METRICS[name].precision if name in GPU_METRICS else 1e-6 for name in layout.gpu]),
        np.array([HOST_METRICS[name].precision if name in HOST_METRICS else 1e-6 for name in layout.host]),
    )


class NewerEntry(Damaged):
    """An entry that a newer gpudeck wrote."""


class _PackedEntry(Struct, array_like=True, frozen=True):
    """Numbers are little-endian doubles. `same` has a bit a column of the GPUs' table: whether all have the value that
    is in `shared`; `table` has the other columns."""

    heads: list[_Head]
    own: bytes
    same: bytes
    shared: bytes
    table: bytes
    run_values: bytes


class _OldRow(NamedTuple):
    """A host's sample of the first version. Of each GPU: the GPU, its state and values, the runs on it, their memories
    and utilizations."""

    at: float
    interval: float
    values: Values
    gpus: list[tuple[int, int, Values, tuple[int, ...] | None, list[int | None], list[float | None]]]


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_PackedEntry).decode
_unpack_old = msgspec.msgpack.Decoder(list[tuple[int, _OldRow]]).decode


def encode_entry(batch: SampleBatch) -> bytes:
    table, own = batch.table, batch.own
    if not len(table):
        return add_checksum(_VERSION, _pack((batch.heads, own.tobytes(), b"", b"", b"", batch.run_values.tobytes())))
    bits = table.view(np.int64)  # an unknown is like another then
    same = (bits == bits[0]).all(axis=0)
    shared, others = table[0][same], table[:, ~same]
    packed = np.packbits(same).tobytes(), shared.tobytes(), others.tobytes(), batch.run_values.tobytes()
    return add_checksum(_VERSION, _pack((batch.heads, own.tobytes(), *packed)))


def decode_entry(body: bytes, layout: MetricLayout) -> SampleBatch:
    """Raises Damaged for what cannot be read, and Newer for an entry of a later version."""
    if not isinstance(body, bytes):
        raise Damaged("an entry of the journal is damaged: it is no bytes")
    if _FIRST < body[:1] < _ARRAY:
        raise NewerEntry(f"it has version {body[0]}, and this gpudeck reads up to {_VERSION}: a newer one wrote it")
    try:
        return _decode(_content(body), layout) if body[:1] in {_FIRST, _UNCHECKED} else _decode_old(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Damaged(f"an entry of the journal is damaged: {error}") from error


def _content(body: bytes) -> memoryview:
    return strip_checksum(_VERSION, body) if body[:1] == _FIRST else memoryview(body)[1:]


def _decode(content: memoryview, layout: MetricLayout) -> SampleBatch:
    packed = _unpack(content)
    heads = [SampleHead(host, states, GpuRuns(*gpu_runs)) for host, states, gpu_runs in packed.heads]
    gpus, runs = sum(len(head.states) for head in heads), sum(count_runs(head.gpu_runs) for head in heads)
    if any(not len(head.states) == len(head.gpu_runs.gpus) == len(head.gpu_runs.runs) for head in heads):
        raise Damaged("states, GPUs and runs do not fit together")
    own = _read(packed.own, len(heads), MOMENT + len(layout.host))
    return SampleBatch(heads, own, _read_table(packed, gpus, len(layout.gpu)), _read(packed.run_values, 1, 2 * runs)[0])


def _read_table(packed: _PackedEntry, gpus: int, width: int) -> Floats:
    table = np.empty((gpus, width))
    if gpus:
        same = np.unpackbits(np.frombuffer(packed.same, dtype=np.uint8), count=width).view(np.bool_)
        count = int(np.count_nonzero(same))
        table[:, same] = _read(packed.shared, 1, count)
        table[:, ~same] = _read(packed.table, gpus, width - count)
    return table


def _read(numbers: bytes, rows: int, width: int) -> Floats:
    if len(numbers) != 8 * rows * width:
        raise Damaged(f"{len(numbers)} bytes are not {rows} × {width} numbers")
    return np.frombuffer(numbers, dtype="<f8").reshape(rows, width)


def _decode_old(body: bytes) -> SampleBatch:
    heads: list[SampleHead] = []
    own: list[Values] = []
    tables: list[Values] = []
    run_values: list[list[int | None] | list[float | None]] = []
    for host, (at, interval, values, gpus) in _unpack_old(body):
        gpu_runs = GpuRuns(tuple(gpu[0] for gpu in gpus), tuple(gpu[3] for gpu in gpus))
        heads.append(SampleHead(host, bytes(gpu[1] for gpu in gpus), gpu_runs))
        own += (at, interval), values
        tables += (gpu[2] for gpu in gpus)
        run_values.append(list(chain.from_iterable(gpu[4] for gpu in gpus if gpu[3])))
        run_values.append(list(chain.from_iterable(gpu[5] for gpu in gpus if gpu[3])))
    return make_batch(heads, own, tables, run_values)


def read_journal(connection: sqlite3.Connection) -> Iterator[tuple[SampleRow, int, MetricLayout]]:
    """Row, number of the entry and layout of everything that no sealed hour has yet, in order. An entry that cannot be
    read costs its second. The log has one line about all of a kind, at the end."""
    layouts: dict[int, MetricLayout] = {}
    sealed: dict[int, int] = {}
    left_out: list[tuple[int, Damaged]] = []
    for entry, layout, body in connection.execute("SELECT id, layout, body FROM journal ORDER BY id").fetchall():
        try:
            if layout not in layouts:
                layouts[layout] = _find_layout(connection, layout)
            rows = _rows_of(decode_entry(body, layouts[layout]))
        except Damaged as error:
            left_out.append((entry, error))
            continue
        for row in rows:
            key = key_of(row.host, row.own[0] // SECONDS * SECONDS)
            if key not in sealed:
                sealed[key] = _sealed_upto(connection, key)
            if entry > sealed[key]:
                yield row, entry, layouts[layout]
    for sentence in summarize(left_out):
        log.warning("left out of the history's journal: %s", sentence)


def find_damaged_entries(connection: sqlite3.Connection) -> Iterator[tuple[int, Damaged]]:
    """Number and reason of each entry that cannot be read."""
    for entry, layout, body in connection.execute("SELECT id, layout, body FROM journal ORDER BY id"):
        try:
            _rows_of(decode_entry(body, _find_layout(connection, layout)))
        except Damaged as error:
            yield entry, error


def time_of(connection: sqlite3.Connection, layout: int, body: bytes) -> float:
    """When the newest sample of an entry was taken. Raises Damaged."""
    return float(
        max((row.own[0] for row in _rows_of(decode_entry(body, _find_layout(connection, layout)))), default=0.0)
    )


def _rows_of(batch: SampleBatch) -> list[SampleRow]:
    times = batch.own[:, 0]
    if not ((times >= 0) & (times < _LAST)).all():
        raise Damaged("an entry of the journal is damaged: it is of no time")
    return list(batch.rows())


def summarize(left_out: list[tuple[int, Damaged]]) -> Iterator[str]:
    """A sentence about the entries of each kind."""
    for kind in (NewerEntry, Damaged):
        found = [(entry, error) for entry, error in left_out if type(error) is kind]
        if found:
            more = f" and {len(found) - 1} more up to {found[-1][0]}" if len(found) > 1 else ""
            yield f"entry {found[0][0]}{more}: {found[0][1]}"


def join_layout(layout: MetricLayout) -> tuple[str, ...]:
    """As the file keeps it."""
    return (*layout.gpu, "", *layout.host)


def _find_layout(connection: sqlite3.Connection, key: int) -> MetricLayout:
    """Raises Damaged where the file does not say it."""
    row = connection.execute("SELECT names FROM layouts WHERE id = ?", (key,)).fetchone()
    if row is None:
        raise Damaged(f"layout {key} is missing")
    try:
        names = msgspec.json.decode(row[0], type=list[str])
        middle = names.index("")
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Damaged(f"layout {key} cannot be read: {error}") from error
    return MetricLayout(tuple(names[:middle]), tuple(names[middle + 1 :]))


def _sealed_upto(connection: sqlite3.Connection, key: int) -> int:
    """The last entry that is in that sealed hour; -1 where it is not sealed."""
    row = connection.execute("SELECT upto FROM sealed WHERE key = ?", (key,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else -1
