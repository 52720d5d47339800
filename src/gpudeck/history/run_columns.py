"""Samples of runs and jobs as columns, for the rules of verdicts. Each hour of a host is read once for all of them.

Time is the last axis of all arrays. NaN means unknown, or that the run was not on the GPU.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpudeck.history.base import Fault, KnownGpu, VerdictQuery
from gpudeck.history.codec import Damaged, Flags, Floats
from gpudeck.history.hour import SECONDS, UNKNOWN, Hour, RunSlice
from gpudeck.model.cpu_budget import checkpointed

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView


Places = NDArray[np.intp]
GPU_INPUTS: Final[tuple[str, ...]] = (
    *("utilization_percent", "memory_used_bytes", "memory_total_bytes", "clock_sm_mhz", "power_watts"),
    "power_limit_watts",
    *("throttled_thermal", "throttled_hardware", "throttled_power"),
    *("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
    *("sm_activity_percent", "tensor_activity_percent", "fp32_activity_percent", "dram_activity_percent"),
)
HOST_INPUTS: Final = ("host_cpu_percent",)


KNOWN_SHARE: Final = 0.8
"""A metric is known if it is known in this part of the time."""
WORK_PERCENT: Final = 5.0
STRETCH_SECONDS: Final = 600.0
_INTERACTIVE: Final = re.compile(r"ipykernel|jupyter|notebook|marimo|code-server|\bipython\b|rstudio", re.IGNORECASE)
_SERVING: Final = re.compile(
    r"serve|serving|\bvllm\b|sglang|triton|\btgi\b|text-generation|ollama|llama-server|uvicorn|gunicorn|gradio|streamlit",
    re.IGNORECASE,
)
_MULTIPLIES: Final = re.compile(r"python|torchrun|accelerate|deepspeed|julia", re.IGNORECASE)


class EarlierRun(Struct, frozen=True):
    """An earlier run of the same command by the same user on the same GPUs. Utilization is None if unknown."""

    first: float
    last: float
    utilization_percent: float | None


class RunSamples(Struct):
    """A run or job over its time. `present`, `memory` and metrics are (GPUs, samples); `times`, `covered`
    and `cpu_percent` are (samples). `memory` is the run's own. `wall_seconds` is the requested time."""

    labels: list[str]
    models: list[str]
    times: Floats
    covered: Floats
    present: Flags
    memory: Floats
    read: Callable[[str], Floats | None]
    cpu_percent: Floats
    wall_seconds: float
    is_over: bool = True
    command: str | None = None
    faults: Sequence[Fault] = ()
    earlier: list[EarlierRun] = field(default_factory=list)


class RunFacts:
    """Values that several rules derive from the same samples. Means are weighted with time, and are over the time
    from the first sample with work to the last, unless a docstring says otherwise."""

    def __init__(self, columns: RunSamples) -> None:
        self.of = columns
        self._metrics: dict[str, Floats] = {}
        self._means: dict[str, Floats] = {}
        self._mean_of_all: dict[str, float] = {}
        self.utilization = self.metric("utilization_percent")
        self.count = len(columns.labels)
        self.is_busy = self.utilization >= WORK_PERCENT
        self.works: Flags = np.logical_or.reduce(self.is_busy)
        self.is_there: Flags = np.logical_or.reduce(columns.present)
        self.seconds = columns.present * columns.covered
        self.seconds_by_gpu: Floats = self.seconds.sum(axis=1)
        self.busy_seconds = self.is_busy.astype(np.float64) @ columns.covered
        places = np.flatnonzero(self.works)
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        self.work = slice(first, last)
        self.wall = float(columns.covered @ self.is_there)

    @cached_property
    def is_interactive(self) -> bool:
        return _INTERACTIVE.search(self.of.command or "") is not None

    @cached_property
    def is_serving(self) -> bool:
        return _SERVING.search(self.of.command or "") is not None

    @cached_property
    def may_multiply(self) -> bool:
        """Whether programs like this usually multiply matrices. Simulations of molecules or fluids do not."""
        return _MULTIPLIES.search(self.of.command or "") is not None

    @cached_property
    def worked(self) -> float:
        return float(self.of.covered @ self.works)

    @cached_property
    def is_idle(self) -> Flags:
        """Samples in which no GPU worked, and all were known."""
        is_unknown: Flags = np.logical_or.reduce(np.isnan(self.utilization) & self.of.present)
        idle: Flags = self.is_there & ~is_unknown & ~self.works
        return idle

    @cached_property
    def idle_stretches(self) -> list[tuple[float, float]]:
        """Times of ten minutes and more in which no GPU worked, and all were known."""
        begins, ends = find_blocks(self.is_idle)
        since, until = self.of.times[begins] - self.of.covered[begins], self.of.times[ends - 1]
        is_long = until - since >= STRETCH_SECONDS
        return list(zip(since[is_long].tolist(), until[is_long].tolist(), strict=True))

    @cached_property
    def mean_utilization(self) -> float | None:
        known = ~np.isnan(self.utilization)
        seconds = float((known @ self.of.covered).sum())
        return float((np.where(known, self.utilization, 0.0) @ self.of.covered).sum() / seconds) if seconds else None

    @cached_property
    def memory_share(self) -> float | None:
        total = self.metric("memory_total_bytes")
        if not (self.is_known_everywhere(self.of.memory) and self.is_known_everywhere(total)):
            return None
        return float(np.nanmax(self.of.memory / total))

    def metric(self, name: str) -> Floats:
        """Read on first use: most rules need few metrics. NaN if no sample has it."""
        if name not in self._metrics:
            found = self.of.read(name)
            self._metrics[name] = np.full(self.of.present.shape, np.nan) if found is None else found
        return self._metrics[name]

    def is_known_everywhere(self, values: Floats) -> bool:
        """Known nearly all the time, on all GPUs."""
        seconds = float(self.seconds_by_gpu.sum())
        return seconds > 0 and float((~np.isnan(values) * self.seconds).sum()) >= KNOWN_SHARE * seconds

    @cached_property
    def _work_seconds(self) -> tuple[Floats, Floats]:
        """By sample and by GPU."""
        seconds = self.seconds[:, self.work]
        return seconds, seconds.sum(axis=1)

    def by_gpu(self, name: str) -> Floats:
        if name not in self._means:
            seconds, whole = self._work_seconds
            values = self.metric(name)[:, self.work]
            sums, total = np.einsum("ij,ij->i", values, seconds), whole
            if np.isnan(sums).any():
                is_unknown = np.isnan(values)
                total = np.where(is_unknown, 0.0, seconds).sum(axis=1)
                sums = np.einsum("ij,ij->i", np.where(is_unknown, 0.0, values), seconds)
            is_known = (total > 0) & (total >= KNOWN_SHARE * whole)
            self._means[name] = np.divide(sums, total, out=np.full(self.count, np.nan), where=is_known)
        return self._means[name]

    def mean(self, name: str) -> float:
        """Mean over all GPUs; NaN if unknown, and comparisons with NaN are false."""
        if name not in self._mean_of_all:
            values = self.by_gpu(name)
            self._mean_of_all[name] = float(values.sum()) / len(values) if len(values) else float("nan")
        return self._mean_of_all[name]

    def places(self, which: Flags) -> str:
        names = [label for label, is_one in zip(self.of.labels, which, strict=True) if is_one]
        return f"GPU{'s' * (len(names) != 1)} {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def find_blocks(flags: Flags) -> tuple[Places, Places]:
    """The begin and the end (exclusive) of each block of consecutive samples that are set."""
    padded = np.zeros(len(flags) + 2, np.bool_)
    padded[1:-1] = flags
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return edges[::2], edges[1::2]


_FIRST_SECONDS, _LAST_SECONDS = 4 * SECONDS, 44 * SECONDS
"""Of a longer run, the first and last seconds that are read."""
MAX_GPUS: Final = 32
_TOGETHER_SECONDS: Final = 86_400.0
_EARLIER_SECONDS: Final = 3600.0
_SLOT: Final = 10.0
"""Seconds to which the samples of several hosts are aligned."""
_TOTAL, _MEMORY, _UTILIZATION = "memory_total_bytes", "memory_used_bytes", "utilization_percent"


class _Span:
    """Consecutive hours of a host. Metrics are joined on first use."""

    def __init__(self, hours: list[Hour]) -> None:
        self.gpus = [*dict.fromkeys(gpu for hour in hours for gpu in hour.gpus)]
        self.times = np.concatenate([hour.times for hour in hours])
        self.covered = np.concatenate([hour.covered for hour in hours])
        self.starts = np.cumsum([0, *(len(hour.times) for hour in hours)]).tolist()
        self._runs: list[dict[int, list[RunSlice]]] = [defaultdict(list) for _ in hours]
        for hour, by_gpu in zip(hours, self._runs, strict=True):
            for run in hour.runs:
                by_gpu[hour.gpus[run.gpu]].append(run)
        self._hours = hours
        self._rows = [None if hour.gpus == self.gpus else [self.gpus.index(gpu) for gpu in hour.gpus] for hour in hours]
        self._tables: dict[str, Floats | None] = {}
        self.is_readable = self._join([hour.states > UNKNOWN for hour in hours], 0) > 0
        nothing = [np.full(len(hour.times), np.nan) for hour in hours]
        self.cpu = np.concatenate(
            [hour.host.get("cpu_percent", unknown) for hour, unknown in zip(hours, nothing, strict=True)]
        )

    def runs_of(self, gpu: int, span: slice) -> Iterator[tuple[slice, slice, RunSlice]]:
        """Runs on a GPU by hour, each with its slice of the span and of the hour."""
        for at in range(bisect_right(self.starts, span.start) - 1, bisect_left(self.starts, span.stop)):
            begin, end = max(span.start, self.starts[at]), min(span.stop, self.starts[at + 1])
            mine = slice(begin - span.start, end - span.start)
            theirs = slice(begin - self.starts[at], end - self.starts[at])
            yield from ((mine, theirs, one) for one in self._runs[at].get(gpu, ()))

    def read(self, name: str) -> Floats | None:
        """A row per GPU; None if no hour has the metric."""
        if name not in self._tables:
            found = [_read_table(hour, name) for hour in self._hours]
            self._tables[name] = None if all(one is None for one in found) else self._join(found, np.nan)
        return self._tables[name]

    def _join(self, tables: Sequence[NDArray[Any] | None], blank: float) -> NDArray[Any]:
        parts = list[NDArray[Any]]()
        for table, hour, rows in zip(tables, self._hours, self._rows, strict=True):
            if table is not None and rows is None:
                parts.append(table)
                continue
            part = np.full((len(self.gpus), len(hour.times)), blank)
            if table is not None:
                part[rows] = table
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


class _Columns(Struct):
    """Samples of a query. `read` returns a metric, or None if no sample has it."""

    times: Floats
    covered: Floats
    present: Flags
    memory: Floats
    cpu: Floats
    read: Callable[[str], Floats | None]


def _read_table(hour: Hour, name: str) -> Floats | None:
    try:
        return hour.metrics.get(name)
    except Damaged:
        return None


def _mask(values: Floats, known: Flags) -> Floats:
    return values if known.all() else np.where(known, values, np.nan)


class _Pending(Struct):
    """A query, its GPUs by host, and the samples that were read so far."""

    query: VerdictQuery
    hosts: dict[int, list[int]]
    windows: list[tuple[float, float]]
    parts: dict[int, list[_Columns]] = field(default_factory=dict)


RunStart = tuple[int, tuple[object, ...], EarlierRun]
"""The run; its user, command and GPUs; and its time."""
FindStarts = Callable[[int, float, float], Iterable[RunStart]]
"""The runs of a host that began in a span of time, the oldest first."""


def read_columns(
    view: "HistoryView", queries: Sequence[VerdictQuery], find_starts: FindStarts
) -> Iterator[tuple[int, RunSamples | None]]:
    """The samples of each query with its index, as soon as its last host was read; None if none are kept."""
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
        hours = [*view.hours(host, begin, end, (*GPU_INPUTS, *HOST_INPUTS), runs=True, is_lazy=True)]
        if not hours:
            continue
        span = _Span(hours)
        for one in checkpointed(waiting):
            for start, stop in one.windows:
                if start <= end and stop >= begin:
                    part = _cut(span, one.query, one.hosts[host], start, stop)
                    if part is not None:
                        one.parts.setdefault(host, []).append(part)


def _join_hours(windows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Consecutive hours joined, up to a day, as they are in memory together."""
    hours = {hour for start, end in windows for hour in range(int(start // SECONDS), int(end // SECONDS) + 1)}
    found: list[tuple[float, float]] = []
    for hour in sorted(hours):
        begin = float(hour * SECONDS)
        if found and found[-1][1] == begin - 1 and begin - found[-1][0] < _TOGETHER_SECONDS:
            found[-1] = found[-1][0], begin + SECONDS - 1
        else:
            found.append((begin, begin + SECONDS - 1))
    return found


def _cut(hours: _Span, query: VerdictQuery, gpus: Sequence[int], start: float, stop: float) -> _Columns | None:
    """The samples of a query within these hours and the window; None if there are none."""
    first, last = hours.times.searchsorted(start), hours.times.searchsorted(stop, side="right")
    numbers = [hours.gpus.index(gpu) if gpu in hours.gpus else -1 for gpu in gpus]
    if first >= last or max(numbers) < 0:
        return None
    span, shape = slice(int(first), int(last)), (len(numbers), int(last - first))
    rows = slice(numbers[0], numbers[0] + 1) if len(numbers) == 1 else numbers
    present, memory = np.zeros(shape, np.bool_), np.full(shape, np.nan)
    own, others = np.full(shape, np.nan), np.zeros(shape, np.bool_)
    if query.run is None:
        present[[number >= 0 for number in numbers]] = True
    for place, gpu in enumerate(gpus if query.run is not None else ()):
        for mine, theirs, one in hours.runs_of(gpu, span):
            if one.run == query.run:
                present[place, mine], own[place, mine] = one.present[theirs], one.utilization[theirs]
                memory[place, mine] = one.memory[theirs]
            else:
                others[place, mine] |= one.present[theirs]
    if not present.any():
        return None
    present &= hours.is_readable[rows, span]
    is_shared = bool(others.any())
    alone = present & ~others if is_shared else present
    utilization = None
    if (whole := hours.read(_UTILIZATION)) is not None:
        # Beside others its own counts where it is known; a GPU that does not work works for nobody.
        known = _mask(whole[rows, span], present)
        utilization = np.where(others & (known >= WORK_PERCENT), own, known) if is_shared else known

    def read(name: str) -> Floats | None:
        """If other runs are on the GPU, only utilization and memory can be attributed to this one."""
        if name == _UTILIZATION:
            return utilization
        table = hours.read(name)
        return None if table is None else _mask(table[rows, span], present if name == _TOTAL else alone)

    is_unknown = np.isnan(memory)
    if is_unknown.any() and (used := read(_MEMORY)) is not None:
        memory = np.where(is_unknown, used, memory)
    return _Columns(hours.times[span], hours.covered[span], present, memory, hours.cpu[span], read)


def _put_together(one: _Pending, known: Mapping[int, KnownGpu], names: Mapping[int, str]) -> RunSamples | None:
    parts = {host: _join(found) for host, found in one.parts.items()}
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
        whole.read,
        cpu,
        sum(end - start for start, end in one.windows),
        query.is_over,
        query.command,
        query.faults,
    )


def _join(parts: list[_Columns]) -> _Columns:
    """Parts of the same GPUs at different times."""
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda part: float(part.times[0]))

    def read(name: str) -> Floats | None:
        found = [part.read(name) for part in parts]
        if all(one is None for one in found):
            return None
        blank = [np.full(part.present.shape, np.nan) for part in parts]
        return np.concatenate([empty if one is None else one for one, empty in zip(found, blank, strict=True)], axis=1)

    return _Columns(
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.covered for part in parts]),
        np.concatenate([part.present for part in parts], axis=1),
        np.concatenate([part.memory for part in parts], axis=1),
        np.concatenate([part.cpu for part in parts]),
        read,
    )


def _align(one: _Pending, parts: Mapping[int, _Columns]) -> _Columns:
    """Align several hosts to the same steps, each with its own GPUs. The CPU is the mean of the known ones."""
    steps = np.unique(np.concatenate([part.times // _SLOT for part in parts.values()]))
    count = len(steps)
    rows = {host: len(gpus) for host, gpus in one.hosts.items()}
    shape = sum(rows.values()), count
    present, memory = np.zeros(shape, np.bool_), np.full(shape, np.nan)
    covered, cpus = np.zeros(count), np.full((len(rows), count), np.nan)
    placed: list[tuple[slice, Places, _Columns]] = []
    begin = 0
    for number, (host, size) in enumerate(rows.items()):
        mine, begin = slice(begin, begin + size), begin + size
        if host in parts:
            part = parts[host]
            at = np.searchsorted(steps, part.times // _SLOT)
            present[mine, at], memory[mine, at], cpus[number, at] = part.present, part.memory, part.cpu
            covered[at] = np.maximum(covered[at], part.covered)
            placed.append((mine, at, part))
    known = ~np.isnan(cpus)
    total = known.sum(axis=0)
    cpu = np.divide(np.nan_to_num(cpus).sum(axis=0), total, out=np.full(count, np.nan), where=total > 0)

    def read(name: str) -> Floats | None:
        found = [(mine, at, values) for mine, at, part in placed if (values := part.read(name)) is not None]
        table = np.full(shape, np.nan)
        for mine, at, values in found:
            table[mine, at] = values
        return table if found else None

    return _Columns(steps * _SLOT, covered, present, memory, cpu, read)


def _find_earlier(find_starts: FindStarts, host: int, queries: Sequence[VerdictQuery]) -> dict[int, list[EarlierRun]]:
    """The runs of the same command in the hour before each run, the oldest first."""
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
