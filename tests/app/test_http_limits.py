"""Requests whose head never ends."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import HubProcess, running_hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(folder) as running:
        yield running


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
