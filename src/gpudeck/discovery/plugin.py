"""Hosts that a plugin finds: `plugins` below `discovery` names it."""

import asyncio
from collections.abc import Sequence
from typing import Final

from gpudeck.discovery.inputs import Provider
from gpudeck.model.errors import UsageError, Wrong
from gpudeck.model.plugins import Plugin, PluginSettings, find_plugin
from gpudeck.model.target import Target

_PAUSE: Final = 60.0


class PluginProvider:
    """The entry point is called with the options when the list is first read, in a thread, and returns a `Provider`."""

    def __init__(self, settings: PluginSettings) -> None:
        self.origin = f"the plugin {settings.plugin}"
        self.pause = _PAUSE
        self._settings = settings
        self._made: tuple[Plugin, Provider] | None = None

    @property
    def problems(self) -> Sequence[str]:
        return () if self._made is None else self._made[1].problems

    async def find(self) -> list[Target]:
        if self._made is None:
            self._made = await asyncio.to_thread(self.make)
            self.pause = self._made[1].pause
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

    def make(self) -> tuple[Plugin, Provider]:
        """The plugin and what it makes of the options. Raises PluginError."""
        try:
            plugin = find_plugin("discovery", self._settings.plugin)
        except UsageError as error:
            raise Wrong(error.message, error.hint) from error
        make = plugin.load()
        try:
            return plugin, make(self._settings.options)
        except Exception as error:
            raise plugin.explain(error) from error
