"""GET /api/v1/fleet: everything now; GET /api/v1/totals: its counts alone, for who asks often and needs no more."""

from litestar import Response, get

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.model.view import Fleet, Totals


@get("/api/v1/fleet", opt=access("read"), responses={200: documented(Fleet, "The whole fleet as of the last second")})
async def read_fleet(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """Everything now: hosts, GPUs, processes, totals."""
    return await answer_json(request, hub.stream.document(policy.sight(caller_of(request))))


@get("/api/v1/totals", opt=access("read"))
async def read_totals(hub: TheHub) -> Totals:
    """How many GPUs are free, busy, held, booked, unknown; hosts, people and power."""
    return hub.fleet.totals()


ROUTES = [read_fleet, read_totals]
