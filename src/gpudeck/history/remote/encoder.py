"""A host's sample as series of remote_write 1.0, and usage as counters in it. Unknown values are left out.

    WriteRequest  1: TimeSeries, repeated      TimeSeries  1: Label, repeated  2: Sample, repeated
    Label         1: name  2: value            Sample      1: value (double)   2: Unix milliseconds (varint)

Concatenated requests are one request with the series of both: they can be joined without decoding them.

Counters follow the rules of accounting.py. A counter that went back by a little would be taken for one that began again
from 0: so the totals are on the disk before they are sent. Nothing is ever counted twice.
"""

import contextlib
import logging
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field

from gpudeck.agent.token_file import replace_file
from gpudeck.history.base import KnownGpu, KnownHost
from gpudeck.history.hour import Hour, RunSlice, or_none
from gpudeck.history.remote.promql import COUNTERS, GPU_SERIES, HOST_SERIES, OBSERVED, STATE, USER_MEMORY, label_value
from gpudeck.history.sample import (
    GPU_NAMES,
    HOST_NAMES,
    STATE_NUMBERS,
    STATES,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.model.exposition import ExposedMetric

log = logging.getLogger(__name__)

_pack_value = struct.Struct("<Bd").pack
_VALUE = 0x09
_TIME = 0x10
_TIME_BYTES = 6
_SAMPLE_BYTES = 9 + 1 + _TIME_BYTES
"""A sample is always as long: so the head of a series is written once, and not again for each sample."""
_LATEST = (1 << 7 * _TIME_BYTES) - 1
MAX_VALUES = 5_000
"""In one part: a host with very many GPUs comes in several."""
_UNKNOWN = STATE_NUMBERS["unknown"]
_IN_USE = {STATE_NUMBERS["busy"], STATE_NUMBERS["idle"]}
_MEMORY = GPU_NAMES.index("memory_used_bytes")
EVERY: Final = 30.0
_MOST: Final = 200_000
CLOCK_WAS_WRONG: Final = 3600.0
"""Beyond this a time in the future is none to wait for: the clock was wrong and has been put right."""
_IDLE = STATE_NUMBERS["idle"]
_UTILIZATION = GPU_NAMES.index("utilization_percent")
_POWER = GPU_NAMES.index("power_watts")

_Key = tuple[str | None, str, str, str]
"""User, host's id, host's name, model."""
Amounts = list[float | None]
"""In the order of COUNTERS. None: of nothing so far was it known."""
_NOTHING: Final = (0.0, None, 0.0, None)


def encode_head(name: str, labels: Mapping[str, str | None]) -> bytes:
    """A series without its sample. Labels are sorted, as Prometheus requires; empty ones are left out."""
    named = sorted({"__name__": name, **labels}.items())
    head = b"".join(_encode_label(key, value) for key, value in named if value) + b"\x12" + varint(_SAMPLE_BYTES)
    return b"\x0a" + varint(len(head) + _SAMPLE_BYTES) + head


def encode_series(head: bytes, value: float, time: bytes) -> bytes:
    return head + _pack_value(_VALUE, value) + time


def encode_time(at: float) -> bytes:
    """Cut to hundredths of a second, so that no sample lies in the last millisecond of a second, where windows end."""
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


def _encode_label(name: str, value: str) -> bytes:
    body = _encode_text(0x0A, name) + _encode_text(0x12, label_value(value))
    return b"\x0a" + varint(len(body)) + body


def _encode_text(tag: int, text: str) -> bytes:
    raw = text.encode()
    return bytes((tag,)) + varint(len(raw)) + raw


class EncodedSeries(Struct, frozen=True):
    """Series of one host at one moment: bytes of a request, and their number of values."""

    body: bytes
    values: int
    at: float


_Labels = tuple[tuple[str, str | None], ...]


@lru_cache(maxsize=1 << 18)
def _head(series: str, labels: _Labels) -> bytes:
    return encode_head(series, dict(labels))


@lru_cache(maxsize=1 << 18)
def _heads(labels: _Labels, *, is_host: bool) -> list[bytes]:
    """The heads of all metrics of a host or GPU. Encoding them each time would cost ten times as much as the values."""
    return [encode_head(series.name, dict(labels)) for series in (HOST_SERIES if is_host else GPU_SERIES)]


def encode_sample(sample: HostSample, seconds: float) -> list[EncodedSeries]:
    """`seconds` is the time that the sample represents."""
    time, own = encode_time(sample.at), (("host", sample.name), ("host_id", sample.host_id))
    series = _encode_values(_heads(own, is_host=True), HOST_SERIES, sample.values, time)
    series.append(encode_series(_head(OBSERVED, own), seconds, time))
    for gpu in sample.gpus:
        series += _encode_gpu(gpu, (*own, ("gpu", gpu.label), ("uuid", gpu.uuid), ("model", gpu.model)), time)
    return join_series(series, sample.at)


def join_series(series: list[bytes], at: float) -> list[EncodedSeries]:
    pieces = (series[first : first + MAX_VALUES] for first in range(0, len(series), MAX_VALUES))
    return [EncodedSeries(b"".join(piece), len(piece), at) for piece in pieces]


def _encode_gpu(gpu: GpuSample, labels: _Labels, time: bytes) -> list[bytes]:
    series = _encode_values(_heads(labels, is_host=False), GPU_SERIES, gpu.values, time)
    if gpu.state >= _UNKNOWN:
        series.append(encode_series(_head(STATE, (*labels, ("state", STATES[gpu.state]))), 1.0, time))
    series += [
        encode_series(_head(USER_MEMORY, (*labels, ("user", user))), size, time)
        for user, size in memory_by_user(gpu).items()
        if size is not None
    ]
    return series


def _encode_values(heads: list[bytes], series: tuple[ExposedMetric, ...], values: Values, time: bytes) -> list[bytes]:
    return [
        encode_series(head, exposed.scale(value), time)
        for head, exposed, value in zip(heads, series, values, strict=True)
        if value is not None and math.isfinite(value)
    ]


def memory_by_user(gpu: GpuSample) -> dict[str | None, float | None]:
    """The users of a GPU and their memory. The user of a GPU in use without visible processes is None. A user's memory
    is unknown if that of one of the processes is."""
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


def read_samples(
    hour: Hour, host: KnownHost, gpus: Mapping[int, KnownGpu], find_owner: Callable[[int], str | None]
) -> Iterator[tuple[HostSample, float]]:
    """The samples of an hour, with the seconds that each represents. `find_owner` returns the user of a run."""
    table = np.stack([hour.metric(name) for name in GPU_NAMES], axis=2)
    nothing = np.full(len(hour.times), np.nan)
    own = np.stack([hour.host.get(name, nothing) for name in HOST_NAMES], axis=1)
    runs: list[list[tuple[RunSlice, str | None]]] = [[] for _ in hour.gpus]
    for part in hour.runs:
        runs[part.gpu].append((part, find_owner(part.run)))
    known = [(row, gpus[key]) for row, key in enumerate(hour.gpus) if key in gpus]
    for place, (at, seconds) in enumerate(zip(hour.times.tolist(), hour.covered.tolist(), strict=True)):
        shown = tuple(
            GpuSample(
                gpu.uuid,
                gpu.label,
                gpu.model,
                int(hour.states[row, place]),
                tuple(or_none(table[row, place])),
                tuple(_read_process(part, user, place) for part, user in runs[row] if part.present[place]),
            )
            for row, gpu in known
        )
        yield HostSample(host.host_id, host.name, at, seconds, tuple(or_none(own[place])), shown), seconds


def _read_process(part: RunSlice, user: str | None, place: int) -> ProcessSample:
    (memory,) = or_none(part.memory[place : place + 1])
    return ProcessSample(part.run, None, user, None, None, None, None if memory is None else int(memory), None)


class _Count(Struct, array_like=True):
    """`sent` are the totals that were last sent, `sent_at` when."""

    totals: Amounts = field(default_factory=lambda: list(_NOTHING))
    sent: Amounts = field(default_factory=lambda: list(_NOTHING))
    sent_at: float = 0.0
    changed_from: float = 0.0


class _Saved(Struct):
    """`at` is when these totals were sent."""

    at: float
    totals: list[tuple[_Key, Amounts]]


class UsageCounters:
    """For one thread. `file` keeps the totals between runs of the hub."""

    def __init__(self, file: Path, hub: str | None = None) -> None:
        self._file = file
        self._hub = hub
        self._counts = _load(file)
        self._sent_at = max((count.sent_at for count in self._counts.values()), default=-math.inf)
        self.problem: str | None = None

    def count(self, sample: HostSample, seconds: float) -> None:
        """`seconds` is the time that the sample represents."""
        for gpu in sample.gpus:
            for user, amounts in use_of(gpu, seconds):
                self._add((user, sample.host_id, sample.name, gpu.model), amounts, sample.at - seconds)

    def take_changed(self, now: float, *, at_last: bool = False) -> list[EncodedSeries]:
        """The changed totals as series, once in EVERY seconds or `at_last`. Do not send them before `save`. `now` is
        the time of the newest sample."""
        is_early = 0 < now - self._sent_at < EVERY and not at_last
        if is_early or -CLOCK_WAS_WRONG < now - self._sent_at <= 0 or not math.isfinite(now):
            return []
        self._sent_at = now
        series: list[bytes] = []
        for key, count in self._counts.items():
            if count.totals != count.sent:
                series += _encode(key, count, now, self._hub)
                count.sent, count.sent_at = count.totals, now
        return join_series(series, now)

    def save(self) -> bool:
        """Returns whether the totals are on the disk. If not, they must not be sent."""
        saved = _Saved(self._sent_at, [(key, count.totals) for key, count in self._counts.items()])
        try:
            replace_file(self._file, msgspec.msgpack.encode(saved))
        except OSError as error:
            self.problem = f"the counters cannot be saved in {self._file}: {error.strerror}"
            return False
        self.problem = None
        return True

    def _add(self, key: _Key, amounts: Amounts, since: float) -> None:
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _MOST:
                self.problem = f"more than {_MOST} pairs of user and host: the counters of new ones are not kept"
                return
            count = self._counts[key] = _Count()
        if count.totals == count.sent:
            count.changed_from = since
        count.totals = [
            (total if amount is None else (total or 0.0) + amount)
            for total, amount in zip(count.totals, amounts, strict=True)
        ]


def _load(file: Path) -> dict[_Key, _Count]:
    """Saved totals count as sent. A damaged file is renamed, and the counters start again."""
    try:
        saved = msgspec.msgpack.decode(file.read_bytes(), type=_Saved)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the counters in %s cannot be read and begin again: %s", file, error)
        with contextlib.suppress(OSError):
            file.rename(file.with_suffix(".damaged"))
        return {}
    return {key: _Count(totals, totals, saved.at) for key, totals in saved.totals if len(totals) == len(COUNTERS)}


def _encode(key: _Key, count: _Count, now: float, hub: str | None) -> list[bytes]:
    """The totals, and before them the totals at the time when the change began, unless these were just sent: a window
    that begins in between would miss the first step."""
    user, host_id, host, model = key
    own = {"user": user, "host": host, "host_id": host_id, "model": model}
    own |= {} if hub is None else {"hub": hub}
    labels = [encode_head(name, own) for name in COUNTERS]
    before = [None if total is None else sent or 0.0 for total, sent in zip(count.totals, count.sent, strict=True)]
    earlier = [(before, count.changed_from)] if count.sent_at < count.changed_from < now else []
    return [
        encode_series(label, total, time)
        for totals, time in ((totals, encode_time(at)) for totals, at in (*earlier, (count.totals, now)))
        for label, total in zip(labels, totals, strict=True)
        if total is not None
    ]


def use_of(gpu: GpuSample, seconds: float) -> list[tuple[str | None, Amounts]]:
    utilization, power = gpu.values[_UTILIZATION], gpu.values[_POWER]
    amounts = (
        seconds,
        None if utilization is None else seconds * utilization / 100,
        seconds if gpu.state == _IDLE else 0.0,
        None if power is None else seconds * power,
    )
    return [
        (user, [None if amount is None else share * amount for amount in amounts])
        for user, share in _share(memory_by_user(gpu)).items()
    ]


def _share(memory: dict[str | None, float | None]) -> dict[str | None, float]:
    """Shares by memory. Equal shares if the memory of a user is unknown, or if that of all is 0."""
    known = [size for size in memory.values() if size is not None]
    total = sum(known)
    if len(known) < len(memory) or total <= 0:
        return dict.fromkeys(memory, 1 / max(1, len(memory)))
    return {user: (size or 0.0) / total for user, size in memory.items()}
