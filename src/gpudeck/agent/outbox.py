"""Reports waiting to be sent: bounded by size and age, the oldest dropped first. Shared by the report loop (puts), the
sender (takes) and the thread that writes to disk what the hub does not take within seconds.

The newest report of each host goes first, so that a hub that was away knows at once how the host is; the backlog
follows, oldest first.
"""

import contextlib
import logging
import threading
from collections import deque
from itertools import islice

from gpudeck.agent.spool import EncodedReport, ReportTime, Spool, SpoolPosition, remove_abandoned
from gpudeck.model import clock

log = logging.getLogger(__name__)

WRITE_AFTER = 4.0
"""How long a report may wait in memory only. With `_TICK`, a killed agent loses the reports of at most 5 seconds."""
_TICK = 1.0
_RETRY = 10.0
_BATCH = 256
_TRUST_CLOCK_AFTER = 3600.0
"""A clock is often wrong at boot: nothing is deleted because of what it says until the agent has run this long."""


class _Waiting:
    """A report that waits: in memory (`report`), or on disk (`place`)."""

    __slots__ = ("host", "made", "place", "put_at", "report", "size", "waits")

    def __init__(self, report: EncodedReport, put_at: float, place: SpoolPosition | None = None) -> None:
        self.host = report.host
        self.made = report.made
        self.size = len(report.body) + len(report.short) if place is None else place.length
        self.report = report if place is None else None
        self.place = place
        self.put_at = put_at
        self.waits = True


class Outbox:
    """Never blocks the report loop: when full, the oldest report makes room and `dropped` counts it.

    `host` is the one that reports are of, or the first of several. With a `spool` they survive the agent; then a
    thread has to call `run`. A disk that fails costs that only.
    """

    def __init__(
        self,
        most_reports: int | None,
        most_bytes: int,
        *,
        host: str = "",
        max_age: float | None = None,
        spool: Spool | None = None,
        now: clock.Clock = clock.wall,
        boottime: clock.Clock = clock.boottime,
    ) -> None:
        self.host = host
        self._most_reports = most_reports
        self._most_bytes = most_bytes
        self._max_age = max_age
        self._now = now
        self._boottime = boottime
        self._started = boottime()
        self._changed = threading.Condition()
        self._latest: dict[str, _Waiting] = {}
        self._backlog: deque[_Waiting] = deque()
        self._bytes = 0
        self._offered: tuple[EncodedReport, _Waiting] | None = None
        self.dropped = 0
        self._has_begun = False
        # Taken before `_changed` where both are: the report loop never waits for the disk.
        self._disk = threading.Lock()
        self.spool = spool
        self._unwritten: deque[_Waiting] = deque()
        self._released: list[SpoolPosition] = []
        self._trouble: str | None = None
        self._retry_at = 0.0
        self._has_swept = False
        if spool is not None and spool.is_there():
            self._open_spool(spool)

    def put(self, report: EncodedReport) -> None:
        with self._changed:
            entry = _Waiting(report, self._boottime())
            before = self._latest.pop(report.host, None)
            if before is not None:
                self._backlog.append(before)
            self._latest[report.host] = entry
            self._has_begun = True
            self._bytes += entry.size
            if self.spool is not None:
                self._unwritten.append(entry)
            self._keep_to_limits()
            self._changed.notify()

    def wait_for_first(self, timeout: float) -> bool:
        """Whether a report has been put, which may take `timeout` seconds. What an agent before this one left is not
        meant."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_begun, timeout)

    def wait(self, timeout: float, *, newest_first: bool = True, backlog: bool = True) -> EncodedReport | None:
        """The next report, left in its place; None when there is none within `timeout` seconds.

        Without `newest_first` it is the oldest; without `backlog` the newest of a host or none. For one thread.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest or (backlog and self._backlog), timeout)
                entry = self._next(newest_first=newest_first, backlog=backlog)
                if entry is None:
                    return None
                report = entry.report
            report = report or self._read(entry)
            if report is not None:
                self._offered = report, entry
                return report

    def is_newest(self, report: EncodedReport) -> bool:
        """Whether the report that `wait` gave out is the newest of its host."""
        with self._changed:
            return self._offered is not None and self._latest.get(report.host) is self._offered[1]

    def done(self, report: EncodedReport) -> None:
        """Take the report that `wait` gave out after it was sent. It may have been dropped meanwhile."""
        if self._offered is None or self._offered[0] is not report:
            return
        entry, self._offered = self._offered[1], None
        with self._changed:
            is_on_disk = entry.waits and entry.place is not None
            self._remove(entry)
        if is_on_disk and self.spool is not None and entry.place is not None:
            with self._disk:
                self.spool.mark_sent(entry.place)

    def save(self, *, at_once: bool = True) -> None:
        """Write what waits in memory to disk. Never raises: where that fails the reports stay in memory. Blocks until
        the disk has confirmed them. `at_once`: also if an attempt has just failed."""
        if self.spool is None:
            return
        with self._disk:
            if not at_once and self._boottime() < self._retry_at:
                return
            try:
                if self._unwritten and not self.spool.is_open:
                    self._open_spool(self.spool)
                while self.spool.is_open and self._write_batch(self.spool):
                    pass
            except OSError as error:
                self._note_trouble(error)
                return
            if self._trouble is not None and self.spool.is_open:
                log.info("undelivered reports are saved to %s again", self.spool.folder)
                self._trouble = None

    def run(self, stop: threading.Event) -> None:
        """Write what has waited for seconds to disk, until `stop` is set."""
        while not stop.wait(_TICK):
            try:
                self.tick()
            except Exception:
                log.exception("bug while saving reports to disk")

    def change(self, most_bytes: int, max_age: float | None, spool: Spool | None) -> None:
        """Other limits and another folder from here on, to which waiting reports move. Not while another thread uses
        the outbox."""
        before, moved = self.spool, list[SpoolPosition]()
        if spool is None or before is None or spool.folder != before.folder:
            for entry in self._all():
                if entry.place is not None:
                    moved.append(entry.place)
                    entry.report, entry.place = self._read(entry), None
            self.spool = spool
            self._unwritten = deque(self._all() if spool is not None else ())
        with self._changed:
            self._most_bytes, self._max_age = most_bytes, max_age
            self._keep_to_limits()
        self.save()
        if before is not None and before is not self.spool:
            for place in moved if not self._unwritten else ():
                before.release(place)
            before.close()

    def close(self) -> None:
        """Write what waits, and let go of the folder."""
        self.save()
        if self.spool is not None:
            with self._disk:
                self.spool.close()

    def discard(self) -> None:
        """Drop all that waits, on disk too, and close."""
        with self._disk, self._changed:
            places = [entry.place for entry in self._all() if entry.place is not None]
            for entry in self._all():
                self._remove(entry)
            if self.spool is not None:
                for place in places + self._released:
                    self.spool.release(place)
                self.spool.close()

    def __len__(self) -> int:
        return len(self._backlog) + len(self._latest)

    def _all(self) -> list[_Waiting]:
        return [*self._backlog, *self._latest.values()]

    def _next(self, *, newest_first: bool, backlog: bool) -> _Waiting | None:
        newest = next(iter(self._latest.values()), None)
        if backlog and self._backlog and not (newest_first and newest):
            return self._backlog[0]
        return newest

    def _remove(self, entry: _Waiting) -> None:
        if not entry.waits:
            return
        entry.waits = False
        self._bytes -= entry.size
        if self._latest.get(entry.host) is entry:
            del self._latest[entry.host]
        elif self._backlog[0] is entry:
            self._backlog.popleft()
        else:
            # It was the newest when it was taken out to be sent: it is among the last.
            at = next(at for at in range(len(self._backlog) - 1, -1, -1) if self._backlog[at] is entry)
            del self._backlog[at]
        self._forget_written()

    def _keep_to_limits(self) -> None:
        while len(self) > 1:
            oldest = self._backlog[0] if self._backlog else next(iter(self._latest.values()))
            is_too_many = self._most_reports is not None and len(self) > self._most_reports
            if not is_too_many and self._bytes <= self._most_bytes and not self._is_too_old(oldest.made):
                return
            self._drop(oldest)

    def _drop(self, entry: _Waiting) -> None:
        if entry.waits:
            self._remove(entry)
            self.dropped += 1
            self._released += [entry.place] if entry.place is not None else []

    def _is_too_old(self, made: ReportTime) -> bool:
        boottime = self._boottime()
        is_sure = made.boottime is not None or boottime - self._started > _TRUST_CLOCK_AFTER
        if self._max_age is None or made.wall is None or not is_sure:
            return False
        return made.sent_at(self._now(), boottime) - made.wall > self._max_age

    def _open_spool(self, spool: Spool) -> None:
        """Lock the folder and put what an agent before this one has not sent in front of the backlog."""
        try:
            found = [_Waiting(report, 0.0, place) for report, place in spool.open()]
        except OSError as error:
            spool.close()
            self._note_trouble(error)
            return
        with self._changed:
            self._backlog.extendleft(reversed(found))
            self._bytes += sum(entry.size for entry in found)
            self._keep_to_limits()
            self._changed.notify()
        if found or spool.damaged:
            log.info("%d undelivered reports are in %s; %d were damaged", len(found), spool.folder, spool.damaged)

    def _write_batch(self, spool: Spool) -> bool:
        """Whether there was anything to write."""
        with self._changed:
            batch = [entry for entry in islice(self._unwritten, _BATCH) if entry.waits]
            reports = [entry.report for entry in batch if entry.report is not None]
        if not reports:
            return False
        places = spool.append(reports)
        with self._changed:
            for entry, place in zip(batch, places, strict=True):
                self._bytes += place.length - entry.size if entry.waits else 0
                entry.place, entry.report, entry.size = place, None, place.length
            self._forget_written()
            sent = [place for entry, place in zip(batch, places, strict=True) if not entry.waits]
        for place in sent:
            spool.mark_sent(place)
        return True

    def _forget_written(self) -> None:
        while self._unwritten and (self._unwritten[0].place is not None or not self._unwritten[0].waits):
            self._unwritten.popleft()

    def _read(self, entry: _Waiting) -> EncodedReport | None:
        """A report from disk. One that cannot be read there any more is dropped."""
        with self._disk:
            report = None if self.spool is None or entry.place is None else self.spool.read(entry.place)
        if report is None:
            with self._changed:
                is_lost = entry.waits
                self._drop(entry)
            if is_lost:
                log.warning("an undelivered report of %s on disk cannot be read and is lost", entry.host)
        return report

    def _note_trouble(self, error: OSError) -> None:
        """Say it once, and try again later."""
        self._retry_at = self._boottime() + _RETRY
        is_taken = isinstance(error, BlockingIOError)
        trouble = "another agent of this name uses it" if is_taken else error.strerror or str(error)
        if trouble != self._trouble and self.spool is not None:
            log.warning(
                "undelivered reports cannot be saved to %s: %s. They are kept in memory, and lost if the "
                "agent stops. Make the folder writable, free space there, or set agent.outbox_dir.",
                self.spool.folder,
                trouble,
            )
        self._trouble = trouble

    def tick(self) -> None:
        boottime = self._boottime()
        with self._changed:
            is_due = bool(self._unwritten) and boottime - self._unwritten[0].put_at >= WRITE_AFTER
            released, self._released = self._released, []
        if is_due:
            self.save(at_once=False)
        if released and self.spool is not None:
            with self._disk:
                for place in released:
                    self.spool.release(place)
        if not self._has_swept and boottime - self._started > _TRUST_CLOCK_AFTER:
            self._has_swept = True
            self._sweep()

    def _sweep(self) -> None:
        """Delete folders of other names that were not used for as long as reports are kept."""
        if self.spool is None or self._max_age is None:
            return
        with contextlib.suppress(OSError):
            for folder in self.spool.folder.parent.iterdir():
                if folder != self.spool.folder and folder.is_dir() and not folder.is_symlink():
                    remove_abandoned(folder, self._now() - self._max_age)
