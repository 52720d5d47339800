"""An agent as a child of the hub: for this machine's own GPUs, or for the simulated fleet.

It is an ordinary agent that pushes over HTTP like any other, so the demo takes the same way as a real report. It ends
with the hub: its standard input is a pipe that closes when the hub dies, however it dies.
"""

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence

from gpudeck.child_process import end, python_module, start
from gpudeck.model.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
MAX_PAUSE = 60.0
_PATIENCE = 3.0


class ChildAgent:
    """Keeps one child running until `stop`; one that dies is started again after a growing pause."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = python_module("gpudeck", "agent", "--until-stdin-closes", *arguments)
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    def reload(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        process, self._process = self._process, None
        if process is not None:
            await end(process, _PATIENCE)

    async def _keep_running(self) -> None:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)
        while True:
            started = asyncio.get_running_loop().time()
            self._process = await start(self._arguments, stdout=DEVNULL)
            code = await self._process.wait()
            if asyncio.get_running_loop().time() - started > MAX_PAUSE:
                backoff.succeed()
            pause = backoff.fail()
            level = logging.DEBUG if code == 0 else logging.WARNING
            log.log(level, "the hub's own agent ended with code %d; starting it again in %g s", code, pause)
            await asyncio.sleep(pause)
