"""gpu-monitor: the files of its scripts are read out of a folder, or from each host's own web server. Hosts are those
that copy files into the folder, and those that its list in Consul names."""

import asyncio
import errno
import os
import re
import stat
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.compat.gpu_monitor_files import KINDS, WHO, Files, make_reader, read_report
from gpudeck.compat.settings import GpuMonitorSettings
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.discovery.inputs import FileProvider, FileThread, HostFindings, ServerProvider, find_path
from gpudeck.fetch import AddressGuard, Fetcher, HttpResponse
from gpudeck.model.address import show_url
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.model.text import show_span
from gpudeck.sources.base import EnvelopeSequence, FetchedReport
from gpudeck.wire import HOST_NAME

TAIL_BYTES = 2 * 1024 * 1024
"""So much of the end of a file is read. The scripts begin anew every two hours: 16 GPUs write 700 kB until then."""
_MAX_SERVED = 16 * 1024 * 1024
_WRITTEN_EACH = 20.0
_CONSUL_SECONDS = 60.0
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_AGAIN = "Does gpu-check.sh run there, and can it copy its files?"
_SUFFIX = "_gpus.csv"


class GpuMonitorSource:
    """Reads the files of one host over and over. A subclass fetches them in `_fetch`. See `Source`."""

    def __init__(self, target: Target, settings: GpuMonitorSettings, place: str) -> None:
        if not re.match(HOST_NAME, target.name):
            raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
        self._labels = target.labels
        self._old_after = settings.old_after
        self._place = f"{place}/{target.name}_gpus.csv"
        self._envelopes = EnvelopeSequence(target, max(settings.interval, _WRITTEN_EACH), WHO)
        self._reader = make_reader()
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
    """What the files of a host can be named after, its short name first: its name here, and the name it is asked by."""
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


_decode_nodes = msgspec.json.Decoder(list[msgspec.Raw]).decode
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
    findings, seen, names = HostFindings(), set[str](), set[str]()
    try:
        entries = _decode_nodes(body)
    except (ValueError, RecursionError) as error:
        raise Temporary(f"{url} answers no list of nodes in JSON.", "Is that Consul's address?") from error
    for number, raw in enumerate(entries, 1):
        place = f"{origin}, entry {number}"
        try:
            node = _read_name(raw)
        except (ValueError, RecursionError) as error:
            findings.add_problem(f"{place}: {error}.")
            continue
        if node in seen:
            continue
        short = node if _ADDRESS.fullmatch(node) else node.partition(".")[0]
        name = node if short in names else short
        seen.add(node)
        names.add(name)
        address = "" if name == node else node
        if not findings.add([Target(name=name, via="gpu-monitor", address=address, origin=origin)], place):
            break
    return findings


def _read_name(raw: msgspec.Raw) -> str:
    node = _decode_node(raw).node
    name = node if isinstance(node, str) else node.get("Node")
    if not isinstance(name, str) or not is_host_name(name):
        raise ValueError(f"{quote(str(name))} is no name of a host")
    return name
