"""What the page shows before it has asked for anything: who looks, the totals and the first hosts, inside its HTML.

It stands there as text in an element that nobody sees. It is no script, and nothing in it can become one.
"""

import msgspec

from gpudeck import __version__
from gpudeck.api.login import Me
from gpudeck.hub.host import HostState
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import Sight

MOST_BYTES = 400_000
"""Of hosts, before compression: all of some thirty, of more the first screens."""
_PLACE = b"</body>"
_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))


def put_first_look(html: bytes, me: Me, hub: Hub, sight: Sight | None) -> bytes:
    """The page with the fleet in it; without the fleet for somebody who may not see it (`sight` is None)."""
    parts = [b'{"me":', msgspec.json.encode(me), b',"fleet":', b"null" if sight is None else _fleet(hub, sight), b"}"]
    text = b"".join(parts)
    for letter, escape in _ESCAPES:
        text = text.replace(letter, escape)
    before, place, after = html.rpartition(_PLACE)
    return b"".join((before, b'<template id="first-look">', text, b"</template>\n  ", place, after))


def _fleet(hub: Hub, sight: Sight) -> bytes:
    """As in `GET /api/v1/fleet`, with as many hosts as there is room for; `is_whole` says whether these are all."""
    fleet, stream = hub.fleet, hub.stream
    hosts, room = [], MOST_BYTES
    for host in sorted(fleet.ordered(), key=_rank):
        encoded = host.encoded(sight)
        room -= len(encoded)
        if room < 0:
            break
        hosts.append(encoded)
    facts = {
        "demo": stream.demo,
        "time": stream.time,
        "version": __version__,
        "totals": fleet.totals(),
        "problems": fleet.problems,
        "alerts": fleet.alerts,
        "is_whole": len(hosts) == len(fleet.hosts),
        "hosts": [],
    }
    return msgspec.json.encode(facts)[:-2] + b",".join(hosts) + b"]}"


def _rank(host: HostState) -> tuple[int, ...]:
    """As the page orders them, unless told otherwise: what may be taken first."""
    return tuple(-host.counts().get(state, 0) for state in ("free", "booked", "held", "busy"))
