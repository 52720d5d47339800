"""A channel's own process, which sends: started with the first message, ended when there is nothing to do. What hangs
is killed with it, and no other channel notices."""

import asyncio
import contextlib
import sys
from typing import Final

import msgspec

from gpudeck.alerts.notifiers.order import Order, Outcome, error_of
from gpudeck.model.errors import Temporary

START_SECONDS: Final = 20.0
"""For a process to begin on a busy machine; what counts is the time after that, but nobody sees when it begins."""
_ANSWER_BYTES: Final = 65_536


class Courier:
    """One order at a time. `close` ends its process; the next order starts another."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def send(self, order: Order) -> None:
        """Returns when the service has taken it. Raises Temporary or Refused, with words that hold no secret."""
        is_new = self._process is None
        process = self._process = self._process or await _spawn()
        if process.stdin is None or process.stdout is None:
            raise Temporary("the process that sends could not be started.")
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdin.drain()
            limit = order.seconds + (START_SECONDS if is_new else 0.0)
            line = await asyncio.wait_for(process.stdout.readline(), limit)
            outcome = msgspec.json.decode(line, type=Outcome)
        except TimeoutError:
            await self.close()
            raise Temporary("it does not answer in time.", "Check host and port.") from None
        except (msgspec.DecodeError, OSError, ValueError):
            await self.close()
            raise Temporary("the process that sends ended before it answered.") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if outcome.kind != "sent":
            raise error_of(outcome)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _spawn() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Never import from the directory the hub happened to be started in.
        "-P",
        "-m",
        "gpudeck.alerts.notifiers.serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        # Out of the terminal's process group: Ctrl-C is the hub's to handle.
        start_new_session=True,
    )
