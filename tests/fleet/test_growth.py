"""What happens to all hosts at once costs a host of a large fleet what it costs one of a small fleet.

Lines of Python are counted, not seconds: `python -m bench growth` measures these.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.events.detector import EventDetector
from gpudeck.fleet.hub import Hub
from gpudeck.history.embedded.keys import KeyRegistry
from gpudeck.history.embedded.tables import open_to_write
from gpudeck.history.recorder import Recorder, Sample, count_samples
from gpudeck.model.target import Target
from gpudeck.model.text import Names

SIZES = (20, 120, 240)


class Crowd:
    """A fleet of so many hosts with two GPUs each."""

    def __init__(self, hosts: int) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.fleet = self.hub.fleet
        self.samples: list[Sample] = []
        self.recorder = Recorder(2.0, self.samples.extend)
        self.fleet.observers.add(self.recorder)
        self.fleet.observers.add(EventDetector(lambda _: None, self.clock()))
        self.names = [f"gpu{number:03}" for number in range(hosts)]
        self._sequence = 0

    def report(self) -> None:
        self._sequence += 1
        for name in self.names:
            gpus = [make_busy_gpu(index, uuid=f"GPU-{name}-{index}") for index in range(2)]
            envelope = make_envelope(name, self._sequence, gpus, host_id=f"machine-{name}", collected_at=self.clock())
            self.fleet.apply(envelope, via="push", now=self.clock(), sent_at=self.clock())
        self.pass_time(1.0)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.hub.stream.tick()

    def write_history(self) -> None:
        """The first samples of all hosts, into a new file."""
        self.recorder.hand_over()
        assert count_samples(self.samples) == len(self.names)
        with TemporaryDirectory() as folder, closing(open_to_write(Path(folder) / "history.db")) as connection:
            keys = KeyRegistry(connection)
            keys.make_batch(self.samples, self.clock())
            keys.write_new()

    def expect(self) -> None:
        self.fleet.expect([Target(name=name, via="push") for name in self.names])

    def remove(self) -> None:
        for host_id in list(self.fleet.hosts):
            self.fleet.remove(host_id)
        self.pass_time(1.0)


EVENTS: dict[str, list[Callable[[Crowd], object]]] = {
    "first contact": [Crowd.report],
    "first contact, history": [Crowd.report, Crowd.write_history],
    "reports": [Crowd.report, Crowd.report],
    "targets": [
        Crowd.report,
        lambda crowd: crowd.fleet.expect([Target(name=name, via="push") for name in crowd.names]),
    ],
    "names": [Crowd.report, lambda crowd: crowd.fleet.rename(Names(hosts=dict.fromkeys(crowd.names, "x")))],
    "outage": [Crowd.report, lambda crowd: crowd.pass_time(3600.0)],
    "return": [Crowd.report, lambda crowd: crowd.pass_time(3600.0), Crowd.report],
    "removal": [Crowd.report, Crowd.remove],
}
"""What is counted is the last; the others lead to it."""


def count_lines(work: Callable[[], object]) -> int:
    lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("event", EVENTS)
def test_cost_of_a_host_does_not_grow_with_the_fleet(event: str) -> None:
    *preparations, counted = EVENTS[event]
    lines = []
    Crowd(2).report()  # what is made once, such as the struct of an encoder
    for hosts in SIZES:
        crowd = Crowd(hosts)
        for prepare in preparations:
            prepare(crowd)
        lines.append(count_lines(lambda crowd=crowd: counted(crowd)))  # type: ignore[misc]
    # Of further hosts: what any fleet costs is not counted.
    early, late = (
        (after - before) / (more - fewer) for (fewer, before), (more, after) in pairwise(zip(SIZES, lines, strict=True))
    )
    assert late <= 1.05 * early
