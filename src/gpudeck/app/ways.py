"""How hosts are read on each way in, as the settings say. What a way needs is imported only where hosts use it."""

from collections.abc import Callable
from functools import partial

import msgspec

from gpudeck.compat.gpu_cluster_status.nodes import Nodes
from gpudeck.compat.ways import make_ways as make_compat_ways
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target
from gpudeck.settings import Settings
from gpudeck.sources.base import MakeSource, Source
from gpudeck.sources.poller import Way


def make_ways(settings: Settings, ssh_password: str | None = None, nodes: Nodes | None = None) -> dict[str, Way]:
    """All ways on which the hub reads hosts by itself. Opens nothing. `ssh_password` is one that a person typed;
    `nodes` is for what nodes of GPU Cluster Status Monitor tell of themselves."""
    ways = {
        "pull": Way(_later(lambda: _pull(settings)), settings.pull.interval, settings.pull.deadline),
        "ssh": Way(_later(lambda: _ssh(settings, ssh_password)), settings.ssh.interval, settings.ssh.deadline),
        "scrape": Way(_later(lambda: _scrape(settings)), settings.scrape.interval, settings.scrape.deadline),
        **make_compat_ways(settings.compat, nodes),
    }
    allowed = tuple(settings.discovery.allow_addresses)
    return {name: msgspec.structs.replace(way, make=_guarded(way.make, allowed)) for name, way in ways.items()}


def _guarded(make: MakeSource, allowed: tuple[str, ...]) -> MakeSource:
    """Hosts that the operator did not name by hand are read at local addresses only where these are `allowed`."""

    def make_guarded(target: Target) -> Source:
        return make(target if target.is_operators else msgspec.structs.replace(target, local_networks=allowed))

    return make_guarded


def _later(find: Callable[[], MakeSource]) -> MakeSource:
    """Finds what makes the sources when the first host needs one, and once for all hosts."""
    found: list[MakeSource] = []

    def make(target: Target) -> Source:
        if not found:
            found.append(find())
        return found[0](target)

    return make


def _pull(settings: Settings) -> MakeSource:
    from gpudeck.sources.pull import sources_of  # noqa: PLC0415 - see above

    return sources_of(settings.pull)


def _ssh(settings: Settings, password: str | None) -> MakeSource:
    try:
        from gpudeck.sources.ssh import make  # noqa: PLC0415 - see above
    except ImportError as error:
        raise UsageError(f"reading hosts over SSH needs {error.name}.", "pip install 'gpudeck[ssh]'") from error
    return make(settings.ssh, password)


def _scrape(settings: Settings) -> MakeSource:
    from gpudeck.sources.scrape import make  # noqa: PLC0415 - see above

    return partial(make, settings=settings.scrape)
