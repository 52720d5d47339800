"""GET /api/v1/fleet: everything now; GET /api/v1/totals: its counts alone, for who asks often and needs no more."""

from litestar import Response, get

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import LEAST_PACKED, HubRequest, TheHub, answer_bytes, documented, takes_gzip
from gpudeck.model.view import Fleet, Totals


@get("/api/v1/fleet", opt=access("read"), responses={200: documented(Fleet, "The whole fleet as of the last second")})
async def read_fleet(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """Everything now: hosts, GPUs, processes, totals."""
    sight = policy.sight(caller_of(request))
    document = await hub.stream.fresh_document(sight)
    if len(document) > LEAST_PACKED and takes_gzip(request):
        return answer_bytes(await hub.stream.packed_document(sight), is_packed=True)
    return answer_bytes(document)


@get("/api/v1/totals", opt=access("read"))
async def read_totals(hub: TheHub) -> Totals:
    """How many GPUs are free, busy, held, booked, unknown; hosts, people and power."""
    return hub.fleet.totals()


ROUTES = [read_fleet, read_totals]
