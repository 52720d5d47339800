"""Hosts that a plugin reads: `via` of a host is the plugin's name."""

from typing import Any

from gpudeck.model.errors import PluginError, Wrong
from gpudeck.model.plugins import Plugin
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, Source, SourcePlugin
from gpudeck.sources.poller import PollMethod


class PluginSource:
    """Names the plugin in whatever goes wrong."""

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


def make_method(plugin: Plugin) -> PollMethod:
    """Loads the plugin. One that fails is a problem of each host that it should read."""
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
