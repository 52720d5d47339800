"""Hosts that already run a Prometheus exporter for their GPUs: dcgm-exporter, nvidia_gpu_exporter, nvitop-exporter.

The names of its metrics show which exporter it is; `scrape_tables` has what they mean. What it does not report is
unknown, with its name as the reason. The host's own figures come from node_exporter series on the same page.
"""

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from gpudeck.agent.push import read_token
from gpudeck.collectors.base import NEEDS_TWO, Measured
from gpudeck.collectors.redaction import clean
from gpudeck.fetch import AddressGuard, Fetcher, trust_from
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Absent, Refused, Temporary, UsageError
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources.base import EnvelopeSequence, FetchedReport, ScrapeSettings
from gpudeck.sources.scrape_gpus import MAX_GPUS, GpuReader, ScrapedGpus
from gpudeck.sources.scrape_tables import (
    CpuTable,
    Exporter,
    MetricRow,
    Page,
    Sample,
    gpu_exporters,
    group_rows,
    host_exporters,
    label,
    measure,
    parse_page,
    wanted_names,
)
from gpudeck.wire import HOST_NAME

Times = tuple[float, float]
"""Seconds that the CPUs worked, and seconds altogether."""
log = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
"""dcgm-exporter writes 53 kB for 8 GPUs; 16 GPUs with 120 fields each write 600 kB, 112 MIG instances with 40 fields
1.5 MB. node_exporter on 256 threads writes 1 MB. The rest is room for pages on which a proxy gathers several hosts."""
LARGE_BYTES = 64 * 1024
LARGE_SERIES = 300
"""Pages from this size on, and with more series than this, are read in the thread for large input. 8 GPUs of
dcgm-exporter have 53 kB and 232 series, and take 2 ms; 300 GPUs with one series each take 25 ms."""
_BOOT = "scrape"
"""An exporter does not report when its host was booted."""
_TEXT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_MAX_NAMED = 8
_LOGGED = 120


class HostReader:
    """Makes the host's figures out of its pages, one after the other: the CPU's percentage needs two."""

    def __init__(self) -> None:
        self._before: Times | None = None

    def read(self, exporter: Exporter, samples: list[Sample]) -> tuple[Measured, str | None]:
        measured = Measured({}, {})
        sources = [
            (each, present)
            for each in host_exporters()
            if (present := [sample for sample in samples if sample.name in each.names])
        ]
        for name, metric in HOST_METRICS.items():
            measured.unknown[name] = f"{exporter.name} does not report it"
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


def _values(rows: Iterable[MetricRow], samples: Iterable[Sample]) -> dict[str, float]:
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
    names = (label(sample, exporter.labels.host) for sample in page.samples if sample.name in exporter.names)
    return {host for host in names if host}


class ScrapeSource:
    """Reads one host's exporter. See `Source` for what it raises and when it may be called."""

    def __init__(self, target: Target, settings: ScrapeSettings, fetcher: Fetcher) -> None:
        self._target = target
        self._settings = settings
        self._fetcher = fetcher
        self._url = target.url(settings.port, settings.path)
        self._gpus = GpuReader(settings.commands)
        self._host = HostReader()
        self._envelopes = EnvelopeSequence(target, settings.interval, _BOOT)

    async def read(self, now: float) -> FetchedReport:
        """The exporter's page as a report. It does not report its clock."""
        answer = await self._fetcher.get(self._url, self._headers())
        if len(answer.body) >= LARGE_BYTES:
            report = await parse_in_thread(lambda: self._make_report(self._parse(answer.body), now))
        elif len((page := self._parse(answer.body)).samples) > LARGE_SERIES:
            report = await parse_in_thread(self._make_report, page, now)
        else:
            report = self._make_report(page, now)
        return FetchedReport(self._envelopes.put(report, now))

    async def close(self) -> None:
        await self._fetcher.close()

    def _headers(self) -> dict[str, str]:
        token_file = self._target.token_file or self._settings.token_file
        bearer = {"Authorization": f"Bearer {_read_token(token_file)}"} if token_file else {}
        return {"Accept": _TEXT} | bearer

    def _parse(self, body: bytes) -> Page:
        try:
            return parse_page(body, wanted_names())
        except Temporary as error:
            raise Temporary(f"{self._url}: {error.message}", error.hint) from error

    def _make_report(self, page: Page, now: float) -> Report:
        exporter = self._recognise(page)
        samples = self._choose_host(page, exporter)
        devices = ScrapedGpus(
            exporter, [sample for sample in samples if sample.name in exporter.names], self._target.name
        )
        if not devices.found:
            raise Temporary(f"{self._url}: {exporter.name} lists no GPU.", "See the exporter's own log on that host.")
        gpus = self._gpus.read(exporter, devices, now)
        measured, system = self._host.read(exporter, samples)
        return Report(
            gpus=gpus,
            metrics=measured.metrics,
            unknown=measured.unknown,
            driver_version=next((text for each in samples if (text := label(each, exporter.labels.driver))), None),
            os=system,
            labels=self._target.labels,
            problems=[f"{exporter.name}: {problem}"[:1024] for problem in (*page.problems, *_problems(devices))],
        )

    def _recognise(self, page: Page) -> Exporter:
        """Which exporter answers. Raises Temporary where it says that it could not read its GPUs itself."""
        names = {sample.name for sample in page.samples}
        exporter = next((each for each in gpu_exporters() if each.is_recognised_by(names)), None)
        if exporter is None:
            raise self._explain_strange(page)
        failed = exporter.failed
        if failed and any(each.name == failed.series and each.value == failed.value for each in page.samples):
            raise Temporary(
                f"{self._url}: {exporter.name} says that it could not read its GPUs.", "See its own log on that host."
            )
        return exporter

    def _explain_strange(self, page: Page) -> Temporary | Absent:
        known = ", ".join(each.name for each in gpu_exporters())
        if self._gpus.has_known_gpus:
            return Temporary(f"{self._url} lists no GPU any more.", "See the exporter's own log on that host.")
        if page.problems:
            return Temporary(f"{self._url} cannot be understood: {page.problems[0]}.")
        return Absent(
            f"{self._url} answers no metrics of a GPU exporter that is known here ({known}).",
            f"Check its port ({', '.join(f'{each.name}: {each.port}' for each in gpu_exporters())}).",
        )

    def _choose_host(self, page: Page, exporter: Exporter) -> list[Sample]:
        """The series of this host and those that name none. Raises Temporary where several are there, and not this."""
        hosts = hosts_on(page, exporter)
        chosen = {host for host in hosts if self._is_this(host)} or hosts
        if len(chosen) > 1:
            # What a page says goes to the log only: every viewer of the hub reads the message.
            named = ", ".join(sorted(hosts)[:_MAX_NAMED])
            log.debug("%s lists these hosts: %s", self._url, clean(named)[:_LOGGED])
            raise Temporary(
                f"{self._url} lists {len(hosts)} hosts, and none is called {self._target.name}.",
                "Name the host as the exporter does, or read each host's own exporter.",
            )
        return [sample for sample in page.samples if self._belongs(sample, exporter, chosen)]

    def _belongs(self, sample: Sample, exporter: Exporter, chosen: set[str]) -> bool:
        if sample.name in exporter.names:
            return label(sample, exporter.labels.host) in {"", *chosen}
        named = {text for each in host_exporters() if (text := label(sample, each.labels.host))}
        return not named or any(self._is_this(host) or _without_port(host) in chosen for host in named)

    def _is_this(self, host: str) -> bool:
        names = {self._target.name.lower(), self._target.address.lower()} - {""}
        return host.lower() in names or _without_port(host).lower() in names


def make(target: Target, settings: ScrapeSettings) -> ScrapeSource:
    """The source of a target. Opens nothing but `ca_file`. Raises UsageError for a target that cannot be read."""
    if not re.match(HOST_NAME, target.name):
        raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
    trust = trust_from(settings.ca_file) if settings.ca_file else None
    fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=MAX_BYTES, trust=trust, guard=AddressGuard.of(target))
    return ScrapeSource(target, settings, fetcher)


def _read_token(token_file: str) -> str:
    """Read anew each time, as tokens are replaced. Raises Refused."""
    try:
        return read_token(Path(token_file).expanduser(), "Check token_file.", "Write the exporter's token there.")
    except (UsageError, RuntimeError) as error:
        raise Refused(str(error)) from error


def _problems(devices: ScrapedGpus) -> list[str]:
    problems = []
    if devices.conflicts:
        problems.append(f"{devices.conflicts} series say something else than an earlier one; the first counts")
    if devices.left_out or len(devices.found) > MAX_GPUS:
        more = "more than " if devices.left_out else ""
        problems.append(f"it lists {more}{len(devices.found)} GPUs; the first {MAX_GPUS} are taken")
    return problems


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]+$", "", host)
