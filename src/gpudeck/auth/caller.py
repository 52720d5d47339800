"""Who calls, and what they may do."""

from typing import Literal

from msgspec import Struct

Role = Literal["nobody", "agent", "calendar", "viewer", "user", "admin"]
RANKS: dict[str, int] = {"nobody": 0, "agent": 0, "calendar": 0, "viewer": 1, "user": 2, "admin": 3}
"""An agent's and a calendar's token open one door each and rank nowhere else."""

Kind = Literal["nobody", "unverified", "local", "account", "token", "proxy"]
"""How somebody is known: not at all; not yet, as the database is away; because they sit at the machine of a hub that
nobody else can reach; by a session; by a token; by the name that a trusted proxy tells."""


class Caller(Struct, frozen=True):
    """Whoever makes a request. `name` is for the audit log and for showing; `logins` are their names on the hosts.

    A token of no account is called "token NAME": its name is anybody's choice, and no account's has a blank.
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
"""Somebody with a session, or whom a proxy names, while the database cannot say who it is: they see what everybody
may."""
LOCAL_ADMIN = Caller(kind="local", role="admin", name="local admin")
