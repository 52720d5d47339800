"""Records that wait on the disk to be sent: segments, appended by one thread and read by another.

A record is written to the system at once, so it survives the end of the process; a full segment is synced. A torn end
is cut off. Beyond its size limit the queue drops its oldest segment. The file `sent` says how far the first segment was
sent. A record is a head with a checksum, and compressed series.
"""

import contextlib
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import zstandard
from msgspec import Struct

from gpudeck.history.remote.encoder import EncodedSeries

_HEAD = struct.Struct("<4sIIId")
"""A mark, the body's length and checksum, how many values it has, and their time."""
_MARK: Final = b"GDQ1"
_LONGEST: Final = 16 * 1024 * 1024
log = logging.getLogger(__name__)

_PLACE = struct.Struct("<QQ")
_SEGMENT: Final = 16_000_000
Place = tuple[int, int]
"""The number of a segment, and how many bytes of it come before."""


def encode_record(part: EncodedSeries, packer: zstandard.ZstdCompressor) -> bytes:
    """`packer` is the caller's: to make one takes longer than to use it, and no two threads may."""
    body = packer.compress(part.body)
    return _HEAD.pack(_MARK, len(body), zlib.crc32(body), part.values, part.at) + body


def read_records(file: Path, begin: int = 0, end: int | None = None) -> Iterator[tuple[EncodedSeries, int]]:
    """The records from `begin` until `end`, and where each ends; stops early at one that is torn or damaged. A file
    that is gone has none."""
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        return
    with opened:
        opened.seek(begin)
        while end is None or opened.tell() < end:
            part = _decode_record(opened)
            if part is None:
                return
            yield part, opened.tell()


def _decode_record(file: BinaryIO) -> EncodedSeries | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    mark, length, checksum, values, at = _HEAD.unpack(head)
    if mark != _MARK or length > _LONGEST:
        return None
    body = file.read(length)
    if len(body) < length or zlib.crc32(body) != checksum:
        return None
    return EncodedSeries(zstandard.ZstdDecompressor().decompress(body, max_output_size=_LONGEST), values, at)


class QueuedRecord(Struct, frozen=True):
    """A record, and the place behind it."""

    part: EncodedSeries
    after: Place


class DiskQueue:
    """`append` is for one thread, `peek` and `done` for one other. Raises OSError when the folder cannot be used.
    `most_bytes` bounds it on the disk. `dropped` counts records that were not sent and never will be; `lost` is from
    when until when those were taken that were dropped since all had been sent last, None: none were."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self.most_bytes = most_bytes
        self._segment_bytes = min(_SEGMENT, max(most_bytes // 8, 1))
        self._lock = threading.Lock()
        self._packer = zstandard.ZstdCompressor(level=1)
        self.dropped = 0
        self.lost: tuple[float, float] | None = None
        self._sizes = {int(file.stem): file.stat().st_size for file in folder.glob("*.segment")}
        self._sent: Place = self._load_sent()
        self._writing: BinaryIO = self._open_last()
        if self._sent[0] not in self._sizes or self._sent[1] > self._sizes[self._sent[0]]:
            self._sent = (min(self._sizes), 0)
        self._remove_before(self._sent[0])

    def size(self) -> int:
        """How many bytes wait on the disk."""
        with self._lock:
            return sum(self._sizes.values()) - self._sent[1]

    def is_empty(self) -> bool:
        with self._lock:
            return self._sent == self._end()

    def append(self, parts: Sequence[EncodedSeries]) -> None:
        """Raises OSError when there is no room; then none of `parts` is kept."""
        body = b"".join(encode_record(part, self._packer) for part in parts)
        with self._lock:
            number, length = self._end()
        if length >= self._segment_bytes:
            self._roll(number + 1)
            number, length = number + 1, 0
        try:
            self._write(body)
        except OSError:
            # Part of it may be there.
            os.truncate(self._file(number), length)
            raise
        with self._lock:
            self._sizes[number] = length + len(body)
        self._keep_to_size()

    def peek(self, values: int) -> list[QueuedRecord]:
        """The oldest records, left in their place: as many as have `values` values together, at least one."""
        found: list[QueuedRecord] = []
        total = 0
        for waiting in self._read():
            total += waiting.part.values
            if found and total > values:
                break
            found.append(waiting)
        return found

    def done(self, place: Place) -> None:
        """All before `place` has been sent, or is given up."""
        with self._lock:
            # A segment that was dropped meanwhile has moved it on already.
            self._sent = max(self._sent, place)
            if self._sent == self._end():
                self.lost = None
        self._note_sent()
        self._remove_before(self._sent[0])

    def close(self) -> None:
        if self._writing.closed:
            return
        with contextlib.suppress(OSError):
            os.fsync(self._writing.fileno())
        self._writing.close()

    def _open_last(self) -> BinaryIO:
        """The segment that is written on, without what was torn."""
        if not self._sizes:
            self._sizes[self._sent[0] + 1] = 0
        last, found = self._end()
        whole = max((end for _, end in read_records(self._file(last))), default=0)
        if whole < found:
            log.warning("what waits for the store ends torn: %d bytes are cut off", found - whole)
            os.truncate(self._file(last), whole)
        self._sizes[last] = whole
        return self._file(last).open("ab", buffering=0)

    def _write(self, body: bytes) -> None:
        """All of it: a disk that is nearly full takes a part, and says so only when it is asked again."""
        left = memoryview(body)
        while left:
            left = left[self._writing.write(left) :]

    def _load_sent(self) -> Place:
        try:
            number, offset = _PLACE.unpack((self._folder / "sent").read_bytes())
        except (OSError, struct.error):
            return 0, 0
        return number, offset

    def _note_sent(self) -> None:
        """Written after every request, and so not by way of a new file: a torn one only means to send again."""
        with contextlib.suppress(OSError):
            (self._folder / "sent").write_bytes(_PLACE.pack(*self._sent))

    def _roll(self, number: int) -> None:
        fresh = self._file(number).open("ab", buffering=0)
        with contextlib.suppress(OSError):
            os.fsync(self._writing.fileno())
        self._writing.close()
        self._writing = fresh
        with self._lock:
            self._sizes[number] = 0

    def _keep_to_size(self) -> None:
        while (first := self._oldest_too_many()) is not None:
            begin = self._sent[1] if self._sent[0] == first else 0
            lost = [part.at for part, _ in read_records(self._file(first), begin)]
            with self._lock:
                # It may have been sent to its end while it was counted.
                if lost and first in self._sizes:
                    self.dropped += len(lost)
                    self.lost = (min(lost) if self.lost is None else self.lost[0], max(lost))
                self._sent = max(self._sent, (first + 1, 0))
            self._note_sent()
            self._remove_before(first + 1)

    def _oldest_too_many(self) -> int | None:
        with self._lock:
            is_too_much = sum(self._sizes.values()) > self.most_bytes and len(self._sizes) > 1
            return min(self._sizes) if is_too_much else None

    def _remove_before(self, number: int) -> None:
        with self._lock:
            gone = [segment for segment in self._sizes if segment < number]
            for segment in gone:
                del self._sizes[segment]
        for segment in gone:
            self._file(segment).unlink(missing_ok=True)

    def _read(self) -> Iterator[QueuedRecord]:
        with self._lock:
            (number, offset), sizes = self._sent, dict(self._sizes)
        for segment in sorted(sizes):
            begin = offset if segment == number else 0
            for part, end in read_records(self._file(segment), begin, sizes[segment]):
                yield QueuedRecord(part, (segment, end))

    def _end(self) -> Place:
        last = max(self._sizes)
        return last, self._sizes[last]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:012}.segment"
