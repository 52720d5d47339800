"""The fleet at a moment whose hour is still being written: the last sample of each open hour until then.

Samples that are in the same piece, or came in the same batch, are read together: a call of numpy costs more than the
numbers of one host.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpudeck.fleet.columns import rows_of
from gpudeck.history.codec import Floats
from gpudeck.history.embedded.open_hour import (
    INTERVALS,
    MOMENT,
    OF_GPU,
    OF_HOST,
    OF_RUN,
    STATE,
    TIMES,
    Indexes,
    LooseSample,
    MatrixKey,
    OpenHour,
    Part,
    Piece,
    PieceSlice,
    metrics_of,
    read_batch,
)
from gpudeck.history.hour import SECONDS, HourMoment, RunMoment, cover_steps, find_since, make_values, or_none
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import MIB

_NAMES: Final = {OF_GPU: GPU_NAMES, OF_HOST: HOST_NAMES}


class _Place(NamedTuple):
    """Where the last sample of an hour is: which of the hours, in which part of it, where in that part; when it was
    taken, and the one before it."""

    number: int
    part: Part
    place: int
    time: float
    before: float


class OpenMoments:
    """The last samples until `at`. `loose` has the last loose sample of each host until then. States that began before
    the part of the hour that has the sample have no `since`."""

    def __init__(self, at: float, metrics: Collection[str] | None, loose: Mapping[int, LooseSample]) -> None:
        self._at = at
        self._metrics = metrics
        self._loose = loose

    def find(self, hours: Sequence[OpenHour]) -> list[HourMoment | None]:
        found: list[HourMoment | None] = [None] * len(hours)
        times: dict[int, tuple[Floats, list[int]]] = {}
        groups: dict[int, list[_Place]] = {}
        for number, hour in enumerate(hours):
            place = self._find_place(number, hour, times)
            if place is not None:
                groups.setdefault(id(place.part.source), []).append(place)
        for group in groups.values():
            for place, moment in zip(group, self._read(group), strict=True):
                found[place.number] = moment
        return found

    def _find_place(self, number: int, hour: OpenHour, known: dict[int, tuple[Floats, list[int]]]) -> _Place | None:
        """`known` keeps the times of pieces, (rows, samples), and how many of each row are until the moment."""
        before = -math.inf if hour.before is None else hour.before
        found, loose = None, self._loose.get(hour.host)
        if loose is not None and hour.start <= loose.time < hour.start + SECONDS:
            found = _Place(number, loose, 0, loose.time, before)
        for part in list(hour.slices):
            if id(part.piece) not in known:
                table = _read_times(part.piece)
                known[id(part.piece)] = table, np.count_nonzero(table <= self._at, axis=1).tolist()
            times, counts = known[id(part.piece)]
            place = min(counts[part.row], part.count) - 1
            if place >= 0 and (found is None or times[part.row, place] > found.time):
                last = float(times[part.row, place - 1]) if place else before
                found = _Place(number, part, place, float(times[part.row, place]), last)
        return found

    def _read(self, group: list[_Place]) -> Iterator[HourMoment]:
        gpu_runs = [one.part.gpu_runs for one in group]
        pairs = [one.pairs for one in gpu_runs]
        rows = _Rows(
            group,
            {
                OF_HOST: [1] * len(group),
                OF_GPU: [len(one.gpus) for one in gpu_runs],
                OF_RUN: [len(one) for one in pairs],
            },
        )
        values, own = (make_values(self._read_metrics(rows, kind), is_host=kind == OF_HOST) for kind in _NAMES)
        states = rows.read(OF_GPU, (STATE, 0), 1.0).astype(np.int64).tolist()
        steps = np.array([one.time - one.before for one in group])
        covered = cover_steps(steps, rows.read(OF_HOST, (MOMENT, INTERVALS), 0.001)).tolist()
        memory, use = (or_none(rows.read(OF_RUN, (OF_RUN, at), step)) for at, step in enumerate((MIB, 1.0)))
        numbers = zip(memory, use, strict=True)
        since = _find_since(group)
        first = 0
        for at, one in enumerate(group):
            gpus = gpu_runs[at].gpus
            mine, first = slice(first, first + len(gpus)), first + len(gpus)
            runs = sorted(RunMoment(run, gpus.index(gpu), *next(numbers)) for run, gpu in pairs[at])
            yield HourMoment(one.time, covered[at], gpus, states[mine], since[mine], values[mine], own[at], runs)

    def _read_metrics(self, rows: "_Rows", kind: int) -> Floats:
        table = np.full((rows.count(kind), len(_NAMES[kind])), np.nan)
        for _, place, step in metrics_of(kind, self._metrics):
            table[:, place] = rows.read(kind, (kind, place), step)
        return table


class _Rows:
    """Where the samples of a group are in their piece or batch: the rows of each kind, and the place in each row."""

    def __init__(self, group: list[_Place], counts: dict[int, list[int]]) -> None:
        self.part = group[0].part
        places = np.array([one.place for one in group])
        firsts = {kind: [one.part.first(kind) for one in group] for kind in counts}
        self._places = {kind: np.repeat(places, some) for kind, some in counts.items()}
        self._rows: dict[int, Indexes] = {
            kind: rows_of([slice(first, first + count) for first, count in zip(firsts[kind], some, strict=True)])
            for kind, some in counts.items()
        }

    def count(self, kind: int) -> int:
        return len(self._rows[kind])

    def read(self, kind: int, key: MatrixKey, step: float) -> Floats:
        rows = self._rows[kind]
        if isinstance(self.part, PieceSlice):
            found = self.part.piece.pick(key, step, rows, self._places[kind])
        else:
            found = read_batch(self.part.batch, key, step, rows)
        return np.broadcast_to(found, len(rows))


def _read_times(piece: Piece) -> Floats:
    return np.broadcast_to(piece.read((MOMENT, TIMES), 0.001), (piece.rows, piece.width))


def _find_since(group: list[_Place]) -> list[float | None]:
    part = group[0].part
    states = part.piece.read((STATE, 0), 1.0) if isinstance(part, PieceSlice) else 0.0
    if isinstance(states, float) or not isinstance(part, PieceSlice):
        return [None] * sum(len(one.part.gpu_runs.gpus) for one in group)
    times, since = _read_times(part.piece), list[float | None]()
    for one in group:
        row, gpu = one.part.first(MOMENT), one.part.first(OF_GPU)
        since += find_since(times[row], states[gpu : gpu + len(one.part.gpu_runs.gpus)], one.place)
    return since
