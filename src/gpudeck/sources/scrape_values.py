"""Numbers of series become metrics of the catalog, or are unknown with the reason; the same for GPUs and hosts."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpudeck.model.catalog import Metric
from gpudeck.model.report import Number
from gpudeck.sources.scrape_tables import Exporter, Row

Groups = dict[str, list[Row]]


class Measured(NamedTuple):
    """Metrics with their values, rounded as the catalog says, and the unknown ones with their reasons."""

    metrics: dict[str, Number]
    unknown: dict[str, str]


def measure(metric: Metric, rows: Iterable[Row], values: Mapping[str, float], exporter: Exporter) -> Number | str:
    """The metric's value by the first row that gives one, or why there is none."""
    reasons, missing = [], []
    for row in rows:
        value = _evaluate(row, values, exporter)
        if isinstance(value, float):
            return _believe(metric, value, exporter)
        if value is None:
            missing += [name for name in (*row.series, *row.minus) if name not in values]
        else:
            reasons.append(value)
    if reasons:
        return reasons[0]
    absent = f": {missing[0]} is not on its page" if missing else ""
    return f"{exporter.name} does not tell{absent}"


def _evaluate(row: Row, values: Mapping[str, float], exporter: Exporter) -> float | str | None:
    """The row's value; a text says why there is none, None that a series is not on the page."""
    total = 0.0
    for name, sign in (*((name, 1) for name in row.series), *((name, -1) for name in row.minus)):
        value = values.get(name)
        if value is None:
            return None
        reason = exporter.blank(value) or explain_no_number(value, exporter)
        if reason:
            return reason
        total += sign * value
    if row.bits is not None:
        return float(bool(int(total) & row.bits)) if math.isfinite(total) else None
    return row.zero if row.zero and total == 0 else total * row.factor


def explain_no_number(value: float, exporter: Exporter) -> str | None:
    """Why it is not a number; None when it is one."""
    return None if math.isfinite(value) else f"{exporter.name} has no value ({value})"


def _believe(metric: Metric, value: float, exporter: Exporter) -> Number | str:
    rounded = metric.round(value) if math.isfinite(value) else value
    if metric.low <= rounded <= metric.high:
        return rounded
    return f"{exporter.name} gives {value:.6g}, which cannot be"


def group_rows(rows: Iterable[Row]) -> Groups:
    """The rows by the metric they give, in their order."""
    groups: Groups = {}
    for row in rows:
        groups.setdefault(row.to, []).append(row)
    return groups
