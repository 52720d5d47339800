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

from gpudeck.history.remote.names import COUNTERS
from gpudeck.history.remote.protobuf import encode_labels, encode_series, encode_time
from gpudeck.history.remote.scribe import MOST_VALUES, Part, memory_by_user
from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, GpuSample, HostSample

log = logging.getLogger(__name__)

EVERY: Final = 30.0
_MOST: Final = 200_000
_UNKNOWN, _BUSY, _HELD = (STATE_NUMBERS[word] for word in ("unknown", "busy", "held"))
_UTILIZATION = GPU_NAMES.index("utilization_percent")
_POWER = GPU_NAMES.index("power_watts")

_Key = tuple[str | None, str, str, str]
"""User, host's id, host's name, model."""


class _Count(Struct, array_like=True):
    """`told_at` is when the totals were last sent; `told` what they were then."""

    totals: list[float]
    told: list[float] = field(default_factory=lambda: [0.0] * len(COUNTERS))
    told_at: float = 0.0
    changed_from: float = 0.0


class _Kept(Struct, array_like=True):
    key: _Key
    totals: list[float]


class Counters:
    """One thread owns it. `file` keeps the totals while no hub runs."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts = _load(file)
        self._told_at = -math.inf
        self.problem: str | None = None

    def count(self, sample: HostSample, seconds: float) -> None:
        """`seconds` is what the sample stands for."""
        for gpu in sample.gpus:
            for user, amounts in use_of(gpu, seconds):
                self._add((user, sample.host_id, sample.name, gpu.model), amounts, sample.at - seconds)

    def tell(self, now: float, *, at_last: bool = False) -> list[Part]:
        """What has changed, as series, once in EVERY seconds or `at_last`. Saved before it is told, or not told."""
        if not at_last and 0 <= now - self._told_at < EVERY:
            return []
        self._told_at = now
        changed = [(key, count) for key, count in self._counts.items() if count.totals != count.told]
        return self._write(changed, now) if changed and self._save() else []

    def _add(self, key: _Key, amounts: list[float], since: float) -> None:
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _MOST:
                self.problem = f"more than {_MOST} pairs of user and host: the counters of new ones are not kept"
                return
            count = self._counts[key] = _Count([0.0] * len(COUNTERS))
        if count.totals == count.told:
            count.changed_from = since
        count.totals = [total + amount for total, amount in zip(count.totals, amounts, strict=True)]

    def _write(self, changed: list[tuple[_Key, _Count]], now: float) -> list[Part]:
        series = [one for key, count in changed for one in _encode(key, count, now)]
        for _, count in changed:
            count.told, count.told_at = count.totals, now
        pieces = (series[at : at + MOST_VALUES] for at in range(0, len(series), MOST_VALUES))
        return [Part(b"".join(piece), len(piece), now) for piece in pieces]

    def _save(self) -> bool:
        kept = [_Kept(key, count.totals) for key, count in self._counts.items()]
        fresh = self._file.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.msgpack.encode(kept))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._file)
        except OSError as error:
            self.problem = f"the counters cannot be saved in {self._file}: {error.strerror}"
            return False
        self.problem = None
        return True


def _load(file: Path) -> dict[_Key, _Count]:
    """What is told already is what was saved. A file that is damaged is put aside: the counters begin again."""
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=list[_Kept])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the counters in %s cannot be read and begin again: %s", file, error)
        with contextlib.suppress(OSError):
            file.rename(file.with_suffix(".damaged"))
        return {}
    return {one.key: _Count(one.totals, one.totals) for one in kept if len(one.totals) == len(COUNTERS)}


def _encode(key: _Key, count: _Count, now: float) -> list[bytes]:
    """The totals; and before them what they were when the change began, if that was not just told: a window that
    begins in between would miss the first step."""
    user, host_id, host, model = key
    own = {"user": user, "host": host, "host_id": host_id, "model": model}
    labels = [encode_labels(name, own) for name in COUNTERS]
    told: list[tuple[list[float], float]] = [(count.totals, now)]
    if count.told_at < count.changed_from < now:
        told.insert(0, (count.told, count.changed_from))
    return [
        encode_series(label, total, time)
        for totals, time in ((totals, encode_time(at)) for totals, at in told)
        for label, total in zip(labels, totals, strict=True)
    ]


def use_of(gpu: GpuSample, seconds: float) -> list[tuple[str | None, list[float]]]:
    """Each user of a GPU with what they used of it, in the order of COUNTERS: held, worked, idle, joules."""
    if gpu.state <= _UNKNOWN:
        return []
    if not gpu.processes:
        shares: dict[str | None, float] = {None: 1.0} if gpu.state in {_BUSY, _HELD} else {}
    else:
        shares = _share(memory_by_user(gpu.processes))
    utilization, power = gpu.values[_UTILIZATION] or 0.0, gpu.values[_POWER] or 0.0
    idle = seconds if gpu.state == _HELD else 0.0
    amounts = (seconds, seconds * utilization / 100, idle, seconds * power)
    return [(user, [share * amount for amount in amounts]) for user, share in shares.items()]


def _share(memory: dict[str | None, float | None]) -> dict[str | None, float]:
    """By memory; equally when that is not known of all, or is 0 of all."""
    known = [size for size in memory.values() if size is not None]
    total = sum(known)
    if len(known) < len(memory) or total <= 0:
        return dict.fromkeys(memory, 1 / len(memory))
    return {user: (size or 0.0) / total for user, size in memory.items()}
