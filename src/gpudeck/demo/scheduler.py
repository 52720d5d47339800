"""The demo's scheduler: the jobs of those hosts that are nodes of a cluster, as Slurm would give them GPUs."""

from typing import Final

from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.model import clock
from gpudeck.model.allocation import Allocation
from gpudeck.schedulers.base import SchedulerNode, SchedulerState

_AHEAD_SECONDS: Final = 240.0
"""A job has its GPUs for some minutes before its program is on them."""
_LIMIT_SECONDS: Final = 6 * 3600
"""Users ask for whole quarters of a day."""

_NAMES: Final = {
    "training": "train",
    "loader": "preprocess",
    "notebook": "jupyter",
    "inference": "serve",
    "holder": "debug",
}


class DemoScheduler:
    """`schedulers.base.Scheduler` of a simulated fleet. Nodes with MIG instances are left out."""

    name = "demo"
    origin = "Slurm (demo)"
    pause = 10.0

    def __init__(self, fleet: SimulatedFleet, now: clock.Clock = clock.wall) -> None:
        self._fleet = fleet
        self._now = now

    async def read(self) -> SchedulerState:
        now = self._now()
        stations = (self._fleet.station(number) for number in range(len(self._fleet.names)))
        hosts = [
            station
            for station in stations
            if station.host.in_slurm and all(slot.parent is None for slot in station.host.slots)
        ]
        nodes = {}
        for station in hosts:
            gpus: dict[int, Allocation] = {}
            for slot in station.host.slots:
                jobs = (station.timeline.tenure(slot.number, at).run for at in (now, now + _AHEAD_SECONDS))
                job = next((job for job in jobs if job is not None and job.job is not None), None)
                if job is not None:
                    gpus[slot.index] = self._allocate(job, station.host.group)
            nodes[station.host.name] = SchedulerNode((station.host.name,), len(station.host.slots), gpus)
        return SchedulerState(nodes)

    def _allocate(self, job: SimulatedJob, group: str) -> Allocation:
        length = (job.end - job.start) // _LIMIT_SECONDS * _LIMIT_SECONDS + _LIMIT_SECONDS
        return Allocation(
            self.name,
            job.job or "",
            name=_NAMES[job.kind],
            user=job.user,
            account=self._fleet.group_of(job.user),
            partition=group,
            since=job.start - _AHEAD_SECONDS,
            until=job.start - _AHEAD_SECONDS + length,
            number=job.job,
        )
