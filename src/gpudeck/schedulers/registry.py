"""The schedulers by the name of their list in the settings, and these settings."""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from gpudeck.model.plugins import PluginSettings
from gpudeck.model.settings import Duration
from gpudeck.schedulers.base import Scheduler
from gpudeck.schedulers.plugin import PluginScheduler
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

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
