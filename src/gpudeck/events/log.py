"""The way of an event: to everybody who watches at once, and into the database in batches, off the fleet's way.

Nothing here waits for the database. While it is away events wait, as many as there is room for, and a problem is said:
in `spill`, a second database on this machine, where there is one, and else in memory.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventAsk, EventStore
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.retention import RetentionClock

log = logging.getLogger(__name__)

MOST_WAITING: Final = 10_000
"""In memory."""
MOST_SPILLED: Final = 100_000
WRITE_SECONDS: Final = 1.0
TRIM_SECONDS: Final = 3600.0
_AT_ONCE: Final = 500
_AGAIN_SECONDS: Final = 5.0

_UNREADABLE: Final = "some events of the past cannot be read from the hub's database: see the hub's log."

Listener = Callable[[Event], None]
T = TypeVar("T")


class Events:
    """`add` whatever happened; listeners that `subscribe` get it at once. `start` and `stop` in the loop that owns
    it.

    `problem` is what keeps events from being kept or read, for everybody who may look at the hub; None: nothing does.
    """

    def __init__(
        self,
        database: Database,
        settings: EventSettings,
        *,
        spill: Database | None = None,
        fleet: str = REAL,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
    ) -> None:
        self._database = database
        self._spill_database = None if spill is database else spill
        self._spill = None if self._spill_database is None else EventStore(self._spill_database, fleet)
        self._spilled = 0
        self._has_looked = self._spill is None
        self._store = EventStore(database, fleet)
        self._keep = settings.keep
        self._retention = retention or RetentionClock(now=now)
        self._waiting: list[Event] = []
        self._dropped = 0
        self._trouble: str | None = None
        self._failed: Callable[[], Awaitable[object]] | None = None
        """What was asked of the past in vain: asked again until it is answered."""
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self._failing: set[Listener] = set()

    @property
    def problem(self) -> str | None:
        if self._trouble is None:
            return None if self._failed is None else _UNREADABLE
        lost = f", {self._dropped} were lost" if self._dropped else ""
        how = "wait in memory" if self._spill is None else "wait on the hub's disk"
        told = f"events {how}: {self._trouble} {self.waiting} are waiting{lost}."
        return told if self._failed is None else f"{told} {_UNREADABLE}"

    @property
    def waiting(self) -> int:
        """How many are not in the database yet."""
        return len(self._waiting) + self._spilled

    def add(self, event: Event) -> None:
        """Tell of an event. Never blocks, never raises."""
        self.keep(event)
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

    def keep(self, event: Event) -> None:
        """Keep an event of the past, of which nobody is told now."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            del self._waiting[0]
        self._waiting.append(event)

    async def find(self, ask: EventAsk) -> list[Event]:
        """The newest first, with what was added just now. Raises Temporary."""
        await self._flush()
        return await self._ask_past(partial(self._store.find, ask))

    async def known_hosts(self) -> dict[str, float | None]:
        """See `EventStore.known_hosts`. Raises Temporary."""
        return await self._ask_past(self._store.known_hosts)

    async def last_of_hub(self) -> Event | None:
        """See `EventStore.last_of_hub`. Raises Temporary."""
        return await self._ask_past(self._store.last_of_hub)

    async def count(self) -> int:
        """How many are kept. Raises Temporary."""
        return await self._store.count()

    async def _ask_past(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Temporary as error:
            if self._failed is None:
                log.warning("events of the past cannot be read: %s", error)
                self._failed = ask
            raise

    def start(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_forever())

    async def stop(self) -> None:
        """Write what is left; what the database does not take now is lost, and said in the log."""
        task, self._writing = self._writing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await self._flush()
        except Temporary as error:
            await self._write_to_spill()
            if self._waiting:
                log.warning("%d events are lost: %s", len(self._waiting), error)

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        trim_at = again_at = loop.time()
        while True:
            try:
                await self._flush()
                if loop.time() >= trim_at and (time := self._retention.deletion_time()) is not None:
                    trim_at = loop.time() + TRIM_SECONDS
                    await self._look_back(partial(self._store.trim, time - self._keep))
                if self._failed is not None and loop.time() >= again_at:
                    again_at = loop.time() + _AGAIN_SECONDS
                    await self._look_back(self._failed)
            except Temporary as error:
                self._note(error)
                await self._write_to_spill()
            except Exception:
                log.exception("events could not be written")
                self._trouble = "the hub made a mistake, see its log;"
            # What happens together is written together.
            is_kept = self._trouble is None or self._spill is not None
            await asyncio.sleep(WRITE_SECONDS if is_kept else _AGAIN_SECONDS)

    async def _look_back(self, ask: Callable[[], Awaitable[object]]) -> None:
        """What fails of the past keeps no new event from being written."""
        with contextlib.suppress(Temporary):
            await self._ask_past(ask)
            if self._failed is ask:
                log.info("events of the past can be read again")
                self._failed = None

    async def _flush(self) -> None:
        """Write all that waits, in order. What fails waits on. Raises Temporary."""
        async with self._lock:
            while self._waiting:
                batch = self._waiting[:_AT_ONCE]
                await self._store.write(batch)
                # Some may have been dropped from the front meanwhile.
                written = {event.id for event in batch}
                self._waiting = [event for event in self._waiting if event.id not in written]
            await self._move_spilled()
        if self._trouble is not None:
            log.info("all events are in the database again")
        self._trouble, self._dropped = None, 0

    async def _write_to_spill(self) -> None:
        """What is there is not lost with this process."""
        if self._spill is None:
            return
        async with self._lock:
            try:
                while batch := self._waiting[: min(_AT_ONCE, MOST_SPILLED - self._spilled)]:
                    await self._spill.write(batch)
                    written = {event.id for event in batch}
                    self._waiting = [event for event in self._waiting if event.id not in written]
                    self._spilled += len(batch)
            except Temporary as error:
                log.debug("events wait in memory: %s", error)

    async def _move_spilled(self) -> None:
        """To where they belong, also those that an earlier process left. Raises Temporary."""
        if self._spill is None or (self._has_looked and not self._spilled):
            return
        while batch := await self._spill.find(EventAsk(limit=_AT_ONCE)):
            await self._store.write(batch)
            await self._spill.remove(batch)
            self._spilled = max(0, self._spilled - len(batch))
        self._spilled, self._has_looked = 0, True

    def _note(self, error: Temporary) -> None:
        if self._trouble is None:
            log.warning("events wait: %s", error)
        # Without the place: it is shown to everybody who may look.
        self._trouble = "the hub's database does not take them now;"
