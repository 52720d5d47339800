"""Samples → records in a queue on the disk (`DiskQueue`) → remote_write.

`RemoteWriter` encodes samples each second; `RemoteWriteSender` sends the records and retries with growing, random
pauses. Prometheus refuses a whole request because of one late sample, so a refused request is sent again in halves
until the refused record is found, which is dropped and counted. A full queue drops its oldest records.
"""

import errno
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import cramjam
import zstandard
from msgspec import Struct

from gpudeck.fetch import HttpResponse
from gpudeck.history.embedded.tables import is_damage, set_file_aside
from gpudeck.history.recorder import Sample, as_host_samples, count_samples
from gpudeck.history.remote.client import PromClient, describe, quote
from gpudeck.history.remote.encoder import CLOCK_WAS_WRONG, EncodedSeries, UsageCounters, encode_sample
from gpudeck.history.sample import HostSample
from gpudeck.model.backoff import Backoff
from gpudeck.model.clock import Clock
from gpudeck.model.errors import Temporary

FILE: Final = "queue.db"
_LONGEST: Final = 16 * 1024 * 1024
_Dropped = tuple[float, int]
"""When a record was taken, and its bytes."""
_SETTINGS: Final = (
    "auto_vacuum = INCREMENTAL",  # of a queue that was long, the empty pages are given back
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "journal_size_limit = 16000000",
)


class QueuedRecord(Struct, frozen=True):
    """A record, and its number in the queue."""

    part: EncodedSeries
    after: int


class DiskQueue:
    """`append` is for one thread, `peek` and `done` for another. Raises OSError if the folder cannot be used. `dropped`
    counts records that will never be sent; `lost` is the time that they cover."""

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
        return self._size

    def is_empty(self) -> bool:
        return not self._size

    def append(self, parts: Sequence[EncodedSeries]) -> None:
        """Raises OSError if the disk is full; then none of `parts` is kept."""
        rows = [(part.values, part.at, self._packer.compress(part.body)) for part in parts]
        size = sum(len(body) for _, _, body in rows)
        with self._lock:
            try:
                with self._connection:
                    self._connection.executemany("INSERT INTO records (count, at, body) VALUES (?, ?, ?)", rows)
                    gone = self._delete_oldest(self._size + size - self.most_bytes)
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error)) from error
            self._size += size
            self._note_dropped(gone)

    def peek(self, values: int) -> list[QueuedRecord]:
        """The oldest records, up to `values` values together, at least one. They stay in the queue."""
        found: list[QueuedRecord] = []
        damaged: dict[int, _Dropped] = {}
        total = 0
        unpack = zstandard.ZstdDecompressor().decompress
        with self._lock:
            try:
                for number, count, at, body in self._connection.execute("SELECT * FROM records ORDER BY id"):
                    try:
                        part = EncodedSeries(unpack(body, max_output_size=_LONGEST), count, at)
                    except zstandard.ZstdError as error:
                        log.warning("a record that waits for the store is damaged: %s", error)
                        damaged[number] = at, len(body)
                        continue
                    total += count
                    if found and total > values:
                        break
                    found.append(QueuedRecord(part, number))
                with self._connection:
                    self._connection.executemany("DELETE FROM records WHERE id = ?", [(number,) for number in damaged])
                self._note_dropped([*damaged.values()])
            except sqlite3.DatabaseError as error:
                self._begin_anew(error)
                return []
        return found

    def done(self, place: int) -> None:
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
        """Raises OSError if the file cannot be used but is not damaged."""
        if not is_damage(error):
            raise OSError(errno.EIO, str(error)) from error
        self._connection.close()
        aside = set_file_aside(self._file, time.time())
        log.error("what waited for the store cannot be read and is kept in %s: %s", aside, error)
        self._open()

    def _delete_oldest(self, size: int) -> list[_Dropped]:
        """Deletes at least `size` bytes."""
        oldest = "DELETE FROM records WHERE id = (SELECT min(id) FROM records) RETURNING at, length(body)"
        gone: list[_Dropped] = []
        while size > 0:
            gone.append(self._connection.execute(oldest).fetchone())
            size -= gone[-1][1]
        return gone

    def _note_dropped(self, gone: list[_Dropped]) -> None:
        if gone:
            self._size -= sum(size for _, size in gone)
            self.dropped += len(gone)
            self.lost = (gone[0][0] if self.lost is None else self.lost[0], gone[-1][0])


log = logging.getLogger(__name__)

EVERY: Final = 1.0
_MAX_WAITING: Final = 50_000
_HOUR: Final = 3600
MAX_VALUES: Final = 10_000
FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
_HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_FOR_A_PERSON: Final = {401, 403, 404, 405, 407}
"""The address or the credentials are wrong: nothing is wrong with what was sent, and it can wait for a person."""
_LATE_WORDS: Final = ("out of order", "out-of-order", "out of bounds", "too old", "duplicate sample")
"""What Prometheus, Mimir and Thanos say of a sample that comes after a newer one."""


class RemoteWriter:
    """`take` is for the event loop, `run` for a thread of its own. `more` is set when there is something to send."""

    def __init__(self, queue: DiskQueue, counters: UsageCounters, more: threading.Event, clock: Clock) -> None:
        self._queue = queue
        self._counters = counters
        self._more = more
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[Sample] = []
        self._waiting_count = 0
        self._pending: list[EncodedSeries] = []
        self._last: dict[str, float] = {}
        self._newest = -math.inf
        self._is_writing = threading.Lock()
        self.taken = 0
        self.dropped = 0
        self.problem: str | None = None

    @property
    def newest(self) -> float | None:
        return self._newest if math.isfinite(self._newest) else None

    def take(self, samples: Sequence[Sample]) -> None:
        count = count_samples(samples)
        self.taken += count
        with self._lock:
            if self._waiting_count + count > _MAX_WAITING:
                self.dropped += count
            else:
                self._waiting += samples
                self._waiting_count += count

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set, and then the rest and the last counters."""
        is_last = False
        while not is_last:
            is_last = stop.wait(EVERY)
            try:
                self.write(at_last=is_last)
            except Exception:
                log.exception("samples for the store cannot be written")

    def write(self, *, at_last: bool = False) -> None:
        with self._is_writing:
            with self._lock:
                taken, self._waiting, self._waiting_count = self._waiting, [], 0
            samples, parts = list(as_host_samples(taken)), list[EncodedSeries]()
            for sample in samples:
                try:
                    parts += self._encode(sample)
                except Exception:
                    # A bug with one host must cost that host only, and never the thread.
                    log.exception("a sample of %s cannot be encoded", sample.name)
                    self.dropped += 1
            pending = [*self._pending, *self._counters.take_changed(self._newest, at_last=at_last)]
            self._pending = []
            if pending and self._counters.save():
                parts += pending
            if parts:
                # In order of time: Prometheus takes nothing that is an hour older than what it has.
                self._append(sorted(parts, key=lambda part: part.at), len(samples))

    def _encode(self, sample: HostSample) -> list[EncodedSeries]:
        before = self._last.get(sample.host_id, -math.inf)
        # As history.hour.cover: a sample after a gap of more than three intervals covers one interval.
        seconds = sample.at - before
        seconds = sample.interval if seconds <= 0 or seconds > 3 * sample.interval else seconds
        # The totals up to the hour are sent before the next one begins: people ask for whole hours.
        self._pending += self._counters.take_changed(self._newest, at_last=sample.at // _HOUR > self._newest // _HOUR)
        self._last[sample.host_id] = max(before, sample.at)
        if sample.at > self._newest or self._newest > self._clock() + CLOCK_WAS_WRONG:
            self._newest = sample.at
        self._counters.count(sample, seconds)
        return encode_sample(sample, seconds)

    def _append(self, parts: list[EncodedSeries], samples: int) -> None:
        try:
            self._queue.append(parts)
        except OSError as error:
            self.dropped += samples
            if self.problem is None:
                log.warning("samples for the store cannot be written to the disk: %s", error.strerror)
            self.problem = f"samples cannot be written to the disk: {error.strerror}"
            return
        self.problem = None
        self._more.set()


class RetryLater(Temporary):
    """The request failed for now. `pause` is the delay that the store asked for, if any."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class WriteRefused(Exception):
    """The store will never accept this. The text is the store's message, which is for the log only."""

    def __init__(self, reply: HttpResponse) -> None:
        super().__init__(quote(reply.body))
        self.status = reply.status
        self.shown = describe(reply)
        self.is_late = any(word in str(self).lower() for word in _LATE_WORDS)


def post_series(client: PromClient, body: bytes) -> None:
    """Send series in one request. Raises WriteRefused, and Temporary if they may be sent later."""
    reply = client.post("", bytes(cramjam.snappy.compress_raw(body)), _HEADERS)
    if 200 <= reply.status < 300:
        return
    answer = f"{client.shown} answers {describe(reply)}"
    if reply.status in _FOR_A_PERSON:
        client.read_secrets_again()
        raise RetryLater(answer, 15.0)
    if reply.status in {408, 425, 429} or not 400 <= reply.status < 500:
        # In seconds; the other form, a date, is not worth a clock that both agree on.
        after = reply.headers.get("retry-after", "")
        raise RetryLater(answer, float(after) if after.isascii() and after.isdigit() else None)
    raise WriteRefused(reply)


class SendStats(Struct):
    """Counts records and their values. `problem` is what prevents sending at the moment; with `is_later` nothing is
    lost by it. `oldest` is the time of the first waiting record, in Unix seconds."""

    records: int = 0
    values: int = 0
    refused: int = 0
    refused_late: int = 0
    last_success: float | None = None
    problem: str | None = None
    is_later: bool = False
    oldest: float | None = None


class RemoteWriteSender:
    """Sends the records of a queue. `run` is for a thread of its own."""

    def __init__(self, queue: DiskQueue, client: PromClient) -> None:
        self._queue = queue
        self._client = client
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=0.5)
        self.sent = SendStats()

    def run(self, stop: threading.Event, more: threading.Event) -> None:
        """Send until `stop` is set. `more` is set whenever something was added to the queue, and with `stop`."""
        while not stop.is_set():
            more.clear()
            try:
                waiting = self._queue.peek(MAX_VALUES)
                self.sent.oldest = waiting[0].part.at if waiting else None
                pause = self.send(waiting) if waiting else 0.0
            except Exception:
                if stop.is_set():
                    return  # the queue was closed while a request hung
                # A bug, or a disk that fails: neither may end the thread for good.
                log.exception("what waits for %s cannot be sent", self._client.shown)
                waiting, pause = [], MAX_PAUSE
            if pause:
                stop.wait(pause)
            elif not waiting:
                more.wait(1.0)

    def send(self, waiting: Sequence[QueuedRecord]) -> float:
        try:
            self._deliver(waiting)
        except RetryLater as later:
            self._note_trouble(later.message)
            return self._backoff.fail(later.pause)
        except Temporary as trouble:
            self._note_trouble(str(trouble))
            return self._backoff.fail()
        self._backoff.succeed()
        return 0.0

    def _deliver(self, waiting: Sequence[QueuedRecord]) -> None:
        try:
            post_series(self._client, b"".join(one.part.body for one in waiting))
        except WriteRefused as refused:
            if len(waiting) > 1:
                middle = len(waiting) // 2
                self._deliver(waiting[:middle])
                self._deliver(waiting[middle:])
                return
            self._give_up(refused)
        else:
            self._note_success(waiting)
        self._queue.done(waiting[-1].after)

    def _give_up(self, refused: WriteRefused) -> None:
        """Only the first record of each kind is logged."""
        sent, store = self.sent, self._client.shown
        if refused.is_late:
            sent.refused_late += 1
            if sent.refused_late == 1:
                log.warning("%s takes no samples that come late: %s. They are counted.", store, refused)
            return
        sent.refused += 1
        sent.problem, sent.is_later = f"{store} refuses samples with {refused.shown}.", False
        if sent.refused == 1:
            log.warning("%s They are dropped and counted. It says: %s", sent.problem, refused)

    def _note_success(self, waiting: Sequence[QueuedRecord]) -> None:
        sent = self.sent
        if sent.problem is not None:
            log.info("%s takes samples again", self._client.shown)
        sent.problem = None
        sent.last_success = time.time()
        sent.records += len(waiting)
        sent.values += sum(one.part.values for one in waiting)

    def _note_trouble(self, trouble: str) -> None:
        if self.sent.problem is None:
            log.warning("%s; samples wait on the disk", trouble.rstrip("."))
        self.sent.problem, self.sent.is_later = trouble, True
