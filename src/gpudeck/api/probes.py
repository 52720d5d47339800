"""/healthz and /readyz: for supervisors and load balancers."""

from litestar import Response, get
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.answers import TheHub, documented


class Health(Struct, frozen=True):
    status: str
    version: str


class Readiness(Struct, frozen=True):
    """`tick_age_seconds` is how long ago the fleet was last published: it grows when the hub is stuck."""

    status: str
    hosts: int
    viewers: int
    tick_age_seconds: float
    counters: dict[str, int]


@get("/healthz", sync_to_thread=False)
def read_health() -> Health:
    """Answers as long as the process does."""
    return Health("ok", __version__)


@get("/readyz", sync_to_thread=False, responses={503: documented(Readiness, "The fleet is not being published")})
def read_readiness(hub: TheHub) -> Response[Readiness]:
    """200 while the fleet is being published, 503 while it is not."""
    age = hub.stream.tick_age()
    ready = age < 10
    body = Readiness(
        status="ready" if ready else "not publishing",
        hosts=len(hub.fleet.hosts),
        viewers=hub.stream.viewers,
        tick_age_seconds=round(age, 1),
        counters=dict(hub.fleet.counters),
    )
    return Response(body, status_code=200 if ready else 503)
