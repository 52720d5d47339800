"""GET /api/v1/hosts and /api/v1/hosts/{host}."""

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter

from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.api.errors import ErrorBody
from gpudeck.model.view import Host

HostList = msgspec.defstruct("HostList", [("hosts", list[Host])], module=__name__)  # type: ignore[valid-type]


@get("/api/v1/hosts", responses={200: documented(HostList, "All hosts by name")})
async def list_hosts(hub: TheHub, request: HubRequest) -> Response[bytes]:
    """All hosts, ordered by name."""
    hosts = b",".join(host.encoded() for host in hub.fleet.ordered())
    return await answer_json(request, b'{"hosts":[' + hosts + b"]}")


@get(
    "/api/v1/hosts/{host:str}",
    responses={
        200: documented(Host, "The host"),
        404: documented(ErrorBody, "No such host"),
    },
)
async def read_host(
    hub: TheHub, request: HubRequest, host: Annotated[str, PathParameter(description="A host's name or id")]
) -> Response[bytes]:
    """One host with its GPUs and processes."""
    found = hub.fleet.find(host)
    if found is None:
        raise NotFoundException(f"no host is called {host[:100]!r}; /api/v1/hosts lists them")
    return await answer_json(request, found.encoded())
