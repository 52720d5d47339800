"""Ask a hub over HTTP. Blocks; raises Unreachable when the hub does not answer like a hub."""

import contextlib
import http.client
import os
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import urllib3
from msgspec import Struct

from gpudeck import __version__
from gpudeck.client.answers import DeviceLogin, Identity, PersonalToken, read_answer
from gpudeck.http_client import TROUBLE, ask, explain, find_distrust, is_tls_failure
from gpudeck.model.address import mask_password, split_hubs
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.reservation import ShownReservation, ShownSlot
from gpudeck.model.settings import is_loopback
from gpudeck.model.text import clean

T = TypeVar("T")

_NAMED = "--hub, $GPUDECK_HUB or `gpudeck login URL` names the hub."
_TRUST = "Set $SSL_CERT_FILE to the certificate of your CA, or use the name that the certificate is for."
_START = "Start one with `gpudeck up`, or name another hub with --hub or $GPUDECK_HUB."
_REACH = "Check the address and the port, that the hub runs, and that it listens for other machines (`listen`)."
_OTHER_SERVER = "Check the port, and whether the address begins with http:// or https://."

_NO_ROUTE = "not_found"
"""The code of an answer about a path that the hub does not serve."""
_CHUNK = 262_144
_PROBE_SECONDS = 2.0
"""How long one of several hubs may take to answer before the next is tried."""


class Forbidden(GpudeckError):
    """The hub wants to know who asks, or does not let them."""


class NotLoggedIn(Forbidden, UsageError):
    """The hub wants to know who asks."""


class NotFound(GpudeckError):
    """The hub serves such things, but has not this one."""


class Busy(GpudeckError):
    """The hub cannot do it now, and may a little later."""


class LoginPending(Busy):
    """The login is not confirmed yet: ask again."""


class ReservationTaken(GpudeckError):
    """Others have those GPUs then. `conflicts` are their reservations, `next_free` is when there are none; None where
    no such time is known."""

    def __init__(self, message: str, hint: str, conflicts: list[ShownReservation], next_free: ShownSlot | None) -> None:
        super().__init__(message, hint)
        self.conflicts = conflicts
        self.next_free = next_free


class StreamEvent(Struct, frozen=True):
    """`kind` is snapshot or delta, `id` what to resume from, `data` its JSON."""

    kind: str
    id: str
    data: bytes


class _Reason(Struct):
    code: str
    message: str
    hint: str = ""


class _Refused(Struct):
    """What a hub says where it does not do what it was asked for."""

    error: _Reason


class _ConflictBody(_Refused):
    """Of a reservation."""

    conflicts: list[ShownReservation]
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


def _read_refusal(body: bytes) -> _Refused:
    for kind in (_ConflictBody, _Refused):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(body, type=kind)
    return _Refused(_Reason(_NO_ROUTE, ""))


def in_path(text: str) -> str:
    """A name or an id as a part of a path."""
    return quote(text, safe="")


def _join(path: str, query: Mapping[str, str]) -> str:
    """Nothing is called like bytes that are no text, and nothing is found."""
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


class Client:
    """A hub at `url`. Answers come as the bytes the hub sent: callers that show JSON pass them on unchanged. Of several
    addresses, separated by commas, the first that answers is used, until it does not answer.

    `token` is sent with every question, where the hub wants one. `shown` is the address without any password.
    """

    def __init__(self, url: str, timeout: float = 10.0, *, token: str | None = None) -> None:
        self._urls = split_hubs(url)
        self._use(self._urls[0])
        self._is_chosen = len(self._urls) == 1
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UsageError("the token has characters that no token has.", "Look at $GPUDECK_TOKEN.")
        self._token = token
        self._timeout = timeout

    def with_token(self, token: str) -> "Client":
        """The same hub, asked with another token."""
        return Client(",".join(self._urls), self._timeout, token=token)

    def read(self, body: bytes, kind: type[T]) -> T:
        """An answer of this hub as a struct: see `read_answer`."""
        return read_answer(body, kind, self.shown)

    def get(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """What the hub has there (docs/routes.md), as JSON. `query` is what stands behind the question mark."""
        return self._ask("GET", _join(path, query))

    def post(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        return self._ask("POST", path, body)

    def put(self, path: str, body: dict[str, Any]) -> bytes:
        return self._ask("PUT", path, body)

    def delete(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> bytes:
        return self._ask("DELETE", _join(path, query))

    def host(self, name: str) -> bytes:
        """One host, by its id or name, as JSON (see model.view.Host)."""
        return self.get(f"/api/v1/hosts/{in_path(name)}")

    def health(self, host: str, gpus: Sequence[str] = ()) -> bytes:
        """Whether jobs may start on a host, or on some of its GPUs, as JSON (see model.preflight.HostHealth)."""
        query = urlencode([("gpu", gpu) for gpu in gpus], errors="replace")
        return self.get(f"/api/v1/hosts/{in_path(host)}/health{query and f'?{query}'}")

    def hosts(self) -> bytes:
        """All hosts as JSON (a list of model.view.Host below `hosts`)."""
        return self.get("/api/v1/hosts")

    def metrics(self) -> bytes:
        """The fleet and the hub itself, as Prometheus reads them."""
        return self._ask("GET", "/metrics", kind="text/plain")

    def stream(self, last_event_id: str = "") -> Generator[StreamEvent, None, None]:
        """The fleet as events, from `last_event_id` on where the hub still has them: a snapshot first, then what
        changed each second. The caller closes it. It ends where the hub ends it, and raises one of http_client.TROUBLE
        where the connection breaks or nothing comes for `timeout` seconds."""
        headers = self._headers() | {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        try:
            answer = self._request("GET", "/api/v1/stream", headers, is_stream=True)
            if answer.status == 200 and answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                return _read_events(answer)
            body = answer.read()
            answer.close()
        except TROUBLE as error:
            self._explain(error)
        raise self._refusal(answer.status, body, is_question=True) if answer.status != 200 else self._no_hub()

    def download(
        self, path: str, query: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int | None, Generator[bytes, None, None]]:
        """A file of the hub, such as an export, in parts, and about how many bytes it has; None where the hub does not
        say. Raises Unreachable also where it ends too early."""
        headers = self._headers() | {"Accept": "*/*"}
        try:
            answer = self._request("GET", _join(path, query), headers, is_stream=True)
            body = answer.read() if answer.status != 200 else b""
        except TROUBLE as error:
            self._explain(error)
        if answer.status != 200:
            raise self._refusal(answer.status, body, is_question=True)
        size = answer.headers.get("X-Estimated-Bytes", "")
        return int(size) if size.isdigit() else None, self._read_parts(answer)

    def _read_parts(self, answer: urllib3.BaseHTTPResponse) -> Generator[bytes, None, None]:
        with contextlib.closing(answer):
            try:
                yield from answer.stream(_CHUNK)
            except TROUBLE as error:
                self._explain(error)

    def me(self) -> Identity:
        """Whom the hub takes the asker for."""
        return self.read(self.get("/api/v1/me"), Identity)

    def log_in(self, name: str, password: str, label: str, seconds: float) -> PersonalToken:
        """A personal token that expires after so long; `label` says what it is for. The session that the password
        opens for it is ended again. Raises Forbidden where the name or the password is wrong."""
        opened = self._send("POST", "/api/v1/login", {"name": name, "password": password})
        cookie = {"Cookie": opened.headers.get("Set-Cookie", "").partition(";")[0]}
        wanted = {"name": label[:128], "expire_seconds": seconds}
        made = self._send("POST", "/api/v1/me/token", wanted, others=cookie)
        self._send("POST", "/api/v1/logout", others=cookie)
        return self.read(made.data, PersonalToken)

    def begin_login(self, label: str, seconds: float, port: int | None = None) -> DeviceLogin:
        """A login that the user confirms on the page, with `redeem_login` for the token. With `port` the confirmation
        goes to that port of the browser's machine."""
        wanted = {"name": label[:128], "expire_seconds": seconds, "port": port}
        return self.read(self._send("POST", "/api/v1/device", wanted).data, DeviceLogin)

    def redeem_login(self, device_code: str, code: str = "") -> PersonalToken:
        """The token of a login that was confirmed. Raises LoginPending until then, and UsageError where it was denied
        or has expired."""
        wanted = {"device_code": device_code, "code": code}
        return self.read(self._send("POST", "/api/v1/device/token", wanted).data, PersonalToken)

    def revoke_own_token(self) -> None:
        """Revoke the token that this client sends."""
        self._ask("DELETE", "/api/v1/me/token")

    def ask_queue(self, number: int, wait: float = 0.0, seen: str = "") -> bytes | None:
        """A position in the queue as JSON, with what is granted; None where the hub has no such request. Waits up to so
        many seconds for anything else than `seen`, the `version` of the answer before."""
        query = urlencode({"wait": f"{wait:g}", "seen": seen})
        try:
            return self.get(f"/api/v1/queue/{number}?{query}")
        except NotFound:
            return None

    def leave_queue(self, number: int) -> None:
        """Give up a position in the queue, or what was granted. One that is gone already is no error."""
        with contextlib.suppress(NotFound):
            self._ask("DELETE", f"/api/v1/queue/{number}")

    def release(self, number: int) -> ShownReservation:
        """Give a reservation back; what is left of it."""
        try:
            body = self._ask("DELETE", f"/api/v1/reservations/{number}")
        except UsageError as error:
            # It is over: nothing is wrong with the question.
            raise GpudeckError(error.message, error.hint) from error
        return self.read(body, ShownReservation)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, kind: str = "application/json") -> bytes:
        return self._send(method, path, body, kind).data

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        kind: str = "application/json",
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> urllib3.BaseHTTPResponse:
        """`others` are further headers."""
        headers = self._headers() | dict(others)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            sent = None if body is None else msgspec.json.encode(body)
        except UnicodeError as error:
            raise UsageError("what is asked for has bytes that are no text.", "Write it in UTF-8.") from error
        try:
            answer = self._request(method, path, headers, body=sent)
        except TROUBLE as error:
            self._explain(error)
        if answer.status not in {200, 201}:
            raise self._refusal(answer.status, answer.data, is_question=method == "GET")
        if not answer.headers.get("Content-Type", "").startswith(kind):
            raise self._no_hub()
        return answer

    def _request(
        self, method: str, path: str, headers: dict[str, str], *, body: bytes | None = None, is_stream: bool = False
    ) -> urllib3.BaseHTTPResponse:
        if not self._is_chosen:
            self._choose()
        try:
            return ask(method, self.url + path, headers, self._timeout, body=body, is_stream=is_stream)
        except TROUBLE:
            # Not asked again elsewhere: the hub may have done it.
            self._is_chosen = len(self._urls) == 1
            raise

    def _choose(self) -> None:
        """The first hub that answers; where none does, the first, whose error is then shown."""
        for url in self._urls:
            with contextlib.suppress(*TROUBLE):
                if ask("GET", f"{url}/healthz", {}, min(_PROBE_SECONDS, self._timeout)).status == 200:
                    self._is_chosen = True
                    self._use(url)
                    return
        self._use(self._urls[0])

    def _use(self, url: str) -> None:
        self.url, self.shown = url, mask_password(url)

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept": "application/json"}
        return headers if self._token is None else headers | {"Authorization": f"Bearer {self._token}"}

    def _explain(self, error: Exception) -> NoReturn:
        reason, hint = _diagnose(error, self.url, self._timeout)
        raise Unreachable(f"no hub answers at {self.shown}: {mask_password(reason)}.", hint) from error

    def _refusal(self, status: int, body: bytes, *, is_question: bool) -> GpudeckError:
        refused = _read_refusal(body)
        code, message, hint = refused.error.code, refused.error.message.rstrip("."), refused.error.hint
        # Every hub knows our routes: this is another server, or a path beside the hub's.
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
        if isinstance(refused, _ConflictBody):
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


def _diagnose(error: Exception, url: str, timeout: float) -> tuple[str, str]:
    """Why no hub answers at this address, and what to do."""
    host = urlsplit(url).hostname or ""
    if isinstance(error, urllib3.exceptions.NameResolutionError | urllib3.exceptions.LocationParseError | UnicodeError):
        return f"the name {clean(host)} does not resolve", f"Check its spelling. {_NAMED}"
    if (distrust := find_distrust(error)) is not None:
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
    """None for what is no event: a comment, or how long to wait before coming again."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    if b"event" not in fields or b"data" not in fields:
        return None
    return StreamEvent(fields[b"event"].decode(), fields.get(b"id", b"").decode(), fields[b"data"])
