"""The samples of many runs and jobs as columns, for verdicts: each hour of a host is read once for all of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field

from gpudeck.history.base import KnownGpu, VerdictQuery
from gpudeck.history.codec import Flags, Floats
from gpudeck.history.hour import SECONDS, UNKNOWN, Hour
from gpudeck.history.run_facts import GPU_INPUTS, HOST_INPUTS, WORK_PERCENT, EarlierRun, RunSamples
from gpudeck.model.cpu_budget import checkpointed

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

_FIRST_SECONDS, _LAST_SECONDS = 4 * SECONDS, 44 * SECONDS
"""What is read of a longer run: so much of its beginning and of its end."""
MOST_GPUS: Final = 32
_EARLIER_SECONDS: Final = 3600.0
_SLOT: Final = 10.0
"""Seconds into which samples of several hosts are put together."""
_TOTAL, _UTILIZATION = "memory_total_bytes", "utilization_percent"


class _Part(Struct):
    """What one hour of a host has of a query. Rows are the query's GPUs on that host."""

    times: Floats
    covered: Floats
    present: Flags
    memory: Floats
    metrics: dict[str, Floats]
    cpu: Floats


class _Pending(Struct):
    """A query, its GPUs by host, and what was read of each host so far."""

    query: VerdictQuery
    hosts: dict[int, list[int]]
    windows: list[tuple[float, float]]
    parts: dict[int, list[_Part]] = field(default_factory=dict)


RunStart = tuple[int, tuple[object, ...], EarlierRun]
"""The run, its user, command and GPUs, and its time."""
FindStarts = Callable[[int, float, float], Iterable[RunStart]]
"""The runs of a host that began in a span of time, oldest first."""


def read_columns(
    view: "HistoryView", queries: Sequence[VerdictQuery], find_starts: FindStarts
) -> Iterator[tuple[int, RunSamples | None]]:
    """The columns of each query by its place, as soon as its last host was read. None: nothing of it is kept."""
    known, names = view.gpus(), {key: host.name for key, host in view.hosts().items()}
    by_uuid = {gpu.uuid: gpu for gpu in known.values()}
    waiting = [_prepare(query, by_uuid) for query in queries]
    by_host: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(waiting):
        for host in one.hosts:
            by_host[host].append(place)
    last_host = {place: host for host, places in by_host.items() for place in places}
    yield from ((place, None) for place, one in enumerate(waiting) if not one.hosts)
    for host, places in checkpointed(by_host.items()):
        _read_host(view, host, [waiting[place] for place in places])
        earlier = _find_earlier(find_starts, host, [waiting[place].query for place in places])
        for place in checkpointed(places):
            if last_host[place] == host:
                one = waiting[place]
                columns = _put_together(one, known, names)
                if columns is not None and one.query.run is not None:
                    columns.earlier = earlier.get(one.query.run, [])
                one.parts.clear()
                yield place, columns


def _prepare(query: VerdictQuery, by_uuid: Mapping[str, KnownGpu]) -> _Pending:
    hosts: dict[int, list[int]] = {}
    for uuid in query.gpus[:MOST_GPUS]:
        if uuid in by_uuid:
            hosts.setdefault(by_uuid[uuid].host, []).append(by_uuid[uuid].key)
    windows = [(query.start, query.end)]
    if query.end - query.start > _FIRST_SECONDS + _LAST_SECONDS:
        windows = [(query.start, query.start + _FIRST_SECONDS), (query.end - _LAST_SECONDS, query.end)]
    return _Pending(query, hosts, windows)


def _read_host(view: "HistoryView", host: int, waiting: Sequence[_Pending]) -> None:
    for begin, end in _join_hours(window for one in waiting for window in one.windows):
        for hour in view.hours(host, begin, end, (*GPU_INPUTS, *HOST_INPUTS), runs=True):
            for one in waiting:
                for start, stop in one.windows:
                    if start < hour.start + SECONDS and stop >= hour.start:
                        part = _cut(hour, one.query, one.hosts[host], start, stop)
                        if part is not None:
                            one.parts.setdefault(host, []).append(part)


def _join_hours(windows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of whole hours that cover all windows, without overlaps."""
    hours = {hour for start, end in windows for hour in range(int(start // SECONDS), int(end // SECONDS) + 1)}
    found: list[tuple[float, float]] = []
    for hour in sorted(hours):
        begin = float(hour * SECONDS)
        if found and found[-1][1] == begin - 1:
            found[-1] = found[-1][0], begin + SECONDS - 1
        else:
            found.append((begin, begin + SECONDS - 1))
    return found


def _cut(hour: Hour, query: VerdictQuery, gpus: Sequence[int], start: float, stop: float) -> _Part | None:
    """The samples of that hour in the window, None where there are none. A run shares a GPU where others are there."""
    first, last = np.searchsorted(hour.times, start), np.searchsorted(hour.times, stop, side="right")
    rows = [hour.gpus.index(gpu) if gpu in hour.gpus else -1 for gpu in gpus]
    if first >= last or max(rows) < 0:
        return None
    span, shape = slice(first, last), (len(rows), int(last - first))
    present, memory, own, others = (
        *(np.zeros(shape, np.bool_), np.full(shape, np.nan)),
        *(np.full(shape, np.nan), np.zeros(shape, np.bool_)),
    )
    places = {row: place for place, row in enumerate(rows) if row >= 0}
    if query.run is None:
        for row, place in places.items():
            present[place] = hour.states[row, span] > UNKNOWN
    for one in hour.runs if query.run is not None else ():
        if one.gpu in places and one.run == query.run:
            present[places[one.gpu]], own[places[one.gpu]] = one.present[span], one.utilization[span]
            memory[places[one.gpu]] = one.memory[span]
        elif one.gpu in places:
            others[places[one.gpu]] |= one.present[span]
    if query.run is not None and not present.any():
        return None
    is_readable = np.array([hour.states[row, span] > UNKNOWN if row >= 0 else np.zeros(shape[1], bool) for row in rows])
    present &= is_readable
    is_shared = bool(others.any())
    alone = present & ~others if is_shared else present
    metrics = {
        name: np.where(present if name == _TOTAL else alone, hour.metrics[name][rows, span], np.nan)
        for name in GPU_INPUTS
        if name in hour.metrics
    }
    if is_shared and _UTILIZATION in metrics:
        # Beside others its own counts where it is known; a GPU that does not work works for nobody.
        whole = np.where(present, hour.metrics[_UTILIZATION][rows, span], np.nan)
        metrics[_UTILIZATION] = np.where(others & (whole >= WORK_PERCENT), own, whole)
    whole_memory = metrics.pop("memory_used_bytes", None)
    if whole_memory is not None:
        memory = np.where(np.isnan(memory), whole_memory, memory)
    cpu = hour.host.get("cpu_percent")
    line = np.full(shape[1], np.nan) if cpu is None else cpu[span]
    return _Part(hour.times[span], hour.covered[span], present, memory, metrics, line)


def _put_together(one: _Pending, known: Mapping[int, KnownGpu], names: Mapping[int, str]) -> RunSamples | None:
    parts = {host: _join([*found]) for host, found in one.parts.items() if found}
    if not parts:
        return None
    whole = next(iter(parts.values())) if len(one.hosts) == 1 else _align(one, parts)
    gpus = [known[gpu] for host in one.hosts for gpu in one.hosts[host]]
    query = one.query
    cpu = whole.cpu if query.cpu_percent is None else np.full(len(whole.times), query.cpu_percent)
    several = len(one.hosts) > 1
    return RunSamples(
        [f"{names.get(gpu.host, '?')}:{gpu.label}" if several else gpu.label for gpu in gpus],
        [gpu.model for gpu in gpus],
        whole.times,
        whole.covered,
        whole.present,
        whole.memory,
        whole.metrics,
        cpu,
        sum(end - start for start, end in one.windows),
        query.is_over,
        query.command,
        query.faults,
    )


def _join(parts: list[_Part]) -> _Part:
    """One after the other, in order of time."""
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda part: float(part.times[0]))
    nothing = [np.full(part.present.shape, np.nan) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    return _Part(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.covered for part in parts]),
        np.concatenate([part.present for part in parts], axis=1),
        np.concatenate([part.memory for part in parts], axis=1),
        {
            name: np.concatenate(
                [part.metrics.get(name, unknown) for part, unknown in zip(parts, nothing, strict=True)], axis=1
            )
            for name in names
        },
        np.concatenate([part.cpu for part in parts]),
    )


def _align(one: _Pending, parts: Mapping[int, _Part]) -> _Part:
    """Several hosts over the same steps, each with its own GPUs. The CPU is the mean of those that are known."""
    steps = np.unique(np.concatenate([part.times // _SLOT for part in parts.values()]))
    count = len(steps)
    rows = {host: len(gpus) for host, gpus in one.hosts.items()}
    shape = sum(rows.values()), count
    present, memory = np.zeros(shape, np.bool_), np.full(shape, np.nan)
    covered, cpus = np.zeros(count), np.full((len(rows), count), np.nan)
    metrics = {name: np.full(shape, np.nan) for part in parts.values() for name in part.metrics}
    begin = 0
    for number, (host, size) in enumerate(rows.items()):
        mine, begin = slice(begin, begin + size), begin + size
        if host in parts:
            part = parts[host]
            at = np.searchsorted(steps, part.times // _SLOT)
            present[mine, at], memory[mine, at], cpus[number, at] = part.present, part.memory, part.cpu
            covered[at] = np.maximum(covered[at], part.covered)
            for name, table in part.metrics.items():
                metrics[name][mine, at] = table
    known = ~np.isnan(cpus)
    total = known.sum(axis=0)
    cpu = np.divide(np.nan_to_num(cpus).sum(axis=0), total, out=np.full(count, np.nan), where=total > 0)
    return _Part(steps * _SLOT, covered, present, memory, metrics, cpu)


def _find_earlier(find_starts: FindStarts, host: int, queries: Sequence[VerdictQuery]) -> dict[int, list[EarlierRun]]:
    """Of each run those of the same command in the hour before it, oldest first."""
    short = {one.run: one.start for one in queries if one.run is not None and one.end - one.start < SECONDS}
    if not short:
        return {}
    of: dict[int, tuple[object, ...]] = {}
    same: dict[tuple[object, ...], list[EarlierRun]] = defaultdict(list)
    for run, key, start in find_starts(host, min(short.values()) - _EARLIER_SECONDS, max(short.values())):
        of[run] = key
        same[key].append(start)
    return {
        run: [one for one in same[of[run]] if at - _EARLIER_SECONDS <= one.first < at]
        for run, at in short.items()
        if run in of
    }
