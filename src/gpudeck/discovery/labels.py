"""Labels of a host as they come from outside, within the bounds that a report's labels have."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from gpudeck.model.report import Word

MAX_LABELS = 64
MAX_CHARACTERS = 256

Labels = Annotated[dict[Word, Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(max_length=MAX_LABELS)]


def bound_labels(labels: Mapping[Any, object]) -> tuple[dict[str, str], str]:
    """The labels that fit, and what is to be said of those that do not: nothing where all fit."""
    kept: dict[str, str] = {}
    for name, value in labels.items():
        if _fits(name, value) and len(kept) < MAX_LABELS:
            kept[str(name)] = str(value)
    left_out = len(labels) - len(kept)
    if not left_out:
        return kept, ""
    return kept, f"{left_out} of its labels left out: at most {MAX_LABELS}, of at most {MAX_CHARACTERS} characters each"


def _fits(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return 0 < len(name) <= MAX_CHARACTERS and len(value) <= MAX_CHARACTERS
