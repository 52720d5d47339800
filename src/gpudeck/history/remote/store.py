"""A store that the site runs: samples are sent by remote_write, and queries are PromQL."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from gpudeck.history.answers import series_queries
from gpudeck.history.base import (
    HistoryRefused,
    MomentQuery,
    Overview,
    OverviewQuery,
    PastHost,
    SamplePage,
    SamplesQuery,
    SeriesQuery,
    StoreStats,
)
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.recorder import LiveBatch, Sample
from gpudeck.history.remote.answers import RemoteAnswers, find_hosts
from gpudeck.history.remote.client import SECONDS, PromClient, PromReader
from gpudeck.history.remote.encoder import UsageCounters
from gpudeck.history.remote.writer import DiskQueue, RemoteWriter, RemoteWriteSender, SendStats
from gpudeck.history.settings import HistorySettings
from gpudeck.model import clock as clocks
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.history import Answer, Backlog, HistoryTrouble, judge_backlog, judge_problem

FOLDER: Final = "remote-queue"
_READERS: Final = 4
_LATE_SECONDS: Final = 60.0
"""A store that takes samples later than this is behind."""


class RemoteStore:
    """`history.base.Store` over a Prometheus-compatible store. Starts two threads; `close` ends them.

    Samples that are not sent yet are in `data_dir`. `usage_store` gets every sample too, and answers questions about
    usage and runs. Raises UsageError; a store that does not answer is no error.
    """

    def __init__(
        self,
        settings: HistorySettings,
        data_dir: Path,
        usage_store: EmbeddedStore,
        clock: clocks.Clock = clocks.wall,
        *,
        hub: str | None = None,
    ) -> None:
        self._clock = clock
        self._usage_store = own = usage_store
        self._write_client = PromClient(settings.write_url or "", settings, seconds=20.0)
        self._read_client = PromClient(settings.read_url or "", settings, seconds=SECONDS + 5, connections=_READERS)
        self._queue = _open_queue(data_dir / FOLDER, settings.queue_size)
        # These need no samples: the hub's own file answers them.
        self.heat, self.usage, self.waste, self.idle = own.heat, own.usage, own.waste, own.idle
        self.runs, self.run, self.verdicts = own.runs, own.run, own.verdicts
        self._stop, self._more = threading.Event(), threading.Event()
        self._reader = reader = PromReader(self._read_client)
        self._answers = RemoteAnswers(reader, usage_store)
        self._counters = UsageCounters(data_dir / FOLDER / "counters", hub)
        self.writer = RemoteWriter(self._queue, self._counters, self._more, clock)
        self._sender = RemoteWriteSender(self._queue, self._write_client)
        self._threads = [
            threading.Thread(target=self.writer.run, args=(self._stop,), name="history-writer", daemon=True),
            threading.Thread(
                target=self._sender.run, args=(self._stop, self._more), name="history-sender", daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def problem(self) -> str | None:
        trouble = self.trouble
        return None if trouble is None else trouble.detail

    @property
    def trouble(self) -> HistoryTrouble | None:
        sent = self._sender.sent
        own = self.writer.problem or self._counters.problem or (None if sent.is_later else sent.problem)
        own = own or self._usage_store.problem
        return judge_problem(own) if own else self._judge_backlog(sent)

    def _judge_backlog(self, sent: SendStats) -> HistoryTrouble | None:
        behind = 0.0 if sent.oldest is None else max(0.0, self._clock() - sent.oldest)
        if sent.oldest is None or (sent.problem is None and behind < _LATE_SECONDS):
            return None
        size, lost = self._queue.size(), self._queue.lost
        room = None if behind < _LATE_SECONDS or not size else (self._queue.most_bytes - size) / size * behind
        return judge_backlog(
            Backlog(
                behind_seconds=behind,
                reason=sent.problem,
                room_seconds=None if room is None else max(0.0, room),
                lost_seconds=None if lost is None else max(1.0, lost[1] - lost[0]),
            )
        )

    @property
    def damage(self) -> str | None:
        return self._usage_store.damage

    def take(self, samples: Sequence[Sample]) -> None:
        self.writer.take([one for one in samples if not (isinstance(one, LiveBatch) and one.is_forwarded)])
        self._usage_store.take(samples)

    def series(self, query: SeriesQuery) -> Answer:
        return self._answers.series(query, self._clock())

    def samples(self, query: SamplesQuery) -> SamplePage:
        hint = "That store exports them; runs, usage and events are exported here."
        raise HistoryRefused("no_samples", "this hub keeps its samples in another store", hint)

    def overview(self, query: OverviewQuery) -> Overview:
        """The curves come from the store, in parallel queries; usage and heat map from the hub itself."""
        own, now = self._usage_store.overview(query), self._clock()
        with ThreadPoolExecutor(_READERS) as threads:
            series = list(threads.map(lambda one: self._answers.series(one, now), series_queries(query)))
        return replace(own, series=series)

    def moment(self, query: MomentQuery) -> Iterator[PastHost]:
        return find_hosts(self._reader, self._usage_store, query)

    def stats(self) -> StoreStats:
        """`parts` counts records, each with one host at one moment or some counters. `last_success` is when the store
        last accepted something, in Unix seconds; 0: not since the hub started."""
        sent, size = self._sender.sent, self._queue.size()
        oldest = next((waiting.part.at for waiting in self._queue.peek(1)), None)
        return StoreStats(
            kind="prometheus",
            size_bytes=size,
            samples_taken=self.writer.taken,
            samples_dropped=self.writer.dropped + self._queue.dropped + sent.refused,
            samples_late=sent.refused_late,
            rows=sent.values,
            oldest=None,
            newest=self.writer.newest,
            behind_seconds=0.0 if oldest is None else max(0.0, self._clock() - oldest),
            parts={
                "records_sent": sent.records,
                "records_dropped": self._queue.dropped,
                "records_refused": sent.refused,
                "refused_late": sent.refused_late,
                "queue_bytes": size,
                "last_success": int(sent.last_success or 0),
            },
            problem=self.problem,
        )

    def flush(self, seconds: float = 60.0) -> None:
        """Wait until the store has all samples. Raises Temporary after `seconds`."""
        deadline = time.monotonic() + seconds
        self._usage_store.flush(seconds)
        self.writer.write()
        while not self._queue.is_empty():
            if time.monotonic() > deadline:
                raise Temporary(f"{self._write_client.shown} has not taken everything within {seconds:g} s.")
            time.sleep(0.02)

    def close(self) -> None:
        """Unsent records stay on the disk for the next start."""
        self._stop.set()
        self._more.set()
        for thread in self._threads:
            # A request that hangs is not waited for: what it carries will be sent again.
            thread.join(5.0)
        self._usage_store.close()
        self._queue.close()
        self._write_client.close()
        self._read_client.close()


def _open_queue(folder: Path, most_bytes: int) -> DiskQueue:
    try:
        return DiskQueue(folder, most_bytes)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"the folder {folder} cannot be used: {reason}.", "Check data_dir.") from error
