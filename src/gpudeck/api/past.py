"""The fleet at a moment of the past, for GET /api/v1/fleet?at=… and the text views: made in a thread, host by host, so
that the event loop goes on.
"""

from collections.abc import Iterator
from operator import attrgetter

import msgspec

from gpudeck import __version__
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import HistoryRefused, MomentAsk, Store
from gpudeck.history.metrics import suggest
from gpudeck.history.past_fleet import PastFleetBuilder
from gpudeck.history.sample import ALL_NAMES
from gpudeck.model.view import Host, PastFleet

_encoder = msgspec.json.Encoder()


def read_metrics(text: str | None) -> frozenset[str] | None:
    """Names with commas between them; None: all. Raises HistoryRefused."""
    if text is None:
        return None
    names = frozenset(text.split(","))
    for name in sorted(names.difference(ALL_NAMES)):
        message = f"there is no metric {name[:80]!r}"
        raise HistoryRefused("unknown_metric", message, suggest(name, ALL_NAMES, "It is one of"))
    return names


def encode_past(store: Store, hub: Hub, ask: MomentAsk, visibility: Visibility) -> bytes:
    """As JSON (see model.view.PastFleet), the hosts by name. Raises HistoryRefused."""
    builder = _builder(hub, ask)
    hosts = [
        ((host.name, host.id), _encoder.encode(visibility.host(host))) for host in _make_hosts(store, ask, builder)
    ]
    head = _encoder.encode(builder.finish(demo=hub.stream.demo, version=__version__))
    begin = head.index(b'"hosts":[]') + len(b'"hosts":[')
    return b"".join((head[:begin], b",".join([encoded for _, encoded in sorted(hosts)]), head[begin:]))


def view_past(store: Store, hub: Hub, ask: MomentAsk, visibility: Visibility) -> PastFleet:
    """The same as structs."""
    builder = _builder(hub, ask)
    hosts = sorted(_make_hosts(store, ask, builder), key=attrgetter("name", "id"))
    fleet = builder.finish(demo=hub.stream.demo, version=__version__)
    fleet.hosts = [visibility.host(host) for host in hosts]
    return fleet


def _builder(hub: Hub, ask: MomentAsk) -> PastFleetBuilder:
    return PastFleetBuilder(ask.at, hub.fleet.settings, hub.fleet.hosts.get, ask.metrics)


def _make_hosts(store: Store, ask: MomentAsk, builder: PastFleetBuilder) -> Iterator[Host]:
    return map(builder.add, store.moment(ask))
