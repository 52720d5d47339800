"""Events in the database: what is found again, and what a database that is away does to it."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from fakes.clock import FakeClock
from fakes.tables import open_file, put_tables
from fakes.waiting import until
from gpudeck.database.engine import Database
from gpudeck.events import service
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery, EventStore
from gpudeck.model.clock import RetentionClock
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event

NOW = 1_790_000_000.0


class Moody:
    """A database that is away when it is told to be."""

    execute, insert = Database.execute, Database.insert

    def __init__(self, database: Database) -> None:
        self.kind = database.kind
        self.is_away = False
        self._database = database

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        if self.is_away:
            raise Temporary("the database is away.")
        async with self._database.begin() as connection:
            yield connection


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def event(at: float, kind: str = "host_down", title: str = "gpu01 has stopped reporting", **others: Any) -> Event:
    return make_event(NOW + at, kind, title, **{"host": "gpu01", "host_id": "machine-1"} | others)


SOME = [
    event(0, "host_seen"),
    event(10, "host_down", severity="critical"),
    event(20, "xid", "GPU 0 of gpu01 XID 31", gpu="GPU-0", label="0", user="bob", detail="MMU Fault 100%"),
    event(30, "host_up", "gpu02 reports again", host="gpu02", host_id="machine-2"),
    event(40, "hub_started", "the hub was started", host=None, host_id=None),
]


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (EventQuery(), [4, 3, 2, 1, 0]),
        (EventQuery(start=NOW + 10, end=NOW + 30), [2, 1]),
        (EventQuery(host="gpu01"), [2, 1, 0]),
        (EventQuery(host="machine-2"), [3]),
        (EventQuery(gpu="GPU-0"), [2]),
        (EventQuery(user="bob"), [2]),
        (EventQuery(kinds=("xid", "host_up")), [3, 2]),
        (EventQuery(severities=("critical", "warning")), [1]),
        (EventQuery(text="mmu fault 100%"), [2]),
        (EventQuery(text="BOB"), [2]),
        (EventQuery(text="%"), [2]),
        (EventQuery(host="\0", gpu="\0", user="\0", kinds=("\0",), text="\0", before="\0"), []),
        (EventQuery(limit=2), [4, 3]),
        (EventQuery(limit=2, before=SOME[3].id), [2, 1]),
        (EventQuery(text="'; DROP TABLE events; --"), []),
    ],
)
def test_events_are_found_by_what_is_asked(database: Database, ask: EventQuery, found: list[int]) -> None:
    async def work() -> None:
        store = EventStore(database)
        await store.write(SOME)
        assert await store.find(ask) == [SOME[number] for number in found]

    run(work())


def test_event_that_is_told_twice_is_kept_once(database: Database) -> None:
    async def work() -> None:
        store = EventStore(database)
        await store.write(SOME)
        await store.write(SOME)
        assert await store.count() == len(SOME)

    run(work())


def test_hostile_words_are_kept_as_a_database_can(database: Database) -> None:
    async def work() -> None:
        store = EventStore(database)
        await store.write([event(0, user="a\0b" * 500, gpu="\ud800", title="\x1b[2J")])
        (kept,) = await store.find(EventQuery())
        assert len(kept.user or "") == 256
        assert kept.title == "�[2J"

    run(work())


def test_simulated_fleet_is_not_mixed_with_the_real_one(database: Database) -> None:
    async def work() -> None:
        await EventStore(database, "demo-24").write(SOME)
        assert await EventStore(database).find(EventQuery()) == []
        assert await EventStore(database).known_hosts() == {}

    run(work())


def test_hosts_are_known_with_whether_they_were_told_down(database: Database) -> None:
    async def work() -> None:
        store = EventStore(database)
        await store.write(SOME)
        assert await store.known_hosts() == {"machine-1": NOW + 10, "machine-2": None}

    run(work())


def test_old_events_go_but_a_first_sight_stays(database: Database) -> None:
    async def work() -> None:
        store = EventStore(database)
        await store.write(SOME)
        assert await store.trim(NOW + 25) == 2
        assert [kept.kind for kept in await store.find(EventQuery())] == ["hub_started", "host_up", "host_seen"]

    run(work())


def test_listener_that_fails_keeps_nobody_from_theirs_and_is_logged_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        def fail(event: Event) -> None:
            raise ValueError(event)

        heard: list[Event] = []
        events = EventLog(database, EventSettings())
        for listener in (fail, heard.append):
            events.subscribe(listener)
        for event in SOME[:2]:
            events.add(event)
        assert heard == SOME[:2]
        assert [record.getMessage() for record in caplog.records] == [
            "a listener of events failed; the other listeners go on"
        ]

    run(work())


def test_added_event_is_heard_at_once_and_found_at_once(database: Database) -> None:
    async def work() -> None:
        heard: list[Event] = []
        events = EventLog(database, EventSettings())
        events.subscribe(heard.append)
        events.add(SOME[1])
        assert heard == [SOME[1]]
        assert await events.find(EventQuery()) == [SOME[1]]

    run(work())


def test_events_wait_while_the_database_is_away_and_a_problem_is_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.01)

    async def work() -> None:
        moody = Moody(database)
        events = EventLog(moody, EventSettings(), now=lambda: NOW)  # type: ignore[arg-type]
        moody.is_away = True
        events.start()
        events.add(SOME[1])
        await until(lambda: events.problem is not None)
        events.add(SOME[2])
        assert events.problem == "events wait in memory: the hub's database does not take them now; 2 are waiting."
        moody.is_away = False
        await until(lambda: events.problem is None and events.waiting == 0)
        assert await events.ask(EventStore.count) == 2
        await events.stop()

    run(work())


def test_as_many_events_wait_as_there_is_room_for(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_WAITING", 3)

    async def work() -> None:
        events = EventLog(database, EventSettings())
        for one in SOME:
            events.add(one)
        assert await events.find(EventQuery()) == SOME[:1:-1]

    run(work())


def test_what_waits_is_written_when_the_hub_stops(database: Database) -> None:
    async def work() -> None:
        events = EventLog(database, EventSettings(), now=lambda: NOW)
        events.start()
        for one in SOME:
            events.add(one)
        await events.stop()
        assert await EventStore(database).count() == len(SOME)

    run(work())


def test_damaged_part_of_the_past_keeps_no_new_event_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(service, "RETRY_SECONDS", 0.01)
    put_tables(tmp_path)
    file = tmp_path / "gpudeck.db"
    asyncio.run(EventStore(open_file(tmp_path)).write([event(number, title="x" * 200) for number in range(200)]))
    whole = file.read_bytes()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        question = "SELECT pageno FROM dbstat WHERE name = 'events' AND pagetype = 'leaf' ORDER BY path LIMIT 1"
        (page,) = connection.execute(question).fetchone()
    body = bytearray(whole)
    body[(page - 1) * size : page * size] = bytes(size)
    file.write_bytes(body)

    async def work() -> None:
        ticks = FakeClock(0.0)
        retention = RetentionClock(NOW, lambda: NOW, ticks)
        ticks.advance(7200)  # what is on the damaged page is too old by now: deleting it fails too
        events = EventLog(open_file(tmp_path), EventSettings(keep=7190), now=lambda: NOW, retention=retention)
        events.start()
        with pytest.raises(Temporary):
            await events.find(EventQuery(limit=1000))
        events.add(event(1000))
        await until(lambda: events.waiting == 0)
        assert len(await events.find(EventQuery(limit=5))) == 5
        assert events.problem is None
        await events.stop()

    run(work())


def test_damaged_text_hides_no_other_event(tmp_path: Path) -> None:
    put_tables(tmp_path)
    asyncio.run(EventStore(open_file(tmp_path)).write(SOME))
    with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db")) as connection, connection:
        connection.execute("UPDATE events SET title = CAST(x'676fff' AS TEXT) WHERE kind = 'xid'")

    async def work() -> None:
        found = await EventStore(open_file(tmp_path)).find(EventQuery())
        assert [one.title for one in found if one.kind == "xid"] == ["go�"]
        assert len(found) == len(SOME)

    run(work())
