"""The sources of a hub, as its settings say."""

from gpudeck.compat.readings import Nodes
from gpudeck.compat.registry import make_poll_methods as make_compat_ways
from gpudeck.settings import Settings
from gpudeck.sources import registry
from gpudeck.sources.poller import PollMethod


def make_poll_methods(
    settings: Settings, ssh_password: str | None = None, nodes: Nodes | None = None
) -> dict[str, PollMethod]:
    """By name. `ssh_password` is one that a person typed; `nodes` gets what nodes of GPU Cluster Status Monitor say of
    themselves."""
    return registry.make_poll_methods(
        settings.pull,
        settings.ssh,
        settings.scrape,
        make_compat_ways(settings.compat, nodes),
        allowed=settings.discovery.allow_addresses,
        ssh_password=ssh_password,
    )
