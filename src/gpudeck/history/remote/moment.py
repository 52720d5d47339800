"""The fleet at a past moment from a Prometheus-compatible store: of each host the values of its last sample until then.

A question for each metric, and four more: when hosts were sampled, the states, the users' memory, and the runs, which
the hub has itself. Since when a GPU was in its state, and what each process of several took, is not known.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec import Struct, field

from gpudeck.history.base import MomentQuery, PastHost, RunsQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.remote.client import PromReader
from gpudeck.history.remote.promql import GPU_SERIES, HOST_SERIES, OBSERVED, STATE, USER_MEMORY, select
from gpudeck.history.sample import (
    GPU_NAMES,
    HOST_NAMES,
    HOST_PREFIX,
    NOTHING,
    STATE_NUMBERS,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.exposition import ExposedMetric

_LOOKBACK: Final = 900.0
"""Seconds: a host that was silent for longer is known from the hub's own file alone."""
_SHORTEST: Final = 60.0
_AT_ONCE: Final = 4
_TICK: Final = 0.01
"""Samples are at whole hundredths."""
_RUNS_A_PAGE: Final = 1000
_UNKNOWN: Final = STATE_NUMBERS["unknown"]

_Gpu = tuple[str, str]
"""Host's id and UUID."""


class _Found(Struct):
    """By host's id: the name, when it was last sampled, and how many seconds that sample stands for."""

    at: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    gpus: dict[str, dict[str, tuple[str, str, int]]] = field(default_factory=dict)
    """Label, model and state by host's id and UUID."""
    values: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By host's id, UUID (empty: the host's own) and the name of the series."""
    memory: dict[_Gpu, dict[str, float]] = field(default_factory=dict)


def find_hosts(reader: PromReader, usage_store: EmbeddedStore, query: MomentQuery) -> Iterator[PastHost]:
    """Each host that either of them knows from then. Raises HistoryRefused and Temporary at the first step."""
    known = {past.sample.host_id: past for past in usage_store.moment(query)}
    found = _ask(reader, query)
    processes = _find_processes(usage_store, query.at, found)
    for host_id in {**known, **found.at}:
        past, remote = known.get(host_id), found.at.get(host_id)
        is_newer = remote is not None and (past is None or not past.is_recorded or past.sample.at < remote[1])
        if is_newer:
            sample = _make_sample(host_id, found, processes)
            yield PastHost(sample, [None] * len(sample.gpus))
        elif past is not None:
            yield past


def _ask(reader: PromReader, query: MomentQuery) -> _Found:
    found, end = _Found(), query.at + _TICK
    for labels, samples in reader.samples(select(OBSERVED), query.at - _LOOKBACK, end):
        if samples and "host_id" in labels:
            at, seconds = samples[-1]
            if at > found.at.get(labels["host_id"], ("", 0.0, 0.0))[1]:
                found.at[labels["host_id"]] = labels.get("host", ""), at, seconds
    window = min(_LOOKBACK, max(_SHORTEST, 2 * max((seconds for _, _, seconds in found.at.values()), default=0.0)))

    def last(series: str) -> list[tuple[dict[str, str], float]]:
        """Of the series of hosts, what their last sample has."""
        rows = reader.samples(select(series), query.at - window, end)
        return [
            (labels, samples[-1][1])
            for labels, samples in rows
            if samples and samples[-1][0] == found.at.get(labels.get("host_id", ""), ("", 0.0, 0.0))[1]
        ]

    wanted = [
        (one.name, is_host)
        for catalog, names, is_host in ((GPU_SERIES, GPU_NAMES, False), (HOST_SERIES, HOST_NAMES, True))
        for one, name in zip(catalog, names, strict=True)
        if query.metrics is None or (HOST_PREFIX if is_host else "") + name in query.metrics
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        states, memory, *values = threads.map(last, [STATE, USER_MEMORY, *(name for name, _ in wanted)])
    for labels, _ in states:
        gpus = found.gpus.setdefault(labels["host_id"], {})
        state = STATE_NUMBERS.get(labels.get("state", ""), _UNKNOWN)
        gpus[labels.get("uuid", "")] = labels.get("gpu", ""), labels.get("model", ""), state
    for labels, size in memory:
        found.memory.setdefault((labels["host_id"], labels.get("uuid", "")), {})[labels.get("user", "")] = size
    for (name, is_host), rows in zip(wanted, values, strict=True):
        for labels, value in rows:
            found.values[labels["host_id"], "" if is_host else labels.get("uuid", ""), name] = value
    return found


def _find_processes(usage_store: EmbeddedStore, at: float, found: _Found) -> dict[str, list[ProcessSample]]:
    """Those of each GPU, by UUID. The memory is known of a user's only one there."""
    processes: dict[str, list[ProcessSample]] = {}
    before: int | None = None
    while True:
        page = usage_store.runs(RunsQuery(start=at, end=at + 1, limit=_RUNS_A_PAGE, before=before))
        for run in page.runs:
            own = run.pid, run.started_at, run.user, run.command, run.container, run.job
            for uuid in run.gpus if run.seen_at <= at else ():
                processes.setdefault(uuid, []).append(ProcessSample(*own, None, None))
        before = page.next
        if before is None:
            break
    for (_, uuid), users in found.memory.items():
        there = processes.get(uuid, [])
        counts = [one.user for one in there]
        processes[uuid] = [
            one._replace(memory_bytes=int(users[one.user or ""]))
            if counts.count(one.user) == 1 and (one.user or "") in users
            else one
            for one in there
        ]
    return processes


def _make_sample(host_id: str, found: _Found, processes: Mapping[str, list[ProcessSample]]) -> HostSample:
    name, at, seconds = found.at[host_id]
    own = _values(HOST_SERIES, HOST_METRICS, lambda series: found.values.get((host_id, "", series)))
    gpus = []
    for uuid, (label, model, state) in sorted(found.gpus.get(host_id, {}).items(), key=lambda one: _order(one[1][0])):
        if state == _UNKNOWN:
            gpus.append(GpuSample(uuid, label, model, state, NOTHING, None))
            continue
        values = _values(GPU_SERIES, GPU_METRICS, lambda series, uuid=uuid: found.values.get((host_id, uuid, series)))  # type: ignore[misc]
        gpus.append(GpuSample(uuid, label, model, state, values, tuple(processes.get(uuid, ()))))
    return HostSample(host_id, name, at, seconds, own, tuple(gpus))


def _values(
    series: tuple[ExposedMetric, ...], catalog: Mapping[str, Metric], find: Callable[[str], float | None]
) -> Values:
    """In the catalog's units and order."""
    found = [(one, metric, find(one.name)) for one, metric in zip(series, catalog.values(), strict=True)]
    return tuple(None if value is None else metric.round(value * one.per / one.times) for one, metric, value in found)


def _order(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in label.split(".")]
