"""The fleet as everybody outside sees it: the JSON of the API, the page, the command line.

The hub writes these shapes, the client reads them, the OpenAPI document and the page's types are generated from them.
`Gpu` and `Host` inherit one field for each metric of the catalog, so a new metric needs no line here. A null stands
beside its reason in `reasons`.
"""

from typing import Literal

from msgspec import Struct, field

from gpudeck.model.alert import Alert
from gpudeck.model.availability import Availability
from gpudeck.model.catalog import GpuMetrics, HostMetrics
from gpudeck.model.health import HealthLevel
from gpudeck.model.report import Disk
from gpudeck.model.reservation import GpuReservation
from gpudeck.model.xid import XidKind

HostStatus = Literal["up", "late", "down", "never"]


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
    """A fault that the driver told of: NVIDIA's XID `code`. `at` is on the host's clock.

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

    `since` is when its availability last changed, as far as the hub has seen it. `last_seen` is the availability before
    the host went silent: for showing only, never for counting. `events` are the last day's faults, the newest last.
    `reservation` is the one that counts now; `reservation_conflict` says who is on the GPU and should not be.
    """

    availability: Availability
    availability_reason: str | None = None
    last_seen: Availability | None = None
    since: float
    health: HealthLevel
    health_reason: str | None = None
    health_action: str | None = None
    users: list[str] = field(default_factory=list)
    processes: list[ShownProcess] | None = None
    events: list[ShownEvent] = field(default_factory=list)
    reservation: GpuReservation | None = None
    reservation_conflict: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)


class Host(HostMetrics, kw_only=True):
    """A host with its metrics and GPUs. Times are Unix seconds on the hub's clock.

    `via` is the way in (push, simulated, …). `clock_skew_seconds` is how far the host's clock is ahead of the hub's.
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
    reasons: dict[str, str] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)


class Totals(Struct, frozen=True):
    """Counts over the fleet; the five availabilities add up to `gpus`."""

    gpus: int
    free: int
    busy: int
    held: int
    booked: int
    unknown: int
    hosts: int
    hosts_up: int
    users: int
    power_watts: float | None

    @property
    def by_availability(self) -> dict[Availability, int]:
        return {
            "free": self.free,
            "busy": self.busy,
            "held": self.held,
            "booked": self.booked,
            "unknown": self.unknown,
        }


class Fleet(Struct, kw_only=True):
    """Everything now. `demo` says that all of it is simulated.

    `problems` are the hub's own: lists of hosts that cannot be read, hosts that are named twice. `alerts` are those
    that fire, the worst first, and at most 200 of them.
    """

    demo: bool
    time: float
    version: str
    totals: Totals
    problems: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)

    hosts: list[Host]


class HostList(Struct, frozen=True):
    """All hosts by name."""

    hosts: list[Host]
