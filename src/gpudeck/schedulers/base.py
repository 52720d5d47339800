"""The interface of schedulers: GPUs of nodes that are allocated to jobs, and nodes that accept none."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field

from gpudeck.model.allocation import Allocation


class SchedulerNode(Struct, frozen=True):
    """What a scheduler says of one of its nodes. `names` are what the host may be called, the best first. `gpus` are by
    the scheduler's own index. `uncertain` is why empty GPUs may be allocated all the same, `closed` why no job starts
    there."""

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
    """What the scheduler's accounting says of a job that has ended. `outcome` is its own word ("TIMEOUT")."""

    job: str
    start: float
    end: float
    outcome: str


class SchedulerState(Struct, frozen=True):
    """All nodes by name. `ended` are jobs that ended lately, at some readings and where the scheduler keeps them."""

    nodes: Mapping[str, SchedulerNode]
    reservations: tuple[NodeReservation, ...] = ()
    ended: tuple[EndedJob, ...] = ()


class Scheduler(Protocol):
    """`origin` names it for people ("Slurm (gpu)"); `pause` is how many seconds lie between two readings. `read` raises
    Temporary, Refused or Wrong, never returns a part, and may be cancelled."""

    name: str
    origin: str
    pause: float

    async def read(self) -> SchedulerState: ...
