"""A scheduler's allocation of a GPU: its job, and whether new jobs may start. Pure."""

from typing import Final

from msgspec import Struct, field

from gpudeck.model.report import PodGpus, Report

KUBERNETES: Final = "kubernetes"
"""The scheduler of allocations that hosts report themselves."""


class Allocation(Struct, frozen=True, omit_defaults=True):
    """A job, or a pod, that was given a GPU: from `since` until at most `until`, in Unix seconds; null is unknown.

    `scheduler` is its name in the hub's configuration. `job` is the id that its users know (`4711`, `4711_3`, and
    `namespace/pod`); empty where the scheduler does not say which job it is: `unknown` then has the reason. `number` is
    Slurm's own number of the job, which processes have; `conflict` says that a process of another job is on the GPU.
    The other names are the scheduler's own; `namespace` and what follows are those of a pod. `shared_with` are the
    other pods that have a share of the GPU.
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
    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    owner: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    shared_with: list[str] = field(default_factory=list)

    def is_of(self, job: str | None, user: str | None) -> bool:
        """Whether a process may belong to this job: by its own job or, without one, by its user. A process of root, or
        of a user without a name on its host, may belong to anyone."""
        if job is not None:
            return job in {self.number, self.job}
        return user is None or self.user is None or user in {self.user, "root"} or user.isdigit()


class SchedulerMark(Struct, frozen=True):
    """What schedulers say about one GPU. `closed` is why no job starts there now. `unknown` is why it may be allocated
    without our knowledge."""

    allocation: Allocation | None = None
    closed: str | None = None
    unknown: str | None = None


NOT_SCHEDULED: Final = SchedulerMark()
"""No scheduler has it."""


def mark_pods(report: Report) -> dict[str, SchedulerMark]:
    """What a host reports about its GPUs, by UUID. Of several pods on a GPU the first one counts."""
    closed = report.closed
    marks = {} if closed is None else {gpu.uuid: SchedulerMark(closed=closed) for gpu in report.gpus or ()}
    marks |= {uuid: SchedulerMark(closed=closed, unknown=why) for uuid, why in report.allocation_unknown.items()}
    on_gpu: dict[str, dict[str, PodGpus]] = {}
    pods = sorted(report.pods, key=lambda one: (one.since or float("inf"), one.namespace, one.pod, one.container or ""))
    for pod in pods:
        for uuid in pod.gpus:
            on_gpu.setdefault(uuid, {}).setdefault(f"{pod.namespace}/{pod.pod}", pod)
    for uuid, sharing in on_gpu.items():
        (job, first), *_ = sharing.items()
        allocation = Allocation(
            KUBERNETES,
            job,
            user=first.user,
            since=first.since,
            namespace=first.namespace,
            pod=first.pod,
            container=first.container,
            owner=first.owner,
            labels=first.labels,
            shared_with=[other for other in sharing if other != job],
        )
        marks[uuid] = SchedulerMark(allocation, closed)
    return marks


def join_marks(first: SchedulerMark, second: SchedulerMark) -> SchedulerMark:
    if second is NOT_SCHEDULED or first is NOT_SCHEDULED:
        return first if second is NOT_SCHEDULED else second
    return SchedulerMark(
        first.allocation or second.allocation, first.closed or second.closed, first.unknown or second.unknown
    )
