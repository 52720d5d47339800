"""Prometheus' text format, as agents and the hub write it."""

from collections.abc import Mapping, Sequence

from gpudeck.model.catalog import Kind, Metric
from gpudeck.model.report import Number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Sample = tuple[Mapping[str, str], Number]
"""Labels and a value."""


def write_family(name: str, kind: str, about: str, samples: Sequence[Sample]) -> list[str]:
    """The lines of one name with all its samples, which belong together; none where there is no sample."""
    if not samples:
        return []
    return [*write_head(name, kind, about), *(f"{name}{write_labels(labels)} {value!r}" for labels, value in samples)]


def write_head(name: str, kind: str, about: str) -> tuple[str, str]:
    """`about` is our own text: it is not escaped."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def write_labels(labels: Mapping[str, str]) -> str:
    """In braces, escaped; nothing at all where there are none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def name_of(metric: Metric) -> str:
    """Its name there: that of the catalog, after what it is measured on."""
    return f"gpudeck_{metric.scope.value}_{metric.name}"


def kind_of(metric: Metric) -> str:
    """What Prometheus calls it."""
    return "counter" if metric.kind is Kind.COUNTER else "gauge"
