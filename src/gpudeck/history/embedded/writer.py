"""The one thread that writes: samples → journal → open hours → sealed hours.

A batch is in the journal before it is in an open hour, and an open hour is let go only with the transaction that seals
it. So whenever the hub is killed, the journal holds what no sealed hour has: it is read again at the next start.
"""

import contextlib
import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpudeck.history.embedded.journal import MetricLayout, SampleRow, encode_entry, join_layout, read_journal
from gpudeck.history.embedded.keys import BatchBuilder, KeyRegistry
from gpudeck.history.embedded.open_hour import OpenHour
from gpudeck.history.embedded.repair import repair_rows, replace_file
from gpudeck.history.embedded.retention import HistoryRetention
from gpudeck.history.embedded.seal import HourSealer
from gpudeck.history.embedded.tables import claim, is_damage, key_of, open_to_write, set_file_aside
from gpudeck.history.embedded.view import DamageLog
from gpudeck.history.hour import SECONDS
from gpudeck.history.sample import HostSample
from gpudeck.history.settings import HistorySettings
from gpudeck.model.clock import Clock
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.retention import RetentionClock

log = logging.getLogger(__name__)

_WAIT: Final = 1.0
_GRACE: Final = 90.0
"""After an hour's end, for reports that were on their way."""
_QUIET: Final = 2.0
"""A late hour is sealed when nothing more has come for it for so long."""
_BUDGET: Final = 0.05
"""Seconds of sealing at a time; what is left waits for the next time, so that the hub's own thread gets its turn."""
_REST: Final = 2.0
"""How many times longer than it sealed the thread then rests, where more is due: a third of the time is work."""
_MOST_WAITING: Final = 50_000
_LOOSE_ROWS: Final = 10_000
_UPKEEP_EVERY: Final = 60.0
_LOOK_EVERY: Final = 5.0
_MOST_TOLD: Final = 100
"""Lines in the log about what a damaged file has lost."""
_AHEAD: Final = 3600.0
"""What lies so far ahead of a clock that is confirmed was written by one that was wrong."""


HourKey = tuple[int, int]
"""The host and when the hour begins."""


class EmbeddedWriter:
    """`open_hours` are the open hours; `lock` is held while one is exchanged for its sealed row.

    `problem` says why nothing can be written at the moment, None when all is well.
    """

    def __init__(
        self,
        path: Path,
        settings: HistorySettings,
        now: Clock,
        *,
        keep_samples: bool = True,
        retention: RetentionClock | None = None,
    ) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.open_hours: dict[HourKey, OpenHour] = {}
        self.problem: str | None = None
        self.taken = self.dropped = self.late = self.rows = 0
        self._settings = settings
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._queue: queue.SimpleQueue[list[HostSample] | threading.Lock | None] = queue.SimpleQueue()
        self._waiting = 0
        self._keep_samples = keep_samples
        self.damage = DamageLog()
        self.opened = 0
        """How often the file was opened: whoever reads has to open it again then."""
        self.set_aside: str | None = None
        self._next_upkeep = self._next_look = 0.0
        self._upkept = 0
        self._is_stopped = False
        self._rest = _WAIT
        self._claim = claim(path)
        try:
            self._open_or_replace()
        except BaseException:
            self._claim.close()
            raise
        if self.keys.hosts:
            self._retention.limit(max(host.last for host in self.keys.hosts.values()))
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def _open_or_replace(self) -> None:
        try:
            self._open()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise Temporary(f"the history in {self.path} cannot be opened: {error}.") from error
            self._replace(error)

    def _open(self) -> None:
        """The file, and the open hours of last time. Raises sqlite3.Error, UsageError and Temporary."""
        self._connection = open_to_write(self.path)
        try:
            self._inode = self.path.stat().st_ino
            self.keys = KeyRegistry(self._connection)
            self._intake = BatchBuilder(self.keys, self._now)
            self._sealer = HourSealer(self._connection, self.keys, keep_samples=self._keep_samples)
            self._layout = self._own_layout()
            self._upkeep = HistoryRetention(self._connection, self._settings)
            self._sealed_last = {host.key: host.last for host in self.keys.by_key.values()}
            self._recover()
            self.opened += 1
        except BaseException:
            self._connection.close()
            raise

    def _replace(self, why: sqlite3.Error) -> None:
        """Set a damaged file aside and go on with a new one, with all that can be read of it; if that is damaged too,
        with an empty one. Raises OSError, sqlite3.Error, UsageError and Temporary."""
        began = time.time()
        aside, copied = replace_file(self.path, began, self._settings.min_free)
        try:
            with contextlib.closing(open_to_write(self.path)) as connection:
                for sentence in repair_rows(connection, began, is_copied=True).gone[:_MOST_TOLD]:
                    log.error("gone from the history: %s", sentence)
            self._open()
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            log.warning("what could be read of %s cannot be used either: %s", aside, error)
            copied = 0
            self.open_hours.clear()
            set_file_aside(self.path, began)
            self._open()
        self.set_aside = (
            f"the history's file was damaged ({why}): it is now {aside.name}, and a new one was begun with the "
            f"{copied:,} rows that could be read of it. Delete it when nothing is missing"
        )
        log.error("%s", self.set_aside)

    def _heal(self, why: sqlite3.Error) -> None:
        """The file turned out to be damaged while it was written. Once: a disk that damages it again needs a person."""
        if self.set_aside is not None:
            self._tell(f"the history's file is damaged again ({why}): check the disk, then restart the hub")
            return
        with self.lock:
            self._connection.close()
            self.open_hours.clear()
            self._replace(why)

    @property
    def waiting(self) -> int:
        """Samples that are not in the journal yet."""
        return self._waiting

    def take(self, samples: list[HostSample]) -> None:
        """From any thread; never blocks."""
        if self._waiting + len(samples) > _MOST_WAITING:
            self.dropped += len(samples)
            return
        self._waiting += len(samples)
        self._queue.put(samples)

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything taken so far is in the journal."""
        done = threading.Lock()
        done.acquire()
        self._queue.put(done)
        return done.acquire(timeout=seconds)

    def close(self) -> None:
        """Write what waits, and end the thread. Open hours stay in the journal."""
        self._queue.put(None)
        self._thread.join(30)
        if not self._thread.is_alive():
            self._connection.close()
            self._claim.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch: list[HostSample] = []
            done: list[threading.Lock] = []
            for item in self._next_items():
                if item is None:
                    is_open = False
                elif isinstance(item, list):
                    batch += item
                else:
                    done.append(item)
            self._guard(self._store, batch)
            for waiting in done:
                waiting.release()
            if is_open:
                self._guard(self._seal_due)
                self._guard(self._keep_up)
        self._guard(self._transact, self.keys.write_all_seen)

    def _next_items(self) -> "list[list[HostSample] | threading.Lock | None]":
        """Whatever waits, or nothing after a rest."""
        try:
            items = [self._queue.get(timeout=self._rest)]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return []
        return items

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """One step that fails is told and the next one comes all the same: a history must never end the hub."""
        try:
            step(*arguments)
        except sqlite3.Error as error:
            if is_damage(error):
                self._guard(self._heal, error)
            else:
                self._tell(f"the history cannot be written: {error}")
        except (OSError, GpudeckError) as error:
            self._tell(f"the history cannot be written: {error}")
        except Exception:
            log.exception("the history stumbled")
            self.problem = "the history stumbled over something unforeseen: see the hub's log"

    def _tell(self, problem: str | None) -> None:
        if problem != self.problem:
            if problem is None:
                log.info("the history is written again")
            else:
                log.warning("%s", problem)
        self.problem = problem

    def _store(self, batch: list[HostSample]) -> None:
        if not batch:
            return
        self._waiting -= len(batch)
        if not self._has_room():
            self.dropped += len(batch)
            return
        try:
            self._write(batch)
        except sqlite3.OperationalError:
            self.dropped += len(batch)
            raise
        except Exception as error:
            is_damaged = isinstance(error, sqlite3.Error) and is_damage(error)
            if isinstance(error, sqlite3.Error) and is_damaged and self.set_aside is None:
                self._heal(error)
                self._store_again(batch)
                return
            if len(batch) == 1 or is_damaged:
                self.dropped += len(batch)
                raise
            # One sample that cannot be written must not cost the others of its second.
            for sample in batch:
                self._guard(self._store_again, [sample])
        else:
            self._tell(None)

    def _store_again(self, batch: list[HostSample]) -> None:
        self._waiting += len(batch)
        self._store(batch)

    def _write(self, batch: list[HostSample]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            taken = self._intake.take(batch)
            cursor = self._connection.execute(
                "INSERT INTO journal (layout, body) VALUES (?, ?)", (self._layout, encode_entry(taken))
            )
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self.taken += len(batch)
        entry, now = cursor.lastrowid or 0, self._now()
        moments: list[float] = taken.own[:, 0].tolist()
        for row, at in zip(taken.rows(), moments, strict=True):
            self._append(row, at, entry, now)

    def _append(self, row: SampleRow, at: float, entry: int, now: float, layout: MetricLayout | None = None) -> None:
        start = int(at // SECONDS) * SECONDS
        open_hour = self.open_hours.get((row.host, start))
        if open_hour is None:
            open_hour = self._begin_hour(row.host, start, entry)
        self.late += open_hour.is_late
        self.rows += len(row.table)
        open_hour.append(row, at, entry, layout)
        open_hour.touched_at = now

    def _begin_hour(self, host: int, start: int, entry: int) -> OpenHour:
        found = self._connection.execute("SELECT 1 FROM sealed WHERE key = ?", (key_of(host, start),)).fetchone()
        # What is not packed takes ten times the room: of a large fleet it has to be little, for a small one packing
        # does not pay.
        rows_in_piece = max(6, _LOOSE_ROWS // len(self.keys.hosts))
        before = self._last_before(host, start)
        open_hour = OpenHour(start, before, entry, is_late=found is not None, rows_in_piece=rows_in_piece)
        with self.lock:
            self.open_hours[host, start] = open_hour
        return open_hour

    def _last_before(self, host: int, start: int) -> float | None:
        """When that host was last sampled before this hour, as far as it is at hand."""
        previous = self.open_hours.get((host, start - SECONDS))
        if previous is not None:
            return previous.newest
        last = self._sealed_last.get(host)
        return last if last is not None and last < start else None

    def _seal_due(self) -> None:
        """The oldest first, for as long as the budget lasts: so hosts are sealed one after another, not all at once."""
        now = self._now()
        due = sorted(
            (key for key, open_hour in self.open_hours.items() if _is_due(open_hour, now)), key=lambda key: key[1]
        )
        began = time.perf_counter()
        self._rest = _WAIT
        for key in due:
            self._seal_or_leave(key)
            spent = time.perf_counter() - began
            if spent > _BUDGET:
                self._rest = spent * _REST
                break

    def _seal_or_leave(self, key: HourKey) -> None:
        """An hour that cannot be sealed is given up, so that it keeps no other one waiting. What fails for the whole
        file is tried again."""
        try:
            self._seal(key)
        except sqlite3.Error:
            raise
        except Exception:
            log.exception("an hour of %s from %d on cannot be kept", self.keys.by_key[key[0]].name, key[1])
            with self.lock:
                self.dropped += len(self.open_hours.pop(key).snapshot((), runs=False).times)

    def _seal(self, key: HourKey) -> None:
        """One hour's transaction. Whoever reads sees the open hour or the sealed row, never both or neither."""
        host, open_hour = self.keys.by_key[key[0]], self.open_hours[key]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._sealer.seal(host, open_hour)
            self.keys.write_seen(host)
            others = (other.first_entry for other in self.open_hours.values() if other is not open_hour)
            self._connection.execute(
                "DELETE FROM journal WHERE id < ?", (min(others, default=open_hour.last_entry + 1),)
            )
            with self.lock:
                self._connection.execute("COMMIT")
                del self.open_hours[key]
        except BaseException:
            self._roll_back()
            raise
        self._sealed_last[host.key] = max(self._sealed_last.get(host.key, 0.0), open_hour.newest)

    def _transact(self, step: Callable[[], None]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            step()
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Numbers that were given out in the failed transaction are nobody's: read again whose are whose."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.keys.load()
        self._sealer.forget()
        for (host, _), open_hour in self.open_hours.items():
            known = self.keys.by_key.get(host)
            if known is not None:
                known.last = max(known.last, open_hour.newest)

    def _keep_up(self) -> None:
        """Now and then: what is too old or too much goes."""
        if time.monotonic() >= self._next_upkeep:
            self._next_upkeep = time.monotonic() + _UPKEEP_EVERY
            if self._retention.is_confirmed:
                self._set_future_aside(self._now())
            until = self._retention.deletion_time()
            if until is not None:
                self._upkeep.run(until, list(self.keys.by_key))
            self._upkept += 1

    def _set_future_aside(self, now: float) -> None:
        """Hours of a clock that ran ahead, now that it is right again: they would be counted a second time when their
        time comes."""
        found = 0

        def move() -> None:
            nonlocal found
            found = self._upkeep.set_future_aside(now, list(self.keys.by_key))
            if found or any(host.last > now + _AHEAD for host in self.keys.by_key.values()):
                self.keys.end_at(now)

        self._transact(move)
        if found:
            self._sealer.forget()
            log.warning("%d rows of the history were of the future, from a clock that was ahead: set aside", found)
        self._sealed_last = {host: min(last, now) for host, last in self._sealed_last.items()}

    def _has_room(self) -> bool:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_EVERY
            problem = self._look()
            self._is_stopped = problem is not None
            if problem is not None:
                self._tell(problem)
        return not self._is_stopped

    def _look(self) -> str | None:
        """Why nothing may be written at the moment: the file is not where it was, or the disk is nearly full."""
        try:
            is_there = self.path.stat().st_ino == self._inode
            free = shutil.disk_usage(self.path.parent).free
        except OSError:
            is_there, free = False, 0
        if not is_there:
            return f"the history's file {self.path} was taken away: no samples are kept until the hub is started again"
        if free < self._settings.min_free:
            return (
                f"the disk of {self.path.parent} has {free // 10**6} MB left, less than history.min_free: "
                "no samples are kept until there is room"
            )
        return None

    def _own_layout(self) -> int:
        key = 0

        def find() -> None:
            nonlocal key
            key = self.keys.layout(join_layout(MetricLayout()))

        self._transact(find)
        return key

    def _recover(self) -> None:
        """The open hours of last time."""
        for row, entry, layout in read_journal(self._connection):
            at, host = float(row.own[0]), self.keys.by_key.get(row.host)
            if host is None:
                self.damage.note(f"the journal of host {row.host}", "its row in hosts is missing")
                continue
            self._append(row, at, entry, self._now(), layout)
            host.last = max(host.last, at)


def _is_due(open_hour: OpenHour, now: float) -> bool:
    """Its hour is over, or lies in a future that a wrong clock told of; and nothing more has come for a while."""
    is_over = open_hour.start + SECONDS + _GRACE <= now or open_hour.start > now + SECONDS
    return is_over and not now - _QUIET < open_hour.touched_at <= now
