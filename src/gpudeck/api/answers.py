"""What the routes share: how they get the hub, and how JSON that is already encoded becomes an answer."""

import asyncio
import gzip
from typing import Any

from litestar import HttpMethod, MediaType, Request, Response, route
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from gpudeck.hub.hub import Hub

LEAST_PACKED = 2_048
"""Bytes of an answer that are worth compressing."""

HubRequest = Request[None, None, State]
TheHub = NamedDependency[Hub]
"""The hub, as a route's parameter `hub`."""


def documented(body: Any, description: str) -> ResponseSpec:
    """An answer for the document. Without examples: the framework would make them up, a megabyte of them."""
    return ResponseSpec(body, description=description, generate_examples=False)


async def answer_json(request: HubRequest, body: bytes) -> Response[bytes]:
    """Large bodies are compressed in a thread: eight thousand GPUs are several megabytes."""
    if len(body) > LEAST_PACKED and takes_gzip(request):
        return answer_bytes(await asyncio.to_thread(gzip.compress, body, 1), is_packed=True)
    return answer_bytes(body)


def answer_bytes(body: bytes, *, is_packed: bool = False) -> Response[bytes]:
    """JSON that is ready to be sent."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type=MediaType.JSON, headers=headers)


def takes_gzip(request: HubRequest) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def allow(path: str, *methods: str) -> HTTPRouteHandler:
    """What may be asked of a path that has several handlers: the framework's own answer knows the first one alone."""

    @route(path, http_method=[HttpMethod.OPTIONS], status_code=204, include_in_schema=False, opt={"access": "open"})
    async def tell_methods() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": ", ".join((*methods, "OPTIONS"))})

    return tell_methods
