"""One simulated host: its GPUs, and what its operating system would say about the rest of it."""

from itertools import groupby

from gpudeck.collectors.simulated.chance import draw, uuid_name, wave
from gpudeck.collectors.simulated.gpus import (
    NOT_SIMULATED,
    CutBoard,
    Gpu,
    GpuInstance,
    HotGpu,
    MissingGpu,
    OrphanedGpu,
)
from gpudeck.collectors.simulated.inventory import Host, Slot
from gpudeck.collectors.simulated.jobs import Run, Timeline
from gpudeck.collectors.simulated.mishaps import FELL_OFF
from gpudeck.collectors.simulated.track import Track
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.report import Number, Report

_GIB = 1 << 30
_SIMULATED = (
    *("cpu_percent", "cpu_count", "load_1m", "memory_used_bytes", "memory_total_bytes"),
    *("disk_used_bytes", "disk_total_bytes", "uptime_seconds"),
)
_LEFT_OUT = {name: NOT_SIMULATED for name in HOST_METRICS if name not in _SIMULATED}
_BEAT_S = 12.0


class Station:
    """A host of the fleet, made when it is first asked about."""

    def __init__(self, host: Host, timeline: Timeline) -> None:
        self.host = host
        self.timeline = timeline
        self._life = host.life
        self._tracks = [Track(timeline, slot.number) for slot in host.slots]
        self._gpus = self._set_up()
        self._problems = [f"GPU {slot.index} {FELL_OFF}" for slot in host.slots if slot.fault == "missing"]

    def report(self, now: float) -> Report | None:
        """What the host's agent sends at that moment; None while the host is dead."""
        if not self._life.is_alive(now):
            return None
        host = self.host
        return Report(
            gpus=[gpu.reading(now) for gpu in self._gpus],
            metrics=self._metrics(now),
            unknown=_LEFT_OUT.copy(),
            driver_version=host.driver_version,
            os=host.os,
            labels=host.labels.copy(),
            problems=self._problems.copy(),
        )

    def boot_id(self, now: float) -> str:
        """A dead host has the boot id it died with."""
        return uuid_name(self.host.id, "boot", int(self._life.booted(now)))

    def _set_up(self) -> list[Gpu | MissingGpu]:
        gpus: list[Gpu | MissingGpu] = []
        for _, group in groupby(self.host.slots, key=lambda slot: slot.index):
            slots = list(group)
            if slots[0].parent is None:
                gpus.append(self._whole_gpu(slots[0]))
                continue
            tracks = [self._tracks[slot.number] for slot in slots]
            board = CutBoard(slots, tracks)
            gpus.extend(GpuInstance(slot, track, self._life, board) for slot, track in zip(slots, tracks, strict=True))
        return gpus

    def _whole_gpu(self, slot: Slot) -> Gpu | MissingGpu:
        if slot.fault == "missing":
            return MissingGpu(slot, self._life)
        kind = {"hot": HotGpu, "orphaned": OrphanedGpu}.get(slot.fault, Gpu)
        return kind(slot, self._tracks[slot.number], self._life)

    def _metrics(self, now: float) -> dict[str, Number]:
        chassis, salt = self.host.chassis, self.host.salt
        t = now - (now + salt % 12) % _BEAT_S
        threads, ram = self._demand(now)
        threads = min(chassis.cpu_threads * 0.97, threads * (1 + 0.12 * wave(salt, t, 40.0)))
        total = chassis.ram_gib * _GIB
        disk = chassis.disk_tib * 1024 * _GIB
        values = {
            "cpu_percent": 100 * threads / chassis.cpu_threads,
            "cpu_count": chassis.cpu_threads,
            "load_1m": threads * (1.05 + 0.05 * wave(salt + 1, t, 90.0)),
            "memory_used_bytes": min(0.92 * total, 0.03 * total + ram),
            "memory_total_bytes": total,
            "disk_used_bytes": disk * self._disk_share(now),
            "disk_total_bytes": disk,
            "uptime_seconds": now - self._life.booted(now),
        }
        return {name: HOST_METRICS[name].round(value) for name, value in values.items()}

    def _demand(self, now: float) -> tuple[float, float]:
        """CPU threads and bytes of RAM that the system and its jobs use; a job on several GPUs counts on each."""
        threads, ram = 1.0 + 0.4 * draw(self.host.salt, 1), 0.0
        for track in self._tracks:
            for run, level in track.at(now).parts:
                threads += run.work.threads * (0.15 + 0.85 * (level > 0))
                ram += _ram(run, now)
        return threads, ram

    def _disk_share(self, now: float) -> float:
        """Fills up over days and is tidied again; read every 10 minutes."""
        t = now - now % 600
        return 0.35 + 0.4 * draw(self.host.salt, 2) + 0.2 * wave(self.host.salt, t, 4 * 86_400)


def _ram(run: Run, now: float) -> float:
    work = run.work
    return work.ram_bytes * min(1.0, (now - now % _BEAT_S - run.start + _BEAT_S) / (_BEAT_S + work.ramp_s))
