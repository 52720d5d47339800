"""The discovery providers by the name of their list in the settings, and these settings.

Configuration is read with this on every machine, so providers import what only a hub has when they first need it.
"""

from collections.abc import Callable
from ipaddress import ip_network
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from gpudeck.discovery.base import Provider
from gpudeck.discovery.consul import Consul, ConsulSettings
from gpudeck.discovery.hosts_file import HostsFile, HostsFileSettings
from gpudeck.discovery.prometheus_sd import FileSd, FileSdSettings, HttpSd, HttpSdSettings
from gpudeck.discovery.static import HostEntry, StaticHosts

Network = Annotated[str, Meta(min_length=2, max_length=49)]
PROVIDERS: dict[str, Callable[[Any], Provider]] = {
    "hosts_files": HostsFile,
    "file_sd": FileSd,
    "http_sd": HttpSd,
    "consul": Consul,
}
"""In the order in which the first of two that name a host counts."""


class DiscoverySettings(Struct, frozen=True):
    """Where hosts are found besides `hosts`. The same host in two places is read as the first of them says."""

    hosts_files: list[HostsFileSettings] = field(default_factory=list)
    """Files with one host a line."""
    file_sd: list[FileSdSettings] = field(default_factory=list)
    """Files as Prometheus reads them."""
    http_sd: list[HttpSdSettings] = field(default_factory=list)
    """Addresses as Prometheus asks them."""
    consul: list[ConsulSettings] = field(default_factory=list)
    """Services in Consul."""
    allow_addresses: list[Network] = field(default_factory=list)
    """Networks such as 127.0.0.0/8 in which hosts of file_sd, http_sd and Consul, and hosts that were added with
    `gpudeck hosts add` or on the page, may have loopback, link-local, multicast or cloud metadata addresses. Otherwise
    the hub does not connect to these. Hosts of `hosts` and `hosts_files` may have any address."""

    def __post_init__(self) -> None:
        for network in self.allow_addresses:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f"allow_addresses has {network!r}, which is no network such as 127.0.0.0/8") from None


def make_providers(
    hosts: list[HostEntry], discovery: DiscoverySettings, origin: str = "gpudeck.yaml"
) -> list[Provider]:
    """A provider for everything that is set, the hosts of the file itself first. Opens nothing and reads nothing yet.

    `origin` names the file that holds `hosts`.
    """
    providers: list[Provider] = []
    if hosts:
        providers.append(
            StaticHosts([target for entry in hosts for target in entry.targets(origin, is_operators=True)])
        )
    for name, make in PROVIDERS.items():
        providers += map(make, getattr(discovery, name))
    return providers
