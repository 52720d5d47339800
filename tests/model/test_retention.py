"""Whatever a clock does, nothing is deleted that is younger than its retention by the true time."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.clock import FakeClock
from gpudeck.model.clock import AGREES, FIRST_HOUR, RetentionClock

DAY = 86_400.0
START = 1_790_000_000.0
JUMPS = st.floats(-400 * DAY, 400 * DAY)


class Hub:
    """A hub with a clock of its own: `true` is what time it is, `off` by how much the hub's clock is wrong."""

    def __init__(self, known: float | None = START, off: float = 0.0) -> None:
        self.true, self.off, self.ticks = FakeClock(START), off, FakeClock(0.0)
        self.clock = self._start(known)

    def _start(self, known: float | None) -> RetentionClock:
        return RetentionClock(known, lambda: self.true() + self.off, self.ticks)

    def restart(self, away: float = 0.0) -> None:
        known = self.clock.certain
        self.true.advance(away)
        self.clock = self._start(known)

    def run(self, seconds: float) -> None:
        self.true.advance(seconds)
        self.ticks.advance(seconds)


def test_nothing_is_deleted_in_the_first_hour() -> None:
    hub = Hub()
    hub.clock.confirm(START)
    hub.run(FIRST_HOUR - 1)
    assert hub.clock.deletion_time() is None
    hub.run(1)
    assert hub.clock.deletion_time() == START + FIRST_HOUR


def test_start_with_the_clock_ahead_deletes_by_the_time_that_is_certain() -> None:
    hub = Hub(off=40 * DAY)
    hub.run(FIRST_HOUR)
    assert hub.clock.deletion_time() == START + FIRST_HOUR
    assert hub.clock.ahead == 40 * DAY
    assert not hub.clock.is_confirmed


def test_hub_that_was_off_goes_on_when_another_clock_agrees() -> None:
    hub = Hub()
    hub.restart(away=40 * DAY)
    hub.run(FIRST_HOUR)
    assert hub.clock.ahead == 40 * DAY
    hub.clock.confirm(hub.true())
    assert hub.clock.is_confirmed
    assert hub.clock.deletion_time() == hub.true()


def test_jump_while_running_counts_for_nothing_until_it_is_confirmed() -> None:
    hub = Hub()
    hub.run(FIRST_HOUR)
    hub.clock.confirm(hub.true())
    hub.off = 40 * DAY
    assert hub.clock.deletion_time() == hub.true()
    assert not hub.clock.is_confirmed


def test_wrong_clock_stays_doubted_over_restarts() -> None:
    hub = Hub(off=40 * DAY)
    for _ in range(3):
        hub.run(2 * FIRST_HOUR)
        hub.restart()
    assert hub.clock.ahead == 40 * DAY


def test_agents_that_disagree_say_what_time_it_is() -> None:
    hub = Hub(known=START + 40 * DAY, off=40 * DAY)
    hub.run(FIRST_HOUR)
    hub.clock.confirm(hub.true())
    assert hub.clock.deletion_time() == hub.true()
    assert not hub.clock.is_confirmed


def test_clock_that_is_behind_deletes_less() -> None:
    hub = Hub(off=-40 * DAY)
    hub.run(FIRST_HOUR)
    hub.clock.confirm(hub.true())
    assert hub.clock.deletion_time() == hub.true() - 40 * DAY
    assert not hub.clock.is_confirmed
    hub.off = 0.0
    hub.clock.confirm(hub.true())
    assert hub.clock.deletion_time() == hub.true()


@given(st.floats(-2 * AGREES, 2 * AGREES))
def test_confirmed_is_what_other_clocks_agree_with(off: float) -> None:
    hub = Hub(off=off)
    hub.clock.confirm(hub.true())
    assert hub.clock.is_confirmed == (abs(hub.true() - (hub.true() + off)) <= AGREES)


class AnyClock(RuleBasedStateMachine):
    """The hub's clock is set to and fro while it runs and while it is off; the agents' clocks are right."""

    hub: Hub

    @initialize(off=JUMPS)
    def begin(self, off: float) -> None:
        self.hub = Hub(off=off)

    @rule(seconds=st.floats(0, 30 * DAY))
    def run_for(self, seconds: float) -> None:
        self.hub.run(seconds)

    @rule(off=JUMPS)
    def set_clock(self, off: float) -> None:
        self.hub.off = off

    @rule(away=st.floats(0, 400 * DAY), off=JUMPS)
    def restart(self, away: float, off: float) -> None:
        self.hub.off = off
        self.hub.restart(away)

    @rule()
    def agents_report(self) -> None:
        self.hub.clock.confirm(self.hub.true())

    @rule()
    def right_clock_is_accepted(self) -> None:
        if self.hub.off <= 0:
            self.hub.clock.confirm(self.hub.true() + self.hub.off)

    @invariant()
    def deletes_nothing_too_young(self) -> None:
        time = self.hub.clock.deletion_time()
        # Sums of floats of this size are exact to some microseconds.
        assert time is None or time <= self.hub.true() + 1e-3


TestAnyClock = AnyClock.TestCase
