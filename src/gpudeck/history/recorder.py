"""Samples the live fleet for the history: each host every few seconds, as soon as it has reported."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.fleet.columns import AVAILABILITY_WORDS, Rows, rows_of
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.history.codec import Floats
from gpudeck.history.hour import or_none
from gpudeck.history.sample import (
    GPU_NAMES,
    HOST_NAMES,
    NOTHING,
    STATE_NUMBERS,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.model.report import Process


class Devices(Struct, frozen=True):
    """The GPUs of a host and the processes on each GPU, without their numbers. None: the processes are unknown."""

    uuids: tuple[str, ...]
    labels: tuple[str, ...]
    models: tuple[str, ...]
    processes: tuple[tuple[ProcessSample, ...] | None, ...]


class LiveBatch(Struct):
    """Samples of several hosts. `names` are id and name of each, `moments` its time and the time to the next one, `own`
    its values; `table` and `states` have a row for each GPU, `runs` one for each process on a GPU: memory and
    utilization. NaN is unknown. Samples of one host share `devices` until they change. `is_forwarded`: another hub
    took the reports, and sends them to the store that all hubs share."""

    names: list[tuple[str, str]]
    moments: Floats
    own: Floats
    devices: list[Devices]
    states: bytes
    table: Floats
    runs: Floats
    is_forwarded: bool = False

    def split(self) -> Iterator["LiveBatch"]:
        gpu = run = 0
        for place, devices in enumerate(self.devices):
            at, gpus = slice(place, place + 1), gpu + len(devices.uuids)
            runs = run + sum(len(some) for some in devices.processes if some)
            tables = self.states[gpu:gpus], self.table[gpu:gpus], self.runs[run:runs]
            yield LiveBatch(self.names[at], self.moments[at], self.own[at], [devices], *tables)
            gpu, run = gpus, runs


Sample = HostSample | LiveBatch
"""One sample, or several."""


def count_samples(samples: Iterable[Sample]) -> int:
    return sum([len(one.names) if isinstance(one, LiveBatch) else 1 for one in samples])


def as_batch(samples: Sequence[Sample]) -> LiveBatch:
    """Joins samples in their order. At least one."""
    batches: list[LiveBatch] = []
    for _, some in groupby(samples, type):
        alike = list(some)
        plain = [one for one in alike if isinstance(one, HostSample)]
        batches += [_make_batch(plain)] if plain else [one for one in alike if isinstance(one, LiveBatch)]
    if len(batches) == 1:
        return batches[0]
    return LiveBatch(
        [name for one in batches for name in one.names],
        np.concatenate([one.moments for one in batches]),
        np.concatenate([one.own for one in batches]),
        [devices for one in batches for devices in one.devices],
        b"".join([one.states for one in batches]),
        np.concatenate([one.table for one in batches]),
        np.concatenate([one.runs for one in batches]),
    )


def _make_batch(samples: list[HostSample]) -> LiveBatch:
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    there = [process for gpu in gpus for process in gpu.processes or ()]
    return LiveBatch(
        [(sample.host_id, sample.name) for sample in samples],
        np.array([(sample.at, sample.interval) for sample in samples], np.float64),
        np.array([sample.values for sample in samples], np.float64).reshape(-1, len(HOST_NAMES)),
        [_describe_samples(sample.gpus) for sample in samples],
        bytes([gpu.state for gpu in gpus]),
        np.array([gpu.values for gpu in gpus], np.float64).reshape(-1, len(GPU_NAMES)),
        np.array([(one.memory_bytes, one.utilization_percent) for one in there], np.float64).reshape(-1, 2),
    )


def _describe_samples(gpus: Sequence[GpuSample]) -> Devices:
    return Devices(
        tuple([gpu.uuid for gpu in gpus]),
        tuple([gpu.label for gpu in gpus]),
        tuple([gpu.model for gpu in gpus]),
        tuple([gpu.processes and tuple(map(without_numbers, gpu.processes)) for gpu in gpus]),
    )


def without_numbers(process: ProcessSample) -> ProcessSample:
    return process._replace(memory_bytes=None, utilization_percent=None)


def as_host_samples(samples: Iterable[Sample]) -> Iterator[HostSample]:
    for one in samples:
        if isinstance(one, HostSample):
            yield one
        else:
            yield from map(_as_host_sample, one.split())


def _as_host_sample(sample: LiveBatch) -> HostSample:
    (devices,), ((at, interval),) = sample.devices, sample.moments.tolist()
    numbers = iter(map(_plain, sample.runs))
    processes = [
        None
        if there is None
        else tuple(
            [
                one._replace(memory_bytes=None if memory is None else int(memory), utilization_percent=percent)
                for one, (memory, percent) in zip(there, numbers, strict=False)
            ]
        )
        for there in devices.processes
    ]
    rows = zip(
        *(devices.uuids, devices.labels, devices.models, sample.states, map(_plain, sample.table), processes),
        strict=True,
    )
    gpus = tuple([GpuSample(*row) for row in rows])
    return HostSample(*sample.names[0], at, interval, _plain(sample.own[0]), gpus)


def _plain(values: Floats) -> Values:
    return tuple(or_none(values))


_MAX_WAITING = 20_000
_GATHER_SECONDS: Final = 0.05
"""Backlogs of many hosts that come in within this time are written together."""


class Recorder(FleetObserver):
    """Samples the reports that are taken; `hand_over` gives what was sampled since the last time to `take`.

    Reports that waited in an outbox are sampled by the time they were made. A backlog comes in many times faster than
    it grew: its sender is answered only after `save_backlog`, and keeps it until then. `flush` blocks until what was
    taken is on the disk.
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
        self._backlog += is_backlog
        if self._is_due(host, observed_at):
            sample = sample_host(host, round(observed_at, 3), max(self._every, host.interval))
            self._samples.append(replace(as_batch([sample]), is_forwarded=True) if host.is_forwarded else sample)

    def on_time(self, now: float) -> None:
        """Samples of the last second go to the store before anything else is done in the next one."""
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
        self.dropped += (is_full := self._waiting >= _MAX_WAITING)
        self._waiting += not is_full
        return not is_full

    def _sample_all(self, table: FleetTable, reports: list[Pending], *, is_forwarded: bool) -> LiveBatch:
        """Samples all reports that were just judged, with few operations."""
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
            if len(self._devices) > 2 * _MAX_WAITING:
                self._devices.pop(next(iter(self._devices)))
        return known

    async def _write(self) -> None:
        """One write at a time: each blocks a thread until the disk is done."""
        try:
            await asyncio.sleep(_GATHER_SECONDS)
            noted = self._backlog
            self.hand_over()
            await asyncio.to_thread(self._flush)
            self._written = noted
        finally:
            self._writing = None


class _HostDevices(Struct):
    """The devices of a host at that version. `run_rows` are the rows of its processes without display servers."""

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
    samples = sample_processes(processes)
    return samples and tuple(map(without_numbers, samples))


def _find_runs(gpus: Iterable[GpuState]) -> Rows:
    rows = [
        gpu.process_rows.start + place
        for gpu in gpus
        for place, process in enumerate(gpu.reported_processes or ())
        if not process.display
    ]
    return np.array(rows, np.int64)


def sample_host(host: HostState, at: float, interval: float) -> HostSample:
    gpus = tuple([_sample_gpu(gpu) for gpu in host.gpus.values()])
    return HostSample(host.id, host.name, at, interval, tuple(host.numbers()), gpus)


def _sample_gpu(gpu: GpuState) -> GpuSample:
    """The values of a GPU in an unknown state are old and are left out."""
    state = STATE_NUMBERS[gpu.availability]
    if not gpu.is_current:
        return GpuSample(gpu.uuid, gpu.label, gpu.name, state, NOTHING, None)
    return GpuSample(gpu.uuid, gpu.label, gpu.name, state, tuple(gpu.numbers()), sample_processes(gpu.processes))


def sample_processes(processes: list[Process] | None) -> tuple[ProcessSample, ...] | None:
    return (
        None
        if processes is None
        else tuple(
            [
                ProcessSample(
                    *(one.pid, one.started_at, one.user, one.command, one.container, one.job),
                    one.memory_used_bytes,
                    one.utilization_percent,
                )
                for one in processes
                if not one.display
            ]
        )
    )
