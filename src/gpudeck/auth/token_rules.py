"""Validation of tokens: name, role, and the hosts that its bearer may report as. Pure."""

import fnmatch
import functools
import math
import re

from gpudeck.auth.caller import Role
from gpudeck.model.errors import UsageError

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
