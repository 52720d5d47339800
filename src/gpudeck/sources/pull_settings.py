"""What an operator decides about hosts whose agents listen. Needs nothing that only a hub's install has."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration


class PullSettings(Struct, frozen=True):
    """How agents that listen are asked."""

    interval: Annotated[Duration, Meta(ge=0.5, le=3600)] = 5.0
    """How often each host is asked. Its agent reads the machine at an interval of its own."""
    deadline: Annotated[Duration, Meta(ge=0.1, le=60)] = 2.0
    """How long a host may take to answer."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 7080
    """Where agents listen, unless a host says otherwise."""
    token_file: str | None = None
    """A file whose first line is the token that the agents want: a copy of theirs."""
    ca_file: str | None = None
    """Certificates (PEM) of the authority that signed those of hosts that are asked by https."""
