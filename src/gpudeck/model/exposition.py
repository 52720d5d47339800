"""Prometheus' text formats, as written by agents and the hub.

Prometheus has other conventions than the catalog: shares are ratios of 1, clocks are in hertz, counters end in
`_total`. Everything is written in the older text format; `to_openmetrics` converts it on request.
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
"""Memory of a user's processes on a GPU: exposed by agents, and stored in the history of a large site."""
UNITS: Final = ("bytes_per_second", "bytes", "seconds", "ratio", "celsius", "watts", "joules", "hertz")
"""Suffixes of names. A metric with another suffix is a count or a flag."""
GPU_INFO: Final = "gpudeck_gpu_info"
"""Always 1: the labels describe the GPU of a UUID, for joins."""
_OWN = ("host", "gpu", "uuid", "model", "state", "user", "vendor", "pci_address")
"""Labels of our series. `gpu` is the index, or index and instance of a MIG instance, such as 0.3."""
_RESERVED = {*_OWN, "job", "instance", "le", "quantile", "alertname", "severity"}
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\""})
_COUNTED = {"cpu_count": "cpus", "nvlink_active_count": "nvlinks_active", "nvlink_inactive_count": "nvlinks_inactive"}
"""Counts that go up and down: Prometheus reserves the suffix `_count` for histograms."""

Sample = tuple[Mapping[str, str], Number]
"""Labels and a value."""


class ExposedMetric(Struct, frozen=True):
    """A metric of the catalog as exposed: its value is that of the catalog `* times / per`."""

    name: str
    kind: str
    times: int = 1
    per: int = 1

    @property
    def is_scaled(self) -> bool:
        return self.times != self.per

    def scale(self, value: Number) -> Number:
        """A value of the catalog in the unit of the exposed metric."""
        return value * self.times / self.per if self.is_scaled else value


def expose(metric: Metric) -> ExposedMetric:
    """The exposed name and unit of a metric."""
    start, name = f"gpudeck_{metric.scope.value}_", metric.name
    if metric.unit == "percent":
        return ExposedMetric(f"{start}{name.removesuffix('_percent')}_ratio", "gauge", per=100)
    if metric.unit == "megahertz":
        return ExposedMetric(f"{start}{name.removesuffix('_mhz')}_hertz", "gauge", times=1_000_000)
    # The uptime is a gauge: its rate is meaningless.
    if metric.kind is Kind.COUNTER and metric.rollup is not Rollup.LAST:
        return ExposedMetric(f"{start}{name.removesuffix('_count')}_total", "counter")
    return ExposedMetric(start + _COUNTED.get(name, name), "gauge")


def label_name(text: str) -> str:
    """A valid Prometheus label name."""
    return _NO_NAME.sub("_", text)


def name_host_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The host's own labels as labels of its series. A name that we or Prometheus use gets the prefix `label_`. Of two
    with one name the first counts; empty values are dropped."""
    found: dict[str, str] = {}
    for name, value in sorted(labels.items()):
        plain = label_name(name)
        if plain in _RESERVED or plain.startswith("__") or not plain or plain[0].isdigit():
            plain = f"label_{plain}"
        if value:
            found.setdefault(plain, value)
    return found


def write_family(name: str, kind: str, about: str, samples: Sequence[Sample]) -> list[str]:
    """The lines of one metric with all its samples, which must be adjacent; empty without samples."""
    if not samples:
        return []
    return [*write_head(name, kind, about), *(f"{name}{write_labels(labels)} {value!r}" for labels, value in samples)]


def write_head(name: str, kind: str, about: str) -> tuple[str, str]:
    """`about` is our own text and needs no escaping."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def write_labels(labels: Mapping[str, str]) -> str:
    """In braces, escaped; empty without labels. Control characters are escaped too, because people read these pages in
    terminals."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics, as Prometheus' own does."""
    weights = read_weights(accept)
    return weights.get("application/openmetrics-text", 0.0) > weights.get("text/plain", 0.0)


def read_weights(header: str) -> dict[str, float]:
    """The entries of an Accept-like header with their weights; an invalid weight counts as 0."""
    found: dict[str, float] = {}
    for item in header.split(",")[:20]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        found[name] = max(found.get(name, 0.0), _weight(parameters))
    return found


def to_openmetrics(page: bytes) -> bytes:
    """Our exposition converted to OpenMetrics: with units, counter families without their suffix, and `# EOF`."""
    return rewrite_heads(page) + OPENMETRICS_END


def rewrite_heads(part: bytes) -> bytes:
    """Converts a part that ends with a line. Only HELP and TYPE lines change; text from hosts is in labels, which
    contain no line breaks."""
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
