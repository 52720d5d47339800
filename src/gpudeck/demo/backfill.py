"""Makes the demo's past: sixty days of the simulated fleet.

A child process writes the history file at the lowest priority: the last day before the hub opens the file, within
seconds, and the weeks before in the following minute. After a longer stop the demo makes its whole past again.
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
from gpudeck.fleet.observers import Service
from gpudeck.history.settings import DEMO_FILE
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.event import Event

log = logging.getLogger(__name__)

DAYS = 60.0
SEED = 1
"""The default of `gpudeck agent --seed`, which simulates the same fleet."""
_DONE: Final = "demo-history"
"""A file in the data folder: the number of simulated hosts and days of the finished history."""
_MAKING: Final = (
    "Demo: the simulated past is still being made. History, Reliability and the time machine are not complete yet."
)
_GAP_SECONDS: Final = 300.0
"""After a shorter stop the history has a gap, as with any hub."""
READY: Final = b"ready\n"
"""Written by the child when the file can be opened; events follow."""
_decode_events = msgspec.msgpack.Decoder(list[Event]).decode


class Backfill(Service):
    """Makes the file of `hosts` simulated hosts, once. `wait` blocks until it is there, or cannot be made."""

    name = "demo"

    def __init__(self, hosts: int, data_dir: Path, *, until: float, days: float = DAYS, min_free: int = 0) -> None:
        """Nothing is made if the disk has less than `min_free` bytes left, as the history would not write either."""
        self._hosts = hosts
        self._min_free = min_free
        self._days = days
        self._until = until
        self._path = data_dir / DEMO_FILE.format(hosts)
        self._done = data_dir / _DONE
        self._is_decided = threading.Event()
        self._show_problems: Callable[[list[str]], None] = lambda _: None
        self._take_event: Callable[[Event], None] = lambda _: None
        self._task: asyncio.Task[None] | None = None
        if days <= 0:
            self._is_decided.set()

    def wait(self) -> None:
        """Must not be called on the event loop."""
        self._is_decided.wait()

    def report_to(self, show_problems: Callable[[list[str]], None], take_event: Callable[[Event], None]) -> None:
        """`show_problems` is called with the hub's problems, `take_event` with each past event."""
        self._show_problems, self._take_event = show_problems, take_event

    def start(self) -> None:
        if not self._is_decided.is_set():
            self._task = asyncio.get_running_loop().create_task(self._make())

    async def close(self) -> None:
        """End the child, in whatever state it is."""
        await cancel_tasks(self._task)
        self._is_decided.set()

    async def _make(self) -> None:
        try:
            if await asyncio.to_thread(self._is_needed):
                self._show_problems([_MAKING])
                for event in await self._run_child():
                    self._take_event(event)
                    await asyncio.sleep(0)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the simulated past could not be made, charts begin now: %s", error)
        finally:
            self._show_problems([])
            self._is_decided.set()

    async def _run_child(self) -> list[Event]:
        """The past events; none if the child fails. Raises OSError."""
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
        """Whether the file is missing, is of another demo, or ends too early."""
        try:
            if self._done.read_text().split() != [str(self._hosts), f"{self._days:g}"]:
                return True
            with contextlib.closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as file:
                newest = file.execute("SELECT max(last) FROM hosts").fetchone()[0]
        except (OSError, sqlite3.Error):
            return True
        return not isinstance(newest, float) or self._until - newest > _GAP_SECONDS


def remove_file(path: Path) -> None:
    """Including the files that SQLite and the history keep next to it."""
    for suffix in ("", "-wal", "-shm", "-lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
