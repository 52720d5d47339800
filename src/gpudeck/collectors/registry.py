"""Which collectors of GPUs there are, by name. Nothing is imported before it is asked for.

Whoever has a collector of their own names it as `package.module:factory`; the built-in ones use the same door. Each
runs in a child process of its own (`child`).
"""

import importlib
from collections.abc import Callable

from gpudeck.collectors.base import Collector
from gpudeck.collectors.settings import CollectorSettings
from gpudeck.model.errors import UsageError

COLLECTORS: dict[str, str] = {
    "nvml": "gpudeck.collectors.nvml:make",
    "drm": "gpudeck.collectors.drm:make",
    "nvidia_smi": "gpudeck.collectors.nvidia_smi:make",
}


Factory = Callable[[CollectorSettings], Collector]


def find_factory(name: str) -> Factory:
    """What makes the collector of that name, or `package.module:factory` itself. Raises UsageError if there is none."""
    module_name, _, factory_name = COLLECTORS.get(name, name).partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"There is no collector {name!r}: {error}.", f"Known: {', '.join(COLLECTORS)}.") from error
    made: Factory = factory
    return made
