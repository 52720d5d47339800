"""The hub's HTTP client: with a deadline, a size limit, and protection against untrusted addresses. Connections are
reused.

Names of hosts that were added or discovered could resolve to the hub's own machine or to a cloud's metadata service. So
the resolved addresses are checked, and the connection goes to a checked address.
"""

import asyncio
import contextlib
import http.client
import logging
import os
import re
import socket
import ssl
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpx
from msgspec import Struct

from gpudeck import __version__
from gpudeck.collectors.redaction import clean
from gpudeck.model.address import show_url
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import Refused, Temporary, UsageError
from gpudeck.model.target import Target

log = logging.getLogger(__name__)
# It would log every request, with the whole URL and the secrets in it.
logging.getLogger("httpx").setLevel(logging.WARNING)

MAX_BYTES = 8 * 1024 * 1024
_UNPACKED_AT_ONCE = 1024 * 1024
_LOGGED = 120
_NO_ADDRESS = (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError)
_ALWAYS: dict[str, Any] = {
    "trust_env": False,
    "follow_redirects": False,
    "headers": {"User-Agent": f"gpudeck/{__version__}", "Accept-Encoding": "gzip"},
}
_MEDIA_TYPE = re.compile(r"\s*([A-Za-z0-9.+-]{1,40}/[A-Za-z0-9.+-]{1,40})\s*(?:;|$)")
_METADATA = frozenset(
    ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Google, Azure and others
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_NO_HOST = IPv4Network("0.0.0.0/8")


class AddressGuard:
    """Checks addresses before connecting. `allowed` are networks in which local addresses are permitted."""

    def __init__(self, name: str, allowed: Iterable[str]) -> None:
        """`name` is the display name of the host."""
        self._name = name
        self._allowed = _networks(tuple(allowed))

    @classmethod
    def of(cls, target: Target) -> "AddressGuard | None":
        """None for a host of the operator's own configuration: it may have any address."""
        return None if target.local_networks is None else cls(target.name, target.local_networks)

    def check(self, address: str) -> None:
        """Raises Refused for a local address that is not allowed. `address` is numeric; a zone (%eth0) is ignored."""
        shown = address.partition("%")[0]
        resolved = _unwrap(ip_address(shown))
        kind = _kind_of(resolved)
        if kind is None or any(resolved in network for network in self._allowed):
            return
        raise Refused(
            f"{self._name} has the {kind} address {shown}, where hosts that were added or discovered are not read.",
            "If it is right, add its network to discovery.allow_addresses, or name the host in gpudeck.yaml.",
        )

    async def resolve(self, host: str, port: int) -> list[str]:
        """The numeric addresses of a host, all checked. Raises Refused, and OSError if it has none."""
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in await look_up(host, port)))
        for address in addresses:
            self.check(address)
        return addresses


AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""A result of `socket.getaddrinfo`: family, kind, protocol, name, and the address with its port."""

_LANES: Final = {"known": 8, "new": 6, "failed": 2}
"""Concurrent lookups: of names that resolved before, of new ones, and of those that failed."""
_FAILED_FOR: Final = 60.0
_MAX_NAMES: Final = 100_000


class Lookups:
    """Resolves names, a few at a time: names that do not resolve must not delay others, and are not tried again for a
    minute. Uses its own threads. One event loop owns it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(sum(_LANES.values()), "lookup")
        self._lanes = {name: asyncio.Semaphore(count) for name, count in _LANES.items()}
        self._names: dict[str, tuple[float, OSError] | None] = {}
        """Known names: None if they resolve, else until when they are not tried again, and why."""

    async def find(self, host: str, port: int) -> list[AddressInfo]:
        loop = asyncio.get_running_loop()
        failure = self._names.get(host)
        if failure is not None and loop.time() < failure[0]:
            raise type(failure[1])(*failure[1].args) from None
        lane = self._lanes["failed" if failure is not None else "known" if host in self._names else "new"]
        await lane.acquire()
        lookup = self._threads.submit(_look_up, host, port)
        # Not when the caller gives up: the thread is busy until the answer comes.
        lookup.add_done_callback(partial(self._finish, loop, host, lane))
        return await asyncio.wrap_future(lookup)

    def _finish(
        self, loop: asyncio.AbstractEventLoop, host: str, lane: asyncio.Semaphore, lookup: "Future[list[AddressInfo]]"
    ) -> None:
        """In the thread. The hub may have stopped by then."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._note, host, lane, lookup.exception())

    def _note(self, host: str, lane: asyncio.Semaphore, error: BaseException | None) -> None:
        lane.release()
        self._names.pop(host, None)
        until = asyncio.get_running_loop().time() + _FAILED_FOR
        self._names[host] = (until, error) if isinstance(error, OSError) else None
        if len(self._names) > _MAX_NAMES:
            del self._names[next(iter(self._names))]


_lookups: "WeakKeyDictionary[asyncio.AbstractEventLoop, Lookups]" = WeakKeyDictionary()


async def look_up(host: str, port: int) -> list[AddressInfo]:
    """The addresses of a host, for TCP, with the lookups of this event loop. Raises OSError if it has none."""
    loop = asyncio.get_running_loop()
    lookups = _lookups.get(loop)
    if lookups is None:
        lookups = _lookups[loop] = Lookups()
    return await lookups.find(host, port)


def _look_up(host: str, port: int) -> list[AddressInfo]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


@lru_cache(maxsize=16)
def _networks(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(map(ip_network, texts))


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address embedded in an IPv6 one, if there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _kind_of(address: IPv4Address | IPv6Address) -> str | None:
    if address in _METADATA:
        return "cloud metadata"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    # On Linux 0.0.0.0 and :: mean this machine.
    is_none = address in _NO_HOST if isinstance(address, IPv4Address) else address.is_unspecified
    return "unspecified" if is_none or address.is_reserved else None


class HttpResponse(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Requests to one server over a persistent connection. Follows no redirects and uses no proxy.

    `deadline` is for a whole request; an answer larger than `bytes_at_most`, decompressed, is not read to its end.
    `guard` checks addresses before connecting. Errors never contain the answer's body, because every reader sees them;
    its beginning is logged at DEBUG.
    """

    def __init__(
        self,
        *,
        deadline: float,
        bytes_at_most: int = MAX_BYTES,
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
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=600.0),
            **_ALWAYS,
        )

    async def get(
        self, url: str, headers: Mapping[str, str] | None = None, deadline: float | None = None
    ) -> HttpResponse:
        """The body, if the status is 200. Raises Refused for 401, 403 and invalid addresses, Temporary for anything
        else. It is decompressed, unless `headers` ask for another encoding than gzip."""
        return await self._request("GET", url, None, headers, self._deadline if deadline is None else deadline)

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str] | None = None, *, accept: Collection[int] = ()
    ) -> HttpResponse:
        """`get` with POST. Answers with a status in `accept` are returned."""
        return await self._request("POST", url, body, headers, self._deadline, accept=accept)

    async def close(self) -> None:
        await self._client.aclose()

    async def _request(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        seconds: float,
        *,
        accept: Collection[int] = (),
    ) -> HttpResponse:
        shown = show_url(url)
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(method, url, shown, body, headers, accept=accept)
        except TimeoutError as error:
            raise Temporary(f"{shown} did not answer within {seconds:g} s.") from error
        except _NO_ADDRESS as error:
            raise Refused(f"{shown!r} is no address of http or https.", "Correct it.") from error
        except (httpx.HTTPError, OSError) as error:
            del self._addresses[:1]  # the next question goes to the server's next address
            raise Temporary(f"{shown} does not answer: {explain(error)}.") from error

    async def _exchange(
        self,
        method: str,
        url: str,
        shown: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
        *,
        accept: Collection[int],
    ) -> HttpResponse:
        place, sent, extensions = await self._locate(_parse(url), dict(headers or {}))
        async with self._client.stream(method, place, content=content, headers=sent, extensions=extensions) as response:
            body = await self._read(response, shown)
        if response.status_code not in accept:
            _check_status(shown, response, body)
        return _response_of(response, body)

    async def _locate(
        self, url: httpx.URL, headers: dict[str, str]
    ) -> tuple[httpx.URL, dict[str, str], dict[str, Any]]:
        """The URL and headers to use. With a guard, the URL has a checked address, and the server's own name is
        kept."""
        if self._guard is None:
            return url, headers, {}
        if not self._addresses:
            self._addresses = await self._guard.resolve(url.host, url.port or 80)
        place = url.copy_with(host=self._addresses[0])
        return place, headers | {"Host": url.netloc.decode("ascii")}, {"sni_hostname": url.host}

    async def _read(self, response: httpx.Response, shown: str) -> bytes:
        """The body, decompressed here and not by httpx, which decompresses each chunk whole: a small one may fill all
        memory."""
        pieces, size, limit = list[bytes](), 0, self._bytes_at_most
        decoder, budget = _ContentDecoder(response, shown), LoopBudget()
        async for received in response.aiter_raw():
            piece = received
            while piece:
                unpacked, piece = decoder.open(piece)
                pieces.append(unpacked)
                size += len(unpacked)
                if size > limit:
                    raise Temporary(f"{shown} answers more than {limit / 2**20:g} MiB.")
                await budget.checkpoint()
        decoder.check_end()
        # Joining large ones releases the GIL.
        return b"".join(pieces) if size < _UNPACKED_AT_ONCE else await asyncio.to_thread(b"".join, pieces)


class BlockingFetcher:
    """Fetcher for threads. `seconds` is for each step of a request. Answers of every status are returned."""

    def __init__(self, *, seconds: float, connections: int = 1, trust: ssl.SSLContext | None = None) -> None:
        self._client = httpx.Client(
            verify=trust or shared_trust(),
            timeout=httpx.Timeout(seconds, connect=min(5.0, seconds), pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            **_ALWAYS,
        )
        self.close = weakref.finalize(self, self._client.close)

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, bytes_at_most: int, is_cut: bool = False
    ) -> HttpResponse:
        """The answer. Raises Temporary if there is none, or one larger than `bytes_at_most` that may not be cut;
        Refused for an invalid address."""
        shown = show_url(url)
        try:
            with self._client.stream("POST", url, content=body, headers=headers) as response:
                return _response_of(response, _read(response, shown, bytes_at_most, is_cut=is_cut))
        except _NO_ADDRESS as error:
            raise Refused(f"{shown!r} is no address of http or https.", "Correct it.") from error
        except httpx.TimeoutException as error:
            raise Temporary(f"{shown} does not answer: it took too long.") from error
        except (httpx.HTTPError, OSError) as error:
            raise Temporary(f"{shown} does not answer: {explain(error)}.") from error


def _read(response: httpx.Response, shown: str, limit: int, *, is_cut: bool) -> bytes:
    body, decoder = bytearray(), _ContentDecoder(response, shown)
    for received in response.iter_raw():
        piece = received
        while piece:
            unpacked, piece = decoder.open(piece)
            body += unpacked
            if len(body) > limit:
                if is_cut:
                    return bytes(body[:limit])
                raise Temporary(f"{shown} answers more than {limit / 2**20:g} MiB.", "Ask for less.")
    decoder.check_end()
    return bytes(body)


def _response_of(response: httpx.Response, body: bytes) -> HttpResponse:
    return HttpResponse(response.status_code, {key.lower(): value for key, value in response.headers.items()}, body)


def _parse(url: str) -> httpx.URL:
    """Raises InvalidURL, also for an invalid port, on which the system would fail with another error."""
    parsed = httpx.URL(url)
    if parsed.port is not None and not 0 < parsed.port <= 65535:
        raise httpx.InvalidURL(f"Invalid port: {parsed.port}")
    return parsed


class _ContentDecoder:
    """Decodes the content encoding of an answer: none, gzip, or one that the caller requested and decodes itself."""

    def __init__(self, response: httpx.Response, shown: str) -> None:
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding not in {"", "identity", "gzip", "x-gzip", response.request.headers["accept-encoding"]}:
            log.debug("%s answers in the encoding %s", shown, clean(encoding[:_LOGGED]))
            raise Temporary(f"{shown} answers in a content encoding that was not asked for.")
        self._shown = shown
        self._gzip = zlib.decompressobj(wbits=31) if encoding.endswith("gzip") else None

    def open(self, piece: bytes) -> tuple[bytes, bytes]:
        """The beginning of a chunk, decompressed to at most 1 MiB, and the rest of the chunk."""
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
            reason, hint = "the token is not accepted", "Check the token file."
        else:
            reason, hint = "it asks for a token", "Name a file with one as token_file."
        raise TokenRefused(f"{shown} answers {response.status_code}: {reason}.", hint)
    if response.has_redirect_location:
        log.debug("%s leads to %s", shown, clean(show_url(response.headers["location"])[:_LOGGED]))
        raise Temporary(f"{shown} answers {response.status_code}: it leads to another address.", "Give that address.")
    log_beginning(shown, body)
    kind = content_kind(response.headers.get("content-type", ""))
    raise Temporary(f"{shown} answers {response.status_code}{f' ({kind})' if kind else ''}.")


def content_kind(content_type: str) -> str:
    """The media type, such as text/html, without parameters; empty if it is invalid."""
    found = _MEDIA_TYPE.match(content_type)
    return found[1].lower() if found else ""


def log_beginning(shown: str, body: bytes) -> None:
    """Logs the beginning of a useless answer."""
    log.debug("%s answers what begins with: %s", shown, clean(body[: 4 * _LOGGED].decode(errors="replace"))[:_LOGGED])


def explain(error: Exception) -> str:
    """The innermost reason in the system's words, never in the server's."""
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
        # asyncio adds addresses to its texts; name lookups have negative error numbers of their own.
        return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror).lower()
    return str(error).rstrip(".") or type(error).__name__


@cache
def shared_trust() -> ssl.SSLContext:
    """The CA certificates of this machine; loaded once, because that takes longer than many requests."""
    return ssl.create_default_context()


def trust_from(ca_file: str, setting: str = "ca_file") -> ssl.SSLContext:
    """Trust only certificates signed by those in the file. Raises UsageError if it contains none."""
    try:
        path = Path(ca_file).expanduser()
        return _load_trust(path, path.stat().st_mtime_ns)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "Name a file in PEM that the hub's user can read."
        raise UsageError(f"{setting}: the certificates in {ca_file} cannot be read: {reason}.", hint) from error


@lru_cache(maxsize=8)
def _load_trust(path: Path, changed_ns: int) -> ssl.SSLContext:
    """Cached until the file changes: reading certificates takes longer than a request."""
    return ssl.create_default_context(cafile=str(path))
