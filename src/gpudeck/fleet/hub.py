"""The fleet, its stream and its ingest in one object, for the API and the services."""

import time
from collections import deque
from typing import Final

from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.state import FleetState, Ingest
from gpudeck.fleet.stream import Stream
from gpudeck.model import clock
from gpudeck.model.clock import RetentionClock, SharedClock
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.text import Names

_RATE_SECONDS: Final = 60


class ReportRate(FleetObserver):
    """Reports taken per second, over the last minute. None during the first second."""

    name = "the rate of reports"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._counts: deque[tuple[float, int]] = deque(maxlen=_RATE_SECONDS + 1)

    def on_second(self) -> None:
        now, count = self._stream.time, self._stream.fleet.counters["reports_taken"]
        if self._counts and (now <= self._counts[-1][0] or count < self._counts[-1][1]):
            self._counts.clear()  # the clock or the count was set back
        self._counts.append((now, count))

    @property
    def per_second(self) -> float | None:
        if len(self._counts) < 2:
            return None
        (first, before), (last, after) = self._counts[0], self._counts[-1]
        return (after - before) / (last - first)


class Hub:
    """A live fleet with its input (`ingest`) and its output (`stream`). One event loop owns it. `retention` is the
    clock by which data are deleted."""

    def __init__(
        self,
        settings: FleetSettings | None = None,
        now: clock.Clock = clock.wall,
        *,
        names: Names | None = None,
        is_simulated: bool = False,
        retention: RetentionClock | None = None,
    ) -> None:
        # A test with its own clock uses no other.
        uptime = time.monotonic if now is clock.wall or isinstance(now, SharedClock) else None
        self.clock = now
        self.retention = retention or RetentionClock(now=now)
        self.fleet = FleetState(settings or FleetSettings(), names, uptime, retention, is_simulated=is_simulated)
        self.stream = Stream(self.fleet, now)
        self.ingest = Ingest(self.fleet, now)
        self.started_at = now()
        self.report_rate = ReportRate(self.stream)
        for observer in (self.stream, self.report_rate):
            self.fleet.observers.add(observer)
