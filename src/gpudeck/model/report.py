"""A report: the state of one host at one moment.

A metric is in `metrics` when it is known and in `unknown`, with the reason, when it is not. It is never both, and never
a zero that stands for "could not read". A metric in neither was not reported by this agent.

The structs hold plain values only, never each other in a circle, so the garbage collector need not look at the hundred
thousand of them that a large hub keeps (`gc=False`).
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Number = int | float
_Number = Annotated[int, Meta(ge=-(2**62), le=2**62)] | float

# A report comes from outside. The decoder enforces these bounds.
Word = Annotated[str, Meta(min_length=1, max_length=256)]
Sentence = Annotated[str, Meta(max_length=1024)]
Metrics = Annotated[dict[Word, _Number], Meta(max_length=256)]
Moment = Annotated[float, Meta(ge=-1e11, le=1e11)]
Reasons = Annotated[dict[Word, Sentence], Meta(max_length=256)]
Index = Annotated[int, Meta(ge=0, le=65535)]
MAX_LABELS = 64
Labels = Annotated[dict[Word, Annotated[str, Meta(max_length=256)]], Meta(max_length=MAX_LABELS)]


class Process(Struct, frozen=True, omit_defaults=True, gc=False):
    """One program on one GPU. A process on four GPUs appears four times, with its memory on each.

    None means unknown; `reasons` says why, by field name. `display` marks Xorg and the like, which do not make a GPU
    busy. `evidence` says how the owner was found.
    """

    # 0 is unknown: Linux writes it for a pid that is not visible. `reasons` says why.
    pid: Annotated[int, Meta(ge=0, lt=2**32)]
    user: Word | None = None
    command: Annotated[str, Meta(max_length=4096)] | None = None
    memory_used_bytes: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    started_at: Moment | None = None
    utilization_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    container: Word | None = None
    job: Word | None = None
    evidence: Sentence | None = None
    display: bool = False
    reasons: Reasons = field(default_factory=dict)


class GpuEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """A fault that the driver reported: NVIDIA's XID `code`. `at` is on the host's clock. `process` is the pid that the
    driver names, if any; `text` is the driver's message."""

    at: Moment
    code: Annotated[int, Meta(ge=0, lt=2**31)]
    process: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    text: Sentence = ""


class GpuReading(Struct, frozen=True, omit_defaults=True, gc=False):
    """One GPU, or one MIG instance (`parent` is then the board's UUID and `instance` its number on that board).

    `missing` is why a GPU of this host cannot be read at all. `processes` is None if the list could not be read.
    `idle_seconds` is how long the agent has seen no work on it; None if the agent does not track that. `events` are
    those of the last day, the newest last: every report repeats them, so a lost report loses no event.
    """

    uuid: Word
    index: Index
    name: Word
    vendor: Literal["nvidia", "amd", "intel", "other"] = "other"
    parent: Word | None = None
    instance: Index | None = None
    pci_address: Word | None = None
    missing: Sentence | None = None
    metrics: Metrics = field(default_factory=dict)
    unknown: Reasons = field(default_factory=dict)
    processes: Annotated[list[Process], Meta(max_length=1024)] | None = None
    processes_reason: Sentence | None = None
    idle_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    events: Annotated[list[GpuEvent], Meta(max_length=32)] = field(default_factory=list)


class Disk(Struct, frozen=True, gc=False):
    """A file system for user data; the `disk_*` metrics are about `/`."""

    mount: Word
    used_bytes: Annotated[int, Meta(ge=0, lt=2**60)]
    total_bytes: Annotated[int, Meta(ge=0, lt=2**60)]


class PodGpus(Struct, frozen=True, omit_defaults=True, gc=False):
    """A container of a Kubernetes pod that was allocated GPUs of this host, by UUID, used or not. `container` is None
    if the pod has them as a whole. The fields below it come from the API server: None or empty if it was not asked.
    `since` is when the pod started."""

    gpus: Annotated[list[Word], Meta(max_length=512)]
    namespace: Word
    pod: Word
    container: Word | None = None
    owner: Word | None = None
    user: Word | None = None
    labels: Labels = field(default_factory=dict)
    since: Moment | None = None


MAX_CGROUPS = 64


class JobCgroup(Struct, frozen=True, omit_defaults=True, gc=False):
    """The CPU and memory use of a job or pod on this host, from its cgroup. `job` is the job of its processes.
    `read_at` is on the host's clock. `cpu_seconds` is the CPU time since the cgroup was created. `memory_used_bytes` is
    without the page cache. A limit is None if there is none or it is unknown; any other field is None if it is unknown,
    and `reasons` says why."""

    job: Word
    read_at: Moment
    cpu_seconds: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    memory_used_bytes: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    cpu_limit_cores: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    memory_limit_bytes: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    reasons: Reasons = field(default_factory=dict)


JobCgroups = Annotated[list[JobCgroup], Meta(max_length=MAX_CGROUPS)]


class Report(Struct, frozen=True, omit_defaults=True, gc=False):
    """A host at one moment. `gpus` is None when no GPU could be read at all: `gpus_reason` says why.

    `interfaces` has the network interface of each of the `addresses` of which it is known. `problems` are sentences for
    the admin ("driver not answering for 12 s"). `slurm_gpus` are the PCI addresses of the GPUs, or UUIDs of MIG
    instances, in the order in which Slurm counts them, empty where that is not known. `pods` are those that Kubernetes
    has given GPUs to; `allocation_unknown` says of GPUs, by UUID, why they may be allocated although no pod with them
    is known, and `closed` why no pod starts on this node now. `job_cgroups` are those of jobs and pods that have
    processes on GPUs.
    """

    gpus: Annotated[list[GpuReading], Meta(max_length=512)] | None = None
    gpus_reason: Sentence | None = None
    metrics: Metrics = field(default_factory=dict)
    unknown: Reasons = field(default_factory=dict)
    driver_version: Word | None = None
    os: Word | None = None
    labels: Labels = field(default_factory=dict)
    disks: Annotated[list[Disk], Meta(max_length=64)] = field(default_factory=list)
    addresses: Annotated[list[Word], Meta(max_length=64)] = field(default_factory=list)
    interfaces: Annotated[dict[Word, Word], Meta(max_length=64)] = field(default_factory=dict)
    problems: Annotated[list[Sentence], Meta(max_length=64)] = field(default_factory=list)
    slurm_gpus: Annotated[list[Word], Meta(max_length=512)] = field(default_factory=list)
    pods: Annotated[list[PodGpus], Meta(max_length=1024)] = field(default_factory=list)
    allocation_unknown: Annotated[dict[Word, Sentence], Meta(max_length=512)] = field(default_factory=dict)
    job_cgroups: JobCgroups = field(default_factory=list)
    closed: Sentence | None = None


class Occupancy(Struct, frozen=True):
    """The users of a GPU, as far as its state depends on them, without display servers. `workers` is None if the
    process list could not be read, `display_bytes` if the memory of a display server is unknown, `oldest_start` (on the
    host's clock) if no start is known."""

    workers: int | None = None
    display_bytes: int | None = 0
    oldest_start: float | None = None


def occupancy_of(processes: list[Process] | None) -> Occupancy:
    workers = [process for process in processes or () if not process.display]
    displays = [process.memory_used_bytes for process in processes or () if process.display]
    return Occupancy(
        workers=None if processes is None else len(workers),
        display_bytes=None if None in displays else sum(share or 0 for share in displays),
        oldest_start=min((process.started_at for process in workers if process.started_at is not None), default=None),
    )


def users_of(processes: list[Process] | None) -> list[str]:
    """The distinct users on the GPU, most memory first; display servers do not count."""
    memory: dict[str, int] = {}
    for process in processes or ():
        if process.user is not None and not process.display:
            memory[process.user] = memory.get(process.user, 0) + (process.memory_used_bytes or 0)
    return sorted(memory, key=lambda user: (-memory[user], user))


def find_user(event: GpuEvent, processes: Mapping[int, Process]) -> str | None:
    """The user of the process that a fault names. A process that was started later only reuses the pid."""
    process = None if event.process is None else processes.get(event.process)
    is_later = process is not None and process.started_at is not None and process.started_at > event.at + 1
    return None if process is None or is_later else process.user
