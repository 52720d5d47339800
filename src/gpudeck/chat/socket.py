"""Socket Mode: the bot's line to Slack. Slack sends envelopes, each is acknowledged at once and then worked on.

A socket of Slack's ends every few hours. It is announced, and a new one is opened while the old one still delivers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec

from gpudeck.chat.failures import mask
from gpudeck.model.errors import Refused, Temporary

log = logging.getLogger(__name__)

HELLO_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 15.0
"""A line over which nothing comes back for this long is dead."""
LEAVING_SECONDS: Final = 30.0
"""How long an old socket is listened to after Slack has asked for a new one."""
CLOSE_SECONDS: Final = 1.0
_MOST_BYTES: Final = 2**18

Envelope = dict[str, Any]
Handle = Callable[[Envelope], Awaitable[None]]


class Socket:
    """One socket: `open` it, then `wait` until another is needed; `close` at the end."""

    def __init__(self, session: aiohttp.ClientSession, url: str, handle: Handle, proxy: str | None = None) -> None:
        self._session = session
        self._url = url
        self._handle = handle
        self._proxy = proxy
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_greeted = False
        self._first = asyncio.Event()
        self._over = asyncio.Event()
        self._reason = ""

    async def open(self) -> None:
        """Raises Temporary when Slack does not say hello in time."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                self._socket = await self._session.ws_connect(
                    self._url,
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=_MOST_BYTES,
                    proxy=self._proxy,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
                self._reading = asyncio.create_task(self._read(self._socket))
                await self._first.wait()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            await self.close()
            reason = mask(str(error)) or "it says no hello"
            raise Temporary(f"the socket to Slack cannot be opened: {reason}.") from None
        if not self._is_greeted:
            await self.close()
            raise self._explain()

    async def wait(self) -> None:
        """Until Slack asks for a new socket, or the line is gone. Raises Refused when Socket Mode was switched off."""
        await self._over.wait()
        if self._reason == "link_disabled":
            raise self._explain()

    async def leave(self) -> None:
        """Go on for a while, for what is still under way, then close."""
        try:
            if self._reading is not None:
                await asyncio.wait([self._reading], timeout=LEAVING_SECONDS)
        finally:
            await self.close()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type == aiohttp.WSMsgType.TEXT:
                    await self._take(socket, message.data)
        except (aiohttp.ClientError, OSError) as error:
            log.debug("the socket to Slack broke: %s", mask(str(error)))
        finally:
            self._end()

    async def _take(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
        try:
            envelope = msgspec.json.decode(text, type=Envelope)
        except msgspec.DecodeError:
            log.debug("Slack sent what is no envelope")
            return
        kind = envelope.get("type")
        if kind == "hello":
            self._is_greeted = True
            self._first.set()
        elif kind == "disconnect":
            self._reason = str(envelope.get("reason", ""))
            self._end()
        elif isinstance(number := envelope.get("envelope_id"), str):
            # Before any work: Slack sends again what is not acknowledged within three seconds.
            await socket.send_str(msgspec.json.encode({"envelope_id": number}).decode())
            await self._handle(envelope)

    def _end(self) -> None:
        self._first.set()
        self._over.set()

    def _explain(self) -> Refused | Temporary:
        if self._reason == "link_disabled":
            return Refused("Socket Mode is switched off for the bot's app.", "Switch it on in the app's settings.")
        return Temporary("Slack closed the bot's socket before it said hello.")
