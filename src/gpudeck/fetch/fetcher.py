"""One kept HTTP connection to one other machine, and what can go wrong with it, in words for people."""

import asyncio
import http.client
import logging
import os
import re
import ssl
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.fetch.addresses import AddressGuard
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.hub_url import show_url

log = logging.getLogger(__name__)
# It would log every question, with the whole address and the secrets in it.
logging.getLogger("httpx").setLevel(logging.WARNING)

BYTES_AT_MOST = 8 * 1024 * 1024
_UNPACKED_AT_ONCE = 1024 * 1024
_LOGGED = 120
_MEDIA_TYPE = re.compile(r"\s*([A-Za-z0-9.+-]{1,40}/[A-Za-z0-9.+-]{1,40})\s*(?:;|$)")


class HttpResponse(Struct, frozen=True):
    """What was answered, whole. `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Asks one server, over a connection that is kept. Follows no redirect and knows no proxy: what a hub watches is
    near it.

    `deadline` is for a whole question, in seconds; an answer of more than `bytes_at_most`, unpacked, is not read to its
    end. `trust` are the certificates that are believed (`trust_from`). `guard` checks the server's addresses before
    they are connected to. `close` when done.

    Errors hold no word of the answer's body, as every viewer of the hub reads them. Its beginning is logged at DEBUG.
    """

    def __init__(
        self,
        *,
        deadline: float,
        bytes_at_most: int = BYTES_AT_MOST,
        trust: ssl.SSLContext | None = None,
        guard: AddressGuard | None = None,
    ) -> None:
        self._deadline = deadline
        self._bytes_at_most = bytes_at_most
        self._guard = guard
        self._addresses: list[str] = []
        self._client = httpx.AsyncClient(
            verify=trust or shared_trust(),
            timeout=None,  # noqa: S113 - the deadline below is for the whole question
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=600.0),
            headers={"User-Agent": "gpudeck-hub", "Accept-Encoding": "gzip"},
        )

    async def get(
        self, url: str, headers: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> HttpResponse:
        """The answer, if its status is 200. Raises Refused for 401 and 403 and for what is no address, Temporary for
        anything else.

        `deadline` is for this question only, where the server was asked to wait. A body comes unpacked, unless
        `headers` ask for an encoding other than gzip.
        """
        return await self._ask("GET", url, None, headers, self._deadline if deadline is None else deadline)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """As `get`, for servers that want their questions posted."""
        return await self._ask("POST", url, body, headers, self._deadline)

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None, seconds: float
    ) -> HttpResponse:
        shown = show_url(url)
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(method, url, shown, body, headers)
        except TimeoutError as error:
            raise Temporary(f"{shown} did not answer within {seconds:g} s.") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            raise Refused(f"{shown!r} is no address of http or https.", "Correct it.") from error
        except (httpx.HTTPError, OSError) as error:
            del self._addresses[:1]  # the next question goes to the server's next address
            raise Temporary(f"{shown} does not answer: {explain(error)}.") from error

    async def _exchange(
        self, method: str, url: str, shown: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> HttpResponse:
        place, told, extensions = await self._locate(_parse(url), dict(headers or {}))
        async with self._client.stream(method, place, content=content, headers=told, extensions=extensions) as response:
            body = await self._read(response, shown)
        _check_status(shown, response, body)
        return HttpResponse(response.status_code, {key.lower(): value for key, value in response.headers.items()}, body)

    async def _locate(
        self, url: httpx.URL, headers: dict[str, str]
    ) -> tuple[httpx.URL, dict[str, str], dict[str, Any]]:
        """Where to ask, and how. With a guard that is a checked address, under the server's own name."""
        if self._guard is None:
            return url, headers, {}
        if not self._addresses:
            self._addresses = await self._guard.resolve(url.host, url.port or 80)
        place = url.copy_with(host=self._addresses[0])
        return place, headers | {"Host": url.netloc.decode("ascii")}, {"sni_hostname": url.host}

    async def _read(self, response: httpx.Response, shown: str) -> bytes:
        """The body, unpacked here and not by httpx: that unpacks each piece whole, and a small piece may be made to
        fill all memory."""
        pieces, size, limit = list[bytes](), 0, self._bytes_at_most
        packing, budget = _Packing(response, shown), LoopBudget()
        async for received in response.aiter_raw():
            piece = received
            while piece:
                unpacked, piece = packing.open(piece)
                pieces.append(unpacked)
                size += len(unpacked)
                if size > limit:
                    raise Temporary(f"{shown} answers more than {limit / 2**20:g} MiB.")
                await budget.checkpoint()
        packing.check_end()
        # Joining large ones leaves Python's lock to others.
        return b"".join(pieces) if size < _UNPACKED_AT_ONCE else await asyncio.to_thread(b"".join, pieces)


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
            log.debug("%s answers in the encoding %s", shown, clean(encoding[:_LOGGED]))
            raise Temporary(f"{shown} answers in a content encoding that was not asked for.")
        self._shown = shown
        self._gzip = zlib.decompressobj(wbits=31) if encoding.endswith("gzip") else None

    def open(self, piece: bytes) -> tuple[bytes, bytes]:
        """The beginning of a piece, unpacked to at most 1 MiB, and the rest of the piece."""
        if self._gzip is None:
            return piece, b""
        try:
            return self._gzip.decompress(piece, _UNPACKED_AT_ONCE), self._gzip.unconsumed_tail
        except zlib.error as error:
            raise Temporary(f"{self._shown} answers what is no gzip.") from error

    def check_end(self) -> None:
        if self._gzip is not None and not self._gzip.eof:
            raise Temporary(f"{self._shown} answers gzip that ends early.")


class TokenRefused(Refused):
    """401 or 403."""


def _check_status(shown: str, response: httpx.Response, body: bytes) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code in {401, 403}:
        if response.request.headers.keys() & {"authorization", "x-consul-token"}:
            told, hint = "the token is not accepted", "Check the token file."
        else:
            told, hint = "it asks for a token", "Name a file with one as token_file."
        raise TokenRefused(f"{shown} answers {response.status_code}: {told}.", hint)
    if response.has_redirect_location:
        log.debug("%s leads to %s", shown, clean(show_url(response.headers["location"])[:_LOGGED]))
        raise Temporary(f"{shown} answers {response.status_code}: it leads to another address.", "Give that address.")
    log_beginning(shown, body)
    kind = content_kind(response.headers.get("content-type", ""))
    raise Temporary(f"{shown} answers {response.status_code}{f' ({kind})' if kind else ''}.")


def content_kind(content_type: str) -> str:
    """The media type, such as text/html, without its parameters; an empty text for what is none."""
    found = _MEDIA_TYPE.match(content_type)
    return found[1].lower() if found else ""


def log_beginning(shown: str, body: bytes) -> None:
    """Logs how an answer that is of no use begins."""
    log.debug("%s answers what begins with: %s", shown, clean(body[: 4 * _LOGGED].decode(errors="replace"))[:_LOGGED])


def explain(error: Exception) -> str:
    """The innermost reason, in the words of the system, and never in those of the server."""
    while isinstance(error.__cause__ or error.__context__, Exception):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {(error.reason or 'unknown reason').replace('_', ' ').lower()}"
    if isinstance(error, http.client.HTTPException) or type(error).__module__.startswith("h11"):
        # Their texts quote what was received.
        log.debug("no HTTP: %s", clean(str(error))[:_LOGGED])
        is_cut = str(error).startswith("peer closed connection")
        return "it breaks off in the middle of its answer" if is_cut else "what it says is no HTTP"
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
