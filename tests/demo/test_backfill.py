"""The demo's past is made by a child, once, and ends with the hub."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fakes.waiting import wait_until
from gpudeck.child_process import python_module
from gpudeck.demo.backfill import Backfill
from gpudeck.history.settings import DEMO_FILE
from gpudeck.model.event import Event

NOON = 1_760_356_800.0


def children() -> list[psutil.Process]:
    """Those that run: other tests of this process may have left one that is not reaped yet."""
    running = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in running if "gpudeck.demo.past_file" in child.cmdline()]


async def make(folder: Path, until: float = NOON, days: float = 1.0) -> tuple[list[Event], list[list[str]]]:
    events, said = list[Event](), list[list[str]]()
    past = Backfill(2, folder, until=until, days=days)
    past.report_to(said.append, events.append)
    past.start()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    past.wait()
    await past.close()
    return events, said


def test_the_file_is_made_once_and_says_so(tmp_path: Path) -> None:
    events, said = asyncio.run(make(tmp_path))
    assert {event.kind for event in events} >= {"host_seen"}
    assert [bool(one) for one in said] == [True, False]
    file = tmp_path / DEMO_FILE.format(2)
    first = file.stat().st_mtime_ns
    assert asyncio.run(make(tmp_path, NOON + 60))[0] == []
    assert file.stat().st_mtime_ns == first


@pytest.mark.parametrize(("until", "days"), [(NOON + 7200, 1.0), (NOON, 2.0)])
def test_a_demo_that_was_away_or_wants_more_days_gets_all_of_it_anew(tmp_path: Path, until: float, days: float) -> None:
    asyncio.run(make(tmp_path))
    assert asyncio.run(make(tmp_path, until, days))[0]
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".new"] == []


def test_without_days_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    Backfill(2, tmp_path, until=NOON, days=0).wait()
    assert not list(tmp_path.iterdir())


def test_stopping_ends_the_child_and_the_wait(tmp_path: Path) -> None:
    async def go() -> None:
        past = Backfill(24, tmp_path, until=NOON)
        waiting = threading.Thread(target=past.wait)
        waiting.start()
        begun = asyncio.Event()
        past.report_to(lambda _: begun.set(), lambda _: pytest.fail("it was stopped before the end"))
        past.start()
        await asyncio.wait_for(begun.wait(), 60)
        await past.close()
        assert children() == []
        await asyncio.to_thread(waiting.join, 60)
        assert not waiting.is_alive()

    asyncio.run(go())


def test_a_hub_that_is_killed_leaves_no_child(tmp_path: Path) -> None:
    path = tmp_path / DEMO_FILE.format(24)
    command = python_module("gpudeck.demo.past_file", "--hosts=24", f"--until={NOON:.0f}", "--days=60", str(path))
    script = f"import subprocess, sys; subprocess.Popen({command!r}); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as hub:
        wait_until(lambda: list(tmp_path.iterdir()), "the begin of the file", 60)
        (child,) = psutil.Process(hub.pid).children()
        hub.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the child")


def test_a_full_disk_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        past = Backfill(2, tmp_path, until=NOON, min_free=2**60)
        past.report_to(lambda _: None, lambda _: pytest.fail("nothing is made"))
        past.start()
        await asyncio.to_thread(past.wait)
        await past.close()

    asyncio.run(go())
    assert not list(tmp_path.iterdir())
    assert "less room than history.min_free" in caplog.text


def test_a_child_that_fails_is_told_and_the_history_begins_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / DEMO_FILE.format(2)).mkdir()
    assert asyncio.run(make(tmp_path))[0] == []
    assert "the simulated past ended with code" in caplog.text
    assert not (tmp_path / "demo-history").exists()


def test_the_child_gives_way_to_everything_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpudeck.demo.past_file", "--hosts=2", f"--until={NOON}", "--days=2"]
    with subprocess.Popen([*command, str(tmp_path / "h.db")], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
        child.kill()
