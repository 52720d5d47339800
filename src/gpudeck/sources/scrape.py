"""Hosts that already run a Prometheus exporter for their GPUs: dcgm-exporter, nvidia_gpu_exporter, nvitop-exporter.

The hub reads the exporter's page as Prometheus would and makes a report of it. Nothing is installed on the host. An
exporter tells less than an agent: what it does not tell is unknown, with its name as the reason. Which exporter it is
shows in the names of its metrics; what they mean stands in the tables of `scrape_tables`.
"""

import logging
import re
import secrets
import ssl
from functools import lru_cache
from pathlib import Path

from gpudeck.agent.push import read_token
from gpudeck.collectors.redaction import clean
from gpudeck.fetch import AddressGuard, Fetcher, trust_from
from gpudeck.model.errors import Absent, Refused, Temporary, UsageError
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.model.turns import parse_aside
from gpudeck.sources.base import Arrival
from gpudeck.sources.scrape_devices import Devices
from gpudeck.sources.scrape_gpus import GPUS_AT_MOST, GpuReader
from gpudeck.sources.scrape_host import HostReader, hosts_on
from gpudeck.sources.scrape_page import Page, Sample, label, parse_page
from gpudeck.sources.scrape_settings import ScrapeSettings
from gpudeck.sources.scrape_tables import Exporter, gpu_exporters, host_exporters, wanted_names
from gpudeck.wire import VERSION, Envelope
from gpudeck.wire.envelope import HOST_NAME

log = logging.getLogger(__name__)

BYTES_AT_MOST = 8 * 1024 * 1024
"""dcgm-exporter writes 53 kB for 8 GPUs; 16 GPUs with 120 fields each write 600 kB, 112 MIG instances with 40 fields
1.5 MB. node_exporter on 256 threads writes 1 MB. The rest is room for pages on which a proxy gathers several hosts."""
LARGE_BYTES = 64 * 1024
LARGE_SERIES = 300
"""Pages from this size on, and with more series than this, are read in the thread for large input. 8 GPUs of
dcgm-exporter have 53 kB and 232 series, and take 2 ms; 300 GPUs with one series each take 25 ms."""
_BOOT = "scrape"
"""An exporter does not tell when its host was booted."""
_TEXT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_NAMED_AT_MOST = 8
_LOGGED = 120


class ScrapeSource:
    """Reads one host's exporter. See `Source` for what it raises and when it may be called."""

    def __init__(self, target: Target, settings: ScrapeSettings, fetcher: Fetcher) -> None:
        self._target = target
        self._settings = settings
        self._fetcher = fetcher
        self._url = target.url(settings.port, settings.path)
        self._gpus = GpuReader(settings.commands)
        self._host = HostReader()
        self._run_id = secrets.token_hex(8)
        self._sequence = 0

    async def read(self, now: float) -> Arrival:
        """The exporter's page as a report. It does not tell its clock."""
        answer = await self._fetcher.get(self._url, self._headers())
        if len(answer.body) >= LARGE_BYTES:
            report = await parse_aside(self._read_page, answer.body, now)
        elif len((page := self._parse(answer.body)).samples) > LARGE_SERIES:
            report = await parse_aside(self._make_report, page, now)
        else:
            report = self._make_report(page, now)
        self._sequence += 1
        return Arrival(self._seal(report, now))

    async def close(self) -> None:
        await self._fetcher.close()

    def _headers(self) -> dict[str, str]:
        token_file = self._target.token_file or self._settings.token_file
        bearer = {"Authorization": f"Bearer {_read_token(token_file)}"} if token_file else {}
        return {"Accept": _TEXT} | bearer

    def _read_page(self, body: bytes, now: float) -> Report:
        return self._make_report(self._parse(body), now)

    def _parse(self, body: bytes) -> Page:
        try:
            return parse_page(body, wanted_names())
        except Temporary as error:
            raise Temporary(f"{self._url}: {error.message}", error.hint) from error

    def _make_report(self, page: Page, now: float) -> Report:
        exporter = self._recognise(page)
        samples = self._choose_host(page, exporter)
        devices = Devices(exporter, [sample for sample in samples if sample.name in exporter.names], self._target.name)
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
            # What a page says is for the log alone: everybody who may look at the hub reads the message.
            named = ", ".join(sorted(hosts)[:_NAMED_AT_MOST])
            log.debug("%s tells of these hosts: %s", self._url, clean(named)[:_LOGGED])
            raise Temporary(
                f"{self._url} tells of {len(hosts)} hosts, and none is called {self._target.name}.",
                "Name the host as the exporter does, or read each host's own exporter.",
            )
        return [sample for sample in page.samples if self._belongs(sample, exporter, chosen)]

    def _belongs(self, sample: Sample, exporter: Exporter, chosen: set[str]) -> bool:
        if sample.name in exporter.names:
            return label(sample, exporter.labels.host) in {"", *chosen}
        told = {text for each in host_exporters() if (text := label(sample, each.labels.host))}
        return not told or any(self._is_this(host) or _without_port(host) in chosen for host in told)

    def _is_this(self, host: str) -> bool:
        names = {self._target.name.lower(), self._target.address.lower()} - {""}
        return host.lower() in names or _without_port(host).lower() in names

    def _seal(self, report: Report, now: float) -> Envelope:
        return Envelope(
            version=VERSION,
            host=self._target.name,
            boot_id=_BOOT,
            run_id=self._run_id,
            sequence=self._sequence,
            collected_at=now,
            interval_seconds=self._settings.interval,
            report=report,
        )


def make(target: Target, settings: ScrapeSettings) -> ScrapeSource:
    """The source of a target. Opens nothing but `ca_file`. Raises UsageError for a target that cannot be read."""
    if not re.match(HOST_NAME, target.name):
        raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
    trust = _trust(settings.ca_file) if settings.ca_file else None
    fetcher = Fetcher(
        deadline=settings.deadline, bytes_at_most=BYTES_AT_MOST, trust=trust, guard=AddressGuard.of(target)
    )
    return ScrapeSource(target, settings, fetcher)


@lru_cache(maxsize=8)
def _trust(ca_file: str) -> ssl.SSLContext:
    """One for all hosts: reading certificates takes longer than a question."""
    return trust_from(ca_file)


def _read_token(token_file: str) -> str:
    """Read anew each time, as tokens are replaced. Raises Refused."""
    try:
        return read_token(Path(token_file).expanduser(), "Check token_file.", "Write the exporter's token there.")
    except (UsageError, RuntimeError) as error:
        raise Refused(str(error)) from error


def _problems(devices: Devices) -> list[str]:
    problems = []
    if devices.conflicts:
        problems.append(f"{devices.conflicts} series say something else than an earlier one; the first counts")
    if devices.left_out or len(devices.found) > GPUS_AT_MOST:
        more = "more than " if devices.left_out else ""
        problems.append(f"it lists {more}{len(devices.found)} GPUs; the first {GPUS_AT_MOST} are taken")
    return problems


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]+$", "", host)
