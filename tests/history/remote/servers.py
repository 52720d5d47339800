"""A server that answers as a test says, and remembers what it was asked."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cramjam
from msgspec import Struct


class Asked(Struct, frozen=True):
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def series(self) -> bytes:
        """What a request of remote_write holds, unpacked."""
        return bytes(cramjam.snappy.decompress_raw(self.body))


Answer = tuple[int, dict[str, str], bytes]
TAKEN: Answer = (204, {}, b"")


class ScriptedServer(ThreadingHTTPServer):
    """`answer` decides on each request; `asked` are all of them."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        asked = Asked(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
        self.server.asked.append(asked)
        status, headers, said = self.server.answer(asked)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(said))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def scripted_server(
    answer: Callable[[Asked], Answer], context: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    with ScriptedServer(answer) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.scheme = "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def in_turn(*answers: Answer) -> Callable[[Asked], Answer]:
    """One after the other; the last for ever."""
    waiting = list(answers)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]
