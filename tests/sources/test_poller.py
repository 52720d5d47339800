"""Every host is read on its own: who is slow, dead or mad harms nobody."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fakes.reports import make_envelope
from fakes.waiting import until
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.sources import poller
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.poller import Poller, PollMethod


class FakeSource:
    """Does what its station says about the host."""

    def __init__(self, target: Target, station: "Station") -> None:
        self.target = target
        self.station = station
        self.reading = 0
        self.closed = 0

    async def read(self, now: float) -> FetchedReport:
        self.reading += 1
        self.station.most_at_once = max(self.station.most_at_once, self.reading)
        try:
            await asyncio.sleep(self.station.takes.get(self.target.name, 0.0))
        finally:
            self.reading -= 1
        failure = self.station.failures.get(self.target.name)
        if failure is not None:
            raise failure
        return FetchedReport(make_envelope(self.target.name, collected_at=now))

    async def close(self) -> None:
        self.closed += 1


class Station:
    """A poller over fake sources, and what came of it."""

    def __init__(self) -> None:
        self.takes: dict[str, float] = {}
        self.failures: dict[str, Exception] = {}
        self.taken: list[str] = []
        self.reasons: dict[str, str | None] = {}
        self.sources: list[FakeSource] = []
        self.unwanted: set[str] = set()
        self.most_at_once = 0
        self.poller = Poller({"ssh": PollMethod(self.make, 0.02, 0.3)}, self.deliver, self.note)

    def make(self, target: Target) -> FakeSource:
        if target.port == 1:
            raise UsageError("port 1 is nobody's.")
        self.sources.append(FakeSource(target, self))
        return self.sources[-1]

    def deliver(self, target: Target, arrival: FetchedReport) -> bool:
        self.taken.append(arrival.envelope.host)
        return target.name not in self.unwanted

    def note(self, target: Target, reason: str | None) -> None:
        self.reasons[target.name] = reason

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)


@asynccontextmanager
async def station(*names: str) -> AsyncIterator[Station]:
    made = Station()
    made.poller.watch([Target(name=name) for name in names])
    try:
        yield made
    finally:
        await made.poller.stop()


def test_every_host_is_read_again_and_again() -> None:
    async def scene() -> None:
        async with station("a", "b") as hub:
            await hub.until(lambda: hub.taken.count("a") > 2 and hub.taken.count("b") > 2)

    asyncio.run(scene())


def test_source_that_gives_up_at_its_deadline_says_why_itself() -> None:
    async def scene() -> None:
        async with station("slow") as hub:
            hub.takes["slow"], hub.failures["slow"] = 0.3, Temporary("port 7080 of slow is mute.")
            await hub.until(lambda: "slow" in hub.reasons)
            assert hub.reasons["slow"] == "port 7080 of slow is mute."

    asyncio.run(scene())


def test_host_that_hangs_delays_nobody_and_is_told_to_have_missed_its_deadline() -> None:
    async def scene() -> None:
        async with station("a", "hung") as hub:
            hub.takes["hung"] = 100.0
            await hub.until(lambda: "hung" in hub.reasons)
            assert hub.reasons["hung"] == "It did not answer within 0.3 s."
            assert hub.taken.count("a") > 5
            assert "hung" not in hub.taken

    asyncio.run(scene())


def test_slow_host_is_never_read_twice_at_once() -> None:
    async def scene() -> None:
        async with station("slow") as hub:
            hub.takes["slow"] = 0.1
            await hub.until(lambda: len(hub.taken) > 2)
            assert hub.most_at_once == 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Temporary("gpu1 is down.", "Start it."), "gpu1 is down. Start it."),
        (ValueError("x"), "Reading it failed (ValueError); the hub's log has the details."),
    ],
)
def test_failure_is_told_with_its_reason_and_taken_back_when_it_is_over(failure: Exception, told: str) -> None:
    async def scene() -> None:
        async with station("gpu1") as hub:
            hub.failures["gpu1"] = failure
            await hub.until(lambda: hub.reasons.get("gpu1") == told)
            hub.failures.clear()
            await hub.until(lambda: hub.taken)
            assert hub.reasons["gpu1"] is None

    asyncio.run(scene())


def test_target_that_cannot_be_read_that_way_is_told() -> None:
    async def scene() -> None:
        async with station() as hub:
            hub.poller.watch([Target(name="a", port=1), Target(name="b")])
            await hub.until(lambda: hub.taken and hub.reasons)
            assert hub.reasons == {"a": "port 1 is nobody's."}

    asyncio.run(scene())


def test_targets_come_and_go_and_one_that_stays_keeps_its_connection() -> None:
    async def scene() -> None:
        async with station("a", "b") as hub:
            await hub.until(lambda: len(hub.sources) == 2)
            hub.poller.watch([Target(name="b"), Target(name="c")])
            await hub.until(lambda: "c" in hub.taken)
            assert [source.target.name for source in hub.sources] == ["a", "b", "c"]
            assert [source.closed for source in hub.sources] == [1, 0, 0]

    asyncio.run(scene())


def test_target_that_changed_is_reached_anew() -> None:
    async def scene() -> None:
        async with station("a") as hub:
            await hub.until(lambda: hub.taken)
            hub.poller.watch([Target(name="a", user="root")])
            await hub.until(lambda: len(hub.sources) == 2)
            await hub.until(lambda: hub.sources[0].closed)
            assert hub.sources[1].target.user == "root"

    asyncio.run(scene())


def test_host_on_a_better_way_is_still_asked_now_and_then() -> None:
    async def scene() -> None:
        async with station("a") as hub:
            hub.unwanted.add("a")
            await hub.until(lambda: len(hub.taken) > 2)

    asyncio.run(scene())


def test_stop_closes_every_source_even_in_the_middle_of_a_reading() -> None:
    async def scene() -> None:
        async with station("a", "b") as hub:
            hub.takes = {"a": 100.0, "b": 100.0}
            await hub.until(lambda: sum(source.reading for source in hub.sources) == 2)
        assert [source.closed for source in hub.sources] == [1, 1]

    asyncio.run(scene())


class Circle:
    """An object that refers to itself, as a connection and its protocol do."""

    def __init__(self) -> None:
        self.itself = self


def test_what_failed_readings_leave_behind_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Circle]] = []

    class Leaving(FakeSource):
        async def read(self, now: float) -> FetchedReport:
            left.append(weakref.ref(Circle()))
            raise Temporary("it answers more than 1 MiB.")

    async def scene() -> None:
        async with station() as hub:
            way = PollMethod(lambda target: Leaving(target, hub), 0.02, 0.3)
            leaving = Poller({"ssh": way}, hub.deliver, hub.note)
            leaving.watch([Target(name="endless")])
            await hub.until(lambda: any(circle() is None for circle in left))
            await leaving.stop()

    monkeypatch.setattr(poller, "SWEEP_PAUSE", 0.0)
    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()
