"""Reports on disk: segment files of records, appended in batches, each record marked when it was sent.

A record is a mark, its state, the length and the CRC-32 of what follows, and a report in msgpack. A record that is
torn or damaged costs itself, and neither those after it nor the agent's start. A segment is deleted when
nothing in it waits any more. The folder and its files are readable by their owner only (reports name users and
commands), and a lock keeps a second agent out.
"""

import contextlib
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.wire import MAX_BODY_BYTES

log = logging.getLogger(__name__)

_HEAD = struct.Struct("<3scII")
_MARK = b"GDR"
_WAITS, _SENT = b"w", b"s"
_STATE_AT = 3
_LONGEST = MAX_BODY_BYTES + 4096
_SEGMENT_BYTES = 1024 * 1024
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ReportTime(Struct, frozen=True, gc=False):
    """When a report was made. `wall` is what the report itself says (`collected_at`), and may be wrong or set later.
    `boottime` measures its waiting time all the same; None for a report of an earlier boot."""

    wall: float | None = None
    boottime: float | None = None

    def sent_at(self, wall: float, boottime: float) -> float:
        """What `Gpudeck-Sent-At` says at a moment of both clocks: `collected_at` and the time that has passed since,
        however the wall clock was set meanwhile. Only for an earlier boot the wall clock has to do."""
        if self.wall is None:
            return wall
        if self.boottime is not None and boottime >= self.boottime:
            return self.wall + boottime - self.boottime
        return max(wall, self.wall)


class EncodedReport(Struct, frozen=True):
    """One encoded envelope and the host it is about.

    `short` is the same as a short report, for a hub that has taken a whole one with that `description`. It is empty
    where there is none, and not kept on disk.
    """

    host: str
    body: bytes
    made: ReportTime = ReportTime()
    description: str = ""
    short: bytes = b""


class SpoolPosition(Struct, frozen=True, gc=False):
    """Where a record is: the number of its segment, its first byte, and its length."""

    segment: int
    offset: int
    length: int


class _Record(Struct, frozen=True, array_like=True):
    """`boottime` counts within the boot `boot_id` only."""

    host: str
    body: bytes
    collected_at: float | None = None
    boot_id: str = ""
    boottime: float | None = None


_decoder = msgspec.msgpack.Decoder(_Record)


class Spool:
    """The folder of one host's reports. Used by one thread at a time; what reads or writes reports may raise OSError.

    `boot_id` is this boot's. `damaged` counts places in segments that could not be read.
    """

    def __init__(self, folder: Path, boot_id: str, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self.folder = folder
        self.damaged = 0
        self._boot_id = boot_id
        self._segment_bytes = segment_bytes
        self._lock: int | None = None
        self._writing: int | None = None
        self._written = 0
        self._last = 0
        self._waiting: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def is_there(self) -> bool:
        """Whether an agent has written here before."""
        with contextlib.suppress(OSError):
            return self.folder.is_dir()
        return False

    def open(self) -> Iterator[tuple[EncodedReport, SpoolPosition]]:
        """Lock the folder, made where it is not there, and read what waits in it, oldest first.

        Raises BlockingIOError while another agent uses it.
        """
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        found = self.folder.stat()
        if found.st_uid != os.geteuid():
            raise PermissionError(1, f"it belongs to another user (uid {found.st_uid})")
        if found.st_mode & 0o077:
            self.folder.chmod(0o700)
        self._lock = lock_folder(self.folder)
        return self._load()

    def append(self, reports: Sequence[EncodedReport]) -> list[SpoolPosition]:
        """Write reports and have the disk confirm them (fsync). When it fails none of them is kept."""
        writing = self._writing
        if writing is None or self._written >= self._segment_bytes:
            writing = self._start_segment()
        records = [self._encode(report) for report in reports]
        try:
            _write(writing, b"".join(records))
            os.fsync(writing)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(writing, self._written)
            # Nobody knows what the disk holds of this file now: the next batch gets another one.
            self._stop_writing()
            raise
        places = []
        for record in records:
            places.append(SpoolPosition(self._last, self._written, len(record)))
            self._written += len(record)
        self._waiting[self._last] += len(places)
        return places

    def read(self, place: SpoolPosition) -> EncodedReport | None:
        """The report; None when it is gone or damaged."""
        try:
            file = os.open(self._file(place.segment), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            record = os.pread(file, place.length, place.offset)
        except OSError:
            return None
        finally:
            os.close(file)
        return self._decode(record[_HEAD.size :]) if _is_whole(record) else None

    def mark_sent(self, place: SpoolPosition) -> None:
        """The report was sent: it is not read again after a restart. Not confirmed by the disk: after a power cut, or
        where it fails, some are sent twice, and the hub knows them by their sequence."""
        with contextlib.suppress(OSError):
            if self._waiting.get(place.segment, 0) > 1:
                file = os.open(self._file(place.segment), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.pwrite(file, _SENT, place.offset + _STATE_AT)
                finally:
                    os.close(file)
            self.release(place)

    def release(self, place: SpoolPosition) -> None:
        """The report no longer waits. The last one of a segment takes the file with it."""
        left = self._waiting.get(place.segment, 0) - 1
        self._waiting[place.segment] = left
        if left > 0:
            return
        if place.segment == self._last:
            self._stop_writing()
        self._waiting.pop(place.segment, None)
        with contextlib.suppress(OSError):
            self._file(place.segment).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others use the folder. What waits stays there."""
        self._stop_writing()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _load(self) -> Iterator[tuple[EncodedReport, SpoolPosition]]:
        for file in sorted(self.folder.glob("*.segment")):
            number = int(file.stem) if file.stem.isdecimal() else -1
            if file != self._file(number):
                continue
            self._last = max(self._last, number)
            try:
                waiting = list(self._load_segment(number, file))
                if not waiting:
                    file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be read, its reports are lost: %s", file, error.strerror)
                self.damaged += 1
                continue
            if waiting:
                self._waiting[number] = len(waiting)
                yield from waiting

    def _load_segment(self, number: int, file: Path) -> Iterator[tuple[EncodedReport, SpoolPosition]]:
        with file.open("rb") as opened:
            content = opened.read()
        for offset, record in _split(content):
            report = self._decode(record[_HEAD.size :]) if _is_whole(record) else None
            if report is None:
                log.warning("%s is damaged or truncated at byte %d: the report there is lost", file, offset)
                self.damaged += 1
            elif record[_STATE_AT : _STATE_AT + 1] == _WAITS:
                yield report, SpoolPosition(number, offset, len(record))

    def _start_segment(self) -> int:
        self._stop_writing()
        self._writing = os.open(self._file(self._last + 1), _NEW_FILE, 0o600)
        self._last += 1
        self._written = 0
        self._waiting[self._last] = 0
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._writing

    def _stop_writing(self) -> None:
        if self._writing is not None:
            os.close(self._writing)
            self._writing = None
        if self._waiting.get(self._last) == 0:
            del self._waiting[self._last]
            with contextlib.suppress(OSError):
                self._file(self._last).unlink(missing_ok=True)

    def _encode(self, report: EncodedReport) -> bytes:
        record = _Record(report.host, report.body, report.made.wall, self._boot_id, report.made.boottime)
        body = msgspec.msgpack.encode(record)
        return _HEAD.pack(_MARK, _WAITS, len(body), zlib.crc32(body)) + body

    def _decode(self, body: bytes | memoryview) -> EncodedReport | None:
        try:
            record = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_this_boot = record.boot_id == self._boot_id != "unknown"
        return EncodedReport(
            record.host, record.body, ReportTime(record.collected_at, record.boottime if is_this_boot else None)
        )

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:012}.segment"


def lock_folder(folder: Path) -> int:
    """A file descriptor that holds the folder's lock until it is closed. Raises BlockingIOError if another has it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def remove_abandoned(folder: Path, before: float) -> None:
    """Delete a folder of reports that no agent uses and in which nothing has changed since `before` (Unix seconds)."""
    with contextlib.suppress(OSError):
        if max(entry.stat().st_mtime for entry in (folder, *folder.iterdir())) >= before:
            return
        lock = lock_folder(folder)
        try:
            for file in (*folder.glob("*.segment"), folder / "lock"):
                file.unlink()
            folder.rmdir()
        finally:
            os.close(lock)


def _split(content: bytes) -> Iterator[tuple[int, memoryview]]:
    """Records with where they begin, and what lies between two of them, which is none."""
    view, offset = memoryview(content), 0
    while offset < len(content):
        end = _end_of(view, offset)
        is_followed = end == len(content) or content[end : end + len(_MARK)] == _MARK
        if end == offset or not (is_followed or _is_whole(view[offset:end])):
            end = _find_whole(view, content, offset + 1)  # its length is damaged: the next one begins somewhere else
        yield offset, view[offset:end]
        offset = end


def _end_of(content: memoryview, offset: int) -> int:
    """Where the record ends that begins there, by its own account; the place itself where none does."""
    head = content[offset : offset + _HEAD.size]
    if len(head) < _HEAD.size or head[:3] != _MARK:
        return offset
    return offset + _HEAD.size + int(_HEAD.unpack(head)[2])


def _find_whole(view: memoryview, content: bytes, start: int) -> int:
    """Where the first whole record from there on begins; the end of the content where none does."""
    offset = content.find(_MARK, start)
    while offset >= 0 and not _is_whole(view[offset : _end_of(view, offset)]):
        offset = content.find(_MARK, offset + 1)
    return offset if offset >= 0 else len(content)


def _is_whole(record: bytes | memoryview) -> bool:
    if len(record) < _HEAD.size or record[:3] != _MARK:
        return False
    length: int
    checksum: int
    _, _, length, checksum = _HEAD.unpack(record[: _HEAD.size])
    return length <= _LONGEST and len(record) == _HEAD.size + length and zlib.crc32(record[_HEAD.size :]) == checksum


def _write(file: int, content: bytes) -> None:
    """All of it: a disk that is nearly full takes a part first."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
