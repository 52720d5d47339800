"""The simulated fleet, and one of its hosts as an ordinary collector."""

from collections.abc import Sequence
from math import ceil, nan

from gpudeck.collectors.base import Collector
from gpudeck.collectors.simulated.chance import draw, uuid_name, wave
from gpudeck.collectors.simulated.gpus import (
    GpuInstance,
    SimulatedGpu,
    faults_between,
    missing_spans,
)
from gpudeck.collectors.simulated.inventory import (
    FELL_OFF,
    HostSpec,
    Volume,
    build_host,
    choose_first_hosts,
    choose_further_host,
)
from gpudeck.collectors.simulated.jobs import SimulatedJob, Timeline
from gpudeck.collectors.simulated.physics import LoadSegment, SlotTrack
from gpudeck.collectors.simulated.work import Kind, LabUsers
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Disk, JobCgroup, Number, Report

_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40
UPDATE_SECONDS = 12.0
DISK_UPDATE_SECONDS = 600.0
CGROUP_UPDATE_SECONDS = 30.0
_CPU_SHARES: dict[Kind, float] = {"training": 0.9, "loader": 0.95, "notebook": 0.4, "inference": 0.6, "holder": 0.2}
"""The share of its threads that a job uses, on average."""
# What one thread of a job fetches over the network while its GPU is fully used.
FETCH_BYTES_PER_SECOND = 3e6
_HOT_EVERY_S = 6 * 3600
"""How often a blocked fan is checked: the time at which it gets too hot is not known in advance."""


def read_metrics(host: HostSpec, segments: Sequence[LoadSegment], now: float) -> dict[str, Number]:
    """The figures of a host with this work on its GPUs, read every 12 s."""
    chassis, salt = host.chassis, host.salt
    t = now - (now + salt % 12) % UPDATE_SECONDS
    demanded, ram, receive, transmit = _demand(salt, segments, t)
    threads = min(chassis.cpu_threads * 0.97, demanded * (1 + 0.12 * wave(salt, t, 40.0)))
    root = _disk(host.volumes[0], now)
    total, swap = chassis.ram_gib * _GIB, host.swap_gib * _GIB
    ram_share = min(0.92, 0.03 + ram / total)
    values = {
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
        "uptime_seconds": now - host.life.booted(now),
    }
    return {name: HOST_METRICS[name].round(value) for name, value in values.items()}


def _demand(salt: int, segments: Sequence[LoadSegment], t: float) -> tuple[float, float, float, float]:
    """Threads, bytes of memory, and bytes received and sent per second."""
    threads, ram = 1.0 + 0.4 * draw(salt, 1), 0.0
    receive = transmit = 4e4 + 2e5 * draw(salt, 3)
    for segment in segments:
        for run, level in segment.parts:
            work = run.work
            fetched = FETCH_BYTES_PER_SECOND * work.threads * level
            threads += work.threads * (0.15 + 0.85 * (level > 0))
            ram += work.ram_bytes * min(1.0, (t - run.start + UPDATE_SECONDS) / (UPDATE_SECONDS + work.ramp_s))
            receive += fetched
            transmit += 0.05 * fetched
    return threads, ram, receive, transmit


def _cgroup(run: SimulatedJob, t: float) -> JobCgroup:
    gpus, elapsed = len(run.slots), t - run.start
    grown = min(1.0, (elapsed + UPDATE_SECONDS) / (UPDATE_SECONDS + run.work.ramp_s))
    return JobCgroup(
        run.job or "",
        t,
        cpu_seconds=round(gpus * run.work.threads * _CPU_SHARES[run.kind] * elapsed, 3),
        memory_used_bytes=int(gpus * run.work.ram_bytes * grown),
        cpu_limit_cores=gpus * 2.0 * ceil(run.work.threads),
        memory_limit_bytes=gpus * 64 * _GIB,
    )


def _disk(volume: Volume, now: float) -> Disk:
    """It fills up over days and is cleaned up again."""
    t = now - now % DISK_UPDATE_SECONDS
    total = int(volume.tib * _TIB)
    share = min(0.995, volume.share + volume.swing * wave(volume.salt, t, 4 * 86_400))
    return Disk(volume.mount, int(total * share) // _MIB * _MIB, total)


class HostSimulator:
    """One host of the fleet."""

    def __init__(self, host: HostSpec, timeline: Timeline) -> None:
        self.host = host
        self.timeline = timeline
        self._life = host.life
        self._tracks = [SlotTrack(timeline, slot.number) for slot in host.slots]
        self._gpus = [
            (SimulatedGpu if slot.parent is None else GpuInstance)(slot, timeline, track, host.life)
            for slot, track in zip(host.slots, self._tracks, strict=True)
        ]
        self._cgroups_at = nan
        self._cgroups: list[JobCgroup] = []

    def report(self, now: float) -> Report | None:
        if not self._life.is_alive(now):
            return None
        host = self.host
        gpus = [gpu.reading(now) for gpu in self._gpus]
        return Report(
            gpus=gpus,
            metrics=read_metrics(host, [track.at(now) for track in self._tracks], now),
            driver_version=host.driver_version,
            os=host.os,
            labels=host.labels.copy(),
            disks=[_disk(volume, now) for volume in host.volumes[1:]],
            addresses=list(host.addresses),
            interfaces=dict(zip(host.addresses, ("eno1", "eno2"), strict=False)),
            problems=[f"GPU {gpu.index} {FELL_OFF}" for gpu in gpus if gpu.missing],
            job_cgroups=self._read_cgroups(now),
        )

    def event_times(self, start: float, end: float) -> list[float]:
        """The times from `start` until before `end` at which something may happen that makes an event."""
        life, moments = self._life, set[float]()
        for number in range(life.number(start), life.number(end) + 1):
            moments.update((life.opens(number), life.closes(number)))
        for slot in self.host.slots:
            moments.update(fault.at for fault in faults_between(slot, self.timeline, start, end))
            moments.update(edge for span in missing_spans(slot, start, end) for edge in span)
        if self.host.defect == "hot":
            moments.update(float(moment) for moment in range(int(start), int(end), _HOT_EVERY_S))
        return sorted(moment for moment in moments if start <= moment < end)

    def boot_id(self, now: float) -> str:
        """A host that is down has the boot id of its last boot."""
        return uuid_name(self.host.id, "boot", int(self._life.booted(now)))

    def _read_cgroups(self, now: float) -> list[JobCgroup]:
        """Those of a scheduler's jobs; the same list for half a minute, because an agent sends only a new list."""
        t = now - now % CGROUP_UPDATE_SECONDS
        if self.host.in_slurm and t != self._cgroups_at:
            runs = {run.job: run for track in self._tracks for run, _ in track.at(now).parts if run.job}
            self._cgroups_at, self._cgroups = t, [_cgroup(run, t) for run in runs.values() if run.start < t]
        return self._cgroups


class SimulatedFleet:
    """A simulated lab. Every result depends only on seed, number of hosts, host and time. Times may be requested in any
    order; the next time after the last one is the cheapest."""

    def __init__(self, hosts: int = 24, seed: int = 1) -> None:
        width = max(2, len(str(hosts)))
        self.names: tuple[str, ...] = tuple(f"gpu{number:0{width}d}" for number in range(1, hosts + 1))
        self._seed = seed
        self._first_hosts = choose_first_hosts(seed, hosts)
        self._users = LabUsers(seed, hosts)
        self._simulators: dict[int, HostSimulator] = {}

    def report(self, host: int, now: float) -> Report | None:
        return self.simulator(host).report(now)

    def host_id(self, host: int) -> str:
        return self.simulator(host).host.id

    def boot_id(self, host: int, now: float) -> str:
        return self.simulator(host).boot_id(now)

    def runs(self, host: int, start: float, end: float) -> list[SimulatedJob]:
        """All jobs that ran between `start` and `end`, oldest first, with their own start and end."""
        return self.simulator(host).timeline.overlapping(start, end)

    def event_times(self, host: int, start: float, end: float) -> list[float]:
        """The times at which something may happen to that host that makes an event."""
        return self.simulator(host).event_times(start, end)

    @property
    def logins(self) -> list[str]:
        return [user.name for user in self._users.users]

    def group_of(self, login: str) -> str | None:
        return next((user.group for user in self._users.users if user.name == login), None)

    def simulator(self, number: int) -> HostSimulator:
        simulator = self._simulators.get(number)
        if simulator is None:
            name = self.names[number]
            is_first = number < len(self._first_hosts)
            machine = self._first_hosts[number] if is_first else choose_further_host(self._seed, number)
            host = build_host(self._seed, number, name, *machine)
            simulator = HostSimulator(host, Timeline(self._seed, host, self._users))
            self._simulators[number] = simulator
        return simulator


class SimulatedHost(Collector):
    """One host of a fleet, read as a real machine is."""

    name = "simulated"

    def __init__(self, fleet: SimulatedFleet, host: int) -> None:
        self._fleet = fleet
        self._host = host

    def collect(self, now: float) -> Report:
        report = self._fleet.report(self._host, now)
        if report is None:
            raise Temporary(f"{self._fleet.names[self._host]} is down.", "It comes back within minutes.")
        return report
