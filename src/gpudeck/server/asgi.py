"""The few ASGI pieces that the raw routes (reports, stream) share. They skip the framework because it would cost more
than the work itself: about half of the ingest rate."""

from collections.abc import Awaitable, Callable, MutableMapping
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
    """`code` is for programs and stays; `message` says what is wrong, `hint` what to do."""

    code: str
    message: str
    hint: str = ""


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


class Response(Struct, frozen=True):
    """A whole response in JSON."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


def encode_error(code: str, message: str, hint: str = "") -> bytes:
    return msgspec.json.encode(ErrorBody(ErrorDetail(code, message, hint)))


def make_error(status: int, code: str, message: str, hint: str = "", *headers: Header) -> Response:
    return Response(status, encode_error(code, message, hint), headers)


def read_headers(scope: Scope, *names: bytes) -> list[str]:
    """The values of the named headers, "" where one is absent."""
    found = dict(scope["headers"])
    return [found.get(name, b"").decode("latin-1") for name in names]


async def send_json(send: Send, status: int, body: bytes, *headers: Header) -> None:
    # Without its length the answer would go out in chunks, which costs more than the answer.
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, status: int, code: str, message: str, hint: str = "", *headers: Header) -> None:
    await send_json(send, status, encode_error(code, message, hint), *headers)


async def live(receive: Receive, send: Send) -> None:
    """A server's question whether we are ready, and later whether we are done: always. What there is to start and to
    stop is the hub's."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
