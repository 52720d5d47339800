"""GET /api/v1/people: who is on which GPUs now, with memory and processes, the largest first."""

import asyncio

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.hub.sight import Sight
from gpudeck.views.people_table import People, describe_people
from gpudeck.views.reading import read_fleet

_MOST_KEPT = 16


class Gatherings:
    """Who is where, gathered once for all who may see the same in the same second. One event loop owns it."""

    def __init__(self) -> None:
        self._made: dict[Sight, tuple[bytes, asyncio.Task[bytes]]] = {}

    async def gather(self, sight: Sight, document: bytes) -> bytes:
        kept = self._made.get(sight)
        if kept is None or kept[0] is not document:
            if len(self._made) >= _MOST_KEPT:
                self._made = {}
            kept = self._made[sight] = document, asyncio.create_task(asyncio.to_thread(_describe, document))
        # Whoever goes away while it is being made must not take it from the others.
        return await asyncio.shield(kept[1])


@get("/api/v1/people", opt=access("read"), responses={200: documented(People, "Who is on GPUs as of the last second")})
async def read_people(
    hub: TheHub, gatherings: NamedDependency[Gatherings], policy: ThePolicy, request: HubRequest
) -> Response[bytes]:
    """Who is on which GPUs now: memory, processes, and where."""
    sight = policy.sight(caller_of(request))
    return await answer_json(request, await gatherings.gather(sight, await hub.stream.fresh_document(sight)))


def _describe(document: bytes) -> bytes:
    return msgspec.json.encode(describe_people(read_fleet(document)))


ROUTES = [read_people]
