"""The one shape of every error: {"error": {"code", "message", "hint"}}."""

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from gpudeck.database.errors import Unavailable
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import encode_error

log = logging.getLogger(__name__)

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


def respond(
    status: int, code: str, message: str, hint: str = "", headers: dict[str, str] | None = None
) -> Response[bytes]:
    return Response(
        encode_error(code, message, hint), status_code=status, media_type="application/json", headers=headers
    )


def on_http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Litestar's own errors (no such route, a parameter that does not parse) in our shape."""
    code = _CODES.get(error.status_code, "error")
    extra = error.extra if isinstance(error.extra, list) else []
    details = "; ".join(f"{item.get('key', 'value')}: {item['message']}" for item in extra if "message" in item)
    hint = "See /schema/openapi.json for what exists." if error.status_code in {404, 405} else ""
    message = details or _WORDS.get(error.status_code) or str(error.detail)
    return respond(error.status_code, code, message, hint, dict(error.headers or {}))


def on_trouble(_: Request[Any, Any, Any], error: Temporary) -> Response[bytes]:
    """The database does not answer now. The fleet is shown all the same: it needs none."""
    return respond(503, "unavailable", *describe_trouble(error), {"Retry-After": "5"})


def describe_trouble(error: Temporary) -> tuple[str, str]:
    """Message and hint, for everybody who can reach the hub: without the place of its database."""
    if isinstance(error, Unavailable):
        return f"the hub's database {error.trouble.reason}.", "Try again later; the hub's log says more."
    return error.message, error.hint


def on_depth(request: Request[Any, Any, Any], _: RecursionError) -> Response[bytes]:
    """JSON within JSON, thousands of times: nobody's mistake but the caller's, and anybody can be the caller."""
    log.warning("%s %s came with a body that is nested too deeply", request.method, request.url.path)
    return respond(400, "bad_request", "the body is nested too deeply")


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A bug of ours: the trace goes to the log, not to the caller."""
    log.error("bug while answering %s %s", request.method, request.url.path, exc_info=error)
    return respond(500, "bug", "the hub made a mistake while answering", "Its log has the details.")
