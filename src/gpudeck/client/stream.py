"""The hub's server-sent events, one by one: a snapshot of the fleet first, then what changed each second."""

import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit

from msgspec import Struct

from gpudeck.client.http import connect
from gpudeck.model.settings import is_loopback

_CHUNK = 262_144


class StreamEvent(Struct, frozen=True):
    """`kind` is snapshot or delta, `id` what to resume from, `data` its JSON."""

    kind: str
    id: str
    data: bytes


class OpenStream:
    """An answer that goes on. `events` ends where the hub ends it, and raises one of client.http.TROUBLE where the
    connection breaks or nothing comes for `timeout` seconds."""

    def __init__(self, url: str, headers: dict[str, str], timeout: float) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        packed = {} if is_loopback(host) else {"Accept-Encoding": "gzip"}
        self._connection = connect(parts.scheme, host, parts.port, timeout)
        try:
            self._connection.request("GET", parts.path, headers=headers | packed)
            self._answer = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.status = self._answer.status
        self.content_type = self._answer.getheader("Content-Type", "")

    def body(self) -> bytes:
        """The whole of an answer that is none of events."""
        data = self._answer.read()
        return zlib.decompress(data, wbits=31) if self._is_packed() else data

    def events(self) -> Iterator[StreamEvent]:
        unpack = zlib.decompressobj(wbits=31).decompress if self._is_packed() else bytes
        waiting, seen = bytearray(), 0
        while chunk := self._answer.read1(_CHUNK):
            waiting += unpack(chunk)
            while (end := waiting.find(b"\n\n", seen)) >= 0:
                event = _parse(bytes(waiting[:end]))
                del waiting[: end + 2]
                seen = 0
                if event is not None:
                    yield event
            # A snapshot of a thousand hosts comes in many chunks: what was looked through is not looked at again.
            seen = max(0, len(waiting) - 1)

    def close(self) -> None:
        # The answer holds the socket, too.
        self._answer.close()
        self._connection.close()

    def _is_packed(self) -> bool:
        return self._answer.getheader("Content-Encoding", "") == "gzip"


def _parse(block: bytes) -> StreamEvent | None:
    """None for what is no event: a comment, or how long to wait before coming again."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    if b"event" not in fields or b"data" not in fields:
        return None
    return StreamEvent(fields[b"event"].decode(), fields.get(b"id", b"").decode(), fields[b"data"])
