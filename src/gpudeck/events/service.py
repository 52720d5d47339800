"""The events of a hub: found in its fleet (events/detector.py), passed to all listeners at once, and written to the
database in batches from a background task. While it is unavailable they wait in memory, up to a limit."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from gpudeck import __version__
from gpudeck.database.background import BackgroundWriter, trim_regularly
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.detector import EventDetector
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
    """`add` whatever happened; listeners that `subscribe` get it at once. `problem` is what keeps events from being
    kept or read."""

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
        """`fenced` is `database` for what is found with a duty: it refuses what a former owner writes."""
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
        # Without the database's address: everybody who may look at the hub sees this.
        return f"events wait in memory: {_REASONS[self._writer.failure]} {self.waiting} are waiting{lost}."

    @property
    def kept_seconds(self) -> float:
        return self._keep

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._of_duty)

    def add(self, event: Event, *, of_duty: bool = False) -> None:
        """Tell of an event. Never blocks, never raises. `of_duty`: as `keep`."""
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
        """It is called with each event, after those that subscribed before. One that fails costs itself only."""
        self._listeners = [*self._listeners, listener]

    def keep(self, event: Event, *, of_duty: bool = False) -> None:
        """Keep an event of the past without notifying listeners. `of_duty`: every hub of a cluster has found it, and
        only the one with the duty keeps it."""
        waiting = self._of_duty if of_duty and self._fenced is not None else self._waiting
        if len(waiting) >= MAX_WAITING:
            self._dropped += 1
            del waiting[0]
        waiting.append(event)

    async def find(self, ask: EventQuery) -> list[Event]:
        return await self.ask(lambda store: store.find(ask))

    async def ask(self, question: Callable[[EventStore], Awaitable[T]]) -> T:
        """What the store answers, with what was added just now. Raises Temporary."""
        await self._writer.flush()
        return await question(self._store)

    def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write what is left. What the database does not take is lost, and logged."""
        error = await self._writer.stop()
        if error is not None:
            log.warning("%d events are lost: %s", self.waiting, error)

    async def _write(self) -> None:
        await self._write_of_duty()
        while batch := self._waiting[:_AT_ONCE]:
            await self._store.write(batch)
            # Some may have been dropped from the front meanwhile.
            written = {event.id for event in batch}
            self._waiting = [event for event in self._waiting if event.id not in written]
        self._dropped = 0

    async def _write_of_duty(self) -> None:
        """Raises Temporary. What is refused, the hub that has the duty now has found itself."""
        while self._fenced is not None and (batch := self._of_duty[:_AT_ONCE]):
            try:
                await self._fenced.write(batch)
            except LostDuty:
                log.info("%d events are left to the hub that keeps them now", len(batch))
            written = {event.id for event in batch}
            self._of_duty = [event for event in self._of_duty if event.id not in written]


_MAX_FOUND: Final = 2_000
_TAKEOVER_SECONDS: Final = 60.0
"""What a hub found without the duty before that, the owner of then has kept."""
_MAX_SECONDS: Final = 3600.0
"""What all hubs found while the database was away is kept afterwards, as far back as this."""
_CLOSE_SECONDS: Final = 15.0


class EventService(Service):
    """`events` is what others add to and read."""

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
        """`fleet` is the name under which a demo's events are kept apart. Of several hubs all find what happens in the
        fleet, and the one with the `duty` keeps it, in `fenced`; `hub_name` is the name of this one, `missed` what it
        has missed while it was away."""
        self._database = database
        self._unkept_since = math.inf
        self._duty = duty or Duty("events")
        self._had_duty = True
        self._found: deque[Event] = deque(maxlen=_MAX_FOUND)
        """Found without the duty, and perhaps not kept by the hub that had it: it may have died."""
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
        if (away := self._database.away) is not None:
            # No hub has the duty then, and none keeps what all of them find.
            self._unkept_since = min(self._unkept_since, away.since)
        had_duty, self._had_duty = self._had_duty, self._duty.is_held
        if self._had_duty and not had_duty and self._found:
            self._taking_over = asyncio.get_running_loop().create_task(self._take_over())
        problem = self.events.problem
        self._hub.fleet.set_problems("events", [] if problem is None else [problem])

    def add_found(self, event: Event) -> None:
        """Add what all hubs find: it is not passed on to them."""
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
        """Keep what the former owner of the duty did not live to keep. Times differ a little between hubs."""
        now = self._now()
        since = max(now - _MAX_SECONDS, min(now, self._unkept_since) - _TAKEOVER_SECONDS)
        self._unkept_since = math.inf
        found, self._found = [event for event in self._found if event.at >= since], deque(maxlen=_MAX_FOUND)
        try:
            known = await self._find_known(found, since - _CLOSE_SECONDS)
        except Temporary as error:
            log.warning("events of the hub that had the duty before may be missing: %s", error)
            return
        for event in found:
            if not any(_is_same(event, other) for other in known):
                self.events.keep(event, of_duty=True)

    async def _find_known(self, found: Sequence[Event], since: float) -> list[Event]:
        kinds = tuple({event.kind for event in found})
        known = page = await self.events.find(EventQuery(start=since, kinds=kinds, limit=MAX_EVENTS))
        while len(page) == MAX_EVENTS:
            page = await self.events.find(EventQuery(start=since, kinds=kinds, limit=MAX_EVENTS, before=page[-1].id))
            known = [*known, *page]
        return known

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
        """No host of a demo is new: its past says when each was first seen."""
        known = await self.events.ask(EventStore.known_hosts) if self._is_real else None
        if self._detector is not None and known is not None:
            self._detector.learn(known)
        else:
            self._observe(EventDetector(self.add_found, self._now(), known))

    def _observe(self, detector: EventDetector) -> None:
        self._hub.fleet.observers.replace(self._detector, detector)
        self._detector = detector


def _is_same(one: Event, other: Event) -> bool:
    what = (one.kind, one.host_id, one.gpu, one.user)
    return what == (other.kind, other.host_id, other.gpu, other.user) and abs(one.at - other.at) < _CLOSE_SECONDS
