"""/healthz and /readyz: for supervisors and load balancers."""

from litestar import Response, get
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, documented
from gpudeck.api.login import TheAuth


class Health(Struct, frozen=True):
    """`demo`: all hosts are simulated."""

    status: str
    version: str
    demo: bool


class Readiness(Struct, frozen=True):
    """`tick_age_seconds` is how long ago the fleet was last published: it grows when the hub is stuck. `reason` is why
    the hub is not ready; empty where it is."""

    status: str
    hosts: int | None
    viewers: int | None
    tick_age_seconds: float
    counters: dict[str, int]
    reason: str = ""


@get("/healthz", opt=access("open"), sync_to_thread=False)
def read_health(hub: TheHub) -> Health:
    """Answers as long as the process does."""
    return Health("ok", __version__, hub.ingest.demo)


@get(
    "/readyz",
    opt=access("open"),
    sync_to_thread=False,
    responses={503: documented(Readiness, "The fleet is not being published, or the database's file is gone")},
)
def read_readiness(request: HubRequest, hub: TheHub, policy: ThePolicy, auth: TheAuth) -> Response[Readiness]:
    """200 while the fleet is being published and changes are kept, 503 while not. Counters are for those who may
    look."""
    may_look = policy.is_readable or caller_of(request).is_at_least("viewer")
    age = hub.stream.tick_age()
    is_published = age < 10
    ready = is_published and auth.trouble is None
    body = Readiness(
        status="ready" if ready else "not keeping changes" if is_published else "not publishing",
        hosts=len(hub.fleet.hosts) if may_look else None,
        viewers=hub.stream.viewers if may_look else None,
        tick_age_seconds=round(age, 1),
        counters=dict(hub.fleet.counters) if may_look else {},
        reason=auth.trouble or "",
    )
    return Response(body, status_code=200 if ready else 503)


ROUTES = [read_health, read_readiness]
