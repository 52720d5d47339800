"""Names of hosts: ranges such as `gpu[01-16]` or `rack[1-4]-node[01-20]`, and addresses such as `ada@gpu01:22`."""

import ipaddress
import itertools
import math
import re
from collections import Counter
from typing import NamedTuple

from gpudeck.wire import HOST_NAME

MAX_EXPANDED = 10_000
"""A word that means more hosts than this is a mistake."""

NAME_WORDS = "at most 253 letters, digits, dots, dashes and underscores, the first and the last a letter or digit"
_NAME = re.compile(HOST_NAME)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_SHOWN = 60
_PLACE = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._$-]{0,63})@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^\s:@/]+))"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)


def is_host_name(text: str) -> bool:
    return len(text) <= 253 and _NAME.search(text) is not None


def quote(text: str) -> str:
    """Text from outside as it may stand in a message: in quotes, cut, without anything that a terminal obeys."""
    shown = ascii(text) if not text.isprintable() else repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 2]}…{shown[-1]}"


def expand(text: str) -> list[str]:
    """The names that a word means, in its order; zeros in front are kept. Raises ValueError that says what is wrong."""
    pieces = _BRACKETS.split(text)
    if any(bracket in piece for piece in pieces[::2] for bracket in "[]"):
        raise ValueError(f"{quote(text)} has a bracket without its other half")
    choices = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_EXPANDED:
        raise ValueError(f"{quote(text)} means more than {MAX_EXPANDED} hosts")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    for name in names:
        if not is_host_name(name):
            raise ValueError(f"{quote(name)} is no name of a host: that is {NAME_WORDS}")
    if len(set(names)) < len(names):
        repeated, _ = Counter(names).most_common(1)[0]
        raise ValueError(f"{quote(text)} names {repeated} twice")
    return names


def _numbers(inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{quote(f'[{inside}]')} is no range of numbers such as [01-16] or [1-4,7]")
        found += _count_up(match[1], match[2] or match[1])
        if len(found) > MAX_EXPANDED:
            raise ValueError(f"{quote(f'[{inside}]')} means more than {MAX_EXPANDED} hosts")
    return found


def _count_up(first: str, last: str) -> list[str]:
    """At least as many digits as the first number has, where that begins with a zero."""
    if int(first) > int(last):
        raise ValueError(f"[{first}-{last}] goes down; write [{last}-{first}]")
    if len(last) < len(first) or (last.startswith("0") and len(first) < len(last)):
        raise ValueError(f"[{first}-{last}] mixes numbers with and without zeros in front")
    width = len(first) if first.startswith("0") else 0
    stop = min(int(last), int(first) + MAX_EXPANDED)  # one more than is allowed: the caller counts
    return [str(number).zfill(width) for number in range(int(first), stop + 1)]


class HostAddress(NamedTuple):
    """The parts of one word. `host` may contain ranges; `address` is set if it is not the name."""

    host: str
    address: str = ""
    port: int | None = None
    user: str | None = None


def read_host_address(text: str) -> HostAddress:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote(text)} is no host: write name, name:port, user@name:port or [IPv6]:port")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port <= 65535:
        raise ValueError(f"{quote(text)} has no port from 1 to 65535")
    if match["ipv6"] is None:
        return HostAddress(match["host"], port=port, user=match["user"])
    return HostAddress(name_of(match["ipv6"]), match["ipv6"], port, match["user"])


def name_of(address: str) -> str:
    """A name for a host with only an address. IPv6 is written with dashes, as in some names of
    DNS: colons stand in no name. Raises ValueError for an invalid address."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{quote(address)} is no IPv6 address") from None
    dashed = str(known).replace(":", "-").replace("%", "-")
    return f"{'0' if dashed.startswith('-') else ''}{dashed}{'0' if dashed.endswith('-') else ''}"
