"""gpu-monitor: the files of its scripts are read out of a folder, or from each host's own web server. Hosts are those
that copy files into the folder, and those that its list in Consul names."""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.compat import readings
from gpudeck.compat.settings import GpuMonitorSettings
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.discovery.inputs import FileProvider, FileThread, HostFindings, ServerProvider, find_path
from gpudeck.fetch import AddressGuard, Fetcher, HttpResponse
from gpudeck.model.address import show_url
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.text import show_span
from gpudeck.sources.base import EnvelopeSequence, FetchedReport
from gpudeck.wire import HOST_NAME

KINDS: Final = ("gpus", "processes", "users", "status")
WHO: Final = "gpu-monitor"
DEAD: Final = "its scripts no longer see this process: probably dead"
ORPHAN: Final = "as gpu-monitor says of its child {}: the process itself is probably dead"
LOST: Final = "its scripts no longer list this GPU: nvidia-smi does not find it"
_GPU_COLUMNS: Final = 9
_PROCESS_COLUMNS: Final = 5
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,127}")
_LOAD: Final = re.compile(r"load averages?: *([0-9]+[.,][0-9]+)")
_FIELDS: Final = {
    "memory.used": ("memory_used_bytes", float(readings.MIB)),
    "memory.total": ("memory_total_bytes", float(readings.MIB)),
    "utilization.gpu": ("utilization_percent", 1.0),
    "utilization.memory": ("memory_utilization_percent", 1.0),
    "temperature.gpu": ("temperature_celsius", 1.0),
}
"""The columns of a GPU behind its name."""
_LISTING_SECONDS: Final = 3.0
"""The times of the rows of one listing differ by less, as on gpu-monitor's page. The next one comes 20 s later."""
_LOST_SECONDS: Final = 90.0
"""A GPU that is missing in the listings of so long is gone."""
_ENDED_SECONDS: Final = 60.0
"""Without any process nothing is listed: the last ones have ended after this time, as on the old page."""
_EMPTY_MIB: Final = 10.0
"""With less memory in use, the listed processes of a GPU that `ps` does not know have ended."""
_ZONE_STEP: Final = 900.0
TAIL_BYTES = 2 * 1024 * 1024
"""Bytes at the end of a file that are read. The scripts begin anew every two hours: 16 GPUs write 700 kB until then."""
_MAX_SERVED: Final = 16 * 1024 * 1024
_WRITTEN_EACH: Final = 20.0
_CONSUL_SECONDS: Final = 60.0
_ADDRESS: Final = re.compile(r"[0-9.]+|.*:.*")
_AGAIN: Final = "Does gpu-check.sh run there, and can it copy its files?"
_SUFFIX: Final = "_gpus.csv"

Files = Mapping[str, bytes | str]
"""The files of a host by kind: each its content, or the reason why there is none."""


class GpuRow(Struct, frozen=True):
    """A GPU with its columns as they are written. `at` is the host's local time as if it were UTC."""

    index: int
    uuid: str
    name: str
    fields: dict[str, str]
    at: float | None


class ProcessRow(Struct, frozen=True):
    """A process on a GPU, with its columns as they are written: a process without a valid pid counts too."""

    uuid: str
    memory: str
    name: str
    pid: str


class GpuMonitorOwner(Struct, frozen=True):
    """The user of a process, and its start on the host's clock."""

    user: str
    started_at: float | None


def read_gpus(content: bytes) -> list[GpuRow]:
    """The last row of each GPU, by its number."""
    rows: dict[str, GpuRow] = {}
    for cells in _rows_from_end(content, _GPU_COLUMNS):
        index = readings.read_pid(cells[0])
        if cells[1] not in rows and index is not None and index <= 65535 and _UUID.fullmatch(cells[1]):
            fields = dict(zip(_FIELDS, cells[3:8], strict=True))
            rows[cells[1]] = GpuRow(index, cells[1], cells[2], fields, _parse_timestamp(cells[8]))
    return sorted(rows.values(), key=lambda row: (row.index, row.uuid))


def read_processes(content: bytes, since: float | None = None) -> list[ProcessRow]:
    """The processes of the last listing, each on its GPU. Those in the listings before it, or of a time before `since`,
    have ended."""
    rows: dict[tuple[str, str], ProcessRow] = {}
    newest: float | None = None
    for cells in _rows_from_end(content, _PROCESS_COLUMNS):
        pid = clean(cells[4])[:64]
        if (cells[1], pid) in rows or not _UUID.fullmatch(cells[1]):
            continue
        at = _parse_timestamp(cells[0])
        newest = at if newest is None else newest
        if at is not None and ((since is not None and at < since) or abs(at - (newest or at)) > _LISTING_SECONDS):
            break
        rows[cells[1], pid] = ProcessRow(cells[1], cells[2], clean(cells[3]), pid)
    return list(rows.values())[::-1]


def read_owners(content: bytes) -> tuple[dict[int, GpuMonitorOwner], dict[int, int]]:
    """The owners of processes, and the first child of each process. A line of JSON begins the list anew."""
    owners: dict[int, GpuMonitorOwner] = {}
    children: dict[int, int] = {}
    for line in _lines(content[content.rfind(b"\n{") + 1 :]):
        if line.startswith("{"):
            owners, children = {}, _read_children(line)
            continue
        words = [*line.split(None, 2), "", ""]
        pid, user = readings.read_pid(words[0]), readings.read_word(words[1])
        if pid is not None and user is not None:
            owners[pid] = GpuMonitorOwner(user, _parse(words[2].strip(), "%a %b %d %H:%M:%S %Y"))
    return owners, children


def _read_children(line: str) -> dict[int, int]:
    try:
        listed = msgspec.json.decode(line.encode(), type=dict[str, list[str | int]])
    except (msgspec.DecodeError, RecursionError):
        return {}
    pairs = ((readings.read_pid(parent), readings.read_pid(pids[0])) for parent, pids in listed.items() if pids)
    return {parent: child for parent, child in pairs if child is not None and parent is not None}


def read_status(content: bytes) -> dict[str, float]:
    """Metrics of the host: those that are reported."""
    status: dict[str, float] = {}
    # Its last line is of use without its end too.
    for line in _lines(content + b"\n"):
        words = line.split()
        if line.startswith("Mem:"):
            status |= _read_memory(words)
        elif len(words) >= 6 and words[-1] == "/" and words[1].isdigit() and words[2].isdigit():
            status |= {"disk_total_bytes": int(words[1][:18]) * 1024, "disk_used_bytes": int(words[2][:18]) * 1024}
        elif len(words) == 1 and words[0].isascii() and words[0].isdigit():
            status["cpu_count"] = int(words[0][:9])
        elif match := _LOAD.search(line):
            status["load_1m"] = float(match[1].replace(",", "."))
    return status


def _read_memory(words: list[str]) -> dict[str, float]:
    """Memory that is available to programs is not in use, as an agent counts it."""
    numbers = [int(word[:18]) * readings.MIB for word in words[1:] if word.isascii() and word.isdigit()]
    if len(numbers) < 2:
        return {}
    used = numbers[0] - numbers[5] if len(numbers) >= 6 else numbers[1]
    return {"memory_total_bytes": numbers[0], "memory_used_bytes": used}


def _rows_from_end(content: bytes, columns: int) -> Iterator[list[str]]:
    for line in reversed(_lines(content)):
        if line.count(",") == columns - 1:
            yield [cell.strip() for cell in line.split(",")]


def _lines(content: bytes) -> list[str]:
    whole = content[: content.rfind(b"\n") + 1]
    return [stripped for line in whole.decode(errors="replace").split("\n") if (stripped := line.strip())]


def _parse_timestamp(text: str) -> float | None:
    return _parse(text, "%Y/%m/%d %H:%M:%S.%f")


def _parse(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def read_report(
    files: Files, reader: readings.GpuReader, written_at: float, now: float, labels: dict[str, str]
) -> Report:
    """`written_at` is when the files were written, on a clock with a zone. Raises Temporary without any GPU."""
    rows = read_gpus(_content(files, "gpus") or b"")[: readings.MAX_GPUS]
    if not rows:
        raise Temporary("has no line of a GPU.", "Does gpu-run.sh run there, and nvidia-smi?")
    newest = max((row.at for row in rows if row.at is not None), default=None)
    processes = _read_processes(files, rows, newest, written_at)
    gpus = list[GpuReading]()
    for row in rows:
        if row.at is not None and newest is not None and row.at < newest - _LOST_SECONDS:
            gpus.append(readings.describe_missing_gpu(row.uuid, row.index, LOST, row.name))
        else:
            listed = processes if isinstance(processes, str) else processes.get(row.uuid, [])
            gpus.append(reader.read(row.uuid, row.index, row.name, row.fields, listed, now))
    figures = readings.Figures(HOST_METRICS, WHO)
    status = files.get("status", b"")
    for name, value in read_status(status).items() if isinstance(status, bytes) else ():
        figures.take(name, value)
    figures.unknown |= dict.fromkeys(figures.unknown, status) if isinstance(status, str) else {}
    return Report(gpus=gpus, metrics=figures.metrics, unknown=figures.unknown, labels=labels)


def _content(files: Files, kind: str) -> bytes | None:
    content = files.get(kind)
    return content if isinstance(content, bytes) else None


def _read_processes(
    files: Files, gpus: list[GpuRow], newest: float | None, written_at: float
) -> dict[str, list[Process]] | str:
    """The running processes by GPU, or why they are unknown. `newest` is when a GPU was last listed."""
    content, users = files.get("processes", f"{WHO} lists no processes"), _content(files, "users")
    if isinstance(content, str):
        return content
    # Seconds from the host's local time to UTC, by quarters of an hour.
    offset = 0.0 if newest is None else round((written_at - newest) / _ZONE_STEP) * _ZONE_STEP
    no_owner = DEAD if users is not None else str(files.get("users", ""))
    owners, children = read_owners(users or b"")
    used = {row.uuid: readings.read_number(row.fields["memory.used"]) for row in gpus}
    empty = {uuid for uuid, mib in used.items() if users is not None and mib is not None and mib < _EMPTY_MIB}
    by_gpu: dict[str, list[Process]] = {}
    for row in read_processes(content, None if newest is None else newest - _ENDED_SECONDS):
        listed, pid = by_gpu.setdefault(row.uuid, []), readings.read_pid(row.pid)
        has_ended = pid is not None and pid not in owners and row.uuid in empty
        if has_ended or len(listed) >= readings.max_processes(len(gpus)):
            continue
        # A process that has ended, and whose child lives on, belongs to its child's user.
        child = 0 if pid in owners else children.get(pid or 0, 0)
        owner = owners.get(child or pid or 0)
        start = None if owner is None or owner.started_at is None else owner.started_at + offset
        process = readings.describe_process(
            pid=row.pid,
            user=owner.user if owner else None,
            name=row.name,
            memory=row.memory,
            started_at=start,
            who=WHO,
            why="" if owner else no_owner,
            evidence=ORPHAN.format(child) if owner and child else "",
        )
        listed.append(process)
    return by_gpu


class GpuMonitorSource:
    """Reads the files of one host over and over. A subclass fetches them in `_fetch`. See `Source`."""

    def __init__(self, target: Target, settings: GpuMonitorSettings, place: str) -> None:
        if not re.match(HOST_NAME, target.name):
            raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
        self._labels = target.labels
        self._old_after = settings.old_after
        self._place = f"{place}/{target.name}_gpus.csv"
        self._envelopes = EnvelopeSequence(target, max(settings.interval, _WRITTEN_EACH), WHO)
        self._reader = readings.GpuReader(WHO, _FIELDS)
        self._last: bytes | None = None
        self._changed_at = 0.0

    async def read(self, now: float) -> FetchedReport:
        files, written_at = await self._fetch()
        return await parse_in_thread(self._take, files, written_at, now)

    async def close(self) -> None:
        return

    async def _fetch(self) -> tuple[Files, float | None]:
        """The files of the host, and when that of its GPUs was written, if that is known."""
        raise NotImplementedError

    def _take(self, files: Files, written_at: float | None, now: float) -> FetchedReport:
        """Raises Temporary for files that are missing, old, or of another shape."""
        gpus = files["gpus"]
        if isinstance(gpus, str):
            raise Temporary(f"{self._place}: {gpus}", _AGAIN)
        # With a clock ahead of ours a host's files would never be old: files that do not change get old too.
        if gpus != self._last:
            self._last, self._changed_at = gpus, now
        written = min(now if written_at is None else written_at, self._changed_at)
        if now - written > self._old_after:
            raise Temporary(f"{self._place} was written {show_span(now - written)} ago.", _AGAIN)
        try:
            report = read_report(files, self._reader, written, now, self._labels)
        except Temporary as error:
            raise Temporary(f"{self._place} {error.message}", error.hint) from error
        return FetchedReport(self._envelopes.put(report, written), now)


class FolderSource(GpuMonitorSource):
    """Reads one host's files in the folder into which it copies them."""

    def __init__(self, target: Target, settings: GpuMonitorSettings) -> None:
        if settings.folder is None:
            raise UsageError(
                f"{target.name} is read out of a folder, and none is named.", "Set compat.gpu_monitor.folder."
            )
        super().__init__(target, settings, settings.folder)
        self._folder = settings.folder
        self._name = target.name
        self._files_thread = FileThread()

    async def _fetch(self) -> tuple[Files, float | None]:
        return await self._files_thread.run(self._read_files)

    def _read_files(self) -> tuple[Files, float | None]:
        folder = find_path(self._folder)
        read = {kind: _read_end(folder / f"{self._name}_{kind}.csv") for kind in KINDS}
        return {kind: content for kind, (content, _) in read.items()}, read["gpus"][1]


def _read_end(file: Path) -> tuple[bytes | str, float | None]:
    """The end of a file from a whole line on, and when it was written; or why not. Others write into the folder: what
    is no plain file there, such as a link to another place, is not read."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:  # noqa: PTH123
            state = os.fstat(opened.fileno())
            if not stat.S_ISREG(state.st_mode):
                return "it is no plain file.", None
            opened.seek(max(0, state.st_size - TAIL_BYTES))
            content = opened.read(TAIL_BYTES)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ELOOP:
            return "it is a link, and those are not followed.", None
        return f"it cannot be read: {(getattr(error, 'strerror', None) or str(error)).lower()}.", None
    return _cut(content, state.st_size), state.st_mtime


def _cut(content: bytes, size: int) -> bytes:
    return content if size <= TAIL_BYTES else content[-TAIL_BYTES:].partition(b"\n")[2]


class ServedSource(GpuMonitorSource):
    """Fetches one host's files from the web server that it runs itself. Its scripts name the files after the short name
    of the host, or after a given name: the possible names are tried until one is there."""

    def __init__(self, target: Target, settings: GpuMonitorSettings) -> None:
        base = target.url(settings.port, "/").rstrip("/")
        super().__init__(target, settings, base)
        self._base = base
        self._names = _find_file_names(target)
        self._fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=_MAX_SERVED, guard=AddressGuard.of(target))

    async def close(self) -> None:
        await self._fetcher.close()

    async def _fetch(self) -> tuple[Files, float | None]:
        gpus = await self._fetch_gpus()
        others = await asyncio.gather(*(self._get(self._names[0], kind) for kind in KINDS[1:]), return_exceptions=True)
        files: dict[str, bytes | str] = {"gpus": _cut(gpus.body, len(gpus.body))}
        for kind, other in zip(KINDS[1:], others, strict=True):
            if isinstance(other, HttpResponse):
                files[kind] = _cut(other.body, len(other.body))
            elif isinstance(other, GpudeckError):
                files[kind] = str(other)
            else:
                raise other
        return files, _parse_date(gpus.headers.get("last-modified", ""))

    async def _fetch_gpus(self) -> HttpResponse:
        """By the first name under which the file is there; it is tried first from then on."""
        missing: GpudeckError | None = None
        for name in list(self._names):
            try:
                answer = await self._get(name, "gpus")
            except GpudeckError as error:
                missing = missing or error
                if "answers 404" not in error.message:
                    raise missing from None
                continue
            self._names.sort(key=lambda known: known != name)
            return answer
        raise missing or AssertionError("a host has a name")

    async def _get(self, name: str, kind: str) -> HttpResponse:
        return await self._fetcher.get(f"{self._base}/{name}_{kind}.csv")


def _find_file_names(target: Target) -> list[str]:
    """The possible names of a host's files, its short name first: of its name here, and of its address."""
    words = [word for word in (target.name, target.host) if not _ADDRESS.fullmatch(word)]
    return list(dict.fromkeys([*(name for word in words for name in (word.partition(".")[0], word)), target.name]))


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


class FolderHosts(FileProvider):
    """Every host with a file of GPUs in the folder. An invalid name is reported as a problem, and not read."""

    pause = 5.0

    def _find(self) -> HostFindings:
        findings = HostFindings()
        try:
            names = sorted(entry.name for entry in os.scandir(find_path(self.origin)) if entry.name.endswith(_SUFFIX))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Temporary(f"{self.origin} cannot be read: {reason}.", "Mend compat.gpu_monitor.folder.") from error
        for name in names:
            host = name.removesuffix(_SUFFIX)
            if not is_host_name(host):
                findings.add_problem(f"{self.origin}: {quote(name)} is no file of a host.")
                continue
            if not findings.add([Target(name=host, via="gpu-monitor-files", origin=self.origin)], self.origin):
                break
        return findings


class _GpuMonitorNode(Struct, rename="pascal"):
    """An instance in Consul's catalog. Its health endpoint nests the same."""

    node: str | dict[str, object]


_decode_node = msgspec.json.Decoder(_GpuMonitorNode).decode


class ConsulNodes(ServerProvider):
    """The nodes in a list that an address answers, as gpu-monitor asked Consul: only their names count. A host is known
    by its short name, as in its files and reservations, unless two nodes have the same one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shown = show_url(url)
        super().__init__(f"consul {self._shown}", _CONSUL_SECONDS)

    async def find(self) -> list[Target]:
        await self._fetch(self._url, read_nodes, self.origin, self._shown)
        return self._findings.targets


def read_nodes(body: bytes, origin: str, url: str) -> HostFindings:
    """Raises Temporary."""
    try:
        entries = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise Temporary(f"{url} answers no list of nodes in JSON.", "Is that Consul's address?") from error
    nodes, names = set[str](), set[str]()

    def read(raw: msgspec.Raw) -> list[Target]:
        node = _read_name(raw)
        if node in nodes:
            return []
        short = node if _ADDRESS.fullmatch(node) else node.partition(".")[0]
        name = node if short in names else short
        nodes.add(node)
        names.add(name)
        return [Target(name=name, via="gpu-monitor", address="" if name == node else node, origin=origin)]

    return HostFindings().read(entries, read, f"{origin}, entry")


def _read_name(raw: msgspec.Raw) -> str:
    node = _decode_node(raw).node
    name = node if isinstance(node, str) else node.get("Node")
    if not isinstance(name, str) or not is_host_name(name):
        raise ValueError(f"{quote(str(name))} is no name of a host")
    return name
