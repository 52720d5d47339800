"""URLs of a listening hub: for a browser on its machine, and for others."""

import socket

from gpudeck.model.settings import Address, is_loopback

_ANYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104


def url_here(address: Address, listening: socket.socket, scheme: str) -> str:
    """The address for a browser on this machine."""
    host = address.host
    if host in _ANYWHERE:
        takes_ipv4 = listening.family == socket.AF_INET or not listening.getsockopt(
            socket.IPPROTO_IPV6, socket.IPV6_V6ONLY
        )
        host = "127.0.0.1" if takes_ipv4 else "::1"
    return write_url(host, listening, scheme)


def url_elsewhere(address: Address, listening: socket.socket, scheme: str, page: str | None) -> str | None:
    """The address for other machines: `page`, which an operator has set, or else this machine's name; None where they
    cannot reach the hub. One that listens on loopback alone is reached only through a proxy, at `page`."""
    if page or is_loopback(address.host):
        return page and page.rstrip("/")
    return write_url(socket.gethostname() if address.host in _ANYWHERE else address.host, listening, scheme)


def note_address(address: Address, elsewhere: str | None, page: str | None) -> str | None:
    """What an operator should know about the address that other machines are given; None: nothing."""
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
