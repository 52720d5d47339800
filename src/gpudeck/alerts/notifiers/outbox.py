"""The outbox of notifications: stored in the database until they are delivered, sent by one worker for each channel.

What a channel does not take is tried again, later each time, for a day; the others go on meanwhile. A hub that is
killed goes on where it was: what it was sending at that moment may arrive twice, and nothing is lost. While the
database does not take them, messages are sent from memory, and written down when it does.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from gpudeck.alerts.notifiers.channel import Channel, ChannelWorker, DeliveryFailure
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import Destination, IsMuted
from gpudeck.alerts.notifiers.store import OutboxStore
from gpudeck.database.background import BackgroundWriter
from gpudeck.model import clock
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

MAX_UNWRITTEN: Final = 10_000
RETRY_SECONDS: Final = 5.0
_TRIM_SECONDS: Final = 3600.0
STOP_SECONDS: Final = 5.0
_TROUBLE: Final = {
    "unavailable": "the hub's database does not take them now.",
    "bug": "the hub made a mistake, see its log.",
}

FindDestinations = Callable[[Message], Sequence[Destination]]


class MessageOutbox:
    """`put` messages to be sent. `open` once, then `start`, `stop` at the end, all in the event loop that
    owns it."""

    def __init__(
        self,
        store: OutboxStore,
        channels: Mapping[str, Channel],
        find: FindDestinations,
        *,
        give_up: float = 86_400.0,
        on_failure: Callable[[DeliveryFailure], None] | None = None,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
        is_muted: IsMuted = lambda _account, _rule: False,
    ) -> None:
        """`channels` by name. `on_failure` is called for every message that is given up. `is_muted` is asked about a
        digest when it is about to be sent."""
        self._store = store
        self._find = find
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._unwritten: list[tuple[Message, Destination]] = []
        self._written: deque[tuple[str, str]] = deque(maxlen=MAX_UNWRITTEN)
        self._spare: OutboxStore | None = None
        self._spares: list[OutboxStore] = []
        self._uses_spare = False
        self._in_spare = 0
        self._is_open = False
        self._dropped = 0
        self._writer = BackgroundWriter(
            self._write,
            failing="messages cannot be kept: %s",
            recovered="messages are kept again",
            every=_TRIM_SECONDS,
            retry=RETRY_SECONDS,
            housekeeping=self._trim,
            after_failure=self._use_spare,
        )
        self._trim_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = {
            name: ChannelWorker(
                name, store, channel, give_up=give_up, on_failure=on_failure, now=now, is_muted=is_muted
            )
            for name, channel in channels.items()
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
        if len(self._unwritten) + self._in_spare >= MAX_UNWRITTEN:
            self._dropped += 1
            return
        self._unwritten.append((message, destination))
        self._writer.wake()

    async def flush(self) -> None:
        """Until all that was put is in the database: callers record that something was sent after this. Raises
        Temporary."""
        await self._writer.flush()

    async def _write(self) -> None:
        if self._spare is not None and self._uses_spare:
            await self._leave(self._spare)
        while self._unwritten:
            # Another fleet may begin meanwhile, with a list of its own.
            unwritten = self._unwritten
            batch = unwritten[:500]
            await self._store.add(batch, self._now())
            del unwritten[: len(batch)]
            self._note_written(batch)
        self._dropped = 0

    async def _trim(self) -> None:
        due = asyncio.get_running_loop().time()
        if due >= self._trim_at and (time := self._retention.deletion_time()) is not None:
            self._trim_at = due + _TRIM_SECONDS
            await self._store.trim(time)

    def _note_written(self, batch: list[tuple[Message, Destination]]) -> None:
        self._written.extend((message.key, destination.name) for message, destination in batch)
        for channel in {destination.channel for _, destination in batch}:
            self._workers[channel].wake.set()

    async def _use_spare(self) -> None:
        """Send from memory what the database does not take. A hub that could not read it since its start waits for it:
        what was sent before is known there alone."""
        if not self._is_open:
            return
        async with self._writer.lock:
            if self._spare is None:
                self._spare = await self._store.open_spare()
                self._spares.append(self._spare)
            unwritten, self._unwritten = self._unwritten, []
            # One that is put a second time may have been sent from the database.
            known = set(self._written)
            new = [(one, to) for one, to in unwritten if (one.key, to.name) not in known]
            await self._spare.add(new, self._now())
            self._uses_spare = True
            self._in_spare += len(new)
            for worker in self._workers.values():
                worker.change_store(self._spare)
            self._note_written(new)

    async def _leave(self, spare: OutboxStore) -> None:
        """Raises Temporary, also while something is being sent from there."""
        left = await self._store.take_back(spare)
        for worker in self._workers.values():
            worker.change_store(self._store)
        if left:
            raise Temporary(f"{left} messages are being sent.")
        self._uses_spare, self._in_spare = False, 0

    async def open(self) -> None:
        """Raises Temporary."""
        if not self._store.is_shared:
            await self._store.release()
        self._is_open = True

    def start(self) -> None:
        self._writer.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(worker.run()) for worker in self._workers.values()]

    async def stop(self) -> None:
        """What is being sent may be finished within some seconds; all else is sent by the next hub."""
        if (error := await self._writer.stop()) is not None:
            waiting = len(self._unwritten) + sum(self.waiting.values() if self._uses_spare else [])
            log.warning("%d messages are lost: %s", waiting, error)
        for worker in self._workers.values():
            worker.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        await cancel_tasks(*self._tasks)
        self._tasks = []
        for spare in self._spares:
            await spare.close()

    @property
    def problems(self) -> list[str]:
        """What keeps messages from arriving, for all who may look at the hub."""
        lost = f" {self._dropped} are lost." if self._dropped else ""
        what = "messages are kept in memory only" if self._uses_spare else "messages are not sent"
        trouble = _TROUBLE.get(self._writer.failure or "")
        own = [f"{what}: {trouble}{lost}"] if trouble else []
        return own + [worker.problem for worker in self._workers.values() if worker.problem]

    @property
    def counters(self) -> dict[str, Counter[str]]:
        """By channel: `sent`, `failed` (tries) and `given_up` since this hub was started."""
        return {name: worker.counters for name, worker in self._workers.items()}

    @property
    def waiting(self) -> dict[str, int]:
        """By channel: how many are still to be sent."""
        return {name: worker.waiting for name, worker in self._workers.items()}
