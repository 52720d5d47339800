"""A hub's events from its start to its end, and what becomes of a demo's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.app.diary import Diary
from gpudeck.database.engine import Database, open_database
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventAsk
from gpudeck.hub.hub import Hub
from gpudeck.model.history_trouble import judge_problem


class Station:
    """A hub with its diary, on a database that outlives it."""

    def __init__(self, database: Database, clock: FakeClock, demo: int | None = None) -> None:
        self.clock = clock
        self.hub = Hub(now=clock, demo=demo is not None)
        self.diary = Diary(self.hub, database, EventSettings(), demo=demo, now=clock)

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.diary.events.find(EventAsk())][::-1]


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Database, FakeClock]]:
    database = await open_database(None, folder)
    try:
        yield database, FakeClock()
    finally:
        await database.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_host_is_seen_once_however_often_the_hub_is_started(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            for _ in range(2):
                station = Station(database, clock)
                await station.diary.open()
                clock.advance(1)
                station.hub.fleet.apply(make_envelope(), via="push", now=clock())
                clock.advance(1)
                await station.diary.close()
                clock.advance(600)
            assert await station.kinds() == ["hub_started", "host_seen", "hub_stopped", "hub_started", "hub_stopped"]

    run(work())


def test_hub_that_was_not_stopped_says_so_at_its_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            killed = Station(database, clock)
            await killed.diary.open()
            await killed.diary.events.stop()
            clock.advance(600)
            station = Station(database, clock)
            await station.diary.open()
            newest = (await station.diary.events.find(EventAsk()))[0]
            assert newest.detail.endswith("Before, it ended without being stopped.")
            await station.diary.close()

    run(work())


def test_events_go_out_with_the_stream(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            station = Station(database, clock)
            await station.diary.open()
            assert b'"kind":"hub_started"' in station.hub.stream.tick().plain
            await station.diary.close()

    run(work())


def test_history_that_fails_is_told_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            station = Station(database, clock)
            await station.diary.open()
            for problem in (None, "the disk is full", "the disk is still full", None, None):
                clock.advance(1)
                station.diary.tick(judge_problem(problem))
            assert await station.kinds() == ["hub_started", "history_problem", "history_recovered"]
            await station.diary.close()

    run(work())
