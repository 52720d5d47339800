"""The agent's own server on real sockets: who is slow, rude or many keeps nobody else out."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fakes.hosts import BAD_HOSTS, GOOD_HOSTS
from fakes.reports import make_envelope
from fakes.waiting import wait_until
from gpudeck.agent import listen
from gpudeck.agent.listen import LatestReport, Listener, ListenToken
from gpudeck.agent.outbox import EncodedReport
from gpudeck.model.address import open_socket
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address
from gpudeck.wire import decode, encode

LOOPBACK = Address("127.0.0.1", 0)
REPORT = make_envelope(collected_at=time.time() + 3600)
BEARER = {"Authorization": "Bearer s3cret"}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    return file


@contextlib.contextmanager
def running(address: Address, token: ListenToken | None) -> Iterator[Listener]:
    desk = LatestReport()
    desk.put(EncodedReport("gpu01", encode(REPORT)))
    listener = Listener(open_socket(address), desk, token)
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        yield listener
    finally:
        listener.stop()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def listener(token_file: Path) -> Iterator[Listener]:
    with running(LOOPBACK, ListenToken(token_file)) as started:
        yield started


@contextlib.contextmanager
def connected(listener: Listener) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=20)
    with contextlib.closing(connection):
        yield connection


Reply = tuple[int, bytes, http.client.HTTPMessage]


def ask(connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str) -> Reply:
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def ask_once(listener: Listener, path: str, method: str = "GET", **headers: str) -> Reply:
    with connected(listener) as connection:
        return ask(connection, path, method, **headers)


def exchange(listener: Listener, sent: bytes) -> bytes:
    """Everything that is answered to these bytes until the server hangs up."""
    with socket.create_connection(("127.0.0.1", listener.port), 20) as caller:
        caller.sendall(sent)
        with caller.makefile("rb") as answer:
            return answer.read()


def code_of(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert error.keys() == {"code", "message", "hint"}
    return str(error["code"])


def test_the_report_is_given_to_whoever_brings_the_token(listener: Listener) -> None:
    status, body, headers = ask_once(
        listener, "/api/v1/report", **BEARER, **{"Accept": "application/msgpack", "Accept-Encoding": "zstd"}
    )
    assert (status, decode(body, headers["Content-Type"], headers["Content-Encoding"])) == (200, REPORT)
    assert abs(float(headers["Gpudeck-Sent-At"]) - time.time()) < 60


@pytest.mark.parametrize("path", ["/api/v1/report", "/metrics"])
@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer é"])
def test_without_the_token_there_is_no_report(listener: Listener, path: str, given: str) -> None:
    status, body, headers = ask_once(listener, path, Authorization=given)
    assert (status, code_of(body), headers["WWW-Authenticate"]) == (401, "unauthorized", "Bearer")
    assert b"gpu01" not in body


def test_wrong_tokens_are_noted_but_not_each_of_them(listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        ask_once(listener, "/metrics", Authorization="Bearer wr0ng")
    assert caplog.text.count("did not send this agent's token") == 1
    assert "wr0ng" not in caplog.text


def test_health_needs_no_token_and_tells_nothing_else(listener: Listener) -> None:
    status, body, _ = ask_once(listener, "/healthz")
    assert (status, json.loads(body).keys()) == (200, {"status", "version"})


def test_metrics_are_text_for_prometheus(listener: Listener) -> None:
    status, body, headers = ask_once(listener, "/metrics", **BEARER)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'gpudeck_gpu_power_watts{host="gpu01",gpu="0",uuid="GPU-0",model="NVIDIA A100-SXM4-80GB"} 60.5\n' in body


@pytest.mark.parametrize("path", ["/", "/api/v1/reports", "/../etc/passwd", "/api/v1/report/", "http://x/metrics", "*"])
def test_an_unknown_path_is_not_found(listener: Listener, path: str) -> None:
    status, body, _ = ask_once(listener, path, **BEARER)
    assert (status, code_of(body)) == (404, "not_found")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "NONSENSE"])
def test_other_methods_are_not_allowed(listener: Listener, method: str) -> None:
    status, body, headers = ask_once(listener, "/api/v1/report", method, **BEARER)
    assert (status, code_of(body), headers["Allow"]) == (405, "method_not_allowed", "GET, HEAD")


@pytest.mark.parametrize("path", ["/api/v1/report", "/metrics", "/healthz", "/nowhere"])
def test_head_is_answered_as_get_without_the_body(listener: Listener, path: str) -> None:
    with connected(listener) as connection:
        whole = ask(connection, path, **BEARER)
        head = ask(connection, path, "HEAD", **BEARER)
        after = ask(connection, "/healthz")
    assert (head[0], head[1], head[2]["Content-Type"]) == (whole[0], b"", whole[2]["Content-Type"])
    assert (int(head[2]["Content-Length"]) > 0, after[0]) == (True, 200)


def test_a_query_is_passed_over(listener: Listener) -> None:
    assert ask_once(listener, "/api/v1/report?x=1", **BEARER)[0] == 200


def test_one_connection_is_good_for_many_questions(listener: Listener) -> None:
    with connected(listener) as connection:
        ask(connection, "/healthz")
        first = connection.sock
        statuses = [ask(connection, "/api/v1/report", **BEARER)[0] for _ in range(50)]
        assert (set(statuses), connection.sock) == ({200}, first)


def test_questions_sent_together_are_answered_in_turn(listener: Listener) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    answered = exchange(
        listener, one + one.replace(b"GET", b"HEAD") + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert (answered.count(b"HTTP/1.1 200 OK"), answered.count(b'"status"')) == (3, 2)


def test_a_body_is_never_taken_for_the_next_question(listener: Listener) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    sent = b"GET /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner)
    assert exchange(listener, sent).count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1\r\nHost: a\r\nConnection: close"])
def test_a_caller_who_wants_to_go_is_let_go(listener: Listener, version: bytes) -> None:
    answer = exchange(listener, b"GET /healthz " + version + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\n\r\n", 505),
        (b"GET /healthz HTTP/x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 150 + b"\r\n", 431),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 40_000, 431),
    ],
)
def test_what_is_no_request_gets_an_error_in_the_one_shape(listener: Listener, sent: bytes, status: int) -> None:
    head, _, body = exchange(listener, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert code_of(body)
    assert ask_once(listener, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"HTTP/1.1\r\n", 400),
        (b"HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
        (b"HTTP/1.0\r\nHost: a\r\nhost: b\r\n", 400),
        *((b"HTTP/1.1\r\nHost:" + bad + b"\r\n", 400) for bad in BAD_HOSTS),
        *((b"HTTP/1.1\r\nHost: " + good + b"\r\n", 200) for good in GOOD_HOSTS),
    ],
)
def test_a_question_names_one_host(listener: Listener, head: bytes, status: int) -> None:
    sent = b"GET /healthz " + head + b"\r\n" + b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answered = exchange(listener, sent)
    assert answered.startswith(b"HTTP/1.1 %d " % status)
    assert answered.count(b"HTTP/1.1 ") == (2 if status == 200 else 1)


def test_callers_who_only_connect_or_dawdle_keep_nobody_out(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Their time never runs out: only that they make room for others lets anybody in.
    monkeypatch.setattr(listen, "HEAD_SECONDS", 300.0)
    with contextlib.ExitStack() as idle:
        for number in range(3 * listen.MAX_CONNECTIONS):
            caller = idle.enter_context(socket.create_connection(("127.0.0.1", listener.port), 20))
            caller.sendall(b"GET /api/v1/report HTTP/1.1\r\nX-Slow: "[: number % 40])
        assert ask_once(listener, "/api/v1/report", **BEARER)[0] == 200


def test_a_kept_connection_that_is_silent_too_long_is_closed(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "IDLE_SECONDS", 0.1)
    assert exchange(listener, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").count(b"HTTP/1.1 200 OK") == 1


def test_sixty_callers_at_once_are_all_answered(listener: Listener) -> None:
    def call(_: int) -> int:
        return ask_once(listener, "/api/v1/report", **BEARER)[0]

    with ThreadPoolExecutor(60) as callers:
        assert set(callers.map(call, range(200))) == {200}
    wait_until(lambda: listener.connections == 0, "empty seats")


def test_kept_connections_beyond_the_seats_make_room_for_each_other(listener: Listener) -> None:
    with contextlib.ExitStack() as kept:
        connections = [kept.enter_context(connected(listener)) for _ in range(2 * listen.MAX_CONNECTIONS)]
        for _ in range(2):
            for connection in connections:
                with contextlib.suppress(http.client.HTTPException, OSError):
                    ask(connection, "/healthz")
        assert listener.connections <= listen.MAX_CONNECTIONS
        assert ask_once(listener, "/api/v1/report", **BEARER)[0] == 200


def test_stopping_ends_connections_that_are_open(token_file: Path) -> None:
    with running(LOOPBACK, ListenToken(token_file)) as listener:
        caller = socket.create_connection(("127.0.0.1", listener.port), 20)
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert caller.recv(4096).startswith(b"HTTP/1.1 200")
        port = listener.port
    with caller:
        assert caller.recv(4096) == b""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 20)


def test_a_new_token_counts_at_once_and_the_old_one_no_more(listener: Listener, token_file: Path) -> None:
    assert ask_once(listener, "/metrics", **BEARER)[0] == 200
    new = token_file.with_name("new")
    new.write_text("n3w\n")
    new.rename(token_file)
    statuses = [ask_once(listener, "/metrics", Authorization=f"Bearer {token}")[0] for token in ("s3cret", "n3w")]
    assert statuses == [401, 200]


def test_a_token_file_that_goes_away_is_complained_of_once(
    listener: Listener, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token_file.unlink()
    assert [ask_once(listener, "/metrics", **BEARER)[0] for _ in range(3)] == [200, 200, 200]
    assert caplog.text.count("cannot be read") == 1


def test_without_a_token_file_everybody_on_this_machine_is_answered() -> None:
    with running(LOOPBACK, None) as listener:
        assert ask_once(listener, "/api/v1/report")[0] == 200


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "called"), [("::1", "::1"), ("", "127.0.0.1"), ("", "::1"), ("::", "127.0.0.1")])
def test_it_listens_on_ipv6_and_on_every_interface(host: str, called: str) -> None:
    with running(Address(host, 0), None) as listener:
        connection = http.client.HTTPConnection(called, listener.port, timeout=20)
        with contextlib.closing(connection):
            assert ask(connection, "/healthz")[0] == 200


def test_an_address_that_is_taken_or_elsewhere_is_named(listener: Listener) -> None:
    with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{listener.port}: address already in use\. .*--listen"):
        open_socket(Address("127.0.0.1", listener.port))
    with pytest.raises(UsageError, match=r"203\.0\.113\.7:7080: cannot assign requested address"):
        open_socket(Address("203.0.113.7", 7080))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_given_back(listener: Listener) -> None:
    ask_once(listener, "/healthz")
    wait_until(lambda: listener.connections == 0, "empty seats")
    before = descriptors()
    for _ in range(100):
        ask_once(listener, "/healthz")
        exchange(listener, b"rubbish\r\n\r\n")
    wait_until(lambda: listener.connections == 0, "empty seats")
    wait_until(lambda: descriptors() <= before, "descriptors")
    assert descriptors() <= before
