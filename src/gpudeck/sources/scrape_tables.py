"""The metric names of each exporter (the tables in `exporters/`), and how their values become metrics. A table contains
facts about another program and no code: a new metric name is a new line there. A series without a valid number becomes
an unknown metric with its reason."""

import logging
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.redaction import clean
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Number
from gpudeck.model.text import show_count


class MetricRow(Struct, frozen=True, forbid_unknown_fields=True):
    """How a metric of the catalog is computed: the sum of `series`, minus `minus`, times `factor`; the first row that
    can be read counts. `bits`: whether any of these is set. `where`: required labels. `zero`: why a 0 means unknown.
    `by_instance`: measured per MIG instance."""

    to: str
    series: list[str]
    minus: list[str] = field(default_factory=list)
    factor: float = 1.0
    bits: int | None = None
    where: dict[str, str] = field(default_factory=dict)
    zero: str | None = None
    by_instance: bool = False


class NoValueRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers that mean "no value"."""

    low: int
    high: int


class Labels(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of labels; of several the first that exists is used."""

    uuid: list[str] = field(default_factory=list)
    index: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    pci: list[str] = field(default_factory=list)
    instance: list[str] = field(default_factory=list)
    instance_uuid: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    driver: list[str] = field(default_factory=list)


class Scaled(Struct, frozen=True, forbid_unknown_fields=True):
    series: str
    factor: float = 1.0


class ProcessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """How processes are listed. The list of a GPU with the series `listed_by` is complete, even if it is empty."""

    listed_by: str
    series: list[str]
    pid: str
    user: str | None = None
    command: str | None = None
    memory: Scaled | None = None
    utilization: Scaled | None = None
    running_seconds: Scaled | None = None

    @property
    def names(self) -> frozenset[str]:
        single = (self.memory, self.utilization, self.running_seconds)
        return frozenset((*self.series, *(part.series for part in single if part)))


class Failed(Struct, frozen=True, forbid_unknown_fields=True):
    series: str
    value: float


class Exporter(Struct, frozen=True, forbid_unknown_fields=True):
    """One exporter, identified by series whose names begin with one of `prefixes`. `identities` are series that only
    carry labels."""

    name: str
    port: int
    prefixes: list[str]
    labels: Labels
    gpu: list[MetricRow] = field(default_factory=list)
    host: list[MetricRow] = field(default_factory=list)
    blanks: list[NoValueRange] = field(default_factory=list)
    identities: list[str] = field(default_factory=list)
    index_series: str | None = None
    uuid_prefix: str = ""
    instance_prefix: str = ""
    processes: ProcessTable | None = None
    processes_reason: str = ""
    failed: Failed | None = None
    names: frozenset[str] = frozenset()
    """Every series that this table reads; derived from the others, like the rows by metric."""
    gpu_rows: dict[str, list[MetricRow]] = field(default_factory=dict)
    host_rows: dict[str, list[MetricRow]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _group(self.gpu, GPU_METRICS, self.gpu_rows)
        _group(self.host, HOST_METRICS, self.host_rows)
        msgspec.structs.force_setattr(self, "names", self._find_names())

    def _find_names(self) -> frozenset[str]:
        rows = [name for row in (*self.gpu, *self.host) for name in (*row.series, *row.minus)]
        failed = [self.failed.series] if self.failed else []
        listed = [self.processes.listed_by, *self.processes.names] if self.processes else []
        index = [self.index_series] if self.index_series else []
        return frozenset((*rows, *failed, *listed, *index, *self.identities))

    def is_recognised_by(self, names: Iterable[str]) -> bool:
        return any(name.startswith(tuple(self.prefixes)) for name in names)

    def blank(self, value: float) -> str | None:
        if any(blank.low <= value <= blank.high for blank in self.blanks):
            return f"{self.name} has no value: not supported by this GPU, or not permitted to read"
        return None


def _group(rows: Iterable[MetricRow], metrics: dict[str, Metric], groups: dict[str, list[MetricRow]]) -> None:
    for row in rows:
        if row.to not in metrics:
            raise ValueError(f"not in the catalog: {row.to}")
        groups.setdefault(row.to, []).append(row)


@cache
def all_exporters() -> tuple[Exporter, ...]:
    folder = resources.files("gpudeck.sources") / "exporters"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Exporter) for file in files)


@cache
def wanted_names() -> frozenset[str]:
    return frozenset().union(*(exporter.names for exporter in all_exporters()))


def measure(metric: Metric, rows: Iterable[MetricRow], values: Mapping[str, float], exporter: Exporter) -> Number | str:
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
    return f"{exporter.name} does not report it{absent}"


def _evaluate(row: MetricRow, values: Mapping[str, float], exporter: Exporter) -> float | str | None:
    """The row's value; a text is the reason why there is none, None means that a series is missing from the page."""
    total = 0.0
    for name, sign in (*((name, 1) for name in row.series), *((name, -1) for name in row.minus)):
        value = values.get(name)
        if value is None:
            return None
        reason = exporter.blank(value) or (None if math.isfinite(value) else f"{exporter.name} has no value ({value})")
        if reason:
            return reason
        total += sign * value
    if row.bits is not None:
        return float(bool(int(total) & row.bits)) if math.isfinite(total) else None
    return row.zero if row.zero and total == 0 else total * row.factor


def _believe(metric: Metric, value: float, exporter: Exporter) -> Number | str:
    rounded = metric.round(value) if math.isfinite(value) else value
    if metric.low <= rounded <= metric.high:
        return rounded
    return f"{exporter.name} gives {value:.6g}, which cannot be"


MAX_SERIES = 10_000
"""The limit of relevant series. 8 GPUs of dcgm-exporter have 232, 16 boards with 7 MIG instances each 4,500; 500
processes in nvitop-exporter have 2,000."""
_MAX_LINE = 4096
_MAX_LABEL = 256
_LOGGED = 120
_NAME = re.compile(r"\s*+([A-Za-z_:][A-Za-z0-9_:]*+)", re.ASCII)
_LABELS = r"""(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+"""
_VALUE = r"([^\s_]++)(?:[ \t]++-?[0-9]++)?[ \t\r]*+"
_LINE = re.compile(rf"[\w:]++[ \t]*+(?:\{{({_LABELS})\}}[ \t]*+|(?<=[ \t])){_VALUE}", re.ASCII)
_LABEL = re.compile(r"""[ \t]*+([A-Za-z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)""", re.ASCII)
_ESCAPED = re.compile(r'\\([\\n"])')

log = logging.getLogger(__name__)


class Sample(Struct, frozen=True, gc=False):
    """One line: its name, its labels without control characters, and its number (maybe NaN)."""

    name: str
    labels: dict[str, str]
    value: float


class Page(Struct, frozen=True):
    samples: list[Sample]
    problems: list[str]


def parse_page(body: bytes, wanted: frozenset[str]) -> Page:
    """The `wanted` series on the page. Raises Temporary for a web page and for an empty one. A large page takes long:
    use a thread. Every line ends with a line break: text after the last one was cut off, maybe within a number."""
    if not body.strip():
        raise Temporary("It answers an empty page.", "An exporter that was just started may need a minute.")
    if body[:200].decode(errors="replace").lstrip("\ufeff \t\r\n")[:1] == "<":
        raise Temporary("It answers a web page, not metrics.", "Check its port and path: exporters use /metrics.")
    samples: list[Sample] = []
    unread: list[str] = []
    left_out = 0
    parser = _TableParser()
    *lines, rest = body.decode(errors="replace").split("\n")
    for line in lines:
        found = _NAME.match(line)
        if found is None or (name := found[1]) not in wanted:
            continue
        if len(samples) + len(unread) >= MAX_SERIES:
            left_out += 1
        elif (sample := parser.parse(line.strip(" \t"), name)) is None:
            unread.append(line)
        else:
            samples.append(sample)
    return Page(samples, _explain(unread, rest, left_out))


class _TableParser:
    """Parses the lines of one page. Label sets are cached."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def parse(self, line: str, name: str) -> Sample | None:
        found = _LINE.fullmatch(line) if len(line) <= _MAX_LINE else None
        if found is None:
            return None
        try:
            value = float(found[2])
        except ValueError:
            return None
        labels = self._labels(found[1] or "")
        return None if labels is None else Sample(name, labels, value)

    def _labels(self, text: str) -> dict[str, str] | None:
        known = self._known.get(text)
        if known is not None or not text:
            return known or {}
        labels = _parse_labels(text)
        if labels is not None:
            self._known[text] = labels
        return labels


def _parse_labels(text: str) -> dict[str, str] | None:
    """The labels between the braces, without control characters; None if they are malformed."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip(" \t")):
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            return None
        value = found[2]
        if "\\" in value:
            value = _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)
        labels[found[1]] = clean(value)[:_MAX_LABEL]
        at = found.end()
    return labels


def _explain(unread: list[str], rest: str, left_out: int) -> list[str]:
    problems = []
    if unread:
        log.debug("the first line that cannot be read: %s", clean(unread[0])[:_LOGGED])
        problems.append(f"{show_count(len(unread), 'line')} of its page cannot be read")
    if rest.strip():
        log.debug("the page ends in the middle of a line: %s", clean(rest[:_LOGGED]))
        problems.append("its page ends in the middle of a line, which is left out")
    if left_out:
        problems.append(f"its page has more than {MAX_SERIES} series about GPUs; {left_out} are left out")
    return problems


def label(sample: Sample, names: list[str]) -> str:
    return next((text for name in names if (text := sample.labels.get(name, "").strip())), "")
