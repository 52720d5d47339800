"""What a host's operating system would say: CPU, RAM, swap, disks and network, as its jobs use them."""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

from gpudeck.collectors.simulated.chance import draw, wave
from gpudeck.collectors.simulated.inventory import Host, Volume
from gpudeck.collectors.simulated.jobs import Run
from gpudeck.collectors.simulated.phases import Stretch
from gpudeck.collectors.simulated.track import Track
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.report import Disk, Number

_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40
_ROUND = {name: metric.round for name, metric in HOST_METRICS.items()}
_BEAT_S = 12.0
_DISK_BEAT_S = 600.0
# What one thread of a job fetches over the network while its GPU is fully used.
_FETCH_BYTES_PER_SECOND = 3e6
_CHECKPOINT_BYTES_PER_SECOND = 2.5e8


class Demand(NamedTuple):
    """What the system and its jobs ask of a host: CPU threads, bytes of RAM, bytes a second in and out."""

    threads: float
    ram: float
    receive: float
    transmit: float


class System:
    """The figures of one host. What is kept between two readings could be worked out again."""

    def __init__(self, host: Host, tracks: Sequence[Track]) -> None:
        self._host, self._tracks = host, tracks
        self._read_at = self._disks_at = nan
        self._stretches: list[Stretch] = []
        self._metrics: dict[str, Number] = {}
        self._disks: list[Disk] = []

    def metrics(self, now: float) -> dict[str, Number]:
        """Read every 12 s, and when the work on a GPU changes."""
        t = now - (now + self._host.salt % 12) % _BEAT_S
        # The work is that of `now`, not that of `t`: to look back past the start of a job is dear.
        stretches = [track.at(now) for track in self._tracks]
        if t != self._read_at or stretches != self._stretches:
            self._read_at, self._stretches = t, stretches
            values = self._read(self._demand(stretches, t), t)
            self._metrics = {name: _ROUND[name](value) for name, value in values.items()}
        uptime = _ROUND["uptime_seconds"](now - self._host.life.booted(now))
        return self._metrics | {"uptime_seconds": uptime}

    def disks(self, now: float) -> list[Disk]:
        """The file systems for data, read every 10 minutes."""
        t = now - now % _DISK_BEAT_S
        if t != self._disks_at:
            self._disks_at = t
            self._disks = [_disk(volume, t) for volume in self._host.volumes[1:]]
        return self._disks.copy()

    def _read(self, demand: Demand, t: float) -> dict[str, float]:
        chassis, salt = self._host.chassis, self._host.salt
        threads = min(chassis.cpu_threads * 0.97, demand.threads * (1 + 0.12 * wave(salt, t, 40.0)))
        root = _disk(self._host.volumes[0], t - t % _DISK_BEAT_S)
        total, swap = chassis.ram_gib * _GIB, self._host.swap_gib * _GIB
        ram_share = min(0.92, 0.03 + demand.ram / total)
        return {
            "cpu_percent": 100 * threads / chassis.cpu_threads,
            "cpu_count": chassis.cpu_threads,
            "load_1m": threads * (1.05 + 0.05 * wave(salt + 1, t, 90.0)),
            "memory_used_bytes": ram_share * total,
            "memory_total_bytes": total,
            "swap_used_bytes": swap * (0.02 + 0.1 * draw(salt, 7) + 0.6 * max(0.0, ram_share - 0.4)),
            "swap_total_bytes": swap,
            "disk_used_bytes": root.used_bytes,
            "disk_total_bytes": root.total_bytes,
            "network_receive_bytes_per_second": demand.receive * (1 + 0.4 * wave(salt + 2, t, 30.0)),
            "network_transmit_bytes_per_second": demand.transmit * (1 + 0.4 * wave(salt + 3, t, 30.0)),
        }

    def _demand(self, stretches: list[Stretch], t: float) -> Demand:
        """A job on several GPUs counts on each."""
        salt = self._host.salt
        threads, ram = 1.0 + 0.4 * draw(salt, 1), 0.0
        receive = transmit = 4e4 + 2e5 * draw(salt, 3)
        for stretch in stretches:
            for run, level in stretch.parts:
                work = run.work
                fetched = _FETCH_BYTES_PER_SECOND * work.threads * level
                threads += work.threads * (0.15 + 0.85 * (level > 0))
                ram += _ram(run, t)
                receive += fetched
                is_saving = _is_saving(run, level, stretch.start)
                transmit += _CHECKPOINT_BYTES_PER_SECOND if is_saving else 0.05 * fetched
        return Demand(threads, ram, receive, transmit)


def _is_saving(run: Run, level: float, since: float) -> bool:
    """Whether it is in one of the pauses in which a training writes a checkpoint."""
    return run.kind == "training" and level == run.work.rest_level and since >= run.start + run.work.load_s


def _disk(volume: Volume, t: float) -> Disk:
    """It fills up over days and is tidied again."""
    total = int(volume.tib * _TIB)
    share = min(0.995, volume.share + volume.swing * wave(volume.salt, t, 4 * 86_400))
    return Disk(volume.mount, int(total * share) // _MIB * _MIB, total)


def _ram(run: Run, t: float) -> float:
    """`t` is less than a beat before its start at the earliest."""
    return run.work.ram_bytes * min(1.0, (t - run.start + _BEAT_S) / (_BEAT_S + run.work.ramp_s))
