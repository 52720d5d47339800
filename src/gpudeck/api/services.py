"""The services that routes use. `app` creates them."""

from collections.abc import Awaitable, Callable, Mapping

from litestar.di import NamedDependency
from msgspec import Struct

from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.alerts.notifiers.store import PersonalMuteStore
from gpudeck.alerts.service import AlertManager
from gpudeck.alerts.watches import Watches
from gpudeck.api.access import Policy
from gpudeck.api.hosts import HostAdmin
from gpudeck.auth.auth import Auth
from gpudeck.events.service import EventLog
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import Store
from gpudeck.idle_policy.service import IdlePolicyService
from gpudeck.maintenance.service import HostNotes, MaintenanceWindows
from gpudeck.model.cluster import Cluster
from gpudeck.model.errors import RequestRefused
from gpudeck.model.text import clean
from gpudeck.model.usage import DigestPreview, Frequency
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.schedulers.job_report import JobReporter

PreviewDigest = Callable[[str, Frequency | None], Awaitable[DigestPreview]]


class HubPlace(Struct, frozen=True):
    """The files and addresses of a hub, for its admins. None: this hub has none."""

    listen: str
    data_dir: str
    config: str | None
    database: str


class ApiServices(Struct, frozen=True, kw_only=True):
    """`prefix` ("/gpus") is the path below which a proxy serves the hub. `hits` are what the limits refused, for the
    hub's metrics; `place` is for admins. `reaches` says whether an account has a channel of its own; `agent_port` where
    agents listen that say no port of their own. Without `history` its routes answer that this hub keeps none.
    `cluster` describes the hubs where there are several."""

    hub: Hub
    auth: Auth
    policy: Policy
    host_admin: HostAdmin
    events: EventLog
    reservations: ReservationCalendar
    maintenance: MaintenanceWindows
    notes: HostNotes
    queue: WaitQueue
    jobs: JobReporter
    watches: Watches
    mutes: PersonalMuteStore
    alerts: AlertManager
    reaches: Callable[[str | None], bool]
    history: Store | None = None
    outbox: MessageOutbox | None = None
    idle_policy: IdlePolicyService | None = None
    place: HubPlace | None = None
    prefix: str = ""
    hits: Mapping[str, int] | None = None
    agent_port: Callable[[], int] = lambda: 7080
    preview_digest: PreviewDigest | None = None
    cluster: Callable[[], Cluster] | None = None


TheServices = NamedDependency[ApiServices]
"""For a route that needs several of them."""


def find_gpu(services: ApiServices, host_name: str, wanted: str) -> tuple[HostState, GpuState]:
    """A GPU by the name or id of its host, and its number there or its UUID. Raises RequestRefused."""
    host = services.maintenance.find_host(host_name.strip())
    services.hub.fleet.settle()
    gpus, wanted = list(host.gpus.values()), wanted.strip()
    if found := next((gpu for gpu in gpus if wanted in {gpu.label, gpu.uuid}), None):
        return host, found
    hint = f"It has {', '.join(gpu.label for gpu in gpus[:16])}." if gpus else ""
    raise RequestRefused(404, "unknown_gpu", f"{host.name} has no GPU {clean(wanted)[:80]!r}.", hint)
