"""Samples of the live fleet as arrays: thousands each second, of which little but numbers changes. `history.recorder`
makes them in the event loop."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, GpuSample, HostSample, ProcessSample, Values

_Floats = NDArray[np.float64]


class Devices(Struct, frozen=True):
    """Which GPUs a host has, and which processes are on each; None where these are unknown. Processes have no numbers
    here."""

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
    moments: _Floats
    own: _Floats
    devices: list[Devices]
    states: bytes
    table: _Floats
    runs: _Floats
    is_forwarded: bool = False

    def split(self) -> Iterator["LiveBatch"]:
        """Each sample as a batch."""
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
    """All of them together, in their order. At least one."""
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
        [_describe(sample.gpus) for sample in samples],
        bytes([gpu.state for gpu in gpus]),
        np.array([gpu.values for gpu in gpus], np.float64).reshape(-1, len(GPU_NAMES)),
        np.array([(one.memory_bytes, one.utilization_percent) for one in there], np.float64).reshape(-1, 2),
    )


def _describe(gpus: Sequence[GpuSample]) -> Devices:
    return Devices(
        tuple([gpu.uuid for gpu in gpus]),
        tuple([gpu.label for gpu in gpus]),
        tuple([gpu.model for gpu in gpus]),
        tuple([gpu.processes and tuple(map(without_numbers, gpu.processes)) for gpu in gpus]),
    )


def without_numbers(process: ProcessSample) -> ProcessSample:
    return process._replace(memory_bytes=None, utilization_percent=None)


def as_host_samples(samples: Iterable[Sample]) -> Iterator[HostSample]:
    """The same in plain tuples, one by one."""
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


def _plain(values: _Floats) -> Values:
    return tuple([None if value != value else value for value in values.tolist()])  # noqa: PLR0124 - NaN
