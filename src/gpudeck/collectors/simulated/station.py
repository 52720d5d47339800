"""One simulated host: its GPUs, and what its operating system would say about the rest of it."""

from itertools import groupby

from gpudeck.collectors.simulated.chance import uuid_name
from gpudeck.collectors.simulated.energy import Meter
from gpudeck.collectors.simulated.faults import Faults
from gpudeck.collectors.simulated.gpus import CutBoard, Gpu, GpuInstance, HotGpu, MissingGpu, OrphanedGpu
from gpudeck.collectors.simulated.inventory import Host, Slot
from gpudeck.collectors.simulated.jobs import Timeline
from gpudeck.collectors.simulated.mishaps import FELL_OFF, Life
from gpudeck.collectors.simulated.system import System
from gpudeck.collectors.simulated.track import Track
from gpudeck.model.report import Report

_HOT_EVERY_S = 900
"""How often a blocked fan is looked at: when it gets too hot is not settled beforehand."""


class Station:
    """A host of the fleet, made when it is first asked about."""

    def __init__(self, host: Host, timeline: Timeline) -> None:
        self.host = host
        self.timeline = timeline
        self._life = host.life
        self._tracks = [Track(timeline, slot.number) for slot in host.slots]
        self._gpus = self._set_up()
        self._system = System(host, self._tracks)
        self._missing = {
            slot.index: gpu for slot, gpu in zip(host.slots, self._gpus, strict=False) if isinstance(gpu, MissingGpu)
        }

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
            interfaces=dict(zip(host.addresses, ("eno1", "eno2"), strict=False)),
            problems=[f"GPU {index} {FELL_OFF}" for index, gpu in self._missing.items() if gpu.is_missing(now)],
        )

    def turns(self, start: float, end: float) -> list[float]:
        """The moments from `start` until before `end` at which something may happen to it that makes news."""
        life, moments = self._life, set[float]()
        for number in range(life.number(start), life.number(end) + 1):
            moments.update((life.opens(number), life.closes(number)))
        for slot in self.host.slots:
            moments.update(fault.at for fault in Faults(slot, self.timeline).between(start, end))
        for gpu in self._missing.values():
            moments.update(gpu.turns(start, end))
        if self.host.mishap == "hot":
            moments.update(float(moment) for moment in range(int(start), int(end), _HOT_EVERY_S))
        return sorted(moment for moment in moments if start <= moment < end)

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
            gpus.extend(GpuInstance(*self._parts(slot), board=board) for slot in slots)
        return gpus

    def _whole_gpu(self, slot: Slot) -> Gpu | MissingGpu:
        if slot.fault == "missing":
            return MissingGpu(Gpu(*self._parts(slot)), slot, self._life)
        kind = {"hot": HotGpu, "orphaned": OrphanedGpu}.get(slot.fault, Gpu)
        return kind(*self._parts(slot))

    def _parts(self, slot: Slot) -> tuple[Slot, Track, Life, Meter, Faults]:
        track = self._tracks[slot.number]
        return slot, track, self._life, Meter(self.timeline, track, slot), Faults(slot, self.timeline)
