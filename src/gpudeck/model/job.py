"""Jobs of schedulers as the API, the page and the terminal show them: what was allocated, and what of it was used.

Hours are GPU-hours; `coverage` is the part of the job's time in which its GPUs were monitored. docs/accounting.md
defines them.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.verdict import RunVerdict

JobState = Literal["running", "suspended", "ended", "unknown"]


class JobAmounts(Struct, kw_only=True):
    """`allocated_hours` are all that are known, `unmonitored_hours` the part of them in which it is not known what the
    GPU did. `used_hours` are those in which the GPU was busy or idle, `unused_hours` those in which it was not; null
    where nothing was monitored. `idle_hours` are those in the state idle; null of a job that was imported.
    `active_hours` are hours times utilization; null where it was never known.

    `utilization_percent` is the mean over the monitored time, in which an unused GPU has none. `memory_mean_bytes` is
    a mean of one GPU, `memory_peak_bytes` the most on one. `cost` is that of the allocated time, null without a price.
    """

    allocated_hours: float = 0.0
    unmonitored_hours: float = 0.0
    used_hours: float | None = None
    unused_hours: float | None = None
    idle_hours: float | None = None
    active_hours: float | None = None
    utilization_percent: float | None = None
    utilization_peak_percent: float | None = None
    memory_mean_bytes: float | None = None
    memory_peak_bytes: float | None = None
    energy_kwh: float | None = None
    cost: float | None = None
    coverage: float | None = None


class JobGpu(JobAmounts, kw_only=True):
    """A GPU of a job. `label` is its number on the host then. `is_shared`: other pods had it, or others' processes
    were on it; what they did while the job used it is included. `idle_stretches` are the times from when until when it
    did not work, of ten minutes and more, at the history's resolution; null where the history does not say."""

    host: str
    label: str
    uuid: str
    model: str
    memory_total_bytes: float | None = None
    is_shared: bool = False
    idle_stretches: list[tuple[float, float]] | None = None


class JobNode(Struct, kw_only=True):
    """What a job used of a host beside GPUs: its cgroup, with all of its processes. `cpu_seconds` is the CPU time from
    its start to the last reading; the peak of cores is a mean over half a minute. Memory is without file caches. A
    limit is null where there is none or it is unknown, anything else where it is unknown; `reason` says why."""

    host: str
    cpu_seconds: float | None = None
    cpu_mean_cores: float | None = None
    cpu_peak_cores: float | None = None
    cpu_limit_cores: float | None = None
    memory_mean_bytes: float | None = None
    memory_peak_bytes: float | None = None
    memory_limit_bytes: float | None = None
    reason: str | None = None


class JobSummary(JobAmounts, kw_only=True):
    """One start of a job: one that was requeued has several. `job` is the id that users know; `scheduler` is its name
    in the hub's configuration.

    `state` is unknown while the scheduler cannot be read, or the host of a pod does not report: `state_reason`.
    `outcome` is the scheduler's own word for how it ended, null where it is not known. `start` is when the scheduler
    started it or, where it does not say, when it was first seen; `until` is when it ends at the latest. `ended_at` is
    when it was seen to have ended. `gpu_count` is how many GPUs it had, on `hosts`.
    """

    scheduler: str
    job: str
    state: JobState
    state_reason: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    outcome: str | None = None
    start: float
    until: float | None = None
    ended_at: float | None = None
    last_seen: float
    wall_seconds: float
    gpu_count: int
    hosts: list[str] = field(default_factory=list)


class JobReport(JobSummary, kw_only=True):
    """A job with its GPUs and its hosts. `verdict` is null where there is no history, and of the older tasks of an
    array."""

    gpus: list[JobGpu] = field(default_factory=list)
    nodes: list[JobNode] = field(default_factory=list)
    verdict: RunVerdict | None = None
    currency: str = ""


class JobList(Struct):
    """The newest first. `next` is the `before` of the next page, null on the last."""

    jobs: list[JobSummary]
    next: float | None = None


class JobReports(Struct):
    """The newest starts of a job, or tasks of an array, of one scheduler, the newest first. `has_more`: there are
    older ones. `other_schedulers` have a job of that id too."""

    jobs: list[JobReport]
    has_more: bool = False
    other_schedulers: list[str] = field(default_factory=list)


MOST_IMPORTED: Final = 500
"""Jobs in one request."""
_Word = Annotated[str, Meta(max_length=256)]
_Amount = Annotated[float, Meta(ge=0, lt=2**53)]


class ImportedGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a job as another monitor has measured it. Null is unknown; a GPU without any figure was allocated, and
    what it did is unknown. A host or label that is not known begins with `?`."""

    host: Annotated[str, Meta(min_length=1, max_length=200)]
    label: Annotated[str, Meta(min_length=1, max_length=32)]
    memory_total_bytes: _Amount | None = None
    memory_peak_bytes: _Amount | None = None
    utilization_percent: Annotated[float, Meta(ge=0, le=100)] | None = None


class ImportedNode(Struct, frozen=True, kw_only=True):
    """A host of a job as another monitor has measured it. Null is unknown."""

    host: Annotated[str, Meta(min_length=1, max_length=200)]
    cpu_seconds: _Amount | None = None
    cpu_limit_cores: _Amount | None = None
    memory_peak_bytes: _Amount | None = None
    memory_limit_bytes: _Amount | None = None


class ImportedJob(Struct, frozen=True, kw_only=True):
    """A job that has ended, `seconds` after its `start`; null: the start is known to the hub."""

    job: Annotated[str, Meta(min_length=1, max_length=512)]
    start: Annotated[float, Meta(ge=0, lt=1e11)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)]
    name: _Word | None = None
    user: _Word | None = None
    account: _Word | None = None
    partition: _Word | None = None
    qos: _Word | None = None
    outcome: Annotated[str, Meta(max_length=64)] | None = None
    gpus: Annotated[list[ImportedGpu], Meta(max_length=1024)] = field(default_factory=list)
    nodes: Annotated[list[ImportedNode], Meta(max_length=1024)] = field(default_factory=list)


class JobNotImported(Struct, frozen=True):
    """A start of a job, and why it was not imported. `start` is null where it is not known."""

    job: str
    start: float | None
    reason: str


class JobImport(Struct, frozen=True):
    """Which jobs were imported: an id for each start. `there` are those whose GPUs were known already."""

    imported: list[str]
    there: list[JobNotImported] = field(default_factory=list)
    refused: list[JobNotImported] = field(default_factory=list)
