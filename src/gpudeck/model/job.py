"""Jobs of schedulers as the API, the page and the terminal show them: what was allocated, and how much of it was used.

Hours are GPU-hours; `coverage` is the part of the job's time in which its GPUs were monitored. docs/accounting.md
defines them. A `Run` is a program that the hub has seen on GPUs, with or without a scheduler. Imported jobs, and the
summary that jobstats writes into a job's comment, are here too.
"""

import base64
import binascii
import gzip
import zlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

Rating = Literal["good", "could_be_better", "poor", "unknown"]
MAX_SUGGESTIONS: Final = 3
RATING_WORDS: Final[dict[Rating, str]] = {
    "good": "good",
    "could_be_better": "could be better",
    "poor": "poor",
    "unknown": "unknown",
}


class Suggestion(Struct, frozen=True):
    """`rule` is the rule's name, `text` its finding. `evidence` has the figures, `threshold` the value from which the
    rule fires, `fix` the next step."""

    rule: str
    text: str
    evidence: str
    threshold: str
    fix: str


class RunVerdict(Struct, frozen=True):
    """`text` is one sentence. `reason` is why the rating is unknown, else null. `suggestions` are at most three, the
    most important first."""

    rating: Rating
    text: str
    reason: str | None = None
    suggestions: list[Suggestion] = field(default_factory=list)


class Run(Struct):
    """One program from its start to its end. `started_at` is the start as the host reports it; `seen_at` is when it was
    first seen. `ended_at` is when it was last seen, None while it runs. Memory is the sum over its GPUs, utilization
    their mean while it ran; both None if unknown. `command_reason` is why a known command is not shown. `verdict` is
    set if requested."""

    id: int
    host: str
    host_name: str
    pid: int
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    gpus: list[str]
    labels: list[str]
    model: str | None
    started_at: float | None
    seen_at: float
    ended_at: float | None
    gpu_seconds: float
    peak_memory_bytes: float | None
    mean_memory_bytes: float | None
    mean_utilization_percent: float | None
    idle_seconds: float
    energy_joules: float | None
    command_reason: str | None = None
    verdict: RunVerdict | None = None


class Runs(Struct):
    """`next` is the `before` of the next page, None on the last."""

    runs: list[Run]
    next: int | None = None


JobState = Literal["running", "suspended", "ended", "unknown"]


class JobAmounts(Struct, kw_only=True):
    """`allocated_hours` are the known allocated hours, `unmonitored_hours` the part of them without monitoring. In
    `used_hours` the GPU was busy or idle, in `unused_hours` it was not in use; null if nothing was monitored.
    `idle_hours` were spent in the state idle; null for imported jobs. `active_hours` are hours times utilization; null
    if that was never known. `utilization_percent` is the mean over the monitored time, in which an unused GPU counts as
    0. `memory_mean_bytes` is the mean of one GPU, `memory_peak_bytes` the most on one. `cost` is that of the allocated
    time, null without a price."""

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
    """A GPU of a job. `label` was its number on the host. `is_shared`: other pods had it too, or processes of others
    were on it; their activity while the job used it is included. `idle_stretches` are the start and end of each time of
    at least ten minutes without work, at the history's resolution; null if the history does not know."""

    host: str
    label: str
    uuid: str
    model: str
    memory_total_bytes: float | None = None
    is_shared: bool = False
    idle_stretches: list[tuple[float, float]] | None = None


class JobNode(Struct, kw_only=True):
    """What a job used of a host besides GPUs: its cgroup, with all of its processes. `cpu_seconds` is the CPU time from
    its start to the last reading; the peak of cores is a mean over half a minute. Memory is without the page cache. A
    limit is null if there is none or it is unknown, any other field if it is unknown; `reason` says why."""

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
    """One start of a job; a requeued job has several. `job` is the id that users know; `scheduler` is its name in the
    hub's configuration. `state` is unknown while the scheduler cannot be read, or the host of a pod does not report:
    `state_reason` says why. `outcome` is the scheduler's own word for how it ended, null if unknown. `start` is when
    the scheduler started it, or when it was first seen; `until` is its time limit. `ended_at` is when its end was
    noticed. `gpu_count` is the number of its GPUs, on `hosts`."""

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
    """A job with its GPUs and its hosts. `verdict` is null without a history, and for the older tasks of an array."""

    gpus: list[JobGpu] = field(default_factory=list)
    nodes: list[JobNode] = field(default_factory=list)
    verdict: RunVerdict | None = None
    currency: str = ""


class JobList(Struct):
    """The newest first. `next` is the `before` of the next page, null on the last."""

    jobs: list[JobSummary]
    next: float | None = None


class JobReports(Struct):
    """The newest starts of a job, or tasks of an array, of one scheduler, the newest first. `has_more`: there are older
    ones. `other_schedulers` have a job with the same id."""

    jobs: list[JobReport]
    has_more: bool = False
    other_schedulers: list[str] = field(default_factory=list)


MAX_IMPORTED: Final = 500
"""The most jobs in one request."""
_Word = Annotated[str, Meta(max_length=256)]
_Amount = Annotated[float, Meta(ge=0, lt=2**53)]


class ImportedGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a job as measured by another monitor. Null is unknown; a GPU without any figure was allocated, and its
    use is unknown. An unknown host or label begins with `?`."""

    host: Annotated[str, Meta(min_length=1, max_length=200)]
    label: Annotated[str, Meta(min_length=1, max_length=32)]
    memory_total_bytes: _Amount | None = None
    memory_peak_bytes: _Amount | None = None
    utilization_percent: Annotated[float, Meta(ge=0, le=100)] | None = None


class ImportedNode(Struct, frozen=True, kw_only=True):
    """A host of a job as measured by another monitor. Null is unknown."""

    host: Annotated[str, Meta(min_length=1, max_length=200)]
    cpu_seconds: _Amount | None = None
    cpu_limit_cores: _Amount | None = None
    memory_peak_bytes: _Amount | None = None
    memory_limit_bytes: _Amount | None = None


class ImportedJob(Struct, frozen=True, kw_only=True):
    """A job that ended `seconds` after its `start`; null: the hub knows the start."""

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
    """A start of a job, and why it was not imported. `start` is null if unknown."""

    job: str
    start: float | None
    reason: str


class JobImport(Struct, frozen=True):
    """The imported jobs: an id for each start. `there` are those whose GPUs were known already."""

    imported: list[str]
    there: list[JobNotImported] = field(default_factory=list)
    refused: list[JobNotImported] = field(default_factory=list)


PREFIX: Final = "JS1:"
_EMPTY: Final = frozenset(("Short", "None", ""))
_MAX_BYTES: Final = 16 * 2**20
_ByGpu = dict[str, Annotated[float, Meta(ge=0)]]


class JobstatsNode(Struct, omit_defaults=True):
    """Missing values are unknown. GPUs are identified by their minor numbers; memory is in bytes, for a GPU the peak;
    utilization is the mean in percent. `total_time` is in CPU-seconds."""

    total_memory: float | None = None
    used_memory: float | None = None
    total_time: float | None = None
    cpus: float | None = None
    gpu_total_memory: _ByGpu = field(default_factory=dict)
    gpu_used_memory: _ByGpu = field(default_factory=dict)
    gpu_utilization: dict[str, Annotated[float, Meta(ge=0, le=100)]] = field(default_factory=dict)


class JobstatsSummary(Struct):
    """`total_time` is the run time of the job, in seconds."""

    nodes: dict[str, JobstatsNode]
    total_time: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    gpus: Annotated[int, Meta(ge=0, le=1024)] | None = None

    def list_gpus(self) -> list[ImportedGpu]:
        """The GPUs with figures, and further ones without, up to `gpus`."""
        measured = [
            ImportedGpu(
                host=host,
                label=label,
                memory_total_bytes=node.gpu_total_memory.get(label),
                memory_peak_bytes=node.gpu_used_memory.get(label),
                utilization_percent=node.gpu_utilization.get(label),
            )
            for host, node in self.nodes.items()
            for label in sorted(node.gpu_total_memory | node.gpu_used_memory | node.gpu_utilization)
        ]
        return measured + make_unknown_gpus(list(self.nodes), (self.gpus or 0) - len(measured))

    def list_nodes(self) -> list[ImportedNode]:
        def known(value: float | None) -> float | None:
            return value if value is not None and 0 <= value < 2**53 else None

        return [
            ImportedNode(
                host=host,
                cpu_seconds=known(node.total_time),
                cpu_limit_cores=known(node.cpus),
                memory_peak_bytes=known(node.used_memory),
                memory_limit_bytes=known(node.total_memory),
            )
            for host, node in self.nodes.items()
            if node.gpu_total_memory or node.gpu_used_memory or node.gpu_utilization
        ]


def make_unknown_gpus(hosts: Sequence[str], count: int) -> list[ImportedGpu]:
    """GPUs on one of these hosts that are only known to be allocated."""
    host = hosts[0] if len(hosts) == 1 else "?"
    return [ImportedGpu(host=host, label=f"?{number}") for number in range(1, count + 1)]


def read_summary(text: str) -> JobstatsSummary | None:
    """None for a job without figures of Jobstats. Raises ValueError."""
    packed = text.strip().removeprefix(PREFIX)
    if packed in _EMPTY:
        return None
    try:
        opened = zlib.decompressobj(wbits=31)
        body = opened.decompress(base64.b64decode(packed, validate=True), _MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"it is damaged ({error})") from error
    if not opened.eof:
        raise ValueError("it is cut off, or larger than 16 MiB")
    try:
        return msgspec.json.decode(body, type=JobstatsSummary)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no summary of Jobstats ({error})") from error


def write_summary(report: JobReport) -> str:
    """The memory of a node is its peak."""
    if not report.gpus:
        return f"{PREFIX}None"
    nodes = {
        node.host: JobstatsNode(
            total_memory=node.memory_limit_bytes,
            used_memory=node.memory_peak_bytes,
            total_time=None if node.cpu_seconds is None else round(node.cpu_seconds, 1),
            cpus=node.cpu_limit_cores,
        )
        for node in report.nodes
    }
    for gpu in report.gpus:
        node = nodes.setdefault(gpu.host, JobstatsNode())
        for values, value in (
            (node.gpu_total_memory, gpu.memory_total_bytes),
            (node.gpu_used_memory, gpu.memory_peak_bytes),
            (node.gpu_utilization, gpu.utilization_percent),
        ):
            if value is not None:
                values[gpu.label] = round(value, 1)
    summary = JobstatsSummary(nodes, round(report.wall_seconds), len(report.gpus))
    return PREFIX + base64.b64encode(gzip.compress(msgspec.json.encode(summary), mtime=0)).decode()
