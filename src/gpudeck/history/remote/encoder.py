"""A host's sample as series of remote_write 1.0. Unknown values are left out.

    WriteRequest  1: TimeSeries, repeated      Label   1: name    2: value
    TimeSeries    1: Label, repeated           Sample  1: value (double)    2: Unix milliseconds (varint)
                  2: Sample, repeated

Concatenated requests are one request with the series of both, as protobuf treats repeated fields: requests can be
joined without decoding them.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from gpudeck.history.remote.promql import GPU_SERIES, HOST_SERIES, OBSERVED, STATE, USER_MEMORY, label_value
from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, STATES, GpuSample, HostSample, Values
from gpudeck.model.exposition import Exposed

_pack_value = struct.Struct("<Bd").pack
_VALUE = 0x09
_TIME = 0x10
_TIME_BYTES = 6
_SAMPLE_BYTES = 9 + 1 + _TIME_BYTES
"""A sample is always as long: so the head of a series is written once, and not again for each sample."""
_LATEST = (1 << 7 * _TIME_BYTES) - 1
MOST_VALUES = 5_000
"""In one part: a host with very many GPUs comes in several."""
_UNKNOWN = STATE_NUMBERS["unknown"]
_IN_USE = {STATE_NUMBERS["busy"], STATE_NUMBERS["held"]}
_MEMORY = GPU_NAMES.index("memory_used_bytes")


def encode_head(name: str, labels: Mapping[str, str | None]) -> bytes:
    """All of a series but its sample. Labels are in the order that Prometheus insists on; one that is None or empty is
    none."""
    named = {"__name__": name, **labels}
    head = b"".join(_encode_label(key, value) for key, value in sorted(named.items()) if value)
    head += b"\x12" + varint(_SAMPLE_BYTES)
    return b"\x0a" + varint(len(head) + _SAMPLE_BYTES) + head


def encode_series(head: bytes, value: float, time: bytes) -> bytes:
    """One series with one sample, as part of a request. `head` and `time` are encoded already."""
    return head + _pack_value(_VALUE, value) + time


def encode_time(at: float) -> bytes:
    """Cut to hundredths: no sample then lies in the last millisecond of a second, which is where windows end."""
    milliseconds = min(max(0, int(at * 100) * 10), _LATEST)
    digits = [milliseconds >> 7 * place & 0x7F | 0x80 for place in range(_TIME_BYTES)]
    return bytes((_TIME, *digits[:-1], digits[-1] & 0x7F))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode_label(name: str, value: str | None) -> bytes:
    body = _encode_text(0x0A, name) + _encode_text(0x12, label_value(value or ""))
    return b"\x0a" + varint(len(body)) + body


def _encode_text(tag: int, text: str) -> bytes:
    raw = text.encode()
    return bytes((tag,)) + varint(len(raw)) + raw


class EncodedSeries(Struct, frozen=True):
    """Some series of one host at one moment: bytes that can stand in a request, and how many values they are."""

    body: bytes
    values: int
    at: float


class _SeriesHeads(Struct):
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
    labels: _SeriesHeads
    gpus: dict[_GpuKey, _SeriesHeads] = field(default_factory=dict)


class SeriesEncoder:
    """Knows the labels of every host by heart: to encode them each time would cost ten times as much as the values."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    def write(self, sample: HostSample, seconds: float) -> list[EncodedSeries]:
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
        return [EncodedSeries(b"".join(piece), len(piece), sample.at) for piece in pieces]

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """The labels of hosts that are no more."""
        for host_id in [host_id for host_id in self._hosts if is_gone(host_id)]:
            del self._hosts[host_id]

    def _host(self, sample: HostSample) -> _Host:
        own = {"host": sample.name, "host_id": sample.host_id}
        host = self._hosts.get(sample.host_id)
        if host is None or host.labels.own != own:
            labels = _SeriesHeads(own, [encode_head(series.name, own) for series in HOST_SERIES])
            host = self._hosts[sample.host_id] = _Host(labels)
        return host


def _label_gpu(host: dict[str, str], gpu: GpuSample) -> _SeriesHeads:
    own = host | {"gpu": gpu.uuid, "index": gpu.label, "model": gpu.model}
    return _SeriesHeads(own, [encode_head(series.name, own) for series in GPU_SERIES])


def _encode_gpu(labels: _SeriesHeads, gpu: GpuSample, time: bytes) -> list[bytes]:
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
    """The users of a GPU and their memory. A GPU in use without visible processes has the user None. If the memory of
    one of a user's processes is unknown, the user's is."""
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
