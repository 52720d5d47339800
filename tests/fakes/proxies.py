"""A forward proxy as companies have them: passes on what it is asked for, by CONNECT or by whole addresses."""

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator


class ForwardProxy:
    """`asked` holds the first line of each request. With a `login` ("name:password") others are answered 407."""

    def __init__(self, login: str | None = None) -> None:
        self.asked: list[str] = []
        self._wanted = None if login is None else "Basic " + base64.b64encode(login.encode()).decode()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += caller.recv(4096)
            lines = head.decode("latin-1").split("\r\n")
            self.asked.append(lines[0])
            if self._wanted is not None and f"Proxy-Authorization: {self._wanted}".lower() not in map(str.lower, lines):
                caller.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            self._pass_on(caller, head, lines[0])

    def _pass_on(self, caller: socket.socket, head: bytes, line: str) -> None:
        method, target, version = line.split()
        place = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = place.rpartition(":")
        server = socket.create_connection((host, int(port)), 10)
        self._open.append(server)
        if method == "CONNECT":
            caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = "/" + target.split("/", 3)[3]
            server.sendall(head.replace(line.encode(), f"{method} {path} {version}".encode(), 1))
        threading.Thread(target=_pump, args=(server, caller), daemon=True).start()
        _pump(caller, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running_proxy(login: str | None = None) -> Iterator[ForwardProxy]:
    proxy = ForwardProxy(login)
    try:
        yield proxy
    finally:
        proxy.stop()
