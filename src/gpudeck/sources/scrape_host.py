"""The host's own figures, where they stand on the same page: from node_exporter, or from the GPU exporter itself."""

from collections.abc import Iterable

from gpudeck.collectors.network import NEEDS_TWO
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.sources.scrape_page import Page, Sample, label
from gpudeck.sources.scrape_tables import CpuTable, Exporter, Row, host_exporters
from gpudeck.sources.scrape_values import Measured, group_rows, measure

Times = tuple[float, float]
"""Seconds that the CPUs worked, and seconds altogether."""


class HostReader:
    """Makes the host's figures out of its pages, one after the other: the CPU's percentage needs two."""

    def __init__(self) -> None:
        self._before: Times | None = None

    def read(self, exporter: Exporter, samples: list[Sample]) -> tuple[Measured, str | None]:
        """The figures, and the name of the operating system where a series tells it."""
        measured = Measured({}, {})
        sources = [(each, present) for each in host_exporters() if (present := _present(each, samples))]
        for name, metric in HOST_METRICS.items():
            measured.unknown[name] = f"{exporter.name} does not tell"
            for each, present in sources:
                rows = group_rows(each.host).get(name, [])
                value = measure(metric, rows, _values(rows, present), each) if rows else measured.unknown[name]
                if not isinstance(value, str):
                    measured.metrics[name] = value
                    measured.unknown.pop(name)
                    break
                measured.unknown[name] = value
        for each, present in sources:
            if each.cpu is not None:
                self._read_cpu(each.cpu, present, measured)
        return measured, _find_os(sources)

    def _read_cpu(self, table: CpuTable, samples: list[Sample], measured: Measured) -> None:
        seconds = [sample for sample in samples if sample.name == table.series and 0 <= sample.value < 1e12]
        if not seconds or "cpu_percent" in measured.metrics:
            return
        total = sum(sample.value for sample in seconds)
        idle = sum(sample.value for sample in seconds if sample.labels.get(table.mode) in table.idle)
        before, self._before = self._before, (total - idle, total)
        threads = len({sample.labels.get(table.thread) for sample in seconds})
        _take(measured, "cpu_count", threads)
        if before is None or total <= before[1]:
            measured.unknown["cpu_percent"] = NEEDS_TWO
        else:
            _take(measured, "cpu_percent", 100.0 * (total - idle - before[0]) / (total - before[1]))


def _take(measured: Measured, name: str, value: float) -> None:
    metric = HOST_METRICS[name]
    measured.metrics[name] = metric.round(min(metric.high, max(metric.low, value)))
    measured.unknown.pop(name, None)


def _present(exporter: Exporter, samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.name in exporter.names]


def _values(rows: Iterable[Row], samples: Iterable[Sample]) -> dict[str, float]:
    """The numbers by series, of those series that have the labels the rows ask for; the first of each counts."""
    where = {pair for row in rows for pair in row.where.items()}
    values: dict[str, float] = {}
    for sample in samples:
        if where <= sample.labels.items():
            values.setdefault(sample.name, sample.value)
    return values


def _find_os(sources: Iterable[tuple[Exporter, list[Sample]]]) -> str | None:
    names = (
        sample.labels.get(each.os.label)
        for each, present in sources
        if each.os is not None
        for sample in present
        if sample.name == each.os.series
    )
    return next((name for name in names if name), None)


def hosts_on(page: Page, exporter: Exporter) -> set[str]:
    """Which hosts the exporter's series name."""
    told = (label(sample, exporter.labels.host) for sample in page.samples if sample.name in exporter.names)
    return {host for host in told if host}
