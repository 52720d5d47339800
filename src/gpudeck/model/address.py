"""Addresses: a hub's URL as people type it, the Host header of a request (RFC 9112), and sockets to listen on."""

import os
import re
import socket
from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta

from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address

Url = Annotated[
    str,
    Meta(
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#]+(?:[/?][^\s#]*)?$(?!\n)",
        extra={"config_words": "a URL that begins with http:// or https://"},
    ),
]
DEFAULT_HUB = "http://127.0.0.1:8042"

_PORTS: Final = {"http": 80, "https": 443}
_PASSWORD = re.compile(r"(?<=//)[^\s/?#]*:[^\s/?#]*@")
_VALID: Final = re.compile(rb"(?:[\w.~%!$&'()*+,;=-]+|\[[0-9A-Za-z:.%_~-]+\])(?::[0-9]{0,5})?")


def check_hub_url(text: str) -> str:
    """Without a trailing slash; `host:port` and `host` mean http. Raises UsageError."""
    hint = f"Give it as {DEFAULT_HUB}, host:port or https://host/path."
    shown = repr(mask_password(text))
    address = _complete(text.strip()).rstrip("/")
    try:
        parts = urlsplit(address)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        raise UsageError(f"the hub's address {shown} is not a URL of http or https.", hint) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_valid:
        raise UsageError(f"the hub's address {shown} is not a URL of http or https.", hint)
    if parts.query or parts.fragment:
        raise UsageError(f"the hub's address {shown} has a part after ? or #.", hint)
    return address


def split_hubs(text: str) -> list[str]:
    """The addresses of hubs that share their state, separated by commas. Raises UsageError."""
    named = [part for part in text.split(",") if part.strip()] or [text]
    return list(dict.fromkeys(map(check_hub_url, named)))


def is_same_hub(known: str, asked: str) -> bool:
    """Whether each of the addresses `asked` is among the `known` ones, by server, port and path. All are valid."""
    return {_read_place(one) for one in split_hubs(asked)} <= {_read_place(one) for one in split_hubs(known)}


def _read_place(address: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(check_hub_url(address))
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme), parts.path


def _complete(address: str) -> str:
    """With a scheme, and the hub's default port if there is only a name."""
    if not address or "://" in address:
        return address
    has_more = ":" in address.rpartition("]")[2] or "/" in address
    return f"http://{address}{'' if has_more else ':8042'}"


def check_proxy(proxy: str) -> str:
    """The URL of a proxy; a bare `host:port`, common in environment variables, means http. Raises UsageError."""
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(url)
        is_place = bool(parts.hostname) and parts.port != 0 and parts.path in {"", "/"}
        is_valid = parts.scheme in {"http", "https"} and is_place and not parts.query and not parts.fragment
    except ValueError:
        is_valid = False
    if not is_valid:
        # A password with a / makes the rest look like a path: everything before an @ is hidden.
        before, at, place = url.rpartition("@")
        shown = f"{before.partition('://')[0]}://…@{place}" if at else url
        raise UsageError(
            f"the proxy {shown!r} is not a URL of http or https.",
            "Give agent.proxy as http://proxy:3128 (%2F stands for a / in a password), or `none` to go without.",
        )
    return url


def mask_password(url: str) -> str:
    """The address without its user name and password, safe to show."""
    return _PASSWORD.sub("…@", url)


def show_url(url: str) -> str:
    """The address without password and query, which may contain tokens."""
    return mask_password(url).partition("?")[0]


def find_host_problem(values: Sequence[bytes], version: str) -> str | None:
    """The problem with the values of all Host headers, or None. Two Host headers are refused: a proxy may use one and
    the hub the other. HTTP/1.0 has none."""
    if not values:
        return None if version in {"0.9", "1.0"} else "the request has no Host header"
    if len(values) > 1:
        return "the request has more than one Host header"
    return None if _VALID.fullmatch(values[0]) else "the request's Host header is not a host name or address"


def open_socket(address: Address, *, listens: bool = True) -> socket.socket:
    """A bound socket that `listens`, or refuses connections until then. Raises UsageError."""
    is_dual = address.host in {"", "::"} and socket.has_dualstack_ipv6()
    opened = socket.socket(socket.AF_INET6 if is_dual or ":" in address.host else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if opened.family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        opened.bind(("::" if is_dual else address.host, address.port))
        if listens:
            opened.listen()
    except OSError as error:
        opened.close()
        raise cannot_listen(address, error) from error
    return opened


def cannot_listen(address: Address, error: OSError) -> UsageError:
    known = error.errno is not None and error.errno > 0
    reason = (os.strerror(error.errno or 0) if known else error.strerror or str(error)).lower()
    return UsageError(
        f"cannot listen on {address}: {reason}.", "Stop what uses it, or choose another with --listen HOST:PORT."
    )


def check_url(url: str) -> None:
    """Raises ValueError, naming the setting `url`, for URLs that pass the pattern but are invalid."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f"url {mask_password(url)!r} has no valid host and port")
