"""Which fleet a row is about: what happens in a demo is kept apart from what happens to real hosts. Pure."""

from typing import Final

REAL: Final = "real"
"""The fleet that is not simulated."""


def name_fleet(demo: int | None) -> str:
    """`demo` is how many hosts are simulated, None when none are."""
    return REAL if demo is None else f"demo-{demo}"
