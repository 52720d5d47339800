"""From the live fleet into the history: each host every few seconds, as soon as it has reported."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gpudeck.fleet.columns import AVAILABILITY_WORDS, Rows, rows_of
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.history.live import Devices, LiveBatch, Sample
from gpudeck.history.sample import (
    NOTHING,
    STATE_NUMBERS,
    ForwardedSample,
    GpuSample,
    HostSample,
    ProcessSample,
)
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
        self, every: float, take: Callable[[list[Sample]], None], flush: Callable[[], bool] = lambda: True
    ) -> None:
        self.dropped = 0
        self._every = every
        self._take = take
        self._flush = flush
        self._samples: list[Sample] = []
        self._waiting = 0
        self._devices: dict[str, _HostDevices] = {}
        self._backlog = self._written = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def has_unsaved_backlog(self) -> bool:
        return self._backlog > self._written

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        self._backlog += sum(report.is_backlog for report in reports)
        due = [report for report in reports if self._is_due(report.host, report.observed_at)]
        for is_forwarded in (False, True):
            some = [report for report in due if report.host.is_forwarded is is_forwarded]
            if some:
                self._samples.append(self._sample_all(table, some, is_forwarded=is_forwarded))

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        self.record(replay, observed_at, is_backlog=True)

    def record(self, host: HostState, observed_at: float, *, is_backlog: bool) -> None:
        """Sample one host."""
        self._backlog += is_backlog
        if self._is_due(host, observed_at):
            sample = sample_host(host, round(observed_at, 3), max(self._every, host.interval))
            self._samples.append(ForwardedSample(*sample) if host.is_forwarded else sample)

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
            samples, self._samples, self._waiting = self._samples, [], 0
            self._take(samples)

    def _is_due(self, host: HostState, observed_at: float) -> bool:
        slot = observed_at // self._every
        if host.sampled_slot == slot:
            return False
        host.sampled_slot = slot
        self.dropped += (is_full := self._waiting >= _MOST_WAITING)
        self._waiting += not is_full
        return not is_full

    def _sample_all(self, table: FleetTable, reports: list[Pending], *, is_forwarded: bool) -> LiveBatch:
        """Reports that were just judged, with few operations for all of them."""
        hosts, every = [report.host for report in reports], self._every
        own_rows, rows = [host.row for host in hosts], rows_of([host.rows for host in hosts])
        values = table.gpus.values[rows]
        versions = table.hosts.devices_version[own_rows].tolist()
        known = [self._find_devices(report, version) for report, version in zip(reports, versions, strict=True)]
        if not all(report.has_gpus for report in reports):
            # Without a reading of its GPUs their values are old: none is kept.
            has_gpus = [report.has_gpus for report, of in zip(reports, known, strict=True) for _ in of.devices.uuids]
            values[~np.array(has_gpus, np.bool_)] = np.nan
        return LiveBatch(
            [(host.id, host.name) for host in hosts],
            np.array(
                [(report.observed_at, max(every, host.interval)) for report, host in zip(reports, hosts, strict=True)]
            ).round(3),
            table.hosts.values[own_rows],
            [of.devices for of in known],
            _STATES[table.gpus.availability[rows]].tobytes(),
            values,
            table.processes.values[np.concatenate([of.run_rows for of in known])],
            is_forwarded,
        )

    def _find_devices(self, report: Pending, version: int) -> "_HostDevices":
        host = report.host
        if not report.has_gpus:
            return _HostDevices(version, _describe(host.gpus.values(), is_current=False), _NO_RUNS)
        known = self._devices.get(host.id)
        if known is None or known.version != version:
            known = _HostDevices(
                version, _describe(host.gpus.values(), is_current=True), _find_runs(host.gpus.values())
            )
            self._devices[host.id] = known
            if len(self._devices) > 2 * _MOST_WAITING:
                self._devices.pop(next(iter(self._devices)))
        return known

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


class _HostDevices(Struct):
    """What was found of a host when its devices had that version. `run_rows` are the rows of its processes without
    display servers."""

    version: int
    devices: Devices
    run_rows: Rows


_NO_RUNS: Final = np.empty(0, np.int64)
_STATES: Final = np.array([STATE_NUMBERS[word or "absent"] for word in AVAILABILITY_WORDS], np.uint8)


def _describe(gpus: Collection[GpuState], *, is_current: bool) -> Devices:
    return Devices(
        tuple([gpu.uuid for gpu in gpus]),
        tuple([gpu.label for gpu in gpus]),
        tuple([gpu.name for gpu in gpus]),
        tuple([_describe_processes(gpu.reported_processes) if is_current else None for gpu in gpus]),
    )


def _describe_processes(processes: list[Process] | None) -> tuple[ProcessSample, ...] | None:
    """Without their numbers."""
    if processes is None:
        return None
    return tuple(
        [
            ProcessSample(one.pid, one.started_at, one.user, one.command, one.container, one.job, None, None)
            for one in processes
            if not one.display
        ]
    )


def _find_runs(gpus: Iterable[GpuState]) -> Rows:
    rows = [
        gpu.process_rows.start + place
        for gpu in gpus
        for place, process in enumerate(gpu.reported_processes or ())
        if not process.display
    ]
    return np.array(rows, np.int64)


def sample_host(host: HostState, at: float, interval: float) -> HostSample:
    """A host as it is now."""
    gpus = tuple([_sample_gpu(gpu) for gpu in host.gpus.values()])
    return HostSample(host.id, host.name, at, interval, tuple(host.numbers()), gpus)


def _sample_gpu(gpu: GpuState) -> GpuSample:
    """Of a GPU in an unknown state the values are old: none is kept."""
    state = STATE_NUMBERS[gpu.availability]
    if not gpu.is_current:
        return GpuSample(gpu.uuid, gpu.label, gpu.name, state, NOTHING, None)
    values = tuple(gpu.numbers())
    return GpuSample(gpu.uuid, gpu.label, gpu.name, state, values, _sample_processes(gpu.processes))


def _sample_processes(processes: list[Process] | None) -> tuple[ProcessSample, ...] | None:
    return None if processes is None else tuple([_sample_process(one) for one in processes if not one.display])


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
