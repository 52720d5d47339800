"""A real NATS server with JetStream."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fakes.ports import free_port
from fakes.waiting import wait_until


def find_nats() -> str:
    """The program; skips the test where there is none."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    return found or pytest.skip("there is no nats-server on this machine: run tests/system-packages.sh")


class NatsServer:
    """`stop` and `start` again keep the address and everything that was published."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", options: Sequence[str] = ()) -> None:
        self._host = host
        self._options = tuple(options)
        self._program = find_nats()
        self._folder = folder
        self.port = free_port()
        self.url = f"nats://{host}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["-a", self._host, "-p", str(self.port), "-js", "-sd", str(self._folder / "data"), *self._options]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen([self._program, *options], stdout=log, stderr=log)
        wait_until(self._is_ready, "the start of NATS", 30)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()[-2000:]
        with contextlib.suppress(OSError), socket.create_connection((self._host, self.port), 1) as connection:
            return connection.recv(4) == b"INFO"
        return False


@contextlib.contextmanager
def running_nats(host: str = "127.0.0.1") -> Iterator[NatsServer]:
    """A server that is ended at the end, with all that it kept."""
    with tempfile.TemporaryDirectory(prefix="gpudeck-nats-", ignore_cleanup_errors=True) as folder:
        server = NatsServer(Path(folder), host)
        try:
            server.start()
            yield server
        finally:
            server.kill()
