"""A host's sample as series for the store. Unknown values are left out: there is no sample that says 0."""

import math
from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct, field

from gpudeck.history.remote.names import GPU_SERIES, HOST_SERIES, OBSERVED, STATE, USER_MEMORY
from gpudeck.history.remote.protobuf import encode_head, encode_series, encode_time
from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, STATES, GpuSample, HostSample, Values
from gpudeck.model.exposition import Exposed

MOST_VALUES = 5_000
"""In one part: a host with very many GPUs comes in several."""
_UNKNOWN = STATE_NUMBERS["unknown"]
_IN_USE = {STATE_NUMBERS["busy"], STATE_NUMBERS["held"]}
_MEMORY = GPU_NAMES.index("memory_used_bytes")


class Part(Struct, frozen=True):
    """Some series of one host at one moment: bytes that can stand in a request, and how many values they are."""

    body: bytes
    values: int
    at: float


class _Labels(Struct):
    """Encoded heads of the series of a host or a GPU: one a metric, and others as they turn up."""

    own: dict[str, str]
    metrics: list[bytes]
    others: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def head(self, series: str, label: str = "", value: str | None = None) -> bytes:
        """Of a series with one more label."""
        key = (series, value or "")
        known = self.others.get(key)
        if known is None:
            known = self.others[key] = encode_head(series, {**self.own, label: value})
        return known


_GpuKey = tuple[str, str, str]


class _Host(Struct):
    labels: _Labels
    gpus: dict[_GpuKey, _Labels] = field(default_factory=dict)


class Scribe:
    """Knows the labels of every host by heart: to encode them each time would cost ten times as much as the values."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    def write(self, sample: HostSample, seconds: float) -> list[Part]:
        """`seconds` is what the sample stands for."""
        host = self._host(sample)
        time = encode_time(sample.at)
        series = _encode_values(host.labels.metrics, HOST_SERIES, sample.values, time)
        series.append(encode_series(host.labels.head(OBSERVED), seconds, time))
        known, host.gpus = host.gpus, {}
        for gpu in sample.gpus:
            key = (gpu.uuid, gpu.label, gpu.model)
            labels = host.gpus[key] = known.get(key) or _label_gpu(host.labels.own, gpu)
            series += _encode_gpu(labels, gpu, time)
        pieces = (series[at : at + MOST_VALUES] for at in range(0, len(series), MOST_VALUES))
        return [Part(b"".join(piece), len(piece), sample.at) for piece in pieces]

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """The labels of hosts that are no more."""
        for host_id in [host_id for host_id in self._hosts if is_gone(host_id)]:
            del self._hosts[host_id]

    def _host(self, sample: HostSample) -> _Host:
        own = {"host": sample.name, "host_id": sample.host_id}
        host = self._hosts.get(sample.host_id)
        if host is None or host.labels.own != own:
            labels = _Labels(own, [encode_head(series.name, own) for series in HOST_SERIES])
            host = self._hosts[sample.host_id] = _Host(labels)
        return host


def _label_gpu(host: dict[str, str], gpu: GpuSample) -> _Labels:
    own = host | {"gpu": gpu.uuid, "index": gpu.label, "model": gpu.model}
    return _Labels(own, [encode_head(series.name, own) for series in GPU_SERIES])


def _encode_gpu(labels: _Labels, gpu: GpuSample, time: bytes) -> list[bytes]:
    series = _encode_values(labels.metrics, GPU_SERIES, gpu.values, time)
    if gpu.state >= _UNKNOWN:
        series.append(encode_series(labels.head(STATE, "state", STATES[gpu.state]), 1.0, time))
    memory = memory_by_user(gpu)
    if len(labels.others) > 100 + len(memory):
        labels.others.clear()
    series += [
        encode_series(labels.head(USER_MEMORY, "user", user), size, time)
        for user, size in memory.items()
        if size is not None
    ]
    return series


def _encode_values(labels: list[bytes], series: tuple[Exposed, ...], values: Values, time: bytes) -> list[bytes]:
    return [
        encode_series(head, exposed.scale(value), time)
        for head, exposed, value in zip(labels, series, values, strict=True)
        if value is not None and math.isfinite(value)
    ]


def memory_by_user(gpu: GpuSample) -> dict[str | None, float | None]:
    """Who is on a GPU, and how much of its memory they have. A GPU in use with no program in sight is somebody's.

    Of a user of whose programs one is unknown in size, all is: the sum of the others would be too small.
    """
    if gpu.state <= _UNKNOWN:
        return {}
    if not gpu.processes:
        return {None: gpu.values[_MEMORY]} if gpu.state in _IN_USE else {}
    sizes: defaultdict[str | None, list[int | None]] = defaultdict(list)
    for process in gpu.processes:
        sizes[process.user].append(process.memory_bytes)
    return {user: _add(known) for user, known in sizes.items()}


def _add(sizes: list[int | None]) -> float | None:
    known = [size for size in sizes if size is not None]
    return float(sum(known)) if len(known) == len(sizes) else None
