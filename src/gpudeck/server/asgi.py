"""The ASGI parts shared by the raw routes (reports, stream), which bypass the framework because it would cost about
half of the ingest rate; and the security headers of every response."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec
from msgspec import Struct

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

_JSON = [(b"content-type", b"application/json")]


class ErrorDetail(Struct, frozen=True):
    """`code` is for programs and stable; `message` describes the error, `hint` the next step."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


class Response(Struct, frozen=True):
    """A complete JSON response."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


def encode_error(code: str, message: str, hint: str = "") -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(code, message, hint)))


def make_error(status: int, code: str, message: str, hint: str = "", *headers: Header) -> Response:
    return Response(status, encode_error(code, message, hint), headers)


def read_headers(scope: Scope, *names: bytes) -> list[str]:
    """The values of the named headers, "" if one is absent."""
    found = dict(scope["headers"])
    return [found.get(name, b"").decode("latin-1") for name in names]


async def send_json(send: Send, status: int, body: bytes, *headers: Header) -> None:
    # Without a length the response would be chunked, which costs more than the response itself.
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, status: int, code: str, message: str, hint: str = "", *headers: Header) -> None:
    await send_json(send, status, encode_error(code, message, hint), *headers)


async def live(receive: Receive, send: Send) -> None:
    """The server's lifespan events: nothing to do, as the hub starts and stops its parts itself."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""For the page: nothing but its own files, and no inline scripts."""
WORKER_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""For its scripts: a worker has its own policy, not that of the page."""
_POLICY = b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PERMISSIONS = b"camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"

SAFE_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"permissions-policy", _PERMISSIONS),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")
_SECURE_HEADERS = (*SAFE_HEADERS, _TRANSPORT)
"""With TLS also HSTS, without subdomains, which the hub does not know."""
_NAMES = frozenset(name for name, _ in _SECURE_HEADERS)


def safe_headers(scheme: str) -> tuple[Header, ...]:
    """The security headers of a response with this scheme."""
    return _SECURE_HEADERS if scheme == "https" else SAFE_HEADERS


class SafeApp:
    """An application with these headers on every response."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Read now: on the way in, a trusted proxy may have corrected the scheme.
                wanted = safe_headers(scope.get("scheme", "http"))
                message["headers"] = _complete(message.get("headers", ()), wanted)
            await send(message)

        await self._app(scope, receive, send_safely)


def _complete(said: Iterable[Header], wanted: tuple[Header, ...]) -> list[Header]:
    headers = list(said)
    # Few routes set any of these headers, and all responses pass here: those that set none cost only one check.
    for name, _ in headers:
        if name in _NAMES:
            names = {name for name, _ in headers}
            return [*headers, *(header for header in wanted if header[0] not in names)]
    headers += wanted
    return headers
