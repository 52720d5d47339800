"""Believe a reported value or not: the catalog's ranges, applied to what came in."""

import math
from typing import Any

from gpudeck.model.catalog import Metric
from gpudeck.model.report import Number

View = dict[str, Any]
"""A GPU or a host as everybody outside sees it: exactly the fields of its struct in `model.view`."""

Bounds = tuple[tuple[str, float, float], ...]
"""Name, lowest and highest believable value of each metric of a scope."""


def bounds_of(catalog: dict[str, Metric]) -> Bounds:
    return tuple((metric.name, metric.low, metric.high) for metric in catalog.values())


def note_metrics(
    view: View,
    changes: View,
    metrics: dict[str, Number],
    unknown: dict[str, str],
    bounds: Bounds,
    *,
    absent: str = "not reported",
) -> tuple[dict[str, str], int]:
    """Put every metric whose value is not the one in `view` into `changes`, None where it is unknown.

    `absent` is the reason of those that came with neither a value nor a reason. Returns the reasons of all that are
    unknown, and how many values were sent that could not be believed.
    """
    reasons: dict[str, str] = {}
    rejected = 0
    for name, low, high in bounds:
        value = metrics.get(name)
        # NaN is not believed either: every comparison with it is false.
        if value is None or not low <= value <= high:
            rejected += value is not None
            reasons[name] = unknown.get(name, absent) if value is None else _disbelief(value)
            value = None
        if value != view[name]:
            changes[name] = value
    return reasons, rejected


def note(view: View, changes: View, facts: View) -> None:
    """Put the facts that are not as in `view` into `changes`."""
    for name, value in facts.items():
        if value != view[name]:
            changes[name] = value


def _disbelief(value: Number) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number"
    return f"the agent sent {value:.15g}, which cannot be"
