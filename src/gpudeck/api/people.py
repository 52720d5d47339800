"""GET /api/v1/people: who is on which GPUs now, with memory and processes, the largest first."""

import msgspec
from litestar import Response, get

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.model.view import Fleet
from gpudeck.views.people import People, describe_people


@get("/api/v1/people", opt=access("read"), responses={200: documented(People, "Who is on GPUs as of the last second")})
async def read_people(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """Who is on which GPUs now: memory, processes, and where."""
    sight = policy.sight(caller_of(request))
    return await answer_json(request, await hub.stream.answer(sight, _describe))


def _describe(fleet: Fleet) -> bytes:
    return msgspec.json.encode(describe_people(fleet))


ROUTES = [read_people]
