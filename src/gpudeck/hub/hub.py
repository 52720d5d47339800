"""The hub's three parts as one: what the API and the wiring hold on to."""

import time

from gpudeck.hub.fleet import Fleet, Ingest
from gpudeck.hub.pace import ReportRate
from gpudeck.hub.stream import Stream
from gpudeck.model import clock
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.names import Names
from gpudeck.model.retention import RetentionClock


class Hub:
    """A live fleet with its way in (`ingest`) and its way out (`stream`). One event loop owns it.

    `pace` is how many reports are taken, where somebody notes it once a second. `retention` is the time by which the
    hub's data are deleted.
    """

    def __init__(
        self,
        settings: FleetSettings | None = None,
        now: clock.Clock = clock.wall,
        *,
        names: Names | None = None,
        demo: bool = False,
        retention: RetentionClock | None = None,
    ) -> None:
        # Where a test brings a clock of its own, that one alone counts.
        uptime = time.monotonic if now is clock.wall else None
        self.retention = retention or RetentionClock(now=now)
        self.fleet = Fleet(settings or FleetSettings(), names, uptime, retention)
        self.stream = Stream(self.fleet, now, demo=demo)
        self.ingest = Ingest(self.fleet, now, demo=demo)
        self.started_at = now()
        self.pace = ReportRate()
