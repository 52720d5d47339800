"""Events go to all listeners at once, and into the database in batches from a background task. While it is unavailable
they wait in memory, up to a limit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gpudeck.database.background import BackgroundWriter
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery, EventStore
from gpudeck.model import clock
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cluster import LostDuty
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event

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
        self._retention = retention or RetentionClock(now=now)
        self._waiting: list[Event] = []
        self._dropped = 0
        self._writer = BackgroundWriter(
            self._write,
            failing="events wait: %s",
            recovered="all events are in the database again",
            every=WRITE_SECONDS,
            retry=RETRY_SECONDS,
            housekeeping=self._trim,
        )
        self._trim_at = 0.0
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

    async def _trim(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._trim_at and (time := self._retention.deletion_time()) is not None:
            self._trim_at = now + TRIM_SECONDS
            try:
                await self._store.trim(time - self._keep)
            except Temporary as error:
                # What fails of the past keeps no new event from being written.
                log.warning("old events cannot be deleted: %s", error)

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
