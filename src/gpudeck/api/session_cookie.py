"""The session cookie: its name, its attributes, and how it is read from a request."""

from litestar.datastructures import Cookie

COOKIE = "gpudeck_session"


def cookie_name(is_secure: bool, prefix: str) -> str:
    """The cookie's name. Over TLS a browser takes one that begins so from TLS alone, and with `__Host-` from this very
    name: neither a neighbour nor an attacker on the network can replace it."""
    if not is_secure:
        return COOKIE
    return f"__Secure-{COOKIE}" if prefix.strip("/") else f"__Host-{COOKIE}"


def make_cookie(secret: str, *, is_secure: bool, prefix: str, max_age: int | None = None) -> Cookie:
    """The prefix below which the hub is served is the cookie's path, so that it does not reach what else is on that
    server."""
    return Cookie(
        key=cookie_name(is_secure, prefix),
        value=secret,
        path=f"{prefix}/" if prefix else "/",
        max_age=max_age,
        httponly=True,
        samesite="lax",
        secure=is_secure,
    )


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
