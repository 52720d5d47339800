"""The energy that a GPU has taken, added up from its jobs and not from its readings.

A sum over readings would need all of them since the boot. What each job takes is known in closed form, so the counter
can be asked about any moment.
"""

from gpudeck.collectors.simulated.hardware import Model
from gpudeck.collectors.simulated.inventory import Slot
from gpudeck.collectors.simulated.jobs import Run, Timeline
from gpudeck.collectors.simulated.kinds import Work
from gpudeck.collectors.simulated.track import Track

# How much of its level a job of bursts makes of its time on the average (`phases`).
_DUTY = {"inference": 0.65, "notebook": 0.17}


def effort_seconds(work: Work, age_s: float) -> float:
    """Seconds of full effort within the first `age_s` of a job: its levels weighted with its intensity."""
    worked_s = max(0.0, age_s - work.load_s)
    if work.kind == "training":
        periods, begun_s = divmod(worked_s, work.period_s)
        steady_s = work.period_s - work.rest_s
        steady, rest = periods * steady_s + min(begun_s, steady_s), periods * work.rest_s + max(0.0, begun_s - steady_s)
        return (steady * work.level + rest * work.rest_level) * work.intensity
    if work.kind == "holder":
        worked_s = min(worked_s, work.period_s)
    return worked_s * work.level * work.intensity * _DUTY.get(work.kind, 1.0)


class Meter:
    """The counter of one GPU. Joules since the driver last let it start anew: every other day, between two jobs."""

    def __init__(self, timeline: Timeline, track: Track, slot: Slot) -> None:
        self._timeline, self._track, self._slot = timeline, track, slot
        self._start = self._end = 0.0
        self._run: Run | None = None
        self._since = 0.0
        self._before = 0.0

    def joules(self, t: float) -> float:
        """What it shows at `t`; cheapest for moments in the same job."""
        if not self._start <= t < self._end:
            self._turn_to(t)
        idle = self._slot.model.idle_watts * (t - self._since)
        return idle + self._before + (self._taken(self._run, t) if self._run else 0.0)

    def _turn_to(self, t: float) -> None:
        tenure = self._track.tenure(t)
        self._since, runs = self._timeline.counted(self._slot.number, t)
        # Nobody's time may reach back to before the counter started.
        self._start, self._end, self._run = max(self._since, tenure.start), tenure.end, tenure.run
        self._before = sum(self._taken(run, t) for run in runs if run is not tenure.run)

    def _taken(self, run: Run, t: float) -> float:
        """What the job took until `t`, beyond what the GPU would have taken without it."""
        model, guest = self._slot.model, run.guest
        joules = _taken_by(model, run, t) + (model.ready_watts - model.idle_watts) * (min(t, run.end) - run.start)
        if guest is not None and self._slot.number in guest.slots and t > guest.start:
            joules += _taken_by(model, guest, t)
        return joules


def _taken_by(model: Model, run: Run, t: float) -> float:
    return (model.limit_watts - model.ready_watts) * effort_seconds(run.work, min(t, run.end) - run.start)
