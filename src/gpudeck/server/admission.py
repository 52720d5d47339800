"""Admission control: which requests are served, and in which order. An ASGI application in front of all others; see
docs/limits.md. It costs a few microseconds per request, before the request is read."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import Literal, Protocol, cast

from msgspec import Struct

from gpudeck.model.settings import LimitsSettings
from gpudeck.server.addresses import Callers, Networks, count_as
from gpudeck.server.asgi import App, Message, Receive, Scope, Send, send_error
from gpudeck.server.rate_limits import ConcurrencyLimiter, FairQueue, RateLimiter

KINDS = (
    *("requests", "reports", "registrations", "logins", "streams", "streams_per_address"),
    *("connections", "connections_per_address", "connections_per_second", "handshakes"),
    *("head_size", "head_time", "body_time", "idle_time", "answer_time", "requests_ahead"),
)
"""The limits whose refusals `hits` counts: those of this module and those of connections."""
HOLD_SECONDS = 1.0
"""A refusal is delayed by this much on average, so that clients that retry at once on many connections cost little."""
COSTLY_REPORT = 20.0
"""A refused report that had to be decompressed costs its address this many requests."""
REGISTRATIONS_PER_SECOND, REGISTRATIONS_BURST = 10.0, 200
"""For senders with a valid token that ask for an id, per address."""
BYTES_A_REQUEST, MAX_FOR_BYTES = 256 * 1024, 20
"""This many bytes of a response cost another request, up to a maximum: a script may read the largest fleet every
second."""
SECONDS_A_REQUEST, MAX_FOR_TIME = 0.01, 10
"""This much time before the response begins costs another request, up to a maximum, because other requests may have
caused part of it."""
FILES, FILES_A_REQUEST = "/assets/", 5
"""This many of the page's files cost one request: a class that opens the page behind one address asks for hundreds."""
CONNECTION = "gpudeck.connection"
"""A key in the extensions of a scope: its `refund` returns the cost of opening the connection."""
LOGIN_WAIT = "gpudeck.login_wait"
"""In the scope of a provider's callback beyond the limit of logins: the seconds until a login is tried again. It must
not be."""
_REPORTS, _STREAM, _LOGIN = "/api/v1/reports", "/api/v1/stream", "/api/v1/login"
_MESSAGES = {
    "requests": "this address asks more often than this hub lets it",
    "reports": "more reports come with this token from this address than this hub takes",
    "logins": "too many attempts to log in come from this address",
    "streams": "as many live views are open as this hub allows",
    "streams_per_address": "this address has as many live views open as this hub allows",
}


class ReportSender(Struct, frozen=True):
    """A request of a known sender. `reports` are limited by `id`, from any address; `registrations` by address, because
    their senders have no id yet."""

    kind: Literal["reports", "registrations"]
    id: Hashable = None


class ReportSenders(Protocol):
    """Senders other than agents: they report on paths of their own, and do not handle 429."""

    def owns(self, path: str) -> bool:
        """Whether the path, without the hub's prefix, is one of theirs. Called for every request."""
        ...

    def recognize(self, path: str, scope: Scope) -> ReportSender | None:
        """None for an unknown sender, whose request counts towards its address."""
        ...

    def is_refusal(self, body: bytes) -> bool:
        """Whether a response with this body refuses a report that had to be read."""
        ...

    async def refuse(self, send: Send) -> None:
        """Answers a report over the limit such that the sender retries later."""
        ...


class _AdmittedReport(Struct):
    """`key` is the key of its limit; `caller` is None for a report without limits."""

    caller: str | None
    key: Hashable
    refund: Callable[[], None]


class _Request(Struct):
    """An admitted request. `waited` are the seconds before its response that cost the hub nothing."""

    gate: "AdmissionGate"
    caller: str | None
    waited: float = 0.0


_request: ContextVar[_Request] = ContextVar("request")


def exclude_wait(seconds: float) -> None:
    """Exclude time that the current request spent waiting for others from its cost."""
    if request := _request.get(None):
        request.waited += seconds


async def checkpoint() -> None:
    """Yield to other requests. Work of more than a millisecond calls this in between."""
    if request := _request.get(None):
        await request.gate.wait_again(request)
    else:
        await asyncio.sleep(0)


class AdmissionGate:
    """`app` behind its limits. `hits` counts refusals by limit. `proxies` are networks whose forwarding headers are
    trusted; `prefix` may precede the paths of `senders` and of files. One event loop owns it."""

    def __init__(
        self,
        app: App,
        settings: LimitsSettings,
        *,
        proxies: Sequence[str] = (),
        hits: Counter[str] | None = None,
        senders: Sequence[ReportSenders] = (),
        prefix: str = "",
        now: Callable[[], float] = monotonic,
        hold: float = HOLD_SECONDS,
    ) -> None:
        self.hits: Counter[str] = Counter() if hits is None else hits
        self._app = app
        self._now = now
        self._hold = hold
        self._callers = Callers(proxies)
        self._unlimited = Networks(settings.unlimited)
        self._requests = RateLimiter("requests", settings.requests_per_second, settings.requests_burst)
        self._reports = RateLimiter("reports", settings.reports_per_second, settings.reports_burst)
        self._registrations = RateLimiter("registrations", REGISTRATIONS_PER_SECOND, REGISTRATIONS_BURST)
        self._logins = RateLimiter("logins", settings.logins_per_second, settings.logins_burst)
        self._streams = ConcurrencyLimiter(settings.streams_per_address, settings.streams)
        self._starts = FairQueue(self._requests, now=now)
        # Logins, including begun ones: in a flood of them the address with the fewest recent ones is next, and other
        # requests wait for at most one of them.
        self._attempts = RateLimiter("attempts", settings.logins_per_second, settings.logins_burst)
        self._login_starts = FairQueue(self._attempts, now=now)
        self._senders = tuple(senders)
        self._prefix = prefix.rstrip("/")

    def knows_sender(self, peer: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a report with its token was accepted from its address before, or its address is not limited."""
        caller, key = self._find_sender(peer, headers)
        return caller is None or key in self._reports

    def admit_report(
        self, peer: str, headers: Mapping[bytes, bytes], refund: Callable[[], None]
    ) -> "_AdmittedReport | None":
        """Admits an agent's report immediately; None if it must be admitted like any other request: its token is not
        known here yet, or the limit is reached."""
        caller, key = self._find_sender(peer, headers)
        if caller is not None and (key not in self._reports or self._reports.take(key, self._now())):
            return None
        return _AdmittedReport(caller, key, refund)

    def _find_sender(self, peer: str, headers: Mapping[bytes, bytes]) -> tuple[str | None, Hashable]:
        """The key of the sender's limits (None: no limits), and the key of the sender."""
        callers = self._callers
        address = peer if callers.proxies.is_empty else callers.place({"client": (peer, 0), "headers": headers.items()})
        if self._unlimited.has(address):
            return None, None
        caller = count_as(address)
        return caller, (hash(headers.get(b"authorization", b"")), caller)

    def charge_report(self, report: "_AdmittedReport", status: int) -> None:
        """Called after its response: see `_charge_for_report`."""
        if report.caller is not None:
            self._charge(report, _refuses_status(status), is_known=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = self._callers.place(scope)
        caller = None if self._unlimited.has(address) else count_as(address)
        if scope["path"].endswith(_STREAM):
            await self._open_stream(caller, scope, receive, send)
            return
        path = scope["path"].removeprefix(self._prefix)
        limiter = None
        if caller is not None:
            senders = next((senders for senders in self._senders if senders.owns(path)), None)
            limiter, wait, send = self._admit(caller, path, senders, scope, send)
            if wait:
                await self._refuse(limiter.name, wait, send, senders)
                return
        if limiter is not self._reports:
            if caller is not None and _LOGIN in path:
                await self._wait_for_login(caller)
            else:
                await self._wait_for_start(caller)
            _request.set(request := _Request(self, caller))
            if caller is not None and limiter is self._requests:
                if path.startswith(FILES):
                    self._requests.charge(caller, self._now(), 1 / FILES_A_REQUEST - 1)
                else:
                    send = self._charge_for_response(caller, request, send)
        await self._app(scope, receive, send)

    def _admit(
        self, caller: str, path: str, senders: ReportSenders | None, scope: Scope, send: Send
    ) -> tuple[RateLimiter, float, Send]:
        """The limiter of this request, the seconds that it has to wait, and the send function for its response."""
        is_refused: Callable[[Message], bool | None] = _refuses_report
        key: Hashable = None
        limiter, by = self._requests, cast("Hashable", caller)
        if senders is not None:
            sender = senders.recognize(path, scope)
            if sender is not None and sender.kind == "registrations":
                limiter = self._registrations
            elif sender is not None:
                key, is_refused = (senders, sender.id), partial(_refuses_body, senders)
                limiter, by = self._reports, key
        elif path.endswith(_REPORTS):
            # A token that was accepted from an address has its own limit there. It is kept as a hash, as
            # secrets are not stored unless needed.
            token = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            key = (hash(token), caller)
            limiter, by = (self._reports, key) if key in self._reports else (limiter, by)
        elif _is_login(scope["method"], path):
            limiter = self._logins
        wait = limiter.take(by, self._now())
        if wait and limiter is self._logins and scope["method"] == "GET":
            # A browser that comes back from a provider: the hub sends it to the page, which says why.
            self.hits[limiter.name] += 1
            scope[LOGIN_WAIT] = wait
            limiter, wait = self._requests, self._requests.take(by, self._now())
        if limiter is self._registrations and not wait:
            _refund_connection(scope)
        if key is not None and not wait:
            send = self._charge_for_report(key, caller, is_refused, scope, send)
        return limiter, wait, send

    def _charge_for_report(
        self, key: Hashable, caller: str, is_refused: Callable[[Message], bool | None], scope: Scope, send: Send
    ) -> Send:
        """A report that is refused despite a valid token costs more. `key` is known once a report is accepted; then
        the cost of its connection is refunded to the address, because senders are limited by their key, behind any
        gateway."""
        is_known = key in self._reports
        report = _AdmittedReport(caller, key, lambda: _refund_connection(scope))

        async def send_and_charge(message: Message) -> None:
            self._charge(report, is_refused(message), is_known=is_known)
            await send(message)

        return send_and_charge

    def _charge(self, report: "_AdmittedReport", refused: bool | None, *, is_known: bool) -> None:
        if refused:
            self._requests.charge(report.caller, self._now(), COSTLY_REPORT)
            if is_known:
                self._reports.charge(report.key, self._now(), COSTLY_REPORT)
        elif refused is False:
            report.refund()
            if not is_known:
                self._reports.take(report.key, self._now())

    def _charge_for_response(self, caller: str, request: _Request, send: Send) -> Send:
        began = self._now()

        async def send_and_charge(message: Message) -> None:
            if message["type"] == "http.response.start":
                cost = min((self._now() - began - request.waited) / SECONDS_A_REQUEST, MAX_FOR_TIME)
            else:
                cost = min(len(message.get("body", b"")) / BYTES_A_REQUEST, MAX_FOR_BYTES)
            # The request was charged less.
            if cost >= 1:
                self._requests.charge(caller, self._now(), cost)
            await send(message)

        return send_and_charge

    async def _wait_for_start(self, caller: str | None) -> None:
        """One request starts per turn of the event loop: reports are served in between."""
        if not self._starts.is_taken:
            asyncio.get_running_loop().call_soon(self._start_next)
        await self._starts.acquire(caller)

    async def _wait_for_login(self, caller: str) -> None:
        self._attempts.charge(caller, self._now(), 1)
        await self._login_starts.acquire(caller)
        try:
            await self._wait_for_start(caller)
        finally:
            self._login_starts.release()

    def _start_next(self) -> None:
        self._starts.release()
        if self._starts.is_taken:
            asyncio.get_running_loop().call_soon(self._start_next)

    async def wait_again(self, request: _Request) -> None:
        """Wait as if the request started again."""
        asked = self._now()
        await self._wait_for_start(request.caller)
        request.waited += self._now() - asked

    async def _open_stream(self, caller: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        refusal, wait = None, 10.0
        if self._streams.is_full:
            refusal = "streams"
        elif caller is not None and (seconds := self._requests.take(caller, self._now())):
            refusal, wait = "requests", seconds
        elif caller is not None and not self._streams.has_room_for(caller):
            refusal = "streams_per_address"
        if refusal:
            await self._refuse(refusal, wait, send)
            return
        self._streams.acquire(caller or "")
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams.release(caller or "")

    async def _refuse(self, name: str, wait: float, send: Send, senders: ReportSenders | None = None) -> None:
        self.hits[name] += 1
        # With jitter: clients that came together would otherwise retry together.
        await asyncio.sleep(self._hold * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        if senders is not None:
            await senders.refuse(send)
            return
        seconds = max(1, math.ceil(wait - self._hold))
        hint = f"Try again in {seconds} s; limits in gpudeck.yaml says how much is too much."
        await send_error(send, 429, "too_many", _MESSAGES[name], hint, (b"retry-after", b"%d" % seconds))


def _is_login(method: str, path: str) -> bool:
    """Whether the path is a login with a password or the callback of a provider. Normalized as by the framework:
    /api/v1//login/ is /api/v1/login."""
    read = f"/{'/'.join(filter(None, path.split('/')))}"
    return read.endswith(_LOGIN) if method == "POST" else f"{_LOGIN}/oidc/" in read and read.endswith("/callback")


def _refuses_report(message: Message) -> bool | None:
    """Whether this part of a response refuses an agent's report that had to be read; None if it cannot tell."""
    return _refuses_status(message.get("status", 500))


def _refuses_status(status: int) -> bool | None:
    return status in {400, 413, 422} or (False if status < 300 else None)


def _refuses_body(senders: ReportSenders, message: Message) -> bool | None:
    """The same for senders whose responses always have status 200."""
    return senders.is_refusal(message["body"]) if "body" in message else None


def _refund_connection(scope: Scope) -> None:
    connection = scope.get("extensions", {}).get(CONNECTION)
    if connection is not None:
        connection["refund"]()
