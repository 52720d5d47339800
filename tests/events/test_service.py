"""A hub's events from its start to its end, and what becomes of a demo's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from fakes.clock import FakeClock
from fakes.reports import make_envelope, make_gpu
from fakes.waiting import until
from gpudeck.database import DatabaseOutage, DatabaseTrouble
from gpudeck.database.engine import Database, open_database
from gpudeck.database.schema import name_fleet
from gpudeck.events.service import EventService
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery
from gpudeck.fleet.hub import Hub
from gpudeck.model.cluster import Duty
from gpudeck.model.report import GpuEvent


class HubWithEvents:
    """A hub with its events, on a database that outlives it."""

    def __init__(self, database: Database, clock: FakeClock, demo: int | None = None) -> None:
        self.clock = clock
        self.hub = Hub(now=clock, is_simulated=demo is not None)
        self.service = EventService(self.hub, database, EventSettings(), fleet=name_fleet(demo), now=clock)

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.service.events.find(EventQuery())][::-1]


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
                station = HubWithEvents(database, clock)
                await station.service.open()
                clock.advance(1)
                station.hub.fleet.apply(make_envelope(), via="push", now=clock())
                clock.advance(1)
                await station.service.close()
                clock.advance(600)
            assert await station.kinds() == ["hub_started", "host_seen", "hub_stopped", "hub_started", "hub_stopped"]

    run(work())


def test_a_fault_in_the_first_report_of_a_host_is_an_event_once_also_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            faults = [GpuEvent(at=clock() - 60, code=79)]
            for minutes in (0, 40):
                if minutes:
                    # While the hub was away.
                    faults.append(GpuEvent(at=clock() - 600, code=48))
                station = HubWithEvents(database, clock)
                await station.service.open()
                clock.advance(1)
                gpu = make_gpu(missing="GPU is lost", events=faults)
                # By the second hub the clock of the host is a minute ahead.
                sent_at = clock() + 1.5 * minutes
                envelope = make_envelope(gpus=[gpu], collected_at=sent_at)
                station.hub.fleet.apply(envelope, via="push", now=clock(), sent_at=sent_at)
                await station.service.close()
                counted = await station.service.events.ask(lambda store: store.count_faults(0, clock() + 1))
                assert sorted((one.title[:6], one.times) for one in counted if one.kind == "xid") == sorted(
                    (f"XID {fault.code}", 1) for fault in faults
                )
                clock.advance(2400)

    run(work())


def test_hub_that_was_not_stopped_says_so_at_its_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            killed = HubWithEvents(database, clock)
            await killed.service.open()
            await killed.service.events.stop()
            clock.advance(600)
            station = HubWithEvents(database, clock)
            await station.service.open()
            newest = (await station.service.events.find(EventQuery()))[0]
            assert newest.detail.endswith("Before, it ended without being stopped.")
            await station.service.close()

    run(work())


def test_what_hubs_found_while_the_database_was_away_is_kept_by_the_one_that_takes_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            holders = {"events"}
            hub, duty = Hub(now=clock), Duty("events", lambda: "events" in holders)
            service = EventService(hub, database, EventSettings(), now=clock, duty=duty)
            await service.open()
            service.on_second()
            holders.clear()
            database.away = DatabaseOutage(DatabaseTrouble("does not answer in time", ""), clock())
            service.on_second()
            clock.advance(1)
            hub.fleet.apply(make_envelope(), via="push", now=clock())
            hub.fleet.settle()
            clock.advance(600)
            service.on_second()
            database.away = None
            holders.add("events")
            service.on_second()

            async def is_kept() -> bool:
                return "host_seen" in [event.kind for event in await service.events.find(EventQuery())]

            await until(is_kept, "the event of ten minutes ago", 10)
            await service.close()

    run(work())


def test_events_go_out_with_the_stream(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database, clock):
            station = HubWithEvents(database, clock)
            await station.service.open()
            assert b'"kind":"hub_started"' in station.hub.stream.tick().plain
            await station.service.close()

    run(work())
