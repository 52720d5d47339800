"""Who may change anything on the hub.

Whoever shows the admin token; and, on a hub that listens on this machine alone, whoever sits at this machine. A web
page of somebody else that has its visitor's browser ask the hub (cross-site request, rebound name) is not at this
machine, and neither is a reverse proxy.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from msgspec import Struct

from gpudeck.model.settings import is_loopback

Connection = ASGIConnection[Any, Any, Any, State]

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
_HOW = "use `gpudeck hosts` on the hub's machine, or send its admin token"


class Writers(Struct, frozen=True):
    """`is_admin` knows the admin token. `is_private` says that nobody but this machine can reach the hub."""

    is_admin: Callable[[str], bool]
    is_private: bool

    def check(self, request: Connection) -> None:
        """Raises NotAuthorizedException or PermissionDeniedException."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not self.is_admin(token.strip()):
                raise NotAuthorizedException("this token may not change anything on this hub")
            return
        problem = self._why_not_here(request)
        if problem is not None:
            raise PermissionDeniedException(f"{problem}: {_HOW}")

    def _why_not_here(self, request: Connection) -> str | None:
        """Why a request without a token is not from somebody at this machine; None when it is."""
        if not self.is_private:
            return "changing anything on a hub that others can reach needs a token"
        client = request.client.host if request.client else ""
        if any(name in request.headers for name in _FORWARDED) or not is_loopback(client):
            return "this request came through a proxy"
        host = request.headers.get("host", "")
        if not is_loopback(_host_name(host)):
            return f"this request was meant for {host[:100]}"
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return f"this request was made by a page of {origin[:100]}"
        return None


def _host_name(authority: str) -> str:
    """The name or address in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def may_write(connection: Connection, _: BaseRouteHandler) -> None:
    """The guard of every route that changes something: it is asked before the body is looked at."""
    writers: Writers = connection.app.state.writers
    writers.check(connection)
