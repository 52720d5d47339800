"""The interface of schedulers: GPUs of nodes that are allocated to jobs, and nodes that accept none."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field

from gpudeck.model.allocation import Allocation


class SchedulerNode(Struct, frozen=True):
    """A node of a scheduler. `names` are possible names of its host, the most specific first. `gpus` has allocations
    by the scheduler's own GPU index. `uncertain` is the reason if GPUs without an allocation may be allocated,
    `closed` the reason if no job can start there."""

    names: tuple[str, ...]
    count: int
    gpus: Mapping[int, Allocation] = field(default_factory=dict)
    uncertain: str | None = None
    closed: str | None = None


class NodeReservation(Struct, frozen=True):
    """Nodes that the scheduler has reserved for users, or for maintenance, from `start` until `end`. `note` describes
    it for people."""

    name: str
    nodes: tuple[str, ...]
    start: float
    end: float
    users: tuple[str, ...]
    is_maintenance: bool
    note: str = ""

    def counts_at(self, now: float) -> bool:
        return self.start <= now < self.end


class EndedJob(Struct, frozen=True):
    """A job that has ended, from the scheduler's accounting. `outcome` is the scheduler's own word ("TIMEOUT")."""

    job: str
    start: float
    end: float
    outcome: str


class SchedulerState(Struct, frozen=True):
    """All nodes by name. `ended` are jobs that ended recently; not every reading has them."""

    nodes: Mapping[str, SchedulerNode]
    reservations: tuple[NodeReservation, ...] = ()
    ended: tuple[EndedJob, ...] = ()


class Scheduler(Protocol):
    """`origin` is its name in messages ("Slurm (gpu)"); `pause` is the seconds between two readings. `read` raises
    Temporary, Refused or Wrong, never returns a partial state, and may be cancelled."""

    name: str
    origin: str
    pause: float

    async def read(self) -> SchedulerState: ...
