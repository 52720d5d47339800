"""The rooms behind the front door: what the routes ask. `app` puts them together."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from gpudeck.alerts.keeper import Alerts
from gpudeck.alerts.notifiers.mutes import Mutes
from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.alerts.watches import Watches
from gpudeck.api.about import HubPlace
from gpudeck.api.access import Policy
from gpudeck.api.host_book import HostBook
from gpudeck.auth.parts import Auth
from gpudeck.events.log import Events
from gpudeck.history.base import Store
from gpudeck.hub.hub import Hub
from gpudeck.hub.memory import HostMemory
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.calendar import Reservations


class House(Struct, frozen=True, kw_only=True):
    """Without a room its routes answer that this hub has none.

    `prefix` ("/gpus") is the path below which a proxy serves the hub. `hits` are what the limits refused, for those who
    read the hub's metrics; `place` is for its admins. `reaches` says whether an account can be told by itself;
    `agent_port` where agents listen that say no port of their own.
    """

    hub: Hub
    auth: Auth
    policy: Policy
    book: HostBook
    prefix: str = ""
    hits: Mapping[str, int] | None = None
    history: Store | None = None
    events: Events | None = None
    reservations: Reservations | None = None
    waiting: WaitQueue | None = None
    watches: Watches | None = None
    mutes: Mutes | None = None
    outbox: MessageOutbox | None = None
    reaches: Callable[[str | None], bool] | None = None
    alerts: Alerts | None = None
    memory: HostMemory | None = None
    place: HubPlace | None = None
    agent_port: Callable[[], int] = lambda: 7080
