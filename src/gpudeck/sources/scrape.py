"""Hosts that already run a Prometheus exporter for their GPUs: dcgm-exporter, nvidia_gpu_exporter, nvitop-exporter.

The names of the metrics identify the exporter; `scrape_tables` maps them. What an exporter does not report is unknown,
with the exporter's name in the reason. Exporters report whole command lines: they are redacted here, as an agent does.
"""

import logging
import math
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gpudeck.agent.push import read_token
from gpudeck.collectors import base
from gpudeck.collectors.redaction import Commands, clean, show
from gpudeck.collectors.smi_command import read_bus_id
from gpudeck.fetch import AddressGuard, Fetcher, trust_from
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Absent, Refused, Temporary, UsageError
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.text import read_whole
from gpudeck.sources.base import EnvelopeSequence, FetchedReport, ScrapeSettings
from gpudeck.sources.scrape_tables import (
    Exporter,
    MetricRow,
    Page,
    ProcessTable,
    Sample,
    Scaled,
    all_exporters,
    label,
    measure,
    parse_page,
    wanted_names,
)
from gpudeck.wire import HOST_NAME

log = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
"""dcgm-exporter writes 53 kB for 8 GPUs; 16 GPUs with 120 fields each write 600 kB, 112 MIG instances with 40 fields
1.5 MB. The rest is room for pages on which a proxy adds those of other exporters."""
LARGE_BYTES = 64 * 1024
LARGE_SERIES = 300
"""Pages of this size, or with more series than this, are parsed in the thread for large input. 8 GPUs of dcgm-exporter
have 53 kB and 232 series, and take 2 ms; 300 GPUs with one series each take 25 ms."""
_BOOT = "scrape"
"""Exporters do not report the boot time of their host."""
_TEXT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_SEE_ITS_LOG = "See the exporter's own log on that host."
_MAX_NAMED = 8
_LOGGED = 120

MAX_DEVICES = 640
"""512 GPUs, and the boards of those that are MIG instances."""
_FACTS = ("index", "name", "pci", "profile", "instance_uuid")
Key = tuple[str, str]
"""The board's UUID, and the number of the MIG instance or an empty string."""
MAX_PROCESSES = 1024
NOT_BY_INSTANCE = "its processes are reported for the whole board, not by MIG instance"
_NAMELESS = {"", "N/A"}
MAX_GPUS = 512


class ScrapedGpu(Struct):
    """What the page reports about one GPU or MIG instance."""

    board: str
    instance: str
    values: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    processes: list[Sample] = field(default_factory=list)


class ScrapedGpus:
    """The devices of one page, at most MAX_DEVICES. Of two values for one device the first counts."""

    def __init__(self, exporter: Exporter, samples: Iterable[Sample], host: str) -> None:
        self.found: dict[Key, ScrapedGpu] = {}
        self._exporter = exporter
        self._host = host
        self._process_series = exporter.processes.names if exporter.processes else frozenset[str]()
        # The series of a GPU share one label object (see scrape_tables), so most of them are looked up once.
        by_labels: dict[int, ScrapedGpu | None] = {}
        for sample in samples:
            known = id(sample.labels)
            if known not in by_labels:
                by_labels[known] = self._find(sample)
            device = by_labels[known]
            if device is not None:
                self._add(device, sample)
        self._settle_instances()

    def listed(self) -> Iterator[tuple[ScrapedGpu, ScrapedGpu | None]]:
        split = {board for board, instance in self.found if instance}
        for (board, instance), device in self.found.items():
            if instance or board not in split:
                yield device, self.found.get((board, "")) if instance else None

    def _find(self, sample: Sample) -> ScrapedGpu | None:
        labels = self._exporter.labels
        uuid, index = label(sample, labels.uuid), label(sample, labels.index)
        if not uuid and not index:
            return None
        board = _with_prefix(uuid, self._exporter.uuid_prefix) if uuid else f"{self._host}/gpu{index}"
        key = board, label(sample, labels.instance)
        if key not in self.found and len(self.found) >= MAX_DEVICES:
            return None
        device = self.found.setdefault(key, ScrapedGpu(*key))
        for fact in _FACTS:
            if text := label(sample, getattr(labels, fact)):
                device.facts.setdefault(fact, text)
        return device

    def _settle_instances(self) -> None:
        boards = {device.facts.get("index"): board for (board, _), device in self.found.items()}
        for key, device in list(self.found.items()):
            index, colon, instance = device.facts.get("index", "").partition(":")
            if colon and instance and not device.instance:
                device.facts.setdefault("instance_uuid", device.board)
                device.facts["index"], device.instance = index, instance
                device.board = boards.get(index, "")
                del self.found[key]
                self.found[device.board or key[0], instance] = device

    def _add(self, device: ScrapedGpu, sample: Sample) -> None:
        if sample.name in self._process_series:
            device.processes.append(sample)
        else:
            device.values.setdefault(sample.name, sample.value)


def _with_prefix(uuid: str, prefix: str) -> str:
    return uuid if uuid.startswith(prefix) else prefix + uuid


def _find_text(samples: Iterable[Sample], name: str | None) -> str | None:
    if name is None:
        return None
    return next((text for sample in samples if (text := sample.labels.get(name, "").strip()) not in _NAMELESS), None)


def _value(samples: Iterable[Sample], wanted: Scaled | None, high: float) -> float | None:
    if wanted is None:
        return None
    value = next((sample.value * wanted.factor for sample in samples if sample.name == wanted.series), math.nan)
    return value if 0 <= value <= high else None


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _program(arguments: list[str]) -> str:
    return arguments[0].rpartition("/")[2] if arguments else ""


class ScrapedGpuReader:
    """Converts the pages of one host to readings, in order: it remembers which GPUs were there before. `commands` is
    how much of a command line is shown."""

    def __init__(self, commands: Commands) -> None:
        self._commands: Commands = commands
        self._starts = base.ProcessStarts(jitter_seconds=10.0)
        self._idle = base.IdleWatch()
        self._known: dict[str, GpuReading] = {}

    @property
    def has_known_gpus(self) -> bool:
        return bool(self._known)

    def read(self, exporter: Exporter, devices: ScrapedGpus, now: float) -> list[GpuReading]:
        readings = {}
        for number, (device, board) in enumerate(devices.listed()):
            reading = self._read_device(exporter, device, board, number, now)
            readings[reading.uuid] = reading
        self._starts.end_reading()
        gone = [gpu for uuid, gpu in self._known.items() if uuid not in readings and not _was_split_anew(gpu, readings)]
        for gpu in gone:
            readings[gpu.uuid] = _as_missing(gpu, f"{exporter.name} no longer lists this GPU")
        kept = sorted(readings.values(), key=lambda gpu: (gpu.index, gpu.instance or 0, gpu.uuid))[:MAX_GPUS]
        self._known = {gpu.uuid: gpu for gpu in kept}
        return kept

    def _read_device(
        self, exporter: Exporter, device: ScrapedGpu, board: ScrapedGpu | None, number: int, now: float
    ) -> GpuReading:
        index, instance = _place(exporter, device, board, number)
        facts = (board.facts if board else {}) | device.facts
        measured = _measure(exporter, device, board)
        processes = self._read_processes(exporter, device, board, now)
        uuid = _device_uuid(exporter, device)
        utilization = measured.metrics.get("utilization_percent")
        return GpuReading(
            uuid=uuid,
            index=index,
            name=_name(facts, is_instance=bool(device.instance)),
            vendor="nvidia",
            parent=device.board[:256] or None if device.instance else None,
            instance=instance,
            pci_address=read_bus_id(facts.get("pci", "")),
            metrics=measured.metrics,
            unknown=measured.unknown,
            processes=None if isinstance(processes, str) else processes,
            processes_reason=processes if isinstance(processes, str) else None,
            idle_seconds=self._idle.track(uuid, utilization, now),
        )

    def _read_processes(
        self, exporter: Exporter, device: ScrapedGpu, board: ScrapedGpu | None, now: float
    ) -> list[Process] | str:
        table = exporter.processes
        if table is None:
            return exporter.processes_reason
        if table.listed_by not in device.values:
            if board is None or table.listed_by not in board.values:
                return exporter.processes_reason or f"{exporter.name} does not list this GPU's processes"
            if board.processes:
                return NOT_BY_INSTANCE
        by_pid: dict[tuple[int, str], list[Sample]] = {}
        for sample in device.processes:
            text = sample.labels.get(table.pid, "")
            pid = read_whole(text, 2**32 - 1) or 0
            # A process with an unreadable pid still counts: its GPU is not free.
            by_pid.setdefault((pid, "" if pid else text), []).append(sample)
        listed = sorted(by_pid.items())[:MAX_PROCESSES]
        return [self._read_process(exporter, table, pid, samples, now) for (pid, _), samples in listed]

    def _read_process(
        self, exporter: Exporter, table: ProcessTable, pid: int, samples: list[Sample], now: float
    ) -> Process:
        user, line = _find_text(samples, table.user), _find_text(samples, table.command)
        arguments = _split(line or "")
        command = show(arguments, _program(arguments), self._commands) if line else None
        memory = _value(samples, table.memory, 2.0**53 - 1)
        running = _value(samples, table.running_seconds, 1e10)
        fields = {
            "user": user,
            "command": command,
            "memory_used_bytes": None if memory is None else int(memory),
            "started_at": None if running is None else round(self._starts.settle(pid, user, now - running), 3),
            "utilization_percent": _value(samples, table.utilization, 100.0),
        }
        silent = f"{exporter.name} does not report it"
        hidden = {"command": "commands are not shown (commands: none)"} if line and command is None else {}
        return Process(
            pid=pid,
            **fields,  # type: ignore[arg-type]  # the kind of each value is its field's
            evidence=f"as {exporter.name} says",
            display=_program(arguments) in base.DISPLAY_SERVERS,
            reasons={name: silent for name, value in ({"pid": pid or None} | fields).items() if value is None} | hidden,
        )


def _measure(exporter: Exporter, device: ScrapedGpu, board: ScrapedGpu | None) -> base.Measured:
    measured = base.Measured({}, {})
    for name, metric in GPU_METRICS.items():
        rows, values = exporter.gpu_rows.get(name, []), device.values
        if device.instance:
            own = [row for row in rows if row.by_instance]
            if name in base.SHARED_BY_INSTANCES:
                values = (board.values if board else {}) | values
            elif rows and not own:
                measured.unknown[name] = base.WHOLE_BOARD
                continue
            else:
                rows = own
        value = measure(metric, rows, values, exporter)
        if isinstance(value, str):
            measured.unknown[name] = value
        else:
            measured.metrics[name] = value
    return measured


def _place(exporter: Exporter, device: ScrapedGpu, board: ScrapedGpu | None, number: int) -> tuple[int, int | None]:
    """Index of the board and number of the MIG instance. Without an index, its position on the page."""
    whole = board or device
    index = device.facts.get("index") or whole.facts.get("index", "")
    if not index and exporter.index_series:
        index = f"{whole.values.get(exporter.index_series, math.nan):.0f}"
    place = read_whole(index, 65535)
    return number if place is None else place, read_whole(device.instance, 65535)


def _device_uuid(exporter: Exporter, device: ScrapedGpu) -> str:
    if not device.instance:
        return device.board[:256]
    uuid = device.facts.get("instance_uuid")
    if uuid is None:
        return f"{device.board[:240]}/{device.instance[:15]}"
    return _with_prefix(uuid, exporter.instance_prefix)[:256]


def _name(facts: dict[str, str], *, is_instance: bool) -> str:
    name = facts.get("name") or "NVIDIA GPU"
    return f"{name} MIG {facts.get('profile', '')}".rstrip()[:256] if is_instance else name


def _was_split_anew(gpu: GpuReading, readings: dict[str, GpuReading]) -> bool:
    """Whether its board is still there, with other MIG instances or as a whole: then nothing was lost."""
    boards = {reading.parent or reading.uuid for reading in readings.values() if reading.missing is None}
    return (gpu.parent or gpu.uuid) in boards


def _as_missing(gpu: GpuReading, reason: str) -> GpuReading:
    return msgspec.structs.replace(
        gpu,
        missing=reason,
        metrics={},
        unknown=dict.fromkeys(GPU_METRICS, reason),
        processes=None,
        processes_reason=reason,
        idle_seconds=None,
    )


class ScrapeSource:
    """Reads one host's exporter. See `Source` for errors and concurrency."""

    def __init__(self, target: Target, settings: ScrapeSettings, fetcher: Fetcher) -> None:
        self._target = target
        self._settings = settings
        self._fetcher = fetcher
        self._url = target.url(settings.port, settings.path)
        self._gpus = ScrapedGpuReader(settings.commands)
        self._envelopes = EnvelopeSequence(target, settings.interval, _BOOT)

    async def read(self, now: float) -> FetchedReport:
        """The exporter's page as a report. Exporters do not report the host's clock."""
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
        samples = [sample for sample in page.samples if sample.name in exporter.names]
        self._check_hosts({host for sample in samples if (host := label(sample, exporter.labels.host))})
        devices = ScrapedGpus(exporter, samples, self._target.name)
        if not devices.found:
            raise Temporary(f"{self._url}: {exporter.name} lists no GPU.", _SEE_ITS_LOG)
        measured, count = _measure_host(exporter, samples), len(devices.found)
        many = [f"it lists {count} GPUs or more; the first {MAX_GPUS} are taken"] if count > MAX_GPUS else []
        return Report(
            gpus=self._gpus.read(exporter, devices, now),
            metrics=measured.metrics,
            unknown=measured.unknown,
            driver_version=next((text for each in samples if (text := label(each, exporter.labels.driver))), None),
            labels=self._target.labels,
            problems=[f"{exporter.name}: {problem}"[:1024] for problem in (*page.problems, *many)],
        )

    def _recognise(self, page: Page) -> Exporter:
        """Which exporter answers. Raises Temporary if it reports that it could not read its GPUs."""
        names = {sample.name for sample in page.samples}
        exporter = next((each for each in all_exporters() if each.is_recognised_by(names)), None)
        if exporter is None:
            raise self._explain_unknown(page)
        failed = exporter.failed
        if failed and any(each.name == failed.series and each.value == failed.value for each in page.samples):
            raise Temporary(f"{self._url}: {exporter.name} says that it could not read its GPUs.", _SEE_ITS_LOG)
        return exporter

    def _explain_unknown(self, page: Page) -> Temporary | Absent:
        if self._gpus.has_known_gpus:
            return Temporary(f"{self._url} lists no GPU any more.", _SEE_ITS_LOG)
        if page.problems:
            return Temporary(f"{self._url} cannot be understood: {page.problems[0]}.")
        known = all_exporters()
        return Absent(
            f"{self._url} answers no metrics of a GPU exporter that is known here "
            f"({', '.join(each.name for each in known)}).",
            f"Check its port ({', '.join(f'{each.name}: {each.port}' for each in known)}).",
        )

    def _check_hosts(self, hosts: set[str]) -> None:
        """GPUs of several hosts would be taken for those of one."""
        if len(hosts) > 1:
            # Text from the page goes only to the log, because every reader of the hub sees the message.
            named = ", ".join(sorted(hosts)[:_MAX_NAMED])
            log.debug("%s lists these hosts: %s", self._url, clean(named)[:_LOGGED])
            raise Temporary(f"{self._url} lists {len(hosts)} hosts.", "Read each host's own exporter.")


def _measure_host(exporter: Exporter, samples: list[Sample]) -> base.Measured:
    measured = base.Measured({}, {})
    for name, metric in HOST_METRICS.items():
        rows = exporter.host_rows.get(name, [])
        value = measure(metric, rows, _values(rows, samples), exporter)
        if isinstance(value, str):
            measured.unknown[name] = value
        else:
            measured.metrics[name] = value
    return measured


def _values(rows: Iterable[MetricRow], samples: Iterable[Sample]) -> dict[str, float]:
    where = {pair for row in rows for pair in row.where.items()}
    values: dict[str, float] = {}
    for sample in samples:
        if where <= sample.labels.items():
            values.setdefault(sample.name, sample.value)
    return values


def make(target: Target, settings: ScrapeSettings) -> ScrapeSource:
    """The source of a target. Opens nothing but `ca_file`. Raises UsageError for a target that cannot be read."""
    if not re.match(HOST_NAME, target.name):
        raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
    trust = trust_from(settings.ca_file) if settings.ca_file else None
    fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=MAX_BYTES, trust=trust, guard=AddressGuard.of(target))
    return ScrapeSource(target, settings, fetcher)


def _read_token(token_file: str) -> str:
    """Read each time, because tokens are replaced. Raises Refused."""
    try:
        return read_token(Path(token_file).expanduser(), "Check token_file: it needs the exporter's token.")
    except (UsageError, RuntimeError) as error:
        raise Refused(str(error)) from error
