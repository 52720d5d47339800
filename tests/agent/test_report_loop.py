"""The report loop: reports keep coming whatever a collector does."""

import threading

import pytest

from fakes.clock import FakeClock
from fakes.reports import make_gpu
from gpudeck.agent.outbox import Outbox, ReportTime
from gpudeck.agent.run import Reporter, ReportLoop
from gpudeck.model.errors import Temporary
from gpudeck.model.report import Report
from gpudeck.wire import Envelope, decode


class Script:
    """A collector that does what its list says, one line a reading, and stops the loop at its end."""

    name = "script"

    def __init__(self, *lines: Report | Exception) -> None:
        self.lines = list(lines)
        self.stop = threading.Event()
        self.closed = False

    def collect(self, _: float) -> Report:
        line = self.lines.pop(0)
        if not self.lines:
            self.stop.set()
        if isinstance(line, Exception):
            raise line
        return line

    def close(self) -> None:
        self.closed = True


GOOD = Report(gpus=[make_gpu()])


def run(script: Script) -> list[Envelope]:
    outbox = Outbox(1000, 10_000_000)
    ReportLoop([Reporter("gpu01", "id-1", lambda _: "boot", script)], [outbox], interval=0.001).run(script.stop)
    envelopes = []
    while (parcel := outbox.wait(timeout=0, newest_first=False)) is not None:
        envelopes.append(decode(parcel.body, "application/msgpack", "zstd"))
        outbox.done(parcel)
    return envelopes


def test_each_reading_is_sealed_in_order() -> None:
    envelopes = run(Script(GOOD, GOOD, GOOD))
    assert [envelope.sequence for envelope in envelopes] == [1, 2, 3]
    assert len({envelope.run_id for envelope in envelopes}) == 1
    assert {(e.host, e.host_id, e.boot_id, e.interval_seconds) for e in envelopes} == {("gpu01", "id-1", "boot", 0.001)}


def test_a_bug_in_a_collector_costs_its_values_and_not_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    envelopes = run(Script(GOOD, ZeroDivisionError("oops"), ZeroDivisionError("oops"), GOOD))
    assert [envelope.report.gpus is None for envelope in envelopes] == [False, True, True, False]
    assert envelopes[1].report.gpus_reason
    assert caplog.text.count("ZeroDivisionError: oops") == 1


def test_a_collector_with_nothing_to_say_skips_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert len(run(Script(GOOD, Temporary("asleep"), Temporary("asleep"), GOOD))) == 2
    assert (caplog.text.count("asleep"), caplog.text.count("can be read again")) == (1, 1)


def test_two_starts_are_two_runs() -> None:
    assert run(Script(GOOD))[0].run_id != run(Script(GOOD))[0].run_id


def test_after_a_sleep_no_missed_reading_is_made_up_for() -> None:
    timer = FakeClock(1000.0)
    loop = ReportLoop([], [], interval=2.0, timer=timer)
    assert loop.next_due(999.0) == 1001.0
    timer.now = 90_000.0
    assert loop.next_due(1001.0) == 90_002.0


@pytest.mark.parametrize("step", [0.0, 86_400.0, -86_400.0])
def test_a_jump_of_the_clock_neither_floods_nor_stalls(step: float) -> None:
    """Long pauses between reports have a pulse too."""
    timer, wall, stop, pulses = FakeClock(5000.0), FakeClock(), threading.Event(), list[float]()

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            timer.now += timeout or 0.0
            wall.now += step
            return stop.is_set()

    def pulse() -> None:
        pulses.append(timer.now)

    script = Script(GOOD, GOOD)
    script.stop = stop
    reporter = Reporter("gpu01", "id-1", lambda _: "boot", script)
    began = timer.now
    ReportLoop([reporter], [], interval=60.0, now=wall, timer=timer, pulse=pulse, pulse_pause=25.0).run(Waiting())
    assert [at - began for at in pulses] == [0.0, 25.0, 50.0, 60.0]


def test_report_knows_both_clocks_of_the_moment_before_it_was_collected() -> None:
    parcel = Reporter("gpu01", "id-1", lambda _: "boot", Script(GOOD), boottime=lambda: 77.0).report(1000.0, 2.0)
    assert parcel is not None
    assert (parcel.made, decode(parcel.body, encoding="zstd").collected_at) == (ReportTime(1000.0, 77.0), 1000.0)
