"""Who is at the door: a token, a session's cookie, a name that a trusted proxy tells, or somebody at this machine.

Asked once for each request, before any route. What a browser sends by itself (cookies, being at this machine) counts
for a change only if one of the hub's own pages asked for it.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from msgspec import Struct

from gpudeck.api.asgi import Scope, read_headers
from gpudeck.auth.caller import LOCAL_ADMIN, NOBODY, Caller
from gpudeck.model.settings import is_loopback

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
FindProxied = Callable[[list[str], str], Awaitable[Caller | None]]
"""From the header's values and the address of whoever sent them."""


class Door(Struct, frozen=True):
    """What the doorkeeper knows.

    `is_private`: nobody but this machine can reach the hub. `is_decided`: the configuration says who may look.
    `has_accounts`: whether anybody could log in. `proxy_header` is None where no proxy is trusted.
    """

    find_token: FindToken
    find_session: FindSession
    find_proxied: FindProxied
    has_accounts: Callable[[], bool]
    is_private: bool
    is_decided: bool
    proxy_header: str | None = None


class Doorkeeper:
    def __init__(self, door: Door) -> None:
        self._door = door

    async def identify(self, scope: Scope) -> Caller:
        """Who makes this request. Raises Refusal for a token nobody knows, and for what another site's page asks."""
        authorization, cookies, host, origin, site = read_headers(
            scope, b"authorization", b"cookie", b"host", b"origin", b"sec-fetch-site"
        )
        address = scope["client"][0] if scope.get("client") else ""
        if authorization:
            return _at(self._by_token(authorization), address)
        # Behind a trusted proxy `client` is whom the proxy speaks for; `peer` is the proxy.
        caller = await self._by_browser(scope, cookies, host, scope.get("peer", address))
        if scope["method"] not in SAFE_METHODS:
            # Another site's page could log its visitor in under its own name. Of strangers only the browser's own word
            # counts: a proxy that changes Host does not keep people from logging in.
            _check_origin(host, origin if caller is not NOBODY else "", site)
        return _at(caller, address)

    def _by_token(self, authorization: str) -> Caller:
        scheme, _, secret = authorization.partition(" ")
        caller = self._door.find_token(secret.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise Refusal(401, "unauthorized", "this hub does not know that token, or it has ended")
        return caller

    async def _by_browser(self, scope: Scope, cookies: str, host: str, peer: str) -> Caller:
        secret = read_cookie(cookies)
        caller = await self._door.find_session(secret) if secret else None
        if caller is None and self._door.proxy_header is not None:
            wanted = self._door.proxy_header.lower().encode()
            told = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
            caller = await self._door.find_proxied(told, peer) if told else None
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


def _check_origin(host: str, origin: str, site: str) -> None:
    """Raises Refusal for what a page of another site has its visitor's browser ask."""
    if (origin and origin.partition("://")[2] != host) or site in {"cross-site", "same-site"}:
        raise Refusal(403, "other_site", f"this request was made by a page of {origin[:100] or 'another site'}")


def read_cookie(header: str) -> str:
    """The session's secret in a Cookie header; empty where there is none.

    The first of several: browsers send that of the longest path first, and another hub may be above this one's. Parsed
    by hand because SimpleCookie gives up all cookies for one of another program that it does not like.
    """
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
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
        if caller is NOBODY
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
