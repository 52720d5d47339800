"""GET /api/v1/sd: where the fleet's agents listen, as Prometheus' http_sd reads it.

Only hosts that the hub itself asks (`via: pull`) are listed: of an agent that pushes nobody knows whether it listens,
and a host that is read over SSH has none. Tokens are not told: Prometheus has the agents' in a file of its own.
"""

import re
from collections.abc import Callable

from litestar import get
from litestar.di import NamedDependency
from msgspec import Struct

from gpudeck.api.access import access
from gpudeck.hub.fleet import Fleet
from gpudeck.model.target import Target

_REPORT = "/api/v1/report"
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


class TargetGroup(Struct, frozen=True):
    """One agent: `targets` has one place. Labels begin with two underscores, so that none of them stands in the way of
    those on the agent's page; a rule of Prometheus' relabel_configs keeps the ones that a site wants."""

    targets: list[str]
    labels: dict[str, str]


class Agents:
    """`port` is where agents listen that say none of their own."""

    def __init__(self, fleet: Fleet, port: Callable[[], int]) -> None:
        self._fleet = fleet
        self._port = port

    def list(self) -> list[TargetGroup]:
        """Those that the hub reads, by name."""
        return [_describe(target, self._port()) for target in self._fleet.targets if target.via == "pull"]


def _describe(target: Target, port: int) -> TargetGroup:
    host = f"[{target.host}]" if ":" in target.host else target.host
    # Behind a proxy an agent's paths may all begin with one of its own.
    path = (target.path or _REPORT).removesuffix(_REPORT) if (target.path or _REPORT).endswith(_REPORT) else ""
    own = {"__scheme__": target.scheme, "__metrics_path__": f"{path}/metrics", "__meta_gpudeck_host": target.name}
    return TargetGroup([f"{host}:{target.port or port}"], {**_name(target.labels), **own})


def _name(labels: dict[str, str]) -> dict[str, str]:
    return {f"__meta_gpudeck_label_{_NO_LABEL.sub('_', name)}": value for name, value in sorted(labels.items())}


@get("/api/v1/sd", opt=access("read"))
async def list_agents(agents: NamedDependency[Agents]) -> list[TargetGroup]:
    """The agents that the hub asks, for Prometheus' http_sd_configs. /metrics has all GPUs, however they come in."""
    return agents.list()


ROUTES = [list_agents]
