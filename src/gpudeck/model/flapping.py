"""Flap detection: the first few falls of a subject become events, then one event a day reports the flapping. Alerts
count falls with `recent_falls`, and have limits of their own."""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from gpudeck.model.event import Event

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
MAX_AN_HOUR: Final = 5
CALM: Final = 2
"""With so few falls in an hour each becomes an event again."""
_MAX_FALLS: Final = 63


def recent_falls(falls: Iterable[float], now: float) -> list[float]:
    """The times within an hour before `now` at which something went down, the newest of many: whether it is flapping
    is decided by their number. A clock that was set back makes the times after it void."""
    return [at for at in falls if 0 <= now - at < HOUR][-_MAX_FALLS:]


class _Subject:
    def __init__(self) -> None:
        self.falls: list[float] = []
        self.is_muted = False
        self.said_at = 0.0
        self.untold: Event | None = None


class FlapSuppressor:
    """Follows each subject, by any key, from its first fall until it has been calm for an hour."""

    def __init__(self) -> None:
        self._subjects: dict[Hashable, _Subject] = {}

    def fall(self, key: Hashable, event: Event, sum_up: Callable[[int], Event]) -> Event | None:
        """It went down, or got worse: the event to report, if any. While it is flapping, that is what `sum_up` makes of
        the number of falls within an hour, once a day."""
        subject = self._subjects.setdefault(key, _Subject())
        subject.falls = [*recent_falls(subject.falls, event.at), event.at]
        if subject.is_muted and len(subject.falls) <= CALM:
            subject.is_muted = False
        if len(subject.falls) <= MAX_AN_HOUR and not subject.is_muted:
            subject.untold = None
            return event
        subject.untold = event
        if subject.is_muted and event.at - subject.said_at < DAY:
            return None
        subject.is_muted, subject.said_at = True, event.at
        return sum_up(len(subject.falls))

    def rise(self, key: Hashable) -> bool:
        """It came back. Whether that is reported: where the fall was."""
        subject = self._subjects.get(key)
        if subject is None or subject.untold is None:
            return True
        subject.untold = None
        return False

    def overdue(self, now: float) -> list[Event]:
        """The falls that were suppressed and from which nothing came back for an hour: reported after all, each once.
        What has been calm is forgotten here."""
        calm = [key for key, subject in self._subjects.items() if now - subject.falls[-1] >= HOUR]
        ended = [self._subjects.pop(key).untold for key in calm]
        return [event for event in ended if event is not None]
