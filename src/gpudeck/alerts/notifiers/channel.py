"""The worker of one channel: reads due messages from the database, sends them, and backs off when that fails."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import FindUser, IsMuted
from gpudeck.alerts.notifiers.sender_process import START_SECONDS, SenderProcess, SendRequest, Unreached
from gpudeck.alerts.notifiers.settings import NotifySettings, read_url
from gpudeck.alerts.notifiers.store import OutboxStore, QueuedMessage
from gpudeck.model import clock
from gpudeck.model.clock import pause_after
from gpudeck.model.errors import GpudeckError, Refused, Temporary, UsageError

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 5.0
MAX_REST: Final = 300.0
"""A channel that fails is tried with one message at least this often."""
MAX_PAUSE: Final = 3600.0
"""For a message to a user who cannot be reached."""
_WATCH_SECONDS: Final = 3600.0
"""That GPUs were free an hour ago is no news."""
CLAIM_SECONDS: Final = 120.0
"""Longer than any message may take: another hub that shares the database leaves it alone until then."""
_IDLE_SECONDS: Final = 30.0
_CHECK_SECONDS: Final = 30.0
"""Other hubs may leave something behind."""
_TOLD_AFTER: Final = 2
"""Failures in a row that are a problem to show: one alone may be a hiccup."""


class DeliveryFailure(Struct, frozen=True):
    """A message that is given up. `trouble` is why, in words without a secret."""

    channel: str
    account: str | None
    message: Message
    trouble: str


class Channel(Protocol):
    """What sends. Raises Temporary or Refused, or UsageError where the settings are wrong; none holds a secret."""

    @property
    def longest(self) -> float:
        """Seconds that one message takes at most."""
        ...

    async def send(self, message: Message, account: str | None) -> None: ...

    async def release(self) -> None:
        """Nothing is to be sent for a while: let go of what that needs."""
        ...


class ChannelWorker:
    """`run` is its task; `wake` it when there is something new. `end` lets it finish what it is sending.

    `problem` is what keeps messages from arriving, "" for nothing. `waiting` is how many were left when it looked last.
    """

    def __init__(
        self,
        name: str,
        store: OutboxStore,
        channel: Channel,
        *,
        give_up: float,
        on_failure: Callable[[DeliveryFailure], None] | None = None,
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
        if self._failures < _TOLD_AFTER and not lost:
            return ""
        return f"the channel {self.name} does not take messages: {lost}{self._trouble}"

    def change_store(self, store: OutboxStore) -> None:
        """Send what is in another store from here on."""
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
        """Send what is due; returns after how long to look again. Raises Temporary where the database is away."""
        while not self._is_over:
            now, store = self._now(), self._store
            await self._write_notes(store)
            if now < self._rest_until:
                return self._rest_until - now
            parcel = await store.next(self.name, now)
            if parcel is None:
                due = await store.next_due(self.name)
                return _CHECK_SECONDS if due is None else min(max(due - now, 0.05), _CHECK_SECONDS)
            if await store.claim(parcel.id, now + self._channel.longest + CLAIM_SECONDS, now):
                await self._send(parcel, store)
        return 0.0

    async def _note(self, store: OutboxStore, write: Callable[[], Awaitable[None]]) -> None:
        """What became of a message is written down before anything else is read there: else one that arrived would be
        sent again. Raises Temporary, and is tried again then."""
        self._unnoted.append((store, write))
        await self._write_notes(store)

    async def _write_notes(self, store: OutboxStore) -> None:
        for one in [one for one in self._unnoted if one[0] is store]:
            await one[1]()
            self._unnoted.remove(one)

    async def _send(self, parcel: QueuedMessage, store: OutboxStore) -> None:
        """`store` is where it came from: another may have its place when it has arrived."""
        message, account = parcel.message, parcel.account
        if message.kind == "digest" and account is not None and self._is_muted(account, message.rule):
            await self._note(store, partial(store.note_failed, parcel.id, self._now(), "muted meanwhile"))
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
        if self._failures >= _TOLD_AFTER:
            log.info("the channel %s takes messages again", self.name)
        has_failed, now = self._failures > 0, self._now()
        self._failures, self._given_up, self._rest_until = 0, 0, 0.0
        await self._note(store, partial(store.note_sent, parcel.id, now))
        if has_failed:
            # What failed before waits for longer than the channel was away.
            await store.make_due(self.name, now)

    async def _note_failure(self, parcel: QueuedMessage, store: OutboxStore, error: GpudeckError) -> None:
        now = self._now()
        self.counters["failed"] += 1
        # A user who cannot be reached says nothing about the channel.
        is_their_own = parcel.account is not None and isinstance(error, Unreached)
        if not is_their_own:
            self._failures += 1
            self._trouble = error.message
            self._rest_until = now + _pause(self._failures - 1, MAX_REST)
            if self._failures == _TOLD_AFTER:
                log.warning("the channel %s does not take messages: %s", self.name, error)
        if now - parcel.created_at >= (
            min(self._give_up, _WATCH_SECONDS) if parcel.message.kind == "watch" else self._give_up
        ):
            await self._drop(parcel, store, error)
        else:
            longest = MAX_PAUSE if is_their_own else MAX_REST
            due_at = now + _pause(parcel.tries, longest)
            await self._note(store, partial(store.note_trouble, parcel.id, due_at, error.message))

    async def _drop(self, parcel: QueuedMessage, store: OutboxStore, error: GpudeckError) -> None:
        self.counters["given_up"] += 1
        self._given_up += 1
        self._trouble = error.message
        log.warning("a message to %s is given up: %s", self.name, error)
        if self._on_failure is not None:
            self._on_failure(DeliveryFailure(self.name, parcel.account, parcel.message, error.message))
        await self._note(store, partial(store.note_failed, parcel.id, self._now(), error.message))

    async def _sleep(self, seconds: float) -> None:
        """Until it is time, or something is new: but a rest is a rest. The process that sends is not kept for long."""
        idle = min(seconds, _IDLE_SECONDS)
        try:
            await asyncio.wait_for(self.wake.wait(), idle)
        except TimeoutError:
            if seconds >= _IDLE_SECONDS:
                await self._channel.release()


def _pause(tries: int, longest: float) -> float:
    """Longer each time, and never the same for two: what failed together is not tried together."""
    return pause_after(tries + 1, FIRST_PAUSE, longest) * random.uniform(0.7, 1.3)  # noqa: S311


class ConfiguredChannel:
    """One channel, with a sender process of its own."""

    def __init__(self, name: str, settings: NotifySettings, user_of: FindUser) -> None:
        self._name = name
        self._settings = settings
        self._user_of = user_of
        self._sender = SenderProcess()

    @property
    def longest(self) -> float:
        return self._settings.deadline + START_SECONDS

    async def send(self, message: Message, account: str | None) -> None:
        """Raises Temporary or Refused, with words for all who may look at the hub."""
        settings = self._settings
        try:
            url = await asyncio.to_thread(read_url, self._name, settings.channels[self._name])
        except UsageError as error:
            log.warning("%s", error)
            raise Refused(
                "its address cannot be read on the hub's machine.", "The hub's log says which file."
            ) from error
        request = SendRequest(
            url=url,
            message=message,
            recipient=None if account is None else self._recipient(account),
            page=settings.page,
            seconds=settings.deadline,
        )
        await self._sender.send(request)

    async def release(self) -> None:
        await self._sender.close()

    def _recipient(self, account: str) -> str:
        user = self._user_of(account)
        recipient = user.mail if self._name == self._settings.mail else user.slack
        if recipient is None:
            raise Unreached(f"users has no address of {account} any more.")
        return recipient
