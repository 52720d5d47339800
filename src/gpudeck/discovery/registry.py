"""Which discovery providers there are, by the name of their list in the settings. Nothing is imported before it is
asked for."""

import importlib
from collections.abc import Callable
from typing import Any

from gpudeck.discovery.base import Provider
from gpudeck.discovery.settings import DiscoverySettings
from gpudeck.discovery.static import HostEntry, StaticHosts

PROVIDERS: dict[str, str] = {
    "hosts_files": "gpudeck.discovery.hosts_file:make",
    "file_sd": "gpudeck.discovery.file_sd:make",
    "http_sd": "gpudeck.discovery.http_sd:make",
    "consul": "gpudeck.discovery.consul:make",
}
"""In the order in which the first of two that name a host counts."""


def make_providers(
    hosts: list[HostEntry], discovery: DiscoverySettings, origin: str = "gpudeck.yaml"
) -> list[Provider]:
    """A provider for everything that is set, the hosts of the file itself first. Opens nothing and reads nothing yet.

    `origin` names the file that holds `hosts`.
    """
    providers: list[Provider] = [StaticHosts(hosts, origin)] if hosts else []
    for name in PROVIDERS:
        entries = getattr(discovery, name)
        providers += [_find_factory(name)(entry) for entry in entries]
    return providers


def _find_factory(name: str) -> Callable[[Any], Provider]:
    module_name, _, factory_name = PROVIDERS[name].partition(":")
    factory: Callable[[Any], Provider] = getattr(importlib.import_module(module_name), factory_name)
    return factory
