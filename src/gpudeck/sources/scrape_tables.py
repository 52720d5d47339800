"""What each exporter calls which metric (the tables in `exporters/`), and how its values become metrics.

A table holds facts about another program and no code: a new name of a metric is a new line there. A series that has no
valid number becomes an unknown metric with its reason.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct, field

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.report import Number


class MetricRow(Struct, frozen=True, forbid_unknown_fields=True):
    """How a metric of the catalog comes out of series: the sum of `series`, less `minus`, times `factor`.

    Of several rows for a metric the first that can be read counts. With `bits` it is a flag: whether any of them is
    set. `where` are labels that a series has to have. `zero` is the reason why a 0 means nothing. `by_instance`:
    measured on a MIG instance by itself; anything else is the board's, even if reported for each instance.
    """

    to: str
    series: list[str]
    minus: list[str] = field(default_factory=list)
    factor: float = 1.0
    bits: int | None = None
    where: dict[str, str] = field(default_factory=dict)
    zero: str | None = None
    by_instance: bool = False


class NoValueRange(Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers that say that there is no number."""

    low: int
    high: int


class Labels(Struct, frozen=True, forbid_unknown_fields=True):
    """Which label has what; of several the first that exists."""

    uuid: list[str] = field(default_factory=list)
    index: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    pci: list[str] = field(default_factory=list)
    instance: list[str] = field(default_factory=list)
    instance_uuid: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    driver: list[str] = field(default_factory=list)
    pod: list[str] = field(default_factory=list)
    namespace: list[str] = field(default_factory=list)
    container: list[str] = field(default_factory=list)
    job: list[str] = field(default_factory=list)


class Scaled(Struct, frozen=True, forbid_unknown_fields=True):
    """One series and what its numbers are multiplied with."""

    series: str
    factor: float = 1.0


class ProcessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """How processes are listed. The list of a GPU that has the series `listed_by` is complete, also if it is empty."""

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
        """Every series about a process."""
        single = (self.memory, self.utilization, self.running_seconds)
        return frozenset((*self.series, *(part.series for part in single if part)))


class Failed(Struct, frozen=True, forbid_unknown_fields=True):
    """The series, and its value, by which an exporter says that it could not read its GPUs."""

    series: str
    value: float


class CpuTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds by CPU thread and mode, which only grow: a percentage needs two readings."""

    series: str
    thread: str
    mode: str
    idle: list[str]


class OsLabel(Struct, frozen=True, forbid_unknown_fields=True):
    series: str
    label: str


class Exporter(Struct, frozen=True, forbid_unknown_fields=True):
    """One exporter. It is recognised by series whose names begin with one of `prefixes`; node_exporter by none.

    `identities` are series that only carry labels. `port` is where it listens by default.
    """

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
    cpu: CpuTable | None = None
    os: OsLabel | None = None
    names: frozenset[str] = frozenset()
    """Every series that this table reads; made of all the others."""

    def __post_init__(self) -> None:
        _check(self.gpu, GPU_METRICS)
        _check(self.host, HOST_METRICS)
        msgspec.structs.force_setattr(self, "names", self._find_names())

    def _find_names(self) -> frozenset[str]:
        rows = [name for row in (*self.gpu, *self.host) for name in (*row.series, *row.minus)]
        named = [part.series for part in (self.failed, self.cpu, self.os) if part is not None]
        listed = [self.processes.listed_by, *self.processes.names] if self.processes else []
        index = [self.index_series] if self.index_series else []
        return frozenset((*rows, *named, *listed, *index, *self.identities))

    def is_recognised_by(self, names: Iterable[str]) -> bool:
        return any(name.startswith(tuple(self.prefixes)) for name in names)

    def blank(self, value: float) -> str | None:
        """Why the number is none; None when it is one."""
        if any(blank.low <= value <= blank.high for blank in self.blanks):
            return f"{self.name} has no value: not supported by this GPU, or not permitted to read"
        return None


def _check(rows: Iterable[MetricRow], metrics: dict[str, Metric]) -> None:
    strange = sorted({row.to for row in rows} - metrics.keys())
    if strange:
        raise ValueError(f"not in the catalog: {', '.join(strange)}")


@cache
def all_exporters() -> tuple[Exporter, ...]:
    """Every table, in the order of their names: of two that are recognised on a page the first is read."""
    folder = resources.files("gpudeck.sources") / "exporters"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Exporter) for file in files)


def gpu_exporters() -> tuple[Exporter, ...]:
    return tuple(exporter for exporter in all_exporters() if exporter.gpu)


def host_exporters() -> tuple[Exporter, ...]:
    return tuple(exporter for exporter in all_exporters() if exporter.host)


@cache
def wanted_names() -> frozenset[str]:
    """Every series that any table reads: whatever else stands on a page is passed over unread."""
    return frozenset().union(*(exporter.names for exporter in all_exporters()))


Groups = dict[str, list[MetricRow]]


def measure(metric: Metric, rows: Iterable[MetricRow], values: Mapping[str, float], exporter: Exporter) -> Number | str:
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
    return f"{exporter.name} does not report it{absent}"


def _evaluate(row: MetricRow, values: Mapping[str, float], exporter: Exporter) -> float | str | None:
    """The row's value; a text says why there is none, None that a series is not on the page."""
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


def group_rows(rows: Iterable[MetricRow]) -> Groups:
    groups: Groups = {}
    for row in rows:
        groups.setdefault(row.to, []).append(row)
    return groups
