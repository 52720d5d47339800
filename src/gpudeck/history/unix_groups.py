"""The Unix group of a login on the hub's machine: where people belong whom the settings put into no group."""

import grp
import pwd
import time
from functools import lru_cache

_KEPT_SECONDS = 600.0


def unix_group(login: str) -> str | None:
    """The login's primary group; None for a login that this machine does not know, and for a group of its own name.

    Such a group has one member: it says nothing. Answers are kept for up to ten minutes, because a directory server
    may stand behind them. May block for as long as that server takes.
    """
    return _look_up(login, int(time.monotonic() / _KEPT_SECONDS))


@lru_cache(maxsize=4096)
def _look_up(login: str, _age: int) -> str | None:
    try:
        name = grp.getgrgid(pwd.getpwnam(login).pw_gid).gr_name
    except (KeyError, ValueError, OSError):
        return None
    return None if name == login else name
