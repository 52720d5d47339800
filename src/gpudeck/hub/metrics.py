"""Believe a reported value or not: the catalog's ranges, applied to what came in."""

import math

from gpudeck.model.catalog import Metric
from gpudeck.model.report import Number

Bounds = tuple[tuple[str, float, float], ...]
"""Name, lowest and highest believable value of each metric of a scope."""


def bounds_of(catalog: dict[str, Metric]) -> Bounds:
    return tuple((metric.name, metric.low, metric.high) for metric in catalog.values())


def check_metrics(
    metrics: dict[str, Number], unknown: dict[str, str], bounds: Bounds
) -> tuple[dict[str, Number | None], dict[str, str], int]:
    """Every metric's value, None where it is unknown; why it is; and how many values could not be believed."""
    values: dict[str, Number | None] = {}
    reasons: dict[str, str] = {}
    rejected = 0
    for name, low, high in bounds:
        value = metrics.get(name)
        if value is None:
            values[name] = None
            reasons[name] = unknown.get(name, "not reported")
        elif low <= value <= high:
            values[name] = value
        else:
            # NaN and the infinities land here too: every comparison with NaN is false.
            values[name] = None
            reasons[name] = f"the agent sent {value!r}, which cannot be" if math.isfinite(value) else "not a number"
            rejected += 1
    return values, reasons, rejected
