"""Which addresses the hub connects to for hosts that were added through the API or found by discovery.

Such a name could lead to the hub's own machine, to its neighbours on the link, or to a cloud's metadata service, which
hands out credentials. So the addresses that a name resolves to are checked, and the checked address is connected to: a
name that resolves to another one a moment later gains nothing.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final
from weakref import WeakKeyDictionary

from gpudeck.model.errors import Refused
from gpudeck.model.target import Target

_METADATA = frozenset(
    ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Google, Azure and others
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_NO_HOST = IPv4Network("0.0.0.0/8")


class AddressGuard:
    """Checks addresses before they are connected to. `allowed` are networks in which local addresses are permitted."""

    def __init__(self, name: str, allowed: Iterable[str]) -> None:
        """`name` is what people call the host."""
        self._name = name
        self._allowed = _networks(tuple(allowed))

    @classmethod
    def of(cls, target: Target) -> "AddressGuard | None":
        """None for a host of the operator's own configuration: it may be anywhere."""
        return None if target.local_networks is None else cls(target.name, target.local_networks)

    def check(self, address: str) -> None:
        """Raises Refused for a local address that is not allowed. `address` is numeric; a zone (%eth0) is left out."""
        shown = address.partition("%")[0]
        told = _unwrap(ip_address(shown))
        kind = _kind_of(told)
        if kind is None or any(told in network for network in self._allowed):
            return
        raise Refused(
            f"{self._name} has the {kind} address {shown}, where hosts that were added or discovered are not read.",
            "If it is right, add its network to discovery.allow_addresses, or name the host in gpudeck.yaml.",
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        """The numeric addresses of a host, all of them checked. Raises Refused, and OSError where it has none."""
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in await look_up(host, port)))
        for address in addresses:
            self.check(address)
        return addresses


AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives it: family, kind, protocol, name, and the address with its port."""

_LANES: Final = {"known": 8, "new": 6, "failed": 2}
"""Lookups at once, of names that resolved before, of those that were never asked for, and of those that failed."""
_FAILED_FOR: Final = 60.0
_MOST_NAMES: Final = 100_000


class Lookups:
    """Names become addresses, a few at once: a list of names that do not resolve must not keep other names waiting.

    A name that did not resolve is not asked for again for a minute. Threads are its own, so that those of the event
    loop stay free. One event loop owns it.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(sum(_LANES.values()), "lookup")
        self._lanes = {name: asyncio.Semaphore(count) for name, count in _LANES.items()}
        self._names: dict[str, tuple[float, OSError] | None] = {}
        """Those that were asked for: None where they resolve, else until when they are not asked for again, and why."""

    async def find(self, host: str, port: int) -> list[AddressInfo]:
        """Raises OSError where there are none."""
        loop = asyncio.get_running_loop()
        failure = self._names.get(host)
        if failure is not None and loop.time() < failure[0]:
            raise type(failure[1])(*failure[1].args) from None
        lane = self._lanes["failed" if failure is not None else "known" if host in self._names else "new"]
        await lane.acquire()
        lookup = self._threads.submit(_look_up, host, port)
        # Not when the caller gives up: the thread is busy until the answer comes.
        lookup.add_done_callback(partial(self._finish, loop, host, lane))
        return await asyncio.wrap_future(lookup)

    def _finish(
        self, loop: asyncio.AbstractEventLoop, host: str, lane: asyncio.Semaphore, lookup: "Future[list[AddressInfo]]"
    ) -> None:
        """In the thread. The hub may have stopped by then."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._note, host, lane, lookup.exception())

    def _note(self, host: str, lane: asyncio.Semaphore, error: BaseException | None) -> None:
        lane.release()
        self._names.pop(host, None)
        until = asyncio.get_running_loop().time() + _FAILED_FOR
        self._names[host] = (until, error) if isinstance(error, OSError) else None
        if len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]


_lookups: "WeakKeyDictionary[asyncio.AbstractEventLoop, Lookups]" = WeakKeyDictionary()


async def look_up(host: str, port: int) -> list[AddressInfo]:
    """The addresses of a host, for TCP, by the lookups of this event loop. Raises OSError where it has none."""
    loop = asyncio.get_running_loop()
    lookups = _lookups.get(loop)
    if lookups is None:
        lookups = _lookups[loop] = Lookups()
    return await lookups.find(host, port)


def _look_up(host: str, port: int) -> list[AddressInfo]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


@lru_cache(maxsize=16)
def _networks(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(map(ip_network, texts))


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that one of IPv6 leads to, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _kind_of(address: IPv4Address | IPv6Address) -> str | None:
    """What is local about it; None where nothing is."""
    if address in _METADATA:
        return "cloud metadata"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    # On Linux 0.0.0.0 and :: lead to this machine itself.
    is_none = address in _NO_HOST if isinstance(address, IPv4Address) else address.is_unspecified
    return "unspecified" if is_none or address.is_reserved else None
