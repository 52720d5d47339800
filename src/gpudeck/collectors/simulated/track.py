"""One slot followed through time: what happens on it and how warm it is at a moment."""

from gpudeck.collectors.simulated.jobs import Tenure, Timeline
from gpudeck.collectors.simulated.phases import Stretch, cooled, stretch_at, warmth_at_start

# What it was before is then below the last digit of any temperature, and dear to find out.
_SETTLED_S = 2400.0
_NOTHING = Stretch(0.0, 0.0, (), 0.0, 0.0)


class Track:
    """Keeps the stretch asked for last, because the next question is nearly always about the same one."""

    def __init__(self, timeline: Timeline, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot
        self._tenure = Tenure(0.0, 0.0, None, 0.0)
        self._stretch = _NOTHING
        self._told_from = 0.0
        self._warmth: float | None = None

    def at(self, t: float) -> Stretch:
        """The stretch that `t` falls into. The same one is the same object until another is asked for."""
        if not self._told_from <= t < self._stretch.end:
            if not self._tenure.told_from <= t < self._tenure.end:
                self._tenure = self._timeline.tenure(self._slot, t)
            self._stretch = stretch_at(self._tenure, self._slot, t)
            self._told_from = max(self._stretch.start, self._tenure.told_from)
            self._warmth = None
        return self._stretch

    def tenure(self, t: float) -> Tenure:
        """Who is on the slot at `t`."""
        self.at(t)
        return self._tenure

    def warmth(self, t: float) -> float:
        """How warm (0–1) its work has made the board by `t`."""
        stretch = self.at(t)
        if t - stretch.start > _SETTLED_S:
            return stretch.heat
        if self._warmth is None:
            self._warmth = warmth_at_start(self._timeline, self._tenure, self._slot, stretch)
        return cooled(stretch.heat, self._warmth, t - stretch.start)
