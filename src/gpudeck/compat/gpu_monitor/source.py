"""Hosts on which gpu-monitor's scripts run: their files are read out of a folder, or from the host's own web server."""

import asyncio
import errno
import os
import re
import stat
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from gpudeck.compat.gpu_monitor.report import KINDS, WHO, Files, ReportBuilder
from gpudeck.compat.gpu_monitor.settings import GpuMonitorSettings
from gpudeck.discovery.inputs import FileThread, find_path
from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import GpudeckError, Temporary, UsageError
from gpudeck.model.quantity import show_span
from gpudeck.model.target import Target
from gpudeck.sources.base import Arrival, EnvelopeSequence
from gpudeck.wire import HOST_NAME

TAIL_BYTES = 2 * 1024 * 1024
"""So much of the end of a file is read. The scripts begin anew every two hours: 16 GPUs write 700 kB until then."""
_SERVED_AT_MOST = 16 * 1024 * 1024
_WRITTEN_EACH = 20.0
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")
_AGAIN = "Does gpu-check.sh run there, and can it copy its files?"


class FoundFiles(NamedTuple):
    """The files of a host by kind, each a content or the reason why there is none. `written_at` is when that of its
    GPUs was written, None where nobody says."""

    contents: Mapping[str, bytes | str]
    written_at: float | None


class _Reading:
    """What both ways of getting the files share: are they new, and what do they say."""

    def __init__(self, target: Target, settings: GpuMonitorSettings, place: str) -> None:
        if not re.match(HOST_NAME, target.name):
            raise UsageError(f"{target.name!r} cannot be the name of a host.", "Use letters, digits, dots and hyphens.")
        self._target = target
        self._settings = settings
        self._place = place
        self._envelopes = EnvelopeSequence(target, max(settings.interval, _WRITTEN_EACH), WHO)
        self._reporter = ReportBuilder(settings.commands)
        self._seen: bytes | None = None
        self._seen_at = 0.0

    def take(self, found: FoundFiles, now: float) -> Arrival:
        """Raises Temporary for files that are missing, old, or of another shape."""
        gpus = found.contents["gpus"]
        if isinstance(gpus, str):
            raise Temporary(f"{self._place}: {gpus}", _AGAIN)
        written_at = self._check_age(gpus, found.written_at, now)
        others = {kind: content for kind, content in found.contents.items() if isinstance(content, bytes)}
        reasons = {kind: content for kind, content in found.contents.items() if isinstance(content, str)}
        files = Files(gpus, others.get("processes"), others.get("users"), others.get("status"), reasons)
        try:
            report = self._reporter.make(files, written_at, now, self._target.labels)
        except Temporary as error:
            raise Temporary(f"{self._place} {error.message}", error.hint) from error
        # It counts from when it was written: a host whose files come late is late.
        return Arrival(self._envelopes.put(report, written_at), now)

    def _check_age(self, gpus: bytes, written_at: float | None, now: float) -> float:
        """When the file was written; raises Temporary where that is too long ago. A host whose clock is ahead would
        stay young for ever: what does not change here gets old too."""
        if gpus != self._seen:
            self._seen, self._seen_at = gpus, now
        written = min(now if written_at is None else written_at, self._seen_at)
        if now - written > self._settings.old_after:
            raise Temporary(f"{self._place} was written {show_span(now - written)} ago.", _AGAIN)
        return written


class FolderSource:
    """Reads one host's files out of the folder into which it copies them."""

    def __init__(self, target: Target, settings: GpuMonitorSettings) -> None:
        if settings.folder is None:
            raise UsageError(
                f"{target.name} is read out of a folder, and none is named.", "Set compat.gpu_monitor.folder."
            )
        self._folder = settings.folder
        self._name = target.name
        self._reading = _Reading(target, settings, f"{settings.folder}/{target.name}_gpus.csv")
        self._files_thread = FileThread()

    async def read(self, now: float) -> Arrival:
        found = await self._files_thread.run(self._look)
        return await parse_in_thread(self._reading.take, found, now)

    async def close(self) -> None:
        """Nothing is open."""

    def _look(self) -> FoundFiles:
        folder = find_path(self._folder)
        found = {kind: _read_end(folder / f"{self._name}_{kind}.csv") for kind in KINDS}
        written_at = next((found[kind][1] for kind in KINDS), None)
        return FoundFiles({kind: content for kind, (content, _) in found.items()}, written_at)


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
    """The end of what has `size` bytes, from a whole line on."""
    return content if size <= TAIL_BYTES else content[-TAIL_BYTES:].partition(b"\n")[2]


_Served = tuple[bytes, float | None] | GpudeckError
"""A file and when it was written, or why there is none."""


class ServedSource:
    """Fetches one host's files from the web server that it runs itself. Its scripts name the files after the short name
    of the host, or after whatever they were given: the names that they can have are tried until one is there."""

    def __init__(self, target: Target, settings: GpuMonitorSettings) -> None:
        self._base = target.url(settings.port, "/").rstrip("/")
        self._names = _find_file_names(target)
        self._fetcher = Fetcher(
            deadline=settings.deadline, bytes_at_most=_SERVED_AT_MOST, guard=AddressGuard.of(target)
        )
        self._reading = _Reading(target, settings, f"{self._base}/{target.name}_gpus.csv")

    async def read(self, now: float) -> Arrival:
        answers = await self._fetch_all()
        if isinstance(first := answers[0], GpudeckError):
            raise first
        contents = {
            kind: answer[0] if isinstance(answer, tuple) else str(answer)
            for kind, answer in zip(KINDS, answers, strict=True)
        }
        return await parse_in_thread(self._reading.take, FoundFiles(contents, first[1]), now)

    async def close(self) -> None:
        await self._fetcher.close()

    async def _fetch_all(self) -> list[_Served]:
        """All files by the first name under which that of the GPUs is there; it is the first one from then on."""
        first = None
        for name in list(self._names):
            answers = await asyncio.gather(*(self._fetch(name, kind) for kind in KINDS))
            if not isinstance(answers[0], GpudeckError):
                self._names.sort(key=lambda known: known != name)
                return answers
            first = first or answers
            if "answers 404" not in answers[0].message:
                return answers
        return first or []

    async def _fetch(self, name: str, kind: str) -> _Served:
        """A file and when it was written. One that is missing costs what stands in it."""
        try:
            answer = await self._fetcher.get(f"{self._base}/{name}_{kind}.csv")
        except GpudeckError as error:
            return error
        return _cut(answer.body, len(answer.body)), _parse_date(answer.headers.get("last-modified", ""))


def _find_file_names(target: Target) -> list[str]:
    """What the files of a host can be named after, its short name first: its name here, and the name it is asked by."""
    words = [word for word in (target.name, target.host) if not _ADDRESS.fullmatch(word)]
    return list(dict.fromkeys([*(name for word in words for name in (word.partition(".")[0], word)), target.name]))


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
