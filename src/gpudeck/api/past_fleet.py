"""The fleet at a past moment, for GET /api/v1/fleet?at=… and the text views: built in a thread, host by host, so that
the event loop continues."""

import math
import re
from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import Final

import msgspec

from gpudeck import __version__
from gpudeck.alerts.store import KEEP as ALERTS_KEPT
from gpudeck.api.services import ApiServices
from gpudeck.events.store import MAX_EVENTS, EventQuery
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import MomentQuery, Store
from gpudeck.history.metrics import check_names
from gpudeck.history.past_fleet import PastContext, PastFleetBuilder
from gpudeck.history.settings import DAY
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.errors import Temporary
from gpudeck.model.gpu_state import FAULT_SECONDS, find_xid
from gpudeck.model.report import GpuEvent
from gpudeck.model.view import Host, PastFleet, show_event
from gpudeck.reservations.calendar import show_at_gpu
from gpudeck.reservations.store import MAX_LISTED as MAX_RESERVATIONS
from gpudeck.reservations.store import ReservationQuery

_XID: Final = re.compile(r"XID (\d{1,9}) ")
_HOSTS_A_PART: Final = 64
_encoder = msgspec.json.Encoder()


def read_metrics(text: str | None) -> frozenset[str] | None:
    """Names with commas between them; None: all. Raises HistoryRefused."""
    if text is None:
        return None
    names = frozenset(text.split(","))
    check_names(sorted(names))
    return names


async def read_context(services: ApiServices, at: float, now: float) -> PastContext:
    """Reservations, alerts and driver errors of that moment. A part that cannot be read becomes a problem."""
    context = PastContext()
    for what, read in (
        ("reservations", _add_reservations),
        ("alerts", _add_alerts),
        ("driver errors", _add_faults),
    ):
        try:
            await read(context, services, at, now)
        except Temporary:
            context.problems.append(
                f"The {what} of that moment cannot be read now: the hub's database does not answer."
            )
    return context


async def _add_reservations(context: PastContext, services: ApiServices, at: float, now: float) -> None:
    found = await services.reservations.search(ReservationQuery(start=at, end=math.nextafter(at, math.inf)))
    context.reservations |= {gpu.uuid: show_at_gpu(one) for one in found for gpu in one.gpus}
    if len(found) >= MAX_RESERVATIONS:
        context.problems.append(f"Only {MAX_RESERVATIONS:,} reservations of that moment are shown.")


async def _add_alerts(context: PastContext, services: ApiServices, at: float, now: float) -> None:
    context.alerts += await services.alerts.find_firing(at)
    if at < now - ALERTS_KEPT:
        days = round(ALERTS_KEPT / DAY)
        context.problems.append(f"Alerts that were resolved more than {days} days ago are no longer kept.")


async def _add_faults(context: PastContext, services: ApiServices, at: float, now: float) -> None:
    ask = EventQuery(start=at - FAULT_SECONDS, end=at + 0.001, kinds=("xid",), limit=MAX_EVENTS)
    found = await services.events.find(ask)
    for event in reversed(found):
        code = _XID.match(event.title)
        if event.gpu is not None and code is not None:
            text = event.detail.removesuffix(find_xid(int(code[1])).action).rstrip(" .")
            fault = GpuEvent(at=event.at, code=int(code[1]), text=text)
            context.faults.setdefault(event.gpu, []).append(show_event(fault, event.user))
    if len(found) >= MAX_EVENTS:
        context.problems.append(f"Only the newest {MAX_EVENTS:,} driver errors of the day before are shown.")
    if at - FAULT_SECONDS < now - services.events.kept_seconds:
        context.problems.append("Driver errors of that time are no longer kept.")


def encode_past(store: Store, hub: Hub, ask: MomentQuery, visibility: Visibility, context: PastContext) -> list[bytes]:
    """As JSON (see model.view.PastFleet), the hosts by name. In parts: 10,000 hosts are more than 100 MB, and to join
    them would stop the event loop. Raises HistoryRefused."""
    builder = _builder(hub, ask, context)
    made = ((host.name, host.id, _encoder.encode(visibility.host(host))) for host in _make_hosts(store, ask, builder))
    hosts = sorted(made, key=itemgetter(0, 1))
    head = _encoder.encode(builder.finish(demo=hub.fleet.is_simulated, version=__version__))
    begin = head.index(b'"hosts":[]') + len(b'"hosts":[')
    parts = [head[:begin]]
    for first in checkpointed(range(0, len(hosts), _HOSTS_A_PART)):
        parts += [b"," if first else b"", b",".join([body for *_, body in hosts[first : first + _HOSTS_A_PART]])]
    return [*parts, head[begin:]]


def view_past(store: Store, hub: Hub, ask: MomentQuery, visibility: Visibility, context: PastContext) -> PastFleet:
    """The same as structs."""
    builder = _builder(hub, ask, context)
    hosts = sorted(_make_hosts(store, ask, builder), key=attrgetter("name", "id"))
    fleet = builder.finish(demo=hub.fleet.is_simulated, version=__version__)
    fleet.hosts = [visibility.host(host) for host in hosts]
    return fleet


def _builder(hub: Hub, ask: MomentQuery, context: PastContext) -> PastFleetBuilder:
    return PastFleetBuilder(ask.at, hub.fleet.settings, hub.fleet.hosts.get, ask.metrics, context)


def _make_hosts(store: Store, ask: MomentQuery, builder: PastFleetBuilder) -> Iterator[Host]:
    return map(builder.add, store.moment(ask))
