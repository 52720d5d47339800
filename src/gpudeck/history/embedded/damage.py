"""What was found damaged while questions were answered: each place is told once in the log, and counted."""

import logging
import threading
from typing import Final

log = logging.getLogger(__name__)

_MOST: Final = 10_000


class DamageFound:
    """May be told from any thread."""

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._lock = threading.Lock()

    def note(self, place: str, why: object) -> None:
        """`place` names what is left out of answers: the table or kind, the host, the hour."""
        with self._lock:
            if place in self._places or len(self._places) >= _MOST:
                return
            self._places.add(place)
        log.warning("%s cannot be read and is left out: %s", place, why)

    @property
    def problem(self) -> str | None:
        """For whoever runs the hub; None while all that was asked for could be read."""
        count = len(self._places)
        if not count:
            return None
        parts = "1 part" if count == 1 else f"{count} parts"
        return (
            f"{parts} of the history cannot be read and are left out of charts: stop the hub, then run "
            "`gpudeck history repair`; `gpudeck history verify` names them"
        )
