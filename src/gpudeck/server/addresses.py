"""The address of a caller behind trusted proxies, and the key for counting its requests; the hub's own URLs, for a
browser on its machine and for others."""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpudeck.model.settings import Address, is_loopback
from gpudeck.server.asgi import Scope

_KEPT = 16_384
_MAX_HOPS = 32


class Networks:
    """A set of addresses, given as addresses and networks. Lookups are cached."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]
        self.is_empty = not self._networks
        self.has = lru_cache(_KEPT)(self._has)

    def _has(self, address: str) -> bool:
        found = parse_address(address)
        return found is not None and any(found in network for network in self._networks)


class Callers:
    """Finds the caller's address of a request. Forwarding headers count only from a trusted proxy."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        self.proxies = Networks(proxies)

    def place(self, scope: Scope) -> str:
        """The caller's address; "" if there is none. Behind a trusted proxy the scope is corrected: `client` is then
        the caller, and `scheme` that of its connection to the proxy. `peer` is the other end of this connection."""
        client = scope.get("client")
        peer: str = client[0] if client else ""
        scope["peer"] = peer
        if self.proxies.is_empty or not self.proxies.has(peer):
            return peer
        told = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        address = self._rightmost_untrusted(peer, b",".join(told).decode("latin-1"))
        protocols = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
        if protocols and protocols[-1].strip().lower() in {b"http", b"https"}:
            scope["scheme"] = protocols[-1].strip().lower().decode()
        scope["client"] = (address, 0)
        return address

    def _rightmost_untrusted(self, peer: str, told: str) -> str:
        """Each proxy adds its own caller on the right; everything left of the first untrusted one may be forged."""
        address = peer
        for word in reversed(told.split(",")[-_MAX_HOPS:]):
            found = parse_address(_without_port(word.strip()))
            if found is None:
                return address
            address = str(found)
            if not self.proxies.has(address):
                return address
        return address


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, with IPv4-mapped IPv6 converted to IPv4; None if it is invalid."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


@lru_cache(_KEPT)
def count_as(address: str) -> str:
    """The key for counting: the address itself, or the /64 of IPv6, because one user has 2**64 addresses."""
    found = parse_address(address)
    if found is None or found.version == 4:
        return str(found or address)
    return str(ipaddress.ip_network((found, 64), strict=False))


def _without_port(word: str) -> str:
    if word.startswith("["):
        return word[1:].partition("]")[0]
    return word.partition(":")[0] if word.count(":") == 1 else word


_ANYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104


def url_here(address: Address, listening: socket.socket, scheme: str) -> str:
    """The URL for a browser on this machine."""
    host = address.host
    if host in _ANYWHERE:
        takes_ipv4 = listening.family == socket.AF_INET or not listening.getsockopt(
            socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
        )
        host = "127.0.0.1" if takes_ipv4 else "::1"
    return write_url(host, listening, scheme)


def url_elsewhere(address: Address, listening: socket.socket, scheme: str, page: str | None) -> str | None:
    """The URL for other machines: `page` if configured, else with this machine's name; None if they cannot reach the
    hub. A hub on loopback is reached only through a proxy, at `page`."""
    if page or is_loopback(address.host):
        return page and page.rstrip("/")
    return write_url(socket.gethostname() if address.host in _ANYWHERE else address.host, listening, scheme)


def note_address(address: Address, elsewhere: str | None, page: str | None) -> str | None:
    """A warning for the operator about the URL that other machines are given; None if there is none."""
    if elsewhere is None:
        return f"other machines cannot reach this hub: set `listen: :{address.port}` and `read: open` in gpudeck.yaml"
    if page or address.host not in _ANYWHERE:
        return None
    return (
        f"servers must reach the hub at {elsewhere}; if they know it by another name, set notify.page to that address"
    )


def write_url(host: str, listening: socket.socket, scheme: str) -> str:
    port = listening.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
