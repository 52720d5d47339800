"""gpudeck shows every GPU of a fleet of servers: which are free, who uses what and how well.

    from gpudeck import Client, AsyncClient, here

Start reading at docs/way-of-a-report.md: the packages below stand in the order in which a report visits them.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ERRORS = ("Busy", "Forbidden", "ImpossibleRequest", "NotFound", "NotLoggedIn", "ReservationTaken", "WaitTimeout")
# Imported when they are first used: an agent needs none of it. __init__.pyi has their types.
_PUBLIC = {
    "AsyncClient": "client.asynchronous",
    "Client": "client.client",
    "NotFree": "local",
    "here": "local",
    **dict.fromkeys(_ERRORS, "client.errors"),
    **dict.fromkeys(("GpudeckError", "Unreachable", "UsageError"), "model.errors"),
}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - names


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
