"""Optional parts: the extras of the install (`gpudeck[slack]`), each imported only where it is configured, and plugins.

A plugin is found through the entry points of other installed packages. An entry point of the group
`gpudeck.collectors`, `gpudeck.sources` and so on names its factory. A built-in part of the same name takes precedence.
Errors of a plugin name it and its package, and affect nothing else. docs/extend.md is the guide.
"""

import logging
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
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
    """Options of the plugin, as strings."""


class Plugin(NamedTuple):
    """`label` names it for people: "the plugin spool (gpudeck-spool 1.2)"."""

    kind: PluginKind
    name: str
    label: str
    entry: "EntryPoint"

    def load(self) -> Any:
        """The object of the entry point; imports the package. Raises Wrong."""
        try:
            return self.entry.load()
        except Exception as error:
            raise self.explain(error) from error

    def explain(self, error: Exception) -> PluginError:
        """An error of the plugin, with its name. Errors of gpudeck's error tree keep their kind."""
        if isinstance(error, PluginError):
            return type(error)(f"{self.label}: {error.message}", error.hint)
        if isinstance(error, GpudeckError):
            return Refused(f"{self.label}: {error.message}", error.hint)
        failed = Wrong(f"{self.label} failed: {type(error).__name__}: {error}"[:500] + ".")
        failed.__cause__ = error
        return failed


@cache
def find_plugins(kind: PluginKind) -> Mapping[str, Plugin]:
    """All plugins of a kind by name, without importing them; takes about 10 ms once."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not for the processes that read GPUs

    found: dict[str, Plugin] = {}
    for entry in entry_points(group=f"gpudeck.{kind}"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "of an unknown package"
        plugin = Plugin(kind, entry.name, f"the plugin {entry.name} ({package})", entry)
        if entry.name in found:
            log.warning("%s is left out: %s has the same name", plugin.label, found[entry.name].label)
        found.setdefault(entry.name, plugin)
    return found


def make_plugin(kind: PluginKind, settings: PluginSettings) -> tuple[Plugin, Any]:
    """A plugin, and what its entry point makes of the options. Imports the package. Raises PluginError."""
    plugins = find_plugins(kind)
    if (plugin := plugins.get(settings.plugin)) is None:
        hint = f"There are {', '.join(plugins)}." if plugins else f"No package with gpudeck.{kind} is installed here."
        raise Wrong(f"no plugin for {kind} is called {settings.plugin!r}.", hint)
    make = plugin.load()
    try:
        return plugin, make(settings.options)
    except Exception as error:
        raise plugin.explain(error) from error


Extra = Literal["hub", "ssh", "top", "slack", "postgresql", "apprise", "cluster", "export", "mcp"]
_NEEDED: dict[Extra, tuple[str, ...]] = {
    "hub": ("litestar", "sqlalchemy", "numpy"),
    "ssh": ("asyncssh",),
    "top": ("textual",),
    "slack": ("slack_sdk", "aiohttp"),
    "postgresql": ("asyncpg",),
    "apprise": ("apprise",),
    "cluster": ("nats", "asyncpg"),
    "export": ("pyarrow",),
    "mcp": ("mcp",),
}


HUB_PYTHON = (3, 11)
"""The oldest Python for a hub. The base install (agent and command line) supports 3.10."""


def need_hub_python(feature: str) -> None:
    """Raises UsageError on a Python that is too old for `feature`, a part of the hub."""
    if sys.version_info < HUB_PYTHON:
        raise UsageError(
            f"{feature} needs Python 3.{HUB_PYTHON[1]} or newer, and this is {platform.python_version()}.",
            "Agent and command line work with it: install the hub with a newer Python.",
        )


def is_installed(extra: Extra) -> bool:
    return all(find_spec(name) is not None for name in _NEEDED[extra])


def need(extra: Extra, feature: str) -> None:
    """Raises UsageError if the extra that `feature` needs is not installed: "gpudeck top", "sending mail"."""
    if not is_installed(extra):
        raise missing(extra, feature)


def missing(extra: Extra, feature: str) -> UsageError:
    """The error that names the extra, and the command that installs it into this environment."""
    return UsageError(f"{feature} needs gpudeck[{extra}], which is not installed.", f"Install it: {pip_command(extra)}")


def pip_command(extra: Extra) -> str:
    """The pip command for this environment. It contacts no index for packages that are installed already."""
    return f"{sys.executable} -m pip install 'gpudeck[{extra}]'"
