"""What a scheduler says of a GPU: which job was given it, and whether jobs may start on it. Pure."""

from typing import Final

from msgspec import Struct


class Allocation(Struct, frozen=True, omit_defaults=True):
    """A job, or a pod, that was given a GPU: from `since` until at most `until`, in Unix seconds; null is unknown.

    `scheduler` is its name in the hub's configuration. `job` is the id that its users know (`4711`, `4711_3`); empty
    where the scheduler does not say which job it is: `unknown` then has the reason. `number` is Slurm's own number of
    the job, which processes have; `conflict` says that a process of another job is on the GPU. The other names are the
    scheduler's own.
    """

    scheduler: str
    job: str = ""
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    is_suspended: bool = False
    since: float | None = None
    until: float | None = None
    unknown: str | None = None
    number: str | None = None
    conflict: str | None = None


class SchedulerMark(Struct, frozen=True):
    """What counts for one GPU. `closed` is why no job starts there now. `unknown` is why it may be allocated without
    our knowledge."""

    allocation: Allocation | None = None
    closed: str | None = None
    unknown: str | None = None


NOT_SCHEDULED: Final = SchedulerMark()
"""No scheduler has it."""
