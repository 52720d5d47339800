"""Decides what a hub shows (configured hosts, this machine, or a simulated fleet) and how it reads them."""

from collections.abc import Callable

from msgspec import Struct

from gpudeck.compat.service import make_poll_methods as make_compat_ways
from gpudeck.compat.service import names_hosts as compat_names_hosts
from gpudeck.compat.settings import CompatSettings
from gpudeck.demo.backfill import DAYS
from gpudeck.discovery.registry import DiscoverySettings
from gpudeck.settings import Settings
from gpudeck.sources import registry
from gpudeck.sources.poller import PollMethod

DEMO_HOSTS = 24


class Plan(Struct, frozen=True):
    """What this hub shows. `demo_is_asked` keeps the demo even when real hosts report; `demo_days` is the length of its
    past.

    `named_hosts` is how many hosts an option names; 0 if only the configuration names hosts, None if none are named.
    """

    demo_hosts: int | None = None
    demo_is_asked: bool = False
    demo_days: float = DAYS
    watch_this_machine: bool = False
    named_hosts: int | None = None


def make_plan(settings: Settings, demo_hosts: int | None, has_gpus: Callable[[], bool], *, ssh_hosts: int = 0) -> Plan:
    """The demo if it was requested; else this machine if it has GPUs, and the configured hosts. If there is neither,
    and no predecessor, the demo until a host reports."""
    if demo_hosts is not None:
        return Plan(demo_hosts=demo_hosts, demo_is_asked=True)
    named = ssh_hosts if ssh_hosts or names_hosts(settings) else None
    if settings.local == "auto" and has_gpus():
        return Plan(watch_this_machine=True, named_hosts=named)
    # A site with another monitor, with Slurm or with several hubs has real hosts, and users could take simulated ones
    # for real.
    has_schedulers = bool(settings.schedulers.slurm or settings.schedulers.plugins)
    is_alone = settings.compat == CompatSettings() and settings.cluster is None and not has_schedulers
    is_demo = settings.demo == "auto" and named is None and is_alone
    return Plan(demo_hosts=DEMO_HOSTS if is_demo else None, named_hosts=named)


def names_hosts(settings: Settings) -> bool:
    """Whether the settings name hosts or lists of hosts."""
    is_found = settings.discovery != DiscoverySettings() or compat_names_hosts(settings.compat)
    return bool(settings.hosts) or is_found


def make_poll_methods(settings: Settings, ssh_password: str | None = None) -> dict[str, PollMethod]:
    """The poll methods by source. `ssh_password` was typed by a user."""
    return registry.make_poll_methods(
        settings.pull,
        settings.ssh,
        settings.scrape,
        make_compat_ways(settings.compat),
        allowed=settings.discovery.allow_addresses,
        ssh_password=ssh_password,
    )
