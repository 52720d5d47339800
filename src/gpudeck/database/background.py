"""Background writes: one task writes to the database and retries, so that nothing else waits for it. `LocalCopy` keeps
the last data that were read in a small file, for a hub that starts while the database is unavailable."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from gpudeck.agent.token_file import replace_file
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)


class BackgroundWriter:
    """Calls `write` every `every` seconds, after `wake` at once, and after a failure every `retry` seconds.

    `write` writes everything that is pending, keeps what fails, and raises Temporary. `housekeeping` is called after
    each successful attempt. `failing` and `recovered` are the log lines of the first failure and of its end. `failure`
    is why the last attempt failed: the database is unavailable, or a bug.
    """

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        *,
        failing: str,
        recovered: str,
        every: float,
        retry: float = 5.0,
        housekeeping: Callable[[], Awaitable[None]] | None = None,
        after_failure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._write = write
        self._failing = failing
        self._recovered = recovered
        self._every = every
        self._retry = retry
        self._housekeeping = housekeeping
        self._after_failure = after_failure
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()
        self.failure: Literal["unavailable", "bug"] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> Temporary | None:
        """End the task and write the rest; returns the error if that failed."""
        task, self._task = self._task, None
        await cancel_tasks(task)
        try:
            await self.flush()
        except Temporary as error:
            return error
        return None

    def wake(self) -> None:
        """Write soon. While writing fails, the next attempt is not made earlier."""
        self._wake.set()

    async def flush(self) -> None:
        """Write now, in the caller's task. Raises Temporary."""
        async with self.lock:
            await self._write()
        if self.failure is not None:
            log.info(self._recovered)
        self.failure = None

    def note_failure(self, error: Temporary) -> None:
        """Record that the database is unavailable; for callers that query it themselves."""
        if self.failure is None:
            log.warning(self._failing, error)
        self.failure = "unavailable"

    async def _run(self) -> None:
        while True:
            if await self._attempt():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._every)
            else:
                await asyncio.sleep(self._retry)
            self._wake.clear()

    async def _attempt(self) -> bool:
        try:
            await self.flush()
            if self._housekeeping is not None:
                await self._housekeeping()
        except Temporary as error:
            self.note_failure(error)
        except Exception as error:
            log.exception(self._failing, type(error).__name__)
            self.failure = "bug"
        else:
            return True
        if self._after_failure is not None:
            await self._after_failure()
        return False


def trim_regularly(
    trim: Callable[[float], Awaitable[object]], retention: RetentionClock, every: float
) -> Callable[[], Awaitable[None]]:
    """Housekeeping that calls `trim` every `every` seconds with the retention clock's time, unless that is uncertain. A
    failure is logged and does not stop new rows from being written."""
    due = -math.inf

    async def housekeeping() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due and (certain := retention.deletion_time()) is not None:
            due = now + every
            try:
                await trim(certain)
            except Temporary as error:
                log.warning("old rows cannot be deleted: %s", error)

    return housekeeping


_T = TypeVar("_T")


class LocalCopy(Generic[_T]):
    """The file holds one struct of type `kind`, which contains its own time."""

    def __init__(self, file: Path, kind: type[_T]) -> None:
        self._file = file
        self._kind = kind
        self._is_failing = False
        self._writing = threading.Lock()
        self._written = b""

    async def write(self, content: _T) -> None:
        """Write the content if it has changed. A copy that cannot be written is logged once."""
        body = msgspec.json.encode(content)
        if body == self._written:
            return
        try:
            await asyncio.to_thread(self._replace, body)
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be written: %s", self._file, error.strerror)
            self._is_failing = True
        else:
            self._is_failing, self._written = False, body

    def _replace(self, body: bytes) -> None:
        # A write whose caller was cancelled may still be running: it must not come last.
        with self._writing:
            replace_file(self._file, body)

    def read(self) -> _T | None:
        """None if there is no readable file. Blocks."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeError) as error:
            log.warning("%s cannot be read: %s", self._file, error)
            return None
