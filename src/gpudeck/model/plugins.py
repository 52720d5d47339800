"""Plugins: parts of other packages, found through the entry points of what is installed beside gpudeck.

An entry point of the group `gpudeck.collectors`, `gpudeck.sources` and so on names what makes the part. A built-in part
of the same name counts before a plugin. Whatever a plugin does wrong is told with its name and that of its package, and
concerns nobody else. docs/extend.md is the guide.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct, field

from gpudeck.model.errors import GpudeckError, PluginError, Refused, UsageError, Wrong

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PluginKind = Literal["collectors", "sources", "discovery", "schedulers", "notifiers", "verdict_rules"]
KINDS: Final[tuple[PluginKind, ...]] = (
    *("collectors", "sources", "discovery", "schedulers"),
    *("notifiers", "verdict_rules"),
)
log = logging.getLogger(__name__)


class PluginSettings(Struct, frozen=True):
    """One use of a plugin."""

    plugin: Annotated[str, Meta(min_length=1, max_length=128)]
    """The plugin's name; its documentation has its options."""
    options: dict[str, str] = field(default_factory=dict)
    """What the plugin wants to know, as texts."""


class Plugin(NamedTuple):
    """`label` names it for people: "the plugin spool (gpudeck-spool 1.2)"."""

    kind: PluginKind
    name: str
    label: str
    entry: "EntryPoint"

    def load(self) -> Any:
        """What the entry point names; imports the package. Raises Wrong."""
        try:
            return self.entry.load()
        except Exception as error:
            raise self.explain(error) from error

    def explain(self, error: Exception) -> PluginError:
        """What went wrong in it, with its name. What it raised on purpose keeps its kind."""
        if isinstance(error, PluginError):
            return type(error)(f"{self.label}: {error.message}", error.hint)
        if isinstance(error, GpudeckError):
            return Refused(f"{self.label}: {error.message}", error.hint)
        failed = Wrong(f"{self.label} failed: {type(error).__name__}: {error}"[:500] + ".")
        failed.__cause__ = error
        return failed


@cache
def find_plugins(kind: PluginKind) -> Mapping[str, Plugin]:
    """By name. Imports none of them; takes some 10 ms once."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not for the processes that read GPUs

    found: dict[str, Plugin] = {}
    for entry in entry_points(group=f"gpudeck.{kind}"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "of an unknown package"
        plugin = Plugin(kind, entry.name, f"the plugin {entry.name} ({package})", entry)
        if entry.name in found:
            log.warning("%s is left out: %s has the same name", plugin.label, found[entry.name].label)
        found.setdefault(entry.name, plugin)
    return found


def find_plugin(kind: PluginKind, name: str) -> Plugin:
    """Raises UsageError where none of that name is installed."""
    plugins = find_plugins(kind)
    if name not in plugins:
        there = f"There are {', '.join(plugins)}." if plugins else f"No package with gpudeck.{kind} is installed here."
        raise UsageError(f"no plugin for {kind} is called {name!r}.", there)
    return plugins[name]
