"""Child processes end in time, with all that they started, and never fill the memory of who asked."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.waiting import wait_until
from gpudeck.child_process import ChildFailed, end, kill, run, spawn, start


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_and_exit_code_are_returned() -> None:
    assert run(["/bin/sh", "-c", "cat; exit 3"], seconds=20, body=b"x" * 10**6) == (3, b"x" * 10**6)
    assert run(["/bin/sh", "-c", "kill -9 $$"], seconds=20).code == -signal.SIGKILL


def test_input_that_is_not_read_blocks_nobody() -> None:
    assert run(["/bin/echo", "done"], seconds=20, body=bytes(10**7)) == (0, b"done\n")


@pytest.mark.parametrize(
    ("command", "limits", "why"),
    [
        ("exec sleep 60", {"seconds": 0.1}, "time"),
        ("exec yes", {"seconds": 20, "bytes_at_most": 1000}, "size"),
    ],
)
def test_what_is_slow_or_prints_too_much_is_killed(command: str, limits: dict[str, float], why: str) -> None:
    with pytest.raises(ChildFailed) as failure:
        run(["/bin/sh", "-c", command], **limits)  # type: ignore[arg-type]
    assert failure.value.why == why


def test_what_cannot_be_started_says_so() -> None:
    with pytest.raises(ChildFailed, match=r"^/no/such/program cannot be started: No such file or directory\.$"):
        run(["/no/such/program"], seconds=20)


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    # Its output stays open through the grandchild, though the child itself has ended.
    with pytest.raises(ChildFailed):
        run(["/bin/sh", "-c", f"sleep 60 & echo $! > {note}"], seconds=0.5)
    wait_until(lambda: not is_alive(int(note.read_text())))


def test_a_child_that_leads_no_group_is_killed_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    kill(child)
    assert child.returncode == -signal.SIGKILL


def test_a_child_is_out_of_reach_of_the_terminals_ctrl_c() -> None:
    child = spawn(["/bin/sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert os.getpgid(child.pid) == child.pid != os.getpgrp()
    kill(child)


def test_a_child_of_the_event_loop_gets_its_patience_and_then_none() -> None:
    async def both() -> tuple[int, int]:
        polite = await start(["/bin/sleep", "60"])
        stubborn = await start(["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        assert stubborn.stdout is not None
        await stubborn.stdout.readline()
        return await end(polite, 20), await end(stubborn, 0.1)

    assert asyncio.run(both()) == (-signal.SIGTERM, -signal.SIGKILL)
