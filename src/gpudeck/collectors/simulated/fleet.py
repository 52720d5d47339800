"""The simulated fleet, and one of its hosts as an ordinary collector."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil, cos, nan, pi

from gpudeck.collectors.base import Collector
from gpudeck.collectors.simulated.chance import draw, uuid_name, wave
from gpudeck.collectors.simulated.gpus import (
    GpuInstance,
    HotGpu,
    MigBoard,
    MissingSimulatedGpu,
    OrphanedGpu,
    SimulatedFaults,
    SimulatedGpu,
    UnstableGpu,
)
from gpudeck.collectors.simulated.inventory import (
    FELL_OFF,
    HostSpec,
    Volume,
    build_host,
    choose_first_hosts,
    choose_further_host,
)
from gpudeck.collectors.simulated.jobs import SimulatedJob, Timeline, cache_blocks
from gpudeck.collectors.simulated.physics import LoadSegment, SlotTrack
from gpudeck.collectors.simulated.work import Kind, LabUsers
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Disk, JobCgroup, Number, Report

_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40
_ROUND = {name: metric.round for name, metric in HOST_METRICS.items()}
BEAT_S = 12.0
DISK_BEAT_S = 600.0
CGROUP_BEAT_S = 30.0
_CPU_SHARES: dict[Kind, float] = {"training": 0.9, "loader": 0.95, "notebook": 0.4, "inference": 0.6, "holder": 0.2}
"""Which part of its threads a job uses over its time."""
# What one thread of a job fetches over the network while its GPU is fully used.
FETCH_BYTES_PER_SECOND = 3e6
CHECKPOINT_BYTES_PER_SECOND = 2.5e8
_KINDS: dict[str, type[SimulatedGpu]] = {
    "hot": HotGpu,
    "orphaned": OrphanedGpu,
    "missing": MissingSimulatedGpu,
    "unstable": UnstableGpu,
}
_HOT_EVERY_S = 6 * 3600
"""How often a blocked fan is looked at: when it gets too hot is not settled beforehand."""


class SystemSimulator:
    """The figures of one host. What is kept between two readings could be worked out again."""

    def __init__(self, host: HostSpec, tracks: Sequence[SlotTrack]) -> None:
        self._host, self._tracks = host, tracks
        self._read_at = self._disks_at = nan
        self._stretches: list[LoadSegment] = []
        self._metrics: dict[str, Number] = {}
        self._disks: list[Disk] = []
        self._cgroups_at = nan
        self._cgroups: list[JobCgroup] = []

    def metrics(self, now: float) -> dict[str, Number]:
        """Read every 12 s, and when the work on a GPU changes."""
        t = now - (now + self._host.salt % 12) % BEAT_S
        # The work is that of `now`, not that of `t`: to look back past the start of a job is dear.
        stretches = [track.at(now) for track in self._tracks]
        if t != self._read_at or stretches != self._stretches:
            self._read_at, self._stretches = t, stretches
            values = self._read(stretches, t)
            self._metrics = {name: _ROUND[name](value) for name, value in values.items()}
        uptime = _ROUND["uptime_seconds"](now - self._host.life.booted(now))
        return self._metrics | {"uptime_seconds": uptime}

    def disks(self, now: float) -> list[Disk]:
        t = now - now % DISK_BEAT_S
        if t != self._disks_at:
            self._disks_at = t
            self._disks = [_disk(volume, t) for volume in self._host.volumes[1:]]
        return self._disks.copy()

    def job_cgroups(self, now: float) -> list[JobCgroup]:
        """Of the jobs of a scheduler, read every half minute."""
        t = now - now % CGROUP_BEAT_S
        if self._host.in_slurm and t != self._cgroups_at:
            runs = (run for track in self._tracks for run, _ in track.at(now).parts)
            self._cgroups_at = t
            self._cgroups = [
                _cgroup(run, t) for run in {run.job: run for run in runs if run.job and run.start < t}.values()
            ]
        return self._cgroups

    def _read(self, stretches: list[LoadSegment], t: float) -> dict[str, float]:
        chassis, salt = self._host.chassis, self._host.salt
        demanded, ram, receive, transmit = self._demand(stretches, t)
        threads = min(chassis.cpu_threads * 0.97, demanded * (1 + 0.12 * wave(salt, t, 40.0)))
        root = _disk(self._host.volumes[0], t - t % DISK_BEAT_S)
        total, swap = chassis.ram_gib * _GIB, self._host.swap_gib * _GIB
        ram_share = min(0.92, 0.03 + ram / total)
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
            "network_receive_bytes_per_second": receive * (1 + 0.4 * wave(salt + 2, t, 30.0)),
            "network_transmit_bytes_per_second": transmit * (1 + 0.4 * wave(salt + 3, t, 30.0)),
        }

    def _demand(self, stretches: list[LoadSegment], t: float) -> tuple[float, float, float, float]:
        salt = self._host.salt
        threads, ram = 1.0 + 0.4 * draw(salt, 1), 0.0
        receive = transmit = 4e4 + 2e5 * draw(salt, 3)
        for stretch in stretches:
            for run, level in stretch.parts:
                work = run.work
                fetched = FETCH_BYTES_PER_SECOND * work.threads * level
                threads += work.threads * (0.15 + 0.85 * (level > 0))
                ram += run.work.ram_bytes * min(1.0, (t - run.start + BEAT_S) / (BEAT_S + run.work.ramp_s))
                receive += fetched
                # Whether it is in one of the pauses in which a training writes a checkpoint.
                is_saving = (
                    run.kind == "training"
                    and level == run.work.rest_level
                    and stretch.start >= run.start + run.work.load_s
                )
                transmit += CHECKPOINT_BYTES_PER_SECOND if is_saving else 0.05 * fetched
        return threads, ram, receive, transmit


def _cgroup(run: SimulatedJob, t: float) -> JobCgroup:
    """What it uses goes up and down in ten minutes."""
    gpus, elapsed = len(run.slots), t - run.start
    busy = elapsed + 0.3 * (1 - cos(2 * pi * elapsed / 600.0)) * 600.0 / (2 * pi)
    grown = min(1.0, (elapsed + BEAT_S) / (BEAT_S + run.work.ramp_s))
    return JobCgroup(
        run.job or "",
        t,
        cpu_seconds=round(gpus * run.work.threads * _CPU_SHARES[run.kind] * busy, 3),
        memory_used_bytes=int(gpus * run.work.ram_bytes * grown),
        cpu_limit_cores=gpus * 2.0 * ceil(run.work.threads),
        memory_limit_bytes=gpus * 64 * _GIB,
    )


def _disk(volume: Volume, t: float) -> Disk:
    """It fills up over days and is cleaned up again."""
    total = int(volume.tib * _TIB)
    share = min(0.995, volume.share + volume.swing * wave(volume.salt, t, 4 * 86_400))
    return Disk(volume.mount, int(total * share) // _MIB * _MIB, total)


class HostSimulator:
    """A host of the fleet, made when it is first asked about."""

    def __init__(self, host: HostSpec, timeline: Timeline) -> None:
        self.host = host
        self.timeline = timeline
        self._life = host.life
        self._tracks = [SlotTrack(timeline, slot.number) for slot in host.slots]
        self._gpus = self._set_up()
        self._system = SystemSimulator(host, self._tracks)
        self.missing = [gpu for gpu in self._gpus if isinstance(gpu, MissingSimulatedGpu)]

    def report(self, now: float) -> Report | None:
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
            problems=[f"GPU {gpu.index} {FELL_OFF}" for gpu in self.missing if gpu.is_missing(now)],
            job_cgroups=self._system.job_cgroups(now),
        )

    def turns(self, start: float, end: float) -> list[float]:
        """The moments from `start` until before `end` at which something may happen to it that makes news."""
        life, moments = self._life, set[float]()
        for number in range(life.number(start), life.number(end) + 1):
            moments.update((life.opens(number), life.closes(number)))
        for slot in self.host.slots:
            moments.update(fault.at for fault in SimulatedFaults(slot, self.timeline).between(start, end))
        for gpu in self.missing:
            moments.update(gpu.turns(start, end))
        if self.host.mishap == "hot":
            moments.update(float(moment) for moment in range(int(start), int(end), _HOT_EVERY_S))
        return sorted(moment for moment in moments if start <= moment < end)

    def boot_id(self, now: float) -> str:
        """A dead host has the boot id it died with."""
        return uuid_name(self.host.id, "boot", int(self._life.booted(now)))

    def _set_up(self) -> list[SimulatedGpu]:
        gpus: list[SimulatedGpu] = []
        for _, group in groupby(self.host.slots, key=lambda slot: slot.index):
            slots = list(group)
            board = MigBoard(slots, [self._tracks[slot.number] for slot in slots])
            for slot in slots:
                parts = slot, self.timeline, self._tracks[slot.number], self._life
                if slot.parent is None:
                    gpus.append(_KINDS.get(slot.fault, SimulatedGpu)(*parts))
                else:
                    gpus.append(GpuInstance(*parts, board))
        return gpus


class SimulatedFleet:
    """A lab that does not exist. Every answer depends only on seed, number of hosts, host and moment. Moments may be
    asked in any order; going on from the last one is cheapest."""

    def __init__(self, hosts: int = 24, seed: int = 1) -> None:
        width = max(2, len(str(hosts)))
        self.names: tuple[str, ...] = tuple(f"gpu{number:0{width}d}" for number in range(1, hosts + 1))
        self._seed = seed
        self._cast = choose_first_hosts(seed, hosts)
        self._users = LabUsers(seed, hosts)
        self._blocks = cache_blocks()
        self._stations: dict[int, HostSimulator] = {}

    def report(self, host: int, now: float) -> Report | None:
        return self.station(host).report(now)

    def host_id(self, host: int) -> str:
        return self.station(host).host.id

    def boot_id(self, host: int, now: float) -> str:
        return self.station(host).boot_id(now)

    def runs(self, host: int, start: float, end: float) -> list[SimulatedJob]:
        """Every job that was there at some time from `start` until before `end`, oldest first, and given whole."""
        return self.station(host).timeline.overlapping(start, end)

    def turns(self, host: int, start: float, end: float) -> list[float]:
        """The moments at which something may happen to that host that makes news."""
        return self.station(host).turns(start, end)

    @property
    def logins(self) -> list[str]:
        return [user.name for user in self._users.users]

    def group_of(self, login: str) -> str | None:
        return next((user.group for user in self._users.users if user.name == login), None)

    def station(self, number: int) -> HostSimulator:
        station = self._stations.get(number)
        if station is None:
            name = self.names[number]
            machine = self._cast[number] if number < len(self._cast) else choose_further_host(self._seed, number)
            host = build_host(self._seed, number, name, *machine)
            station = HostSimulator(host, Timeline(self._seed, host, self._users, self._blocks))
            self._stations[number] = station
        return station


class SimulatedHost(Collector):
    """One host of a fleet, read the way a real machine is read."""

    name = "simulated"

    def __init__(self, fleet: SimulatedFleet, host: int) -> None:
        self._fleet = fleet
        self._host = host

    def collect(self, now: float) -> Report:
        report = self._fleet.report(self._host, now)
        if report is None:
            raise Temporary(f"{self._fleet.names[self._host]} is dead at the moment.", "It comes back within minutes.")
        return report
