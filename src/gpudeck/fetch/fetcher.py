"""One kept HTTP connection to one other machine, and what can go wrong with it, in words for people."""

import asyncio
import logging
import os
import re
import ssl
import zlib
from collections.abc import Mapping
from pathlib import Path

import httpx
from msgspec import Struct

from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.hub_url import mask_password

# It would log every question, with the whole address and the secrets in it.
logging.getLogger("httpx").setLevel(logging.WARNING)

BYTES_AT_MOST = 8 * 1024 * 1024
_SHOWN = 120
_TITLE_WITHIN = 2000


class Answer(Struct, frozen=True):
    """What was answered, whole. `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Asks one server, over a connection that is kept. Follows no redirect and knows no proxy: what a hub watches is
    near it.

    `deadline` is for a whole question, in seconds; an answer of more than `bytes_at_most`, unpacked, is not read to its
    end. `trust` are the certificates that are believed (`trust_from`). `close` when done.
    """

    def __init__(
        self, *, deadline: float, bytes_at_most: int = BYTES_AT_MOST, trust: ssl.SSLContext | None = None
    ) -> None:
        self._deadline = deadline
        self._bytes_at_most = bytes_at_most
        self._client = httpx.AsyncClient(
            verify=trust or shared_trust(),
            timeout=None,  # noqa: S113 - the deadline below is for the whole question
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=600.0),
            headers={"User-Agent": "gpudeck-hub", "Accept-Encoding": "gzip"},
        )

    async def get(self, url: str, headers: Mapping[str, str] | None = None, deadline: float | None = None) -> Answer:
        """The answer, if its status is 200. Raises Refused for 401 and 403 and for what is no address, Temporary for
        anything else.

        `deadline` is for this question only, where the server was asked to wait. A body comes unpacked, unless
        `headers` ask for an encoding other than gzip.
        """
        return await self._ask("GET", url, None, headers, self._deadline if deadline is None else deadline)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """As `get`, for servers that want their questions posted."""
        return await self._ask("POST", url, body, headers, self._deadline)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None, seconds: float
    ) -> Answer:
        shown = show_url(url)
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(method, url, shown, body, headers)
        except TimeoutError as error:
            raise Temporary(f"{shown} did not answer within {seconds:g} s.") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            raise Refused(f"{shown!r} is no address of http or https.", "Correct it.") from error
        except (httpx.HTTPError, OSError) as error:
            raise Temporary(f"{shown} does not answer: {explain(error)}.") from error

    async def _exchange(
        self, method: str, url: str, shown: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> Answer:
        async with self._client.stream(method, _parse(url), content=content, headers=headers) as response:
            body = await self._read(response, shown)
        _check_status(shown, response, body)
        return Answer(response.status_code, {key.lower(): value for key, value in response.headers.items()}, body)

    async def _read(self, response: httpx.Response, shown: str) -> bytes:
        """The body, unpacked here and not by httpx: that unpacks each piece whole, and a small piece may be made to
        fill all memory."""
        body, limit, packing = bytearray(), self._bytes_at_most, _Packing(response, shown)
        async for piece in response.aiter_raw():
            body += packing.open(piece, limit + 1 - len(body))
            if len(body) > limit:
                raise Temporary(f"{shown} answers more than {limit / 2**20:g} MiB.")
        packing.check_end()
        return bytes(body)


def show_url(url: str) -> str:
    """The address as it may be shown: without a password, and without its query, in which some put their tokens."""
    return mask_password(url).partition("?")[0]


def _parse(url: str) -> httpx.URL:
    """Raises InvalidURL; also for a port that is none, over which the system would stumble in its own way."""
    parsed = httpx.URL(url)
    if parsed.port is not None and not 0 < parsed.port <= 65535:
        raise httpx.InvalidURL(f"Invalid port: {parsed.port}")
    return parsed


class _Packing:
    """What an answer is packed in: nothing, gzip, or what the caller asked for, who then unpacks it."""

    def __init__(self, response: httpx.Response, shown: str) -> None:
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity", "gzip", "x-gzip", response.request.headers["accept-encoding"]}:
            raise Temporary(f"{shown} answers in the encoding {encoding[:_SHOWN]!r}, which was not asked for.")
        self._shown = shown
        self._gzip = zlib.decompressobj(wbits=31) if encoding.endswith("gzip") else None

    def open(self, piece: bytes, at_most: int) -> bytes:
        try:
            return piece if self._gzip is None else self._gzip.decompress(piece, at_most)
        except zlib.error as error:
            raise Temporary(f"{self._shown} answers what is no gzip.") from error

    def check_end(self) -> None:
        if self._gzip is not None and not self._gzip.eof:
            raise Temporary(f"{self._shown} answers gzip that ends early.")


def _check_status(shown: str, response: httpx.Response, body: bytes) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code in {401, 403}:
        raise Refused(f"{shown} answers {response.status_code}: the token is not accepted.", "Check the token file.")
    if response.has_redirect_location:
        elsewhere = show_url(response.headers["location"])[:_SHOWN]
        raise Temporary(f"{shown} leads elsewhere, to {elsewhere}.", "Give that address.")
    said = _quote(body)
    raise Temporary(f"{shown} answers {response.status_code}{f': {said}' if said else ''}.")


def _quote(body: bytes) -> str:
    """The beginning of an answer, fit for a message; of a page for browsers its title, as the rest is markup."""
    text = body[:_TITLE_WITHIN].decode(errors="replace")
    if text.lstrip()[:1] == "<":
        found = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
        text = found[1] if found else "a page for browsers"
    line = " ".join(text.split())[:_SHOWN].rstrip(" .")
    return "".join(letter for letter in line if letter.isprintable())


def explain(error: Exception) -> str:
    """The innermost reason, in the words of the system."""
    while isinstance(error.__cause__ or error.__context__, Exception):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {(error.reason or 'unknown reason').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.strerror:
        # asyncio writes an address into its texts; errors in names have a number of their own, below zero.
        return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror).lower()
    return str(error).rstrip(".") or type(error).__name__


_shared: ssl.SSLContext | None = None


def shared_trust() -> ssl.SSLContext:
    """The certificates that this machine believes; loaded once, as that takes longer than many questions."""
    global _shared  # noqa: PLW0603
    if _shared is None:
        _shared = ssl.create_default_context()
    return _shared


def trust_from(ca_file: str) -> ssl.SSLContext:
    """Only certificates signed by those in the file. Raises UsageError when it holds none."""
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the certificates in {ca_file} cannot be read: {reason}.") from error
