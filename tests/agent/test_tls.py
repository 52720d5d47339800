"""The agent's own server with TLS: the same limits, the same files."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.certificates import Authority
from fakes.reports import make_envelope
from fakes.waiting import wait_until
from gpudeck.agent import listen
from gpudeck.agent.listen import MAX_CONNECTIONS, LatestReport, Listener
from gpudeck.agent.outbox import EncodedReport
from gpudeck.model.address import open_socket
from gpudeck.model.settings import Address
from gpudeck.server import tls as tls_module
from gpudeck.server.tls import Tls
from gpudeck.wire import encode
from server.test_tls import (
    ask,
    authority,
    certificate_in,
    client_context,
    connected,
    make_pair,
    pair,
    settings_of,
    shown_certificate,
)

__all__ = ["authority", "pair"]


@contextlib.contextmanager
def listening(certificate: Tls) -> Iterator[Listener]:
    desk = LatestReport()
    desk.put(EncodedReport("gpu01", encode(make_envelope(collected_at=time.time() + 3600))))
    listener = Listener(open_socket(Address("127.0.0.1", 0)), desk, None, certificate)
    thread = threading.Thread(target=listener.run)
    thread.start()
    try:
        yield listener
    finally:
        listener.stop()
        thread.join(10)
        assert not thread.is_alive()


def test_an_agent_answers_with_tls_and_keeps_the_connection(authority: Authority, pair: Path) -> None:
    with (
        listening(Tls(settings_of(pair))) as listener,
        connected(listener.port, client_context(authority.ca_file)) as connection,
    ):
        assert b"there is nothing here" in ask(connection)
        first = connection.sock
        connection.request("GET", "/metrics")
        assert b"gpudeck_gpu_power_watts" in connection.getresponse().read()
        assert connection.sock is first


def test_an_agent_reads_its_certificate_again(
    authority: Authority, pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "CHECK_SECONDS", 0.0)
    with listening(Tls(settings_of(pair))) as listener:
        first = shown_certificate(listener.port)
        make_pair(authority, tmp_path)
        assert shown_certificate(listener.port) == certificate_in(pair) != first


def test_an_agent_wants_a_certificate_where_it_is_told_to(authority: Authority, pair: Path) -> None:
    with listening(Tls(settings_of(pair, authority.ca_file))) as listener:
        with connected(listener.port, client_context(authority.ca_file, pair)) as connection:
            assert b"there is nothing here" in ask(connection)
        with connected(listener.port, client_context(authority.ca_file)) as connection, pytest.raises(OSError):  # noqa: PT011
            ask(connection)


def test_callers_that_never_shake_hands_keep_nobody_out(authority: Authority, pair: Path) -> None:
    with listening(Tls(settings_of(pair))) as listener, contextlib.ExitStack() as callers:
        for _ in range(MAX_CONNECTIONS + 4):
            callers.enter_context(socket.create_connection(("127.0.0.1", listener.port), 20))
        with connected(listener.port, client_context(authority.ca_file)) as connection:
            assert b"there is nothing here" in ask(connection)


def test_a_handshake_that_does_not_end_is_given_up(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "HEAD_SECONDS", 0.2)
    with (
        listening(Tls(settings_of(pair))) as listener,
        socket.create_connection(("127.0.0.1", listener.port), 20) as caller,
    ):
        caller.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert caller.recv(100) == b""


def test_a_caller_without_tls_gets_no_report(pair: Path) -> None:
    with listening(Tls(settings_of(pair))) as listener:
        with socket.create_connection(("127.0.0.1", listener.port), 20) as caller:
            caller.sendall(b"GET /api/v1/report HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"gpu01" not in caller.recv(1000)
        wait_until(lambda: listener.connections == 0, "its seat is free again")
