"""A server that gives up on requests whose head never ends: too long, or too slow.

uvicorn's httptools protocol has no limit of its own for either: one connection could fill the memory, a few hundred
idle ones use up all descriptors.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose next request has not shown all its headers in time and in size."""

    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            # What a whole body has brought along in the same piece is let through: its own limit comes later.
            if self._head_bytes > MOST_HEAD_BYTES + len(data) or len(data) > 16 * MOST_HEAD_BYTES:
                self._give_up()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._forget_deadline()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._forget_deadline()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._forget_deadline()
        self.transport.close()
