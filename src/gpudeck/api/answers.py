"""Shared by all routes: the hub as a dependency, responses of encoded JSON, and the one shape of every error:
{"error": {"code", "message", "hint"}}.
"""

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from typing import Any

import cramjam
import msgspec
from litestar import MediaType, Request, Response
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from gpudeck.database import Unavailable
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.stream import SharedParts
from gpudeck.model.errors import RequestRefused as RequestRefused  # noqa: PLC0414 - routes raise it too
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.server.admission import checkpoint
from gpudeck.server.asgi import Send, encode_error, send_error

MAX_KEPT = 16 * 2**20
"""Bytes of an answer that is kept for others who ask within the same second."""
PART_BYTES = 2**18
"""Smaller parts of an answer are sent together: sending one takes as long as making some of them."""
MIN_PACKED = 2_048
"""Bytes of an answer that are worth compressing."""

HubRequest = Request[None, None, State]
TheHub = NamedDependency[Hub]
"""The hub, as a route's parameter `hub`."""
Parts = Iterable[bytes]
log = logging.getLogger(__name__)

_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_type",
    422: "invalid",
    429: "too_many",
    503: "unavailable",
}

_WORDS = {413: "the body of the request is too large"}
"""In place of the framework's own, which are the protocol's."""


async def answer_json(request: HubRequest, body: object) -> Response[Any]:
    """The JSON of `body`, which is encoded unless it is bytes. Large bodies are compressed in a thread: eight thousand
    GPUs are several megabytes."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    if len(encoded) > MIN_PACKED and takes_gzip(request):
        return await answer_json_parts(request, [encoded])
    return Response(encoded, media_type=MediaType.JSON, headers=_HEADERS)


async def answer_json_parts(request: HubRequest, parts: Parts) -> Response[Any]:
    """A body that is too large to be joined."""
    if not takes_gzip(request):
        return Stream(_gather(parts), headers={"Content-Type": "application/json", **_HEADERS})
    body = await asyncio.to_thread(lambda: b"".join(_pack(_gather(parts))))
    return Response(body, media_type=MediaType.JSON, headers={**_HEADERS, "Content-Encoding": "gzip"})


def answer_csv(text: str, file_name: str) -> Response[Any]:
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{file_name}"'}
    return Response(text.encode(), media_type="text/csv", headers=headers)


async def answer_in_parts(
    request: HubRequest,
    make: Callable[[], Awaitable[Parts]],
    kept: dict[Hashable, SharedParts],
    key: Hashable = None,
    **headers: str,
) -> Response[Any]:
    """An answer that is sent while it is made, others served in between. Unless it is large, it is in `kept` for others
    who ask for the same."""
    is_packed = takes_gzip(request)
    key = (key, is_packed)
    parts, is_new = kept.get(key), False
    if parts is None:
        made = _gather(await make())
        parts = kept.get(key) or SharedParts(_pack(made) if is_packed else made)
        # What fails at once is answered as an error.
        is_new = parts.get(0)[1]
        kept[key] = parts
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    own = {"Content-Type": "application/json", **_HEADERS}
    return Stream(_serve(parts, kept, key, is_new=is_new), headers=own | headers)


async def _serve(
    parts: SharedParts, kept: dict[Hashable, SharedParts], key: Hashable, *, is_new: bool
) -> AsyncIterator[bytes]:
    """`is_new`: the first part was made for this caller."""
    number, part = 0, parts.get(0)[0]
    while part is not None:
        yield part
        if parts.size > MAX_KEPT and kept.get(key) is parts:
            # Those who share it already keep it until they have it.
            del kept[key]
        if is_new:
            await checkpoint()
        number += 1
        part, is_new = parts.get(number)


def _gather(parts: Parts) -> Iterator[bytes]:
    waiting, size = list[bytes](), 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PART_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _pack(parts: Parts) -> Iterator[bytes]:
    """In gzip, one by one, in the event loop: a megabyte takes one to two milliseconds."""
    packer = cramjam.gzip.Compressor(1)
    for part in parts:
        packer.compress(part)
        yield bytes(packer.flush())
    yield bytes(packer.finish())


def takes_gzip(request: HubRequest) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def respond(
    status: int, code: str, message: str, hint: str = "", headers: dict[str, str] | None = None
) -> Response[bytes]:
    return Response(
        encode_error(code, message, hint), status_code=status, media_type="application/json", headers=headers
    )


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Litestar's own errors (no such route, a parameter that does not parse) in our shape."""
    code = _CODES.get(error.status_code, "error")
    extra = error.extra if isinstance(error.extra, list) else []
    details = "; ".join(
        f"{_name_of(request, one.get('key', 'value'))}: {_plain(one['message'])}" for one in extra if "message" in one
    )
    hint = "See /schema/openapi.json for what exists." if error.status_code in {404, 405} else ""
    message = details or _WORDS.get(error.status_code) or str(error.detail)
    return respond(error.status_code, code, message, hint, dict(error.headers or {}))


def _name_of(request: Request[Any, Any, Any], argument: str) -> str:
    """The public name of a handler's argument."""
    handler = request.scope.get("route_handler")
    field = handler.parsed_fn_signature.parameters.get(argument) if isinstance(handler, HTTPRouteHandler) else None
    return getattr(field and field.kwarg_definition, "name", None) or argument


_SCHEMA_WORDS = (
    (re.compile(r"^Expected `str` of length <= (\d+)"), r"at most \1 characters"),
    (re.compile(r"^Expected `str` of length >= 1$"), "it is empty"),
    (re.compile(r"^Expected `str` of length >= (\d+)"), r"at least \1 characters"),
    (re.compile(r"^Expected `array` of length <= (\d+)"), r"at most \1 entries"),
    (re.compile(r"^Expected `array` of length >= (\d+)"), r"at least \1 entries"),
    (re.compile(r"^Expected `(?:int|float)` <= (\S+)"), r"at most \1"),
    (re.compile(r"^Expected `(?:int|float)` >= (\S+)"), r"at least \1"),
    (re.compile(r"^Expected `str` matching regex .*"), "it is empty or has characters that are not allowed"),
)
"""Messages of msgspec about invalid values, and our own in their place."""


def _plain(message: str) -> str:
    for pattern, words in _SCHEMA_WORDS:
        message, count = pattern.subn(words, message)
        if count:
            break
    return message


def on_refused(_: Request[Any, Any, Any], error: RequestRefused | Temporary) -> Response[bytes]:
    refusal = as_refusal(error)
    return respond(refusal.status, refusal.code, refusal.message, refusal.hint, _retry_header(refusal))


async def send_refusal(send: Send, error: RequestRefused | Temporary) -> None:
    """The same without the framework."""
    refusal = as_refusal(error)
    headers = [(name.encode(), value.encode()) for name, value in _retry_header(refusal).items()]
    await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint, *headers)


def as_refusal(error: RequestRefused | Temporary) -> RequestRefused:
    """A temporary error becomes 503. Everyone can read it, so it does not name the location of the database."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, Unavailable):
        message, hint = f"the hub's database {error.trouble.reason}.", "Try again later; the hub's log says more."
        return RequestRefused(503, "unavailable", message, hint, retry_after=5)
    return RequestRefused(503, "unavailable", error.message, error.hint, retry_after=5)


def _retry_header(refusal: RequestRefused) -> dict[str, str]:
    return {"retry-after": str(math.ceil(refusal.retry_after))} if refusal.retry_after else {}


def on_usage_error(_: Request[Any, Any, Any], error: UsageError) -> Response[bytes]:
    """A package below does not accept what was asked of it."""
    return respond(400, "bad_request", str(error))


def on_depth(request: Request[Any, Any, Any], _: RecursionError) -> Response[bytes]:
    """JSON nested thousands of times: the caller's mistake, and anyone can be the caller."""
    log.warning("%s %s came with a body that is nested too deeply", request.method, request.url.path)
    return respond(400, "bad_request", "the body is nested too deeply")


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A bug of ours: the trace goes to the log, not to the caller."""
    log.error("bug while answering %s %s", request.method, request.url.path, exc_info=error)
    return respond(500, "bug", "the hub made a mistake while answering", "Its log has the details.")
