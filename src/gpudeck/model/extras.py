"""The optional parts of the install: `gpudeck[slack]` and the like. Each is imported only where it is configured."""

import platform
import sys
from importlib.util import find_spec
from typing import Literal

from gpudeck.model.errors import UsageError

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
"""The oldest Python for a hub. The base install, agent and command line, works with 3.10."""


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
    """Raises UsageError where the extra that `feature` needs is not installed: "gpudeck top", "sending mail"."""
    if not is_installed(extra):
        raise missing(extra, feature)


def missing(extra: Extra, feature: str) -> UsageError:
    """The error that names the extra, and the command that installs it into this environment."""
    return UsageError(f"{feature} needs gpudeck[{extra}], which is not installed.", f"Install it: {pip_command(extra)}")


def pip_command(extra: Extra) -> str:
    """For this environment, wherever gpudeck came from: pip asks no index for what is installed already."""
    return f"{sys.executable} -m pip install 'gpudeck[{extra}]'"
