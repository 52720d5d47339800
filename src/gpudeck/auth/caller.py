"""The caller of a request and what it may do. A name in a proxy's header counts only from trusted addresses."""

import fnmatch
import functools
import math
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from gpudeck.auth.settings import ProxySettings, read_name
from gpudeck.model.errors import UsageError
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
    has_password: bool = False

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


_networks = functools.lru_cache(maxsize=8)(Networks)
"""Asked at each request, and always the same."""


TOKEN_ROLES: tuple[Role, ...] = ("agent", "viewer", "user", "admin", "calendar")
NAME_LENGTH = 128
_HOSTS = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,253}")
_RANGE = re.compile(r"\[[0-9]+-[0-9]{2,}\]|\[[0-9]{2,}-[0-9]+\]")


def check_token(name: str, role: Role, hosts: str | None, expires_at: float | None, now: float) -> None:
    """Raises UsageError that says what to choose instead."""
    if not name.strip() or len(name) > NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a token's name has to be 1 to {NAME_LENGTH} printable characters.", "Say what it is for.")
    if role not in TOKEN_ROLES:
        raise UsageError(f"no token has the role {role!r}.", f"Choose {', '.join(TOKEN_ROLES)}.")
    if expires_at is not None and not (math.isfinite(expires_at) and expires_at > now):
        raise UsageError("the token would be expired at once.", "Choose a later time.")
    if hosts is not None:
        _check_hosts(hosts, role)


def _check_hosts(hosts: str, role: Role) -> None:
    if role != "agent":
        raise UsageError(f"only an agent's token is bound to hosts, and this one is {role}.", "Leave the host out.")
    if _HOSTS.fullmatch(hosts) is None:
        raise UsageError(f"{hosts[:60]!r} is neither a host's name nor a pattern such as gpu*.")
    if _RANGE.search(hosts):
        raise UsageError(
            f"{hosts} is no pattern: brackets stand for one character.", "Write gpu[0-9][0-9] or gpu* instead."
        )


def is_for(hosts: str | None, host: str) -> bool:
    """Whether a token for these hosts, a name or a pattern, is for the host of that name; None is for all."""
    return hosts is None or hosts == host or matches(hosts, host)


def matches(pattern: str, host: str) -> bool:
    """Whether the host's whole name is what the pattern says: `*` is any text, `?` one character, `[ab]` one of two."""
    return _compile(pattern).match(host) is not None


@functools.lru_cache(maxsize=10_000)
def _compile(pattern: str) -> "re.Pattern[str]":
    """fnmatch keeps a few hundred patterns only, and compiling one takes longer than all else about a report."""
    return re.compile(fnmatch.translate(pattern))
