"""Being told when GPUs are free: once, when they really are, and only those whom it concerns."""

import asyncio
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.offers import GIB, make_offer
from gpudeck.alerts.watches import MOST_OF_ONE, SETTLED_SECONDS, TooManyWatches, Watches, message_of
from gpudeck.database.engine import Database
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest, Watch


class Lookout:
    """Watches of one fleet, and a clock."""

    def __init__(self, database: Database, fleet: str = "real") -> None:
        self.clock = FakeClock()
        self.watches = Watches(database, fleet, now=self.clock)

    def add(self, user: str = "ada", seconds: float = 3600.0, **wanted: Any) -> Watch:
        return asyncio.run(self.watches.add(user, user, GpuRequest(**wanted), seconds))

    def evaluate(self, gpus: list[CandidateGpu], *spoken_for: str) -> list[tuple[int, list[str]]]:
        """What is found now, after it was free for a while."""
        self.watches.evaluate(gpus, spoken_for)
        self.clock.advance(SETTLED_SECONDS)
        return [(one.id, [gpu.uuid for gpu in found]) for one, found in self.watches.evaluate(gpus, spoken_for)]

    def fire(self, one: Watch, gpus: list[CandidateGpu]) -> bool:
        return asyncio.run(self.watches.fire(one, gpus))


@pytest.fixture
def selector(database: Database) -> Lookout:
    return Lookout(database)


def test_watch_finds_as_many_as_it_wants_of_what_it_wants(selector: Lookout) -> None:
    one = selector.add(gpus=2, memory_bytes=40 * GIB)
    small = [make_offer("a", index, memory_total_bytes=24 * GIB) for index in range(4)]
    large = [make_offer("b", index, memory_total_bytes=80 * GIB) for index in range(2)]
    assert selector.evaluate(small + large[:1]) == []
    assert selector.evaluate(small + large) == [(one.id, ["GPU-b-0", "GPU-b-1"])]


def test_gpus_of_several_hosts_are_not_on_one(selector: Lookout) -> None:
    selector.add(gpus=2, same_host=True)
    assert selector.evaluate([make_offer("a", 0), make_offer("b", 0)]) == []


def test_what_is_free_for_a_moment_alone_is_not_told(selector: Lookout) -> None:
    """The queue takes a step every second, and gets it first."""
    selector.add()
    free = [make_offer("a", 0)]
    assert selector.watches.evaluate(free) == []
    selector.clock.advance(SETTLED_SECONDS - 1)
    assert selector.watches.evaluate([]) == []
    selector.clock.advance(1)
    assert selector.watches.evaluate(free) == []


def test_what_somebody_in_the_queue_waits_for_is_not_free(selector: Lookout) -> None:
    selector.add()
    assert selector.evaluate([make_offer("a", 0)], "GPU-a-0") == []


def test_what_is_reserved_is_free_for_whom_it_is_reserved(selector: Lookout) -> None:
    ada, _ = selector.add("ada"), selector.add("bob")
    assert selector.evaluate([make_offer("a", 0, reserved_by="ada")]) == [(ada.id, ["GPU-a-0"])]


def test_what_is_taken_or_lost_is_not_free(selector: Lookout) -> None:
    selector.add()
    assert selector.evaluate([make_offer("a", 0, state="taken"), make_offer("a", 1, state="lost")]) == []


def test_watch_fires_once_also_with_several_hubs_and_is_shown_for_a_while(database: Database) -> None:
    here, there = Lookout(database), Lookout(database)
    one = here.add()
    asyncio.run(there.watches.load())
    free = [make_offer("a", 0)]
    assert (here.fire(one, free), there.fire(one, free)) == (True, False)
    assert here.evaluate(free) == there.evaluate(free) == []
    (shown,) = there.watches.list_of("ada")
    assert (shown.fired_at is not None, [gpu.host for gpu in shown.found]) == (True, ["a"])
    here.clock.advance(8 * 86_400)
    asyncio.run(here.watches.load())
    assert here.watches.list_of() == []


def test_watch_is_over_when_its_time_is(selector: Lookout) -> None:
    selector.add(seconds=60.0)
    selector.clock.advance(61)
    assert selector.evaluate([make_offer("a", 0)]) == []
    assert selector.watches.list_of() == []


def test_watches_are_known_after_a_restart_those_of_each_fleet(database: Database) -> None:
    one = Lookout(database).add(gpus=2, model="H200", memory_bytes=10 * GIB, same_host=True)
    again, demo = Lookout(database), Lookout(database, "demo-6")
    asyncio.run(again.watches.load())
    asyncio.run(demo.watches.load())
    assert (again.watches.list_of("ada"), demo.watches.list_of()) == ([one], [])


def test_watch_for_the_same_again_replaces_it_and_there_is_an_end(selector: Lookout) -> None:
    first = selector.add(gpus=1)
    second = selector.add(gpus=1)
    assert [one.id for one in selector.watches.list_of()] == [second.id] != [first.id]
    for number in range(2, MOST_OF_ONE + 1):
        selector.add(gpus=number)
    with pytest.raises(TooManyWatches, match="ada watches for 50 things already"):
        selector.add(gpus=1000)
    selector.add("bob")


def test_removed_watch_tells_nobody(selector: Lookout) -> None:
    one = selector.add()
    assert asyncio.run(selector.watches.remove(one.id)) is True
    assert asyncio.run(selector.watches.remove(one.id)) is False
    assert selector.evaluate([make_offer("a", 0)]) == []


def test_message_is_for_the_person_alone_and_has_a_key_of_the_watch(selector: Lookout) -> None:
    message = message_of(selector.add(gpus=2), [make_offer("a", 0), make_offer("a", 1)], 5.0)
    assert (message.key, message.accounts, message.is_personal) == ("watch 1", ("ada",), True)
    assert message.title == "2 GPUs are free"
    assert message.lines[0].startswith("a, GPU 0:")
