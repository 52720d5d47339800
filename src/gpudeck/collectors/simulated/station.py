"""One simulated host: its GPUs, and what its operating system would say about the rest of it."""

from itertools import groupby

from gpudeck.collectors.simulated.chance import uuid_name
from gpudeck.collectors.simulated.energy import Meter
from gpudeck.collectors.simulated.gpus import CutBoard, Gpu, GpuInstance, HotGpu, MissingGpu, OrphanedGpu
from gpudeck.collectors.simulated.inventory import Host, Slot
from gpudeck.collectors.simulated.jobs import Timeline
from gpudeck.collectors.simulated.mishaps import FELL_OFF, Life
from gpudeck.collectors.simulated.system import System
from gpudeck.collectors.simulated.track import Track
from gpudeck.model.report import Report


class Station:
    """A host of the fleet, made when it is first asked about."""

    def __init__(self, host: Host, timeline: Timeline) -> None:
        self.host = host
        self.timeline = timeline
        self._life = host.life
        self._tracks = [Track(timeline, slot.number) for slot in host.slots]
        self._gpus = self._set_up()
        self._system = System(host, self._tracks)
        self._problems = [f"GPU {slot.index} {FELL_OFF}" for slot in host.slots if slot.fault == "missing"]

    def report(self, now: float) -> Report | None:
        """What the host's agent sends at that moment; None while the host is dead."""
        if not self._life.is_alive(now):
            return None
        host = self.host
        return Report(
            gpus=[gpu.reading(now) for gpu in self._gpus],
            metrics=self._system.metrics(now),
            driver_version=host.driver_version,
            os=host.os,
            labels=host.labels.copy(),
            disks=self._system.disks(now),
            addresses=list(host.addresses),
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
            board = CutBoard(slots, [self._tracks[slot.number] for slot in slots])
            gpus.extend(GpuInstance(*self._parts(slot), board) for slot in slots)
        return gpus

    def _whole_gpu(self, slot: Slot) -> Gpu | MissingGpu:
        if slot.fault == "missing":
            return MissingGpu(slot, self._life)
        kind = {"hot": HotGpu, "orphaned": OrphanedGpu}.get(slot.fault, Gpu)
        return kind(*self._parts(slot))

    def _parts(self, slot: Slot) -> tuple[Slot, Track, Life, Meter]:
        track = self._tracks[slot.number]
        return slot, track, self._life, Meter(self.timeline, track, slot)
