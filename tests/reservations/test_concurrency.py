"""Many who want the same GPU at the same moment: exactly one gets it, on SQLite and on PostgreSQL."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.database.engine import Database, open_database
from gpudeck.model.reservation import Reservation
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.requests import Change, Requester, ReservationChanged, ReservationRefused
from gpudeck.reservations.store import ReservationQuery
from reservations.fleet import ADA, FLEET, HOUR, NOW, draft, make_calendar

PEOPLE = [Requester(f"user{number}") for number in range(100)]


async def open_hubs(address: str | None, folder: Path, count: int = 2) -> list[Database]:
    """Several hubs with connections of their own: they agree by the database alone."""
    return [await open_database(address, folder) for _ in range(count)]


@pytest.mark.parametrize("uuids", [("A0",), ("A0", "A1")])
def test_of_a_hundred_who_reserve_one_gpu_at_once_one_wins(
    database_address: str | None, tmp_path: Path, uuids: tuple[str, ...]
) -> None:
    async def compete() -> tuple[list[object], list[Reservation]]:
        hubs = await open_hubs(database_address, tmp_path)
        calendars = [make_calendar(hub) for hub in hubs]
        # Half of them want it from an hour later on, which is no other time.
        tries = [
            calendars[number % 2].reserve(draft(*uuids, start=number % 4, hours=8), person, FLEET)
            for number, person in enumerate(PEOPLE)
        ]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        kept = await calendars[0].search(ReservationQuery())
        for hub in hubs:
            await hub.close()
        return answers, kept

    answers, kept = asyncio.run(compete())
    assert Counter(map(type, answers)) == {Reservation: 1, Conflict: 99}
    assert kept == [answer for answer in answers if isinstance(answer, Reservation)]


def test_any_gpus_are_given_to_each_once(database_address: str | None, tmp_path: Path) -> None:
    async def compete() -> list[object]:
        hubs = await open_hubs(database_address, tmp_path)
        tries = [make_calendar(hubs[n % 2]).reserve(draft(count=1), PEOPLE[n], FLEET) for n in range(20)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        for hub in hubs:
            await hub.close()
        return answers

    answers = asyncio.run(compete())
    won = [answer for answer in answers if isinstance(answer, Reservation)]
    assert sorted(gpu.uuid for one in won for gpu in one.gpus) == sorted(FLEET)
    assert len([answer for answer in answers if isinstance(answer, Conflict)]) == 16


def test_own_reservations_at_once_do_not_exceed_the_limit_together(
    database_address: str | None, tmp_path: Path
) -> None:
    async def compete() -> list[object]:
        hubs = await open_hubs(database_address, tmp_path)
        calendars = [make_calendar(hub, most_gpus=2) for hub in hubs]
        tries = [calendars[n % 2].reserve(draft(uuid), ADA, FLEET) for n, uuid in enumerate(FLEET)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        for hub in hubs:
            await hub.close()
        return answers

    assert Counter(map(type, asyncio.run(compete()))) == {Reservation: 2, ReservationRefused: 2}


def test_of_two_edits_at_once_the_second_sees_the_newer_version(database_address: str | None, tmp_path: Path) -> None:
    async def compete() -> list[object]:
        hubs = await open_hubs(database_address, tmp_path)
        calendars = [make_calendar(hub) for hub in hubs]
        made = await calendars[0].reserve(draft("A0"), ADA, FLEET)
        changes = [Change(version=1, end=NOW + hours * HOUR) for hours in (5, 6)]
        edits = [one.change(made.id, change, ADA, FLEET) for one, change in zip(calendars, changes, strict=True)]
        answers = await asyncio.gather(*edits, return_exceptions=True)
        for hub in hubs:
            await hub.close()
        return answers

    answers = asyncio.run(compete())
    (refused,) = [answer for answer in answers if isinstance(answer, ReservationChanged)]
    assert (refused.code, refused.newer.version) == ("changed", 2)


def test_of_fifty_claims_none_shares_a_gpu(database_address: str | None, tmp_path: Path) -> None:
    async def compete() -> list[object]:
        hubs = await open_hubs(database_address, tmp_path)
        calendars = [make_calendar(hub, FakeClock(NOW)) for hub in hubs]
        gpus = [gpu.reserved for gpu in FLEET.values()]
        # The same person waits many times: each time for another process.
        tries = [calendars[n % 2].claim([gpus[n % 4]], "ada", 120) for n in range(50)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        for hub in hubs:
            await hub.close()
        return answers

    answers = asyncio.run(compete())
    assert Counter(map(type, answers)) == {int: 4, Conflict: 46}


def test_reservations_of_a_simulated_fleet_are_apart(database: Database) -> None:
    async def ask() -> tuple[int, int]:
        simulated = make_calendar(database, fleet="demo-24")
        await simulated.reserve(draft("A0"), ADA, FLEET)
        real = make_calendar(database)
        return len(await real.search(ReservationQuery())), len(await simulated.search(ReservationQuery()))

    assert asyncio.run(ask()) == (0, 1)
