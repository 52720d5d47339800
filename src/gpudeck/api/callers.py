"""Who is at the door: a token, a session's cookie, a name that a trusted proxy tells, or somebody at this machine.

Asked once for each request, before any route. What a browser sends by itself (cookies, being at this machine) counts
for a change only if one of the hub's own pages asked for it.
"""

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from msgspec import Struct

from gpudeck.auth.caller import LOCAL_ADMIN, NOBODY, UNVERIFIED, Caller
from gpudeck.model.errors import Temporary
from gpudeck.model.settings import is_loopback
from gpudeck.server.asgi import Scope, read_headers

log = logging.getLogger(__name__)

COOKIE = "gpudeck_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip", b"via")


class Refusal(Exception):
    """A request that is turned away at the door, with the answer it gets."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint


FindToken = Callable[[str], Caller | None]
FindSession = Callable[[str], Awaitable[Caller | None]]
FindProxied = Callable[[list[str], str, str], Awaitable[Caller | None]]
"""From the header's values, the address of whoever sent them, and the one that they speak for."""


class Door(Struct, frozen=True):
    """What the doorkeeper knows.

    `is_private`: nobody but this machine can reach the hub. `is_decided`: the configuration says who may look.
    `has_accounts`: whether anybody could log in. `proxy_header` is None where no proxy is trusted. `prefix` is the path
    below which the hub is served.
    """

    find_token: FindToken
    find_session: FindSession
    find_proxied: FindProxied
    has_accounts: Callable[[], bool]
    is_private: bool
    is_decided: bool
    proxy_header: str | None = None
    prefix: str = ""


class Doorkeeper:
    def __init__(self, door: Door) -> None:
        self._door = door

    async def identify(self, scope: Scope) -> Caller:
        """Who makes this request. Raises Refusal for a token nobody knows, for several of them, and for what another
        site's page asks."""
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
            # Of strangers too: another site's page could log its visitor in under its own name.
            _check_origin(host, origin, site)
        return _at(caller, address)

    def _by_token(self, authorization: str) -> Caller:
        scheme, _, secret = authorization.partition(" ")
        caller = self._door.find_token(secret.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Refusal(401, "unauthorized", "this hub does not know that token, or it has ended")
        return caller

    async def _by_browser(self, scope: Scope, cookies: str, host: str, peer: str) -> Caller:
        secret = read_cookie(cookies, cookie_name(scope.get("scheme") == "https", self._door.prefix))
        try:
            caller = await self._door.find_session(secret) if secret else None
            if caller is None and self._door.proxy_header is not None:
                wanted = self._door.proxy_header.lower().encode()
                told = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
                client = scope["client"][0] if scope.get("client") else ""
                caller = await self._door.find_proxied(told, peer, client) if told else None
        except Temporary as error:
            log.debug("a caller stays unknown: %s", error)
            return UNVERIFIED
        return caller or self._at_this_machine(scope, host, peer)

    def _at_this_machine(self, scope: Scope, host: str, peer: str) -> Caller:
        """Nothing is asked of whoever sits at the machine of a hub that nobody else can reach and that has no accounts.

        Raises Refusal where that hub was reached in another way after all: through a proxy, or by a page of another
        site whose name was turned to this address. Then nobody has decided yet who may look.
        """
        door = self._door
        if not door.is_private or door.has_accounts():
            return NOBODY
        is_proxied = any(name in _FORWARDED for name, _ in scope["headers"]) or not is_loopback(peer)
        if not is_proxied and is_loopback(host_name(host)):
            return LOCAL_ADMIN
        if door.is_decided:
            return NOBODY
        how = "through a proxy" if is_proxied else f"as {host[:100]}"
        hint = "Add `read: open` or `read: login` to its gpudeck.yaml, or open it as http://127.0.0.1."
        raise Refusal(403, "undecided", f"this hub was reached {how}, and nothing says who may look", hint)


def check_one_token(scope: Scope) -> None:
    """Raises Refusal for a request with several: a proxy may have looked at another one than the hub would."""
    if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
        raise Refusal(400, "bad_request", "this request has several Authorization headers", "Send one token.")


def _check_origin(host: str, origin: str, site: str) -> None:
    """Raises Refusal for what a page of another site has its visitor's browser ask.

    The browser's own word counts, also behind a proxy that changes Host. It is not given over plain HTTP, but to this
    machine: then the page's origin has to be the name under which the hub was asked. Programs say neither.
    """
    if site in {"same-origin", "none"} or (not site and (not origin or origin.partition("://")[2] == host)):
        return
    hint = "" if site else "Where this is your own hub: a proxy before it has to pass on Host as it is."
    raise Refusal(403, "other_site", f"this request was made by a page of {origin[:100] or 'another site'}", hint)


def cookie_name(is_secure: bool, prefix: str) -> str:
    """What the session's cookie is called. Over TLS a browser takes one that begins so from TLS alone, and with
    `__Host-` from this very name: neither a neighbour nor somebody on the line can put another in its place."""
    if not is_secure:
        return COOKIE
    return f"__Secure-{COOKIE}" if prefix.strip("/") else f"__Host-{COOKIE}"


def read_cookie(header: str, wanted: str) -> str:
    """The session's secret in a Cookie header; empty where there is none.

    The first of several: browsers send that of the longest path first, and another hub may be above this one's. Parsed
    by hand because SimpleCookie gives up all cookies for one of another program that it does not like.
    """
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def host_name(authority: str) -> str:
    """The name or address in a Host header, without its port; empty where there is none."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _at(caller: Caller, address: str) -> Caller:
    return (
        caller
        if caller.role == "nobody"
        else Caller(
            kind=caller.kind,
            role=caller.role,
            name=caller.name,
            account_id=caller.account_id,
            token_id=caller.token_id,
            logins=caller.logins,
            address=address,
        )
    )
