"""What a container is called: asked of Docker or Podman, by its id, through their sockets.

Which sockets exist and may be opened differs from machine to machine, and a runtime that is ill does not answer. An
answer is kept; what failed is left alone for a minute, so that no beat waits for the same thing again.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.collectors.redaction import clean

_SOCKETS = ("var/run/docker.sock", "run/podman/podman.sock")
_SOCKETS_OF_USER = ("run/user/{uid}/podman/podman.sock", "run/user/{uid}/docker.sock")
_TIMEOUT_SECONDS = 0.3
_RETRY_SECONDS = 60.0
_ANSWER_BYTES_AT_MOST = 1024 * 1024
_KEPT_AT_MOST = 4096
_NAME_LENGTH = 128


class _Inspected(Struct):
    name: str = msgspec.field(name="Name")


class ContainerNames:
    """Asks for names, and remembers them. `find` blocks for `timeout` seconds a socket at most, and never raises.

    `root` is where the host's file system is seen; `clock` is in seconds.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        timeout: float = _TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._timeout = timeout
        self._clock = clock
        self._names: dict[str, str] = {}
        self._left_alone_until: dict[str, float] = {}
        """By container id, and by path of a socket."""

    def find(self, container: str, uid: int | None = None) -> str | None:
        """The name of the container with that id, or None. `uid` is whose rootless container it is, if it is one."""
        if container in self._names:
            return self._names[container]
        if self._is_left_alone(container):
            return None
        self._forget_when_many()
        for path in self._find_sockets(uid):
            if not self._is_left_alone(path) and (name := self._ask(path, container)):
                self._names[container] = name
                return name
        self._leave_alone(container)
        return None

    def _find_sockets(self, uid: int | None) -> Iterator[str]:
        """Somebody's own runtime is asked for what runs in their session only: it could tell any name."""
        yield from (str(self._root / path) for path in _SOCKETS)
        if uid is not None:
            yield from (str(self._root / path.format(uid=uid)) for path in _SOCKETS_OF_USER)

    def _ask(self, path: str, container: str) -> str | None:
        try:
            answer = ask_runtime(path, f"/containers/{container}/json", self._timeout)
        except OSError:
            self._leave_alone(path)
            return None
        return _parse_name(answer)

    def _is_left_alone(self, what: str) -> bool:
        return self._clock() < self._left_alone_until.get(what, 0.0)

    def _leave_alone(self, what: str) -> None:
        self._left_alone_until[what] = self._clock() + _RETRY_SECONDS

    def _forget_when_many(self) -> None:
        if len(self._names) + len(self._left_alone_until) > _KEPT_AT_MOST:
            self._names.clear()
            self._left_alone_until.clear()


def ask_runtime(path: str, resource: str, timeout: float) -> bytes:
    """The whole answer, head and body, to a GET on a Unix socket. Raises OSError, also when time is up.

    By hand, because http.client brings 3 MiB of parsers along and waits anew for each byte. To an HTTP/1.0 question
    the answer comes in one piece and ends with the connection.
    """
    ends_at = time.monotonic() + timeout
    answer = bytearray()
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(f"GET {resource} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while received := connection.recv(65536):
            answer += received
            remaining = ends_at - time.monotonic()
            if remaining <= 0 or len(answer) > _ANSWER_BYTES_AT_MOST:
                raise TimeoutError(f"{path} takes too long to answer")
            connection.settimeout(remaining)
    return bytes(answer)


def _parse_name(answer: bytes) -> str | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    if head[:12].partition(b" ")[2] != b"200":
        return None
    try:
        name = msgspec.json.decode(body, type=_Inspected).name
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return clean(name).strip().lstrip("/")[:_NAME_LENGTH] or None
