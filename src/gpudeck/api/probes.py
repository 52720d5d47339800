"""/healthz and /readyz: for supervisors and load balancers."""

from collections.abc import Iterator
from typing import Final, Literal

from litestar import Response, get
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, documented
from gpudeck.api.login import TheAuth
from gpudeck.auth.parts import Auth
from gpudeck.hub.fleet import PARTS
from gpudeck.hub.hub import Hub

_STUCK_SECONDS: Final = 10.0
_IN_MEMORY: Final = (
    "Live data, reports, the history, alerts and their messages go on. Events and the state of alerts are kept in "
    "memory meanwhile, and lost if the hub ends before. "
)
_WITHOUT: Final = {
    "postgresql": "Live data, reports, the history, alerts and their messages go on, events wait on the hub's disk. "
    "Logging in, accounts, tokens, reservations, watches and the queue are refused until it answers.",
    "sqlite": f"{_IN_MEMORY}Logging in, accounts, tokens, reservations, watches, silences and the queue are refused "
    "until it answers.",
}
_READ_ONLY: Final = (
    f"{_IN_MEMORY}Reading goes on. Logging in and changes of accounts, tokens, reservations, watches, silences and the "
    "queue may be refused."
)
_FILE_LOST: Final = "Everything works, and what is changed now is lost when the hub ends."


class Health(Struct, frozen=True):
    """`demo`: all hosts are simulated."""

    status: str
    version: str
    demo: bool


class Check(Struct, frozen=True):
    """One part of the hub. `since` is when its trouble began, in Unix seconds, where that is known. `problem` and
    `effect`, what works without it and what does not, are empty while all is well, and for those who may not look."""

    name: str
    status: Literal["ok", "degraded"]
    since: float | None = None
    problem: str = ""
    effect: str = ""


class Readiness(Struct, frozen=True):
    """`degraded`: the fleet is served, and a part of the hub does not work: `checks` say which. `not publishing`: the
    hub is stuck. `tick_age_seconds` is how long ago the fleet was last published."""

    status: Literal["ready", "degraded", "not publishing"]
    hosts: int | None
    viewers: int | None
    tick_age_seconds: float
    counters: dict[str, int]
    checks: list[Check]


@get("/healthz", opt=access("open"), sync_to_thread=False)
def read_health(hub: TheHub) -> Health:
    """Answers as long as the process does."""
    return Health("ok", __version__, hub.ingest.demo)


@get(
    "/readyz",
    opt=access("open"),
    sync_to_thread=False,
    responses={503: documented(Readiness, "The fleet is not being published")},
)
def read_readiness(request: HubRequest, hub: TheHub, policy: ThePolicy, auth: TheAuth) -> Response[Readiness]:
    """200 while the fleet is being published, also where a part of the hub does not work, 503 while not. Counters and
    problems are for those who may look."""
    may_look = policy.is_readable or caller_of(request).is_at_least("viewer")
    age = hub.stream.tick_age()
    is_published = age < _STUCK_SECONDS
    checks = [one if may_look else Check(one.name, one.status, one.since) for one in _check_parts(hub, auth)]
    is_whole = all(one.status == "ok" for one in checks)
    body = Readiness(
        status="not publishing" if not is_published else "ready" if is_whole else "degraded",
        hosts=len(hub.fleet.hosts) if may_look else None,
        viewers=hub.stream.viewers if may_look else None,
        tick_age_seconds=round(age, 1),
        counters=dict(hub.fleet.counters) if may_look else {},
        checks=checks,
    )
    return Response(body, status_code=200 if is_published else 503)


def _check_parts(hub: Hub, auth: Auth) -> Iterator[Check]:
    away = auth.database.away
    effect = _FILE_LOST if away is None else _WITHOUT[auth.database.kind] if away.trouble.stops_all else _READ_ONLY
    for name in PARTS:
        said = auth.problem or "" if name == "database" else " ".join(hub.fleet.said(name))
        if not said:
            yield Check(name, "ok")
        elif name == "database":
            yield Check(name, "degraded", None if away is None else away.since, said, effect)
        else:
            yield Check(name, "degraded", problem=said)


ROUTES = [read_health, read_readiness]
