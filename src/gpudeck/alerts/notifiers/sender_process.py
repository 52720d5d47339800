"""The hub's side of a channel's sender process, which is started with the first message and ended when it is idle.

If a service hangs, its process is killed, and other channels are not affected. Request and result are lines of JSON.
"""

import asyncio
from typing import Final, Literal

import msgspec
from msgspec import Struct

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.child_process import end, python_module, start
from gpudeck.model.errors import PluginError, Refused, Temporary

START_SECONDS: Final = 20.0
"""Added to the deadline of the first request, for the start of the process on a busy machine."""


class SendRequest(Struct, frozen=True, kw_only=True):
    """A message to one destination. `url` is a secret. `recipient` is a mail address or a member ID of Slack for one
    user; `page` is the address of the hub's page."""

    url: str
    message: Message
    recipient: str | None = None
    page: str | None = None
    seconds: float = 20.0


class SendResult(Struct, frozen=True):
    """The result of sending. `words` are a sentence about the service, without its address or a secret. `hint` is the
    next step for the operator. `unreached`: the service works, and refuses this recipient."""

    kind: Literal["sent", "temporary", "refused", "unreached"]
    words: str = ""
    hint: str = ""


SENT = SendResult("sent")


class Unreached(Refused):
    """One recipient cannot be reached; the channel works for others."""


class SenderProcess:
    """One request at a time. `close` ends its process; the next request starts another."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def send(self, request: SendRequest) -> None:
        """Returns when the service has taken it. Raises Temporary or Refused, without a secret."""
        is_new = self._process is None
        process = self._process = self._process or await start(python_module("gpudeck.alerts.notifiers.sender"))
        if process.stdin is None or process.stdout is None:
            raise Temporary("the process that sends could not be started.")
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            await process.stdin.drain()
            limit = request.seconds + (START_SECONDS if is_new else 0.0)
            line = await asyncio.wait_for(process.stdout.readline(), limit)
            outcome = msgspec.json.decode(line, type=SendResult)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Temporary("it does not answer in time.", "Check host and port.") from None
            if isinstance(error, (msgspec.DecodeError, OSError, ValueError)):
                raise Temporary("the process that sends ended before it answered.") from None
            raise
        if outcome.kind != "sent":
            kinds: dict[str, type[PluginError]] = {"refused": Refused, "unreached": Unreached}
            raise kinds.get(outcome.kind, Temporary)(outcome.words, outcome.hint)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await end(process)
