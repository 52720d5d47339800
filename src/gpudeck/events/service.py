"""The events of a hub: found in its fleet by the detector, passed to all listeners at once, and written to the database
in batches by a background task. While it is unavailable they wait in memory, up to a limit."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gpudeck import __version__
from gpudeck.database.background import BackgroundWriter, trim_regularly
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.detector import OLD_FAULT, EventDetector
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import MAX_EVENTS, EventQuery, EventStore
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.cluster import Duty, LostDuty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
WRITE_SECONDS: Final = 1.0
TRIM_SECONDS: Final = 3600.0
_AT_ONCE: Final = 500
RETRY_SECONDS: Final = 5.0

_REASONS: Final = {
    "unavailable": "the hub's database does not take them now;",
    "bug": "the hub made a mistake, see its log;",
}

Listener = Callable[[Event], None]
T = TypeVar("T")


class EventLog:
    """`add` events; listeners that `subscribe` get them at once. `problem` is why events are not stored."""

    def __init__(
        self,
        database: Database,
        settings: EventSettings,
        *,
        fleet: str = REAL,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
        fenced: Database | None = None,
    ) -> None:
        """`fenced` is for events that are found with a duty: it refuses writes of a hub that has lost the duty."""
        self._fenced = None if fenced is None else EventStore(fenced, fleet)
        self._of_duty: list[Event] = []
        self._store = EventStore(database, fleet)
        self._keep = settings.keep
        self._waiting: list[Event] = []
        self._dropped = 0
        self._writer = BackgroundWriter(
            self._write,
            failing="events wait: %s",
            recovered="all events are in the database again",
            every=WRITE_SECONDS,
            retry=RETRY_SECONDS,
            housekeeping=trim_regularly(
                lambda time: self._store.trim(time - self._keep), retention or RetentionClock(now=now), TRIM_SECONDS
            ),
        )
        self._listeners: list[Listener] = []
        self._failing: set[Listener] = set()

    @property
    def problem(self) -> str | None:
        if self._writer.failure is None:
            return None
        lost = f", {self._dropped} were lost" if self._dropped else ""
        # Without the address of the database: every viewer of the hub sees this.
        return f"events wait in memory: {_REASONS[self._writer.failure]} {self.waiting} are waiting{lost}."

    @property
    def kept_seconds(self) -> float:
        return self._keep

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._of_duty)

    def add(self, event: Event, *, of_duty: bool = False) -> None:
        """Store an event and call the listeners. Never blocks, never raises. `of_duty` is as for `keep`."""
        self.keep(event, of_duty=of_duty)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                if listener not in self._failing:
                    log.exception("a listener of events failed; the other listeners go on")
                self._failing.add(listener)
            else:
                self._failing.discard(listener)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each event, after earlier listeners. If it fails, the others are still called."""
        self._listeners = [*self._listeners, listener]

    def keep(self, event: Event, *, of_duty: bool = False) -> None:
        """Store an event without calling listeners. `of_duty`: every hub of a cluster has found it, and only the one
        with the duty stores it."""
        waiting = self._of_duty if of_duty and self._fenced is not None else self._waiting
        if len(waiting) >= MAX_WAITING:
            self._dropped += 1
            del waiting[0]
        waiting.append(event)

    async def find(self, ask: EventQuery) -> list[Event]:
        return await self.ask(lambda store: store.find(ask))

    async def ask(self, question: Callable[[EventStore], Awaitable[T]]) -> T:
        """Query the store, after new events have been written. Raises Temporary."""
        await self._writer.flush()
        return await question(self._store)

    def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write the remaining events. Events that the database does not take are lost, which is logged."""
        error = await self._writer.stop()
        if error is not None:
            log.warning("%d events are lost: %s", self.waiting, error)

    async def _write(self) -> None:
        await self._write_of_duty()
        while batch := self._waiting[:_AT_ONCE]:
            await self._store.write(batch)
            # Some may have been dropped meanwhile.
            written = {event.id for event in batch}
            self._waiting = [event for event in self._waiting if event.id not in written]
        self._dropped = 0

    async def _write_of_duty(self) -> None:
        """Raises Temporary. Events that are refused have been found by the hub with the duty, too."""
        while self._fenced is not None and (batch := self._of_duty[:_AT_ONCE]):
            try:
                await self._fenced.write(batch)
            except LostDuty:
                log.info("%d events are left to the hub that keeps them now", len(batch))
            written = {event.id for event in batch}
            self._of_duty = [event for event in self._of_duty if event.id not in written]


_MAX_FOUND: Final = 2_000
_TAKEOVER_SECONDS: Final = 60.0
"""Events from longer before a takeover have been stored by the former owner of the duty."""
_MAX_SECONDS: Final = 3600.0
"""How far back events that were found while the database was away are stored afterwards."""
_CLOSE_SECONDS: Final = 15.0


class EventService(Service):
    """`events` is the log that others add to and read."""

    name = "events"

    def __init__(
        self,
        hub: Hub,
        database: Database,
        settings: EventSettings,
        *,
        fleet: str = REAL,
        now: Clock = clock.wall,
        duty: Duty | None = None,
        hub_name: str = "",
        fenced: Database | None = None,
        missed: str = "",
    ) -> None:
        """`fleet` separates the events of a demo from real ones. All hubs of a cluster find the events of the fleet;
        the one with the `duty` stores them in `fenced`. `missed` is what this hub missed while it was away."""
        self._database = database
        self._unkept_since = math.inf
        self._duty = duty or Duty("events")
        self._had_duty = True
        self._found: deque[Event] = deque(maxlen=_MAX_FOUND)
        """Found without the duty. The hub with the duty may have died before it stored them."""
        self._taking_over: asyncio.Task[None] | None = None
        self._is_found = False
        self._missed = missed
        self._title = f"The hub {hub_name}" if hub_name else "The hub"
        self._hub = hub
        self._now = now
        self._is_real = fleet == REAL
        self._is_begun = False
        self.events = EventLog(database, settings, fleet=fleet, now=now, retention=hub.retention, fenced=fenced)
        self.events.subscribe(hub.stream.announce)
        self._detector: EventDetector | None = None

    async def open(self) -> None:
        """Raises Temporary if the database does not answer, and is called again then. Events wait meanwhile, and new
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
        if (away := self._database.away) is not None:
            # Without the database no hub has the duty, and none stores the events that all of them find.
            self._unkept_since = min(self._unkept_since, away.since)
        had_duty, self._had_duty = self._had_duty, self._duty.is_held
        if self._had_duty and not had_duty and self._found:
            self._taking_over = asyncio.get_running_loop().create_task(self._take_over())
        problem = self.events.problem
        self._hub.fleet.set_problems("events", [] if problem is None else [problem])

    def add_found(self, event: Event) -> None:
        """Add an event that all hubs find: it is not sent to the others."""
        if self._duty.is_held:
            self._is_found = True
            self.events.add(event, of_duty=True)
            self._is_found = False
        else:
            self._found.append(event)
            self._hub.stream.announce(event)

    def pass_on(self, notify: Callable[[Event], None]) -> None:
        self.events.subscribe(lambda event: None if self._is_found else notify(event))

    async def _take_over(self) -> None:
        """Store events that the former owner of the duty has not stored. Times differ a little between hubs."""
        now = self._now()
        since = max(now - _MAX_SECONDS, min(now, self._unkept_since) - _TAKEOVER_SECONDS)
        self._unkept_since = math.inf
        found, self._found = [event for event in self._found if event.at >= since], deque(maxlen=_MAX_FOUND)
        known, before = list[Event](), None
        kinds = tuple({event.kind for event in found})
        try:
            while page := await self.events.find(
                EventQuery(start=since - _CLOSE_SECONDS, kinds=kinds, limit=MAX_EVENTS, before=before)
            ):
                known, before = [*known, *page], page[-1].id
        except Temporary as error:
            log.warning("events of the hub that had the duty before may be missing: %s", error)
            return
        for event in found:
            if not any(_is_same(event, other) for other in known):
                self.events.keep(event, of_duty=True)

    async def close(self) -> None:
        await cancel_tasks(self._taking_over)
        self._hub.fleet.settle()
        if self._detector is not None:
            self._hub.fleet.observers.remove(self._detector)
        self.events.add(make_event(self._now(), "hub_stopped", f"{self._title} was stopped"))
        await self.events.stop()

    def _begin(self, before: Event | None) -> None:
        self._is_begun = True
        if self._detector is None:
            self._observe(EventDetector(self.add_found, self._now(), learns=True))
        detail = f"gpudeck {__version__}."
        if before is not None:
            self._hub.retention.limit(before.at)
        if before is not None and before.kind == "hub_started" and before.title == f"{self._title} was started":
            detail += " Before, it ended without being stopped."
        self.events.start()
        detail = " ".join(filter(None, (detail, self._missed)))
        self.events.add(make_event(self._now(), "hub_started", f"{self._title} was started", detail=detail))

    async def _detect(self) -> None:
        """The hosts of a demo are not new: its past has the event of each."""
        known = await self.events.ask(EventStore.known_hosts) if self._is_real else None
        faults = await self.events.ask(lambda store: store.known_faults(self._now() - OLD_FAULT))
        if self._detector is not None and known is not None:
            self._detector.learn(known, faults)
        else:
            self._observe(EventDetector(self.add_found, self._now(), known, faults))

    def _observe(self, detector: EventDetector) -> None:
        self._hub.fleet.observers.replace(self._detector, detector)
        self._detector = detector


def _is_same(one: Event, other: Event) -> bool:
    what = (one.kind, one.host_id, one.gpu, one.user)
    return what == (other.kind, other.host_id, other.gpu, other.user) and abs(one.at - other.at) < _CLOSE_SECONDS
