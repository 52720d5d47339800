"""The agent's own small HTTP server, for hubs that ask: GET /api/v1/report, /metrics and /healthz. Others may be given
paths of theirs, to which questions are posted.

It stands on the network of a machine with other work to do, so everything is bounded: connections, the size of a
request, how long one may take. Where all connections are taken, the one that has asked for nothing for longest makes
room, so that connections held open without a request block no other client.
"""

import contextlib
import hashlib
import hmac
import io
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

from gpudeck.agent.latest_report import HttpAnswer, LatestReport, answer_error
from gpudeck.agent.push import read_token
from gpudeck.model.address import find_host_problem
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import file_stamp

if TYPE_CHECKING:
    from gpudeck.server.tls import Tls

MAX_CONNECTIONS = 16
GRACE_SECONDS = 0.25
"""How long a caller may take to ask before another caller may have its slot."""
FULL_SECONDS = 1.0
"""How long a newcomer waits for a slot."""
log = logging.getLogger(__name__)

HEAD_BYTES = 16 * 1024
HEAD_SECONDS = 5.0
IDLE_SECONDS = 120.0
"""How long a kept connection may be silent: longer than the pause between two questions of a slow hub."""
ANSWER_SECONDS = 10.0
BODY_BYTES = 16 * 1024
BODY_SECONDS = 5.0
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_METHODS = "GET, HEAD"
_PATHS = ("/api/v1/report", "/metrics", "/healthz")


class ConnectionSlots:
    """The open connections. A connection is waiting for its caller's question, or busy with the answer."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._waiting_since: dict[socket.socket, float | None] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        """Connections that have a slot."""
        return len(self._waiting_since)

    def take(self, connection: socket.socket) -> bool:
        """Whether there is a slot for it, at once or within a second."""
        deadline = time.monotonic() + FULL_SECONDS
        with self._changed:
            while len(self._waiting_since) >= self._most and not self._is_closed:
                if time.monotonic() > deadline:
                    return False
                self._ask_one_to_leave()
                self._changed.wait(0.05)
            self._waiting_since[connection] = time.monotonic()
            return not self._is_closed

    def await_question(self, connection: socket.socket) -> None:
        """The next question of that caller is awaited from now on."""
        with self._changed:
            self._waiting_since[connection] = time.monotonic()

    def begin_answer(self, connection: socket.socket) -> bool:
        """The question has come. False when the caller was refused in that moment."""
        with self._changed:
            was_waiting = self._waiting_since.get(connection) is not None
            self._waiting_since[connection] = None
            return was_waiting

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._waiting_since.pop(connection, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections and accept no more."""
        with self._changed:
            self._is_closed = True
            for connection in self._waiting_since:
                _hang_up(connection)
            self._changed.notify_all()

    def _ask_one_to_leave(self) -> None:
        waiting = [(since, connection) for connection, since in self._waiting_since.items() if since is not None]
        since, idlest = min(waiting, key=lambda pair: pair[0], default=(0.0, None))
        if idlest is not None and time.monotonic() - since >= GRACE_SECONDS:
            self._waiting_since[idlest] = None
            _hang_up(idlest)


def _hang_up(connection: socket.socket) -> None:
    """Its thread wakes up, finds the connection at its end, and leaves."""
    with contextlib.suppress(OSError):
        # Not the TLS socket's own: that would take away what its thread is reading from.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ListenToken:
    """The token that callers have to bring, out of a file. A file that changes is read again: the old token ends."""

    def __init__(self, file: Path) -> None:
        """Raises UsageError when there is none in it."""
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._digest = b""
        self._read()

    def is_right(self, candidate: str) -> bool:
        """Takes the same time for every wrong one."""
        try:
            self._read()
        except UsageError as error:
            log.warning("%s The previous token stays valid.", error)
        return hmac.compare_digest(_digest(candidate), self._digest)

    def _read(self) -> None:
        seen = file_stamp(self._file)
        if seen == self._seen and self._digest:
            return
        # Noted first: a file that has become unreadable is complained of once, not at each question.
        self._seen = seen
        self._digest = _digest(read_token(self._file, _COPY, _COPY))


_COPY = "Put the token into its first line, or remove the file: a new one is made at the next start."


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


Post = Callable[[bytes], HttpAnswer]
"""Answers a question that was posted: its body, of BODY_BYTES at most. Any number of threads call it."""


class Listener:
    """Answers on a socket until `stop`, a thread a connection.

    Without a `token` everybody is answered, without a `certificate` in plain HTTP. `posts` are further paths, whose
    callers bring no token: what answers them looks for itself at what they bring.
    """

    def __init__(
        self,
        listening: socket.socket,
        latest: LatestReport,
        token: ListenToken | None,
        certificate: "Tls | None" = None,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        self.latest = latest
        self.token = token
        self.posts = posts or {}
        self.slots = ConnectionSlots()
        self._certificate = certificate
        self._listening = listening
        self._stopping = threading.Event()
        self._refusal_noted = float("-inf")

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, peer = self._listening.accept()
                connection = self._wrap(connection)
            except OSError:
                # Too many open files, or the caller has gone again; and the end of `stop`.
                self._stopping.wait(0.1)
                continue
            self._admit(connection, peer)
        self._listening.close()

    def stop(self) -> None:
        """Ends `run` and closes every connection. May be called from any thread."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self.slots.close()

    def note_refusal(self, peer: str) -> None:
        """Once a minute at most: clients with a wrong token retry often."""
        now = time.monotonic()
        if now - self._refusal_noted >= 60.0:
            self._refusal_noted = now
            log.warning("refused a request from %s: it did not send this agent's token", peer)

    def _wrap(self, connection: socket.socket) -> socket.socket:
        """With TLS where there is a certificate. The handshake comes later: it waits for the caller."""
        if self._certificate is None:
            return connection
        self._certificate.refresh()
        try:
            return self._certificate.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError:
            connection.close()
            raise

    def _admit(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        if not self.slots.take(connection):
            _turn_away(connection)
            return
        try:
            threading.Thread(target=self._serve, args=(connection, peer), name="asked", daemon=True).start()
        except RuntimeError:
            # No more threads for this user.
            self.slots.leave(connection)
            _turn_away(connection)

    def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        try:
            if isinstance(connection, ssl.SSLSocket):
                # Raises OSError where the caller does not speak TLS, brings no certificate, or is too slow.
                connection.settimeout(HEAD_SECONDS)
                connection.do_handshake()
            _Conversation(connection, peer, self)
        except OSError as error:
            log.debug("%s disconnected: %s", peer[0], error)
        except Exception:
            log.exception("bug while answering %s", peer[0])
        finally:
            # In this order: the file descriptor must not belong to another connection when it is shut down.
            self.slots.leave(connection)
            connection.close()


def _turn_away(connection: socket.socket) -> None:
    answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with contextlib.suppress(OSError), connection:
        connection.setblocking(False)
        connection.send(answer)
        _hear_out(connection, 0.0)


def _hear_out(connection: socket.socket, seconds: float) -> None:
    """Read what the caller still sends: closing before it was read would destroy the answer on its way."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + seconds
        connection.settimeout(seconds)
        while connection.recv(4096) and time.monotonic() < deadline:
            pass


class _Conversation(BaseHTTPRequestHandler):
    """One connection: question after question, each answered whole with one write."""

    protocol_version = "HTTP/1.1"
    # What cannot be parsed is answered as a request of today, with a status line.
    default_request_version = "HTTP/1.1"

    def __init__(self, connection: socket.socket, peer: tuple[str, int], listener: Listener) -> None:
        self._listener = listener
        self._received = b""
        self._has_answered = False
        self._has_read_body = False
        super().__init__(connection, peer, None)  # type: ignore[arg-type]  # it only keeps the server

    def setup(self) -> None:
        self.connection = self.request
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        """The listener closes the connection."""

    def handle_one_request(self) -> None:
        self.close_connection = True
        self._has_read_body = False
        self.wfile = self._written = io.BytesIO()
        head = self._read_head()
        if head is None or not self._listener.slots.begin_answer(self.connection):
            return
        # Out of `rfile` parse_request reads the headers; to `wfile` it writes its complaints.
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if self.parse_request() and not self._refuse_host():
            post = self._listener.posts.get(self.path.partition("?")[0])
            answer = self._answer() if post is None else self._answer_post(post)
            # A body that came with the question and was not read could be taken for the next question.
            has_body = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
            self.close_connection = self.close_connection or (has_body and not self._has_read_body)
            self._write(answer)
        self._send()

    def _read_head(self) -> bytes | None:
        """A request up to its empty line; None when the caller is done, or sends too much. Raises OSError."""
        self._listener.slots.await_question(self.connection)
        deadline = time.monotonic() + (IDLE_SECONDS if self._has_answered else HEAD_SECONDS)
        while (end := _END_OF_HEAD.search(self._received)) is None:
            if len(self._received) > HEAD_BYTES:
                self.request_version, self.requestline, self.command = self.protocol_version, "", "GET"
                self.send_error(431, "the request's head is too large")
                self._send()
                return None
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self.connection.recv(4096)
            if not chunk or time.monotonic() > deadline:
                return None
            if not self._received:
                deadline = min(deadline, time.monotonic() + HEAD_SECONDS)
            self._received = (self._received + chunk).lstrip(b"\r\n")
        head, self._received = self._received[: end.end()], self._received[end.end() :]
        return head

    def _refuse_host(self) -> bool:
        hosts = [value.encode("latin-1", "replace").strip() for value in self.headers.get_all("Host", [])]
        problem = find_host_problem(hosts, self.request_version.removeprefix("HTTP/"))
        if problem is not None:
            self.send_error(400, problem)
        return problem is not None

    def _answer(self) -> HttpAnswer:
        path, latest = self.path.partition("?")[0], self._listener.latest
        if path not in _PATHS:
            return answer_error(404, "not_found", "there is nothing here", f"Ask for {', '.join(_PATHS)}.")
        if self.command not in {"GET", "HEAD"}:
            return answer_error(405, "method_not_allowed", "this is only read", Allow=_METHODS)
        if path == "/healthz":
            return latest.health()
        if not self._may_read():
            self._listener.note_refusal(self.client_address[0])
            return _UNAUTHORIZED
        if path == "/metrics":
            return latest.metrics(self.headers.get("Accept", ""))
        return latest.report(self.headers.get("Accept", ""), self.headers.get("Accept-Encoding"))

    def _answer_post(self, post: Post) -> HttpAnswer:
        if self.command != "POST":
            return answer_error(405, "method_not_allowed", "questions are posted here", Allow="POST")
        body = self._read_body()
        if body is None:
            return answer_error(413, "too_large", f"a question has at most {BODY_BYTES // 1024} KiB, and its length")
        return post(body)

    def _read_body(self) -> bytes | None:
        """What came with the question; None if it is too large or has no length. Raises OSError."""
        length = self.headers.get("Content-Length", "0").strip()
        if "Transfer-Encoding" in self.headers or not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > BODY_BYTES:
            return None
        deadline = time.monotonic() + BODY_SECONDS
        while len(self._received) < int(length):
            self.connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self.connection.recv(4096)
            if not chunk or time.monotonic() > deadline:
                raise OSError("the question ends early")
            self._received += chunk
        body, self._received = self._received[: int(length)], self._received[int(length) :]
        self._has_read_body = True
        return body

    def _may_read(self) -> bool:
        token = self._listener.token
        if token is None:
            return True
        scheme, _, candidate = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and token.is_right(candidate.strip())

    def _write(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _send(self) -> None:
        self.connection.settimeout(ANSWER_SECONDS)
        self.connection.sendall(self._written.getvalue())
        self._has_answered = True
        if self.close_connection:
            _hear_out(self.connection, 0.5)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What parse_request finds wrong, in the one shape of errors."""
        self.close_connection = True
        phrase = HTTPStatus(code).phrase
        self._write(answer_error(code, phrase.lower().replace(" ", "_"), (message or phrase)[:200]))

    def version_string(self) -> str:
        return "gpudeck-agent"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is inherited
        log.debug("%s asked: %s", self.client_address[0], format % args)


_UNAUTHORIZED = answer_error(
    401,
    "unauthorized",
    "this agent answers only those who bring its token",
    "Send 'Authorization: Bearer TOKEN' with the token from the agent's token file.",
    WWW_Authenticate="Bearer",
)
