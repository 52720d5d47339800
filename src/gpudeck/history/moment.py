"""The fleet at a moment of the past: of each host the last sample until then, as it was taken.

Where samples are no longer kept, the quarter hour has the moment: means of its metrics, the state that each GPU was in
for most of it, and the runs that touched it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from gpudeck.history.base import HistoryRefused, KnownGpu, KnownHost, KnownRun, MomentQuery, PastHost
from gpudeck.history.hour import ABSENT, QUARTER, UNKNOWN, HourMoment, RunMoment
from gpudeck.history.rollup import COUNT, Quarters, Roll
from gpudeck.history.sample import (
    ALL_NAMES,
    HOST_NAMES,
    NOTHING,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.times import show_utc

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

_AHEAD: Final = 60.0
"""Seconds by which the clock of a viewer may be ahead."""
_HOSTS_AT_ONCE: Final = 64


def check_moment(at: float, oldest: float | None, now: float) -> None:
    """Raises HistoryRefused for a moment of which nothing can be known."""
    if at > now + _AHEAD:
        raise HistoryRefused("in_future", f"{show_utc(at)} has not come yet", "Ask for a moment in the past.")
    if oldest is None:
        raise HistoryRefused("before_history", "nothing has been recorded yet", "Ask again after the first reports.")
    if at < oldest:
        message = f"nothing was recorded at {show_utc(at)}: the history begins at {show_utc(oldest)}"
        raise HistoryRefused("before_history", message, "Ask for a later moment.")


def find_hosts(view: "HistoryView", query: MomentQuery, now: float) -> Iterator[PastHost]:
    """Each host that had been seen by then, in no particular order. Raises HistoryRefused at the first step, never
    later."""
    hosts = view.hosts().values()
    check_moment(query.at, min((host.first for host in hosts), default=None), now)
    there = [
        host for host in hosts if host.first <= query.at and query.at - min(host.last, query.at) <= query.forget_after
    ]
    there.sort(key=attrgetter("key"))
    finder = _HostFinder(view, query)
    for first in checkpointed(range(0, len(there), _HOSTS_AT_ONCE)):
        yield from finder.find(there[first : first + _HOSTS_AT_ONCE])


class _HostFinder:
    def __init__(self, view: "HistoryView", query: MomentQuery) -> None:
        self._view = view
        self._ask = query
        self._gpus = view.gpus()

    def find(self, hosts: Sequence[KnownHost]) -> Iterator[PastHost]:
        last = self._view.moments([host.key for host in hosts], self._ask.at, self._ask.metrics)
        found = [self._or_quarter(host, last.get(host.key)) for host in hosts]
        keys = {run.run for moment, _ in found if moment is not None for run in moment.runs}
        runs = {run.key: run for run in self._view.runs_of(keys)}
        for host, (moment, is_rolled) in zip(hosts, found, strict=True):
            if moment is None:
                yield self._make_blank(host)
            elif is_rolled:
                yield self._make_host(host, moment, self._runs_in_quarter(host, moment), is_rolled=True)
            else:
                there = ((run.gpu, runs[run.run], run) for run in moment.runs if run.run in runs)
                yield self._make_host(host, moment, there)

    def _or_quarter(self, host: KnownHost, found: HourMoment | None) -> tuple[HourMoment | None, bool]:
        """`found` is the host's last sample. With whether it is a quarter hour's."""
        at, metrics = self._ask.at, self._ask.metrics
        if found is not None and at - found.at <= QUARTER:
            return found, False
        for quarters in self._view.quarters(host.key, at, at + 1, ALL_NAMES if metrics is None else metrics):
            rolled = _from_quarter(quarters, at)
            kept_since = self._view.raw_since([host.key])
            # Where samples are kept, a quarter hour has nothing to add: the host was silent at that moment.
            if rolled is not None and (found is None or rolled.at > found.at) and not 0 < kept_since <= at:
                return rolled, True
        return found, False

    def _runs_in_quarter(self, host: KnownHost, found: HourMoment) -> Iterator[tuple[int, KnownRun, RunMoment | None]]:
        for run in self._runs_by_host.get(host.key, ()):
            yield from ((row, run, None) for row, gpu in enumerate(found.gpus) if gpu in run.gpus)

    @cached_property
    def _runs_by_host(self) -> dict[int, list[KnownRun]]:
        begin = self._ask.at // QUARTER * QUARTER
        found: dict[int, list[KnownRun]] = {}
        for run in checkpointed(self._view.runs_between(begin, begin + QUARTER)):
            found.setdefault(run.host, []).append(run)
        return found

    @cached_property
    def _gpus_by_host(self) -> dict[int, list[KnownGpu]]:
        found: dict[int, list[KnownGpu]] = {}
        for gpu in self._gpus.values():
            found.setdefault(gpu.host, []).append(gpu)
        return found

    def _make_blank(self, host: KnownHost) -> PastHost:
        """It is known from roll-ups alone, of other times."""
        known = [gpu for gpu in self._gpus_by_host.get(host.key, ()) if gpu.first <= self._ask.at]
        silent = tuple(GpuSample(gpu.uuid, gpu.label, gpu.model, UNKNOWN, NOTHING, None) for gpu in known)
        blank = HostSample(host.host_id, host.name, host.first, 0.0, (None,) * len(HOST_NAMES), silent)
        return PastHost(blank, [None] * len(silent), is_recorded=False)

    def _make_host(
        self,
        host: KnownHost,
        found: HourMoment,
        runs: Iterable[tuple[int, KnownRun, RunMoment | None]],
        *,
        is_rolled: bool = False,
    ) -> PastHost:
        there: list[list[ProcessSample]] = [[] for _ in found.gpus]
        for row, run, moment in runs:
            there[row].append(_make_process(run, moment))
        samples, begun = list[GpuSample](), list[float | None]()
        rows = zip(found.gpus, found.states, found.since, found.values, there, strict=True)
        for key, state, since, values, processes in rows:
            gpu = self._gpus.get(key)
            if gpu is not None and state != ABSENT:
                known = None if state == UNKNOWN else tuple(processes)
                samples.append(GpuSample(gpu.uuid, gpu.label, gpu.model, state, values, known))
                begun.append(since)
        sample = HostSample(host.host_id, host.name, found.at, found.covered, found.own, tuple(samples))
        return PastHost(sample, begun, is_rolled=is_rolled)


def _make_process(run: KnownRun, moment: RunMoment | None) -> ProcessSample:
    memory, utilization = (None, None) if moment is None else (moment.memory, moment.utilization)
    used = None if memory is None else int(memory)
    return ProcessSample(run.pid, run.started_at, run.user, run.command, run.container, run.job, used, utilization)


def _from_quarter(quarters: Quarters, at: float) -> HourMoment | None:
    place = int(at - quarters.start) // QUARTER
    if not 0 <= place < COUNT:
        return None
    seconds = quarters.states[:, :, place]
    if not seconds.any():
        return None
    states = seconds.argmax(axis=0)
    # A state of a few minutes says nothing about the rest, which nobody recorded.
    is_short = (states > UNKNOWN) & (seconds[UNKNOWN + 1 :].sum(axis=0) < QUARTER / 2)
    return HourMoment(
        float(quarters.start + place * QUARTER),
        float(QUARTER),
        quarters.gpus,
        np.where(is_short, UNKNOWN, states).tolist(),
        [None] * len(quarters.gpus),
        _means(quarters.metrics, GPU_METRICS, place, len(quarters.gpus)),
        _means(quarters.host, HOST_METRICS, place, 1)[0],
        [],
    )


def _means(rolls: Mapping[str, Roll], catalog: Mapping[str, Metric], place: int, rows: int) -> list[Values]:
    nothing: list[float | None] = [None] * rows
    columns = (_mean(rolls[name], metric, place) if name in rolls else nothing for name, metric in catalog.items())
    return list(zip(*columns, strict=True))


def _mean(roll: Roll, metric: Metric, place: int) -> list[float | None]:
    both = zip(roll.sum[:, place].tolist(), roll.seconds[:, place].tolist(), strict=True)
    return [metric.round(total / seconds) if seconds > 0 else None for total, seconds in both]
