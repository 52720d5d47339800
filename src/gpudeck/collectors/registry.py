"""Which collectors there are, by name. A name is all that is known here: nothing is imported before it is asked for.

Whoever has a collector of their own names it as `package.module:Factory`; the built-in ones use the same door.
"""

import importlib

from gpudeck.collectors.base import Collector
from gpudeck.model.errors import UsageError

COLLECTORS: dict[str, str] = {
    "host": "gpudeck.collectors.host:HostCollector",
    "nvml": "gpudeck.collectors.nvml:NvmlCollector",
    "drm": "gpudeck.collectors.drm:DrmCollector",
}


def make_collector(name: str) -> Collector:
    """The collector of that name, or of that `package.module:Factory`. Raises UsageError where there is none."""
    module_name, _, factory_name = COLLECTORS.get(name, name).partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"There is no collector {name!r}: {error}.", f"Known: {', '.join(COLLECTORS)}.") from error
    collector: Collector = factory()
    return collector
