"""A scheduler that a plugin reads: `plugins` below `schedulers` names it."""

import asyncio
from typing import Final

from gpudeck.model.errors import UsageError, Wrong
from gpudeck.model.plugins import Plugin, PluginSettings, find_plugin
from gpudeck.schedulers.base import Scheduler, SchedulerState

_PAUSE: Final = 30.0


class PluginScheduler:
    """The entry point is called with the options at the first reading, in a thread, and returns a `Scheduler`."""

    def __init__(self, settings: PluginSettings) -> None:
        self.name = settings.options.get("name", settings.plugin)
        self.origin = f"the plugin {settings.plugin}" if self.name == settings.plugin else self.name
        self.pause = _PAUSE
        self._settings = settings
        self._made: tuple[Plugin, Scheduler] | None = None

    async def read(self) -> SchedulerState:
        if self._made is None:
            self._made = await asyncio.to_thread(self.make)
            self.pause = self._made[1].pause
        plugin, scheduler = self._made
        try:
            state = await scheduler.read()
        except Exception as error:
            raise plugin.explain(error) from error
        if not isinstance(state, SchedulerState):
            raise Wrong(f"{plugin.label} returns something that is no SchedulerState.")
        return state

    def make(self) -> tuple[Plugin, Scheduler]:
        """The plugin and what it makes of the options. Raises PluginError."""
        try:
            plugin = find_plugin("schedulers", self._settings.plugin)
        except UsageError as error:
            raise Wrong(error.message, error.hint) from error
        make = plugin.load()
        try:
            return plugin, make(self._settings.options)
        except Exception as error:
            raise plugin.explain(error) from error
