"""The discovery providers by the name of their list in the settings. Every machine reads configuration with this, so
providers import what only a hub has when they first need it."""

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from gpudeck.discovery.consul import Consul, ConsulSettings
from gpudeck.discovery.inputs import Provider
from gpudeck.discovery.prometheus_sd import FileSd, FileSdSettings, HttpSd, HttpSdSettings
from gpudeck.discovery.static import HostEntry, HostsFile, HostsFileSettings, StaticHosts
from gpudeck.model.errors import Wrong
from gpudeck.model.plugins import Plugin, PluginSettings, make_plugin
from gpudeck.model.target import Target

_PLUGIN_PAUSE: Final = 60.0


class PluginProvider:
    """The entry point is called with the options when the list is first read, in a thread, and returns a `Provider`."""

    def __init__(self, settings: PluginSettings) -> None:
        self.origin = f"the plugin {settings.plugin}"
        self.pause = _PLUGIN_PAUSE
        self._settings = settings
        self._made: tuple[Plugin, Provider] | None = None

    @property
    def problems(self) -> Sequence[str]:
        return () if self._made is None else self._made[1].problems

    async def find(self) -> list[Target]:
        if self._made is None:
            plugin, provider = await asyncio.to_thread(make_plugin, "discovery", self._settings)
            self._made, self.pause = (plugin, provider), provider.pause
        plugin, provider = self._made
        try:
            found = await provider.find()
        except Exception as error:
            raise plugin.explain(error) from error
        if not all(isinstance(target, Target) for target in found):
            raise Wrong(f"{plugin.label} returns something that is no Target.")
        return found

    async def close(self) -> None:
        if self._made is not None:
            await self._made[1].close()


Network = Annotated[str, Meta(min_length=2, max_length=49)]
PROVIDERS: dict[str, Callable[[Any], Provider]] = {
    "hosts_files": HostsFile,
    "file_sd": FileSd,
    "http_sd": HttpSd,
    "consul": Consul,
    "plugins": PluginProvider,
}
"""In the order in which the first of two that name a host counts."""


class DiscoverySettings(Struct, frozen=True):
    """Lists of hosts besides `hosts`. The same host in two places is read as the first of them says."""

    hosts_files: list[HostsFileSettings] = field(default_factory=list)
    """Files with one host a line."""
    file_sd: list[FileSdSettings] = field(default_factory=list)
    """Files as Prometheus reads them."""
    http_sd: list[HttpSdSettings] = field(default_factory=list)
    """Addresses as Prometheus asks them."""
    consul: list[ConsulSettings] = field(default_factory=list)
    """Services in Consul."""
    plugins: list[PluginSettings] = field(default_factory=list)
    """Lists of hosts that plugins read; see docs/extend.md."""
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
    """A provider for everything that is set, the hosts of the file first. Opens nothing and reads nothing yet."""
    return HostLists(hosts, discovery, origin).providers


class HostLists:
    """The lists of hosts that the settings name, between those of `first` and `last`. When the settings change, a list
    that both name goes on as it is: its hosts are read without a gap."""

    def __init__(
        self,
        hosts: list[HostEntry],
        discovery: DiscoverySettings,
        origin: str,
        *,
        first: Sequence[Provider] = (),
        last: Sequence[Provider] = (),
    ) -> None:
        self._origin = origin
        self._first = first
        self._last = last
        self._named: list[tuple[object, Provider]] = []
        self.change(hosts, discovery)

    @property
    def providers(self) -> list[Provider]:
        return [*self._first, *(provider for _, provider in self._named), *self._last]

    def change(self, hosts: list[HostEntry], discovery: DiscoverySettings) -> None:
        """What `hosts` and `discovery` name from now on. Opens nothing, closes nothing."""
        named: list[tuple[str, Any]] = [("hosts", hosts)] if hosts else []
        named += [(kind, settings) for kind in PROVIDERS for settings in getattr(discovery, kind)]
        before, self._named = self._named, []
        for key in named:
            # The same list twice is two lists.
            known = next((one for one in before if one[0] == key and one not in self._named), None)
            self._named.append(known or (key, self._make(*key)))

    def _make(self, kind: str, settings: Any) -> Provider:
        if kind != "hosts":
            return PROVIDERS[kind](settings)
        return StaticHosts([target for entry in settings for target in entry.targets(self._origin, is_operators=True)])
