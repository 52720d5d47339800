"""Schedulers by the name of their list in the settings: built-in ones and plugins."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from gpudeck.model.errors import Wrong
from gpudeck.model.plugins import Plugin, PluginSettings, make_plugin
from gpudeck.model.settings import Duration
from gpudeck.schedulers.base import Scheduler, SchedulerState
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

_PAUSE: Final = 30.0


class PluginScheduler:
    """A scheduler of a plugin. The entry point is called with the options at the first reading, in a thread, and
    returns a `Scheduler`."""

    def __init__(self, settings: PluginSettings) -> None:
        self.name = settings.options.get("name", settings.plugin)
        self.origin = f"the plugin {settings.plugin}" if self.name == settings.plugin else self.name
        self.pause = _PAUSE
        self._settings = settings
        self._made: tuple[Plugin, Scheduler] | None = None

    async def read(self) -> SchedulerState:
        if self._made is None:
            plugin, scheduler = await asyncio.to_thread(make_plugin, "schedulers", self._settings)
            self._made, self.pause = (plugin, scheduler), scheduler.pause
        plugin, scheduler = self._made
        try:
            state = await scheduler.read()
        except Exception as error:
            raise plugin.explain(error) from error
        if not isinstance(state, SchedulerState):
            raise Wrong(f"{plugin.label} returns something that is no SchedulerState.")
        return state


SCHEDULERS: dict[str, Callable[[Any], Scheduler]] = {"slurm": Slurm, "plugins": PluginScheduler}


class SchedulerSettings(Struct, frozen=True):
    """Schedulers that give GPUs to jobs: what they have allocated is not free."""

    slurm: list[SlurmSettings] = field(default_factory=list)
    """Slurm clusters."""
    plugins: list[PluginSettings] = field(default_factory=list)
    """Schedulers that plugins read; see docs/extend.md."""
    keep: Annotated[Duration, Meta(ge=86_400)] = 2 * 365 * 86_400.0
    """How long a job, and what it used, is kept after its end."""

    def __post_init__(self) -> None:
        names = [one.name for one in self.slurm]
        if len(set(names)) < len(names):
            raise ValueError("slurm has two clusters of the same name: give each a `name` of its own")


def make_schedulers(settings: SchedulerSettings) -> list[Scheduler]:
    return [make(one) for name, make in SCHEDULERS.items() for one in getattr(settings, name)]
