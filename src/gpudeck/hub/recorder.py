"""From the live fleet into the history: each host every few seconds, as soon as it has reported.

This is called for every report, so it decides in a few hundred nanoseconds whether the report is worth a sample.
"""

from collections.abc import Callable

from gpudeck.history.sample import HostSample, sample_host
from gpudeck.hub.host import HostState

_MOST_WAITING = 20_000


class Recorder:
    """`note` is told of every report that was taken; `hand_over` gives what was sampled since the last time to `take`.

    `every` is how far apart samples of one host are. Reports that waited in an outbox are sampled by the time they were
    made, so a gap fills up afterwards.
    """

    def __init__(self, every: float, take: Callable[[list[HostSample]], None]) -> None:
        self.dropped = 0
        self._every = every
        self._take = take
        self._samples: list[HostSample] = []

    def note(self, host: HostState, observed_at: float) -> None:
        slot = observed_at // self._every
        if host.sampled_slot == slot:
            return
        host.sampled_slot = slot
        if len(self._samples) >= _MOST_WAITING:
            self.dropped += 1
            return
        interval = max(self._every, host.interval)
        self._samples.append(sample_host(host.view, round(observed_at, 3), interval))

    def hand_over(self) -> None:
        if self._samples:
            samples, self._samples = self._samples, []
            self._take(samples)
