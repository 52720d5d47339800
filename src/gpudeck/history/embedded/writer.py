"""The thread that writes: samples → journal → open hours → sealed hours.

A batch is in the journal before it is in an open hour, and an open hour is released only by the transaction that seals
it. After a crash the journal holds everything that no sealed hour has; it is read at the next start.
"""

import contextlib
import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpudeck.history.embedded.journal import CURRENT, encode_entry
from gpudeck.history.embedded.keys import KeyRegistry
from gpudeck.history.embedded.open_hour import HourKey, MatrixCache, OpenHours, group_neighbours
from gpudeck.history.embedded.repair import replace_file
from gpudeck.history.embedded.retention import delete_old, set_future_aside
from gpudeck.history.embedded.seal import HourSealer, summarize
from gpudeck.history.embedded.tables import is_damage, lock_file, open_to_write, set_file_aside
from gpudeck.history.embedded.view import DamageLog
from gpudeck.history.hour import QUARTER, SECONDS
from gpudeck.history.recorder import LiveBatch, Sample, count_samples
from gpudeck.history.settings import HistorySettings
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.errors import GpudeckError, Temporary

log = logging.getLogger(__name__)

_WAIT: Final = 1.0
_GRACE: Final = 90.0
"""Seconds after an hour's end, for reports on their way."""
_BUDGET: Final = 0.05
"""Seconds of sealing at a time, so that the event loop's thread gets its turn."""
_QUIET: Final = 2.0
"""Seconds without new samples after which a late hour is sealed."""
_REST: Final = 2.0
"""While more is due, the thread rests so many times as long as it sealed."""
_SUMMARY_REST: Final = 6.0
FEW_OPEN_HOURS: Final = 200
"""Of so few hosts, questions about all of them read the samples until now. Of more, they are answered until the last
quarter hour that is over."""
_MAX_WAITING: Final = 50_000
_UPKEEP_EVERY: Final = 60.0
_LOOK_EVERY: Final = 5.0
_AHEAD: Final = 3600.0
"""Seconds: data so far ahead of a confirmed clock was written while the clock was wrong."""


class EmbeddedWriter:
    """`lock` is held while an open hour is replaced by its sealed row. `problem` is why nothing can be written at the
    moment."""

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
        self.open_hours: OpenHours
        self.summarized: int | None = None
        """Until when every open hour has a summary; None where they are so few that none is needed."""
        self._unsummarized: tuple[int, list[list[HourKey]]] | None = None
        self._due: list[list[HourKey]] = []
        self.problem: str | None = None
        self.taken = self.dropped = self.late = self.rows = 0
        self._settings = settings
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._queue: queue.SimpleQueue[list[Sample] | threading.Event | None] = queue.SimpleQueue()
        self.waiting = 0
        self._keep_samples = keep_samples
        self.damage = DamageLog()
        self.opened = 0
        self.set_aside: str | None = None
        self.next_upkeep = self._next_look = 0.0
        self.upkept = 0
        self._stopped: str | None = None
        self._rest = _WAIT
        self._file_lock = lock_file(path)
        try:
            self._open_or_replace()
        except BaseException:
            self._file_lock.close()
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
        self._connection = open_to_write(self.path)
        try:
            self._inode = self.path.stat().st_ino
            self.keys = KeyRegistry(self._connection)
            self._sealer = HourSealer(
                self._connection,
                self.keys,
                keep_samples=self._keep_samples,
                samples_since=lambda: self._retention.certain - self._settings.raw,
            )
            with self._transaction():
                self._layout = self.keys.layout((*CURRENT.gpu, "", *CURRENT.host))
            self.open_hours = OpenHours(self._connection, self.keys.by_key.values())
            self.open_hours.recover(self.keys.by_key, self.damage.note, self._now())
            self._due = []
            self.opened += 1
        except BaseException:
            self._connection.close()
            raise

    def _replace(self, why: sqlite3.Error) -> None:
        """Set a damaged file aside and continue with a copy of its readable rows, or with an empty file if that fails
        too. Raises OSError, sqlite3.Error, UsageError and Temporary."""
        began = time.time()
        aside, copied = replace_file(self.path, began, self._settings.min_free)
        try:
            self._open()
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            log.warning("what could be read of %s cannot be used either: %s", aside, error)
            copied = 0
            set_file_aside(self.path, began)
            self._open()
        self.set_aside = (
            f"the history's file was damaged ({why}): it is now {aside.name}, and a new one was begun with the "
            f"{copied:,} rows that could be read of it. Delete it when nothing is missing"
        )
        log.error("%s", self.set_aside)

    def _heal(self, why: sqlite3.Error) -> None:
        """Replace a file that turned out to be damaged. Only once: after that, the disk needs attention."""
        if self.set_aside is not None:
            self._set_problem(f"the history's file is damaged again ({why}): check the disk, then restart the hub")
            return
        with self.lock:
            self._connection.close()
            self._replace(why)

    def take(self, samples: Sequence[Sample]) -> None:
        """Thread-safe; never blocks."""
        count = count_samples(samples)
        if self.waiting + count > _MAX_WAITING:
            self.dropped += count
            return
        self.waiting += count
        self._queue.put(list(samples))

    def flush(self, seconds: float = 60.0) -> bool:
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def close(self) -> None:
        """Write all waiting samples, and end the thread. Open hours stay in the journal."""
        self._queue.put(None)
        self._thread.join(30)
        if not self._thread.is_alive():
            self._connection.close()
            self._file_lock.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch: list[Sample] = []
            done: list[threading.Event] = []
            for item in self._next_items():
                if item is None:
                    is_open = False
                elif isinstance(item, list):
                    batch += item
                else:
                    done.append(item)
            self.waiting -= count_samples(batch)
            self._guard(self._store, batch)
            for waiting in done:
                waiting.set()
            for step in (self._summarize_due, self._seal_due, self._apply_retention) if is_open else ():
                self._guard(step)
        self._guard(self._write_seen)

    def _write_seen(self) -> None:
        with self._transaction():
            for host in self.keys.hosts.values():
                if host.is_changed:
                    self.keys.write_seen(host)

    def _next_items(self) -> "list[list[Sample] | threading.Event | None]":
        items: list[list[Sample] | threading.Event | None] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=self._rest))
            while True:
                items.append(self._queue.get_nowait())
        return items

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Log an error of a step and continue: the history must never end the hub."""
        try:
            step(*arguments)
        except sqlite3.Error as error:
            if is_damage(error):
                self._guard(self._heal, error)
            else:
                self._set_problem(f"the history cannot be written: {error}")
        except (OSError, GpudeckError) as error:
            self._set_problem(f"the history cannot be written: {error}")
        except Exception:
            log.exception("the history failed unexpectedly")
            self.problem = "the history failed unexpectedly: see the hub's log"

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            if problem is None:
                log.info("the history is written again")
            else:
                log.warning("%s", problem)
        self.problem = problem

    def _store(self, batch: list[Sample]) -> None:
        count = count_samples(batch)
        if not count:
            return
        if not self._has_room():
            self.dropped += count
            return
        try:
            self._write(batch)
        except sqlite3.OperationalError:
            self.dropped += count
            raise
        except Exception as error:
            if count == 1 or (isinstance(error, sqlite3.Error) and is_damage(error)):
                self.dropped += count
                raise
            # One sample that cannot be written must not cost the others of the batch.
            for one in batch:
                for sample in one.split() if isinstance(one, LiveBatch) else (one,):
                    self._guard(self._store, [sample])
        else:
            self._set_problem(None)

    def _write(self, batch: list[Sample]) -> None:
        with self._transaction():
            taken = self.keys.make_batch(batch, self._now())
            cursor = self._connection.execute(
                "INSERT INTO journal (layout, body) VALUES (?, ?)", (self._layout, encode_entry(taken))
            )
        self.taken += len(taken.hosts)
        self.rows += taken.table.rows
        self.late += self.open_hours.append(taken, cursor.lastrowid or 0, self._now())

    def _summarize_due(self) -> None:
        """Once per quarter hour, within the time budget, and before hours that end with it are sealed."""
        self._rest = _WAIT
        now, began = self._now(), time.perf_counter()
        until = int((now - _GRACE) // QUARTER * QUARTER)
        if len(self.open_hours) <= FEW_OPEN_HOURS:
            self.summarized = self._unsummarized = None
            return
        if self._unsummarized is None or self._unsummarized[0] != until:
            if self.summarized == until:
                return
            groups = group_neighbours(key for key, one in self.open_hours.items() if not one.is_late)
            self._unsummarized = until, groups
            self.open_hours.pack()
        left = self._unsummarized[1]
        while left and time.perf_counter() - began <= _BUDGET:
            self._summarize([key for key in left.pop() if key in self.open_hours], until)
        if left:
            self._rest = _BUDGET * _SUMMARY_REST
        else:
            self.summarized, self._unsummarized = until, None

    def _summarize(self, keys: list[HourKey], until: int) -> None:
        cache: MatrixCache = {}
        for key in keys:
            open_hour = self.open_hours[key]
            open_hour.keep_summary(until, summarize(open_hour, until, self.keys, self._connection, cache))

    def _seal_due(self) -> None:
        if self._unsummarized is not None:
            return
        self._rest = _WAIT
        now, began = self._now(), time.perf_counter()
        if not self._due:
            self._due = group_neighbours(
                key
                for key, one in self.open_hours.items()
                if (one.is_late or _is_over(one.start, now)) and not now - _QUIET < one.touched_at <= now
            )[::-1]
        while self._due:
            self._seal_group([key for key in self._due.pop() if key in self.open_hours])
            spent = time.perf_counter() - began
            if spent > _BUDGET:
                self._rest = spent * _REST
                break
        self._cut_journal()

    def _seal_group(self, keys: list[HourKey]) -> None:
        """Seal neighbours together, because they share matrices; if that fails, one by one. An hour that cannot be
        sealed is dropped, so that it does not block others. Errors of the file are retried."""
        if any(self.open_hours.loose.oldest < start + SECONDS for _, start in keys):
            self.open_hours.pack()
        try:
            self._seal(keys)
        except sqlite3.Error:
            raise
        except Exception:
            if len(keys) > 1:
                for key in keys:
                    self._seal_group([key])
                return
            ((host, start),) = keys
            log.exception("an hour of %s from %d on cannot be kept", self.keys.by_key[host].name, start)
            with self.lock:
                self.dropped += self.open_hours.pop((host, start)).samples

    def _seal(self, keys: list[HourKey]) -> None:
        """One transaction. Readers see the open hours or the sealed rows, never both or neither."""
        cache: MatrixCache = {}
        with self._transaction():
            for key in keys:
                host = self.keys.by_key[key[0]]
                self._sealer.seal(host, self.open_hours[key], cache)
                self.keys.write_seen(host)
            self._sealer.write_sums()
            self.keys.write_new()
            with self.lock:
                self._connection.execute("COMMIT")
                sealed = [self.open_hours.pop(key) for key in keys]
        until = self.open_hours.sealed_until
        for one in sealed:
            until[one.host] = max(until.get(one.host, 0.0), one.newest)

    def _cut_journal(self) -> None:
        """Delete entries whose samples are all sealed."""
        if self._due:
            return
        last = self._connection.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0]
        oldest = min((open_hour.first_entry for open_hour in self.open_hours.values()), default=last + 1)
        self._connection.execute("DELETE FROM journal WHERE id < ?", (oldest,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            if self._connection.in_transaction:
                self.keys.write_new()
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Read the numbers of the file again: those assigned in the failed transaction are free."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.keys.load()
        self._sealer.forget()
        for (host, _), open_hour in self.open_hours.items():
            known = self.keys.by_key.get(host)
            if known is not None:
                known.last = max(known.last, open_hour.newest)

    def _apply_retention(self) -> None:
        if time.monotonic() >= self.next_upkeep:
            self.next_upkeep = time.monotonic() + _UPKEEP_EVERY
            if self._retention.is_confirmed:
                self._set_future_aside(self._now())
            until = self._retention.deletion_time()
            if until is not None:
                delete_old(self._connection, self._settings, until)
            self.upkept += 1

    def _set_future_aside(self, now: float) -> None:
        """Hours written while the clock was ahead would count twice when their time comes."""
        with self._transaction():
            found = set_future_aside(self._connection, now)
            if found or any(host.last > now + _AHEAD for host in self.keys.by_key.values()):
                self.keys.end_at(now)
        if found:
            self._sealer.forget()
            log.warning("%d rows of the history were of the future, from a clock that was ahead: set aside", found)
        until = self.open_hours.sealed_until
        until.update({host: min(last, now) for host, last in until.items()})

    def _has_room(self) -> bool:
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_EVERY
            self._stopped = self._look()
            if self._stopped is not None:
                self._set_problem(self._stopped)
        return self._stopped is None

    def _look(self) -> str | None:
        """Why nothing may be written: the file was removed, or the disk is nearly full."""
        try:
            is_there = self.path.stat().st_ino == self._inode
            free = shutil.disk_usage(self.path.parent).free
        except OSError:
            is_there, free = False, 0
        if not is_there:
            return f"the history's file {self.path} was removed: no samples are kept until the hub is started again"
        if free < self._settings.min_free:
            return (
                f"the disk of {self.path.parent} has {free // 10**6} MB left, less than history.min_free: "
                "no samples are kept until there is room"
            )
        return None


def _is_over(start: int, now: float) -> bool:
    """Also true for an hour in the future, which comes from a wrong clock."""
    return start + SECONDS + _GRACE <= now or start > now + SECONDS
