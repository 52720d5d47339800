"""Unsent reports on disk: an SQLite file that survives the agent, a power cut and a full disk. Only its owner can read
it, and one agent at a time has it open. SQLite is imported when a report first has to wait."""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)
T = TypeVar("T")

_TABLE = (
    "CREATE TABLE IF NOT EXISTS reports "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT, body BLOB, collected_at REAL, boot_id TEXT, boottime REAL)"
)


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
    """One encoded envelope and its host. `short` is the same as a short report, for a hub that has taken a whole one
    with that `description`; it is not kept on disk."""

    host: str
    body: bytes
    made: ReportTime = ReportTime()
    description: str = ""
    short: bytes = b""


class SpooledReport(Struct, frozen=True):
    """A report on disk, without its body. `size` is that of the body in bytes."""

    id: int
    host: str
    size: int
    made: ReportTime


class Spool:
    """The file of one host's reports. Used by one thread at a time. Its methods raise OSError, BlockingIOError while
    another agent has the file open. `boot_id` is this boot's."""

    def __init__(self, file: Path, boot_id: str) -> None:
        self.file = file
        self._boot_id = boot_id
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def is_there(self) -> bool:
        with contextlib.suppress(OSError):
            return self.file.is_file()
        return False

    def open(self) -> list[SpooledReport]:
        """Lock the file, made where it is not there; returns what waits in it, oldest first. A damaged file is deleted:
        its reports are lost."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.file.parent.stat()
        if folder.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to another user (uid {folder.st_uid})")
        if folder.st_mode & 0o077:
            self.file.parent.chmod(0o700)
        try:
            return self._open()
        except _Damaged as error:
            log.warning("%s is damaged, its reports are lost: %s", self.file, error)
            self.file.unlink(missing_ok=True)
            return self._open()

    def write(self, reports: Sequence[EncodedReport], sent: Iterable[int]) -> list[int]:
        """Add reports, delete those with the ids `sent`, and have the disk confirm both: all of it or nothing. Returns
        the new ids. Where nothing waits any more, the file is deleted."""

        def change(connection: "sqlite3.Connection") -> tuple[list[int], int]:
            with connection:
                connection.executemany("DELETE FROM reports WHERE id = ?", [(one,) for one in sent])
                ids = [self._insert(connection, report) for report in reports]
            return ids, connection.execute("SELECT count(*) FROM reports").fetchone()[0]

        ids, left = self._run(change)
        if not left:
            self.file.unlink(missing_ok=True)
            self.close()
        return ids

    def read(self, report_id: int) -> EncodedReport | None:
        question = "SELECT host, body, collected_at, boot_id, boottime FROM reports WHERE id = ?"
        with contextlib.suppress(OSError):
            row = self._run(lambda connection: connection.execute(question, (report_id,)).fetchone())
            return None if row is None else EncodedReport(row[0], row[1], self._made(*row[2:]))
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> list[SpooledReport]:
        import sqlite3  # noqa: PLC0415 - see the module

        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(self.file, timeout=0.0, check_same_thread=False)
        question = "SELECT id, host, length(body), collected_at, boot_id, boottime FROM reports ORDER BY id"

        def lock(connection: "sqlite3.Connection") -> list[SpooledReport]:
            # The lock is held until the file is closed.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute(_TABLE)
            connection.execute("BEGIN EXCLUSIVE").connection.commit()
            return [
                SpooledReport(number, host, size, self._made(*made))
                for number, host, size, *made in connection.execute(question)
            ]

        try:
            return self._run(lock)
        except OSError:
            self.close()
            raise

    def _run(self, work: "Callable[[sqlite3.Connection], T]") -> T:
        import sqlite3  # noqa: PLC0415 - see the module

        if self._connection is None:
            raise OSError("the file is closed")
        try:
            return work(self._connection)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BlockingIOError(errno.EAGAIN, "another agent of this name uses it") from error
            raise OSError(str(error)) from error
        except sqlite3.Error as error:
            raise _Damaged(str(error)) from error

    def _insert(self, connection: "sqlite3.Connection", report: EncodedReport) -> int:
        row = (report.host, report.body, report.made.wall, self._boot_id, report.made.boottime)
        columns = "host, body, collected_at, boot_id, boottime"
        made = connection.execute(f"INSERT INTO reports ({columns}) VALUES (?, ?, ?, ?, ?)", row)  # noqa: S608
        return int(made.lastrowid or 0)

    def _made(self, collected_at: float | None, boot_id: str, boottime: float | None) -> ReportTime:
        is_this_boot = boot_id == self._boot_id != "unknown"
        return ReportTime(collected_at, boottime if is_this_boot else None)


class _Damaged(OSError):
    """The file is no SQLite database, or a damaged one."""
