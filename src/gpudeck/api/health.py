"""GET /api/v1/hosts/{host}/health: whether jobs may start on a host's GPUs. Reads no database: prologs wait for it."""

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json, documented
from gpudeck.api.hosts import explain_missing
from gpudeck.api.parameters import HostPath
from gpudeck.api.services import TheServices
from gpudeck.model import clock
from gpudeck.model.gpu_state import HostHealth, judge_host

MAX_GPUS = 256


@get(
    "/api/v1/hosts/{host:str}/health",
    opt=access("read"),
    responses=documented(HostHealth, "The verdict, with the reasons"),
)
async def read_host_health(
    request: HubRequest,
    services: TheServices,
    host: HostPath,
    gpu: Annotated[
        list[str] | None,
        QueryParameter(
            max_items=MAX_GPUS, description="Only these GPUs, by number or UUID; may be given several times"
        ),
    ] = None,
) -> Response[bytes]:
    """Whether jobs may start on a host's GPUs: `ok`, `drain` or `unknown`, with the reasons. For prologs."""
    fleet = services.hub.fleet
    found = fleet.find(host)
    if found is None:
        raise RequestRefused(404, "unknown_host", explain_missing(host))
    view = found.own_view()
    view.gpus = found.show(list(found.gpus.values()))
    # A hub of several that does not evaluate alerts knows what all viewers see: the critical ones first.
    firing = {alert.id: alert for alert in fleet.alerts if alert.host_id == found.id}
    firing |= {record.id: record.show() for record in services.alerts.engine.firing_of(found.id)}
    wanted = [name[:128] for name in gpu or ()]
    verdict = judge_host(view, firing.values(), wanted, clock.wall())
    return await answer_json(request, msgspec.json.encode(verdict))
