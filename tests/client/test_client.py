"""What the command line is told when a hub does not answer as it should."""

import contextlib
import gzip
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.certificates import Authority
from gpudeck import here
from gpudeck.client import Client
from gpudeck.model.errors import Unreachable, UsageError


def test_certificate_that_is_not_believed_is_named_as_such(tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("localhost")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        port = listening.getsockname()[1]

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(ssl.SSLError, OSError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable, match=r"no hub answers at .*: its certificate is not trusted \(unable to get"):
            Client(f"https://localhost:{port}").get("/api/v1/fleet")
        thread.join(10)


@pytest.mark.parametrize("token", ["two\nlines", "gr\u00fcn", "\udcff"])
def test_token_that_no_header_takes_is_not_blamed_on_the_hub(token: str) -> None:
    with pytest.raises(UsageError, match="characters that no token has"):
        Client("http://127.0.0.1:1", token=token)


def test_arguments_that_cannot_be_meant_are_not_blamed_on_the_hub() -> None:
    with pytest.raises(UsageError, match="timeout=-1"):
        Client("http://127.0.0.1:1", timeout=-1)
    client = Client("http://127.0.0.1:1", retries=-1)
    with pytest.raises(UsageError, match="a name is empty"):
        client.host("")
    with pytest.raises(UsageError, match="does not begin with a slash"):
        client.get("api/v1/fleet")
    with pytest.raises(Unreachable, match="connection refused"):
        client.totals()


@pytest.mark.parametrize("gpus", [0, -1])
def test_here_takes_at_least_one_gpu(gpus: int) -> None:
    with pytest.raises(UsageError, match="at least one"):
        here().take(gpus)


def test_bytes_that_are_no_text_are_not_blamed_on_the_hub() -> None:
    with pytest.raises(UsageError, match="bytes that are no text"):
        Client("http://127.0.0.1:1").post("/api/v1/reservations", {"note": "\udcff"})
    with pytest.raises(Unreachable):
        Client("http://127.0.0.1:1").get("/api/v1/reservations", {"host": "\udcff"})


class Server(BaseHTTPRequestHandler):
    """Answers with what it was asked, packed where the caller takes that."""

    def do_GET(self) -> None:
        packs = "gzip" in self.headers.get("Accept-Encoding", "")
        body = json.dumps({"path": self.path, "packed": packs, "token": self.headers["Authorization"]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip" if packs else "identity")
        self.end_headers()
        self.wfile.write(gzip.compress(body) if packs else body)

    def log_message(self, *_: object) -> None:
        """Nothing: the tests' output is not for it."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("is_near", "packed"), [(True, False), (False, True)])
def test_answer_is_packed_on_its_way_from_other_machines_alone(
    port: int, is_near: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudeck.http_client.is_loopback", lambda _: is_near)
    answer = json.loads(Client(f"http://127.0.0.1:{port}/gpus/", token="secret").get("/api/v1/fleet"))
    assert answer == {"path": "/gpus/api/v1/fleet", "packed": packed, "token": "Bearer secret"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "it closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "its answer ended too early"),
    ],
)
def test_server_that_speaks_no_http_or_breaks_off_is_no_hub(said: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"no hub answers at {url}: {reason}"):
            Client(url, retries=0).get("/api/v1/fleet")
        thread.join(10)


def test_next_step_fits_the_place_of_the_hub(port: int) -> None:
    with pytest.raises(Unreachable, match="connection refused") as here:
        Client("http://127.0.0.1:1").get("/api/v1/fleet")
    assert "Start one with `gpudeck up`" in here.value.hint
    with pytest.raises(Unreachable, match="it does not accept TLS") as plain:
        Client(f"https://127.0.0.1:{port}").get("/api/v1/fleet")
    assert "whether the address begins with http:// or https://" in plain.value.hint


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70, "ä" * 70])
def test_name_that_does_not_resolve_is_named(host: str) -> None:
    with pytest.raises(Unreachable, match=f"no hub answers at http://{host}:8042: the name {host} does not resolve"):
        Client(f"http://{host}:8042").get("/api/v1/fleet")
