"""What an operator decides about how much of the hub one caller may have.

Here and not in the API's room, so that reading the configuration file needs no hub to be installed.
"""

import ipaddress
from typing import Annotated

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Duration

_Rate = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_Time = Annotated[Duration, Meta(gt=0)]


class LimitsSettings(Struct, frozen=True):
    """How much of the hub one address may have, and all together. An IPv6 address counts as its /64.

    Whoever asks too often is answered 429; whoever opens too many connections is not let in.
    """

    requests_per_second: _Rate = 50.0
    """Requests of one address, and connections that it opens."""
    requests_burst: _Count = 200
    """How many of them may come at once."""
    reports_per_second: _Rate = 500.0
    """Reports with one token from one address: many hosts may share both, behind a gateway."""
    reports_burst: _Count = 2_000
    """How many of them may come at once."""
    logins_per_second: _Rate = 0.5
    """Attempts to log in from one address; guessing is slowed down further."""
    logins_burst: _Count = 20
    """How many of them may come at once."""
    connections_per_address: _Count = 256
    """Open connections of one address. Each agent behind a gateway keeps one."""
    connections: _Count = 10_000
    """Open connections in all. Where these are used up, one that has never asked for anything makes room."""
    streams_per_address: _Count = 32
    """Live views that one address may have open."""
    streams: _Count = 2_000
    """Live views in all."""
    head_time: _Time = 20.0
    """How long the head of a request may take, and the handshake of TLS."""
    body_time: _Time = 30.0
    """How long the body of a request may take."""
    idle_time: _Time = 75.0
    """How long a connection may be kept without a request."""
    unlimited: list[str] = field(default_factory=list)
    """Addresses, or networks such as 10.0.0.0/8, that only the limits in all hold for."""

    def __post_init__(self) -> None:
        for network in self.unlimited:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"unlimited names {network[:80]!r}, which is no address and no network") from None
