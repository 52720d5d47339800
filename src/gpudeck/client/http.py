"""One question over HTTP, and its answer: with the standard library alone, since a command that is typed many times a
day spends most of its time loading what it needs."""

import http.client
import ssl
import zlib
from urllib.parse import urlsplit

from msgspec import Struct

from gpudeck.model.settings import is_loopback

TROUBLE = (http.client.HTTPException, OSError, UnicodeError, zlib.error)
"""What asking raises where nothing answers, or no HTTP."""


class ClientResponse(Struct, frozen=True):
    status: int
    content_type: str
    data: bytes


def ask(method: str, url: str, headers: dict[str, str], body: bytes | None, timeout: float) -> ClientResponse:
    """Raises ssl.SSLError where the certificate is not believed, or one of TROUBLE. Redirections are answers too.

    `timeout` is for each step of it, in seconds.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    # On one machine sending costs less than packing.
    packed = {} if is_loopback(host) else {"Accept-Encoding": "gzip"}
    connection = connect(parts.scheme, host, parts.port, timeout)
    try:
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request(method, path, body, headers | packed)
        answer = connection.getresponse()
        data = answer.read()
        if answer.getheader("Content-Encoding", "") == "gzip":
            data = zlib.decompress(data, wbits=31)
        return ClientResponse(answer.status, answer.getheader("Content-Type", ""), data)
    finally:
        connection.close()


def connect(scheme: str, host: str, port: int | None, timeout: float) -> http.client.HTTPConnection:
    """Not opened yet: the first question does that."""
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout)
