"""The fleet at a moment of the past: of each host the last sample until then, as it was taken.

    HistoryView.moment_of → HourMoment → `find_hosts` → PastHost → `history.past_fleet`

Where samples are no longer kept, the quarter hour has the moment: means of its metrics, the state that each GPU was in
for most of it, and the runs that touched it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from gpudeck.history.base import HistoryRefused, KnownGpu, KnownHost, MomentAsk, PastHost, PastRun
from gpudeck.history.hour import ABSENT, QUARTER, UNKNOWN, HourMoment, RunMoment, or_none
from gpudeck.history.rollup import Quarters, Roll
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
_HOSTS_AT_ONCE: Final = 32


def check_moment(at: float, oldest: float | None, now: float) -> None:
    """Raises HistoryRefused for a moment of which nothing can be known."""
    if at > now + _AHEAD:
        raise HistoryRefused("in_future", f"{show_utc(at)} has not come yet", "Ask for a moment in the past.")
    if oldest is None:
        raise HistoryRefused("before_history", "nothing has been recorded yet", "Ask again after the first reports.")
    if at < oldest:
        hint = f"The history begins at {show_utc(oldest)}."
        raise HistoryRefused("before_history", f"nothing was recorded at {show_utc(at)}", hint)


def find_hosts(view: "HistoryView", ask: MomentAsk, now: float) -> Iterator[PastHost]:
    """Each host that had been seen by then, in no particular order. Raises HistoryRefused at the first step, never
    later."""
    hosts = [host for host in view.hosts().values() if host.first <= ask.at]
    check_moment(ask.at, min((host.first for host in view.hosts().values()), default=None), now)
    gpus = view.gpus()
    on_host: dict[int, list[KnownGpu]] = {}
    for gpu in gpus.values():
        on_host.setdefault(gpu.host, []).append(gpu)
    batch: list[tuple[KnownHost, HourMoment | None, bool]] = []
    for host in checkpointed(sorted(hosts, key=lambda one: one.key)):
        if ask.at - min(host.last, ask.at) > ask.forget_after:
            continue
        batch.append((host, *_find_moment(view, host, ask)))
        if len(batch) >= _HOSTS_AT_ONCE:
            yield from _make_hosts(view, batch, gpus, on_host, ask)
            batch = []
    yield from _make_hosts(view, batch, gpus, on_host, ask)


def _find_moment(view: "HistoryView", host: KnownHost, ask: MomentAsk) -> tuple[HourMoment | None, bool]:
    """With whether it is a quarter hour's."""
    found = view.moment_of(host.key, ask.at, ask.metrics)
    if found is not None and ask.at - found.at <= QUARTER:
        return found, False
    for quarters in view.quarters(host.key, ask.at, ask.at + 1, ALL_NAMES if ask.metrics is None else ask.metrics):
        rolled = _from_quarter(quarters, ask.at)
        kept_since = view.raw_since([host.key])
        # Where samples are kept, a quarter hour has nothing to add: the host was silent at that moment.
        if rolled is not None and (found is None or rolled.at > found.at) and not 0 < kept_since <= ask.at:
            return rolled, True
    return found, False


def _from_quarter(quarters: Quarters, at: float) -> HourMoment | None:
    place = int(at - quarters.start) // QUARTER
    if not 0 <= place < quarters.count:
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
        {name: _mean(roll, place) for name, roll in quarters.metrics.items()},
        {name: _mean(roll, place)[0] for name, roll in quarters.host.items()},
        [],
    )


def _mean(roll: Roll, place: int) -> list[float | None]:
    seconds = roll.seconds[:, place]
    return or_none(np.divide(roll.sum[:, place], seconds, out=np.full(len(seconds), np.nan), where=seconds > 0))


class _FoundRuns(Struct):
    """The runs of some moments by their number; `by_host` are those that touched a quarter hour."""

    by_key: dict[int, PastRun]
    by_host: dict[int, list[PastRun]]


def _make_hosts(
    view: "HistoryView",
    batch: list[tuple[KnownHost, HourMoment | None, bool]],
    gpus: Mapping[int, KnownGpu],
    on_host: Mapping[int, list[KnownGpu]],
    ask: MomentAsk,
) -> Iterator[PastHost]:
    runs = _find_runs(view, batch, ask.at)
    for host, found, is_rolled in batch:
        if found is None:
            # It is known from roll-ups alone, of other times.
            known = [gpu for gpu in on_host.get(host.key, ()) if gpu.first <= ask.at]
            silent = tuple(GpuSample(gpu.uuid, gpu.label, gpu.model, UNKNOWN, NOTHING, None) for gpu in known)
            blank = HostSample(host.host_id, host.name, host.first, 0.0, (None,) * len(HOST_NAMES), silent)
            yield PastHost(blank, [None] * len(silent), is_recorded=False)
            continue
        yield _make_host(host, found, gpus, runs, is_rolled=is_rolled)


def _make_host(
    host: KnownHost, found: HourMoment, gpus: Mapping[int, KnownGpu], runs: _FoundRuns, *, is_rolled: bool
) -> PastHost:
    states = found.states
    rows = [row for row, gpu in enumerate(found.gpus) if gpu in gpus and states[row] != ABSENT]
    of_gpu: dict[int, list[tuple[PastRun, RunMoment | None]]] = {}
    for moment in found.runs:
        if moment.run in runs.by_key:
            of_gpu.setdefault(moment.gpu, []).append((runs.by_key[moment.run], moment))
    if is_rolled:
        for run in runs.by_host.get(host.key, ()):
            for row, gpu in enumerate(found.gpus):
                if gpu in run.gpus:
                    of_gpu.setdefault(row, []).append((run, None))
    nothing = [None] * len(found.gpus)
    columns = (
        nothing if (column := found.metrics.get(name)) is None else _round(column, metric, is_rolled=is_rolled)
        for name, metric in GPU_METRICS.items()
    )
    values: list[Values] = list(zip(*columns, strict=True))
    own = tuple(_round([found.host.get(name)], metric, is_rolled=is_rolled)[0] for name, metric in HOST_METRICS.items())
    samples, begun = [], []
    for row in rows:
        known, there = gpus[found.gpus[row]], of_gpu.get(row, ())
        processes = None if states[row] == UNKNOWN else tuple(_make_process(run, moment) for run, moment in there)
        samples.append(GpuSample(known.uuid, known.label, known.model, states[row], values[row], processes))
        begun.append(found.since[row])
    sample = HostSample(host.host_id, host.name, found.at, found.covered, own, tuple(samples))
    return PastHost(sample, begun, is_rolled=is_rolled)


def _round(values: list[float | None], metric: Metric, *, is_rolled: bool) -> list[float | None]:
    """To the metric's precision, an int where that is whole. Samples have it already."""
    if is_rolled:
        return [None if value is None else metric.round(value) for value in values]
    if metric.precision >= 1:
        return [None if value is None else int(value) for value in values]
    return [None if value is None else round(value, 6) for value in values]


def _make_process(run: PastRun, moment: RunMoment | None) -> ProcessSample:
    memory, utilization = (None, None) if moment is None else (moment.memory, moment.utilization)
    return ProcessSample(
        run.pid,
        run.started_at,
        run.user,
        run.command,
        run.container,
        run.job,
        None if memory is None else int(memory),
        utilization,
    )


def _find_runs(
    view: "HistoryView", batch: Iterable[tuple[KnownHost, HourMoment | None, bool]], at: float
) -> _FoundRuns:
    keys = {moment.run for _, found, _ in batch if found is not None for moment in found.runs}
    rolled = [host.key for host, _, is_rolled in batch if is_rolled]
    begin = at // QUARTER * QUARTER
    by_host: dict[int, list[PastRun]] = {}
    for run in view.runs_between(rolled, begin, begin + QUARTER):
        by_host.setdefault(run.host, []).append(run)
    return _FoundRuns({run.key: run for run in view.runs_of(keys)}, by_host)
