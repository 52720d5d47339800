"""Faults that a simulated driver tells of: rare ones, settled by the GPU and the day alone.

Most are a program's own fault, as in a real lab; now and then a board stumbles by itself.
"""

from collections.abc import Iterator
from math import floor

from gpudeck.collectors.simulated.chance import draw
from gpudeck.collectors.simulated.inventory import Slot
from gpudeck.collectors.simulated.jobs import Timeline
from gpudeck.model.report import GpuEvent

DAY = 86_400.0
_OF_PROGRAMS = 0.03
_OF_BOARDS = 0.002
_PROGRAM_CODES = (31, 13, 43, 45, 31)
_BOARD_CODES = (63, 94, 92, 109, 63)
_TEXTS = {
    13: "Graphics Exception: ESR 0x505648=0x1000e",
    31: "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    43: "Ch 00000018, engmask 00000101",
    45: "Ch 00000010",
    63: "Row Remapper: New row marked for remapping",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    109: "Context switch timeout",
}


class Faults:
    """Those of one GPU. A day is looked at once; what it had is kept until another is asked about."""

    def __init__(self, slot: Slot, timeline: Timeline) -> None:
        self._slot = slot
        self._timeline = timeline
        self._has_any = slot.model.vendor == "nvidia" and slot.parent is None and slot.takes_jobs
        self._days: tuple[int, list[GpuEvent]] = (-1, [])

    def last_day(self, now: float) -> list[GpuEvent]:
        """The faults of the 24 hours before that moment, the newest last."""
        if not self._has_any:
            return []
        day = floor(now / DAY)
        if self._days[0] != day:
            self._days = day, [*self._of_day(day - 1), *self._of_day(day)]
        if not self._days[1]:
            return []
        return [fault for fault in self._days[1] if now - DAY < fault.at <= now]

    def between(self, start: float, end: float) -> list[GpuEvent]:
        """The faults of that span, the newest last."""
        if not self._has_any:
            return []
        days = range(floor(start / DAY), floor(end / DAY) + 1)
        return [fault for day in days for fault in self._of_day(day) if start <= fault.at < end]

    def _of_day(self, day: int) -> Iterator[GpuEvent]:
        """At most one. A program that is at fault has to be there."""
        luck, salt = draw(self._slot.salt, 4 * day + 1_000_003), self._slot.salt
        if luck >= _OF_PROGRAMS + _OF_BOARDS:
            return
        at = float(int((day + draw(salt, 4 * day + 1_000_004)) * DAY))
        choice = draw(salt, 4 * day + 1_000_005)
        if luck < _OF_BOARDS:
            yield _fault(at, _BOARD_CODES[int(choice * len(_BOARD_CODES))], None)
            return
        run = self._timeline.tenure(self._slot.number, at).run
        if run is not None and run.start + 60 < at < run.end:
            pid = run.pids[run.slots.index(self._slot.number)]
            yield _fault(at, _PROGRAM_CODES[int(choice * len(_PROGRAM_CODES))], pid)


def _fault(at: float, code: int, pid: int | None) -> GpuEvent:
    return GpuEvent(at=at, code=code, process=pid, text=_TEXTS[code])
