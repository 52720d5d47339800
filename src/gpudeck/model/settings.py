"""Kinds of setting that are more than a number: what rooms write as the type of a field of their settings.

The marks (`extra`, `config_kind`) are all that the configuration room reads of them, so neither room imports the other.

    class AgentSettings(Struct, frozen=True):
        interval: Duration = 5.0
        outbox_bytes: Size = 64 * 1024**2
        listen: Address | None = None
"""

import ipaddress
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

Duration = Annotated[float, Meta(extra={"config": "duration"})]
"""Seconds. In the file: `10s`, `250ms`, `1d 6h`, or a plain number of seconds."""

Size = Annotated[int, Meta(extra={"config": "size"})]
"""Bytes. In the file: `512MiB` (1024s), `20GB` or `20G` (1000s), or a plain number of bytes."""


class Address(Struct, frozen=True):
    """Where to listen. An empty host means every interface of the machine."""

    config_kind: ClassVar[str] = "address"

    host: str
    port: int

    def __str__(self) -> str:
        """The address as it is written in the file; an IPv6 host stands in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether that name or address is this machine for itself alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
