"""From the live fleet into the history: each host every few seconds, as soon as it has reported.

This is called for every report, so it decides in a few hundred nanoseconds whether the report is worth a sample.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gpudeck.history.sample import NOTHING, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.hub.observers import FleetObserver
from gpudeck.model.report import Process

_MOST_WAITING = 20_000
_GATHER_SECONDS: Final = 0.05
"""Backlogs of many hosts that come in within this time are written together."""


class Recorder(FleetObserver):
    """Samples the reports that are taken; `hand_over` gives what was sampled since the last time to `take`.

    `every` is how far apart samples of one host are. Reports that waited in an outbox are sampled by the time they were
    made, so a gap fills up afterwards. A backlog comes in many times faster than it grew, so that a second of it is
    worth a minute: its sender is answered only after `save_backlog`, and keeps it until then. `flush` blocks until
    what was taken is on the disk.
    """

    name = "history"

    def __init__(
        self, every: float, take: Callable[[list[HostSample]], None], flush: Callable[[], bool] = lambda: True
    ) -> None:
        self.dropped = 0
        self._every = every
        self._take = take
        self._flush = flush
        self._samples: list[HostSample] = []
        self._backlog = self._written = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def has_unsaved_backlog(self) -> bool:
        return self._backlog > self._written

    def on_report(self, host: HostState, observed_at: float, is_backlog: bool) -> None:
        self._backlog += is_backlog
        self._sample(host, observed_at)

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        self._backlog += 1
        self._sample(replay, observed_at)

    def on_time(self, now: float) -> None:
        """What was sampled in a second is on its way to the disk before anything else is done in the next."""
        self.hand_over()

    async def save_backlog(self) -> None:
        noted = self._backlog
        while self._written < noted:
            if self._writing is None:
                self._writing = asyncio.create_task(self._write())
            await asyncio.shield(self._writing)

    def hand_over(self) -> None:
        if self._samples:
            samples, self._samples = self._samples, []
            self._take(samples)

    def _sample(self, host: HostState, observed_at: float) -> None:
        slot = observed_at // self._every
        if host.sampled_slot == slot:
            return
        host.sampled_slot = slot
        if len(self._samples) >= _MOST_WAITING:
            self.dropped += 1
            return
        interval = max(self._every, host.interval)
        self._samples.append(sample_host(host, round(observed_at, 3), interval))

    async def _write(self) -> None:
        """One at a time: each takes a thread for as long as the disk takes."""
        try:
            await asyncio.sleep(_GATHER_SECONDS)
            noted = self._backlog
            self.hand_over()
            await asyncio.to_thread(self._flush)
            self._written = noted
        finally:
            self._writing = None


def sample_host(host: HostState, at: float, interval: float) -> HostSample:
    """A host as it is now."""
    gpus = tuple([_sample_gpu(gpu) for gpu in host.gpus.values()])
    return HostSample(host.id, host.name, at, interval, tuple(host.numbers()), gpus)


def _sample_gpu(gpu: GpuState) -> GpuSample:
    """Of a GPU in an unknown state the values are old: none is kept."""
    state = STATE_NUMBERS[gpu.availability]
    if not gpu.is_current:
        return GpuSample(gpu.uuid, gpu.label, gpu.name, state, NOTHING, None)
    processes = gpu.processes
    sampled = None if processes is None else tuple([_sample_process(one) for one in processes if not one.display])
    return GpuSample(gpu.uuid, gpu.label, gpu.name, state, tuple(gpu.numbers()), sampled)


def _sample_process(one: Process) -> ProcessSample:
    return ProcessSample(
        one.pid,
        one.started_at,
        one.user,
        one.command,
        one.container,
        one.job,
        one.memory_used_bytes,
        one.utilization_percent,
    )
