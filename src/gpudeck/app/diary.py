"""What happens in this hub's fleet goes into its database and to everybody who watches. Wiring of events.

A demo's events are kept apart from the real ones, those of each size by themselves, as its history is.
"""

from gpudeck import __version__
from gpudeck.database.engine import Database
from gpudeck.database.schema import name_fleet
from gpudeck.events.log import Events
from gpudeck.events.settings import EventSettings
from gpudeck.hub.event_detector import EventDetector
from gpudeck.hub.hub import Hub
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.event import Event, make_event
from gpudeck.model.history_trouble import HistoryTrouble


class Diary:
    """`events` is what others add to and ask. `open` before the first report, `tick` once a second, `close` at the
    end, all in the event loop that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        database: Database,
        settings: EventSettings,
        *,
        local: Database | None = None,
        demo: int | None = None,
        now: Clock = clock.wall,
    ) -> None:
        """`local` keeps what `database` does not take, where that is another one. `demo` is how many hosts are
        simulated, None when none are."""
        self._hub = hub
        self._now = now
        self._demo = demo
        self._history: HistoryTrouble | None = None
        self._is_damage_told = False
        self._is_begun = False
        self.events = Events(database, settings, spill=local, fleet=name_fleet(demo), now=now, retention=hub.retention)
        self.events.subscribe(hub.stream.announce)
        self._detector: EventDetector | None = None

    async def open(self) -> None:
        """Raises Temporary when the database does not answer, and is called again then: events wait meanwhile, and
        which hosts are new is told afterwards."""
        before: Event | None = None
        try:
            if not self._is_begun:
                before = await self.events.last_of_hub()
            await self._watch()
        finally:
            if not self._is_begun:
                self._begin(before)

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

    def tick(self, history: HistoryTrouble | None, history_damage: str | None = None) -> None:
        """Once a second, with what is wrong with the history, and what of it is damaged."""
        hub = self._hub
        hub.pace.note(hub.stream.time, hub.fleet.counters["reports_taken"])
        if history != self._history:
            self._tell_history(history)
        if history_damage is not None and not self._is_damage_told:
            self._is_damage_told = True
            title = "A part of the history is damaged"
            now = self._now()
            self.events.add(make_event(now, "history_damaged", title, severity="warning", detail=history_damage))
        problem = self.events.problem
        hub.fleet.say("events", [] if problem is None else [problem])

    def take_past(self, events: list[Event]) -> None:
        """What happened to a simulated fleet before this hub was started."""
        if self._demo is not None:
            for event in events:
                self.events.keep(event)

    async def close(self) -> None:
        self._hub.fleet.settle()
        if self._detector is not None:
            self._hub.fleet.observers.remove(self._detector)
        self.events.add(make_event(self._now(), "hub_stopped", "The hub was stopped"))
        await self.events.stop()

    async def _watch(self) -> None:
        """In a demo no host is new: its past says when each was first seen."""
        known = await self.events.known_hosts() if self._demo is None else None
        if self._detector is not None and known is not None:
            self._detector.learn(known)
        else:
            self._observe(EventDetector(self.events.add, self._now(), known))

    def _observe(self, detector: EventDetector) -> None:
        self._hub.fleet.observers.replace(self._detector, detector)
        self._detector = detector

    def _tell_history(self, trouble: HistoryTrouble | None) -> None:
        """The words may change while it lasts: once for each kind of trouble is enough."""
        before, self._history = self._history, trouble
        if trouble is not None and (before is None or trouble.kind != before.kind):
            told = make_event(
                self._now(), "history_problem", trouble.title, severity=trouble.severity, detail=trouble.detail
            )
            self.events.add(told)
        elif trouble is None and before is not None:
            lost = before.title + "." if before.kind == "losing" else ""
            self.events.add(
                make_event(self._now(), "history_recovered", "The history is up to date again", detail=lost)
            )
