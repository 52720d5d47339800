"""Leases on a real PostgreSQL: one owner at a time, whatever hubs do."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, text

from database_fixtures import connect
from fakes.postgres import PostgresServer
from gpudeck.cluster import leases as module
from gpudeck.cluster.leases import Leases, LostDuty, NameInUse, choose_owner, shard_of
from gpudeck.cluster.settings import ClusterSettings, cluster_problem
from gpudeck.database.engine import Database
from gpudeck.database.schema import cluster_leases, personal_mutes

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
