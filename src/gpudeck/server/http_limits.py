"""The hub's outermost door: who may connect, and how long a request may take to come.

uvicorn's httptools protocol has no limits of its own: one connection could fill the memory, a few hundred idle ones use
up all descriptors.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpudeck.api.addresses import Networks, count_as
from gpudeck.api.errors import encode_error
from gpudeck.api.headers import SAFE_HEADERS
from gpudeck.api.limits import COSTLY_REPORT, OPENING, Measure, Seats
from gpudeck.model.http_host import find_host_problem
from gpudeck.model.limits_settings import LimitsSettings

MOST_HEAD_BYTES = 64 * 1024
MOST_WAITING_REQUESTS = 16
"""Requests that a client may send ahead on one connection, without waiting for the answers."""
STALL_SECONDS = 10.0
LEAST_TAKEN_BYTES = 16 * 1024
"""What a client has to take of an answer in that time: what it does not take fills the hub's memory."""

# Strangers could fill the log with what they send.
_log = logging.getLogger("uvicorn.error.requests")
_log.setLevel(logging.ERROR)


class Wall:
    """What all connections share: how many there are, of whom, and what was refused (`hits`, by its limit)."""

    def __init__(
        self,
        settings: LimitsSettings | None = None,
        *,
        proxies: Sequence[str] = (),
        hits: Counter[str] | None = None,
    ) -> None:
        """`proxies` bring many callers each: limits for one address do not hold for them."""
        self.settings = settings or LimitsSettings()
        self.hits: Counter[str] = Counter() if hits is None else hits
        self._seats = Seats(self.settings.connections_per_address, self.settings.connections)
        self._openings = Measure("openings", self.settings.requests_per_second, self.settings.requests_burst)
        self._unlimited = Networks([*self.settings.unlimited, *proxies])
        self._silent: dict[Visit, None] = {}

    def admit(self, address: str, now: float, abort: Callable[[], None]) -> "Visit | None":
        """None where it may not stay; else it has to `leave`. `abort` ends the connection, should it have to go."""
        caller = count_as(address)
        is_limited = self._unlimited.is_empty or not self._unlimited.has(address)
        if is_limited and not self._seats.is_enough_for(caller):
            self.hits["connections_per_address"] += 1
            return None
        if is_limited and self._openings.take(caller, now):
            self.hits["connections_per_second"] += 1
            return None
        if self._seats.is_full and not self._make_room():
            return None
        self._seats.take(caller)
        visit = Visit(self, caller, abort)
        self._silent[visit] = None
        return visit

    def leave(self, visit: "Visit") -> None:
        self._seats.leave(visit.caller)
        self._silent.pop(visit, None)

    def note_question(self, visit: "Visit") -> None:
        self._silent.pop(visit, None)

    def forgive(self, visit: "Visit") -> None:
        self._openings.charge(visit.caller, asyncio.get_running_loop().time(), -1.0)

    def blame(self, visit: "Visit") -> None:
        """It has sent what nobody sends who means well: its address may open fewer connections for a while."""
        self._openings.charge(visit.caller, asyncio.get_running_loop().time(), COSTLY_REPORT)

    def _make_room(self) -> bool:
        """The oldest of those who have connected and not asked for anything yet has to go."""
        self.hits["connections"] += 1
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        oldest.abort()
        oldest.leave()
        return True


class Visit:
    """A connection that was let in, from the moment on in which it was made."""

    def __init__(self, wall: Wall, caller: str, abort: Callable[[], None]) -> None:
        self.caller = caller
        self.abort = abort
        self._wall = wall
        self._is_over = False
        self._is_forgiven = False

    def abort_with(self, abort: Callable[[], None]) -> None:
        """What ends the connection from here on."""
        self.abort = abort

    def note_question(self) -> None:
        """It has asked for something: from now on it makes room for nobody."""
        self._wall.note_question(self)

    def forgive(self) -> None:
        """Its opening does not count: who came with it reports, and is measured by that. Once more does nothing."""
        if not self._is_forgiven:
            self._is_forgiven = True
            self._wall.forgive(self)

    def leave(self) -> None:
        """The connection is closed. Once more does no harm."""
        if not self._is_over:
            self._is_over = True
            self._wall.leave(self)


class _Part(Enum):
    """What of a request is awaited."""

    HEAD = "head_time"
    BODY = "body_time"
    NOTHING = "idle_time"


class LimitedProtocol(HttpToolsProtocol):
    """One connection. It ends when a part of a request takes too long or is too large, or an answer is not taken."""

    _head_bytes = 0
    _problem: str | None = None
    _part = _Part.HEAD
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, wall: Wall, visit: Visit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wall = wall
        self._visit = visit
        self.logger = _log

    def connection_made(self, transport: Any) -> None:
        # Of the transport and not of this: the two would hold each other when the connection is long over.
        self._visit.abort_with(transport.abort)
        super().connection_made(transport)
        self._await_within(self._wall.settings.head_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._forget_stall()
        self._visit.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._part is _Part.HEAD:
            self._head_bytes += len(data)
            # What a whole body has brought along in the same piece is let through: its own limit comes later.
            if self._head_bytes > MOST_HEAD_BYTES + len(data) or len(data) > 16 * MOST_HEAD_BYTES:
                self._wall.blame(self._visit)
                self._give_up("head_size")
                return
        super().data_received(data)
        if self._deadline is None and not self.transport.is_closing():
            self._watch()

    def on_message_begin(self) -> None:
        self._go_on_to(_Part.HEAD)
        super().on_message_begin()
        self.scope["extensions"] = {OPENING: {"give_back": self._visit.forgive}}

    def on_headers_complete(self) -> None:
        self._go_on_to(_Part.BODY)
        self._visit.note_question()
        if len(self.pipeline) >= MOST_WAITING_REQUESTS:
            self._wall.hits["requests_ahead"] += 1
            self._refuse("too many requests are sent ahead")
        hosts = [value for name, value in self.headers if name == b"host"]
        if problem := find_host_problem(hosts, self.parser.get_http_version()):
            self._refuse(problem)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._go_on_to(_Part.NOTHING)
        super().on_message_complete()

    def _refuse(self, problem: str) -> None:
        """The parser answers 400 for what is raised within it."""
        self._problem = problem
        raise ValueError(problem)

    def send_400_response(self, msg: str) -> None:
        """In the one shape of errors."""
        body = encode_error("bad_request", "this is no HTTP request that this hub understands", self._problem or msg)
        lines = [b"%b: %b\r\n" % header for header in SAFE_HEADERS]
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n%bcontent-length: %d"
            b"\r\n\r\n%b" % (b"".join(lines), len(body), body)
        )
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_taking(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stall()

    def _watch(self) -> None:
        """Set a deadline for what of a request is still to come; a request that came in one piece needs none."""
        if self._part is not _Part.NOTHING:
            self._await_within(getattr(self._wall.settings, self._part.value))
        elif self.timeout_keep_alive_task is None and self.cycle.response_complete:
            # Empty lines between requests: they have ended the server's own deadline for an idle connection.
            self._await_within(self._wall.settings.idle_time)

    def _go_on_to(self, part: _Part) -> None:
        self._part, self._head_bytes = part, 0
        if self._deadline is not None:
            self._forget_deadline()

    def _await_within(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_taking(self, waiting: int) -> None:
        self._forget_stall()
        self._stall = self.loop.call_later(STALL_SECONDS, self._check_taking, waiting)

    def _check_taking(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if before - waiting < LEAST_TAKEN_BYTES:
            self._give_up("answer_time")
        else:
            self._expect_taking(waiting)

    def _forget_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _give_up(self, name: str | None = None) -> None:
        """End it at once, with whatever is still to be sent."""
        self._wall.hits[name or self._part.value] += 1
        self._forget_deadline()
        self._forget_stall()
        self.transport.abort()
