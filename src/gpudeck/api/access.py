"""Authentication and access levels: identifies the caller of a request and checks what its route requires. A route
without an access level is closed.

`Authenticator` finds the caller once for each request: a bearer token, a session's cookie, the name in a trusted
proxy's header, or this machine itself. What a browser sends by itself (cookies, being at this machine) counts for a
change only if one of the hub's own pages made the request. A handler says whom it is for with `opt=access("read")`:

    open    everyone: probes, the page's files, the login itself
    read    with `read: open` everyone, else viewers and above
    self    who is logged in, about themselves
    reserve users and admins; with `reservations.without_account` everyone who may read
    user    users and admins
    admin   admins
"""

import difflib
import functools
import logging
from typing import Any, Literal
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie, State
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.api.answers import RequestRefused
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import LOCAL_ADMIN, NOBODY, UNVERIFIED, Caller, Role
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.errors import Temporary
from gpudeck.model.settings import is_loopback
from gpudeck.server.asgi import Scope, read_headers

COOKIE, LOGIN_COOKIE, NOTE_COOKIE = "gpudeck_session", "gpudeck_oidc", "gpudeck_note"
"""The cookies of a session, of a login through a provider, and of a note that the page shows once."""


def make_cookie(connection: "Connection", name: str, value: str, max_age: int | None = None) -> Cookie:
    """Without an age the browser forgets it when it ends. The prefix below which the hub is served is the cookie's
    path, so that it does not reach what else is on that server."""
    is_secure, prefix = _place_of(connection)
    return Cookie(
        key=_full_name(name, is_secure, prefix),
        value=value,
        path=f"{prefix}/" if prefix else "/",
        max_age=max_age,
        httponly=True,
        samesite="lax",
        secure=is_secure,
    )


def read_cookie(connection: "Connection", name: str) -> str:
    """Its value; empty where there is none."""
    return _find_cookie(connection.headers.get("cookie", ""), _full_name(name, *_place_of(connection)))


def _place_of(connection: "Connection") -> tuple[bool, str]:
    """Returns whether the hub is served over TLS, and its path prefix."""
    return connection.scope["scheme"] == "https", connection.scope["services"].prefix  # type: ignore[typeddict-item]


def _full_name(name: str, is_secure: bool, prefix: str) -> str:
    """Over TLS a browser takes a cookie that begins so from TLS alone, and with `__Host-` from this very name: neither
    a neighbour nor an attacker on the network can replace it."""
    if not is_secure:
        return name
    return f"__Secure-{name}" if prefix.strip("/") else f"__Host-{name}"


def _find_cookie(header: str, wanted: str) -> str:
    """The first of several: browsers send that of the longest path first, and another hub may be above this one's.
    Parsed by hand because SimpleCookie gives up all cookies for one of another program that it does not like.
    """
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


Commands = Literal["everyone", "login", "admin", "owner"]
Access = Literal["open", "read", "self", "reserve", "user", "admin"]
Connection = ASGIConnection[Any, Any, Any, State]

_OPEN_PATHS = ("/schema",)
_ROLES: dict[str, Role] = {"read": "viewer", "reserve": "user", "user": "user", "admin": "admin"}
UNKNOWN_TOKEN = "the token is unknown to this hub, expired or revoked"  # noqa: S105 - a message
_LOG_IN = "Log in, or send a token."
log = logging.getLogger(__name__)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip", b"via")


def access(level: Access) -> dict[str, Any]:
    """For a handler's `opt`."""
    return {"access": level}


class Policy(Struct, frozen=True):
    """`is_readable`: everyone who reaches the hub may read. `needs_accounts`: others can reach it, so no one can
    change anything without one. `commands` is who sees what processes were started with: everyone who may look, who is
    logged in, admins, or of each process its owner (and admins). `reserves_without_account`: reserving needs no
    account."""

    is_readable: bool
    needs_accounts: bool = True
    reserves_without_account: bool = False
    commands: Commands = "everyone"

    def visibility(self, caller: Caller) -> Visibility:
        """The part of the fleet that this caller may see."""
        if self.commands == "everyone" or caller.is_at_least("admin"):
            return EVERYTHING
        if self.commands == "login" and caller.is_at_least("viewer"):
            return EVERYTHING
        return Visibility("own", caller.logins) if self.commands == "owner" and caller.logins else Visibility("none")

    def check(self, level: Access | None, caller: Caller) -> None:
        """Raises RequestRefused: 401 where logging in may help, 403 where it does not; and Temporary where the
        caller cannot be identified now."""
        if level == "open" or (level == "read" and self.is_readable):
            return
        if level == "reserve" and self.reserves_without_account and caller.role in {"nobody", "viewer"}:
            return
        if level is None:
            raise _forbid("this route has no access level, so it is closed")
        if caller.kind == "unverified":
            raise Temporary("who you are cannot be checked: the hub's database does not answer.", "Try again later.")
        if caller.role == "nobody":
            raise RequestRefused(401, "unauthorized", _needs(level), _LOG_IN)
        if level == "self":
            # A calendar's token belongs to an account, and stands in addresses that others get to see.
            if caller.account_id is None or not caller.is_at_least("viewer"):
                raise _forbid("this needs an account, not only a token", "Log in with an account.")
        elif not caller.is_at_least(_ROLES[level]):
            needed = _ROLES[level]
            step = (
                f"Use a token with the role {needed}, or the login of an account."
                if caller.account_id is None
                else f"An admin can change the role: `gpudeck account role {caller.name} {needed}` on its machine."
            )
            raise _forbid(f"{caller.name} has the role {caller.role}, and this needs the role {needed}", step)


ThePolicy = NamedDependency[Policy]
TheCaller = NamedDependency[Caller]
"""The caller of the request, as a route's parameter `caller`."""
TheVisibility = NamedDependency[Visibility]
"""The part of the fleet that the caller may see, as a route's parameter `visibility`."""


def _forbid(message: str, hint: str = "") -> RequestRefused:
    return RequestRefused(403, "forbidden", message, hint)


def _needs(level: Access) -> str:
    if level == "read":
        return "this hub shows its fleet only to users who are logged in"
    return f"this needs {'an account' if level == 'self' else f'the role {_ROLES[level]}'}"


def caller_of(connection: Connection) -> Caller:
    """The caller that the authenticator found; NOBODY where it was not asked."""
    caller: Caller = connection.scope.get("caller", NOBODY)  # type: ignore[assignment]
    return caller


def policy_of(connection: Connection) -> Policy:
    """The access policy of the hub that serves this request."""
    policy: Policy = connection.scope["services"].policy  # type: ignore[typeddict-item]
    return policy


async def check_access(connection: Connection, handler: BaseRouteHandler) -> None:
    """The guard of all routes. It is asked before a body is looked at.

    It waits for nothing: the framework would ask a plain function in a thread, which costs more than the question.
    """
    level: Access | None = handler.opt.get("access")
    if connection.scope.get("method") == "OPTIONS" or connection.scope["path"].startswith(_OPEN_PATHS):
        level = "open"
    policy_of(connection).check(level, caller_of(connection))
    known = _query_parameters(handler)
    for name in connection.query_params if known else ():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or known
            raise ValidationException(f"there is no parameter {name[:40]!r}; did you mean {' or '.join(near)}?")


@functools.cache
def _query_parameters(handler: BaseRouteHandler) -> tuple[str, ...]:
    """The query parameters that a route declares. If it has any, others are refused: a typo would otherwise be
    ignored."""
    fields = handler.parsed_fn_signature.parameters.items()
    wanted = [(name, field.kwarg_definition) for name, field in fields]
    return tuple(found.name or name for name, found in wanted if isinstance(found, QueryParameter))


class Authenticator(Struct, frozen=True):
    """Finds who makes a request.

    `is_private`: only this machine can reach the hub. `is_decided`: the configuration says who may read, and with
    `needs_login` only users who are logged in. `prefix` is the path below which the hub is served.
    """

    auth: Auth
    is_private: bool
    is_decided: bool
    needs_login: bool = False
    prefix: str = ""

    async def identify(self, scope: Scope) -> Caller:
        """Returns the caller. Raises RequestRefused for an unknown token, for several tokens, and for a request made by
        a page of another site."""
        authorization, cookies, host, origin, site = read_headers(
            scope, b"authorization", b"cookie", b"host", b"origin", b"sec-fetch-site"
        )
        address = scope["client"][0] if scope.get("client") else ""
        check_one_token(scope)
        if authorization:
            return _at(self._by_token(authorization), address)
        # Behind a trusted proxy `client` is whom the proxy speaks for; `peer` is the proxy.
        caller = await self._by_browser(scope, cookies, host, scope.get("peer", address))
        if scope["method"] not in SAFE_METHODS:
            # Of callers without an account too: another site's page could log its visitor in under its own name.
            _check_origin(host, origin, site)
        return _at(caller, address)

    def _by_token(self, authorization: str) -> Caller:
        scheme, _, secret = authorization.partition(" ")
        caller = self.auth.find_token(secret.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise RequestRefused(401, "unauthorized", UNKNOWN_TOKEN)
        return caller

    async def _by_browser(self, scope: Scope, cookies: str, host: str, peer: str) -> Caller:
        secret = _find_cookie(cookies, _full_name(COOKIE, scope.get("scheme") == "https", self.prefix))
        try:
            caller = await self.auth.find_session(secret) if secret else None
            if caller is None and self.auth.proxy_header is not None:
                wanted = self.auth.proxy_header.lower().encode()
                told = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
                client = scope["client"][0] if scope.get("client") else ""
                caller = await self.auth.find_proxied(told, peer, client) if told else None
        except Temporary as error:
            log.debug("a caller stays unknown: %s", error)
            return UNVERIFIED
        return caller or self._at_this_machine(scope, host, peer)

    def _at_this_machine(self, scope: Scope, host: str, peer: str) -> Caller:
        """No login is needed at the machine of a hub that no other machine can reach and that has no accounts.

        Raises RequestRefused where that hub was reached in another way after all: through a proxy, or by a page of
        another site whose name was turned to this address. Then it is not decided yet who may read.
        """
        if not self.is_private or self.needs_login or self.auth.can_log_in:
            return NOBODY
        is_proxied = any(name in _FORWARDED for name, _ in scope["headers"]) or not is_loopback(peer)
        if not is_proxied and is_loopback(host_name(host)):
            return LOCAL_ADMIN
        if self.is_decided:
            return NOBODY
        how = "through a proxy" if is_proxied else f"as {host[:100]}"
        hint = "Add `read: open` or `read: login` to its gpudeck.yaml, or open it as http://127.0.0.1."
        raise RequestRefused(403, "undecided", f"this hub was reached {how}, and `read` is not set", hint)


def check_one_token(scope: Scope) -> None:
    """Raises RequestRefused for a request with several: a proxy may have looked at another one than the hub would."""
    if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
        raise RequestRefused(400, "bad_request", "this request has several Authorization headers", "Send one token.")


def _check_origin(host: str, origin: str, site: str) -> None:
    """Raises RequestRefused for what a page of another site has its visitor's browser ask.

    The browser's own word counts, also behind a proxy that changes Host. It is not given over plain HTTP, but to this
    machine: then the page's origin has to be the name under which the hub was asked. Programs say neither.
    """
    if site in {"same-origin", "none"} or (not site and (not origin or origin.partition("://")[2] == host)):
        return
    hint = "" if site else "Where this is your own hub: a proxy before it has to pass on Host as it is."
    raise RequestRefused(
        403, "other_site", f"this request was made by a page of {origin[:100] or 'another site'}", hint
    )


def host_name(authority: str) -> str:
    """The name or address in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _at(caller: Caller, address: str) -> Caller:
    return caller if caller.role == "nobody" else replace(caller, address=address)
