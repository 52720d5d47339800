"""Events go to all listeners at once, and into the database in batches from a background task. While it is unavailable
they wait in `spill`, a second database on this machine, or else in memory, up to a limit."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
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
"""In memory."""
MAX_SPILLED: Final = 100_000
WRITE_SECONDS: Final = 1.0
TRIM_SECONDS: Final = 3600.0
_AT_ONCE: Final = 500
RETRY_SECONDS: Final = 5.0

_UNREADABLE: Final = "some events of the past cannot be read from the hub's database: see the hub's log."

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
        spill: Database | None = None,
        fleet: str = REAL,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
        fenced: Database | None = None,
    ) -> None:
        """`fenced` is `database` for what is found with a duty: it refuses what a former owner writes."""
        self._fenced = None if fenced is None else EventStore(fenced, fleet)
        self._of_duty: list[Event] = []
        self._spill = None if spill is None or spill is database else EventStore(spill, fleet)
        self._spilled = 0
        self._has_looked = self._spill is None
        self._store = EventStore(database, fleet)
        self._keep = settings.keep
        self._retention = retention or RetentionClock(now=now)
        self._waiting: list[Event] = []
        self._dropped = 0
        self._failed: Callable[[], Awaitable[object]] | None = None
        """A read that failed: repeated until it succeeds."""
        self._writer = BackgroundWriter(
            self._write,
            failing="events wait: %s",
            recovered="all events are in the database again",
            every=WRITE_SECONDS,
            retry=RETRY_SECONDS if self._spill is None else WRITE_SECONDS,
            housekeeping=self._trim_and_reread,
            after_failure=self._write_to_spill,
        )
        self._trim_at = self._again_at = 0.0
        self._listeners: list[Listener] = []
        self._failing: set[Listener] = set()

    @property
    def problem(self) -> str | None:
        if self._writer.failure is None:
            return None if self._failed is None else _UNREADABLE
        lost = f", {self._dropped} were lost" if self._dropped else ""
        how = "wait in memory" if self._spill is None else "wait on the hub's disk"
        # Without the database's address: everybody who may look at the hub sees this.
        problem = f"events {how}: {_REASONS[self._writer.failure]} {self.waiting} are waiting{lost}."
        return problem if self._failed is None else f"{problem} {_UNREADABLE}"

    @property
    def kept_seconds(self) -> float:
        return self._keep

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._of_duty) + self._spilled

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
        return await self._ask_past(partial(question, self._store))

    async def _ask_past(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Temporary as error:
            if self._failed is None:
                log.warning("events of the past cannot be read: %s", error)
                self._failed = ask
            raise

    def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write what is left. What neither database takes is lost, and logged."""
        error = await self._writer.stop()
        if error is not None:
            await self._write_to_spill()
            if self._waiting:
                log.warning("%d events are lost: %s", len(self._waiting), error)

    async def _trim_and_reread(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._trim_at and (time := self._retention.deletion_time()) is not None:
            self._trim_at = now + TRIM_SECONDS
            await self._look_back(partial(self._store.trim, time - self._keep))
        if self._failed is not None and now >= self._again_at:
            self._again_at = now + RETRY_SECONDS
            await self._look_back(self._failed)

    async def _look_back(self, ask: Callable[[], Awaitable[object]]) -> None:
        """What fails of the past keeps no new event from being written."""
        with contextlib.suppress(Temporary):
            await self._ask_past(ask)
            if self._failed is ask:
                log.info("events of the past can be read again")
                self._failed = None

    async def _write(self) -> None:
        await self._write_of_duty()
        await self._write_waiting(self._store)
        await self._move_spilled()
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

    async def _write_to_spill(self) -> None:
        """So that events are not lost with this process."""
        if self._spill is None:
            return
        async with self._writer.lock:
            try:
                self._spilled += await self._write_waiting(self._spill, MAX_SPILLED - self._spilled)
            except Temporary as error:
                log.debug("events wait in memory: %s", error)

    async def _write_waiting(self, store: EventStore, most: float = math.inf) -> int:
        """Move at most `most` events from memory to a store; how many it were. Raises Temporary."""
        count = 0
        while batch := self._waiting[: int(min(_AT_ONCE, most - count))]:
            await store.write(batch)
            # Some may have been dropped from the front meanwhile.
            written = {event.id for event in batch}
            self._waiting = [event for event in self._waiting if event.id not in written]
            count += len(batch)
        return count

    async def _move_spilled(self) -> None:
        if self._spill is None or (self._has_looked and not self._spilled):
            return
        while batch := await self._spill.find(EventQuery(limit=_AT_ONCE)):
            await self._store.write(batch)
            await self._spill.remove(batch)
            self._spilled = max(0, self._spilled - len(batch))
        self._spilled, self._has_looked = 0, True
