"""The queue of reports to be sent: bounded by size and age, dropping the oldest first. The newest report of each host
goes first; the backlog follows, oldest first.

Unsent reports are written to disk after a few seconds: to an SQLite file that survives the agent, a power cut and a
full disk. Only its owner can read it, and one agent at a time has it open. SQLite is imported when a report first has
to wait.
"""

import contextlib
import errno
import itertools
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gpudeck.model import clock

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

_TABLE = (
    "CREATE TABLE IF NOT EXISTS reports "
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT, body BLOB, collected_at REAL, boot_id TEXT, boottime REAL)"
)
_INSERT = "INSERT INTO reports (host, body, collected_at, boot_id, boottime) VALUES (?, ?, ?, ?, ?)"


class ReportTime(Struct, frozen=True, gc=False):
    """When a report was made. `wall` is what the report itself says (`collected_at`), and may be wrong or set later.
    `boottime` measures its waiting time all the same; None for a report of an earlier boot."""

    wall: float | None = None
    boottime: float | None = None

    def sent_at(self, wall: float, boottime: float) -> float:
        """The value of `Gpudeck-Sent-At`: `collected_at` and the time that has passed since, whatever the wall clock
        was set to meanwhile. For a report of an earlier boot, the wall clock is used."""
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


class _WaitingReport:
    """A report that waits: in memory (`report`), or on disk (`spool_id`). `size` is in bytes."""

    __slots__ = ("host", "made", "put_at", "report", "size", "spool_id")

    def __init__(
        self,
        host: str,
        made: ReportTime,
        size: int,
        report: EncodedReport | None = None,
        *,
        put_at: float = 0.0,
        spool_id: int | None = None,
    ) -> None:
        self.host, self.made, self.size = host, made, size
        self.report, self.put_at, self.spool_id = report, put_at, spool_id


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

    def open(self) -> list[_WaitingReport]:
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

    def write(self, reports: Iterable[EncodedReport], sent: Iterable[int]) -> list[int]:
        """Add reports, delete those with the ids `sent`, and have the disk confirm both: all of it or nothing. Returns
        the new ids. Where nothing waits any more, the file is deleted."""
        rows = [(one.host, one.body, one.made.wall, self._boot_id, one.made.boottime) for one in reports]
        with self._using() as connection, connection:
            connection.executemany("DELETE FROM reports WHERE id = ?", [(one,) for one in sent])
            ids = [int(connection.execute(_INSERT, row).lastrowid or 0) for row in rows]
        with self._using() as connection:
            (left,) = connection.execute("SELECT count(*) FROM reports").fetchone()
        if not left:
            self.file.unlink(missing_ok=True)
            self.close()
        return ids

    def read(self, report_id: int) -> EncodedReport | None:
        question = "SELECT host, body, collected_at, boot_id, boottime FROM reports WHERE id = ?"
        with contextlib.suppress(OSError), self._using() as connection:
            row = connection.execute(question, (report_id,)).fetchone()
            return None if row is None else EncodedReport(row[0], row[1], self._made(*row[2:]))
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> list[_WaitingReport]:
        import sqlite3  # noqa: PLC0415 - see the module

        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(self.file, timeout=0.0, check_same_thread=False)
        question = "SELECT id, host, length(body), collected_at, boot_id, boottime FROM reports ORDER BY id"
        try:
            with self._using() as connection:
                # The lock is held until the file is closed.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute(_TABLE)
                connection.execute("BEGIN EXCLUSIVE").connection.commit()
                return [
                    _WaitingReport(host, self._made(*made), size, spool_id=number)
                    for number, host, size, *made in connection.execute(question)
                ]
        except OSError:
            self.close()
            raise

    @contextlib.contextmanager
    def _using(self) -> "Iterator[sqlite3.Connection]":
        import sqlite3  # noqa: PLC0415 - see the module

        if self._connection is None:
            raise OSError("the file is closed")
        try:
            yield self._connection
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BlockingIOError(errno.EAGAIN, "another agent of this name uses it") from error
            raise OSError(str(error)) from error
        except sqlite3.Error as error:
            raise _Damaged(str(error)) from error

    def _made(self, collected_at: float | None, boot_id: str, boottime: float | None) -> ReportTime:
        is_this_boot = boot_id == self._boot_id != "unknown"
        return ReportTime(collected_at, boottime if is_this_boot else None)


class _Damaged(OSError):
    """The file is no SQLite database, or a damaged one."""


WRITE_AFTER = 4.0
"""How long a report may wait in memory only. With `_TICK`, a killed agent loses the reports of at most 5 seconds."""
_TICK = 1.0
_RETRY = 10.0
_TRUST_CLOCK_AFTER = 3600.0
"""A clock is often wrong at boot: nothing is deleted because of what it says until the agent has run this long."""


class Outbox:
    """Never blocks the report loop: when full, the oldest report makes room and `dropped` counts it. With a `spool`
    reports survive the agent; then a thread has to call `run`."""

    def __init__(
        self,
        most_reports: int | None,
        most_bytes: int,
        *,
        max_age: float | None = None,
        spool: Spool | None = None,
        now: clock.Clock = clock.wall,
        boottime: clock.Clock = clock.boottime,
    ) -> None:
        self.spool = spool
        self.dropped = self._drops_logged = 0
        self._most_reports = most_reports
        self._most_bytes = most_bytes
        self._max_age = max_age
        self._now = now
        self._boottime = boottime
        self._started = boottime()
        self._changed = threading.Condition()
        # In the order in which they were put; those on disk come first.
        self._waiting: dict[int, _WaitingReport] = {}
        self._latest: dict[str, int] = {}
        self._keys = itertools.count(1)
        self._bytes = 0
        self._offered: tuple[EncodedReport, int] | None = None
        self._has_begun = False
        # Taken before `_changed` where both are: the report loop never waits for the disk.
        self._disk = threading.Lock()
        self._sent: list[int] = []
        self._trouble: str | None = None
        self._retry_at = 0.0
        if spool is not None and spool.is_there():
            self.save()

    def put(self, report: EncodedReport) -> None:
        with self._changed:
            key, size = next(self._keys), len(report.body) + len(report.short)
            self._waiting[key] = _WaitingReport(report.host, report.made, size, report, put_at=self._boottime())
            self._latest.pop(report.host, None)
            self._latest[report.host] = key
            self._has_begun = True
            self._bytes += size
            self._keep_to_limits()
            self._changed.notify()

    def wait_for_first(self, timeout: float) -> bool:
        """Whether a report has been put, within `timeout` seconds. Reports of an earlier agent do not count."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_begun, timeout)

    def wait(self, timeout: float, *, newest_first: bool = True, backlog: bool = True) -> EncodedReport | None:
        """The next report, left in its place; None when there is none within `timeout` seconds. Without `newest_first`
        it is the oldest; without `backlog` the newest of a host or none."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting if backlog else self._latest, timeout)
                key = self._next(newest_first=newest_first, backlog=backlog)
                if key is None:
                    return None
                entry = self._waiting[key]
                report = entry.report
            report = report or self._read(key, entry)
            if report is not None:
                self._offered = report, key
                return report

    def is_newest(self, report: EncodedReport) -> bool:
        with self._changed:
            return self._offered is not None and self._latest.get(report.host) == self._offered[1]

    def done(self, report: EncodedReport) -> None:
        if self._offered is not None and self._offered[0] is report:
            with self._changed:
                self._remove(self._offered[1])
                if not self._waiting and self.dropped > self._drops_logged:
                    log.warning("the outbox is empty again: %d reports were dropped", self.dropped - self._drops_logged)
                    self._drops_logged = self.dropped
            self._offered = None

    def save(self, *, at_once: bool = True) -> None:
        """Write what waits in memory to disk, and delete there what was sent. Never raises: if that fails, reports stay
        in memory. Blocks until the disk has confirmed it. `at_once`: also if an attempt has just failed."""
        if self.spool is None:
            return
        with self._disk:
            if not at_once and self._boottime() < self._retry_at:
                return
            try:
                self._write(self.spool)
            except OSError as error:
                self._note_trouble(error)
                return
            if self._trouble is not None:
                log.info("undelivered reports are saved to %s again", self.spool.file)
                self._trouble = None

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK):
            try:
                self.tick()
            except Exception:
                log.exception("bug while saving reports to disk")

    def tick(self) -> None:
        if self.spool is None:
            return
        with self._changed:
            oldest = next((entry.put_at for entry in self._in_memory().values()), self._boottime())
            is_due = bool(self._sent) or self._boottime() - oldest >= WRITE_AFTER
        if is_due:
            self.save(at_once=False)

    def close(self) -> None:
        self.save()
        if self.spool is not None:
            with self._disk:
                self.spool.close()

    def __len__(self) -> int:
        return len(self._waiting)

    def _next(self, *, newest_first: bool, backlog: bool) -> int | None:
        newest = next(iter(self._latest.values()), None)
        if not backlog or (newest_first and newest is not None):
            return newest
        of_backlog = (key for key, entry in self._waiting.items() if self._latest.get(entry.host) != key)
        return next(of_backlog, newest)

    def _remove(self, key: int) -> bool:
        entry = self._waiting.pop(key, None)
        if entry is None:
            return False
        self._bytes -= entry.size
        self._sent += [] if entry.spool_id is None else [entry.spool_id]
        if self._latest.get(entry.host) == key:
            del self._latest[entry.host]
        return True

    def _keep_to_limits(self) -> None:
        while len(self._waiting) > 1:
            key, oldest = next(iter(self._waiting.items()))
            is_too_many = self._most_reports is not None and len(self._waiting) > self._most_reports
            if not is_too_many and self._bytes <= self._most_bytes and not self._is_too_old(oldest.made):
                return
            self._remove(key)
            if self.dropped == self._drops_logged and not is_too_many:
                log.warning("undelivered reports exceed agent.outbox_size or outbox_age: the oldest are dropped")
            self.dropped += 1

    def _is_too_old(self, made: ReportTime) -> bool:
        boottime = self._boottime()
        is_sure = made.boottime is not None or boottime - self._started > _TRUST_CLOCK_AFTER
        if self._max_age is None or made.wall is None or not is_sure:
            return False
        return made.sent_at(self._now(), boottime) - made.wall > self._max_age

    def _in_memory(self) -> dict[int, _WaitingReport]:
        newest_first = itertools.takewhile(lambda item: item[1].report is not None, reversed(self._waiting.items()))
        return dict(reversed(list(newest_first)))

    def _write(self, spool: Spool) -> None:
        with self._changed:
            if not spool.is_open and not self._waiting and not spool.is_there():
                return
        if not spool.is_open:
            self._load(spool.open())
        with self._changed:
            unwritten, sent, is_empty = self._in_memory(), list(self._sent), not self._waiting
        if not unwritten and not sent and not is_empty:
            return
        ids = spool.write([entry.report for entry in unwritten.values() if entry.report is not None], sent)
        with self._changed:
            del self._sent[: len(sent)]
            for (key, entry), spool_id in zip(unwritten.items(), ids, strict=True):
                if key in self._waiting:
                    entry.spool_id, entry.report = spool_id, None
                else:
                    self._sent.append(spool_id)

    def _load(self, found: list[_WaitingReport]) -> None:
        """Reports that an earlier agent has not sent go in front of the backlog."""
        with self._changed:
            self._waiting = dict(enumerate(found, -len(found))) | self._waiting
            self._bytes += sum(entry.size for entry in found)
            self._keep_to_limits()
            self._changed.notify()
        if found and self.spool is not None:
            log.info("%d undelivered reports are in %s", len(found), self.spool.file)

    def _read(self, key: int, entry: _WaitingReport) -> EncodedReport | None:
        with self._disk:
            report = None if self.spool is None or entry.spool_id is None else self.spool.read(entry.spool_id)
        if report is None:
            with self._changed:
                is_lost = self._remove(key)
                self.dropped += is_lost
            if is_lost:
                log.warning("an undelivered report of %s on disk cannot be read and is lost", entry.host)
        return report

    def _note_trouble(self, error: OSError) -> None:
        self._retry_at = self._boottime() + _RETRY
        trouble = error.strerror or str(error)
        if trouble != self._trouble and self.spool is not None:
            log.warning(
                "undelivered reports cannot be saved to %s: %s. They are kept in memory, and lost if the "
                "agent stops. Make the folder writable, free space there, or set agent.outbox_dir.",
                self.spool.file,
                trouble,
            )
        self._trouble = trouble
