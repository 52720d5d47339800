"""The one thread that writes: samples → journal → open hours → sealed hours.

A batch is in the journal before it is in an open hour, and an open hour is let go only with the transaction that seals
it. So whenever the hub is killed, the journal holds what no sealed hour has: it is read again at the next start.
"""

import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpudeck.history.embedded.journal import Entry, encode, join_layout, read_journal
from gpudeck.history.embedded.keys import HostKeys, Keys, Slot
from gpudeck.history.embedded.seal import Sealer
from gpudeck.history.embedded.tables import claim, key_of, open_to_write
from gpudeck.history.embedded.tail import GpuRow, Layout, Loose, Row, Tail, loosen
from gpudeck.history.embedded.upkeep import Upkeep
from gpudeck.history.hour import SECONDS
from gpudeck.history.sample import GpuSample, HostSample
from gpudeck.history.settings import HistorySettings
from gpudeck.model.clock import Clock

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
_AHEAD: Final = 60.0
"""A sample that lies so far ahead of the hub's clock was taken while that was wrong."""
_LOOK_EVERY: Final = 5.0


TailKey = tuple[int, int]
"""The host and when the hour begins."""


class Writer:
    """`tails` are the open hours; `lock` is held while one is exchanged for its sealed row.

    `problem` says why nothing can be written at the moment, None when all is well.
    """

    def __init__(self, path: Path, settings: HistorySettings, now: Clock, *, keep_samples: bool = True) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.tails: dict[TailKey, Tail] = {}
        self.problem: str | None = None
        self.taken = self.dropped = self.late = self.rows = 0
        self.newest: float | None = None
        self._settings = settings
        self._now = now
        self._queue: queue.SimpleQueue[list[HostSample] | threading.Event | None] = queue.SimpleQueue()
        self._waiting = 0
        self._claim = claim(path)
        try:
            self._connection = open_to_write(path)
        except BaseException:
            self._claim.close()
            raise
        self._inode = path.stat().st_ino
        self.keys = Keys(self._connection)
        self._layout = self._own_layout()
        self._sealer = Sealer(self._connection, self.keys, keep_samples=keep_samples)
        self._upkeep = Upkeep(self._connection, settings)
        self._next_upkeep = self._next_look = 0.0
        self._is_stopped = False
        self._rest = _WAIT
        self._sealed_last = {host.key: host.last for host in self.keys.by_key.values()}
        self._recover()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

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
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

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
            done: list[threading.Event] = []
            for item in self._next_items():
                if item is None:
                    is_open = False
                elif isinstance(item, threading.Event):
                    done.append(item)
                else:
                    batch += item
            self._guard(self._store, batch)
            for event in done:
                event.set()
            if is_open:
                self._guard(self._seal_due)
                self._guard(self._keep_up)
        self._guard(self._transact, self.keys.write_all_seen)

    def _next_items(self) -> list[list[HostSample] | threading.Event | None]:
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
        rows: Entry = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            rows = [(host.key, row) for host, row in map(self._make_row, batch)]
            cursor = self._connection.execute(
                "INSERT INTO journal (layout, body) VALUES (?, ?)", (self._layout, encode(rows))
            )
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self.dropped += len(batch)
            self._roll_back()
            raise
        self.taken += len(batch)
        for (host, _), row in zip(rows, loosen([row for _, row in rows]), strict=True):
            self._append(host, row, cursor.lastrowid or 0)
        self._tell(None)

    def _make_row(self, sample: HostSample) -> tuple[HostKeys, Row]:
        """The sample by the file's numbers. Nearly always it has the GPUs and processes of the one before."""
        at, gpus = sample.at, sample.gpus
        host = self.keys.host(sample)
        is_late = self._is_late(host, at)
        slots = host.slots
        if (
            is_late
            or len(slots) != len(gpus)
            or any(slot.name != gpu[:3] for slot, gpu in zip(slots, gpus, strict=True))
        ):
            slots = [Slot(gpu[:3], self.keys.gpu(host, gpu, at), None, None) for gpu in gpus]
        rows: list[GpuRow] = []
        is_changed = slots is not host.slots
        for slot, gpu in zip(slots, gpus, strict=True):
            processes = gpu[5]
            if not processes:
                is_changed = is_changed or bool(slot.processes)
                slot.processes, slot.runs = (None, None) if processes is None else ([], ())
                rows.append((slot.key, gpu[3], gpu[4], slot.runs, [], []))
                continue
            found = [process[:2] for process in processes]
            if found != slot.processes:
                is_changed = True
                slot.processes = found
                slot.runs = tuple(self.keys.run(host, process, slot.key, at).key for process in processes)
            memories = [process[6] for process in processes]
            rows.append((slot.key, gpu[3], gpu[4], slot.runs, memories, [process[7] for process in processes]))
        if not is_late:
            host.slots = slots
            if is_changed:
                self._end_runs(host)
        self.keys.note_seen(host, at)
        return host, Row(at, sample.interval, sample.values, rows)

    def _is_late(self, host: HostKeys, at: float) -> bool:
        """Whether newer samples of that host are known. Those of a clock that ran ahead and was set right do not count:
        else nobody would come or go until their time."""
        if at >= host.last:
            return False
        if host.last <= self._now() + _AHEAD:
            return True
        host.last = at
        return False

    def _end_runs(self, host: HostKeys) -> None:
        """Runs that are no longer there. Where it is not known who is on some GPU, none is said to be gone."""
        if any(slot.processes is None for slot in host.slots):
            return
        present = {pid for slot in host.slots for pid, _ in slot.processes or ()}
        for pid in [pid for pid in host.runs if pid not in present]:
            self.keys.end(host, pid)

    def _append(self, host: int, row: Loose, entry: int, layout: Layout | None = None) -> None:
        at = row.at
        start = int(at // SECONDS) * SECONDS
        tail = self.tails.get((host, start))
        if tail is None:
            tail = self._open_tail(host, start, entry)
        self.late += tail.is_late
        self.rows += len(row.gpus)
        self.newest = at if self.newest is None else max(self.newest, at)
        tail.append(row, entry, layout)
        tail.touched_at = self._now()

    def _open_tail(self, host: int, start: int, entry: int) -> Tail:
        found = self._connection.execute("SELECT 1 FROM sealed WHERE key = ?", (key_of(host, start),)).fetchone()
        # What is not packed takes ten times the room: of a large fleet it has to be little, for a small one packing
        # does not pay.
        rows_in_piece = max(6, _LOOSE_ROWS // len(self.keys.hosts))
        before = self._last_before(host, start)
        tail = Tail(start, before, entry, is_late=found is not None, rows_in_piece=rows_in_piece)
        with self.lock:
            self.tails[host, start] = tail
        return tail

    def _last_before(self, host: int, start: int) -> float | None:
        """When that host was last sampled before this hour, as far as it is at hand."""
        previous = self.tails.get((host, start - SECONDS))
        if previous is not None:
            return previous.newest
        last = self._sealed_last.get(host)
        return last if last is not None and last < start else None

    def _seal_due(self) -> None:
        """The oldest first, for as long as the budget lasts: so hosts are sealed one after another, not all at once."""
        now = self._now()
        due = sorted((key for key, tail in self.tails.items() if _is_due(tail, now)), key=lambda key: key[1])
        began = time.perf_counter()
        self._rest = _WAIT
        for key in due:
            self._seal_or_leave(key)
            spent = time.perf_counter() - began
            if spent > _BUDGET:
                self._rest = spent * _REST
                break

    def _seal_or_leave(self, key: TailKey) -> None:
        """An hour that cannot be sealed is given up, so that it keeps no other one waiting. What fails for the whole
        file is tried again."""
        try:
            self._seal(key)
        except sqlite3.Error:
            raise
        except Exception:
            log.exception("an hour of %s from %d on cannot be kept", self.keys.by_key[key[0]].name, key[1])
            with self.lock:
                self.dropped += len(self.tails.pop(key).picture((), runs=False).times)

    def _seal(self, key: TailKey) -> None:
        """One hour's transaction. Whoever reads sees the open hour or the sealed row, never both or neither."""
        host, tail = self.keys.by_key[key[0]], self.tails[key]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._sealer.seal(host, tail)
            self.keys.write_seen(host)
            others = (other.first_entry for other in self.tails.values() if other is not tail)
            self._connection.execute("DELETE FROM journal WHERE id < ?", (min(others, default=tail.last_entry + 1),))
            with self.lock:
                self._connection.execute("COMMIT")
                del self.tails[key]
        except BaseException:
            self._roll_back()
            raise
        self._sealed_last[host.key] = max(self._sealed_last.get(host.key, 0.0), tail.newest)

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
        for (host, _), tail in self.tails.items():
            known = self.keys.by_key[host]
            known.last = max(known.last, tail.newest)

    def _keep_up(self) -> None:
        """Now and then: what is too old or too much goes."""
        if time.monotonic() >= self._next_upkeep:
            self._next_upkeep = time.monotonic() + _UPKEEP_EVERY
            self._upkeep.run(self._now(), time.monotonic(), list(self.keys.by_key))

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
            key = self.keys.layout(join_layout(Layout()))

        self._transact(find)
        return key

    def _recover(self) -> None:
        """The open hours of last time."""
        for host, row, entry, layout in read_journal(self._connection):
            self._append(host, loosen([row])[0], entry, layout)
            self.keys.by_key[host].last = max(self.keys.by_key[host].last, row.at)


def _are_same(slots: list[Slot], gpus: tuple[GpuSample, ...]) -> bool:
    if len(slots) != len(gpus):
        return False
    for slot, gpu in zip(slots, gpus, strict=True):  # noqa: SIM110 - any() would take twice as long
        if slot.name != gpu[:3]:
            return False
    return True


def _is_due(tail: Tail, now: float) -> bool:
    """Its hour is over, or lies in a future that a wrong clock told of; and nothing more has come for a while."""
    is_over = tail.start + SECONDS + _GRACE <= now or tail.start > now + SECONDS
    return is_over and not now - _QUIET < tail.touched_at <= now
