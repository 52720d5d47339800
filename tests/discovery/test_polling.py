"""The hosts that a hub watches by itself, while the lists that name them change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from discovery.script import ScriptedProvider
from fakes.waiting import until
from gpudeck.discovery.host_names import quote
from gpudeck.discovery.managed import ORIGIN
from gpudeck.discovery.service import PollingService
from gpudeck.fleet.hub import Hub
from gpudeck.model.cpu_budget import Steps
from gpudeck.model.target import Target


def named(*names: str, origin: str = "list") -> list[Target]:
    return [Target(name=name, via="push", origin=origin) for name in names]


@asynccontextmanager
async def watching(hub: Hub, *lists: ScriptedProvider, grace: float = 60.0) -> AsyncIterator[PollingService]:
    started = PollingService(hub, lists, {}, grace=grace)
    started.start()
    try:
        yield started
    finally:
        await started.stop()


def shown(hub: Hub) -> set[str]:
    return set(hub.fleet.hosts)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await work()

    asyncio.run(go())


def test_host_that_moves_from_one_list_to_another_stays_whichever_is_read_first() -> None:
    async def work() -> None:
        hub = Hub()
        left, right = ScriptedProvider(named("a", "b"), pause=0.01), ScriptedProvider(named("c"), pause=0.01)
        async with watching(hub, left, right) as watched:
            await until(lambda: shown(hub) == {"a", "b", "c"}, "the lists")
            moved = hub.fleet.hosts["b"]
            left.then(named("a"))
            await until(lambda: watched.find("b") is None, "the removal")
            assert shown(hub) == {"a", "b", "c"}
            right.then(named("b", "c", origin="other"))
            await until(lambda: watched.find("b") is not None, "the move")
            assert hub.fleet.hosts["b"] is moved

    run(work)


def test_host_that_no_list_names_any_more_goes_after_a_while() -> None:
    async def work() -> None:
        hub = Hub()
        only = ScriptedProvider(named("a", "b"), named("a"), pause=0.01)
        async with watching(hub, only, grace=0.1):
            await until(lambda: shown(hub) == {"a", "b"}, "the list")
            await until(lambda: shown(hub) == {"a"}, "the removal")

    run(work)


def test_hosts_that_leave_a_list_together_are_one_change_of_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        hub = Hub()
        changes = 0
        expect = hub.fleet.expect_in_steps

        def count(targets: list[Target]) -> Steps[None]:
            nonlocal changes
            changes += 1
            return expect(targets)

        monkeypatch.setattr(hub.fleet, "expect_in_steps", count)
        names = [f"gpu{number:03}" for number in range(300)]
        only = ScriptedProvider(named("a", *names), named("a"), pause=0.01)
        async with watching(hub, only, grace=0.1):
            await until(lambda: len(shown(hub)) == 301, "the list")
            await until(lambda: shown(hub) == {"a"}, "the removal")
        assert changes == 3

    run(work)


async def sizes(hub: Hub, until: int) -> set[int]:
    """How many hosts others see in their turns until there are so many."""
    seen = {len(hub.fleet.hosts)}
    async with asyncio.timeout(10):
        while len(hub.fleet.hosts) != until:
            await asyncio.sleep(0)
            seen.add(len(hub.fleet.hosts))
            assert len(hub.fleet.targets) == len(hub.fleet.hosts) == hub.fleet.totals().hosts
    return seen


def test_others_have_their_turn_while_a_long_list_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr("gpudeck.model.cpu_budget.SLICE_SECONDS", 0.0)
        hub = Hub()
        names = [f"gpu{number:03}" for number in range(300)]
        only = ScriptedProvider(named(*names), pause=0.01)
        async with watching(hub, only, grace=0.01):
            assert len(await sizes(hub, 300)) > 290
            only.then(named("gpu000"))
            assert len(await sizes(hub, 1)) > 290

    run(work)


def test_a_newer_list_takes_the_place_of_one_that_is_not_applied_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr("gpudeck.model.cpu_budget.SLICE_SECONDS", 0.0)
        hub = Hub()
        names = [f"gpu{number:03}" for number in range(300)]
        only = ScriptedProvider(named(*names, origin=ORIGIN), pause=0.01)
        async with watching(hub, only):
            await sizes(hub, 100)
            only.then(named("a", "gpu001", origin=ORIGIN))
            await until(lambda: shown(hub) == {"a", "gpu001"}, "the newer list")
            assert [target.name for target in hub.fleet.targets] == ["a", "gpu001"]

    run(work)


@pytest.mark.parametrize("secret", ["password=hunter2", 'it\'s "hunter2"', "hunter2\n" * 99, "\\hunter2'"])
def test_entry_that_makes_no_sense_is_for_the_log_and_not_for_everybody(
    secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    watched = PollingService(hub := Hub(), [], {})
    watched.note_problems([f"hosts.txt, line 2: {quote(secret)} is no host"])
    assert hub.fleet.problems == ["hosts.txt, line 2: an entry is no host"]
    assert "hunter2" in caplog.text


def test_host_that_a_person_removed_goes_at_once() -> None:
    async def work() -> None:
        hub = Hub()
        book = ScriptedProvider(named("a", "b", origin=ORIGIN), named("a", origin=ORIGIN), pause=0.01)
        async with watching(hub, book):
            await until(lambda: shown(hub) == {"a", "b"}, "the book")
            await until(lambda: shown(hub) == {"a"}, "the removal")

    run(work)
