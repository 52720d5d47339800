"""Leases on a real PostgreSQL: one owner at a time, whatever hubs do."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, text

from database_fixtures import connect
from fakes.clock import FakeClock
from fakes.postgres import PostgresServer
from fakes.reports import make_envelope, make_gpu
from gpudeck.auth.auth import Auth
from gpudeck.auth.settings import AuthSettings
from gpudeck.cluster import leases as module
from gpudeck.cluster.leases import Leases, NameInUse, choose_owner, shard_of
from gpudeck.cluster.service import FILE_NAME, ClusterService
from gpudeck.cluster.settings import ClusterSettings, cluster_problem
from gpudeck.database.engine import Database
from gpudeck.database.schema import cluster_leases, events, personal_mutes
from gpudeck.events.service import EventLog, EventService
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery, EventStore
from gpudeck.fleet.hub import Hub
from gpudeck.model.cluster import LostDuty
from gpudeck.model.errors import GpudeckError
from gpudeck.model.event import make_event
from gpudeck.reservations.requests import Requester, ReservationDraft, ReservationRequest
from gpudeck.reservations.service import ReservationService, observe
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.wire import encode

DUTIES = ("alerts", "events", "chat", "reservations", "schedulers")


@pytest.fixture
def shared(postgres: PostgresServer, tmp_path: Path) -> Database:
    database = connect(postgres.make_schema(), tmp_path)
    asyncio.run(database.bring_up_to_date())
    return database


def make(database: Database, name: str, run: str = "1") -> Leases:
    return Leases(database, name, f"{name}-{run}", DUTIES, started_at=1.0)


def run(*steps: Coroutine[Any, Any, Any]) -> None:
    async def all_of_them() -> None:
        for step in steps:
            await step

    asyncio.run(all_of_them())


def renew(one: Leases, *, can_work: bool = True) -> Coroutine[Any, Any, None]:
    return one.renew(can_work=can_work, lag=0.001)


async def expire(database: Database) -> None:
    """As if so much time had passed."""
    await database.execute(text("UPDATE cluster_leases SET expires_at = expires_at - 60"))
    await database.execute(text("UPDATE cluster_hubs SET seen_at = seen_at - 60, able_since = able_since - 60"))


def test_the_first_hub_has_all_duties_and_the_second_none(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    run(renew(first), renew(second), renew(first))
    assert set(first.held) == set(DUTIES)
    assert not second.held
    assert all(first.holds(duty) and not second.holds(duty) for duty in DUTIES)


def test_a_hub_that_is_not_up_to_date_has_no_duties(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    run(renew(first), renew(first, can_work=False), renew(second))
    assert not first.held
    assert set(second.held) == set(DUTIES)


def test_another_hub_takes_over_what_was_not_renewed(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    run(renew(first), expire(shared), renew(second))
    assert set(second.held) == set(DUTIES)
    assert all(second.held[duty].epoch == first.held[duty].epoch + 1 for duty in DUTIES)


def test_a_hub_that_was_asleep_cannot_write_as_the_former_owner(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    write = insert(personal_mutes).values(account="alice", rule="idle")
    run(renew(first), expire(shared), renew(second))
    with pytest.raises(LostDuty):
        run(first.fence("alerts").execute(write))
    assert first.held, "it does not know yet"
    run(second.fence("alerts").execute(write))
    run(first.fence("alerts").execute(select(personal_mutes)))  # reading needs no duty


def test_a_restarted_hub_is_not_its_former_self(shared: Database) -> None:
    before, after = make(shared, "a"), make(shared, "a", "2")
    write = insert(personal_mutes).values(account="alice", rule="idle")
    run(renew(before), expire(shared), renew(after))
    with pytest.raises(LostDuty):
        run(before.fence("alerts").execute(write))
    run(after.fence("alerts").execute(write))


def test_what_is_released_is_taken_at_once(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    run(renew(first), renew(second), first.release(), renew(second))
    assert set(second.held) == set(DUTIES)


def test_duties_are_spread_when_a_hub_has_been_there_for_a_while(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_SECONDS", 0.0)
    hubs = [make(shared, name) for name in ("a", "b", "c")]
    for _ in range(4):
        run(*(renew(hub) for hub in hubs))
    owners = {duty: [hub for hub in hubs if duty in hub.held] for duty in DUTIES}
    assert all(len(found) == 1 for found in owners.values())
    assert {duty: choose_owner(duty, ["a", "b", "c"]) for duty in DUTIES} == {
        one.name: one.owner for one in hubs[0].duties
    }


def test_a_duty_that_is_handed_over_goes_to_the_hub_that_should_have_it(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs = {name: make(shared, name) for name in ("a", "b", "c")}
    wanted = choose_owner("alerts", sorted(hubs))
    first, last = sorted(hubs.keys() - {wanted})
    assert wanted is not None
    run(renew(hubs[first]), renew(hubs[wanted]), renew(hubs[last]))
    monkeypatch.setattr(module, "SETTLED_SECONDS", 0.0)
    run(renew(hubs[first]), renew(hubs[last]))
    assert "alerts" not in hubs[first].held
    assert "alerts" not in hubs[last].held, "it is not the first to come that takes it"
    run(renew(hubs[wanted]))
    assert "alerts" in hubs[wanted].held


def test_a_hub_that_alone_is_cut_off_from_the_bus_takes_no_reports(shared: Database, tmp_path: Path) -> None:
    """The others would call its hosts down. Where no hub reaches the bus, each takes reports."""
    hub, other = Hub(), make(shared, "b")
    service = ClusterService(hub, ClusterSettings(bus="nats://127.0.0.1:1", name="a"), shared, tmp_path)
    report = (encode(make_envelope()), "application/msgpack", "zstd")
    run(other.renew(can_work=True, lag=0.001), service.leases.renew(can_work=False, lag=None))
    with pytest.raises(GpudeckError, match="cut off from its cluster, and another hub is not"):
        hub.ingest.take(*report)
    run(other.renew(can_work=False, lag=None), service.leases.renew(can_work=False, lag=None))
    with pytest.raises(GpudeckError, match="catching up"):  # it has just started
        hub.ingest.take(*report)


@pytest.mark.parametrize(("away", "is_told"), [(60.0, False), (7200.0, True)])
def test_a_hub_that_was_away_for_longer_than_reports_are_kept_says_what_it_lacks(
    shared: Database, tmp_path: Path, away: float, is_told: bool
) -> None:
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode({"at": time.time() - away}))
    service = ClusterService(Hub(), ClusterSettings(bus="nats://127.0.0.1:1", name="a"), shared, tmp_path)
    log = EventService(Hub(), shared, EventSettings(), hub_name="a", missed=service.missed)

    async def start() -> str:
        await log.open()
        (newest,) = await log.events.find(EventQuery())
        await log.close()
        return newest.detail

    assert ("its usage lacks" in asyncio.run(start())) is is_told


def find_kinds(database: Database) -> list[str]:
    async def find() -> list[str]:
        return [row.kind for row in await database.execute(select(events).order_by(events.c.id))]

    return asyncio.run(find())


def test_an_event_of_a_former_owner_is_not_kept(shared: Database) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    log = EventLog(shared, EventSettings(), fenced=first.fence("events"))
    run(renew(first))
    log.add(make_event(1.0, "host_seen", "gpu01 was seen"), of_duty=True)
    run(log.ask(EventStore.count))
    assert find_kinds(shared) == ["host_seen"]
    run(expire(shared), renew(second))
    log.add(make_event(2.0, "host_down", "gpu01 is down"), of_duty=True)
    log.add(make_event(3.0, "hub_started", "The hub a was started"))
    run(log.ask(EventStore.count))
    assert find_kinds(shared) == ["host_seen", "hub_started"], "all hubs find the one, only this hub the other"
    assert log.waiting == 0
    assert log.problem is None


def test_a_former_owner_releases_no_reservation(shared: Database, tmp_path: Path) -> None:
    first, second = make(shared, "a"), make(shared, "b")
    clock = FakeClock(1_790_000_000.0)
    hub, auth = Hub(now=clock), Auth(shared, AuthSettings(), now=clock)
    hub.fleet.apply(make_envelope(gpus=[make_gpu()]), via="push", now=clock.now)
    log, settings = EventLog(shared, EventSettings(), now=clock), ReservationSettings(no_show=60.0)
    service = ReservationService(hub, auth, settings, log, now=clock, fenced=first.fence("reservations"))

    async def work() -> None:
        await first.renew(can_work=True, lag=None)
        draft = ReservationDraft(wanted=ReservationRequest(gpus=(make_gpu().uuid,)), length=3600.0)
        made = await service.calendar.reserve(draft, Requester("ada"), observe(hub.fleet))
        await expire(shared)
        await second.renew(can_work=True, lag=None)
        for _ in range(3):
            clock.advance(60)
            hub.fleet.apply(make_envelope(sequence=int(clock.now), gpus=[make_gpu()]), via="push", now=clock.now)
            service.reconcile()
            await service.ask_database()
        assert (kept := await service.calendar.find(made.id)) is not None
        assert kept.state_at(clock.now) == "running"
        await expire(shared)
        await first.renew(can_work=True, lag=None)
        service.reconcile()
        await service.ask_database()
        assert (gone := await service.calendar.find(made.id)) is not None
        assert gone.state_at(clock.now) == "released"

    asyncio.run(work())


def test_hubs_that_renew_at_once_never_have_the_same_duty(shared: Database) -> None:
    hubs = [make(shared, f"hub-{number}") for number in range(6)]

    async def all_at_once() -> None:
        await asyncio.gather(*(renew(hub) for hub in hubs))

    for _ in range(3):
        asyncio.run(all_at_once())
    held = [duty for hub in hubs for duty in hub.held]
    assert sorted(held) == sorted(DUTIES)


def test_the_second_of_two_hubs_with_one_name_has_no_duties(shared: Database) -> None:
    first = Leases(shared, "a", "1", DUTIES, started_at=1.0)
    second = Leases(shared, "a", "2", DUTIES, started_at=2.0)
    run(renew(first))
    with pytest.raises(NameInUse, match=r"another hub has the name a too"):
        run(renew(second))
    run(renew(first))
    assert set(first.held) == set(DUTIES)
    assert not second.held


def test_every_lease_is_in_the_table_once(shared: Database) -> None:
    one = make(shared, "a")
    run(renew(one), renew(one))

    async def count() -> int:
        return len((await shared.execute(select(cluster_leases))).all())

    assert asyncio.run(count()) == len(DUTIES)


def test_few_duties_move_when_a_hub_goes() -> None:
    names = [f"polling-{number:02}" for number in range(100)]
    before = {name: choose_owner(name, ["a", "b", "c"]) for name in names}
    after = {name: choose_owner(name, ["a", "b"]) for name in names}
    assert all(after[name] == owner for name, owner in before.items() if owner != "c")
    assert {len([name for name in names if before[name] == hub]) > 15 for hub in "abc"} == {True}
    assert len({shard_of(f"gpu{number:03}") for number in range(200)}) == module.POLLING_SHARDS


@pytest.mark.parametrize(
    ("bus", "is_right"),
    [
        ("nats://bus1:4222", True),
        ("nats://hub:secret@bus1.example,tls://bus2:4222", True),
        ("nats://", False),
        ("nats://a,,nats://b", False),
        ("http://bus1:4222", False),
        ("nats://bus1:999999", False),
    ],
)
def test_an_address_of_a_bus_is_checked(bus: str, is_right: bool) -> None:
    with contextlib.nullcontext() if is_right else pytest.raises(msgspec.ValidationError):
        assert msgspec.convert({"bus": bus}, ClusterSettings).bus == bus


@pytest.mark.parametrize(
    ("database", "kind", "told"),
    [
        (None, "prometheus", "needs `database: postgresql://"),
        ("postgresql://db/gpudeck", "embedded", "needs `history: {kind: prometheus"),
        ("postgresql://db/gpudeck", "prometheus", None),
    ],
)
def test_what_a_cluster_lacks_is_said(database: str | None, kind: str, told: str | None) -> None:
    problem = cluster_problem(ClusterSettings(bus="nats://bus:4222"), database, kind)
    assert problem is None if told is None else told in str(problem)
