"""Parts of an hour that is still being written, and how they become one `Hour`."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Final

import numpy as np
from msgspec import Struct

from gpudeck.history.embedded.batch import Layout, precisions_of
from gpudeck.history.hour import Bytes, Flags, Floats, Hour, RunSlice, cover

_SMALL: Final = (np.uint8, np.uint16, np.uint32)


class Company(Struct):
    """Runs on GPUs in some rows in a row, from the one at `begin` on. `rows` has the memory of each run, in bytes, and
    after those the utilization of each."""

    who: list[tuple[int, int]]
    begin: int
    rows: Floats


class Loose(Struct):
    """Some rows in a row, of the same GPUs, as they came. `table` is (samples, GPUs, values)."""

    times: Floats
    intervals: Floats
    gpus: tuple[int, ...]
    states: Bytes
    layout: Layout
    table: Floats
    host: Floats
    company: list[Company]

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.gpu if self.gpus else ()

    @property
    def host_names(self) -> tuple[str, ...]:
        return self.layout.host

    def tables(self, names: Sequence[str]) -> Floats:
        """(names, GPUs, samples)."""
        return _pick(self.table.transpose(2, 1, 0), self.layout.gpu, names)

    def host_tables(self, names: Sequence[str]) -> Floats:
        return _pick(self.host.T, self.layout.host, names)


class _Numbers(Struct):
    """In a small type: `(base + places) * step`; the type's highest place is NaN. Or one number for all."""

    base: float
    step: float
    places: np.ndarray | None

    def unpack(self) -> "Floats | float":
        if self.places is None:
            return self.base * self.step
        numbers = self.places.astype(np.float64)
        numbers[self.places == np.iinfo(self.places.dtype).max] = np.nan
        numbers += self.base
        numbers *= self.step
        return numbers


class Packed(Struct):
    """The same in a fifth of the room. A metric that nobody knows at all is left out."""

    times: Floats
    intervals: Floats
    gpus: tuple[int, ...]
    states: Bytes
    metrics: dict[str, _Numbers | Floats]
    host: dict[str, _Numbers | Floats]
    company: list[Company]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(self.host)

    def tables(self, names: Sequence[str]) -> Floats:
        """(names, GPUs, samples)."""
        return _unpack(self.metrics, names, (len(self.gpus), len(self.times)))

    def host_tables(self, names: Sequence[str]) -> Floats:
        return _unpack(self.host, names, (len(self.times),))


Piece = Loose | Packed


def pack(piece: Loose) -> Packed:
    gpu_steps, host_steps = precisions_of(piece.layout)
    return Packed(
        times=piece.times.copy(),
        intervals=piece.intervals.copy(),
        gpus=piece.gpus,
        states=piece.states.copy(),
        metrics=_pack_all(piece.layout.gpu, piece.table.transpose(2, 1, 0), gpu_steps),
        host=_pack_all(piece.layout.host, piece.host.T, host_steps),
        company=[Company(one.who, one.begin, one.rows.copy()) for one in piece.company],
    )


def _pack_all(names: Sequence[str], table: Floats, precisions: Floats) -> dict[str, _Numbers | Floats]:
    """Each metric in steps of its precision."""
    if not table.size:
        return {}
    steps = np.rint(table.reshape(len(names), -1) / precisions[:, None])
    lows, highs = np.fmin.reduce(steps, axis=1), np.fmax.reduce(steps, axis=1)
    has_gaps: Flags = np.asarray(np.isnan(steps).any(axis=1))
    return {
        names[place]: _pack_one(steps[place].reshape(table.shape[1:]), precisions[place], has_gaps[place])
        if has_gaps[place] or lows[place] != highs[place]
        else _Numbers(float(lows[place]), float(precisions[place]), None)
        for place in np.flatnonzero(~np.isnan(lows)).tolist()
    }


def _pack_one(steps: Floats, precision: float, has_gaps: bool) -> _Numbers | Floats:
    low, high = np.fmin.reduce(steps, axis=None), np.fmax.reduce(steps, axis=None)
    kind = next((kind for kind in _SMALL if high - low < np.iinfo(kind).max), None)
    if kind is None:
        return np.asarray(steps * precision)
    places = steps - low
    if has_gaps:
        places[np.isnan(places)] = np.iinfo(kind).max
    return _Numbers(float(low), precision, places.astype(kind))


def _unpack(kept: dict[str, _Numbers | Floats], names: Sequence[str], shape: tuple[int, ...]) -> Floats:
    tables = np.full((len(names), *shape), np.nan)
    for place, name in enumerate(names):
        if name in kept:
            numbers = kept[name]
            tables[place] = numbers.unpack() if isinstance(numbers, _Numbers) else numbers
    return tables


def _pick(tables: Floats, layout: Sequence[str], names: Sequence[str]) -> Floats:
    """Those of `names` out of tables in the order of the layout."""
    if tuple(names) == layout:
        return tables
    if all(name in layout for name in names):
        return tables[[layout.index(name) for name in names]]
    found = np.full((len(names), *tables.shape[1:]), np.nan)
    places = [place for place, name in enumerate(names) if name in layout]
    found[places] = tables[[layout.index(names[place]) for place in places]]
    return found


def assemble(
    start: int, pieces: Sequence[Piece], before: float | None, metrics: Collection[str] | None, *, runs: bool
) -> Hour:
    """One hour out of pieces: in order of time, every moment once, of all GPUs that any of them has."""
    times = np.concatenate([piece.times for piece in pieces]) if pieces else np.empty(0)
    intervals = np.concatenate([piece.intervals for piece in pieces]) if pieces else np.empty(0)
    order = _order(times)
    gpus = list(dict.fromkeys(gpu for piece in pieces for gpu in piece.gpus))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    spans = _spans(pieces)
    among = [[rows[gpu] for gpu in piece.gpus] if list(piece.gpus) != gpus else slice(None) for piece in pieces]
    names = [name for name in _union([piece.names for piece in pieces]) if metrics is None or name in metrics]
    own = _union([piece.host_names for piece in pieces])
    host_names = [name for name in own if metrics is None or f"host_{name}" in metrics]
    states = np.zeros((len(gpus), len(times)), dtype=np.uint8)
    is_whole = all(isinstance(where, slice) for where in among)
    tables = (np.empty if is_whole else _blank)((len(names), len(gpus), len(times)))
    hosts = np.empty((len(host_names), len(times)))
    for piece, span, where in zip(pieces, spans, among, strict=True):
        states[where, span] = piece.states
        if names and piece.gpus:
            tables[:, where, span] = piece.tables(names)
        if host_names:
            hosts[:, span] = piece.host_tables(host_names)
    if order is not None:
        times, intervals = times[order], intervals[order]
        states, tables, hosts = states[:, order], tables[:, :, order], hosts[:, order]
    return Hour(
        start=start,
        times=times,
        covered=cover(times, intervals, before),
        gpus=gpus,
        states=states,
        metrics=dict(zip(names, tables, strict=True)),
        host=dict(zip(host_names, hosts, strict=True)),
        runs=_lay_out_runs(pieces, spans, rows, order, spans[-1].stop if spans else 0) if runs else [],
    )


def _union(names: Iterable[tuple[str, ...]]) -> list[str]:
    """Each once, in the order in which they come: pieces of the same layout need no other."""
    return list(dict.fromkeys(chain.from_iterable(dict.fromkeys(names))))


def _order(times: Floats) -> np.ndarray | None:
    """The places in order of time, each moment once; None where they are in order."""
    if bool((times[1:] > times[:-1]).all()):
        return None
    order: np.ndarray = np.unique(times, return_index=True)[1]
    return order


def _spans(pieces: Sequence[Piece]) -> list[slice]:
    ends = np.cumsum([len(piece.times) for piece in pieces]).tolist()
    return [slice(end - len(piece.times), end) for piece, end in zip(pieces, ends, strict=True)]


def _blank(shape: tuple[int, ...]) -> Floats:
    return np.full(shape, np.nan)


def _lay_out_runs(
    pieces: Sequence[Piece], spans: list[slice], rows: dict[int, int], order: np.ndarray | None, count: int
) -> list[RunSlice]:
    slices: dict[tuple[int, int], RunSlice] = {}
    for piece, span in zip(pieces, spans, strict=True):
        for company in piece.company:
            begin = span.start + company.begin
            here = slice(begin, begin + len(company.rows))
            columns = company.rows.T
            for number, key in enumerate(company.who):
                part = slices.get(key)
                if part is None:
                    blank = np.zeros(count, dtype=bool), np.full(count, np.nan), np.full(count, np.nan)
                    part = slices[key] = RunSlice(key[0], rows[key[1]], *blank)
                part.present[here] = True
                part.memory[here] = columns[number]
                part.utilization[here] = columns[len(company.who) + number]
    found = [part for _, part in sorted(slices.items())]
    if order is None:
        return found
    return [
        RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order]) for part in found
    ]
