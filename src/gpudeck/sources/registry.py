"""The registry of sources: how hosts are read over each of them. A source's dependencies are imported only when hosts
use it."""

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

from gpudeck.model.errors import PluginError, UsageError, Wrong
from gpudeck.model.plugins import Plugin, find_plugins, need_hub_python
from gpudeck.model.target import Target
from gpudeck.sources.base import (
    FetchedReport,
    MakeSource,
    PullSettings,
    ScrapeSettings,
    Source,
    SourcePlugin,
    SshSettings,
)
from gpudeck.sources.poller import PollMethod


def make_poll_methods(
    pull: PullSettings,
    ssh: SshSettings,
    scrape: ScrapeSettings,
    others: Mapping[str, PollMethod],
    *,
    allowed: Sequence[str] = (),
    ssh_password: str | None = None,
) -> dict[str, PollMethod]:
    """All sources that the hub polls. `allowed` are local networks in which hosts may be polled that the operator did
    not name."""
    methods = {
        "pull": PollMethod(
            imported("gpudeck.sources.poller:PullSource", pull), pull.interval, pull.deadline, pull.port
        ),
        "ssh": PollMethod(_over_ssh(ssh, ssh_password), ssh.interval, ssh.deadline, ssh.port or 22),
        "scrape": PollMethod(
            imported("gpudeck.sources.scrape:make", scrape), scrape.interval, scrape.deadline, scrape.port
        ),
        **others,
    }
    methods |= {
        name: _make_plugin_method(plugin) for name, plugin in find_plugins("sources").items() if name not in methods
    }
    return {
        name: msgspec.structs.replace(method, make=_guarded(method.make, tuple(allowed)))
        for name, method in methods.items()
    }


def _guarded(make: MakeSource, allowed: tuple[str, ...]) -> MakeSource:
    """Hosts that the operator did not name are polled at local addresses only if these are `allowed`."""

    def make_guarded(target: Target) -> Source:
        return make(target if target.is_operators else msgspec.structs.replace(target, local_networks=allowed))

    return make_guarded


def imported(place: str, *arguments: Any) -> MakeSource:
    """Creates sources with the factory `module:name`, called with the target and `arguments`; imported when the first
    host needs it."""

    def make(target: Target) -> Source:
        module, _, name = place.partition(":")
        source: Source = getattr(importlib.import_module(module), name)(target, *arguments)
        return source

    return make


def import_ssh() -> ModuleType:
    """Raises UsageError if its library is not installed."""
    need_hub_python("reading hosts over SSH")
    try:
        return importlib.import_module("gpudeck.sources.ssh")
    except ImportError as error:
        raise UsageError(f"reading hosts over SSH needs {error.name}.", "pip install 'gpudeck[ssh]'") from error


def _over_ssh(settings: SshSettings, password: str | None) -> MakeSource:
    """One for all hosts: they share keys, known hosts and jump hosts."""
    find = cache(lambda: import_ssh().make(settings, password))
    return lambda target: find()(target)  # noqa: PLW0108 - found when the first host needs it


class PluginSource:
    """The source of a plugin. Its errors name the plugin."""

    def __init__(self, plugin: Plugin, source: Source) -> None:
        self._plugin = plugin
        self._source = source

    async def read(self, now: float) -> FetchedReport:
        try:
            found = await self._source.read(now)
        except Exception as error:
            raise self._plugin.explain(error) from error
        if not isinstance(found, FetchedReport):
            raise Wrong(f"{self._plugin.label} returns something that is no FetchedReport.")
        return found

    async def close(self) -> None:
        await self._source.close()


def _make_plugin_method(plugin: Plugin) -> PollMethod:
    """Loads the plugin. A failure is a problem of each of its hosts."""
    found: Any = None
    trouble: PluginError | None = None
    try:
        found = plugin.load()
        if not isinstance(found, SourcePlugin):
            trouble = Wrong(f"{plugin.label} is no SourcePlugin.")
    except PluginError as error:
        trouble = error

    def make(target: Target) -> Source:
        if trouble is not None:
            raise trouble
        try:
            return PluginSource(plugin, found.make(target))
        except Exception as error:
            raise plugin.explain(error) from error

    own = found if trouble is None else SourcePlugin(make=make)
    return PollMethod(make, own.interval, own.deadline, own.port)
