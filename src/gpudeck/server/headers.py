"""What every answer carries, so that a browser takes it for nothing else than it is.

Added around everything: to the raw routes, to the framework's own errors, to routes that are added later. What
a route says by itself counts.
"""

from collections.abc import Iterable

from gpudeck.server.asgi import App, Header, Message, Receive, Scope, Send

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""For the page: nothing but its own files, and no script in its text."""
WORKER_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""For its scripts: one of them runs as a worker, which keeps to the policy that came with it and not to the page's."""
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
"""With TLS also: never again without it. Not for names below this one, of which the hub knows nothing."""
_NAMES = frozenset(name for name, _ in _SECURE_HEADERS)


def safe_headers(scheme: str) -> tuple[Header, ...]:
    """What a response over that scheme carries."""
    return _SECURE_HEADERS if scheme == "https" else SAFE_HEADERS


class SafeApp:
    """An application whose every answer carries the headers above."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Asked only now: on the way in it may have been a trusted proxy that spoke TLS with the caller.
                wanted = safe_headers(scope.get("scheme", "http"))
                message["headers"] = _complete(message.get("headers", ()), wanted)
            await send(message)

        await self._app(scope, receive, send_safely)


def _complete(said: Iterable[Header], wanted: tuple[Header, ...]) -> list[Header]:
    headers = list(said)
    # Few routes say any of them, and all routes pass here: those that say none cost no more than a look.
    for name, _ in headers:
        if name in _NAMES:
            names = {name for name, _ in headers}
            return [*headers, *(header for header in wanted if header[0] not in names)]
    headers += wanted
    return headers
