"""The caller of a request and what it may do. A name in a proxy's header counts only from trusted addresses."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from gpudeck.auth.settings import ProxySettings, read_name
from gpudeck.server.addresses import Networks

Role = Literal["nobody", "agent", "calendar", "viewer", "user", "admin"]
RANKS: dict[str, int] = {"nobody": 0, "agent": 0, "calendar": 0, "viewer": 1, "user": 2, "admin": 3}
"""An agent's and a calendar's token open one route each and have no rank elsewhere."""

Kind = Literal["nobody", "unverified", "local", "account", "token", "proxy"]
"""How a caller is identified: not at all; not yet, as the database is away; by being at the machine of a hub that
no other machine can reach; by a session; by a token; by the name in a trusted proxy's header."""


class Caller(Struct, frozen=True):
    """Who makes a request. `name` is for the audit log and for showing; `logins` are their names on the hosts.

    A token of no account is called "token NAME": its name is chosen freely, and no account's has a blank.
    """

    kind: Kind = "nobody"
    role: Role = "nobody"
    name: str = ""
    account_id: int | None = None
    token_id: int | None = None
    logins: frozenset[str] = frozenset()
    address: str = ""

    def is_at_least(self, role: Role) -> bool:
        return RANKS[self.role] >= RANKS[role] > 0 or role == "nobody"


NOBODY = Caller()
UNVERIFIED = Caller(kind="unverified")
"""A caller with a session, or named by a proxy, while the database cannot say who it is: they see what everyone
may."""
LOCAL_ADMIN = Caller(kind="local", role="admin", name="local admin")


def read_proxied_name(
    header_value: str | Sequence[str] | None, peer_address: str, settings: ProxySettings
) -> str | None:
    """The account's name, or None: no header is configured, the peer is not the proxy, or the header is no one name.

    `header_value` is what stands in the request's header of that name: all of them where it came several times, which
    is refused, since one of them then is not the proxy's. `peer_address` is the other end of the connection itself,
    never what another header says about it.
    """
    if settings.header is None or not is_proxy(peer_address, settings):
        return None
    values = [header_value] if isinstance(header_value, str) else header_value or []
    return read_name(values[0].strip(" \t")) if len(values) == 1 else None


def is_proxy(peer_address: str, settings: ProxySettings) -> bool:
    """Whether the other end of a connection is one of the listed addresses."""
    return _networks(tuple(settings.addresses)).has(peer_address)


_networks = lru_cache(maxsize=8)(Networks)
"""Asked at each request, and always the same."""
