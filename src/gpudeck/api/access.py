"""What each route asks of its caller. A route that does not say is closed to everybody.

A handler says it with `opt=access("read")`:

    open    anybody: probes, the page's files, the log-in itself
    read    who may look: with `read: open` anybody, else viewers and above
    self    who is logged in, about themselves
    book    users and admins; with `reservations.without_account` anybody who may look
    user    users and admins
    admin   admins
"""

from typing import Any, Literal

from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from msgspec import Struct

from gpudeck.auth.caller import NOBODY, Caller, Role
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.model.errors import Temporary

Commands = Literal["everyone", "login", "admin", "owner"]
Access = Literal["open", "read", "self", "book", "user", "admin"]
Connection = ASGIConnection[Any, Any, Any, State]

_OPEN_PATHS = ("/schema",)
_ROLES: dict[str, Role] = {"read": "viewer", "book": "user", "user": "user", "admin": "admin"}
ThePolicy = NamedDependency["Policy"]
"""As a route's parameter `policy`."""
_LOG_IN = "log in, or send a token"


def access(level: Access) -> dict[str, Any]:
    """For a handler's `opt`."""
    return {"access": level}


class Policy(Struct, frozen=True):
    """`is_readable` says that whoever reaches the hub may look. `needs_accounts`: others can reach it, so nobody can
    change anything without one. `commands` is who sees what processes were started with: everyone who may look, who is
    logged in, admins, or of each process its owner (and admins). `is_bookable`: no account is needed to book."""

    is_readable: bool
    needs_accounts: bool = True
    is_bookable: bool = False
    commands: Commands = "everyone"

    def sight(self, caller: Caller) -> Sight:
        """What of the fleet this caller may see."""
        if self.commands == "everyone" or caller.is_at_least("admin"):
            return EVERYTHING
        if self.commands == "login" and caller.is_at_least("viewer"):
            return EVERYTHING
        return Sight("own", caller.logins) if self.commands == "owner" and caller.logins else Sight("none")

    def check(self, level: Access | None, caller: Caller) -> None:
        """Raises NotAuthorizedException where logging in may help, PermissionDeniedException where it does not, and
        Temporary where who it is cannot be told now."""
        if level == "open" or (level == "read" and self.is_readable):
            return
        if level == "book" and self.is_bookable and caller.role in {"nobody", "viewer"}:
            return
        if level is None:
            raise PermissionDeniedException("this route does not say whom it is for, so it is for nobody")
        if caller.kind == "unverified":
            raise Temporary("who you are cannot be checked: the hub's database does not answer.", "Try again later.")
        if caller.role == "nobody":
            raise NotAuthorizedException(_needs(level))
        if level == "self":
            # A calendar's token belongs to an account, and stands in addresses that others get to see.
            if caller.account_id is None or not caller.is_at_least("viewer"):
                raise PermissionDeniedException("this is for people with an account")
        elif not caller.is_at_least(_ROLES[level]):
            raise PermissionDeniedException(f"{caller.name} has the role {caller.role}, and this needs {_ROLES[level]}")


def _needs(level: Access) -> str:
    if level == "read":
        return f"this hub shows nothing to strangers: {_LOG_IN}"
    return f"this needs {'an account' if level == 'self' else f'the role {_ROLES[level]}'}: {_LOG_IN}"


def caller_of(connection: Connection) -> Caller:
    """Who calls, as the door found out; nobody where there was no door."""
    caller: Caller = connection.scope.get("caller", NOBODY)  # type: ignore[assignment]
    return caller


def policy_of(connection: Connection) -> Policy:
    """The one of the house that the call came to."""
    policy: Policy = connection.scope["house"].policy  # type: ignore[typeddict-item]
    return policy


async def check_access(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard of all routes. It is asked before a body is looked at.

    It waits for nothing: the framework would ask a plain function in a thread, which costs more than the question.
    """
    level: Access | None = handler.opt.get("access")
    if connection.scope.get("method") == "OPTIONS" or connection.scope["path"].startswith(_OPEN_PATHS):
        level = "open"
    policy_of(connection).check(level, caller_of(connection))
