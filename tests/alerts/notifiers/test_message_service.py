"""Messages of a hub: what its hosts tell when a demo gives way to them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from fakes.waiting import until
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import BOT
from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings
from gpudeck.alerts.notifiers.store import OutboxStore, QueuedMessage
from gpudeck.alerts.watches import Watches
from gpudeck.auth.auth import UserDirectory
from gpudeck.auth.settings import UserSettings
from gpudeck.database.schema import name_fleet
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.event import make_event
from gpudeck.model.gpu_request import GpuRequest

NOW = 1_790_000_000.0
TOLD = NotifySettings(channels={"ops": ChannelSettings("json://127.0.0.1:9/", events=["host_seen"])})
TRIED = replace(TOLD, demo=True)


def test_a_channel_has_words_of_its_own_for_events(tmp_path: Path) -> None:
    auth = make_auth(tmp_path)
    events = EventLog(auth.database, EventSettings())
    channel = ChannelSettings(
        "json://127.0.0.1:9/", events=["host_down", "hub_started"], texts={"host_down": "{host} is gone!"}
    )
    messages = MessageService(Hub(), auth, NotifySettings(channels={"ops": channel}), events)

    async def live() -> list[tuple[str, str, tuple[str, ...]]]:
        await messages.open()
        events.add(make_event(NOW, "hub_started", "The hub was started", detail="gpudeck."))
        events.add(make_event(NOW, "host_down", "gpu01 is down", host="gpu01", detail="It is silent."))
        await messages.outbox.flush()
        store, told = OutboxStore(auth.database), []
        while (parcel := await store.take("ops", time.time() + 60, 0.0)) is not None:
            told.append((parcel.message.title, parcel.message.text, tuple(parcel.message.lines)))
            await store.finish(parcel.id, NOW)
        return told

    assert asyncio.run(live()) == [
        ("The hub was started", "", ("gpudeck.",)),
        ("gpu01 is gone!", "{host} is gone!", ()),
    ]


class BotInPlace:
    """A bot that takes everything."""

    def __init__(self) -> None:
        self.told: list[tuple[str | None, str, str]] = []

    async def send(self, message: Message, account: str | None) -> None:
        self.told.append((account, message.rule, message.title))

    async def release(self) -> None: ...


class Room:
    """The messages of a hub with one idle GPU, whose bot knows ada. It is killed rather than stopped."""

    def __init__(self, folder: Path, *, demo: int | None = None, settings: NotifySettings | None = None) -> None:
        self.clock = FakeClock(NOW)
        self.hub = Hub(now=self.clock)
        self.hub.fleet.apply(make_envelope("gpu01", gpus=[make_gpu(0)]), via="push", now=NOW)
        auth = make_auth(folder)
        auth.users = UserDirectory({"ada": UserSettings(slack="U0ADA", mail="ada@example.org")})
        self.bot = BotInPlace()
        self.store = OutboxStore(auth.database, name_fleet(demo))
        self.events = EventLog(auth.database, EventSettings())
        self.messages = MessageService(
            self.hub,
            auth,
            settings or NotifySettings(),
            self.events,
            bot=self.bot,
            fleet=name_fleet(demo),
            now=self.clock,
        )

    async def evaluate(self, *, times: int = 1) -> None:
        """As it does once a second, for so often that what is free has settled."""
        for _ in range(times):
            self.clock.advance(4)
            await self.messages.evaluate()

    async def deliver(self) -> None:
        """What is for the bot gets to the bot."""
        await self.messages.outbox.flush()
        self.messages.outbox.start()
        await until(self._is_all_sent)
        await self.messages.close()

    async def _is_all_sent(self) -> bool:
        return not await self.store.count_waiting(BOT)


def test_a_person_in_slack_is_told_by_the_bot_of_what_is_theirs(tmp_path: Path) -> None:
    room = Room(tmp_path)

    async def live() -> None:
        await room.messages.open()
        await room.messages.watches.add("ada", "ada", GpuRequest())
        await room.evaluate(times=3)
        room.messages.outbox.put(make_personal("gpu_idle"))
        await room.deliver()

    asyncio.run(live())
    assert room.messages.reaches("ada")
    assert not room.messages.reaches("bob")
    assert room.bot.told == [
        ("ada", "watch", "1 GPU is free"),
        ("ada", "gpu_idle", "ada holds GPU 0 of gpu01 idle"),
    ]


def make_personal(rule: str) -> Message:
    return Message(
        key="news 1",
        at=NOW,
        kind="alert",
        rule=rule,
        severity="info",
        title="ada holds GPU 0 of gpu01 idle",
        accounts=("ada",),
        is_personal=True,
    )


def test_channel_for_messages_in_slack_counts_before_the_bot(tmp_path: Path) -> None:
    room = Room(
        tmp_path, settings=NotifySettings(channels={"other": ChannelSettings("slack://xoxb-1-2-3")}, slack="other")
    )
    assert [one.name for one in room.messages.find_channels(make_personal("gpu_idle"))] == ["other ada"]


async def watch(room: Room) -> None:
    """Somebody wants to know, and it is so."""
    await room.messages.open()
    await room.messages.watches.add("ada", "ada", GpuRequest())
    await room.evaluate(times=2)


async def go_on(room: Room) -> None:
    await room.messages.open()
    await room.evaluate(times=2)
    await room.deliver()


def told_after_restarts(folder: Path) -> list[tuple[str | None, str, str]]:
    rooms = [Room(folder), Room(folder)]
    for room in rooms:
        asyncio.run(go_on(room))
    return [told for room in rooms for told in room.bot.told]


def test_watch_that_was_found_is_told_once_by_the_hub_that_comes_after(tmp_path: Path) -> None:
    asyncio.run(watch(Room(tmp_path)))
    assert told_after_restarts(tmp_path) == [("ada", "watch", "1 GPU is free")]


def test_watch_is_told_once_though_the_hub_died_before_it_noted_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(Watches, "fire", die)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(watch(Room(tmp_path)))
    assert told_after_restarts(tmp_path) == [("ada", "watch", "1 GPU is free")]


def test_demo_tells_nobody_and_says_so(tmp_path: Path) -> None:
    room = Room(tmp_path, demo=6, settings=TOLD)

    async def live() -> None:
        await room.messages.open()
        await room.messages.watches.add("ada", "ada", GpuRequest())
        await room.evaluate(times=2)
        room.events.add(make_event(NOW, "host_seen", "gpu01 reports for the first time", host="gpu01"))
        room.messages.outbox.put(make_personal("gpu_idle"))
        room.messages.on_second()
        await room.deliver()

    asyncio.run(live())
    assert room.bot.told == []
    assert not room.messages.reaches("ada")
    assert room.hub.fleet.problems == [
        "messages about the demo's hosts are not sent; notify.demo in gpudeck.yaml allows it."
    ]


def test_demo_that_may_tell_is_known_as_one(tmp_path: Path) -> None:
    room = Room(tmp_path, demo=6, settings=TRIED)

    async def live() -> QueuedMessage | None:
        await room.messages.open()
        await room.messages.watches.add("ada", "ada", GpuRequest())
        await room.evaluate(times=2)
        room.events.add(make_event(NOW, "host_seen", "gpu01 reports for the first time", host="gpu01"))
        await room.messages.outbox.flush()
        parcel = await room.store.take("ops", NOW + 60, 0.0)
        await room.deliver()
        return parcel

    parcel = asyncio.run(live())
    assert parcel is not None
    assert parcel.message.title == "Demo: gpu01 reports for the first time"
    assert room.bot.told == [("ada", "watch", "Demo: 1 GPU is free")]
