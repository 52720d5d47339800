"""`gpu01`, `gpu01:9400`, `ada@gpu01:22`, `[2001:db8::1]:9400`: where a host is, as lists of hosts write it."""

import ipaddress
import re
from typing import NamedTuple

from gpudeck.discovery.ranges import quote

_PLACE = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._$-]{0,63})@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\s:@/]+))"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)


class Place(NamedTuple):
    """What stands in one word. `host` may still hold ranges; `address` is set where the name is another than it."""

    host: str
    address: str = ""
    port: int | None = None
    user: str | None = None


def read_place(text: str) -> Place:
    """The parts of a word. Raises ValueError that says what is wrong."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote(text)} is no host: write name, name:port, user@name:port or [IPv6]:port")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port <= 65535:
        raise ValueError(f"{quote(text)} has no port from 1 to 65535")
    if match["ipv6"] is None:
        return Place(match["host"], port=port, user=match["user"])
    return Place(name_of(match["ipv6"]), match["ipv6"], port, match["user"])


def name_of(address: str) -> str:
    """A name for a host of which nothing but its address is known. IPv6 is written with dashes, as in some names of
    DNS: colons stand in no name. Raises ValueError for what is no address."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{quote(address)} is no IPv6 address") from None
    dashed = str(known).replace(":", "-").replace("%", "-")
    return f"{'0' if dashed.startswith('-') else ''}{dashed}{'0' if dashed.endswith('-') else ''}"
