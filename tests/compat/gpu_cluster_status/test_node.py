"""An agent that listens, asked as the main of GPU Cluster Status Monitor asks its nodes."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.agent.listen import BODY_BYTES, LatestReport, Listener
from gpudeck.agent.outbox import EncodedReport
from gpudeck.compat.gpu_cluster_status_node import NodeResponder
from gpudeck.model.address import open_socket
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.settings import Address
from gpudeck.wire import encode

AT = 1_790_000_000.25
RIGHT = b'{"passwd": "s3cret"}'


@contextlib.contextmanager
def listening(desk: LatestReport) -> Iterator[int]:
    node = NodeResponder("s3cret", lambda: desk.newest)
    listener = Listener(open_socket(Address("127.0.0.1", 0)), desk, None, posts={"/get-status": node.answer})
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        yield listener.port
    finally:
        listener.stop()
        thread.join(10)


@pytest.fixture
def port() -> Iterator[int]:
    desk = LatestReport()
    report = Report(
        gpus=[make_gpu(0), make_busy_gpu(1)],
        addresses=["192.0.2.2", "2001:db8::2"],
        interfaces={"192.0.2.2": "eth0", "2001:db8::2": "eth0"},
    )
    desk.put(EncodedReport("gpu01", encode(make_envelope("gpu01", report=report, collected_at=AT))))
    with listening(desk) as started:
        yield started


def ask(port: int, body: bytes = RIGHT, method: str = "POST", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, "/get-status", body, {"Content-Type": "application/json"} | headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_body_is_that_of_a_node(port: int) -> None:
    status, body = ask(port)
    told = json.loads(body)
    assert (status, body[-1:]) == (200, b"\n")
    assert body == json.dumps(told, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert told.keys() == {"hostname", "last_update", "ips", "gpus"}
    assert (told["hostname"], told["ips"]) == ("gpu01", [["eth0", "192.0.2.2"]])
    assert told["last_update"] == datetime.fromtimestamp(AT).isoformat(timespec="microseconds")  # noqa: DTZ006
    assert [gpu.keys() for gpu in told["gpus"]] == [
        {"index", "name", "use_mem", "tot_mem", "utilize", "temp", "users"}
    ] * 2
    assert told["gpus"][1]["users"][0].keys() == {"pid", "username", "mem(MiB)", "command"}
    assert told["gpus"][1]["users"][0]["username"] == "alice"
    assert told["gpus"][0]["users"] == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"passwd": "8888"}',
        b'{"passwd": "s3cre"}',
        b'{"passwd": null}',
        b'{"passwd": ["s3cret"]}',
        b"{}",
        b"[]",
        b'"s3cret"',
        b"passwd=s3cret",
        b"",
        b"\xff",
        b"[" * 10_000,
    ],
)
def test_a_wrong_password_finds_nothing(port: int, body: bytes) -> None:
    status, answer = ask(port, body)
    assert status == 404
    assert b"gpu01" not in answer


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_only_posts_are_answered(port: int, method: str) -> None:
    assert ask(port, b"", method)[0] == 405


def test_the_agents_own_token_is_not_asked_for(port: int) -> None:
    assert ask(port, Authorization="Bearer wrong")[0] == 200


def test_unknown_is_null_and_no_zero() -> None:
    desk = LatestReport()
    gpu = GpuReading("GPU-0", 0, "NVIDIA A100", metrics={"memory_total_bytes": 80 << 30})
    desk.put(EncodedReport("gpu01", encode(make_envelope("gpu01", gpus=[gpu], collected_at=AT))))
    with listening(desk) as port:
        told = json.loads(ask(port)[1])["gpus"][0]
    assert (told["use_mem"], told["utilize"], told["temp"], told["tot_mem"]) == (None, None, None, 81920)


def test_before_the_first_reading_there_is_nothing_to_tell() -> None:
    with listening(LatestReport()) as port:
        assert ask(port)[0] == 503


def test_a_connection_is_kept_between_questions(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("POST", "/get-status", RIGHT)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            own = connection.sock
        assert connection.sock is own


def test_a_slow_question_is_heard_and_one_that_ends_early_costs_nobody(port: int) -> None:
    head = b"POST /get-status HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(RIGHT)
    with socket.create_connection(("127.0.0.1", port), 20) as broken:
        broken.sendall(head + RIGHT[:5])
    with socket.create_connection(("127.0.0.1", port), 20) as slow:
        for start in range(0, len(head + RIGHT), 20):
            slow.sendall((head + RIGHT)[start : start + 20])
            time.sleep(0.01)
        assert slow.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert ask(port)[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: %d" % (BODY_BYTES + 1),
        b"Content-Length: -1",
        b"Content-Length: x",
        b"Transfer-Encoding: chunked",
    ],
)
def test_a_question_without_a_good_length_is_refused(port: int, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as caller:
        caller.sendall(b"POST /get-status HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + RIGHT)
        assert caller.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_without_a_password_the_path_does_not_exist() -> None:
    desk = LatestReport()
    listener = Listener(open_socket(Address("127.0.0.1", 0)), desk, None)
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        assert ask(listener.port)[0] == 404
    finally:
        listener.stop()
        thread.join(10)
