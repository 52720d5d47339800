"""GET /api/v1/fleet: everything now."""

from litestar import Response, get

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.model.view import Fleet


@get("/api/v1/fleet", opt=access("read"), responses={200: documented(Fleet, "The whole fleet as of the last second")})
async def read_fleet(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """Everything now: hosts, GPUs, processes, totals."""
    return await answer_json(request, hub.stream.document(policy.sight(caller_of(request))))


ROUTES = [read_fleet]
