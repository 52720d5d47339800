"""The outbox of notifications: messages are stored in the database until one worker for each channel has sent them.

A message that a channel does not take is tried again for a day, less and less often; other channels go on meanwhile.
After a kill of the hub nothing is lost, and the message that was being sent may arrive twice. While the database does
not take messages, they are sent from memory, and stored later.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import Destination, IsMuted
from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.alerts.notifiers.store import OutboxStore, QueuedMessage
from gpudeck.database.background import BackgroundWriter, trim_regularly
from gpudeck.model import clock
from gpudeck.model.backoff import pause_after
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError, Temporary

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 5.0
MAX_REST: Final = 300.0
"""A channel that fails is tried with one message at least this often."""
MAX_PAUSE: Final = 3600.0
"""For a message to a user who cannot be reached."""
_WATCH_SECONDS: Final = 3600.0
"""How long a message of a watch is tried: the GPUs may be in use again by then."""
CLAIM_SECONDS: Final = 180.0
"""How long other hubs with the same database leave a message alone: longer than sending can take."""
_IDLE_SECONDS: Final = 30.0
_CHECK_SECONDS: Final = 30.0
"""How often to look for messages that other hubs have left."""
_SHOWN_AFTER: Final = 2
"""A problem is shown after so many failures in a row."""
MAX_UNWRITTEN: Final = 10_000
RETRY_SECONDS: Final = 5.0
_TRIM_SECONDS: Final = 3600.0
STOP_SECONDS: Final = 5.0
_TROUBLE: Final = {
    "unavailable": "the hub's database does not take them now.",
    "bug": "the hub made a mistake, see its log.",
}

FindDestinations = Callable[[Message], Sequence[Destination]]


OnFailure = Callable[[Message, Destination, str], None]
"""Called with a message that is given up, where it was to go, and why, without a secret."""


class Channel(Protocol):
    """Sends messages. Raises Temporary or Refused, or UsageError if the settings are wrong, without a secret."""

    async def send(self, message: Message, account: str | None) -> None: ...

    async def release(self) -> None:
        """Free resources: nothing is to be sent for a while."""
        ...


class ChannelWorker:
    """`run` is its task; `wake` it for a new message. `end` lets it finish what it is sending.

    `problem` is why messages do not arrive, "" if they do. `waiting` is how many were left at its last look.
    """

    def __init__(
        self,
        name: str,
        store: OutboxStore,
        channel: Channel,
        *,
        give_up: float,
        on_failure: OnFailure | None = None,
        now: clock.Clock = clock.wall,
        is_muted: IsMuted = lambda _account, _rule: False,
    ) -> None:
        self.name = name
        self._is_muted = is_muted
        self._store = store
        self.wake = asyncio.Event()
        self.counters: Counter[str] = Counter()
        self.waiting = 0
        self._channel = channel
        self._give_up = give_up
        self._on_failure = on_failure
        self._now = now
        self._failures = 0
        self._trouble = ""
        self._given_up = 0
        self._rest_until = 0.0
        self._is_over = False
        self._unnoted: list[tuple[OutboxStore, Callable[[], Awaitable[None]]]] = []

    @property
    def problem(self) -> str:
        lost = f"{self._given_up} given up; " if self._given_up else ""
        if self._failures < _SHOWN_AFTER and not lost:
            return ""
        return f"the channel {self.name} does not take messages: {lost}{self._trouble}"

    def change_store(self, store: OutboxStore) -> None:
        """Send the messages of another store from now on."""
        self._store = store
        self.wake.set()

    def end(self) -> None:
        self._is_over = True
        self.wake.set()

    async def run(self) -> None:
        try:
            while not self._is_over:
                self.wake.clear()
                try:
                    pause = await self._work()
                    self.waiting = await self._store.count_waiting(self.name)
                except Temporary as error:
                    log.debug("messages for %s cannot be read: %s", self.name, error)
                    pause = FIRST_PAUSE
                except Exception:
                    log.exception("sending to %s failed", self.name)
                    pause = FIRST_PAUSE
                await self._sleep(pause)
        finally:
            await self._channel.release()

    async def _work(self) -> float:
        """Send the messages that are due. Returns the time until the next look. Raises Temporary."""
        while not self._is_over:
            now, store = self._now(), self._store
            await self._write_notes(store)
            if now < self._rest_until:
                return self._rest_until - now
            parcel = await store.take(self.name, now, now + CLAIM_SECONDS)
            if parcel is None:
                due = await store.next_due(self.name)
                return _CHECK_SECONDS if due is None else min(max(due - now, 0.05), _CHECK_SECONDS)
            await self._send(parcel, store)
        return 0.0

    async def _note(self, store: OutboxStore, note: Callable[[], Awaitable[None]]) -> None:
        """Write the result of sending, before the next message is read: otherwise a message that arrived would be sent
        again. Raises Temporary, and is tried again later."""
        self._unnoted.append((store, note))
        await self._write_notes(store)

    async def _write_notes(self, store: OutboxStore) -> None:
        for one in [one for one in self._unnoted if one[0] is store]:
            await one[1]()
            self._unnoted.remove(one)

    async def _send(self, parcel: QueuedMessage, store: OutboxStore) -> None:
        """`store` is where it came from; the worker may have another one by the time it has been sent."""
        message, account = parcel.message, parcel.account
        if message.kind == "digest" and account is not None and self._is_muted(account, message.rule):
            await self._note(store, partial(store.finish, parcel.id, self._now(), "muted meanwhile"))
            return
        try:
            await self._channel.send(message, account)
        except GpudeckError as error:
            await self._note_failure(parcel, store, error)
        except Exception as error:
            log.exception("sending to %s failed", self.name)
            await self._note_failure(parcel, store, Temporary(f"the hub made a mistake ({type(error).__name__})."))
        else:
            await self._note_success(parcel, store)

    async def _note_success(self, parcel: QueuedMessage, store: OutboxStore) -> None:
        self.counters["sent"] += 1
        if self._failures >= _SHOWN_AFTER:
            log.info("the channel %s takes messages again", self.name)
        has_failed, now = self._failures > 0, self._now()
        self._failures, self._given_up, self._rest_until = 0, 0, 0.0
        await self._note(store, partial(store.finish, parcel.id, now))
        if has_failed:
            # Messages that failed wait for longer than the channel was away.
            await store.make_due(self.name, now)

    async def _note_failure(self, parcel: QueuedMessage, store: OutboxStore, error: GpudeckError) -> None:
        now = self._now()
        self.counters["failed"] += 1
        # If one user cannot be reached, the channel may work for others.
        is_their_own = parcel.account is not None and isinstance(error, Unreached)
        if not is_their_own:
            self._failures += 1
            self._trouble = error.message
            self._rest_until = now + _pause(self._failures - 1, MAX_REST)
            if self._failures == _SHOWN_AFTER:
                log.warning("the channel %s does not take messages: %s", self.name, error)
        is_watch = parcel.message.kind == "watch"
        if now - parcel.created_at < (min(self._give_up, _WATCH_SECONDS) if is_watch else self._give_up):
            due_at = now + _pause(parcel.tries, MAX_PAUSE if is_their_own else MAX_REST)
            await self._note(store, partial(store.note_trouble, parcel.id, due_at, error.message))
            return
        self.counters["given_up"] += 1
        self._given_up += 1
        self._trouble = error.message
        log.warning("a message to %s is given up: %s", self.name, error)
        if self._on_failure is not None:
            self._on_failure(parcel.message, Destination(self.name, parcel.account), error.message)
        await self._note(store, partial(store.finish, parcel.id, now, error.message))

    async def _sleep(self, seconds: float) -> None:
        """Until it is time, or a new message is there. After a while without one, the channel is released."""
        try:
            await asyncio.wait_for(self.wake.wait(), min(seconds, _IDLE_SECONDS))
        except TimeoutError:
            if seconds >= _IDLE_SECONDS:
                await self._channel.release()


def _pause(tries: int, longest: float) -> float:
    """Longer each time, and random, so that messages that failed together are not tried together."""
    return pause_after(tries + 1, FIRST_PAUSE, longest) * random.uniform(0.7, 1.3)  # noqa: S311


class MessageOutbox:
    """`put` messages to be sent. `open` once, then `start`, `stop` at the end, all in one event loop."""

    def __init__(
        self,
        store: OutboxStore,
        channels: Mapping[str, Channel],
        find: FindDestinations,
        *,
        give_up: float = 86_400.0,
        on_failure: OnFailure | None = None,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
        is_muted: IsMuted = lambda _account, _rule: False,
    ) -> None:
        """`channels` are by name. `is_muted` is called when a digest is about to be sent."""
        self._store = store
        self._find = find
        self._now = now
        self._unwritten: list[tuple[Message, Destination]] = []
        self._written: deque[tuple[str, str]] = deque(maxlen=MAX_UNWRITTEN)
        self._spare: OutboxStore | None = None
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
            housekeeping=trim_regularly(store.trim, retention or RetentionClock(now=now), _TRIM_SECONDS),
            after_failure=self._use_spare,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = {
            name: ChannelWorker(
                name, store, channel, give_up=give_up, on_failure=on_failure, now=now, is_muted=is_muted
            )
            for name, channel in channels.items()
        }

    def put(self, message: Message) -> None:
        """Never blocks, never raises. Each destination gets a key once, also after a restart."""
        for destination in self._find(message):
            # The subjects only decide the destinations.
            self.put_to(replace(message, subjects=()), destination)

    def put_to(self, message: Message, destination: Destination) -> None:
        """The same for one destination, regardless of routes."""
        if destination.channel not in self._workers:
            return
        if len(self._unwritten) + self._in_spare >= MAX_UNWRITTEN:
            self._dropped += 1
            return
        self._unwritten.append((message, destination))
        self._writer.wake()

    async def flush(self) -> None:
        """Wait until all messages are in the database. Callers record what they have sent after this. Raises
        Temporary."""
        await self._writer.flush()

    async def _write(self) -> None:
        if self._spare is not None and self._uses_spare:
            await self._leave(self._spare)
        while self._unwritten:
            batch = self._unwritten[:500]
            await self._store.add(batch, self._now())
            del self._unwritten[: len(batch)]
            self._note_written(batch)
        self._dropped = 0

    def _note_written(self, batch: list[tuple[Message, Destination]]) -> None:
        self._written.extend((message.key, destination.name) for message, destination in batch)
        for channel in {destination.channel for _, destination in batch}:
            self._workers[channel].wake.set()

    async def _use_spare(self) -> None:
        """Send from memory while the database does not take messages. A hub that could not read the database since its
        start waits for it: only the database knows what was sent before."""
        if not self._is_open:
            return
        async with self._writer.lock:
            if self._spare is None:
                self._spare = await self._store.open_spare()
            unwritten, self._unwritten = self._unwritten, []
            # A message that is put again may have been sent from the database.
            known = set(self._written)
            new = [(one, to) for one, to in unwritten if (one.key, to.name) not in known]
            await self._spare.add(new, self._now())
            self._uses_spare = True
            self._in_spare += len(new)
            for worker in self._workers.values():
                worker.change_store(self._spare)
            self._note_written(new)

    async def _leave(self, spare: OutboxStore) -> None:
        """Go back to the database. Raises Temporary, also while a message from memory is being sent."""
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
        """Messages that are being sent have some seconds to finish. The next start sends the others."""
        if (error := await self._writer.stop()) is not None:
            waiting = len(self._unwritten) + sum(self.waiting.values() if self._uses_spare else [])
            log.warning("%d messages are lost: %s", waiting, error)
        for worker in self._workers.values():
            worker.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        await cancel_tasks(*self._tasks)
        self._tasks = []
        if self._spare is not None:
            await self._spare.close()

    @property
    def problems(self) -> list[str]:
        """Why messages do not arrive, for every viewer of the hub."""
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
        """By channel: how many messages are still to be sent."""
        return {name: worker.waiting for name, worker in self._workers.items()}
