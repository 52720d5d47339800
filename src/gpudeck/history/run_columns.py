"""The samples of runs and jobs as columns, for the rules of verdicts: each hour of a host is read once for all of them.

Time runs along the last axis of all arrays. NaN is unknown, and also stands where the run was not on the GPU.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field

from gpudeck.history.base import Fault, KnownGpu, VerdictQuery
from gpudeck.history.codec import Flags, Floats
from gpudeck.history.hour import SECONDS, UNKNOWN, Hour
from gpudeck.model.cpu_budget import checkpointed

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView


GPU_INPUTS: Final[tuple[str, ...]] = (
    *("utilization_percent", "memory_used_bytes", "memory_total_bytes", "clock_sm_mhz", "power_watts"),
    "power_limit_watts",
    *("throttled_thermal", "throttled_hardware", "throttled_power"),
    *("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
    *("sm_activity_percent", "tensor_activity_percent", "fp32_activity_percent", "dram_activity_percent"),
)
HOST_INPUTS: Final = ("host_cpu_percent",)


KNOWN_SHARE: Final = 0.8
"""A metric is known if it is in so much of the time."""
WORK_PERCENT: Final = 5.0
STRETCH_SECONDS: Final = 600.0
_INTERACTIVE: Final = re.compile(r"ipykernel|jupyter|notebook|marimo|code-server|\bipython\b|rstudio", re.IGNORECASE)
_SERVING: Final = re.compile(
    r"serve|serving|\bvllm\b|sglang|triton|\btgi\b|text-generation|ollama|llama-server|uvicorn|gunicorn|gradio|streamlit",
    re.IGNORECASE,
)
_MULTIPLIES: Final = re.compile(r"python|torchrun|accelerate|deepspeed|julia", re.IGNORECASE)


class EarlierRun(Struct, frozen=True):
    """A run of the same command by the same user on the same GPUs. Its utilization is None if unknown."""

    first: float
    last: float
    utilization_percent: float | None


class RunSamples(Struct):
    """A run or job over its time. `present` and each of `metrics` are (GPUs, samples), `times`, `covered` and
    `cpu_percent` are lines. `memory` is its own. `wall_seconds` is the time that was asked for."""

    labels: list[str]
    models: list[str]
    times: Floats
    covered: Floats
    present: Flags
    memory: Floats
    metrics: dict[str, Floats]
    cpu_percent: Floats
    wall_seconds: float
    is_over: bool = True
    command: str | None = None
    faults: Sequence[Fault] = ()
    earlier: list[EarlierRun] = field(default_factory=list)


class RunFacts:
    """What several rules ask of the same columns. Means are weighted with time, over the work: from its first sample
    with work until its last one, unless they say otherwise."""

    def __init__(self, columns: RunSamples) -> None:
        self.of = columns
        self._means: dict[str, Floats] = {}
        self._mean_of_all: dict[str, float] = {}
        self.utilization = self.metric("utilization_percent")
        self.count = len(columns.labels)
        self.seconds = columns.present * columns.covered
        self.is_busy = self.utilization >= WORK_PERCENT
        self.works = self.is_busy.any(axis=0)
        self.busy_seconds = self.is_busy @ columns.covered
        places = np.flatnonzero(self.works)
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        self.work = slice(first, last)
        self.wall = float(columns.covered @ columns.present.any(axis=0))

    @cached_property
    def is_interactive(self) -> bool:
        return _INTERACTIVE.search(self.of.command or "") is not None

    @cached_property
    def is_serving(self) -> bool:
        return _SERVING.search(self.of.command or "") is not None

    @cached_property
    def may_multiply(self) -> bool:
        """Whether it is of a kind that usually multiplies matrices. Simulations of molecules or fluids do not."""
        return _MULTIPLIES.search(self.of.command or "") is not None

    @cached_property
    def worked(self) -> float:
        return float(self.of.covered @ self.works)

    @cached_property
    def is_idle(self) -> Flags:
        """The samples in which none of its GPUs worked, and all was known."""
        present = self.of.present
        is_unknown: Flags = np.logical_or.reduce(np.isnan(self.utilization) & present)
        idle: Flags = np.logical_or.reduce(present) & ~is_unknown & ~self.works
        return idle

    @cached_property
    def idle_stretches(self) -> list[tuple[float, float]]:
        """From when until when none of its GPUs worked, of ten minutes and more, and all was known."""
        found = [
            (float(self.of.times[begin] - self.of.covered[begin]), float(self.of.times[end - 1]))
            for begin, end in find_blocks(self.is_idle)
        ]
        return [(begin, end) for begin, end in found if end - begin >= STRETCH_SECONDS]

    @cached_property
    def mean_utilization(self) -> float | None:
        known = ~np.isnan(self.utilization)
        seconds = (known * self.of.covered).sum()
        return float((np.where(known, self.utilization, 0.0) * self.of.covered).sum() / seconds) if seconds else None

    @cached_property
    def memory_share(self) -> float | None:
        total = self.metric("memory_total_bytes")
        if not (self.is_known_everywhere(self.of.memory) and self.is_known_everywhere(total)):
            return None
        return float(np.nanmax(self.of.memory / total))

    def metric(self, name: str) -> Floats:
        found = self.of.metrics.get(name)
        return np.full(self.of.present.shape, np.nan) if found is None else found

    def is_known_everywhere(self, values: Floats) -> bool:
        """In nearly all of its time, of all its GPUs."""
        seconds = float(self.seconds.sum())
        return seconds > 0 and float((~np.isnan(values) * self.seconds).sum()) >= KNOWN_SHARE * seconds

    def by_gpu(self, name: str) -> Floats:
        if name not in self._means:
            self._means[name] = np.full(self.count, np.nan)
            if name in self.of.metrics:
                seconds = self.seconds[:, self.work]
                values = self.of.metrics[name][:, self.work] * seconds
                is_unknown = np.isnan(values)
                total = np.where(is_unknown, 0.0, seconds).sum(axis=1)
                is_known = (total > 0) & (total >= KNOWN_SHARE * seconds.sum(axis=1))
                values[is_unknown] = 0.0
                np.divide(values.sum(axis=1), total, out=self._means[name], where=is_known)
        return self._means[name]

    def mean(self, name: str) -> float:
        """Of all of its GPUs. A comparison with NaN, which is unknown, is false."""
        if name not in self._mean_of_all:
            values = self.by_gpu(name)
            self._mean_of_all[name] = float(values.mean()) if len(values) else float("nan")
        return self._mean_of_all[name]

    def places(self, which: Flags) -> str:
        names = [label for label, is_one in zip(self.of.labels, which, strict=True) if is_one]
        return f"GPU{'s' * (len(names) != 1)} {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def find_blocks(flags: Flags) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


_FIRST_SECONDS, _LAST_SECONDS = 4 * SECONDS, 44 * SECONDS
"""What is read of a longer run: so much of its beginning and of its end."""
MAX_GPUS: Final = 32
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
    for uuid in query.gpus[:MAX_GPUS]:
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
        # On a shared GPU its own counts where it is known; a GPU that does not work works for nobody.
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
