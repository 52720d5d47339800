"""Servers that anything may be pointed at, and that answer anything but what they are asked for."""

import contextlib
import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

from fakes.reports import make_envelope
from gpudeck.wire import encode

Answer = Callable[[socket.socket], None]
_GIB = 1024**3
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
_PAGE = b"<!doctype html><title>Welcome to nginx!</title>\n"


def answer_html(asked: socket.socket) -> None:
    asked.recv(65536)
    asked.sendall(_HEAD + b"Content-Length: %d\r\n\r\n" % len(_PAGE) + _PAGE)


def answer_half_a_line(asked: socket.socket) -> None:
    asked.recv(65536)
    asked.sendall(_HEAD + b'Content-Length: 5000\r\n\r\nDCGM_FI_DEV_GPU_UTIL{gpu="0",UU')


def answer_without_end(asked: socket.socket) -> None:
    """1 GiB, to whoever takes it."""
    asked.recv(65536)
    asked.sendall(_HEAD + b"\r\n")
    piece = b"DCGM_FI_DEV_GPU_UTIL 1\n" * 4096
    for _ in range(_GIB // len(piece)):
        asked.sendall(piece)


def answer_nothing(asked: socket.socket) -> None:
    """Waits until the other side has had enough."""
    while asked.recv(65536):
        pass


def close_at_once(asked: socket.socket) -> None:
    asked.shutdown(socket.SHUT_RDWR)


def answer_as(host_id: str) -> Answer:
    """An agent of the machine with that id, and of a run of its own."""
    sequence, run_id = itertools.count(1), f"run-{time.monotonic_ns()}"

    def answer(asked: socket.socket) -> None:
        asked.recv(65536)
        body = encode(make_envelope(sequence=next(sequence), run_id=run_id, host_id=host_id, collected_at=time.time()))
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Encoding: zstd\r\nConnection: close\r\n"
        asked.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    return answer


class _Handler(socketserver.BaseRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.server.answer(self.request)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """The port of a server that answers so."""
    with _Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name=f"server {answer}")
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join(20)
