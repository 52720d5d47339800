"""Small senders of their own, on real sockets, that send exactly what was captured: kept connections, one for each
request, slow ones, and those that end in the middle."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.serving import serving
from fakes.vesta import CAPTURES, TOKEN, VestaHub, captured_posts
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.connections import ConnectionLimiter

OK = b'{"status": "OK", "status_code": 200}'


def captured_requests(host_id: str) -> list[bytes]:
    """The three requests of the real sender, with this hub's token and the id that it gave."""
    parts = (CAPTURES / "sender-exchange.txt").read_bytes().split(b"\n=== ")
    sent = [part.split(b" bytes\n", 1)[1] for part in parts if part.startswith(b"C->S")]
    register, *posts = [part.replace(b"token=0000", f"token={TOKEN}".encode()) for part in sent]
    bodies = captured_posts()
    heads = [post.partition(b"\r\n\r\n")[0] for post in posts]
    old = b"5901beb55d9d99e9b4eb8589d508199d"
    whole = [head.replace(old, host_id.encode()) + b"\r\n\r\n" + body for head, body in zip(heads, bodies, strict=True)]
    return [register.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", *whole]


@pytest.fixture
def vesta(tmp_path: Path) -> VestaHub:
    return VestaHub(tmp_path)


@pytest.fixture
def port(vesta: VestaHub) -> Iterator[int]:
    with serving(ConnectionLimiter(LimitsSettings(head_time=2.0, body_time=2.0)), vesta.app) as started:
        yield started


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        yield connection


def read_answer(connection: socket.socket) -> bytes:
    """The body of one answer, of which the head says how long it is."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += _more(connection)
    return body


def _more(connection: socket.socket) -> bytes:
    chunk = connection.recv(65536)
    assert chunk, "the hub hung up"
    return chunk


def test_a_sender_may_keep_its_connection(vesta: VestaHub, port: int) -> None:
    with connected(port) as connection:
        connection.sendall(captured_requests("")[0])
        told = json.loads(read_answer(connection))
        for request in captured_requests(told["id"])[1:]:
            connection.sendall(request)
            assert read_answer(connection) == OK
    assert vesta.hub.fleet.hosts["gputest001"].status == "up"


def test_a_sender_may_connect_for_each_request(vesta: VestaHub, port: int) -> None:
    host_id = str(vesta.add("gputest001")["id"])
    for request in captured_requests(host_id)[1:]:
        with connected(port) as connection:
            connection.sendall(request)
            assert read_answer(connection) == OK


def test_requests_may_come_one_behind_the_other(vesta: VestaHub, port: int) -> None:
    host_id = str(vesta.add("gputest001")["id"])
    with connected(port) as connection:
        connection.sendall(b"".join(captured_requests(host_id)[1:]))
        received = b""
        while received.count(OK) < 2:
            received += _more(connection)
    assert vesta.register.get(host_id).sequence == 2  # type: ignore[union-attr]


def test_a_sender_that_is_told_404_registers_and_posts_again_on_the_same_connection(vesta: VestaHub, port: int) -> None:
    with connected(port) as connection:
        connection.sendall(captured_requests("abcdef")[1])
        assert json.loads(read_answer(connection))["status_code"] == 404
        connection.sendall(captured_requests("")[0])
        host_id = json.loads(read_answer(connection))["id"]
        connection.sendall(captured_requests(host_id)[1])
        assert read_answer(connection) == OK


def test_a_slow_sender_is_heard(vesta: VestaHub, port: int) -> None:
    request = captured_requests(str(vesta.add("gputest001")["id"]))[1]
    with connected(port) as connection:
        for start in range(0, len(request), 200):
            connection.sendall(request[start : start + 200])
            time.sleep(0.02)
        assert read_answer(connection) == OK


def test_a_post_that_ends_in_the_middle_changes_nothing(vesta: VestaHub, port: int) -> None:
    host_id = str(vesta.add("gputest001")["id"])
    request = captured_requests(host_id)[1]
    for length in (len(request) - 1, len(request) // 2, 40):
        with connected(port) as connection:
            connection.sendall(request[:length])
    with connected(port) as connection:
        connection.sendall(captured_requests(host_id)[2])
        assert read_answer(connection) == OK
    assert vesta.register.get(host_id).sequence == 1  # type: ignore[union-attr]


def test_whoever_comes_with_a_wrong_token_and_a_long_body_is_not_listened_to(vesta: VestaHub, port: int) -> None:
    with connected(port) as connection:
        connection.sendall(
            b"POST /update/host/1?token=no HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n\r\n" + b"x" * 10_000
        )
        assert json.loads(read_answer(connection))["status_code"] == 403
        assert connection.recv(1) == b""


ONE_OPENING = LimitsSettings(requests_per_second=0.001, requests_burst=2)


def exchange(port: int, request: bytes) -> bytes:
    """On a connection of its own; empty where the hub does not let it in."""
    with connected(port) as connection:
        try:
            connection.sendall(request)
            return read_answer(connection)
        except (AssertionError, ConnectionError):
            return b""


def test_a_site_behind_one_gateway_may_connect_for_each_post(vesta: VestaHub) -> None:
    host_id = str(vesta.add("gputest001")["id"])
    register, post, _ = captured_requests(host_id)
    vesta.limit(ONE_OPENING)
    limiter = ConnectionLimiter(ONE_OPENING)
    with serving(limiter, vesta.app) as port:
        assert [exchange(port, post) for _ in range(6)] == [OK] * 6
        assert all(b'"status": "OK"' in exchange(port, register) for _ in range(6))
    assert limiter.hits == {}


def test_strangers_are_let_in_as_often_as_ever(vesta: VestaHub) -> None:
    post = captured_requests(str(vesta.add("gputest001")["id"]))[1]
    vesta.limit(ONE_OPENING)
    limiter = ConnectionLimiter(ONE_OPENING)
    with serving(limiter, vesta.app) as port:
        assert exchange(port, post) == OK
        guesses = [exchange(port, post.replace(TOKEN.encode(), b"guessed")) for _ in range(4)]
        assert [guess != b"" for guess in guesses] == [True, True, False, False]
        assert exchange(port, post) == b""
    assert limiter.hits == {"connections_per_second": 3}


def test_an_opening_is_given_back_once_however_much_is_posted_on_it(vesta: VestaHub) -> None:
    post = captured_requests(str(vesta.add("gputest001")["id"]))[1]
    vesta.limit(ONE_OPENING)
    limiter = ConnectionLimiter(ONE_OPENING)
    question = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(limiter, vesta.app) as port, connected(port) as silent, connected(port) as connection:
        for _ in range(4):
            connection.sendall(post)
            assert read_answer(connection) == OK
        assert [exchange(port, question) != b"" for _ in range(2)] == [True, False]
        silent.sendall(question)
        assert read_answer(silent)
