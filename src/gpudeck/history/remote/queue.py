"""Records that wait on the disk to be sent: rows of a SQLite file, appended by one thread and read by another.

A record is compressed series with a checksum, and survives the end of the process. Beyond its size limit the queue
drops its oldest records. One that is damaged is dropped too; a file that is damaged is set aside.
"""

import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zstandard
from msgspec import Struct

from gpudeck.history.embedded.tables import is_damage, set_file_aside
from gpudeck.history.remote.encoder import EncodedSeries

log = logging.getLogger(__name__)

FILE: Final = "queue.db"
_LONGEST: Final = 16 * 1024 * 1024
_Dropped = tuple[int, float, int]
"""Number, time and bytes of a record."""
_SETTINGS: Final = (
    "auto_vacuum = INCREMENTAL",  # of a queue that was long, the empty pages are given back
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "journal_size_limit = 16000000",
)


class QueuedRecord(Struct, frozen=True):
    """A record, and the number behind which the next one is."""

    part: EncodedSeries
    after: int


class DiskQueue:
    """`append` is for one thread, `peek` and `done` for one other. Raises OSError when the folder cannot be used.
    `most_bytes` bounds its records. `dropped` counts those that were not sent and never will be; `lost` is from when
    until when those were taken that were dropped since all had been sent last, None: none were."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / FILE
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
        self.dropped = 0
        self.lost: tuple[float, float] | None = None
        try:
            self._open()
        except sqlite3.Error as error:
            self._begin_anew(error)

    def size(self) -> int:
        """How many bytes wait on the disk."""
        return self._size

    def is_empty(self) -> bool:
        return not self._size

    def append(self, parts: Sequence[EncodedSeries]) -> None:
        """Raises OSError when there is no room; then none of `parts` is kept."""
        rows = [(part.values, part.at, self._packer.compress(part.body)) for part in parts]
        size = sum(len(body) for _, _, body in rows)
        with self._lock:
            try:
                with self._connection:
                    self._connection.executemany("INSERT INTO records (count, at, body) VALUES (?, ?, ?)", rows)
                    gone = self._delete(self._find_oldest(self._size + size - self.most_bytes))
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error)) from error
            self._size += size
            self._note_dropped(gone)

    def peek(self, values: int) -> list[QueuedRecord]:
        """The oldest records, left in their place: as many as have `values` values together, at least one."""
        found: list[QueuedRecord] = []
        damaged: list[_Dropped] = []
        total = 0
        unpack = zstandard.ZstdDecompressor().decompress
        with self._lock:
            try:
                for number, count, at, body in self._connection.execute("SELECT * FROM records ORDER BY id"):
                    try:
                        part = EncodedSeries(unpack(body, max_output_size=_LONGEST), count, at)
                    except zstandard.ZstdError as error:
                        log.warning("a record that waits for the store is damaged: %s", error)
                        damaged.append((number, at, len(body)))
                        continue
                    total += count
                    if found and total > values:
                        break
                    found.append(QueuedRecord(part, number))
                with self._connection:
                    self._note_dropped(self._delete(damaged))
            except sqlite3.DatabaseError as error:
                self._begin_anew(error)
                return []
        return found

    def done(self, place: int) -> None:
        """All until `place` has been sent, or is given up."""
        sent = "FROM records WHERE id <= ?"
        with self._lock:
            with self._connection:
                (size,) = self._connection.execute(f"SELECT total(length(body)) {sent}", (place,)).fetchone()
                self._connection.execute(f"DELETE {sent}", (place,))
            self._size -= int(size)
            if self.is_empty():
                self.lost = None
                # `execute` would give back a single page.
                self._connection.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._file, check_same_thread=False)
        for setting in _SETTINGS:
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY AUTOINCREMENT, count INTEGER NOT NULL, "
            "at REAL NOT NULL, body BLOB NOT NULL)"
        )
        self._file.chmod(0o600)
        self._size = int(self._connection.execute("SELECT total(length(body)) FROM records").fetchone()[0])

    def _begin_anew(self, error: sqlite3.Error) -> None:
        """Raises OSError where the file cannot be used and is not damaged."""
        if not is_damage(error):
            raise OSError(errno.EIO, str(error)) from error
        self._connection.close()
        aside = set_file_aside(self._file, time.time())
        log.error("what waited for the store cannot be read and is kept in %s: %s", aside, error)
        self._open()

    def _find_oldest(self, size: int) -> list[_Dropped]:
        """The oldest records that have `size` bytes together."""
        found: list[_Dropped] = []
        for row in self._connection.execute("SELECT id, at, length(body) FROM records ORDER BY id"):
            if size <= 0:
                break
            found.append(row)
            size -= row[2]
        return found

    def _delete(self, gone: list[_Dropped]) -> list[_Dropped]:
        self._connection.executemany("DELETE FROM records WHERE id = ?", [(number,) for number, _, _ in gone])
        return gone

    def _note_dropped(self, gone: list[_Dropped]) -> None:
        if gone:
            self._size -= sum(size for _, _, size in gone)
            self.dropped += len(gone)
            self.lost = (gone[0][1] if self.lost is None else self.lost[0], gone[-1][1])
