"""The line in a real database: who comes, waits, is served, starts, is forgotten; and what a new hub knows of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.offers import FakeClaims, make_offer
from gpudeck.database.engine import Database
from gpudeck.model.errors import Temporary
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest, QueuePosition
from gpudeck.queueing import queue as module
from gpudeck.queueing.queue import QueueFull, QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings

GPUS = [make_offer(index=index) for index in range(2)]
BUSY = [make_offer(index=index, state="taken", users=frozenset({"zoe"})) for index in range(2)]


class Line:
    """A queue with a clock and claims that a test knows."""

    def __init__(self, database: Database, clock: FakeClock | None = None, claims: FakeClaims | None = None) -> None:
        self.clock = clock or FakeClock()
        self.claims = claims or FakeClaims()
        self.database = database
        self.queue = WaitQueue(QueueStore(database), QueueSettings(), self.claims, now=self.clock)

    async def join(self, name: str = "ada", **wanted: Any) -> QueuePosition:
        return await self.queue.join(f"key of {name}", name, None, GpuRequest(**wanted))

    async def granted(self, place: QueuePosition) -> list[str] | None:
        now = await self.queue.ask(place.id)
        assert now is not None
        return None if now.granted is None else [gpu.uuid for gpu in now.granted.gpus]

    async def again(self) -> "Line":
        """The same after a restart of the hub."""
        line = Line(self.database, self.clock, self.claims)
        await line.queue.load()
        return line


def play(database: Database, story: Callable[[Line], Awaitable[None]]) -> None:
    asyncio.run(story(Line(database)))  # type: ignore[arg-type]


def test_who_comes_first_is_served_and_the_others_move_up(database: Database) -> None:
    async def story(line: Line) -> None:
        places = [await line.join(name) for name in ("ada", "bob", "eve")]
        assert [place.position for place in places] == [1, 2, 3]
        await line.queue.step(GPUS)
        assert [await line.granted(place) for place in places] == [["GPU-gpu01-0"], ["GPU-gpu01-1"], None]
        assert [place.position for place in line.queue.list()] == [None, None, 1]
        assert (line.claims.users, len(line.claims.claimed)) == (["ada", "bob"], 2)

    play(database, story)


def test_same_key_is_the_same_place_and_never_somebody_elses(database: Database) -> None:
    async def story(line: Line) -> None:
        first, second = await line.join("ada"), await line.join("ada", gpus=2)
        assert (first.id, first.wanted) == (second.id, second.wanted)
        with pytest.raises(QueueFull, match="another user's request has that key"):
            await line.queue.join("key of ada", "bob", None, GpuRequest())

    play(database, story)


def test_claim_ends_when_the_process_of_whoever_waited_is_on_all_of_its_gpus(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada", gpus=2)
        await line.queue.step(GPUS)
        half = [make_offer(index=0, state="taken", users=frozenset({"ada"})), GPUS[1]]
        await line.queue.step(half)
        assert (line.claims.claimed, await line.granted(place)) == (
            {1: ["GPU-gpu01-0", "GPU-gpu01-1"]},
            line.claims.claimed[1],
        )
        await line.queue.step(
            [make_offer(index=index, state="taken", users=frozenset({"ada", "root"})) for index in (0, 1)]
        )
        assert (line.claims.claimed, await line.queue.ask(place.id)) == ({}, None)

    play(database, story)


def test_process_of_somebody_else_does_not_end_a_claim(database: Database) -> None:
    async def story(line: Line) -> None:
        await line.join("ada", gpus=2)
        await line.queue.step(GPUS)
        await line.queue.step(BUSY)
        assert len(line.claims.claimed) == 1

    play(database, story)


def test_claim_ends_after_its_time_and_the_next_is_served(database: Database) -> None:
    async def story(line: Line) -> None:
        first, second = await line.join("ada", gpus=2), await line.join("bob", gpus=2)
        await line.queue.step(GPUS)
        for _ in range(4):
            line.clock.now += 30
            await line.granted(second)
            await line.queue.step(GPUS)
        assert (await line.queue.ask(first.id), list(line.claims.claimed)) == (None, [2])
        assert await line.granted(second) == line.claims.claimed[2]

    play(database, story)


async def start_slowly(line: Line, place: QueuePosition, minutes: int) -> None:
    """The command of that place runs, and is on no GPU for so long."""
    for _ in range(6 * minutes):
        line.clock.now += 10
        known = await line.queue.ask(place.id)
        await line.queue.ask(place.id, 0.0, "" if known is None else known.version)
        await line.queue.step(GPUS)


def test_claim_lasts_while_the_command_runs_and_is_not_on_its_gpus_yet(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada", gpus=2)
        await line.queue.step(GPUS)
        await start_slowly(line, place, 10)
        assert await line.granted(place) == line.claims.claimed[1]
        assert line.claims.extended[1] > line.clock.now
        again = await line.again()
        assert await again.granted(place) == line.claims.claimed[1]
        line.clock.now += 121
        await again.queue.step(GPUS)
        assert (await again.queue.ask(place.id), line.claims.claimed) == (None, {})

    play(database, story)


def test_command_that_never_comes_to_its_gpus_does_not_keep_them_claimed_for_ever(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada", gpus=2)
        await line.queue.step(GPUS)
        await start_slowly(line, place, 29)
        assert len(line.claims.claimed) == 1
        await start_slowly(line, place, 1)
        assert (await line.queue.ask(place.id), line.claims.claimed) == (None, {})

    play(database, story)


def test_claim_is_not_extended_into_somebody_elses_reservation(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada", gpus=2)
        await line.queue.step(GPUS)
        line.claims.refused = {"GPU-gpu01-1"}
        await start_slowly(line, place, 2)
        assert (await line.queue.ask(place.id), line.claims.claimed) == (None, {})

    play(database, story)


def test_who_leaves_gives_up_place_and_claim(database: Database) -> None:
    async def story(line: Line) -> None:
        first, second = await line.join("ada", gpus=2), await line.join("bob", gpus=2)
        await line.queue.step(GPUS)
        assert await line.queue.leave(first.id)
        assert not await line.queue.leave(first.id)
        assert line.claims.claimed == {}
        await line.queue.step(GPUS)
        assert await line.granted(second) is not None

    play(database, story)


def test_who_is_not_heard_of_is_forgotten_and_who_is_keeps_the_place(database: Database) -> None:
    async def story(line: Line) -> None:
        silent, heard = await line.join("ada"), await line.join("bob")
        line.clock.now += 50
        await line.queue.ask(heard.id)
        line.clock.now += 11
        await line.queue.step(BUSY)
        assert [place.id for place in line.queue.list()] == [heard.id]
        assert await line.queue.ask(silent.id) is None

    play(database, story)


def test_restart_of_the_hub_loses_nobody_however_long_it_took(database: Database) -> None:
    async def story(line: Line) -> None:
        places = [await line.join(name, gpus=2) for name in ("ada", "bob", "eve")]
        await line.queue.step(GPUS)
        before = [place.id for place in line.queue.list()]
        line.clock.now += 90
        again = await line.again()
        assert [place.id for place in again.queue.list()] == before
        await again.queue.step(GPUS)
        assert await again.granted(places[0]) == ["GPU-gpu01-0", "GPU-gpu01-1"]
        line.clock.now += 31
        await again.granted(places[1])
        await again.queue.step(GPUS)
        assert await again.granted(places[1]) == ["GPU-gpu01-0", "GPU-gpu01-1"]

    play(database, story)


def test_gpu_that_cannot_be_claimed_is_left_alone_for_a_while(database: Database) -> None:
    async def story(line: Line) -> None:
        line.claims.refused = {"GPU-gpu01-0"}
        place = await line.join("ada")
        await line.queue.step(GPUS)
        assert await line.granted(place) is None
        await line.queue.step(GPUS)
        assert await line.granted(place) == ["GPU-gpu01-1"]

    play(database, story)


def test_claims_that_cannot_be_written_grant_nothing_and_lose_nobody(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada")
        line.claims.is_away = True
        with pytest.raises(Temporary):
            await line.queue.step(GPUS)
        assert await line.granted(place) is None
        line.claims.is_away = False
        await line.queue.step(GPUS)
        assert await line.granted(place) == ["GPU-gpu01-0"]

    play(database, story)


def test_question_stays_open_until_the_turn_comes(database: Database) -> None:
    async def story(line: Line) -> None:
        await line.join("ada", gpus=2)
        second = await line.join("bob")
        await line.queue.step(BUSY)
        place = await line.queue.ask(second.id)
        assert place is not None
        asking = asyncio.create_task(line.queue.ask(second.id, 20.0, place.version))
        await asyncio.sleep(0)
        await line.queue.step([GPUS[0], BUSY[1]])
        answer = await asyncio.wait_for(asking, 10)
        assert answer is not None
        assert answer.granted is not None

    play(database, story)


def test_open_questions_are_answered_when_the_hub_stops(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada")
        asking = asyncio.create_task(line.queue.ask(place.id, 20.0, place.version))
        await asyncio.sleep(0)
        await line.queue.stop()
        assert await asyncio.wait_for(asking, 10) is not None

    play(database, story)


def test_what_is_in_the_way_is_told(database: Database) -> None:
    async def story(line: Line) -> None:
        await line.queue.step([])
        await line.join("ada", model="H900")
        assert [place.reason for place in line.queue.list()] == [None]
        await line.join("bob")
        await line.queue.step([])
        assert {place.reason for place in line.queue.list()} == {"no host has reported a GPU yet"}
        await line.queue.step(BUSY)
        first, second = line.queue.list()
        assert first.reason == "no GPU of the fleet is called H900, so this request can never be met"
        assert (first.impossible, second.impossible) == (first.reason, None)
        assert (second.reason, second.estimate_seconds) == (None, None)
        assert second.estimate_reason == "this hub keeps no history of how long GPUs are in use"

    play(database, story)


def test_host_that_has_not_reported_may_have_what_is_requested(database: Database) -> None:
    async def story(line: Line) -> None:
        await line.join("ada", model="H900")
        await line.join("bob", host="nosuch")
        await line.queue.step(BUSY, {"gpu99"})
        assert [place.impossible for place in line.queue.list()] == [
            None,
            "there is no host nosuch with GPUs, so this request can never be met",
        ]
        assert line.queue.list()[0].reason == "no host that reports has 1 GPU called H900 in working order"

    play(database, story)


def test_what_is_kept_for_the_first_is_told_to_all(database: Database) -> None:
    async def story(line: Line) -> None:
        place = await line.join("ada", gpus=2)
        for _ in range(12):
            line.clock.now += 50
            await line.granted(place)
            await line.queue.step([GPUS[0], BUSY[1]])
        assert (line.queue.claimed, line.queue.list()[0].claimed) == ({"GPU-gpu01-0": place.id}, 1)

    play(database, story)


def test_line_is_only_so_long(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_ONE", 1)
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def story(line: Line) -> None:
        await line.join("ada")
        with pytest.raises(QueueFull, match="ada waits 1 times already"):
            await line.queue.join("another key", "ada", None, GpuRequest())
        await line.join("bob")
        with pytest.raises(QueueFull, match="2 wait already"):
            await line.join("eve")

    play(database, story)


def test_two_hubs_with_one_database_never_grant_twice(database: Database) -> None:
    """On SQLite there is one hub; both look at the same table all the same."""

    async def story(line: Line) -> None:
        places = [await line.join(f"user{number}") for number in range(6)]
        other = await line.again()
        gpus: list[CandidateGpu] = [make_offer(index=index) for index in range(8)]
        await asyncio.gather(line.queue.step(gpus), other.queue.step(gpus))
        found = [one.granted for one in await QueueStore(database).list()]
        assert len(found) == len(places)
        assert all(found)
        claims = {granted.claim for granted in found if granted is not None}
        assert set(line.claims.claimed) == claims

    play(database, story)
