"""What comes and goes again and again is told a few times, then once a day that it does so. Pure.

A host that dies every ten minutes would otherwise fill the list, and hide all others.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from gpudeck.model.event import Event

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
MOST_AN_HOUR: Final = 5
CALM: Final = 2
"""With so few falls in an hour each is told again."""


class _Subject:
    def __init__(self) -> None:
        self.falls: deque[float] = deque(maxlen=64)
        self.is_muted = False
        self.said_at = 0.0
        self.untold: Event | None = None


class Damper:
    """Knows each subject, by any key, from its first fall until it has been calm for an hour."""

    def __init__(self) -> None:
        self._subjects: dict[Hashable, _Subject] = {}

    def fall(self, key: Hashable, event: Event, sum_up: Callable[[int], Event]) -> Event | None:
        """It went down, or got worse: what is to be told of it.

        Where it does so all the time that is what `sum_up` makes of the number of falls within an hour, or nothing.
        """
        subject = self._subjects.setdefault(key, _Subject())
        _forget(subject, event.at)
        subject.falls.append(event.at)
        if subject.is_muted and len(subject.falls) <= CALM:
            subject.is_muted = False
        if len(subject.falls) <= MOST_AN_HOUR and not subject.is_muted:
            subject.untold = None
            return event
        subject.untold = event
        if subject.is_muted and event.at - subject.said_at < DAY:
            return None
        subject.is_muted, subject.said_at = True, event.at
        return sum_up(len(subject.falls))

    def rise(self, key: Hashable) -> bool:
        """It came back. Whether that is told: where the fall was."""
        subject = self._subjects.get(key)
        if subject is None or subject.untold is None:
            return True
        subject.untold = None
        return False

    def overdue(self, now: float) -> list[Event]:
        """The falls that were not told and from which nothing came back for an hour: they are to be told after all.

        Each is given once. Call it now and then: what has been calm is forgotten here.
        """
        calm = [key for key, subject in self._subjects.items() if now - subject.falls[-1] >= HOUR]
        ended = [self._subjects.pop(key).untold for key in calm]
        return [event for event in ended if event is not None]


def _forget(subject: _Subject, now: float) -> None:
    """A clock that was set back makes all that was before worth nothing."""
    while subject.falls and not 0 <= now - subject.falls[0] < HOUR:
        subject.falls.popleft()
