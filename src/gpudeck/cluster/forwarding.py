"""Requests that only the hub with a duty can answer are answered by it, whichever hub they reach."""

from collections.abc import Iterable
from typing import Final

import msgspec
import zstandard
from msgspec import Struct

from gpudeck.cluster.service import ClusterService
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import App, Message, Receive, Scope, Send, send_error

ANSWER_SECONDS: Final = 20.0
_MAX_BODY: Final = 512 * 1024
_MAX_ANSWER: Final = 64 * 1024 * 1024
_ROUTES: Final = (
    ("/api/v1/alerts", "alerts"),
    ("/api/v1/mutes", "alerts"),
    ("/api/v1/idle-policy", "alerts"),
    ("/api/v1/jobs/import", "schedulers"),
)
"""Paths, all below them included, and whose hub answers them."""
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
    """Serves `app`, but for requests that another hub has to answer. Those are checked there once more: who may do what
    is the same on all hubs."""

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
            told = f"no hub has the duty {duty} now"
            await send_error(send, 503, "unavailable", told, "Ask again in a few seconds.", (b"retry-after", b"3"))
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
            told, hint = (error.message, error.hint) if isinstance(error, Temporary) else ("no answer came", "")
            await send_error(send, 503, "unavailable", told, hint, (b"retry-after", b"3"))
            return
        await _send(send, answer)

    def _duty_of(self, path: str) -> str | None:
        path = path.removeprefix(self._prefix)
        return next((duty for below, duty in _ROUTES if path == below or path.startswith(f"{below}/")), None)

    async def _answer(self, body: bytes) -> bytes:
        asked = _read_request(body)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": asked.method,
            "path": asked.path,
            "raw_path": asked.path.encode(),
            "query_string": asked.query,
            "headers": asked.headers,
            "client": asked.client,
            "server": None,
            "scheme": asked.scheme,
            "root_path": "",
        }
        started: list[Message] = []
        parts: list[bytes] = []
        messages = iter([{"type": "http.request", "body": asked.body, "more_body": False}])

        async def receive() -> Message:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            else:
                parts.append(message.get("body", b""))

        duty = self._duty_of(asked.path)
        if duty is None or not self._cluster.leases.holds(duty):
            await send_error(send, 503, "unavailable", "another hub has this duty now", "Ask again in a few seconds.")
        else:
            await self._app(scope, receive, send)
        headers = _without(started[0]["headers"], _NOT_OF_THE_ANSWER)
        answer = ForwardedResponse(started[0]["status"], headers, b"".join(parts))
        return zstandard.compress(_encode(answer), 1)


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


def _without(headers: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in headers if name.lower() not in names]
