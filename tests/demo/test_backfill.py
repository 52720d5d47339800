"""The demo's past comes through a pipe, waits for room, and ends with the hub."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fakes.waiting import wait_until
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.backfill import Backfill, frames, is_needed, mark_done
from gpudeck.demo.past import DAY, HOUR, sample_span, slices
from gpudeck.history.sample import HostSample

NOON = 1_760_356_800.0
COMMAND = [sys.executable, "-m", "gpudeck.demo.backfill", "--hosts=2", f"--until={NOON}"]


def children() -> list[psutil.Process]:
    """Those that run: other tests of this process may have left one that is not reaped yet."""
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in running if "gpudeck.demo.backfill" in child.cmdline()]


async def fill(since: float, take: Callable[[list[HostSample]], None], has_room: Callable[[], bool]) -> None:
    done = asyncio.Event()
    backfill = Backfill(2, until=NOON, since=since, when_done=done.set)
    backfill.start(take, has_room)
    await asyncio.wait_for(done.wait(), 60)
    await backfill.stop()


def test_everything_arrives_newest_first_and_unchanged() -> None:
    batches: list[list[HostSample]] = []
    asyncio.run(fill(NOON - 30 * HOUR, batches.append, lambda: True))
    fleet = SimulatedFleet(2, seed=1)
    spans = slices(NOON - 30 * HOUR, NOON, 60.0, 300.0)
    assert batches == [sample_span(fleet, host, span) for span in spans for host in range(2)]


def test_nothing_is_taken_while_there_is_no_room() -> None:
    answers = iter([False, False, False])
    asked: list[bool] = []
    batches: list[tuple[int, int]] = []

    def has_room() -> bool:
        asked.append(next(answers, True))
        return asked[-1]

    def take(batch: list[HostSample]) -> None:
        batches.append((len(batch), len(asked)))

    asyncio.run(fill(NOON - HOUR, take, has_room))
    assert [size for size, _ in batches] == [60, 60]
    assert all(before > 3 for _, before in batches)


def test_a_frame_is_small_and_the_last_of_a_batch_is_marked() -> None:
    samples = sample_span(SimulatedFleet(2, seed=1), 0, next(slices(NOON - DAY, NOON, 60.0, 300.0)))
    heads = [frame[:5] for frame in frames(samples)]
    assert len(heads) * 256 >= len(samples) * len(samples[0].gpus)
    assert [head[4] for head in heads] == [0] * (len(heads) - 1) + [1]
    assert list(frames([])) == []


def test_a_store_that_misses_nothing_gets_nothing() -> None:
    async def go() -> None:
        backfill = Backfill(2, until=NOON, since=NOON - 30)
        backfill.start(lambda _: pytest.fail("there was nothing to fill"), lambda: True)
        assert children() == []
        await backfill.stop()

    asyncio.run(go())


def test_stopping_ends_the_child() -> None:
    async def go() -> None:
        taken = asyncio.Event()
        backfill = Backfill(24, until=NOON, when_done=lambda: pytest.fail("it was stopped before the end"))
        backfill.start(lambda _: taken.set(), lambda: True)
        await asyncio.wait_for(taken.wait(), 60)
        assert len(children()) == 1
        await backfill.stop()
        assert children() == []

    asyncio.run(go())


def test_the_child_ends_when_the_hub_is_gone_and_says_nothing() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.read(5)
        child.stdout.close()
        wait_until(lambda: child.poll() is not None, "the child's end")
        assert child.stderr.read() == b""


def test_the_child_gives_way_to_everything_else() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(5)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
        child.kill()


def test_a_child_that_fails_is_told_and_not_taken_for_done(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        backfill = Backfill(24, until=NOON, when_done=lambda: pytest.fail("it failed"))
        backfill.start(lambda _: children()[0].kill(), lambda: True)
        await asyncio.wait_for(asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}), 60)

    asyncio.run(go())
    assert "some of the charts stay empty" in caplog.text


def test_what_was_made_once_is_not_made_again(tmp_path: Path) -> None:
    assert is_needed(tmp_path, 24)
    mark_done(tmp_path, 24)
    assert not is_needed(tmp_path, 24)
    assert is_needed(tmp_path, 8)
    assert is_needed(tmp_path, 24, days=3)


def test_without_a_demo_nothing_is_made_up(tmp_path: Path) -> None:
    assert not is_needed(tmp_path, None)
