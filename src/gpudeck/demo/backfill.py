"""The demo's past: sixty days of the simulated fleet.

A child makes the history's file, at the lowest priority: the last day before the hub opens it, which takes some
seconds, the weeks before in the minute that follows. The simulator answers about any moment, so a demo that was stopped
for a while gets its whole past anew.
"""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpudeck.child_process import end, python_module, start
from gpudeck.history.settings import DEMO_FILE
from gpudeck.model.event import Event

log = logging.getLogger(__name__)

DAYS = 60.0
SEED = 1
"""Which fleet the hub's own agent simulates: the default of `gpudeck agent --seed`."""
_DONE: Final = "demo-history"
"""In the data folder: how many simulated hosts the history has all days of, and how many days those are."""
_MAKING: Final = (
    "Demo: the simulated past is still being made. History, Reliability and the time machine are not complete yet."
)
_GAP_SECONDS: Final = 300.0
"""A demo that was stopped for a shorter time has a gap, as a hub has."""
READY: Final = b"ready\n"
"""What the child writes when the file can be opened; before the events."""
_decode_events = msgspec.msgpack.Decoder(list[Event]).decode


class Backfill:
    """Makes the file of `hosts` simulated hosts, once. `wait` blocks until it is there, or cannot be made."""

    def __init__(self, hosts: int, data_dir: Path, *, until: float, days: float = DAYS, min_free: int = 0) -> None:
        """Nothing is made where the disk has less than `min_free` bytes left: the history would not go on, either."""
        self._hosts = hosts
        self._min_free = min_free
        self._days = days
        self._until = until
        self._path = data_dir / DEMO_FILE.format(hosts)
        self._done = data_dir / _DONE
        self._is_decided = threading.Event()
        self._task: asyncio.Task[None] | None = None
        if days <= 0:
            self._is_decided.set()

    def wait(self) -> None:
        """From any other thread than the event loop's."""
        self._is_decided.wait()

    def start(self, say: Callable[[list[str]], None], take_event: Callable[[Event], None]) -> None:
        """On the running event loop: `say` shows the hub's problems, `take_event` is called with what happened."""
        if not self._is_decided.is_set():
            self._task = asyncio.get_running_loop().create_task(self._make(say, take_event))

    async def stop(self) -> None:
        """End the child, wherever it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._is_decided.set()

    async def _make(self, say: Callable[[list[str]], None], take_event: Callable[[Event], None]) -> None:
        try:
            if await asyncio.to_thread(self._is_needed):
                say([_MAKING])
                for event in await self._run_child():
                    take_event(event)
                    await asyncio.sleep(0)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the simulated past could not be made, charts begin now: %s", error)
        finally:
            say([])
            self._is_decided.set()

    async def _run_child(self) -> list[Event]:
        """What happened; nothing where the child fails. Raises OSError."""
        began = time.monotonic()
        if shutil.disk_usage(self._path.parent).free < self._min_free:
            raise OSError("the disk has less room than history.min_free")
        self._done.unlink(missing_ok=True)
        options = {"hosts": self._hosts, "until": f"{self._until:.0f}", "days": f"{self._days:g}"}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        child = await start(python_module("gpudeck.demo.past_file", *arguments, str(self._path)), stdin=DEVNULL)
        try:
            assert child.stdout is not None  # noqa: S101 - it was asked for
            if await child.stdout.readline() == READY:
                self._is_decided.set()
            events, code = await child.stdout.read(), await child.wait()
        finally:
            await end(child)
        if code:
            log.warning("making the simulated past ended with code %d: charts are not complete", code)
            return []
        self._done.write_text(f"{self._hosts} {self._days:g}\n")
        log.info("made a simulated past in %.0f s", time.monotonic() - began)
        return _decode_events(events)

    def _is_needed(self) -> bool:
        """Unless the file has it, until some minutes ago."""
        try:
            if self._done.read_text().split() != [str(self._hosts), f"{self._days:g}"]:
                return True
            with contextlib.closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as file:
                newest = file.execute("SELECT max(last) FROM hosts").fetchone()[0]
        except (OSError, sqlite3.Error):
            return True
        return not isinstance(newest, float) or self._until - newest > _GAP_SECONDS


def remove_file(path: Path) -> None:
    """With what SQLite and the history keep next to it."""
    for suffix in ("", "-wal", "-shm", "-lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
