"""Messages of this hub: from whoever has something to tell to channels and people; and the watches, which tell when
GPUs are free. Wiring of alerts.notifiers and alerts.watches."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from gpudeck.alerts.message import DEMO_PREFIX, Message
from gpudeck.alerts.notifiers.channel import Channel, ConfiguredChannel, DeliveryFailure
from gpudeck.alerts.notifiers.mutes import Mutes
from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.alerts.notifiers.routes import BOT, Destination, find_destinations, has_way
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.alerts.notifiers.store import OutboxStore
from gpudeck.alerts.watch_store import WatchStore
from gpudeck.alerts.watches import Watches, message_of
from gpudeck.auth.parts import Auth
from gpudeck.database.schema import name_fleet
from gpudeck.events.log import Events
from gpudeck.hub.hub import Hub
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event
from gpudeck.model.wanted import OfferedGpu
from gpudeck.model.watch import Watch

log = logging.getLogger(__name__)

_STEP_SECONDS: Final = 1.0
_RELOAD_SECONDS: Final = 10.0
_TRIM_SECONDS: Final = 3600.0
_WITHHELD: Final = "messages about the demo's hosts are not sent; notify.demo in gpudeck.yaml allows it."

SpokenFor = Callable[[], Collection[str]]
"""The UUIDs of free GPUs that wait for somebody in the queue."""


class Messages:
    """`outbox` takes what people are to be told; `watches` and `mutes` are what the API asks. `open` before the hub
    serves, `start` when it does, `tick` once a second, `close` at the end, all in the event loop that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: NotifySettings,
        events: Events,
        *,
        spoken_for: SpokenFor = frozenset,
        bot: Channel | None = None,
        demo: int | None = None,
        now: Clock = clock.wall,
    ) -> None:
        """`bot` writes to people in Slack, where there is one. `demo` is how many hosts are simulated, None when none
        are: nobody is told of those, unless the settings say so."""
        fleet = name_fleet(demo)
        self._hub = hub
        self._people = auth.people
        self._settings = settings
        self._events = events
        self._spoken_for = spoken_for
        self._now = now
        self._has_bot = bot is not None
        self._is_opened = False
        self._is_withheld = demo is not None and not settings.demo
        self._prefix = "" if demo is None else DEMO_PREFIX
        self._task: asyncio.Task[None] | None = None
        self.mutes = Mutes(auth.database)
        self.watches = Watches(WatchStore(auth.database, fleet), is_loaded=False, now=now)
        posts: dict[str, Channel] = {} if bot is None else {BOT: bot}
        posts |= {name: ConfiguredChannel(name, settings, auth.people.person_of) for name in settings.channels}
        self.outbox = MessageOutbox(
            OutboxStore(auth.local, fleet),
            posts,
            self._find,
            give_up=settings.give_up,
            tell=self._tell_failure,
            now=now,
            retention=hub.retention,
        )
        # At once: that the hub was started is an event too.
        events.subscribe(self._tell_event)

    async def open(self) -> None:
        """Raises Temporary when a database does not answer, and is called again then."""
        if not self._is_opened:
            await self.outbox.open()
            self._is_opened = True
        await self.mutes.load()
        await self.watches.load()

    def start(self) -> None:
        self.outbox.start()
        self._task = asyncio.get_running_loop().create_task(self._step_forever())

    def tick(self) -> None:
        withheld = [_WITHHELD] if self._is_withheld and self._settings.channels else []
        self._hub.fleet.say("demo", withheld)
        self._hub.fleet.say("messages", self.outbox.problems)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.outbox.stop()

    def reaches(self, account: str | None) -> bool:
        """Whether somebody can be told by themselves."""
        if account is None or self._is_withheld:
            return False
        return has_way(self._settings, self._people.person_of(account), has_bot=self._has_bot)

    def is_muted(self, account: str, rule: str) -> bool:
        """Whether somebody wants to hear nothing of a rule, by the settings or by themselves."""
        return rule in self._people.person_of(account).mute or rule in self.mutes.of(account)

    def _find(self, message: Message) -> list[Destination]:
        if self._is_withheld:
            return []
        return find_destinations(message, self._settings, self._people.person_of, self.is_muted, has_bot=self._has_bot)

    def _tell_event(self, event: Event) -> None:
        """Some channels are told of events as they happen."""
        for name, channel in self._settings.channels.items():
            if event.kind in channel.events and not self._is_withheld:
                message = _message_of_event(event, self._prefix, channel.texts.get(event.kind))
                self.outbox.put_to(message, Destination(name))

    def _tell_failure(self, failure: DeliveryFailure) -> None:
        where = failure.channel if failure.account is None else f"{failure.account} through {failure.channel}"
        title = f"A message to {where} was given up"
        detail = f"{failure.message.title}: {failure.trouble}"
        self._events.add(make_event(self._now(), "message_failed", title, severity="warning", detail=detail))

    async def _step_forever(self) -> None:
        loop = asyncio.get_running_loop()
        reload_at = trim_at = loop.time() + _RELOAD_SECONDS
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            try:
                if self.watches.is_shared and loop.time() >= reload_at:
                    await self.mutes.load()
                    await self.watches.load()
                    reload_at = loop.time() + _RELOAD_SECONDS
                if loop.time() >= trim_at and (time := self._hub.retention.deletion_time()) is not None:
                    trim_at = loop.time() + _TRIM_SECONDS
                    await self.watches.trim(time)
                await self._look()
            except Temporary as error:
                log.debug("watches cannot be told: %s", error)
            except Exception:
                log.exception("watches could not be told")

    async def _look(self) -> None:
        if not self.watches.open:
            return
        for one, gpus in self.watches.look(self._offered(), self._spoken_for()):
            await self._fire(one, gpus)

    async def _fire(self, one: Watch, gpus: list[OfferedGpu]) -> None:
        """The message is kept before the watch is over: whoever is killed in between tells it again, under the same
        key, and so once. Of several hubs the one that ends the watch tells it."""
        message = message_of(one, gpus, self._now(), self._prefix)
        if not self.watches.is_shared:
            self.outbox.put(message)
            await self.outbox.flush()
        if await self.watches.fire(one, gpus):
            if self.watches.is_shared:
                self.outbox.put(message)
            detail = f"{one.user} wanted to know. {'; '.join(message.lines)}"
            self._events.add(make_event(self._now(), "watch_fired", message.title, user=one.user, detail=detail))

    def _offered(self) -> list[OfferedGpu]:
        """Those that somebody could have now."""
        return [gpu for host in self._hub.fleet.ordered() for gpu in host.offers(only_open=True)]


def _message_of_event(event: Event, prefix: str, text: str | None = None) -> Message:
    """`text` is what the channel's settings say in place of the event's own words."""
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
