"""The stream of a hub, event by event, however the network cuts it into pieces."""

import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpudeck.client import Client, Forbidden
from gpudeck.client.connection import StreamEvent
from gpudeck.model.errors import Unreachable

EVENTS = (
    b'retry: 2000\n\nevent: snapshot\nid: a-1\ndata: {"x":": y"}\n\n: a comment\n\nevent: delta\nid: a-2\ndata: {}\n\n'
)
READ = [StreamEvent("snapshot", "a-1", b'{"x":": y"}'), StreamEvent("delta", "a-2", b"{}")]


@contextmanager
def serving(pieces: Sequence[bytes], status: int = 200, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """A server of these pieces, one write each, and the ids that were resumed from."""
    resumed: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            resumed.append(self.headers.get("Last-Event-ID", ""))
            self.send_response(status)
            for name, value in ({"Content_Type": "text/event-stream"} | headers).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", resumed
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def read(url: str, last_id: str = "") -> list[StreamEvent]:
    return list(Client(url).stream_events(last_id))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_whole_out_of_any_pieces(size: int) -> None:
    pieces = [EVENTS[at : at + size] for at in range(0, len(EVENTS), size)]
    with serving(pieces) as (url, _):
        assert read(url) == READ


def test_packed_events_are_unpacked() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [
        packer.compress(EVENTS[:40]) + packer.flush(zlib.Z_FULL_FLUSH),
        packer.compress(EVENTS[40:]),
        packer.flush(),
    ]
    with serving(pieces, Content_Encoding="gzip") as (url, _):
        assert read(url) == READ


def test_stream_is_resumed_from_the_last_event() -> None:
    with serving([EVENTS]) as (url, resumed):
        read(url, "a-7")
        assert resumed == ["a-7"]


def test_what_sends_no_events_is_no_hub() -> None:
    with (
        serving([b"hello"], Content_Type="text/html") as (url, _),
        pytest.raises(Unreachable, match="is no gpudeck hub"),
    ):
        read(url)


def test_hub_that_wants_to_know_who_asks_is_told_apart() -> None:
    body = b'{"error":{"code":"unauthorized","message":"log in first","hint":""}}'
    with (
        serving([body], 401, Content_Type="application/json") as (url, _),
        pytest.raises(Forbidden, match=r"log in first. Log in with `gpudeck login http://.*`, or set \$GPUDECK_TOKEN."),
    ):
        read(url)
