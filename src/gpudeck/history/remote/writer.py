"""Takes samples off the hub's hands: what is taken is encoded and in the queue on the disk within a second."""

import logging
import math
import threading
from collections import deque
from typing import Final

from gpudeck.history.remote.counters import CLOCK_WAS_WRONG, Counters
from gpudeck.history.remote.queue import Queue
from gpudeck.history.remote.roster import Roster
from gpudeck.history.remote.scribe import Part, Scribe
from gpudeck.history.sample import HostSample
from gpudeck.model.clock import Clock

log = logging.getLogger(__name__)

EVERY: Final = 1.0
_MOST_WAITING: Final = 50_000
"""Samples of hosts in memory, should the disk not keep up."""
_GONE_AFTER: Final = 86_400.0
_HOUR: Final = 3600


class Writer:
    """`take` is for the event loop; `run` is for a thread of its own. `more` is set when there is something to send."""

    def __init__(self, queue: Queue, counters: Counters, roster: Roster, more: threading.Event, clock: Clock) -> None:
        self._queue = queue
        self._counters = counters
        self._roster = roster
        self._more = more
        self._clock = clock
        self._scribe = Scribe()
        self._waiting: deque[HostSample] = deque()
        self._told: list[Part] = []
        self._last: dict[str, float] = {}
        self._newest = -math.inf
        self._is_writing = threading.Lock()
        self._looked_at = -math.inf
        self.taken = 0
        self.dropped = 0
        self.problem: str | None = None

    @property
    def newest(self) -> float | None:
        """When the newest sample was taken; None while there is none."""
        return self._newest if math.isfinite(self._newest) else None

    def take(self, samples: list[HostSample]) -> None:
        self.taken += len(samples)
        self._waiting.extend(samples)
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    def run(self, stop: threading.Event) -> None:
        """Write until `stop` is set, and then what is left and the last counters."""
        is_last = False
        while not is_last:
            is_last = stop.wait(EVERY)
            try:
                self.write(at_last=is_last)
            except Exception:
                log.exception("samples for the store cannot be written")

    def write(self, *, at_last: bool = False) -> None:
        """Put everything that was taken into the queue."""
        with self._is_writing:
            samples = [self._waiting.popleft() for _ in range(len(self._waiting))]
            parts = [part for sample in samples for part in self._encode_safely(sample)]
            told = [*self._told, *self._counters.tell(self._newest, at_last=at_last)]
            self._told = []
            if told and self._counters.save():
                parts += told
            if parts:
                # In order of time: Prometheus takes nothing that is an hour older than what it has.
                self._append(sorted(parts, key=lambda part: part.at), len(samples))
            self._forget()

    def _encode_safely(self, sample: HostSample) -> list[Part]:
        try:
            return self._encode(sample)
        except Exception:
            # A bug with one host must cost that host only, and never the thread.
            log.exception("a sample of %s cannot be encoded", sample.name)
            self.dropped += 1
            return []

    def _encode(self, sample: HostSample) -> list[Part]:
        before = self._last.get(sample.host_id, -math.inf)
        seconds = _cover(sample, before)
        # What was used up to the hour is told before the next begins: hours are what people ask for.
        self._told += self._counters.tell(self._newest, at_last=sample.at // _HOUR > self._newest // _HOUR)
        self._last[sample.host_id] = max(before, sample.at)
        if sample.at > self._newest or self._newest > self._clock() + CLOCK_WAS_WRONG:
            self._newest = sample.at
        self._counters.count(sample, seconds)
        self._roster.note(sample)
        return self._scribe.write(sample, seconds)

    def _append(self, parts: list[Part], samples: int) -> None:
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

    def _forget(self) -> None:
        """Once an hour, what is remembered of hosts that are gone for a day."""
        if self._newest - self._looked_at < _HOUR:
            return
        self._looked_at = self._newest
        self._last = {host: at for host, at in self._last.items() if self._newest - at < _GONE_AFTER}
        self._scribe.forget(lambda host: host not in self._last)


def _cover(sample: HostSample, before: float) -> float:
    """As history.hour.cover: a sample after a gap of more than three beats stands for one beat."""
    seconds = sample.at - before
    return sample.interval if seconds <= 0 or seconds > 3 * sample.interval else seconds
