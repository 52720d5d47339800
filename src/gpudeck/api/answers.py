"""What the routes share: how they get the hub, and how JSON that is already encoded becomes an answer."""

import asyncio
import gzip
from typing import Any

from litestar import MediaType, Request, Response
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from gpudeck.hub.hub import Hub

HubRequest = Request[None, None, State]
TheHub = NamedDependency[Hub]
"""The hub, as a route's parameter `hub`."""


def documented(body: Any, description: str) -> ResponseSpec:
    """An answer for the document. Without examples: the framework would make them up, a megabyte of them."""
    return ResponseSpec(body, description=description, generate_examples=False)


async def answer_json(request: HubRequest, body: bytes) -> Response[bytes]:
    """Large bodies are compressed in a thread: eight thousand GPUs are several megabytes."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) > 2_048 and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = await asyncio.to_thread(gzip.compress, body, 1)
    return Response(body, media_type=MediaType.JSON, headers=headers)
