"""The fleet as the API, the page and the command line show them.

The hub writes these shapes, the client reads them, the OpenAPI document and the page's types are generated from them.
`Gpu` and `Host` inherit one field for each metric of the catalog, so a new metric needs no line here. A null stands
with its reason in `reasons`.
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
    """A process with every field of `model.report.Process`, null where it is unknown: on the wire those are left out.
    What a report may hold is bounded where it comes in, and not here."""

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
    """A fault that the driver reported: NVIDIA's XID `code`. `at` is on the host's clock.

    `text` is what the code means, `message` is in the driver's own words. `user` owned `process` when it happened; null
    where that is not known, or no process was named.
    """

    at: float
    code: int
    kind: XidKind
    text: str
    message: str
    process: int | None
    user: str | None


class Gpu(GpuMetrics, kw_only=True):
    """A GPU with its metrics and its state.

    `since` is when its availability last changed, as far as the hub has seen it; None in a single reading without a
    hub. `last_seen` is the availability before the host stopped reporting: for showing only, never for counting.
    `events` are the last day's faults, the newest last. `reservation` is the one that counts now;
    `reservation_conflict` says who is on the GPU and should not be. `maintenance` says why it is drained, or will not
    become free. `allocation` is the job that a scheduler has given it to, whether anything runs on it or not.
    """

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
    """GPUs across hosts. `total` is how many fit, also where only some of them were asked for."""

    gpus: list[GpuOfHost]
    total: int


class HostNote(Struct, frozen=True):
    """What an admin noted about a host, who and when."""

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
    """Everything now. `demo` says that all of it is simulated.

    `problems` are the hub's own: lists of hosts that cannot be read, hosts that are named twice. `alerts` are those
    that fire, the worst first, and at most 200 of them; `alert_counts` are of all.
    """

    demo: bool
    time: float
    version: str
    totals: Totals
    problems: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    alert_counts: AlertCounts = AlertCounts()

    hosts: list[Host]


class PastFleet(Fleet, kw_only=True):
    """The fleet as it was recorded at the moment `as_of`, which is also its `time`. Names, labels and sources are
    today's. Alerts are those that fired then, reservations those that counted, as they are kept today; what is no
    longer kept, or cannot be read, is among `problems`. Conflicts of reservations and mutes are not recorded.

    `coverage` is the part of the GPUs known then whose state was recorded (0–1); None where no GPU was known.
    `resolution` is what it was made from: where samples are no longer kept, the means of the quarter hour.
    """

    as_of: float
    coverage: float | None
    resolution: Literal["raw", "quarter_hour"]


class FleetColumns(Struct, kw_only=True):
    """The same as columns: for each field of a host, or of a GPU, a list with its values.

    `host` is the place of a GPU's host among `hosts`. `reasons` of a host or a GPU is a place in `reasons`. Processes,
    events, and the GPUs of each host are not there.
    """

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
    """Hosts by name. `total` is how many there are, also where only some of them were asked for."""

    hosts: list[Host]
    total: int = 0


class DatabaseState(Struct, frozen=True):
    """`events` is how many are kept; null with the `reason` where the database does not say."""

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
