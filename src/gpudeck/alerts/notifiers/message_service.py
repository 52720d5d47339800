"""The messages of a hub to channels and users, and the watches, which notify a user when GPUs are free."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from gpudeck.alerts.notifiers.outbox import Channel, MessageOutbox
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, Message
from gpudeck.alerts.notifiers.routes import BOT, INBOX, Destination, FindUser, find_destinations, has_destination
from gpudeck.alerts.notifiers.sender_process import SenderProcess, SendRequest, Unreached
from gpudeck.alerts.notifiers.settings import NotifySettings, read_url
from gpudeck.alerts.notifiers.store import OutboxStore, PersonalMuteStore
from gpudeck.alerts.watches import Watches, message_of
from gpudeck.auth.auth import Auth
from gpudeck.database.background import trim_regularly
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.service import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.event import Event, make_event
from gpudeck.model.gpu_request import CandidateGpu, Watch

log = logging.getLogger(__name__)

_STEP_SECONDS: Final = 1.0
_RELOAD_SECONDS: Final = 10.0
_TRIM_SECONDS: Final = 3600.0
_WITHHELD: Final = "messages about the demo's hosts are not sent; notify.demo in gpudeck.yaml allows it."

ClaimedGpus = Callable[[], Collection[str]]
"""The UUIDs of free GPUs that are claimed for the queue."""


class MessageService(Service):
    """`outbox` takes messages; `watches` and `mutes` are for the API. `is_withheld`: this is a demo whose messages are
    not sent to channels."""

    name = "messages"

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: NotifySettings,
        events: EventLog,
        *,
        claimed: ClaimedGpus = frozenset,
        bot: Channel | None = None,
        inbox: Channel | None = None,
        fleet: str = REAL,
        now: Clock = clock.wall,
        database: Database | None = None,
    ) -> None:
        """`database` stores messages in place of the database of this machine. `bot` writes to users in Slack; `inbox`
        takes the personal messages of a demo. `fleet` separates the messages of a demo from real ones."""
        self._hub = hub
        self._users = auth.users
        self._settings = settings
        self._events = events
        self._claimed = claimed
        self._now = now
        self._has_bot = bot is not None
        self._has_inbox = inbox is not None
        self._is_opened = False
        self.is_withheld = fleet != REAL and not settings.demo
        self._prefix = "" if fleet == REAL else DEMO_PREFIX
        self._task: asyncio.Task[None] | None = None
        self.mutes = PersonalMuteStore(auth.database)
        self.watches = Watches(auth.database, fleet, is_loaded=False, now=now)
        posts: dict[str, Channel] = {} if bot is None else {BOT: bot}
        posts |= {} if inbox is None else {INBOX: inbox}
        posts |= {name: ConfiguredChannel(name, settings, auth.users.user_of) for name in settings.channels}
        self.outbox = MessageOutbox(
            OutboxStore(database or auth.local, fleet),
            posts,
            self.find_channels,
            on_failure=self._note_failure,
            now=now,
            retention=hub.retention,
            is_muted=self.is_muted,
        )
        # Before `open`: the start of the hub is an event too.
        events.subscribe(self._send_event)

    async def open(self) -> None:
        """Raises Temporary if a database does not answer, and is called again then."""
        if not self._is_opened:
            await self.outbox.open()
            self._is_opened = True
        await self.mutes.load()
        await self.watches.load()

    def start(self) -> None:
        self.outbox.start()
        self._task = asyncio.get_running_loop().create_task(self._step_forever())

    def on_second(self) -> None:
        withheld = [_WITHHELD] if self.is_withheld and self._settings.channels else []
        self._hub.fleet.set_problems("demo", withheld)
        self._hub.fleet.set_problems("messages", self.outbox.problems)

    async def close(self) -> None:
        await cancel_tasks(self._task)
        await self.outbox.stop()

    def reaches(self, account: str | None) -> bool:
        """Whether this account can be notified directly."""
        if account is None or self._has_inbox:
            return account is not None
        if self.is_withheld:
            return False
        return has_destination(self._settings, self._users.user_of(account), has_bot=self._has_bot)

    def is_muted(self, account: str, rule: str) -> bool:
        """Whether the account has muted the rule, in the settings or on the page."""
        return rule in self._users.user_of(account).mute or rule in self.mutes.of(account)

    def find_channels(self, message: Message) -> list[Destination]:
        inbox = [
            Destination(INBOX, account)
            for account in message.accounts
            if self._has_inbox and message.is_personal and not self.is_muted(account, message.rule)
        ]
        if self.is_withheld:
            return inbox
        users = self._users.user_of
        return inbox + find_destinations(message, self._settings, users, self.is_muted, has_bot=self._has_bot)

    def _send_event(self, event: Event) -> None:
        """Send the event to the channels that have its kind in `events`."""
        for name, channel in self._settings.channels.items():
            if event.kind in channel.events and not self.is_withheld:
                message = _message_of_event(event, self._prefix, channel.texts.get(event.kind))
                self.outbox.put_to(message, Destination(name))

    def _note_failure(self, message: Message, to: Destination, why: str) -> None:
        where = to.channel if to.account is None else f"{to.account} through {to.channel}"
        title, detail = f"A message to {where} was given up", f"{message.title}: {why}"
        self._events.add(make_event(self._now(), "message_failed", title, severity="warning", detail=detail))

    async def _step_forever(self) -> None:
        loop = asyncio.get_running_loop()
        reload_at = loop.time() + _RELOAD_SECONDS
        trim = trim_regularly(self.watches.trim, self._hub.retention, _TRIM_SECONDS)
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            try:
                if self.watches.is_shared and loop.time() >= reload_at:
                    await self.mutes.load()
                    await self.watches.load()
                    reload_at = loop.time() + _RELOAD_SECONDS
                await trim()
                await self.evaluate()
            except Temporary as error:
                log.debug("watches cannot be notified: %s", error)
            except Exception:
                log.exception("watches could not be notified")

    async def evaluate(self) -> None:
        if not self.watches.open:
            return
        candidates = [gpu for host in self._hub.fleet.ordered() for gpu in host.candidates(only_open=True)]
        for one, gpus in self.watches.evaluate(candidates, self._claimed()):
            await self._fire(one, gpus)

    async def _fire(self, one: Watch, gpus: list[CandidateGpu]) -> None:
        """The message is stored before the watch ends: a hub that is killed in between stores it again with the same
        key, and it is sent once. Of several hubs the one that ends the watch sends it."""
        message = message_of(one, gpus, self._now(), self._prefix)
        if not self.watches.is_shared:
            self.outbox.put(message)
            await self.outbox.flush()
        if await self.watches.fire(one, gpus):
            if self.watches.is_shared:
                self.outbox.put(message)
            detail = f"{one.user} wanted to know. {'; '.join(message.lines)}"
            self._events.add(make_event(self._now(), "watch_fired", message.title, user=one.user, detail=detail))


def _message_of_event(event: Event, prefix: str, text: str | None = None) -> Message:
    """`text` is the text of the channel's settings for such events."""
    title = event.title if text is None else text.replace("{host}", event.host or "")
    labels = {} if event.host is None else {"host": event.host}
    return Message(
        key=f"event {event.id}",
        at=event.at,
        kind="alert",
        rule=event.kind,
        severity=event.severity,
        title=f"{prefix}{title}",
        text="" if text is None else f"{prefix}{text}",
        lines=(event.detail,) if event.detail and text is None else (),
        link="#/events",
        labels=labels,
    )


class ConfiguredChannel:
    """One channel, with a sender process of its own."""

    def __init__(self, name: str, settings: NotifySettings, user_of: FindUser) -> None:
        self._name = name
        self._settings = settings
        self._user_of = user_of
        self._sender = SenderProcess()

    async def send(self, message: Message, account: str | None) -> None:
        """Raises Temporary or Refused, with words for every viewer of the hub."""
        settings = self._settings
        try:
            url = await asyncio.to_thread(read_url, self._name, settings.channels[self._name])
        except UsageError as error:
            log.warning("%s", error)
            hint = "The hub's log says which file."
            raise Refused("its address cannot be read on the hub's machine.", hint) from error
        recipient = None if account is None else self._recipient(account)
        await self._sender.send(SendRequest(url=url, message=message, recipient=recipient, page=settings.page))

    async def release(self) -> None:
        await self._sender.close()

    def _recipient(self, account: str) -> str:
        user = self._user_of(account)
        recipient = user.mail if self._name == self._settings.mail else user.slack
        if recipient is None:
            raise Unreached(f"users has no address of {account} any more.")
        return recipient
