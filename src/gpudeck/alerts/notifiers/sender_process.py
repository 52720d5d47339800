"""The hub's side of a channel's sender process: started with the first message, ended when there is nothing to do.

A service that hangs is killed with its process, and no other channel notices. Request and result are each a line of
JSON.
"""

import asyncio
import contextlib
import sys
from typing import Final, Literal

import msgspec
from msgspec import Struct

from gpudeck.alerts.message import Message
from gpudeck.model.errors import PluginError, Refused, Temporary

START_SECONDS: Final = 20.0
"""For a process to begin on a busy machine; what counts is the time after that, but nobody sees when it begins."""
_ANSWER_BYTES: Final = 65_536


class SendRequest(Struct, frozen=True, kw_only=True):
    """One message to one place. `url` is a secret. `recipient` is a mail address or a member ID of Slack, where it is
    for somebody by themselves; `page` is the address of our page."""

    url: str
    message: Message
    recipient: str | None = None
    page: str | None = None
    seconds: float = 20.0


class SendResult(Struct, frozen=True):
    """What came of it. `words` are a sentence about the place, and hold neither its address nor a secret. `hint` is the
    next step, for who keeps the settings. `unreached`: the service is well, and refuses this recipient."""

    kind: Literal["sent", "temporary", "refused", "unreached"]
    words: str = ""
    hint: str = ""


SENT = SendResult("sent")


class Unreached(Refused):
    """One recipient cannot be reached; the channel takes what is for others."""


def error_of(outcome: SendResult) -> PluginError:
    """As an error, for one that is not `sent`."""
    kinds: dict[str, type[PluginError]] = {"refused": Refused, "unreached": Unreached}
    return kinds.get(outcome.kind, Temporary)(outcome.words, outcome.hint)


class SenderProcess:
    """One request at a time. `close` ends its process; the next request starts another."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def send(self, request: SendRequest) -> None:
        """Returns when the service has taken it. Raises Temporary or Refused, with words that hold no secret."""
        is_new = self._process is None
        process = self._process = self._process or await _spawn()
        if process.stdin is None or process.stdout is None:
            raise Temporary("the process that sends could not be started.")
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            await process.stdin.drain()
            limit = request.seconds + (START_SECONDS if is_new else 0.0)
            line = await asyncio.wait_for(process.stdout.readline(), limit)
            outcome = msgspec.json.decode(line, type=SendResult)
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
        "gpudeck.alerts.notifiers.sender",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        # Out of the terminal's process group: Ctrl-C is the hub's to handle.
        start_new_session=True,
    )
