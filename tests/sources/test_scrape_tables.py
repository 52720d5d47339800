"""The tables of exporters: what they name exists, they are shipped, and the document says the same."""

import re
from pathlib import Path

import msgspec
import pytest
from hatchling.builders.wheel import WheelBuilder

from gpudeck.config import load_file
from gpudeck.discovery.static import HostEntry
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.sources.base import ScrapeSettings
from gpudeck.sources.scrape_tables import (
    Exporter,
    MetricRow,
    all_exporters,
    wanted_names,
)

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "scrape.md"
CAPTURES = ROOT / "tests" / "captures" / "exporters"


def test_every_exporter_has_its_table() -> None:
    assert [exporter.name for exporter in all_exporters()] == [
        "dcgm-exporter",
        "nvidia_gpu_exporter",
        "nvitop-exporter",
    ]


def test_the_tables_are_in_the_wheel() -> None:
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    tables = {f"gpudeck/sources/exporters/{path.name}" for path in (ROOT / "src/gpudeck/sources/exporters").iterdir()}
    assert len(tables) == len(all_exporters())
    assert tables <= shipped


def test_a_metric_that_the_catalog_does_not_have_is_refused() -> None:
    table = {"name": "x", "port": 1, "prefixes": [], "labels": {}, "gpu": [{"to": "speed", "series": ["a"]}]}
    with pytest.raises(msgspec.ValidationError, match="not in the catalog: speed"):
        msgspec.convert(table, Exporter)


@pytest.mark.parametrize("exporter", all_exporters(), ids=lambda exporter: exporter.name)
def test_load_and_memory_are_told_by_every_exporter(exporter: Exporter) -> None:
    """Without them no GPU could ever be free."""
    told = {row.to for row in exporter.gpu}
    assert {"utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius"} <= told


@pytest.mark.parametrize("exporter", all_exporters(), ids=lambda exporter: exporter.name)
def test_a_captured_page_has_most_of_what_the_table_names(exporter: Exporter) -> None:
    """A name that nothing ever had would be a wrong name."""
    pages = "".join(path.read_text() for path in CAPTURES.glob(f"{exporter.name}*.prom"))
    found = {name for name in exporter.names if f"\n{name}{{" in pages or f"\n{name} " in pages}
    assert len(found) > len(exporter.names) / 2


def test_xids_are_not_read() -> None:
    assert not [name for name in wanted_names() if "xid" in name.lower()]


def show_rows(rows: list[MetricRow]) -> str:
    """The series of a metric, as the document writes them: alternatives apart by a comma."""
    sums = []
    for row in rows:
        added = " + ".join(row.series)
        shown = " − ".join((added, *row.minus))
        sums.append(shown if shown not in sums else "")
    return ", ".join(text for text in sums if text) or "–"


def table_of_gpus() -> str:
    exporters = all_exporters()
    lines = [f"| figure | {' | '.join(exporter.name for exporter in exporters)} |", "|---" * 4 + "|"]
    for name, metric in GPU_METRICS.items():
        cells = [show_rows([row for row in exporter.gpu if row.to == name]) for exporter in exporters]
        lines.append(f"| {metric.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_hosts() -> str:
    exporters = [exporter for exporter in all_exporters() if exporter.host]
    lines = [f"| figure | {' | '.join(exporter.name for exporter in exporters)} |", "|---" * 2 + "|"]
    for name, metric in HOST_METRICS.items():
        cells = [show_rows([row for row in exporter.host if row.to == name]) for exporter in exporters]
        lines.append(f"| {metric.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize("make", [table_of_gpus, table_of_hosts], ids=lambda make: make.__name__)
def test_the_document_says_what_the_tables_say(make: object) -> None:
    assert callable(make)
    wanted = make()
    assert wanted in DOCUMENT.read_text(), f"docs/scrape.md has to hold:\n\n{wanted}"


def test_the_example_in_the_document_is_a_right_configuration(tmp_path: Path) -> None:
    class Settings(msgspec.Struct, frozen=True):
        """The part of gpudeck.yaml that the example shows."""

        hosts: list[HostEntry] = msgspec.field(default_factory=list)
        scrape: ScrapeSettings = msgspec.field(default_factory=ScrapeSettings)

    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "gpudeck.yaml").write_text(example)
    settings = load_file(tmp_path / "gpudeck.yaml", Settings)
    targets = [target for entry in settings.hosts for target in entry.targets("gpudeck.yaml")]
    urls = [target.url(settings.scrape.port, settings.scrape.path) for target in targets]
    assert len(urls) == 18
    assert (urls[0], urls[16]) == ("http://gpu01:9400/metrics", "http://lab3:9835/metrics")
    assert urls[17] == "https://monitoring.example.org:443/workstation7/metrics"


def test_the_document_names_the_usual_ports() -> None:
    rows = re.findall(r"^\| ([\w-]+)[^|]* \| (\d+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [(exporter.name, str(exporter.port)) for exporter in all_exporters()]
