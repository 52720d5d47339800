"""What stands around the live fleet of a hub: its events, reservations, queue, messages, alerts and history, in the
order in which each needs the one before."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from gpudeck.app.alerts import Alarm
from gpudeck.app.auth import make_policy
from gpudeck.app.chat import Chat
from gpudeck.app.diary import Diary
from gpudeck.app.history import Archive
from gpudeck.app.messages import Messages
from gpudeck.app.queue import WaitingLine
from gpudeck.app.reservations import Bookings
from gpudeck.auth.parts import Auth
from gpudeck.chat.post import BotPost
from gpudeck.hub.clock_monitor import ClockMonitor
from gpudeck.hub.hub import Hub
from gpudeck.hub.memory import HostMemory
from gpudeck.hub.observers import EverySecond
from gpudeck.model.errors import Temporary
from gpudeck.model.history_trouble import judge_damage
from gpudeck.settings import Settings

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0


class Rooms:
    """`open` before the hub serves, `start` when it does, `hush` before its door closes, `close` at the end, all in the
    event loop that owns the hub. What is done once a second is registered with the fleet's observers."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: Settings,
        archive: Archive,
        *,
        clock: ClockMonitor,
        data_dir: Path,
        demo: int | None = None,
    ) -> None:
        """`demo` is how many hosts are simulated, None when none are."""
        self._hub = hub
        self._clock = clock
        self.archive = archive
        self._auth = auth
        self._opening: asyncio.Task[None] | None = None
        self._unopened: list[Callable[[], Awaitable[None]]] = []
        self.memory = HostMemory(hub, auth.local)
        self.diary = Diary(hub, auth.database, settings.events, local=auth.local, demo=demo)
        clock.subscribe(self.diary.events.add)
        self.bookings = Bookings(hub, auth, settings.reservations, self.diary.events, data_dir=data_dir, demo=demo)
        self.line = WaitingLine(
            hub,
            auth.database,
            self.bookings.calendar,
            settings.queue,
            auth.people,
            history=archive.store,
            demo=demo,
        )
        notify = settings.notify
        bot = None if settings.chat.slack is None else BotPost(auth.people.person_of, notify.page)
        self.messages = Messages(
            hub,
            auth,
            notify,
            self.diary.events,
            spoken_for=lambda: self.line.queue.kept,
            bot=bot,
            demo=demo,
        )

        self.alarm = Alarm(
            hub,
            auth,
            settings.alerts,
            self.diary.events,
            send=self.messages.outbox.put,
            settle=self.messages.outbox.flush,
            late_bookings=lambda: self.bookings.late,
            history=lambda: None if (store := archive.store) is None else store.trouble or judge_damage(store.damage),
            demo=demo,
        )
        self.chat = Chat(
            hub,
            auth,
            make_policy(settings),
            settings.chat,
            reservations=self.bookings.calendar,
            waiting=self.line.queue,
            history=archive.store,
            watches=self.messages.watches,
            reaches=self.messages.reaches,
            post=bot,
            address=notify.page or f"on {socket.gethostname()}, listening on {settings.listen}",
        )
        for name, tick in (
            ("clock", partial(clock.tick, hub.fleet)),
            ("database", self._check_database),
            ("history", archive.tick),
            ("reservations", self.bookings.tick),
            ("messages", self.messages.tick),
            ("alerts", self.alarm.tick),
            ("hosts", self._check_memory),
            ("events", self._tick_events),
        ):
            hub.fleet.observers.add(EverySecond(name, tick))

    async def open(self) -> None:
        """What each has in a database, now, or as soon as that answers: the hub serves meanwhile."""
        for part in (self.memory, self.diary, self.bookings, self.line, self.messages, self.alarm):
            await self.open_part(part.open)

    async def open_part(self, open_part: Callable[[], Awaitable[None]]) -> None:
        """The same for one more part, which raises Temporary as long as its database does not answer."""
        try:
            await open_part()
        except Temporary as error:
            log.debug("a part of the hub waits for its database: %s", error)
            self._unopened.append(open_part)
            if self._opening is None:
                self._opening = asyncio.create_task(self._open_rest())

    async def _open_rest(self) -> None:
        while self._unopened:
            # In their order, as alerts need the hosts; one may wait for another database than the next.
            for open_part in list(self._unopened):
                try:
                    await open_part()
                except Temporary:
                    continue
                except Exception:
                    log.exception("a part of the hub could not be loaded")
                self._unopened.remove(open_part)
            await asyncio.sleep(_AGAIN_SECONDS if self._unopened else 0.0)
        self._opening = None
        log.warning("all that waited for the database is loaded")

    def start(self) -> None:
        self.memory.start()
        self.line.start()
        self.messages.start()
        self.alarm.start()
        self.archive.start(self.diary.take_past)
        self.chat.start()

    async def hush(self) -> None:
        """Let go of the questions of those who wait, which are kept open."""
        await self.line.stop()

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.chat.stop()
        await self.line.stop()
        await self.memory.stop()
        await self.alarm.close()
        await self.messages.close()
        await self.bookings.close()
        await self.archive.close()
        await self.diary.close()
        self._clock.close()

    def _check_database(self) -> None:
        problem = self._auth.problem
        self._hub.fleet.say("database", [] if problem is None else [problem])

    def _check_memory(self) -> None:
        problem = self.memory.problem
        self._hub.fleet.say("memory", [] if problem is None else [problem])

    def _tick_events(self) -> None:
        store = self.archive.store
        self.diary.tick(None if store is None else store.trouble, None if store is None else store.damage)
