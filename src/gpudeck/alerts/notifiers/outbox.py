"""Messages until they have arrived: kept in the database, sent by a worker for each channel.

What a channel does not take is tried again, later each time, for a day; the others go on meanwhile. A hub that is
killed goes on where it was: what it was sending at that moment may arrive twice, and nothing is lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from gpudeck.alerts.message import Message
from gpudeck.alerts.notifiers.channel import ChannelWorker, Failure, Post
from gpudeck.alerts.notifiers.routes import Destination
from gpudeck.alerts.notifiers.store import OutboxStore
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.retention import RetentionClock

log = logging.getLogger(__name__)

MOST_UNWRITTEN: Final = 10_000
_AGAIN_SECONDS: Final = 5.0
_TRIM_SECONDS: Final = 3600.0
STOP_SECONDS: Final = 5.0

FindDestinations = Callable[[Message], Sequence[Destination]]


class Outbox:
    """`put` whatever people have to be told. `open` once, then `start`, `stop` at the end, all in the event loop that
    owns it."""

    def __init__(
        self,
        store: OutboxStore,
        posts: Mapping[str, Post],
        find: FindDestinations,
        *,
        give_up: float = 86_400.0,
        tell: Callable[[Failure], None] | None = None,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
    ) -> None:
        """`posts` send, by the names of the channels. `tell` hears of every message that is given up."""
        self._store = store
        self._find = find
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._unwritten: list[tuple[Message, Destination]] = []
        self._dropped = 0
        self._trouble = ""
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = {
            name: ChannelWorker(name, store, post, give_up=give_up, tell=tell, now=now) for name, post in posts.items()
        }

    def put(self, message: Message) -> None:
        """Never blocks, never raises. The same key goes to a place once, also after a restart."""
        destinations = self._find(message)
        # They say where it goes, and that is decided.
        kept = replace(message, subjects=())
        for destination in destinations:
            self.put_to(kept, destination)

    def put_to(self, message: Message, destination: Destination) -> None:
        """The same, to one place, whatever the routes say."""
        if destination.channel not in self._workers:
            return
        if len(self._unwritten) >= MOST_UNWRITTEN:
            self._dropped += 1
            return
        self._unwritten.append((message, destination))
        self._wake.set()

    async def flush(self) -> None:
        """Until all that was put is in the database: who notes that something was told, notes it after this. Raises
        Temporary."""
        async with self._lock:
            while self._unwritten:
                # Another fleet may begin meanwhile, with a list of its own.
                unwritten = self._unwritten
                batch = unwritten[:500]
                await self._store.add(batch, self._now())
                del unwritten[: len(batch)]
                for channel in {destination.channel for _, destination in batch}:
                    self._workers[channel].wake.set()
        self._trouble, self._dropped = "", 0

    async def open(self) -> None:
        """Raises Temporary."""
        if not self._store.is_shared:
            await self._store.release()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write_forever())]
        self._tasks += [loop.create_task(worker.run()) for worker in self._workers.values()]

    async def stop(self) -> None:
        """What is being sent may be finished within some seconds; all else is sent by the next hub."""
        try:
            await self.flush()
        except Temporary as error:
            log.warning("%d messages are lost: %s", len(self._unwritten), error)
        for worker in self._workers.values():
            worker.end()
        if self._tasks:
            self._tasks[0].cancel()
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def change_fleet(self, store: OutboxStore) -> None:
        """Another fleet: what was said of the one before is not sent any more, and all that is put from here on is."""
        self._unwritten, self._store = [], store
        for worker in self._workers.values():
            worker.change_store(store)

    @property
    def problems(self) -> list[str]:
        """What keeps messages from arriving, for everybody who may look at the hub."""
        lost = f" {self._dropped} are lost." if self._dropped else ""
        own = [f"messages are not sent: {self._trouble}{lost}"] if self._trouble else []
        return own + [worker.problem for worker in self._workers.values() if worker.problem]

    @property
    def counters(self) -> dict[str, Counter[str]]:
        """By channel: `sent`, `failed` (tries) and `given_up` since this hub was started."""
        return {name: worker.counters for name, worker in self._workers.items()}

    @property
    def waiting(self) -> dict[str, int]:
        """By channel: how many are still to be sent."""
        return {name: worker.waiting for name, worker in self._workers.items()}

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        trim_at = loop.time()
        while True:
            try:
                await self.flush()
                if loop.time() >= trim_at and (time := self._retention.deletion_time()) is not None:
                    await self._store.trim(time)
                    trim_at = loop.time() + _TRIM_SECONDS
                await self._wait()
            except Temporary as error:
                if not self._trouble:
                    log.warning("messages cannot be kept: %s", error)
                self._trouble = "the hub's database does not take them now."
                await asyncio.sleep(_AGAIN_SECONDS)
            except Exception:
                log.exception("messages could not be kept")
                self._trouble = "the hub made a mistake, see its log."
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _wait(self) -> None:
        self._wake.clear()
        if not self._unwritten:
            try:
                await asyncio.wait_for(self._wake.wait(), _TRIM_SECONDS)
            except TimeoutError:
                return
