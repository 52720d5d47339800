"""The fleet as the API, the page and the command line show it. The hub writes these structs, the client reads them; the
OpenAPI document and the page's types are generated from them.

`Gpu` and `Host` inherit one field for each metric of the catalog, so a new metric needs no line here. The reason for a
null is in `reasons`.
"""

from typing import Any, Literal

from msgspec import Struct, field

from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.allocation import Allocation
from gpudeck.model.catalog import GpuMetrics, HostMetrics
from gpudeck.model.gpu_state import AVAILABILITIES, Availability, HealthLevel, XidKind, find_xid
from gpudeck.model.report import Disk, GpuEvent
from gpudeck.model.reservation import GpuReservation, Maintenance

HostStatus = Literal["up", "late", "down", "never_seen"]


class ShownProcess(Struct, frozen=True, gc=False):
    """A process with every field of `model.report.Process`, null if it is unknown (on the wire such fields are left
    out). The bounds of a report are checked on arrival, not here."""

    pid: int
    user: str | None = None
    command: str | None = None
    memory_used_bytes: int | None = None
    started_at: float | None = None
    utilization_percent: float | None = None
    container: str | None = None
    job: str | None = None
    evidence: str | None = None
    display: bool = False
    reasons: dict[str, str] = field(default_factory=dict)


class ShownEvent(Struct, frozen=True, kw_only=True):
    """A fault that the driver reported: NVIDIA's XID `code`. `at` is on the host's clock. `text` is the meaning of the
    code, `message` the driver's own. `user` owned `process` when it happened; null if unknown, or if no process was
    named."""

    at: float
    code: int
    kind: XidKind
    text: str
    message: str
    process: int | None
    user: str | None


class Gpu(GpuMetrics, kw_only=True):
    """A GPU with its metrics and its state. `since` is when its availability last changed, as far as the hub has
    seen it; None in a single reading without a hub. `last_seen` is the availability before the host stopped
    reporting: for display only, never for counting. `events` are the last day's faults, the newest last.
    `reservation` is the current one; `reservation_conflict` names a user who is on the GPU without it. `maintenance`
    says why it is drained, or will not become free. `allocation` is the job that a scheduler has allocated it to,
    whether or not anything runs on it."""

    availability: Availability
    availability_reason: str | None = None
    last_seen: Availability | None = None
    since: float | None
    health: HealthLevel
    health_reason: str | None = None
    health_action: str | None = None
    users: list[str] = field(default_factory=list)
    processes: list[ShownProcess] | None = None
    events: list[ShownEvent] = field(default_factory=list)
    reservation: GpuReservation | None = None
    reservation_conflict: str | None = None
    maintenance: Maintenance | None = None
    allocation: Allocation | None = None
    reasons: dict[str, str] = field(default_factory=dict)


class GpuOfHost(Gpu, kw_only=True):
    """A GPU with the name and the id of its host."""

    host: str
    host_id: str


class GpuList(Struct, frozen=True):
    """GPUs across hosts. `total` is the number of matches, even if only some were requested."""

    gpus: list[GpuOfHost]
    total: int


class HostNote(Struct, frozen=True):
    """A note of an admin about a host, with author and time."""

    text: str
    by: str
    at: float


class Host(HostMetrics, kw_only=True):
    """A host with its metrics and GPUs. Times are Unix seconds on the hub's clock.

    `via` is the source (push, simulated, …). `clock_skew_seconds` is how far the host's clock is ahead of the hub's.
    `maintenance` says why and until when the whole host is drained.
    """

    status: HostStatus
    via: str
    last_report_at: float | None = None
    interval_seconds: float | None = None
    clock_skew_seconds: float | None = None
    agent_version: str = ""
    driver_version: str | None = None
    os: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    disks: list[Disk] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    maintenance: Maintenance | None = None
    note: HostNote | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)


class Totals(Struct, frozen=True):
    """Counts over the fleet; the availabilities add up to `gpus`."""

    gpus: int
    free: int
    busy: int
    idle: int
    allocated: int
    reserved: int
    drained: int
    unknown: int
    hosts: int
    hosts_up: int
    users: int
    power_watts: float | None

    @property
    def by_availability(self) -> dict[Availability, int]:
        return {word: getattr(self, word) for word in AVAILABILITIES}


class Fleet(Struct, kw_only=True):
    """Everything now. `demo`: all of it is simulated. `problems` are the hub's own: lists of hosts that cannot be
    read, hosts that are named twice. `alerts` are the firing ones, the worst first, at most 200; `alert_counts`
    covers all."""

    demo: bool
    time: float
    version: str
    totals: Totals
    problems: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    alert_counts: AlertCounts = AlertCounts()

    hosts: list[Host]


class PastFleet(Fleet, kw_only=True):
    """The fleet as recorded at the time `as_of`, which is also its `time`. Names, labels and sources are the current
    ones. Alerts and reservations are those of that time, as stored today; what is no longer stored, or cannot be read,
    is among `problems`. Conflicts of reservations and mutes are not recorded. `coverage` is the part of the GPUs known
    then whose state was recorded (0–1); None if no GPU was known. `resolution` is the kind of record: quarter-hour
    means if samples are no longer stored."""

    as_of: float
    coverage: float | None
    resolution: Literal["raw", "quarter_hour"]


class FleetColumns(Struct, kw_only=True):
    """The fleet as columns: for each field of a host, or of a GPU, a list of its values. `host` is the index of a GPU's
    host in `hosts`. `reasons` of a host or a GPU is an index in `reasons`. Processes, events, and the GPUs of each host
    are left out."""

    demo: bool
    time: float
    version: str
    totals: Totals
    problems: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    alert_counts: AlertCounts = AlertCounts()

    hosts: dict[str, list[Any]]
    gpus: dict[str, list[Any]]
    reasons: list[dict[str, str]]


class HostList(Struct, frozen=True):
    """Hosts by name. `total` is the number of all matches, even if only some were requested."""

    hosts: list[Host]
    total: int = 0


class DatabaseState(Struct, frozen=True):
    """`events` is the number of stored events; null with the `reason` if the database does not answer."""

    kind: str
    events: int | None
    reason: str | None = None
    problem: str | None = None


def show_event(event: GpuEvent, user: str | None) -> ShownEvent:
    xid = find_xid(event.code)
    return ShownEvent(
        at=event.at,
        code=event.code,
        kind=xid.kind,
        text=xid.text,
        message=event.text,
        process=event.process,
        user=user,
    )
