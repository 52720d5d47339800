"""Queries of the history, their answers, and the interface of a store.

All stores give the same answers (tests/contract/test_history.py). Times are Unix seconds. Means are weighted by
monitored time; a moment that was not monitored has no point.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from msgspec import Meta, Struct, field

from gpudeck.history.sample import HostSample
from gpudeck.model.errors import GpudeckError
from gpudeck.model.history import Answer
from gpudeck.model.job import Run, Runs, RunVerdict
from gpudeck.model.usage import By, Usage, UsageBy

if TYPE_CHECKING:
    # They import numpy, which a base install does not have.
    from gpudeck.history.export import Column
    from gpudeck.history.recorder import Sample


MAX_POINTS = 5_000
MAX_SERIES = 512
STATE_METRICS = (
    *("gpus_free", "gpus_busy", "gpus_idle", "gpus_allocated"),
    *("gpus_reserved", "gpus_drained", "gpus_unknown"),
)
"""GPUs in a state: the mean number for a host or the fleet, the share of the time for one GPU."""
USER_METRICS = ("gpus_used", "gpus_active", "gpus_idle", "power_watts")
"""Means of a user: GPUs in use, GPUs in use times their utilization, idle GPUs, and their power."""


class HistoryRefused(GpudeckError):
    """An invalid query, such as an unknown metric or range. `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class SeriesQuery(Struct, frozen=True):
    """Exactly one of `gpu` (a UUID), `host` (id or name), `user`, `run` or `fleet` is the subject.

    `metric` is a name of the catalog, one of STATE_METRICS, or for a user one of USER_METRICS. Metrics of the host
    itself have the prefix `host_`, as in `host_cpu_percent`, which may be omitted if no GPU metric has that name. `by`
    splits: `gpu` a host or a run into its GPUs, `user` the memory of one GPU into its users.
    """

    metric: str
    start: float
    end: float
    points: int = 500
    gpu: str | None = None
    host: str | None = None
    user: str | None = None
    run: int | None = None
    fleet: bool = False
    by: Literal["gpu", "user"] | None = None


class HeatQuery(Struct, frozen=True):
    """A heat map of hosts over time. `step` is a whole number of hours in seconds."""

    metric: str
    start: float
    end: float
    step: int = 3600


class HeatRow(Struct):
    host: str
    name: str
    values: list[float | None]


class Heat(Struct):
    """`times` are the starts of the columns; None in a row was not monitored."""

    metric: str
    unit: str
    step: int
    times: list[float]
    rows: list[HeatRow]


class UsageQuery(Struct, frozen=True):
    """`zone` is the time zone of days (an IANA name), `daily` whether rows have days. A store has no rows by
    account, partition, namespace or `label`: see `schedulers.job_report`."""

    by: UsageBy
    start: float
    end: float
    user: str | None = None
    host: str | None = None
    model: str | None = None
    group: str | None = None
    daily: bool = False
    zone: str = "UTC"
    label: str | None = None


class UsageAmounts(Struct):
    """GPU-seconds and joules. `used` is the time in use, `active` that times the utilization, `idle` the part in the
    state idle. `measured` is the part of `used` with a known utilization, `metered` with a known power. `peak` is the
    most memory in use on one GPU at a moment, in bytes."""

    used: float = 0.0
    active: float = 0.0
    idle: float = 0.0
    measured: float = 0.0
    metered: float = 0.0
    joules: float = 0.0
    peak: float = 0.0

    def add(self, other: "UsageAmounts", share: float = 1.0) -> None:
        self.used += share * other.used
        self.active += share * other.active
        self.idle += share * other.idle
        self.measured += share * other.measured
        self.metered += share * other.metered
        self.joules += share * other.joules
        self.peak = max(self.peak, other.peak)


UseKey = tuple[int, str, str | None, str]
"""The hour's start, the host's id, the user (None: unknown), the model."""


class OverviewQuery(Struct, frozen=True):
    """The content of the History page: `points` is the approximate number per curve, `by` the kind of rows of the
    usage, `zone` the time zone of days (an IANA name), `heat` whether a heat map is wanted."""

    start: float
    end: float
    by: By = "user"
    points: int = 300
    zone: str = "UTC"
    heat: bool = True


class Overview(Struct):
    """The fleet in a period. `until` is the end of the included time: of a large fleet the end of the last whole
    quarter hour, and coverage is of the time until then. `series` has a curve of the fleet per metric. Only the
    total of `usage` has days. `heat` is null if the period is too long for a map."""

    until: float
    series: list[Answer]
    usage: Usage
    heat: Heat | None


class RunsQuery(Struct, frozen=True):
    """Runs that existed at some time from `start` until `end`, the newest first; `before` is for the next page."""

    start: float | None = None
    end: float | None = None
    user: str | None = None
    host: str | None = None
    gpu: str | None = None
    now: bool = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: int | None = None


class Fault(Struct, frozen=True):
    """An XID on a GPU."""

    at: float
    code: int


class VerdictQuery(Struct, frozen=True):
    """A query for a verdict: these GPUs (UUIDs) from `start` until `end`, and with `run` only the times and GPUs of
    that run. `cpu_percent` is the use of its cores, if known. `faults` are those of its GPUs in its time."""

    gpus: tuple[str, ...]
    start: float
    end: float
    run: int | None = None
    is_over: bool = True
    command: str | None = None
    cpu_percent: float | None = None
    faults: tuple[Fault, ...] = ()


class SamplesQuery(Struct, frozen=True):
    """Samples of GPUs from `start` until before `end`. `hosts` are names or ids, `gpus` UUIDs; empty means all.
    `metrics` are names of the catalog, with the prefix `host_` for those of the host. `after` is for the next page."""

    start: float
    end: float
    metrics: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    after: tuple[int, int] | None = None


class SamplePage(NamedTuple):
    """Columns of some hours, host by host. `next` is the `after` of the next page, None on the last. `share` is the
    approximate part that has been read so far."""

    columns: "list[Column]"
    next: tuple[int, int] | None
    share: float


class MomentQuery(Struct, frozen=True):
    """The fleet at a moment. `metrics` are the wanted names, with the prefix `host_` for those of the host; None
    means all. Hosts that had been silent for `forget_after` seconds are left out."""

    at: float
    metrics: frozenset[str] | None = None
    forget_after: float = float("inf")


class PastHost(Struct):
    """The last sample of a host until a moment. `since` is when the state of each GPU began, None if unknown.
    `is_rolled`: the sample is a quarter hour, which begins at its `at`, because samples are no longer kept.
    `is_recorded` is False if nothing before the moment is known of the host."""

    sample: HostSample
    since: list[float | None]
    is_rolled: bool = False
    is_recorded: bool = True


class IdleEpisode(Struct):
    """A GPU that was idle, with the same users all the time. `spans` are the times at which it was seen idle, in
    order, with unmonitored time between them. `jobs` are those of the processes on it. `sharing` are the other GPUs of
    these processes and jobs, by UUID, each with the time until which it was one."""

    gpu: str
    label: str
    model: str
    host_id: str
    host: str
    users: tuple[str, ...]
    jobs: tuple[str, ...]
    spans: list[tuple[float, float]]
    sharing: dict[str, float] = field(default_factory=dict)


class IdleQuery(Struct, frozen=True):
    """Idle episodes in a period. `with_allocated` includes GPUs that a job has and nobody uses."""

    start: float
    end: float
    with_allocated: bool = False


class ModelSize(NamedTuple):
    """Memory and vendor of a model: programs move only within a vendor."""

    memory_bytes: float
    vendor: str


class Savings(Struct):
    """Seconds and money. `judged` are seconds in use with known memory, `oversized` those that would have fitted on
    a smaller model, `released` idle seconds after the first hour. A cost is None if nothing in it has a price."""

    judged: float = 0.0
    oversized: float = 0.0
    oversized_cost: float | None = None
    released: float = 0.0
    released_cost: float | None = None

    def add(self, what: Literal["oversized", "released"], seconds: float, price: float | None) -> None:
        setattr(self, what, getattr(self, what) + seconds)
        if price is not None and seconds:
            cost = f"{what}_cost"
            setattr(self, cost, (getattr(self, cost) or 0.0) + seconds / 3600 * price)


class WasteFacts(Struct):
    """Savings by the name of a row and whether it is that of unknown users. `smaller` is by the model and the
    smaller model. `problem` is the reason if `released` is unknown."""

    rows: dict[tuple[str | None, bool], Savings]
    total: Savings
    smaller: dict[tuple[str, str], Savings]
    problem: str | None = None


class StoreStats(Struct, omit_defaults=True):
    """The state of a store, for operators."""

    kind: str
    size_bytes: int
    samples_taken: int
    samples_dropped: int
    samples_late: int
    rows: int
    oldest: float | None
    newest: float | None
    behind_seconds: float
    parts: dict[str, int] = field(default_factory=dict)
    problem: str | None = None


class Store(Protocol):
    """A store of the history. `take` is called on the event loop and returns at once; queries block a thread. They
    raise HistoryRefused if they are invalid, and Temporary if the store cannot be reached."""

    @property
    def problem(self) -> str | None:
        """The reason if nothing can be stored at the moment. Cheap, as it is read every second."""
        ...

    def take(self, samples: "Sequence[Sample]") -> None: ...
    def series(self, query: SeriesQuery) -> Answer: ...
    def heat(self, query: HeatQuery) -> Heat: ...
    def usage(self, query: UsageQuery) -> Usage: ...
    def overview(self, query: OverviewQuery) -> Overview: ...
    def runs(self, query: RunsQuery) -> Runs: ...
    def run(self, key: int) -> Run | None: ...
    def verdicts(self, queries: Sequence[VerdictQuery]) -> list[RunVerdict]: ...
    def moment(self, query: MomentQuery) -> Iterator[PastHost]: ...
    def waste(self, query: UsageQuery, sizes: Mapping[str, ModelSize]) -> WasteFacts: ...
    def idle(self, query: IdleQuery) -> list[IdleEpisode]: ...
    def samples(self, query: SamplesQuery) -> SamplePage: ...
    def stats(self) -> StoreStats: ...
    def close(self) -> None: ...


class KnownGpu(Struct, frozen=True):
    """`first` and `last` are when it was first and last sampled."""

    key: int
    uuid: str
    host: int
    label: str
    model: str
    first: float
    last: float


class KnownHost(Struct):
    key: int
    host_id: str
    name: str
    first: float
    last: float


class KnownRun(Struct, frozen=True):
    """`gpus` are keys. `first` and `last` are when it was first and last sampled, `is_live` whether it goes on."""

    key: int
    host: int
    pid: int
    started_at: float | None
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    gpus: tuple[int, ...]
    first: float
    last: float
    is_live: bool = False
