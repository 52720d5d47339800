"""/api/v1/hosts (GET, POST, DELETE), /api/v1/hosts/{host} (GET, DELETE) and /api/v1/host-origins (GET)."""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, post
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Struct

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, allow, answer_json, documented
from gpudeck.api.host_book import HostOrigin, HostOrigins, NewHost, TheBook
from gpudeck.api.host_removal import HostSelection, TheRemoval
from gpudeck.api.login import TheAuth
from gpudeck.model.target import AddedHosts, RemovedHosts
from gpudeck.model.view import Host, HostList
from gpudeck.server.asgi import ErrorBody

_MOST_NAMED = 20
NOT_KEPT = {"Cache-Control": "no-store"}


class RemovedHost(Struct, frozen=True):
    """What was removed."""

    name: str


@get("/api/v1/hosts", opt=access("read"), responses={200: documented(HostList, "All hosts by name")})
async def list_hosts(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """All hosts, ordered by name."""
    sight = policy.sight(caller_of(request))
    hosts = b",".join(host.encoded(sight) for host in hub.fleet.ordered())
    return await answer_json(request, b'{"hosts":[' + hosts + b"]}")


@get(
    "/api/v1/hosts/{host:str}",
    opt=access("read"),
    responses={
        200: documented(Host, "The host"),
        404: documented(ErrorBody, "No such host"),
    },
)
async def read_host(
    hub: TheHub,
    policy: ThePolicy,
    request: HubRequest,
    host: Annotated[str, PathParameter(description="A host's name or id")],
) -> Response[bytes]:
    """One host with its GPUs and processes."""
    found = hub.fleet.find(host)
    if found is None:
        raise NotFoundException(_no_such(host))
    return await answer_json(request, found.encoded(policy.sight(caller_of(request))))


@get("/api/v1/host-origins", opt=access("admin"))
async def list_origins(hub: TheHub, book: TheBook) -> HostOrigins:
    """Who named each host, and which were added by hand: those, and those that nobody named, can be removed."""
    named = [(host, host.target or host.name) for host in hub.fleet.ordered()]
    return HostOrigins([HostOrigin(host.id, host.name, book.origin_of(name), book.has(name)) for host, name in named])


@post(
    "/api/v1/hosts",
    opt=access("admin"),
    responses={
        201: documented(AddedHosts, "The hosts that are watched from now on"),
        400: documented(ErrorBody, "A host that makes no sense"),
        401: documented(ErrorBody, "A token that this hub does not know"),
        403: documented(ErrorBody, "Who asks may not change anything"),
        409: documented(ErrorBody, "A host of that name is there already"),
    },
)
async def add_host(request: HubRequest, data: JSONBody[NewHost], book: TheBook, auth: TheAuth) -> Response[bytes]:
    """Watch another host, or a range of them. For a host that will report by itself the answer holds its token, which
    is told only this once, and the line to run there."""
    caller = caller_of(request)
    added = await book.add(data, caller.name)
    await auth.audit.record(caller, "add host", data.name, details=f"via {data.via}")
    return Response(msgspec.json.encode(added), status_code=201, media_type="application/json", headers=NOT_KEPT)


@delete(
    "/api/v1/hosts/{host:str}",
    opt=access("admin"),
    status_code=200,
    responses={
        200: documented(RemovedHost, "The host is gone"),
        401: documented(ErrorBody, "A token that this hub does not know"),
        403: documented(ErrorBody, "Who asks may not change anything"),
        404: documented(ErrorBody, "No such host"),
        409: documented(ErrorBody, "A configuration file names that host"),
    },
)
async def remove_host(
    request: HubRequest,
    *,
    hub: TheHub,
    book: TheBook,
    auth: TheAuth,
    removal: TheRemoval,
    host: Annotated[str, PathParameter(description="A host's name or id")],
) -> Response[bytes]:
    """Stop watching a host that was added here, and forget it. One that still reports by itself with the token of all
    agents comes back with its next report."""
    found = hub.fleet.find(host)
    was_added = await book.remove(found.target or found.name if found else host)
    # An alert may be all that is left of a host.
    gone = ({found.id} if found is not None else set()) | removal.alerts_alone(host)
    if gone:
        await removal.forget(gone)
    elif not was_added:
        # Its tokens were revoked all the same: it may have had some before it was ever seen.
        await auth.audit.record(caller_of(request), "remove host", host, outcome="refused", details="no such host")
        raise NotFoundException(_no_such(host))
    await auth.audit.record(caller_of(request), "remove host", host)
    body = msgspec.json.encode(RemovedHost(found.name if found else host))
    return Response(body, media_type="application/json", headers=NOT_KEPT)


@delete(
    "/api/v1/hosts",
    opt=access("admin"),
    status_code=200,
    responses={
        200: documented(RemovedHosts, "The hosts that were removed, or would be"),
        400: documented(ErrorBody, "Nothing says which hosts are meant"),
        401: documented(ErrorBody, "A token that this hub does not know"),
        403: documented(ErrorBody, "Who asks may not change anything"),
    },
)
async def remove_hosts(
    request: HubRequest,
    *,
    auth: TheAuth,
    removal: TheRemoval,
    name: Annotated[str | None, QueryParameter(max_length=253, description="A name, or a pattern such as gpu*")] = None,
    token: Annotated[
        str | None, QueryParameter(max_length=128, description="The agent token that reported them: its name or id")
    ] = None,
    down: Annotated[bool, QueryParameter(description="Only those that are down")] = False,
    dry_run: Annotated[bool, QueryParameter(description="Only say which they are")] = False,
) -> RemovedHosts:
    """Remove all hosts that fit everything given. One that still reports comes back, unless its token was revoked."""
    wanted = HostSelection(name or None, token or None, down)
    if wanted == HostSelection():
        raise ValidationException("say which hosts: give name, token or down")
    found, kept = await removal.find(wanted)
    if found and not dry_run:
        await removal.remove(found)
        await auth.audit.record(
            caller_of(request), "remove hosts", str(wanted), details=f"{len(found)} host{'s' * (len(found) != 1)}"
        )
    return RemovedHosts(len(found), [host.name for host in found[:_MOST_NAMED]], kept)


allow_hosts = allow("/api/v1/hosts", "DELETE", "GET", "POST")
allow_host = allow("/api/v1/hosts/{host:str}", "DELETE", "GET")


def _no_such(host: str) -> str:
    return f"no host is called {host[:100]!r}; /api/v1/hosts lists them"


ROUTES = [allow_hosts, allow_host, list_hosts, list_origins, read_host, add_host, remove_host, remove_hosts]
