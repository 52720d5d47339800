"""A past of plain arrays: hours that a test made up, with the sums that follow from them."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from gpudeck.history.base import KnownGpu, KnownHost, KnownRun, UsageAmounts, UseKey
from gpudeck.history.codec import Bytes, Floats
from gpudeck.history.hour import BUSY, Hour, RunSlice
from gpudeck.history.rollup import Quarters, hour_totals, quarter_totals, roll_up
from gpudeck.history.totals import FLEET, StepTotals, TotalsStack, stack_totals, sum_totals

T0 = 1_790_000_000 // 86_400 * 86_400
"""The beginning of a day."""
EVERY = 10.0


class FakePast:
    """As `HistoryView`. GPU keys are host × 100 + number; `reads` counts hours that were decoded."""

    def __init__(self, *hours: tuple[int, Hour], raw_since: float = 0.0) -> None:
        self._hours = sorted(hours, key=lambda pair: pair[1].start)
        self._raw_since = raw_since
        self.known_runs: dict[int, KnownRun] = {}
        self.known_uses: list[tuple[UseKey, UsageAmounts]] = []
        self.owners: dict[int, str | None] = {}
        self.reads = 0

    def gpus(self) -> dict[int, KnownGpu]:
        return {
            key: KnownGpu(key, f"GPU-{key}", host, f"{key % 100}", "H200", *self._seen(host))
            for host, hour in self._hours
            for key in hour.gpus
        }

    def hosts(self) -> dict[int, KnownHost]:
        return {host: KnownHost(host, f"id-{host}", f"gpu{host:02}", *self._seen(host)) for host, _ in self._hours}

    def run(self, key: int) -> KnownRun | None:
        return self.known_runs.get(key)

    def raw_since(self, hosts: Iterable[int]) -> float:
        return self._raw_since

    def hours(
        self, host: int, start: float, end: float, metrics: Collection[str], *, runs: bool = False
    ) -> Iterator[Hour]:
        for of, hour in self._hours:
            if of == host and start - 3600 < hour.start < end and hour.start + 3600 > self._raw_since:
                self.reads += 1
                yield only(hour, metrics, runs=runs)

    def quarters(self, host: int, start: float, end: float, metrics: Collection[str]) -> Iterator[Quarters]:
        for of, hour in self._hours:
            if of == host and start - 3600 < hour.start < end:
                yield roll_up(only(hour, metrics, runs=False))

    def host_hours(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        found = {
            (host, hour.start): hour_totals(roll_up(only(hour, metrics, runs=False)))
            for host, hour in self._hours
            if start <= hour.start < end
        }
        return stack_totals(found, metrics, 3600)

    def host_utilization(self, start: int, end: int, step: int) -> TotalsStack:
        return self.host_hours(start, end, ("utilization_percent",))

    def fleet_quarters(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        found: dict[tuple[int, int], StepTotals] = {}
        for _, hour in self._hours:
            for totals in quarter_totals(roll_up(only(hour, metrics, runs=False))):
                known = found.get((FLEET, totals.start))
                found[FLEET, totals.start] = totals if known is None else sum_totals([known, totals])
        return stack_totals({key: totals for key, totals in found.items() if start <= key[1] < end}, metrics, 900)

    def uses(
        self, start: int, end: int, *, by_host: bool = False, hourly: bool = False
    ) -> Iterator[tuple[UseKey, UsageAmounts]]:
        for key, use in self.known_uses:
            if start <= key[0] < end:
                yield (key if hourly else (start, *key[1:])), use

    def observed(self, start: int, end: int) -> float:
        return sum(float(hour.observed.sum()) for _, hour in self._hours if start <= hour.start < end)

    def owner(self, run: int) -> str | None:
        return self.owners.get(run)

    def _seen(self, host: int) -> tuple[float, float]:
        times = [hour.times for of, hour in self._hours if of == host and len(hour.times)]
        return (float(times[0][0]), float(times[-1][-1])) if times else (0.0, 0.0)


def only(hour: Hour, metrics: Collection[str], *, runs: bool) -> Hour:
    """What was asked for of it."""
    gpu = {name: values for name, values in hour.metrics.items() if name in metrics}
    host = {name: values for name, values in hour.host.items() if f"host_{name}" in metrics}
    return Hour(hour.start, hour.times, hour.covered, hour.gpus, hour.states, gpu, host, hour.runs if runs else [])


def make_hour(
    start: int = T0,
    *,
    host: int = 1,
    gpus: int = 1,
    every: float = EVERY,
    states: Bytes | int = BUSY,
    host_metrics: dict[str, Floats | float] | None = None,
    runs: list[RunSlice] | None = None,
    **metrics: Floats | float,
) -> tuple[int, Hour]:
    """A host's hour with a sample every ten seconds. A number is the same for all GPUs all the time."""
    times = start + np.arange(0, 3600, every)
    shape = (gpus, len(times))
    hour = Hour(
        start=start,
        times=times,
        covered=np.full(len(times), every),
        gpus=[host * 100 + number for number in range(gpus)],
        states=np.broadcast_to(np.asarray(states, dtype=np.uint8), shape).copy(),
        metrics={"memory_total_bytes": np.full(shape, 80e9)}
        | {name: np.broadcast_to(np.asarray(value, dtype=float), shape).copy() for name, value in metrics.items()},
        host={
            name: np.broadcast_to(np.asarray(value, dtype=float), shape[1:]).copy()
            for name, value in (host_metrics or {}).items()
        },
        runs=runs or [],
    )
    return host, hour


def without(pair: tuple[int, Hour], first: int, end: int) -> tuple[int, Hour]:
    """The hour without the samples from number `first` until `end`: nobody looked then."""
    host, hour = pair
    keep = np.r_[0:first, end : len(hour.times)]
    return host, Hour(
        hour.start,
        hour.times[keep],
        hour.covered[keep],
        hour.gpus,
        hour.states[:, keep],
        {name: values[:, keep] for name, values in hour.metrics.items()},
        {name: values[keep] for name, values in hour.host.items()},
        [RunSlice(p.run, p.gpu, p.present[keep], p.memory[keep], p.utilization[keep]) for p in hour.runs],
    )
