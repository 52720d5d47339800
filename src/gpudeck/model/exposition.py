"""Prometheus' text formats, as agents and the hub write them.

Names and values are what Prometheus asks for, which is not what the catalog has: shares are ratios of 1, clocks are in
hertz, counters end in `_total`. Everything is written in the old text format; `to_openmetrics` makes the newer one of
it for those who ask.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from gpudeck.model.catalog import Kind, Metric, Rollup
from gpudeck.model.report import Number
from gpudeck.model.text import escape

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
OPENMETRICS_END: Final = b"# EOF\n"
USER_MEMORY: Final = "gpudeck_gpu_user_memory_bytes"
"""Memory of a user's processes on a GPU: on an agent's page, and in the store of a large site."""
UNITS: Final = ("bytes_per_second", "bytes", "seconds", "ratio", "celsius", "watts", "joules", "hertz")
"""With which names end. One that ends with another is a number of things, or a yes or no."""
GPU_INFO: Final = "gpudeck_gpu_info"
"""1: which GPU a UUID is, for joins."""
_OWN = ("host", "gpu", "uuid", "model", "state", "user", "vendor", "pci_address")
"""Labels of our series: `gpu` is the index, or index and instance of a MIG instance, such as 0.3."""
_RESERVED = {*_OWN, "job", "instance", "le", "quantile", "alertname", "severity"}
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\""})
_COUNTED = {"cpu_count": "cpus", "nvlink_active_count": "nvlinks_active", "nvlink_inactive_count": "nvlinks_inactive"}
"""Numbers of things that go up and down: `_count` is how Prometheus ends the names of histograms."""

Sample = tuple[Mapping[str, str], Number]
"""Labels and a value."""


class ExposedMetric(Struct, frozen=True):
    """A metric of the catalog as Prometheus has it: a value there is the catalog's `* times / per`."""

    name: str
    kind: str
    times: int = 1
    per: int = 1

    @property
    def is_scaled(self) -> bool:
        return self.times != self.per

    def scale(self, value: Number) -> Number:
        """A value of the catalog in the unit of the name."""
        return value * self.times / self.per if self.is_scaled else value


def expose(metric: Metric) -> ExposedMetric:
    """How a metric is called there, after what it is measured on."""
    start, name = f"gpudeck_{metric.scope.value}_", metric.name
    if metric.unit == "percent":
        return ExposedMetric(f"{start}{name.removesuffix('_percent')}_ratio", "gauge", per=100)
    if metric.unit == "megahertz":
        return ExposedMetric(f"{start}{name.removesuffix('_mhz')}_hertz", "gauge", times=1_000_000)
    # How long a host is up is a time, and its rate means nothing.
    if metric.kind is Kind.COUNTER and metric.rollup is not Rollup.LAST:
        return ExposedMetric(f"{start}{name.removesuffix('_count')}_total", "counter")
    return ExposedMetric(start + _COUNTED.get(name, name), "gauge")


def label_name(text: str) -> str:
    """The characters that Prometheus takes in the name of a label."""
    return _NO_NAME.sub("_", text)


def name_host_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that a site gave a host, as labels of its series. One that is called like a label of ours, or of
    Prometheus, begins with `label_`. Of two that have one name the first counts; one without a value is none."""
    found: dict[str, str] = {}
    for name, value in sorted(labels.items()):
        plain = label_name(name)
        if plain in _RESERVED or plain.startswith("__") or not plain or plain[0].isdigit():
            plain = f"label_{plain}"
        if value:
            found.setdefault(plain, value)
    return found


def write_family(name: str, kind: str, about: str, samples: Sequence[Sample]) -> list[str]:
    """The lines of one name with all its samples, which belong together; none where there is no sample."""
    if not samples:
        return []
    return [*write_head(name, kind, about), *(f"{name}{write_labels(labels)} {value!r}" for labels, value in samples)]


def write_head(name: str, kind: str, about: str) -> tuple[str, str]:
    """`about` is our own text: it is not escaped."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def write_labels(labels: Mapping[str, str]) -> str:
    """In braces, escaped; nothing at all where there are none. What a terminal would act upon is escaped too: people
    read pages as well."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def wants_openmetrics(accept: str) -> bool:
    """Whether a header Accept prefers OpenMetrics, as Prometheus' own does."""
    weights = read_weights(accept)
    return weights.get("application/openmetrics-text", 0.0) > weights.get("text/plain", 0.0)


def read_weights(header: str) -> dict[str, float]:
    """What a header of the Accept family names, with its weights; a weight that is no number counts as 0."""
    found: dict[str, float] = {}
    for item in header.split(",")[:20]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        found[name] = max(found.get(name, 0.0), _weight(parameters))
    return found


def to_openmetrics(page: bytes) -> bytes:
    """A page of ours in OpenMetrics: with units, families of counters named without their ending, and an end."""
    return rewrite_heads(page) + OPENMETRICS_END


def rewrite_heads(part: bytes) -> bytes:
    """The same of a part of a page that ends with a line.

    Only heads change, and they are found by their line: what hosts report stands within labels, where no line ends.
    """
    before, *families = (b"\n" + part).split(b"\n# HELP ")
    return before[1:] + b"".join(map(_rewrite, families))


def _rewrite(family: bytes) -> bytes:
    about, _, rest = family.partition(b"\n")
    kind, _, samples = rest.partition(b"\n")
    full_name, _, text = about.decode().partition(" ")
    name = full_name.removesuffix("_total")
    unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), None)
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind.decode().rpartition(' ')[2]}"]
    if unit is not None:
        lines.append(f"# UNIT {name} {unit}")
    return "\n".join(lines).encode() + b"\n" + samples.rstrip(b"\n") + b"\n"


def _weight(parameters: list[str]) -> float:
    given = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
    try:
        return float(given[0]) if given else 1.0
    except ValueError:
        return 0.0
