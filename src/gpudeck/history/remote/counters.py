"""Who used what, as counters that only grow: any dashboard of the site can ask them for GPU-hours by user.

By the rules of accounting.py, applied to one sample at a time. A counter that went back by a little would be taken for
one that began again from 0, and count everything twice: so the totals are on the disk before anybody is told them. What
was counted after the last time is then missing, at most `EVERY` seconds, and nothing is ever counted twice.
"""

import contextlib
import logging
import math
import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from gpudeck.history.remote.encoder import (
    MOST_VALUES,
    EncodedSeries,
    encode_head,
    encode_series,
    encode_time,
    memory_by_user,
)
from gpudeck.history.remote.promql import COUNTERS
from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, GpuSample, HostSample

log = logging.getLogger(__name__)

EVERY: Final = 30.0
_MOST: Final = 200_000
CLOCK_WAS_WRONG: Final = 3600.0
"""Beyond this a time in the future is none to wait for: the clock was wrong and has been put right."""
_HELD = STATE_NUMBERS["held"]
_UTILIZATION = GPU_NAMES.index("utilization_percent")
_POWER = GPU_NAMES.index("power_watts")

_Key = tuple[str | None, str, str, str]
"""User, host's id, host's name, model."""
Amounts = list[float | None]
"""In the order of COUNTERS. None: of nothing so far was it known."""
_NOTHING: Final = (0.0, None, 0.0, None)


class _Count(Struct, array_like=True):
    """`sent_at` is when the totals were last sent; `sent` what they were then."""

    totals: Amounts = field(default_factory=lambda: list(_NOTHING))
    sent: Amounts = field(default_factory=lambda: list(_NOTHING))
    sent_at: float = 0.0
    changed_from: float = 0.0


class _Saved(Struct):
    """`at` is when these totals were sent."""

    at: float
    totals: list[tuple[_Key, Amounts]]


class UsageCounters:
    """One thread owns it. `file` keeps the totals while no hub runs."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts = _load(file)
        self._sent_at = max((count.sent_at for count in self._counts.values()), default=-math.inf)
        self.problem: str | None = None

    def count(self, sample: HostSample, seconds: float) -> None:
        """`seconds` is what the sample stands for."""
        for gpu in sample.gpus:
            for user, amounts in use_of(gpu, seconds):
                self._add((user, sample.host_id, sample.name, gpu.model), amounts, sample.at - seconds)

    def take_changed(self, now: float, *, at_last: bool = False) -> list[EncodedSeries]:
        """What has changed, as series, once in EVERY seconds or `at_last`: nobody may be sent it before `save`. `now`
        is the time of the newest sample."""
        is_early = 0 < now - self._sent_at < EVERY and not at_last
        if is_early or -CLOCK_WAS_WRONG < now - self._sent_at <= 0 or not math.isfinite(now):
            return []
        self._sent_at = now
        changed = [(key, count) for key, count in self._counts.items() if count.totals != count.sent]
        return self._write(changed, now)

    def save(self) -> bool:
        """Whether the totals are on the disk. If not, they must not be sent now."""
        saved = _Saved(self._sent_at, [(key, count.totals) for key, count in self._counts.items()])
        fresh = self._file.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.msgpack.encode(saved))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._file)
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
        count.totals = [_grow(total, amount) for total, amount in zip(count.totals, amounts, strict=True)]

    def _write(self, changed: list[tuple[_Key, _Count]], now: float) -> list[EncodedSeries]:
        series = [one for key, count in changed for one in _encode(key, count, now)]
        for _, count in changed:
            count.sent, count.sent_at = count.totals, now
        pieces = (series[at : at + MOST_VALUES] for at in range(0, len(series), MOST_VALUES))
        return [EncodedSeries(b"".join(piece), len(piece), now) for piece in pieces]


def _load(file: Path) -> dict[_Key, _Count]:
    """Saved totals count as sent. A damaged file is renamed, and the counters begin again."""
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


def _grow(total: float | None, amount: float | None) -> float | None:
    return total if amount is None else (total or 0.0) + amount


def _encode(key: _Key, count: _Count, now: float) -> list[bytes]:
    """The totals; and before them what they were when the change began, if that was not just sent: a window that
    begins in between would miss the first step."""
    user, host_id, host, model = key
    own = {"user": user, "host": host, "host_id": host_id, "model": model}
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
    """Each user of a GPU with what they used of it, in the order of COUNTERS: held, worked, idle, joules."""
    utilization, power = gpu.values[_UTILIZATION], gpu.values[_POWER]
    amounts = (
        seconds,
        None if utilization is None else seconds * utilization / 100,
        seconds if gpu.state == _HELD else 0.0,
        None if power is None else seconds * power,
    )
    return [
        (user, [None if amount is None else share * amount for amount in amounts])
        for user, share in _share(memory_by_user(gpu)).items()
    ]


def _share(memory: dict[str | None, float | None]) -> dict[str | None, float]:
    """By memory; equally when that is not known of all, or is 0 of all."""
    known = [size for size in memory.values() if size is not None]
    total = sum(known)
    if len(known) < len(memory) or total <= 0:
        return dict.fromkeys(memory, 1 / max(1, len(memory)))
    return {user: (size or 0.0) / total for user, size in memory.items()}
