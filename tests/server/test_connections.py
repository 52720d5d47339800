"""Callers that are slow, rude or many: each costs itself only."""

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.api_app import make_app
from fakes.hosts import BAD_HOSTS, GOOD_HOSTS
from fakes.hubs import HubProcess, running_hub
from fakes.reports import make_envelope
from fakes.serving import say_hello, serving
from fakes.waiting import wait_until
from gpudeck.fleet.hub import Hub
from gpudeck.model.settings import LimitsSettings
from gpudeck.server import connections
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.connections import Connection, ConnectionLimiter
from gpudeck.wire import encode


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as running:
        yield running


@pytest.fixture(scope="module")
def server_port() -> Iterator[int]:
    with serving(ConnectionLimiter()) as port:
        yield port


def send_until_cut_off(hub: HubProcess, start: bytes, piece: bytes, most: int) -> int:
    """How much of an endless request the hub takes before it closes the connection."""
    sent = 0
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), 20) as connection:
        connection.sendall(start)
        try:
            while sent < most:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            return sent
    return most


def test_an_endless_header_is_cut_off_and_others_are_served(hub: HubProcess) -> None:
    most = 64 * 1024 * 1024
    assert send_until_cut_off(hub, b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 65_536, most) < most
    assert b"ok" in hub.get("/healthz")


def test_endless_headers_are_cut_off(hub: HubProcess) -> None:
    most = 64 * 1024 * 1024
    assert send_until_cut_off(hub, b"GET / HTTP/1.1\r\n", b"X-A: aaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 500, most) < most


def test_a_large_report_is_no_endless_head(hub: HubProcess, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", int(hub.url.rpartition(":")[2])), 20) as connection:
        connection.sendall(
            b"POST /api/v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            + hub.token_file.read_bytes().strip()
            + b"\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n"
            + b"x" * 900_000
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (b"HTTP/1.1\r\n", 400, b"no Host header"),
        (b"HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400, b"more than one Host header"),
        (b"HTTP/1.0\r\nHost: a\r\nhost: b\r\n", 400, b"more than one Host header"),
        *((b"HTTP/1.1\r\nHost:" + bad + b"\r\n", 400, b"not a host name") for bad in BAD_HOSTS),
        *((b"HTTP/1.1\r\nHost: " + good + b"\r\n", 200, b"http 0") for good in GOOD_HOSTS),
        (b"HTTP/1.0\r\n", 200, b"http 0"),
    ],
)
def test_a_request_names_one_host(server_port: int, head: bytes, status: int, told: bytes) -> None:
    with connect(server_port) as caller:
        caller.sendall(b"GET / " + head + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert told in answer


def test_a_connection_ends_with_a_request_that_names_no_host(server_port: int) -> None:
    """The rest of it could be anything."""
    with connect(server_port) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
    assert answer.count(b"HTTP/1.1 ") == 1


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def read_answer(caller: socket.socket) -> bytes:
    """All of it: head and body may come apart."""
    answer = b""
    while not answer.endswith(b"http 0") and (piece := caller.recv(1000)):
        answer += piece
    return answer


def is_cut_off(caller: socket.socket) -> bool:
    """Whether the server has ended that connection, waiting for it if need be."""
    try:
        return caller.recv(1) == b""
    except ConnectionResetError:
        return True


def ask(port: int) -> bytes:
    with connect(port) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        with caller.makefile("rb") as answer:
            return answer.read()


def test_a_slow_head_is_given_up_and_others_are_served() -> None:
    limiter = ConnectionLimiter(LimitsSettings(head_time=0.2))
    with serving(limiter) as port, connect(port) as slow, connect(port) as silent:
        slow.sendall(b"GET / HTTP/1.1\r\nHos")
        assert is_cut_off(slow)
        assert is_cut_off(silent)
        assert limiter.hits["head_time"] == 2
        assert ask(port).endswith(b"http 0")


def test_a_slow_body_is_given_up() -> None:
    limiter = ConnectionLimiter(LimitsSettings(body_time=0.2))
    with serving(limiter) as port, connect(port) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        assert is_cut_off(slow)
        assert limiter.hits["body_time"] == 1


def test_a_body_that_drips_is_given_up_as_well() -> None:
    limiter = ConnectionLimiter(LimitsSettings(body_time=0.3))
    with serving(limiter) as port, connect(port) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        slow.settimeout(0.02)

        def drip() -> bool:
            try:
                slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(drip, "the dripping body is cut off")
        assert limiter.hits["body_time"] == 1


def test_a_body_nobody_asked_for_is_not_waited_for_after_the_answer() -> None:
    async def answer_at_once(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    limiter = ConnectionLimiter(LimitsSettings(body_time=0.2))
    with serving(limiter, answer_at_once) as port, connect(port) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\na")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        assert is_cut_off(slow)


def test_empty_lines_do_not_keep_a_connection_for_ever() -> None:
    limiter = ConnectionLimiter(LimitsSettings(idle_time=0.3))
    with serving(limiter) as port, connect(port) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(idle).endswith(b"http 0")
        idle.sendall(b"\r\n")
        assert is_cut_off(idle)
        assert limiter.hits["idle_time"] == 1


def test_requests_in_pieces_and_in_a_row_are_answered() -> None:
    with serving(ConnectionLimiter()) as port, connect(port) as caller:
        pieces = (
            b"POST / HTTP/1.1\r\nHo",
            b"st: x\r\nContent-Length: 4\r\n\r\nab",
            b"cdGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        for piece in pieces:
            caller.sendall(piece)
        received = b""
        while received.count(b"http ") < 2:
            received += caller.recv(1000)
        assert b"http 4HTTP" in received


def test_requests_sent_far_ahead_are_refused_in_the_one_shape_of_errors() -> None:
    async def never(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    limiter = ConnectionLimiter()
    with serving(limiter, never) as port, connect(port) as eager:
        eager.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        with eager.makefile("rb") as answer:
            received = answer.read()
        assert received.startswith(b"HTTP/1.1 400")
        assert b'{"error":{"code":"bad_request"' in received
        assert limiter.hits["requests_ahead"] == 1


def test_rubbish_is_answered_with_safe_headers_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(ConnectionLimiter()) as port, connect(port) as rude:
        rude.sendall(b"\x00\x01\x02 rubbish\r\n\r\n")
        with rude.makefile("rb") as answer:
            received = answer.read().lower()
    assert b"x-content-type-options: nosniff" in received
    assert b"frame-ancestors 'none'" in received
    assert "Invalid HTTP" not in caplog.text


@pytest.mark.parametrize("line", [b"GET http://x HTTP/1.1", b"CONNECT x:1 HTTP/1.1", b"GET /\xff HTTP/1.1"])
def test_a_path_that_uvicorn_would_refuse_is_refused_in_the_one_shape_of_errors(server_port: int, line: bytes) -> None:
    with connect(server_port) as caller:
        caller.sendall(line + b"\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: caller.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"code":"bad_request"' in answer


def test_empty_lines_end_no_response_that_is_still_being_made() -> None:
    begun, going_on = threading.Event(), threading.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.to_thread(going_on.wait, 20)
        await say_hello(scope, receive, send)

    limiter = ConnectionLimiter(LimitsSettings(idle_time=0.05))
    with serving(limiter, wait) as port, connect(port) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.wait(20)
        caller.sendall(b"\r\n")
        caller.settimeout(0.3)
        with pytest.raises(TimeoutError):
            caller.recv(1)
        going_on.set()
        caller.settimeout(20)
        assert read_answer(caller).endswith(b"http 0")


def test_an_answer_that_is_not_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.2)

    async def pour(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000})

    limiter = ConnectionLimiter()
    with serving(limiter, pour) as port, connect(port) as greedy:
        greedy.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: limiter.hits["answer_time"] == 1, "the answer is given up")
        assert sum(iter(lambda: _read(greedy), 0)) < 50_000_000


def _read(caller: socket.socket) -> int:
    try:
        return len(caller.recv(1_000_000))
    except ConnectionResetError:
        return 0


def test_one_address_has_so_many_connections_and_the_next_is_free_when_one_goes() -> None:
    limiter = ConnectionLimiter(LimitsSettings(connections_per_address=2))
    with serving(limiter) as port:
        with connect(port), connect(port), connect(port) as third:
            assert is_cut_off(third)
        wait_until(lambda: b"http 0" in _ask_if_possible(port), "a new connection is let in")
        assert limiter.hits["connections_per_address"] >= 1


def _ask_if_possible(port: int) -> bytes:
    try:
        return ask(port)
    except ConnectionResetError:
        return b""


def test_other_addresses_are_let_in_beside_one_that_has_all_of_its_own() -> None:
    limiter = ConnectionLimiter(LimitsSettings(connections_per_address=1))
    with serving(limiter) as port, connect(port) as first, connect(port) as second:
        assert is_cut_off(second)
        other = socket.create_connection(("127.0.0.1", port), 20, source_address=("127.0.0.2", 0))
        with other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(other).endswith(b"http 0")
        first.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(first).endswith(b"http 0")


def test_an_address_that_connects_over_and_over_is_slowed_down() -> None:
    limiter = ConnectionLimiter(LimitsSettings(requests_per_second=0.01, requests_burst=2))
    with serving(limiter) as port, connect(port) as first, connect(port) as second, connect(port) as third:
        assert is_cut_off(third)
        assert limiter.hits["connections_per_second"] == 1
        for caller in (first, second):
            caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(caller).endswith(b"http 0")


def report(port: int, token: str, sequence: int) -> bool:
    """Whether a report on a connection of its own is taken."""
    body = encode(make_envelope(sequence=sequence))
    head = (
        f"POST /api/v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Encoding: zstd\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connect(port) as caller, contextlib.suppress(OSError):
        caller.sendall(head.encode() + body)
        return caller.recv(1000).startswith(b"HTTP/1.1 20")
    return False


def test_agents_behind_one_gateway_may_connect_for_each_report_and_guesses_count_as_ever() -> None:
    few = LimitsSettings(requests_per_second=0.001, requests_burst=3)
    limiter = ConnectionLimiter(few)
    with serving(limiter, AdmissionGate(make_app(Hub()), few, hold=0.0)) as port:
        assert all(report(port, "agent-token", number) for number in range(1, 9))
        assert limiter.hits == {}
        assert not any(report(port, "guessed", number) for number in range(5))
        assert limiter.hits == {"connections_per_second": 2}


def test_an_address_that_sends_endless_heads_may_open_few_connections() -> None:
    limiter = ConnectionLimiter(LimitsSettings(requests_per_second=0.01, requests_burst=22))
    with serving(limiter) as port:
        with connect(port) as rude, contextlib.suppress(OSError):
            rude.sendall(b"GET / HTTP/1.1\r\n" + b"X-A: aaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 40_000)
            assert is_cut_off(rude)
        wait_until(lambda: limiter.hits["head_size"] == 1, "it is given up")
        with connect(port) as second, connect(port) as third:
            second.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(second).endswith(b"http 0")
            assert is_cut_off(third)
        assert limiter.hits["connections_per_second"] == 1


def test_where_all_connections_are_used_those_who_never_asked_make_room() -> None:
    limiter = ConnectionLimiter(LimitsSettings(connections=2))
    with serving(limiter) as port, connect(port) as honest:
        honest.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(honest).endswith(b"http 0")
        with connect(port) as silent:
            wait_until(lambda: limiter.open.total == 2, "the silent one is in")
            with connect(port) as newcomer:
                assert is_cut_off(silent)
                newcomer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert read_answer(newcomer).endswith(b"http 0")
                with connect(port) as last:
                    assert is_cut_off(last)
        honest.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(honest).endswith(b"http 0")


def test_limits_for_one_address_do_not_hold_for_a_trusted_proxy() -> None:
    limiter = ConnectionLimiter(LimitsSettings(connections_per_address=1, requests_burst=1), proxies=["127.0.0.0/8"])
    with serving(limiter) as port, connect(port), connect(port) as second:
        second.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(second).endswith(b"http 0")


def test_nothing_is_kept_of_connections_that_are_over() -> None:
    limiter = ConnectionLimiter()
    with serving(limiter) as port:
        for _ in range(20):
            ask(port)
        wait_until(lambda: limiter.open.total == 0, "all have left")
    assert (limiter.open.in_use, limiter.unused) == ({}, {})


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_connections() -> int:
    return sum(isinstance(thing, Connection) for thing in gc.get_objects())


@pytest.mark.usefixtures("without_collector")
def test_connections_that_are_over_need_no_collector_to_go() -> None:
    limiter = ConnectionLimiter()
    with serving(limiter) as port:
        for _ in range(20):
            ask(port)
        wait_until(lambda: count_connections() == 0, "nothing is left of them")


@pytest.mark.usefixtures("without_collector")
def test_connections_that_are_given_up_need_no_collector_to_go() -> None:
    limiter = ConnectionLimiter(LimitsSettings(head_time=0.1))
    with serving(limiter) as port:
        with connect(port) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHos")
            assert is_cut_off(slow)
        wait_until(lambda: count_connections() == 0, "nothing is left of it")


@pytest.mark.usefixtures("without_collector")
def test_connections_that_are_refused_need_no_collector_to_go() -> None:
    limiter = ConnectionLimiter(LimitsSettings(requests_per_second=0.01, requests_burst=1))
    with serving(limiter) as port:
        with contextlib.ExitStack() as open_ones:
            # All at once: a refused one is held for a second before it is cut off.
            _, *refused = [open_ones.enter_context(connect(port)) for _ in range(20)]
            assert all(is_cut_off(caller) for caller in refused)
        assert limiter.hits["connections_per_second"] == 19
        wait_until(lambda: count_connections() == 0, "nothing is left of them")
