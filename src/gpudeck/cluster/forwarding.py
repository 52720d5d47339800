"""Requests that only the hub with a duty can answer are forwarded to it, whichever hub they reach."""

from typing import Final
from urllib.parse import quote

import httpx
import msgspec
import zstandard
from msgspec import Struct

from gpudeck.cluster.service import ClusterService
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import App, Receive, Scope, Send, send_error

ANSWER_SECONDS: Final = 20.0
_MAX_BODY: Final = 512 * 1024
_MAX_ANSWER: Final = 64 * 1024 * 1024
_ROUTES: Final = (
    ("/api/v1/alerts", "alerts"),
    ("/api/v1/mutes", "alerts"),
    ("/api/v1/idle-policy", "alerts"),
    ("/api/v1/jobs/import", "schedulers"),
)
"""Paths (and those below them), and the duty of the hub that answers them."""
_NOT_OF_THE_ANSWER: Final = (b"content-length", b"transfer-encoding", b"connection")


class ForwardedRequest(Struct, frozen=True):
    """The part of an ASGI scope that an answer depends on, and the body."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    scheme: str
    body: bytes


class ForwardedResponse(Struct, frozen=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_encode = msgspec.msgpack.encode
_read_request = msgspec.msgpack.Decoder(ForwardedRequest).decode
_read_response = msgspec.msgpack.Decoder(ForwardedResponse).decode


class DutyRouter:
    """Serves `app`, except for requests that another hub must answer. That hub checks their permissions again;
    permissions are the same on all hubs."""

    def __init__(self, app: App, cluster: ClusterService, prefix: str = "") -> None:
        self._app = app
        self._cluster = cluster
        self._prefix = prefix.rstrip("/")
        cluster.answer_with(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        duty = self._duty_of(scope["path"]) if scope["type"] == "http" else None
        if duty is None or self._cluster.leases.holds(duty):
            await self._app(scope, receive, send)
            return
        owner = self._cluster.owner_of(duty)
        body = await _read_body(receive)
        if body is None:
            await send_error(send, 413, "too_large", "the request is too large")
            return
        if owner is None:
            message = f"no hub has the duty {duty} now"
            await send_error(send, 503, "unavailable", message, "Ask again in a few seconds.", (b"retry-after", b"3"))
            return
        try:
            asked = ForwardedRequest(
                scope["method"],
                scope["path"],
                scope.get("query_string", b""),
                list(scope["headers"]),
                scope.get("client"),
                scope.get("scheme", "http"),
                body,
            )
            packed = await self._cluster.bus.request(owner, _encode(asked), ANSWER_SECONDS)
            plain = zstandard.decompress(packed, max_output_size=_MAX_ANSWER)
            answer = _read_response(plain)
        except (Temporary, zstandard.ZstdError, msgspec.DecodeError) as error:
            message, hint = (error.message, error.hint) if isinstance(error, Temporary) else ("no answer came", "")
            await send_error(send, 503, "unavailable", message, hint, (b"retry-after", b"3"))
            return
        await _send(send, answer)

    def _duty_of(self, path: str) -> str | None:
        path = path.removeprefix(self._prefix)
        return next((duty for below, duty in _ROUTES if path == below or path.startswith(f"{below}/")), None)

    async def _answer(self, body: bytes) -> bytes:
        asked = _read_request(body)
        duty = self._duty_of(asked.path)
        app = self._app if duty is not None and self._cluster.leases.holds(duty) else _refuse
        url = httpx.URL(scheme=asked.scheme, host="hub", raw_path=quote(asked.path).encode() + b"?" + asked.query)
        transport = httpx.ASGITransport(app, client=asked.client or ("", 0))
        answer = await transport.handle_async_request(
            httpx.Request(asked.method, url, headers=asked.headers, content=asked.body)
        )
        headers = [pair for pair in answer.headers.raw if pair[0].lower() not in _NOT_OF_THE_ANSWER]
        return zstandard.compress(_encode(ForwardedResponse(answer.status_code, headers, await answer.aread())), 1)


async def _refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send_error(send, 503, "unavailable", "another hub has this duty now", "Ask again in a few seconds.")


async def _read_body(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if sum(map(len, parts)) > _MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Send, answer: ForwardedResponse) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
