"""How much of the hub one caller may have: counted in front of everything else, for a few microseconds a request.

A token that was taken once from an address has a measure of its own there, so that agents are heard while somebody
behind the same gateway floods the hub. Everything else of an address, tokens that nobody knows among it, counts as one.
"""

import asyncio
import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from time import monotonic

from gpudeck.api.addresses import Callers, Networks, count_as
from gpudeck.api.asgi import App, Message, Receive, Scope, Send, send_error
from gpudeck.api.senders import Sender, Senders
from gpudeck.model.limits_settings import LimitsSettings

KINDS = (
    *("requests", "reports", "registrations", "logins", "streams", "streams_per_address"),
    *("connections", "connections_per_address", "connections_per_second", "handshakes"),
    *("head_size", "head_time", "body_time", "idle_time", "answer_time", "requests_ahead"),
)
"""What `hits` may be counted of: here, and by the server in front of this."""
HOLD_SECONDS = 1.0
"""How long a refusal is kept back on average: whoever asks again at once, on however many connections, costs little."""
COSTLY_REPORT = 20.0
"""A report that has to be unpacked to be refused costs its address as much as so many requests."""
REGISTRATIONS_PER_SECOND, REGISTRATIONS_BURST = 10.0, 200
"""Of senders that bring their token and ask for an id, from one address."""
BYTES_A_REQUEST, MOST_FOR_BYTES = 256 * 1024, 20
"""So many bytes of an answer cost as much as another request: a whole fleet is no small thing to ask for. Up to so many
requests: a script may ask for the largest fleet every second."""
SECONDS_A_REQUEST, MOST_FOR_TIME = 0.01, 10
"""And so much time until it begins: a question about a year of history is none either. Up to so many requests, since
some of that time may be others' fault."""
FILES, FILES_A_REQUEST = "/assets/", 5
"""So many files of the page itself cost as much as a request: a class that opens it behind one address asks for
hundreds, each for a small part of the work of any other request."""
_excused: ContextVar[list[float]] = ContextVar("excused")
OPENING = "gpudeck.opening"
"""Among the extensions of a scope: its `give_back` gives the address the opening of this connection back. The server in
front of this counts openings before anybody can say who comes."""
TURN = "gpudeck.turn"
"""Among the extensions of a scope too: what waits for another turn of the event loop, one request in each. Whatever
takes more than a millisecond is done in parts, with this between them."""
_MOST_CALLERS = 16_384
_TOLERANCE_SECONDS = 1e-6
_REPORTS = "/api/v1/reports"
_STREAM = "/api/v1/stream"
LOGINS = ("/api/v1/login",)


def excuse(seconds: float) -> None:
    """So much of the time until the answer to this request began was spent waiting for others: it costs nothing."""
    _excused.get([]).append(seconds)


class Measure:
    """So many a second, and so many at once, for each of many callers.

    A caller is one number: when what it has taken will be made up for. Those who were not seen for longest are
    forgotten, which does them no harm; so `most` callers twice over is all that is kept.
    """

    def __init__(self, name: str, per_second: float, burst: int, most: int = _MOST_CALLERS) -> None:
        self.name = name
        self._pause = 1.0 / per_second
        # A sum of times is not exact: without the tolerance the last of a burst in one instant is refused now and then.
        self._window = (burst - 1) * self._pause + _TOLERANCE_SECONDS
        self._most = most
        self._recent: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._before)

    def take(self, caller: Hashable, now: float) -> float:
        """0.0 when the caller may have one more; else how many seconds it has to wait."""
        due = self._recent.get(caller)
        if due is None:
            due = self._welcome(caller, now)
        elif due < now:
            due = now
        ahead = due - now
        if ahead > self._window:
            return ahead - self._window
        self._recent[caller] = due + self._pause
        return 0.0

    def take_if_known(self, caller: Hashable, now: float) -> float | None:
        """The same; None for a caller that has never taken one, or not for long."""
        return self.take(caller, now) if caller in self._recent or caller in self._before else None

    def due(self, caller: Hashable, now: float) -> float:
        """When what the caller has had will be made up for; now, where it is."""
        return max(now, self._recent.get(caller, now))

    def charge(self, caller: Hashable, now: float, more: float) -> None:
        """What the caller has been given turned out to cost so many more; so many less where that is below 0."""
        due = self._recent.get(caller)
        if due is None:
            due = self._welcome(caller, now)
        self._recent[caller] = max(now, due) + more * self._pause

    def _welcome(self, caller: Hashable, now: float) -> float:
        due = max(now, self._before.pop(caller, now))
        if len(self._recent) >= self._most:
            self._before, self._recent = self._recent, {}
        self._recent[caller] = due
        return due


class Seats:
    """How many of something are in use at once, by each caller and in all."""

    def __init__(self, per_caller: int, in_all: int) -> None:
        self._per_caller = per_caller
        self._in_all = in_all
        self._taken: dict[str, int] = {}
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= self._in_all

    def is_enough_for(self, caller: str) -> bool:
        return self._taken.get(caller, 0) < self._per_caller

    def take(self, caller: str) -> None:
        self._taken[caller] = self._taken.get(caller, 0) + 1
        self.total += 1

    def leave(self, caller: str) -> None:
        self.total -= 1
        left = self._taken[caller] - 1
        if left:
            self._taken[caller] = left
        else:
            del self._taken[caller]


class Turnstile:
    """One enters in each turn of the event loop, of those who wait whoever has had the least. A crowd that comes at
    once is then served one by one, whatever need not pass here is served between each two of them, and who asks now
    and then waits for the one that is inside, not for the crowd.

    `due` is when what somebody has had will be made up for: those who come after that moment do not pass by."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def enter(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn = loop.create_future()
            heapq.heappush(self._waiting, (due, next(self._numbers), turn))
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._let_next_in)

    def _let_next_in(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else whoever waited has gone
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._let_next_in)
                return
        self._is_taken = False


class LimitedApp:
    """The hub's front door behind its limits. `hits` counts what was refused, by the limit that refused it.

    `proxies` are the networks whose word about the caller's address counts. `senders` know those who report in another
    way than agents; `prefix` is what their paths may begin with. One event loop owns it.
    """

    def __init__(
        self,
        app: App,
        settings: LimitsSettings,
        *,
        proxies: Sequence[str] = (),
        hits: Counter[str] | None = None,
        logins: Collection[str] = LOGINS,
        senders: Sequence[Senders] = (),
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
        self._requests = Measure("requests", settings.requests_per_second, settings.requests_burst)
        self._reports = Measure("reports", settings.reports_per_second, settings.reports_burst)
        self._registrations = Measure("registrations", REGISTRATIONS_PER_SECOND, REGISTRATIONS_BURST)
        self._logins = Measure("logins", settings.logins_per_second, settings.logins_burst)
        self._streams = Seats(settings.streams_per_address, settings.streams)
        self._turnstile = Turnstile()
        self._login_paths = tuple(logins)
        self._senders = tuple(senders)
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = self._callers.place(scope)
        caller = None if not self._unlimited.is_empty and self._unlimited.has(address) else count_as(address)
        path: str = scope["path"]
        if path.endswith(_STREAM):
            await self._open_stream(caller, scope, receive, send)
            return
        measure, is_file = None, False
        if caller is not None:
            senders, own_path = self._find_senders(path)
            if senders is None:
                measure, wait, send = self._measure(caller, path, scope, send)
            else:
                sender = senders.recognize(own_path, scope)
                measure, wait, send = self._measure_sender(senders, sender, caller, scope, send)
            if wait:
                await self._refuse(measure.name, wait, send, senders)
                return
            is_file = measure is self._requests and own_path.startswith(FILES)
            if is_file:
                self._requests.charge(caller, self._now(), 1 / FILES_A_REQUEST - 1)
        if measure is not self._reports:
            await self._enter(caller)
            scope.setdefault("extensions", {})[TURN] = partial(self._take_turn, caller)
        if caller is not None and measure is self._requests and not is_file:
            send = self._weigh_answer(caller, send)
        await self._app(scope, receive, send)

    def _measure(self, caller: str, path: str, scope: Scope, send: Send) -> tuple[Measure, float, Send]:
        """What measures this request, how long it has to wait, and what its answer goes through."""
        now = self._now()
        if path.endswith(_REPORTS):
            # By its hash: a secret is not kept where it need not be, and nobody can make another with the same.
            bearer = (hash(_authorization(scope)), caller)
            wait = self._reports.take_if_known(bearer, now)
            send = self._judge_report(bearer, caller, wait is not None, scope, send)
            if wait is not None:
                return self._reports, wait, send
        elif scope["method"] == "POST" and _without_empty_parts(path).endswith(self._login_paths):
            return self._logins, self._logins.take(caller, now), send
        return self._requests, self._requests.take(caller, now), send

    def _judge_report(self, bearer: Hashable, caller: str, is_known: bool, scope: Scope, send: Send) -> Send:
        """A token that was taken is known from then on; a report that was not, though its token is good, costs more."""

        async def send_and_judge(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if status in {400, 413, 422}:
                    self._requests.charge(caller, self._now(), COSTLY_REPORT)
                    if is_known:
                        self._reports.charge(bearer, self._now(), COSTLY_REPORT)
                elif status < 300:
                    _give_opening_back(scope)
                    if not is_known:
                        self._reports.take(bearer, self._now())
            await send(message)

        return send_and_judge

    def _find_senders(self, path: str) -> tuple[Senders | None, str]:
        """Whose path it is, where it is not of our own interface; and the path without the prefix."""
        prefix = self._prefix
        if prefix and path.startswith(f"{prefix}/"):
            path = path[len(prefix) :]
        return next((senders for senders in self._senders if senders.owns(path)), None), path

    def _measure_sender(
        self, senders: Senders, sender: Sender | None, caller: str, scope: Scope, send: Send
    ) -> tuple[Measure, float, Send]:
        now = self._now()
        if sender is None:
            return self._requests, self._requests.take(caller, now), send
        if sender.kind == "registrations":
            wait = self._registrations.take(caller, now)
            if not wait:
                _give_opening_back(scope)
            return self._registrations, wait, send
        by = (senders, sender.id)
        wait = self._reports.take(by, now)
        # A refusal of these limits says the same as one of a report that was read: it costs nothing more.
        return self._reports, wait, send if wait else self._judge_sender(senders, by, caller, scope, send)

    def _judge_sender(self, senders: Senders, by: Hashable, caller: str, scope: Scope, send: Send) -> Send:
        """As `_judge_report`, for those whose answers have the status 200 whatever they say."""

        async def send_and_judge(message: Message) -> None:
            if senders.is_refusal(message.get("body", b"")):
                self._requests.charge(caller, self._now(), COSTLY_REPORT)
                self._reports.charge(by, self._now(), COSTLY_REPORT)
            elif message["type"] == "http.response.body":
                _give_opening_back(scope)
            await send(message)

        return send_and_judge

    async def _enter(self, caller: str | None) -> None:
        now = self._now()
        await self._turnstile.enter(now if caller is None else self._requests.due(caller, now))

    async def _take_turn(self, caller: str | None) -> None:
        asked = self._now()
        await self._enter(caller)
        excuse(self._now() - asked)

    def _weigh_answer(self, caller: str, send: Send) -> Send:
        began, excused = self._now(), list[float]()
        _excused.set(excused)

        async def send_and_weigh(message: Message) -> None:
            if message["type"] == "http.response.start":
                cost = min((self._now() - began - sum(excused)) / SECONDS_A_REQUEST, MOST_FOR_TIME)
            else:
                cost = min(len(message.get("body", b"")) / BYTES_A_REQUEST, MOST_FOR_BYTES)
            # What is small was paid for with the request.
            if cost >= 1:
                self._requests.charge(caller, self._now(), cost)
            await send(message)

        return send_and_weigh

    async def _open_stream(self, caller: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        seats = self._streams
        if seats.is_full:
            await self._refuse("streams", 10.0, send)
            return
        if caller is not None:
            wait = self._requests.take(caller, self._now())
            if wait:
                await self._refuse("requests", wait, send)
                return
            if not seats.is_enough_for(caller):
                await self._refuse("streams_per_address", 10.0, send)
                return
        seats.take(caller or "")
        try:
            await self._app(scope, receive, send)
        finally:
            seats.leave(caller or "")

    async def _refuse(self, name: str, wait: float, send: Send, senders: Senders | None = None) -> None:
        self.hits[name] += 1
        # Those who came together are not answered together: they would all be back in one moment.
        await asyncio.sleep(self._hold * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        if senders is not None:
            await senders.refuse(send)
            return
        seconds = max(1, math.ceil(wait - self._hold))
        await send_error(
            send,
            429,
            "too_many",
            _WORDS[name],
            f"Try again in {seconds} s; limits in gpudeck.yaml says how much is too much.",
            (b"retry-after", b"%d" % seconds),
        )


_WORDS = {
    "requests": "this address asks more often than this hub lets it",
    "reports": "more reports come with this token from this address than this hub takes",
    "logins": "too many attempts to log in come from this address",
    "streams": "as many live views are open as this hub allows",
    "streams_per_address": "this address has as many live views open as this hub allows",
}


def _give_opening_back(scope: Scope) -> None:
    """Who reports is measured by its token or id. Many of them may come through one gateway, each with a new connection
    for every report."""
    opening = scope.get("extensions", {}).get(OPENING)
    if opening is not None:
        opening["give_back"]()


def _without_empty_parts(path: str) -> str:
    """The path as the framework reads it: /api/v1//login/ is /api/v1/login there."""
    return "/" + "/".join(part for part in path.split("/") if part)


def _authorization(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
    return b""
