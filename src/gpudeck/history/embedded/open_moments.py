"""The fleet at a moment whose hour is still being written: the last sample of each open hour until then.

Samples in the same piece or batch are read together: a numpy call costs more than the numbers of one host.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

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
    HourPart,
    Indexes,
    MatrixKey,
    OpenHour,
    Piece,
    metrics_of,
    read_batch,
)
from gpudeck.history.hour import SECONDS, HourMoment, RunMoment, cover_steps, find_since, make_values, or_none
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES

_NAMES: Final = {OF_GPU: GPU_NAMES, OF_HOST: HOST_NAMES}


class _Place(NamedTuple):
    """The last sample of a host: the part of the hour, the index there, its time, and the time of the previous
    sample."""

    host: int
    part: HourPart
    place: int
    time: float
    before: float


def find_open_moments(
    hours: Sequence[OpenHour], at: float, metrics: Collection[str] | None, loose: Mapping[int, tuple[float, HourPart]]
) -> dict[int, HourMoment]:
    """The last sample until `at` of these hours, by host. `loose` has the last loose sample of each host until then,
    and its time. `since` is None for states that began before the part with the sample."""
    times: dict[int, tuple[Floats, list[int]]] = {}
    groups: dict[int, list[_Place]] = {}
    for hour in hours:
        place = _find_place(hour, at, loose.get(hour.host), times)
        if place is not None:
            groups.setdefault(id(place.part.source), []).append(place)
    found: dict[int, HourMoment] = {}
    for group in groups.values():
        for host, moment in _read_group(group, metrics):
            if host not in found or found[host].at < moment.at:
                found[host] = moment
    return found


def _find_place(
    hour: OpenHour, at: float, loose: tuple[float, HourPart] | None, known: dict[int, tuple[Floats, list[int]]]
) -> _Place | None:
    """`known` caches the times of pieces (rows, samples), and how many in each row are not after the moment."""
    before = -math.inf if hour.before is None else hour.before
    found = None
    if loose is not None and hour.start <= loose[0] < hour.start + SECONDS:
        found = _Place(hour.host, loose[1], 0, loose[0], before)
    for part in list(hour.parts):
        piece = cast("Piece", part.source)
        if id(piece) not in known:
            table = _read_times(piece)
            known[id(piece)] = table, np.count_nonzero(table <= at, axis=1).tolist()
        times, counts = known[id(piece)]
        place = min(counts[part.row], part.count) - 1
        if place >= 0 and (found is None or times[part.row, place] > found.time):
            last = float(times[part.row, place - 1]) if place else before
            found = _Place(hour.host, part, place, float(times[part.row, place]), last)
    return found


def _read_group(group: list[_Place], metrics: Collection[str] | None) -> Iterator[tuple[int, HourMoment]]:
    """Reads samples of the same piece or batch together."""
    rows = _Rows(group)
    tables = {kind: np.full((rows.count(kind), len(names)), np.nan) for kind, names in _NAMES.items()}
    for kind, table in tables.items():
        for _, key in metrics_of(kind, metrics):
            table[:, key[1]] = rows.read(key)
    values, own = (make_values(table, is_host=kind == OF_HOST) for kind, table in tables.items())
    states = rows.read((STATE, 0)).astype(np.int64).tolist()
    steps = np.array([one.time - one.before for one in group])
    covered = cover_steps(steps, rows.read((MOMENT, INTERVALS))).tolist()
    numbers = zip(*(or_none(rows.read((OF_RUN, place))) for place in range(2)), strict=True)
    since = _find_since(group)
    first = 0
    for at, one in enumerate(group):
        gpus, pairs = one.part.gpu_runs.gpus, one.part.gpu_runs.pairs
        mine, first = slice(first, first + len(gpus)), first + len(gpus)
        runs = sorted(RunMoment(run, gpus.index(gpu), *next(numbers)) for run, gpu in pairs)
        yield one.host, HourMoment(one.time, covered[at], gpus, states[mine], since[mine], values[mine], own[at], runs)


class _Rows:
    """The rows of each kind, and the indexes in them, of a group of samples in their piece or batch."""

    def __init__(self, group: list[_Place]) -> None:
        self._source = group[0].part.source
        self._rows: dict[int, Indexes] = {}
        self._places: dict[int, Indexes] = {}
        for kind in (OF_HOST, OF_GPU, OF_RUN):
            spans = [one.part.rows(kind) for one in group]
            self._rows[kind] = rows_of(spans)
            self._places[kind] = np.repeat([one.place for one in group], [span.stop - span.start for span in spans])

    def count(self, kind: int) -> int:
        return len(self._rows[kind])

    def read(self, key: MatrixKey) -> Floats:
        kind = {MOMENT: OF_HOST, STATE: OF_GPU}.get(key[0], key[0])
        rows = self._rows[kind]
        if isinstance(self._source, Piece):
            values = self._source.read(key, (rows, self._places[kind]))
        else:
            values = read_batch(self._source, key, rows)
        return np.broadcast_to(values, len(rows))


def _read_times(piece: Piece) -> Floats:
    return np.broadcast_to(piece.read((MOMENT, TIMES)), (piece.rows, piece.width))


def _find_since(group: list[_Place]) -> list[float | None]:
    source = group[0].part.source
    states = source.read((STATE, 0)) if isinstance(source, Piece) else 0.0
    if isinstance(states, float) or not isinstance(source, Piece):
        return [None] * sum(len(one.part.gpu_runs.gpus) for one in group)
    times, since = _read_times(source), list[float | None]()
    for one in group:
        since += find_since(times[one.part.row], states[one.part.rows(OF_GPU)], one.place)
    return since
