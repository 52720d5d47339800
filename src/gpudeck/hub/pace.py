"""How fast something is counted up: over the last minute, from one look a second."""

from collections import deque

_SECONDS = 60


class ReportRate:
    """`note` the count once a second; `per_second` is None before there were two looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=_SECONDS + 1)

    def note(self, now: float, count: int) -> None:
        if self._looks and (now <= self._looks[-1][0] or count < self._looks[-1][1]):
            self._looks.clear()  # a clock or a count that was set back
        self._looks.append((now, count))

    @property
    def per_second(self) -> float | None:
        if len(self._looks) < 2:
            return None
        (first, before), (last, after) = self._looks[0], self._looks[-1]
        return (after - before) / (last - first)
