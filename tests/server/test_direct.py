"""Reports that are served without the application: with the same responses, and nothing that is read in another way."""

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.api_app import AGENT_TOKEN, make_app
from fakes.reports import make_envelope
from fakes.serving import serving
from fakes.waiting import wait_until
from gpudeck.api.reports import DirectReports, ReportsRoute
from gpudeck.auth.tokens import Token
from gpudeck.fleet.hub import Hub
from gpudeck.history.recorder import Recorder
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.asgi import Response
from gpudeck.server.connections import (
    MAX_DIRECT_BYTES,
    READ_SECONDS,
    ConnectionLimiter,
)
from gpudeck.wire import encode

PATH = "/api/v1/reports"
ANY_HOST = Token(1, "any host", "agent", None, None, 0.0, "", None, None, None)


class Serving:
    """A hub's server. `by_app` are the paths that the application was asked for."""

    def __init__(self, limits: LimitsSettings, *, is_direct: bool = True) -> None:
        self.hub = Hub()
        self.by_app: list[str] = []
        self.limiter = ConnectionLimiter(limits)
        app = make_app(self.hub)

        async def note(scope: Any, receive: Any, send: Any) -> None:
            self.by_app.append(scope["path"])
            await app(scope, receive, send)

        self.gate = AdmissionGate(note, limits, hold=0.0, hits=self.limiter.hits)
        route = ReportsRoute(self.hub, {AGENT_TOKEN: ANY_HOST}.get)
        self.direct = DirectReports(route, self.gate, [PATH]) if is_direct else None

    @contextlib.contextmanager
    def connected(self) -> Iterator["Caller"]:
        with (
            serving(self.limiter, self.gate, direct=self.direct) as port,
            Caller(port) as caller,
        ):
            yield caller


class Caller:
    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), 20)
        self._rest = b""

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.sendall(piece)

    def read(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """The next response: its status, its headers and its body."""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._receive()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        headers = dict(field.lower().split(b": ", 1) for field in fields)
        length = int(headers[b"content-length"])
        while len(self._rest) < length:
            self._rest += self._receive()
        body, self._rest = self._rest[:length], self._rest[length:]
        return int(line.split()[1]), headers, body

    def ask(self, *pieces: bytes) -> int:
        self.send(*pieces)
        return self.read()[0]

    def _receive(self) -> bytes:
        piece = self.connection.recv(65_536)
        assert piece, "the server has ended the connection"
        return piece


def make_request(
    sequence: int, token: str = AGENT_TOKEN, body: bytes | None = None, extra: str = "", **options: Any
) -> bytes:
    body = encode(make_envelope(sequence=sequence, **options)) if body is None else body
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/msgpack\r\n"
        f"Content-Encoding: zstd\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


ANY = LimitsSettings(unlimited=["127.0.0.0/8"])


def test_reports_are_served_without_the_application_whole_or_in_pieces() -> None:
    with (served := Serving(ANY)).connected() as caller:
        first, second = make_request(1), make_request(2)
        assert caller.ask(first) == 202
        head, _, body = second.partition(b"\r\n\r\n")
        assert caller.ask(head[:40], head[40:], b"\r\n\r\n", body[:5], body[5:]) == 202
        assert caller.ask(second) == 200
        assert served.by_app == []
        assert served.hub.fleet.counters["reports_taken"] == 2


def test_the_application_responds_in_the_same_way() -> None:
    requests = [
        make_request(1),
        make_request(1),
        make_request(2, body=b"rubbish"),
        make_request(3, extra="Gpudeck-Sent-At: 12x\r\n"),
        make_request(4, extra="Gpudeck-Sent-At: 1.5\r\n"),
        make_request(5, token="guessed"),
    ]
    responses = []
    for is_direct in (False, True):
        with Serving(ANY, is_direct=is_direct).connected() as caller:
            told = []
            for request in requests:
                caller.send(request)
                status, headers, body = caller.read()
                headers.pop(b"date")
                told.append((status, headers, body))
            responses.append(told)
            # What is refused before it is read ends the connection.
            assert caller.connection.recv(1) == b""
    assert responses[0] == responses[1]
    assert [status for status, _, _ in responses[0]] == [202, 200, 400, 202, 202, 401]


def test_other_requests_on_the_same_connection_are_for_the_application() -> None:
    with (served := Serving(ANY)).connected() as caller:
        for sequence in range(1, 4):
            assert caller.ask(make_request(sequence)) == 202
            assert caller.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == 200
        assert caller.ask(make_request(4, extra="X-Other: 1\r\n")) == 202
        assert served.by_app == ["/healthz"] * 3


def test_the_end_of_a_connection_with_reports_is_noticed() -> None:
    with (served := Serving(ANY)).connected() as caller:
        assert caller.ask(make_request(1)) == 202
        assert caller.ask(make_request(2)) == 202
        caller.connection.close()
        wait_until(lambda: served.limiter.open.total == 0, "the connection is released")


def test_requests_that_are_sent_ahead_are_all_answered_in_their_order() -> None:
    with (served := Serving(ANY)).connected() as caller:
        caller.send(make_request(1) + b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" + make_request(2) + make_request(2))
        assert [caller.read()[0] for _ in range(4)] == [202, 404, 202, 200]
        assert served.by_app == [PATH, "/nowhere", PATH, PATH]


def test_a_token_is_known_directly_once_it_was_accepted_and_its_limit_holds() -> None:
    limits = LimitsSettings(requests_per_second=0.001, requests_burst=50, reports_per_second=0.001, reports_burst=3)
    with (served := Serving(limits)).connected() as caller:
        assert [caller.ask(make_request(sequence)) for sequence in range(1, 5)] == [202, 202, 202, 429]
        assert served.by_app == [PATH]
        assert served.limiter.hits == {"reports": 1}


def test_a_report_that_is_refused_costs_as_much_as_by_the_application() -> None:
    limits = LimitsSettings(requests_per_second=0.001, requests_burst=50, reports_per_second=0.001, reports_burst=30)
    with Serving(limits).connected() as caller:
        assert caller.ask(make_request(1)) == 202
        told = [caller.ask(make_request(2, body=b"rubbish")) for _ in range(3)]
    assert told == [400, 400, 429]


def test_a_backlog_is_answered_when_it_is_on_the_disk_and_what_follows_after_it() -> None:
    flushed: list[int] = []
    served = Serving(ANY)
    served.hub.fleet.observers.add(Recorder(2.0, lambda _: None, lambda: not flushed.append(1)))
    now = served.hub.started_at
    sent = f"Gpudeck-Sent-At: {now}\r\n"
    with served.connected() as caller:
        late = make_request(1, extra=sent, collected_at=now - 600)
        assert caller.ask(late) == 202
        assert flushed
        assert caller.ask(make_request(2, extra=sent, collected_at=now)) == 202
    assert served.by_app == []


@pytest.mark.parametrize(("piece", "limit"), [(b"", "head_time"), (b"\r\nContent-Length: 9\r\n\r\nabc", "body_time")])
def test_a_report_that_never_ends_is_given_up(piece: bytes, limit: str) -> None:
    served = Serving(LimitsSettings(unlimited=["127.0.0.0/8"], head_time=0.2, body_time=0.2))
    with served.connected() as caller:
        assert caller.ask(make_request(1)) == 202
        caller.send(f"POST {PATH} HTTP/1.1\r\nHost: x".encode() + piece)
        assert caller.connection.recv(1) == b""
        wait_until(lambda: served.limiter.hits[limit] == 1, "it is counted")


def test_a_backlog_may_take_longer_to_save_than_any_deadline_and_is_answered_before_the_hub_stops() -> None:
    is_written = threading.Event()
    served = Serving(LimitsSettings(unlimited=["127.0.0.0/8"], head_time=0.1, body_time=0.1, idle_time=0.1))
    served.hub.fleet.observers.add(Recorder(2.0, lambda _: None, lambda: is_written.wait(30)))
    now = served.hub.started_at
    with contextlib.ExitStack() as stack:
        with serving(served.limiter, served.gate, direct=served.direct) as port:
            caller = stack.enter_context(Caller(port))
            caller.send(make_request(1, extra=f"Gpudeck-Sent-At: {now}\r\n", collected_at=now - 600))
            wait_until(lambda: served.limiter.answering, "it is being saved")
            threading.Timer(0.5, is_written.set).start()
        # The server was told to stop before the response was there.
        assert caller.read()[0] == 202
    assert not served.limiter.hits


def test_the_body_of_a_sender_that_is_not_known_is_not_waited_for() -> None:
    with (served := Serving(LimitsSettings())).connected() as caller:
        request = make_request(1, token="guessed")
        caller.send(request[:-5])
        assert caller.read()[0] == 401
        assert served.by_app == [PATH]


def test_a_report_that_is_on_its_way_makes_no_room_for_new_connections() -> None:
    served = Serving(LimitsSettings(unlimited=["127.0.0.0/8"], connections=1))
    with serving(served.limiter, served.gate, direct=served.direct) as port, Caller(port) as sender:
        request = make_request(1)
        sender.send(request[:-5])
        wait_until(lambda: not served.limiter.unused and served.limiter.open.total, "it is being received")
        with Caller(port):
            wait_until(lambda: served.limiter.hits["connections"], "another one comes")
            assert sender.ask(request[-5:]) == 202


class SlowRoute:
    """Each report takes it half of what is read in one turn of the event loop. `turns` has the turn in which each was
    served."""

    starts = (f"POST {PATH} HTTP/1.1\r\n".encode(),)

    def __init__(self) -> None:
        self.turns: list[int] = []
        self._turn = 0

    def is_known(self, _: Any) -> bool:
        return True

    def serve(self, _: Any) -> Response:
        if not self.turns:
            self._count_turns()
        self.turns.append(self._turn)
        time.sleep(READ_SECONDS / 2)
        return Response(202, b"{}")

    def _count_turns(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self._count_turns)


def test_first_reports_of_many_agents_leave_turns_for_others() -> None:
    served, route = Serving(ANY), SlowRoute()
    with (
        serving(served.limiter, served.gate, direct=route) as port,
        contextlib.ExitStack() as stack,
    ):
        callers = [stack.enter_context(Caller(port)) for _ in range(60)]
        for caller in callers:
            caller.send(make_request(1))
        assert [caller.read()[0] for caller in callers] == [202] * len(callers)
    assert max(Counter(route.turns).values()) <= 3


def test_a_connection_without_reports_is_closed_and_one_with_reports_is_not() -> None:
    served = Serving(LimitsSettings(unlimited=["127.0.0.0/8"], idle_time=2.0))
    with served.connected() as caller:
        # The application's own timer for idle connections is not left behind.
        assert caller.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == 200
        sequence = 0

        def report() -> bool:
            nonlocal sequence
            sequence += 1
            assert caller.ask(make_request(sequence)) == 202
            return served.limiter.hits["idle_time"] == 0 and sequence > 50

        wait_until(report, "reports go on for longer than the limit")
        assert caller.connection.recv(1) == b""
        wait_until(lambda: served.limiter.hits["idle_time"] == 1, "it is counted")


@pytest.mark.parametrize(
    "extra",
    [
        "Host: y\r\n",
        "Expect: 100-continue\r\n",
        "X-Forwarded-Proto: https\r\n",
        "Connection: close\r\n",
        "Host : y\r\n",
    ],
)
def test_unusual_requests_are_for_the_application_or_refused(extra: str) -> None:
    with (served := Serving(ANY)).connected() as caller:
        assert caller.ask(make_request(1, extra=f"{extra}\r\n")) in {100, 202, 400}
        assert served.hub.fleet.counters["reports_taken"] == 0 or served.by_app == [PATH]


def test_two_tokens_are_refused() -> None:
    with (served := Serving(ANY)).connected() as caller:
        assert caller.ask(make_request(1, extra=f"Authorization: Bearer {AGENT_TOKEN}\r\n")) == 400
        assert served.by_app == [PATH]


def test_large_requests_and_other_paths_are_for_the_application() -> None:
    with (served := Serving(ANY)).connected() as caller:
        assert caller.ask(make_request(1, body=b"x" * (MAX_DIRECT_BYTES + 1))) == 400
        assert served.by_app == [PATH]
    with (served := Serving(ANY)).connected() as caller:
        assert caller.ask(make_request(1).replace(b" HTTP/1.1", b"/ HTTP/1.1", 1)) == 404
        assert served.by_app == [f"{PATH}/"]
