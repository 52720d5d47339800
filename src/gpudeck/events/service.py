"""The events of a hub: found in its fleet (events/detector.py), kept in its database and sent to every viewer."""

from gpudeck import __version__
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.detector import EventDetector
from gpudeck.events.log import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventStore
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.event import Event, make_event


class EventService(Service):
    """`events` is what others add to and read."""

    name = "events"

    def __init__(
        self,
        hub: Hub,
        database: Database,
        settings: EventSettings,
        *,
        local: Database | None = None,
        fleet: str = REAL,
        now: Clock = clock.wall,
    ) -> None:
        """`local` keeps what `database` does not take, where that is another one. `fleet` is the name under which a
        demo's events are kept apart."""
        self._hub = hub
        self._now = now
        self._is_real = fleet == REAL
        self._is_begun = False
        self.events = EventLog(database, settings, spill=local, fleet=fleet, now=now, retention=hub.retention)
        self.events.subscribe(hub.stream.announce)
        self._detector: EventDetector | None = None

    async def open(self) -> None:
        """Raises Temporary when the database does not answer, and is called again then: events wait meanwhile, and new
        hosts are reported afterwards."""
        before: Event | None = None
        try:
            if not self._is_begun:
                before = await self.events.ask(EventStore.last_of_hub)
            await self._detect()
        finally:
            if not self._is_begun:
                self._begin(before)

    def on_second(self) -> None:
        problem = self.events.problem
        self._hub.fleet.say("events", [] if problem is None else [problem])

    async def close(self) -> None:
        self._hub.fleet.settle()
        if self._detector is not None:
            self._hub.fleet.observers.remove(self._detector)
        self.events.add(make_event(self._now(), "hub_stopped", "The hub was stopped"))
        await self.events.stop()

    def _begin(self, before: Event | None) -> None:
        self._is_begun = True
        if self._detector is None:
            self._observe(EventDetector(self.events.add, self._now(), learns=True))
        detail = f"gpudeck {__version__}."
        if before is not None:
            self._hub.retention.limit(before.at)
        if before is not None and before.kind == "hub_started":
            detail += " Before, it ended without being stopped."
        self.events.start()
        self.events.add(make_event(self._now(), "hub_started", "The hub was started", detail=detail))

    async def _detect(self) -> None:
        """No host of a demo is new: its past says when each was first seen."""
        known = await self.events.ask(EventStore.known_hosts) if self._is_real else None
        if self._detector is not None and known is not None:
            self._detector.learn(known)
        else:
            self._observe(EventDetector(self.events.add, self._now(), known))

    def _observe(self, detector: EventDetector) -> None:
        self._hub.fleet.observers.replace(self._detector, detector)
        self._detector = detector
