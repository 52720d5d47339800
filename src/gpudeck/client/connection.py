"""Requests to a hub over HTTP. Blocks; raises Unreachable when the hub does not answer like a hub."""

import contextlib
import http.client
import os
import time
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import urllib3
from msgspec import Struct

from gpudeck import __version__
from gpudeck.client.answers import read_answer
from gpudeck.client.errors import Busy, Forbidden, LoginPending, NotFound, NotLoggedIn, ReservationTaken
from gpudeck.http_client import (
    TRANSPORT_ERRORS,
    explain,
    find_certificate_error,
    is_tls_failure,
    open_pool,
    send_request,
)
from gpudeck.hub_lookup import find_hub
from gpudeck.hub_lookup import find_token as find_known_token
from gpudeck.model.address import mask_password, split_hubs
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.reservation import ShownReservation, ShownSlot
from gpudeck.model.settings import is_loopback
from gpudeck.model.text import clean

T = TypeVar("T")
C = TypeVar("C", bound="HubConnection")

_NAMED = "--hub, $GPUDECK_HUB or `gpudeck login URL` names the hub."
_TRUST = "Set $SSL_CERT_FILE to the certificate of your CA, or use the name that the certificate is for."
_START = "Start one with `gpudeck up`, or name another hub with --hub or $GPUDECK_HUB."
_REACH = "Check the address and the port, that the hub runs, and that it listens for other machines (`listen`)."
_OTHER_SERVER = "Check the port, and whether the address begins with http:// or https://."

_NO_ROUTE = "not_found"
"""The code of an answer about a path that the hub does not serve."""
_CHUNK = 262_144
MAX_CONNECTIONS = 8
"""So many are kept open between requests of several threads."""
FIRST_PAUSE = 0.2
"""Seconds before the first repetition; each further one waits twice as long."""
_PROBE_SECONDS = 2.0
"""How long one of several hubs may take to answer before the next is tried."""


class StreamEvent(Struct, frozen=True):
    """`kind` is snapshot or delta, `id` what to resume from, `data` its JSON."""

    kind: str
    id: str
    data: bytes


class _Reason(Struct):
    code: str
    message: str
    hint: str = ""


class _Refusal(Struct):
    """The hub's answer to a request that it refuses. `conflicts` and `next_free` belong to a reservation."""

    error: _Reason
    conflicts: list[ShownReservation] | None = None
    next_free: ShownSlot | None = None


_KINDS: dict[int, type[GpudeckError]] = {
    400: UsageError,
    401: NotLoggedIn,
    403: Forbidden,
    404: NotFound,
    409: UsageError,
    422: UsageError,
    429: Busy,
    503: Busy,
}


def _read_refusal(body: bytes) -> _Refusal:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(body, type=_Refusal)
    return _Refusal(_Reason(_NO_ROUTE, ""))


def in_path(text: str) -> str:
    """A name or an id as a part of a path. Raises UsageError where it is empty: the path would be another one."""
    if not text:
        raise UsageError("a name is empty.")
    return quote(text, safe="")


def _join(path: str, query: Mapping[str, str]) -> str:
    """Nothing is called like bytes that are no text, and nothing is found."""
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


class HubConnection:
    """Requests to a hub whose answers are the bytes that it sent. Of several addresses, separated by commas, the first
    that answers is used, until it does not answer.

    `hub` is an address such as `gpu-hub:8042`; None: $GPUDECK_HUB, the saved login, the hub of this machine's agent, or
    this machine. `token` is $GPUDECK_TOKEN or that of the saved login if it is not given; where there is none and the
    hub wants one, `find_token` is asked. `timeout` is in seconds, for each request. A request that was not executed is
    repeated up to `retries` times: where no connection was made, or a proxy or a restarting hub closed it, and where
    the hub says that there are too many requests. `shown` is the address without any password.

    May be shared by threads and survives a fork.
    """

    def __init__(
        self,
        hub: str | None = None,
        timeout: float = 10.0,
        *,
        token: str | None = None,
        retries: int = 2,
        find_token: Callable[[], str | None] | None = None,
    ) -> None:
        self._urls = split_hubs(find_hub(hub).url)
        self._is_chosen = len(self._urls) == 1
        self._token = find_known_token(",".join(self._urls)) if token is None else token
        if self._token is not None and not (self._token.isascii() and self._token.isprintable()):
            raise UsageError("the token has characters that no token has.", "Look at $GPUDECK_TOKEN.")
        if timeout <= 0:
            raise UsageError(f"timeout={timeout:g} is not a number of seconds above 0.")
        self._find_token = find_token
        self._timeout = timeout
        self.retries = max(0, retries)
        self._use(self._urls[0])

    def with_timeout(self: C, timeout: float, retries: int | None = None) -> C:
        """The same hub, with the same token, asked with another timeout, and other retries if they are given."""
        repeated = self.retries if retries is None else retries
        return type(self)(
            ",".join(self._urls), timeout, token=self._token, retries=repeated, find_token=self._find_token
        )

    def close(self) -> None:
        """Close the connections that are kept. A later request opens new ones."""
        self._pool.clear()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, body: bytes, kind: type[T]) -> T:
        """An answer of this hub as a struct: see `read_answer`."""
        return read_answer(body, kind, self.shown)

    def get(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """The JSON of a route (docs/routes.md). `query` are its parameters."""
        return self.send("GET", _join(path, query)).data

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        return self.send("POST", path, body).data

    def put(self, path: str, body: Mapping[str, Any]) -> bytes:
        return self.send("PUT", path, body).data

    def delete(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> bytes:
        return self.send("DELETE", _join(path, query)).data

    def get_text(self, path: str) -> bytes:
        """The plain text of a route."""
        return self.send("GET", path, kind="text/plain").data

    def download(
        self, path: str, query: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int | None, Generator[bytes, None, None]]:
        """A file of the hub, such as an export, in parts, and about how many bytes it has; None where the hub does not
        say. Raises Unreachable also where it ends too early."""
        answer = self._exchange("GET", _join(path, query), {"Accept": "*/*"}, is_stream=True)
        size = answer.headers.get("X-Estimated-Bytes", "")
        return int(size) if size.isdigit() else None, self._read_parts(answer)

    def _read_parts(self, answer: urllib3.BaseHTTPResponse) -> Generator[bytes, None, None]:
        with contextlib.closing(answer):
            try:
                yield from answer.stream(_CHUNK)
            except TRANSPORT_ERRORS as error:
                self._explain(error)

    def stream_events(self, last_event_id: str = "") -> Generator[StreamEvent, None, None]:
        """The fleet as events, from `last_event_id` on where the hub still has them: a snapshot first, then what
        changed each second. The caller closes it. It ends when the hub ends it. Raises one of
        http_client.TRANSPORT_ERRORS if the connection breaks or nothing arrives for `timeout` seconds."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
        answer = self._exchange("GET", "/api/v1/stream", headers, is_stream=True)
        if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            answer.close()
            raise self._no_hub()
        return _read_events(answer)

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> urllib3.BaseHTTPResponse:
        """The answer of the hub, which has to be of that kind. `others` are further headers; a session's cookie takes
        the place of the token."""
        try:
            sent = None if body is None else msgspec.json.encode(body)
        except UnicodeError as error:
            raise UsageError("what is asked for has bytes that are no text.", "Write it in UTF-8.") from error
        written = {} if body is None else {"Content-Type": "application/json"}
        answer = self._exchange(method, path, {**others, **written}, body=sent)
        if not answer.headers.get("Content-Type", "").startswith(kind):
            raise self._no_hub()
        return answer

    def _exchange(
        self, method: str, path: str, others: Mapping[str, str], *, body: bytes | None = None, is_stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """The answer of a hub that does what it is asked for. Raises GpudeckError for any other."""
        headers = self._headers() | dict(others)
        if "Cookie" in others:
            headers.pop("Authorization", None)
        try:
            answer = self._request(method, path, headers, body=body, is_stream=is_stream)
            refusal = None if answer.status in {200, 201} else answer.data
        except TRANSPORT_ERRORS as error:
            self._explain(error)
        if refusal is None:
            return answer
        if answer.status in {401, 403} and self.learn_token():
            return self._exchange(method, path, others, body=body, is_stream=is_stream)
        raise self._refusal(answer.status, refusal, is_question=method == "GET")

    def _request(
        self, method: str, path: str, headers: dict[str, str], *, body: bytes | None = None, is_stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        for left in range(self.retries, -1, -1):
            pause = FIRST_PAUSE * 2 ** (self.retries - left)
            try:
                answer = self._try(method, path, headers, body=body, is_stream=is_stream)
            except TRANSPORT_ERRORS as error:
                if not left or not _was_not_executed(method, error):
                    raise
            else:
                wanted = _pause_of(method, answer)
                if not left or wanted is None or wanted > self._timeout:
                    return answer
                pause = max(pause, wanted)
                answer.drain_conn()
            time.sleep(pause)
        raise AssertionError

    def _try(
        self, method: str, path: str, headers: dict[str, str], *, body: bytes | None, is_stream: bool
    ) -> urllib3.BaseHTTPResponse:
        if not path.startswith("/"):
            raise UsageError(f"the path {path!r} does not begin with a slash.", "docs/routes.md lists them.")
        if not self._is_chosen:
            self._choose()
        if self._process != os.getpid():
            # Two processes cannot share a connection.
            self._use(self.url)
        try:
            return send_request(
                self._pool, method, self.url + path, headers, self._timeout, body=body, is_stream=is_stream
            )
        except TRANSPORT_ERRORS:
            # Not asked again elsewhere: the hub may have done it.
            self._is_chosen = len(self._urls) == 1
            raise

    def learn_token(self) -> bool:
        """Whether there is a token now, and was none before."""
        if self._token is None and self._find_token is not None:
            self._token = self._find_token()
            return self._token is not None
        return False

    def _choose(self) -> None:
        """The first hub that answers; where none does, the first, whose error is then shown."""
        for url in self._urls:
            with contextlib.suppress(*TRANSPORT_ERRORS):
                probe = open_pool(url)
                if send_request(probe, "GET", f"{url}/healthz", {}, min(_PROBE_SECONDS, self._timeout)).status == 200:
                    self._is_chosen = True
                    self._use(url)
                    return
        self._use(self._urls[0])

    def _use(self, url: str) -> None:
        self.url, self.shown = url, mask_password(url)
        self._pool, self._process = open_pool(url, connections=MAX_CONNECTIONS), os.getpid()

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept": "application/json"}
        return headers if self._token is None else headers | {"Authorization": f"Bearer {self._token}"}

    def _explain(self, error: Exception) -> NoReturn:
        reason, hint = diagnose(error, self.url, self._timeout)
        raise Unreachable(f"no hub answers at {self.shown}: {mask_password(reason)}.", hint) from error

    def _refusal(self, status: int, body: bytes, *, is_question: bool) -> GpudeckError:
        refused = _read_refusal(body)
        code, message, hint = refused.error.code, refused.error.message.rstrip("."), refused.error.hint
        # Every hub knows our routes: this is another server, or a path outside the hub's.
        if status == 404 and is_question and code == _NO_ROUTE:
            return self._no_hub()
        if not message and status >= 500:
            step = "The log of the hub, or of a proxy in front of it, has the details."
            return Unreachable(f"{self.shown} failed: it answered {status} without a reason.", step)
        if not message:
            return Unreachable(f"{self.shown} answered {status}, which is not the answer of a hub.", _OTHER_SERVER)
        if status == 401 and code == "unauthorized":
            hint = self._how_to_log_in()
        if status in {401, 403}:
            message = f"{self.shown} refused the request: {message}"
        if code in {"authorization_pending", "slow_down"}:
            return LoginPending(f"{message}.", hint)
        if refused.conflicts is not None:
            return ReservationTaken(f"{message}.", hint, refused.conflicts, refused.next_free)
        return _KINDS.get(status, GpudeckError)(f"{message}.", hint)

    def _how_to_log_in(self) -> str:
        login = f"`gpudeck login {self.shown}`"
        if self._token is None:
            return f"Log in with {login}, or set $GPUDECK_TOKEN."
        is_named = bool(os.environ.get("GPUDECK_TOKEN"))
        return f"Check $GPUDECK_TOKEN, or unset it and log in with {login}." if is_named else f"Log in with {login}."

    def _no_hub(self) -> Unreachable:
        return Unreachable(f"{self.shown} answers, but is no gpudeck hub.", "Check the address, its port and its path.")


def _was_not_executed(method: str, error: Exception) -> bool:
    """Whether a request may be repeated: it never reached the hub, or asks without changing anything."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return False
    is_refused = isinstance(error, urllib3.exceptions.NewConnectionError)
    is_closed = isinstance(error, urllib3.exceptions.ProtocolError) and isinstance(error.args[-1], ConnectionError)
    return is_refused or (is_closed and method == "GET")


def _pause_of(method: str, answer: urllib3.BaseHTTPResponse) -> float | None:
    """How many seconds to wait before the request is repeated; None where that would not help."""
    if answer.status != 429 and (answer.status != 503 or method != "GET"):
        return None
    try:
        return float(answer.headers.get("Retry-After", ""))
    except ValueError:
        return None


def diagnose(error: Exception, url: str, timeout: float) -> tuple[str, str]:
    """Why no hub answers at this address, and what to do."""
    host = urlsplit(url).hostname or ""
    if isinstance(error, urllib3.exceptions.NameResolutionError | urllib3.exceptions.LocationParseError | UnicodeError):
        return f"the name {clean(host)} does not resolve", f"Check its spelling. {_NAMED}"
    if (distrust := find_certificate_error(error)) is not None:
        return f"its certificate is not trusted ({distrust.verify_message.rstrip('.')})", _TRUST
    if is_tls_failure(error):
        return "it does not accept TLS", _OTHER_SERVER
    # Also a connection that is refused at once counts as a timeout in some versions of urllib3.
    if isinstance(error, urllib3.exceptions.TimeoutError) and not isinstance(
        error, urllib3.exceptions.NewConnectionError
    ):
        return f"no answer within {timeout:g} s", "Check the address, and firewalls on the way."
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return _broken(error), _OTHER_SERVER
    return explain(error).lower(), _START if is_loopback(host) else _REACH


def _broken(error: urllib3.exceptions.ProtocolError) -> str:
    cause = error.args[-1]
    if isinstance(cause, ConnectionError):
        return "it closed the connection without an answer"
    return "its answer ended too early" if isinstance(cause, http.client.IncompleteRead) else "its answer is not HTTP"


def _read_events(answer: urllib3.BaseHTTPResponse) -> Generator[StreamEvent, None, None]:
    waiting, seen = bytearray(), 0
    with contextlib.closing(answer):
        while chunk := answer.read1(_CHUNK):
            waiting += chunk
            while (end := waiting.find(b"\n\n", seen)) >= 0:
                event = _parse_event(bytes(waiting[:end]))
                del waiting[: end + 2]
                seen = 0
                if event is not None:
                    yield event
            # A snapshot of a thousand hosts comes in many chunks: what was looked through is not looked at again.
            seen = max(0, len(waiting) - 1)


def _parse_event(block: bytes) -> StreamEvent | None:
    """None for a comment, or a pause before the next connection."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    if b"event" not in fields or b"data" not in fields:
        return None
    return StreamEvent(fields[b"event"].decode(), fields.get(b"id", b"").decode(), fields[b"data"])
