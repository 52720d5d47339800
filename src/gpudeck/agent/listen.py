"""The agent's HTTP server, for pull: GET /api/v1/report, /metrics and /healthz. Other packages can register paths for
POST requests. A host is read at its interval: many hubs cost no more than one.

For Prometheus unknown values are left out. Process ids, commands and jobs are never labels: each new one would be a new
series for ever.

Connections and the size of a request are bounded. If all connections are taken, the one that has sent no request for
longest is closed.
"""

import contextlib
import hashlib
import hmac
import logging
import re
import socket
import ssl
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.agent.outbox import EncodedReport
from gpudeck.agent.push import read_token
from gpudeck.model import clock, exposition
from gpudeck.model.address import find_host_problem
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.errors import UsageError
from gpudeck.model.report import GpuReading, Number
from gpudeck.model.settings import file_stamp
from gpudeck.wire import Envelope, decode_own

if TYPE_CHECKING:
    from gpudeck.server.tls import Tls


STALE_INTERVALS = 3
STALE_SECONDS = 10.0


def write_metrics(envelope: Envelope, now: float) -> str:
    """The report in Prometheus' text format. An outdated report has its age only."""
    host = {"host": envelope.host}
    about = host | {"version": envelope.agent_version, "simulated": str(envelope.simulated).lower()}
    age = round(max(0.0, now - envelope.collected_at), 3)
    lines = [
        *exposition.write_family("gpudeck_agent_info", "gauge", "The version of the agent", [(about, 1)]),
        *exposition.write_family(
            "gpudeck_report_age_seconds", "gauge", "How long ago this host was read", [(host, age)]
        ),
    ]
    if age <= max(STALE_INTERVALS * envelope.interval_seconds, STALE_SECONDS):
        lines += _write_values(envelope, host)
    return "\n".join(lines) + "\n"


def _write_values(envelope: Envelope, host: dict[str, str]) -> list[str]:
    report = envelope.report
    gpus = [(host | _label(gpu), gpu) for gpu in report.gpus or ()]
    lines = []
    for metric in HOST_METRICS.values():
        lines += _write_metric(metric, [(host, report.metrics.get(metric.name))])
    for metric in GPU_METRICS.values():
        lines += _write_metric(metric, [(labels, gpu.metrics.get(metric.name)) for labels, gpu in gpus])
    missing = [(labels, int(gpu.missing is not None)) for labels, gpu in gpus]
    users = [sample for labels, gpu in gpus for sample in _memory_by_user(labels, gpu)]
    infos = [(labels | {"vendor": gpu.vendor}, 1) for labels, gpu in gpus]
    return [
        *lines,
        *exposition.write_family(exposition.GPU_INFO, "gauge", "1: which GPU a UUID is", infos),
        *exposition.write_family("gpudeck_gpu_missing", "gauge", "1: belongs here and cannot be read at all", missing),
        *exposition.write_family(exposition.USER_MEMORY, "gauge", "Memory used by a user's processes", users),
    ]


def _label(gpu: GpuReading) -> dict[str, str]:
    label = str(gpu.index) if gpu.instance is None else f"{gpu.index}.{gpu.instance}"
    return {"gpu": label, "uuid": gpu.uuid, "model": gpu.name}


def _write_metric(metric: Metric, samples: Iterable[tuple[dict[str, str], Number | None]]) -> list[str]:
    exposed = exposition.expose(metric)
    believed = [
        (labels, exposed.scale(value))
        for labels, value in samples
        if value is not None and metric.low <= value <= metric.high
    ]
    return exposition.write_family(exposed.name, exposed.kind, metric.label, believed)


def _memory_by_user(labels: dict[str, str], gpu: GpuReading) -> list[exposition.Sample]:
    """A user of whose processes one is unknown in size is left out: the sum of the others would be too small."""
    used: defaultdict[str, int] = defaultdict(int)
    unknown = set()
    for process in gpu.processes or ():
        if process.user is None:
            continue
        if process.memory_used_bytes is None:
            unknown.add(process.user)
        used[process.user] += process.memory_used_bytes or 0
    return [(labels | {"user": user}, size) for user, size in sorted(used.items()) if user not in unknown]


class HttpAnswer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]


def answer_error(status: int, code: str, message: str, hint: str = "", **headers: str) -> HttpAnswer:
    """The one shape of every error, as the hub's API has it. Names of headers are written with underscores."""
    body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": hint}})
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, body, {"Content-Type": "application/json", **given})


class LatestReport:
    """The newest report, and the answers that are made of it."""

    def __init__(self, now: clock.Clock = clock.wall, boottime: clock.Clock = clock.boottime) -> None:
        self._now = now
        self._boottime = boottime
        self._newest: EncodedReport | None = None

    def put(self, report: EncodedReport) -> None:
        self._newest = report

    @property
    def newest(self) -> Envelope | None:
        return None if self._newest is None else decode_own(self._newest.body)

    def health(self) -> HttpAnswer:
        return HttpAnswer(200, msgspec.json.encode({"status": "ok", "version": __version__}), _JSON)

    def report(self, accept: str = "", accept_encoding: str = "") -> HttpAnswer:
        """The newest report: msgpack in zstd for callers that ask for both, otherwise JSON."""
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        accepts = exposition.read_weights(accept) | exposition.read_weights(accept_encoding)
        headers = {
            "Content-Type": "application/json",
            "Gpudeck-Sent-At": repr(newest.made.sent_at(self._now(), self._boottime())),
            "Vary": "Accept, Accept-Encoding",
        }
        if accepts.get("application/msgpack") and accepts.get("zstd"):
            headers |= {"Content-Type": "application/msgpack", "Content-Encoding": "zstd"}
            return HttpAnswer(200, newest.body, headers)
        return HttpAnswer(200, msgspec.json.encode(decode_own(newest.body)), headers)

    def metrics(self) -> HttpAnswer:
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        page = write_metrics(decode_own(newest.body), newest.made.sent_at(self._now(), self._boottime()))
        return HttpAnswer(200, page.encode(), {"Content-Type": exposition.CONTENT_TYPE})


_JSON = {"Content-Type": "application/json"}
_NOT_READ_YET = answer_error(
    503, "unavailable", "this host has not been read yet", "Ask again in a second.", Retry_After="1"
)


log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
HEAD_BYTES = 16 * 1024
HEAD_SECONDS = 5.0
"""How long a new connection may be silent before its first request."""
IDLE_SECONDS = 120.0
"""How long a kept connection may be silent: longer than the pause between two requests of a slow hub."""
BODY_BYTES = 16 * 1024
_METHODS = "GET, HEAD"
_PATHS = ("/api/v1/report", "/metrics", "/healthz")


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
        # Noted first: a file that has become unreadable is logged once, not with each request.
        self._seen = seen
        self._digest = _digest(read_token(self._file, _COPY))


_COPY = "Put the token into its first line, or remove the file: a new one is made at the next start."


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


Post = Callable[[bytes], HttpAnswer]
"""Answers a request that was posted: its body, of BODY_BYTES at most. Any number of threads call it."""


class Listener(ThreadingHTTPServer):
    """Answers on a socket until `stop`, a thread a connection. `posts` are further paths, whose callers bring no token:
    what answers them checks the request itself."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listening: socket.socket,
        latest: LatestReport,
        token: ListenToken | None,
        certificate: "Tls | None" = None,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        super().__init__(listening.getsockname()[:2], _RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.latest = latest
        self.token = token
        self.posts = posts or {}
        self._certificate = certificate
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}
        """The open ones; the one that has sent no request for longest first."""
        self._refusal_noted = float("-inf")

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    def run(self) -> None:
        self.serve_forever(poll_interval=0.1)
        self.server_close()

    def stop(self) -> None:
        self.shutdown()
        with self._lock:
            for connection in self._connections:
                _hang_up(connection)

    def note_request(self, connection: socket.socket) -> None:
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = self._connections.pop(connection)

    def note_refusal(self, peer: str) -> None:
        """Once a minute at most: clients with a wrong token retry often."""
        now = time.monotonic()
        if now - self._refusal_noted >= 60.0:
            self._refusal_noted = now
            log.warning("refused a request from %s: it did not send this agent's token", peer)

    def get_request(self) -> tuple[socket.socket, Any]:
        """With TLS where there is a certificate. The handshake comes later: it waits for the caller."""
        connection, peer = self.socket.accept()
        if self._certificate is not None:
            self._certificate.refresh()
            context = self._certificate.context
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            while len(self._connections) >= MAX_CONNECTIONS:
                idlest = next(iter(self._connections))
                del self._connections[idlest]
                _hang_up(idlest)
            self._connections[connection] = None
        return connection, peer

    def shutdown_request(self, request: Any) -> None:
        # In this order: the file descriptor must not belong to another connection when it is shut down.
        with self._lock:
            self._connections.pop(request, None)
        _drain(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s disconnected: %s", client_address[0], sys.exc_info()[1])


def _hang_up(connection: socket.socket) -> None:
    """Its thread wakes up, finds the connection at its end, and closes it."""
    with contextlib.suppress(OSError):
        # Not the TLS socket's own: that would take away what its thread is reading from.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _drain(connection: socket.socket) -> None:
    """Read what the caller still sends: closing before it was read would destroy the answer on its way."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.5)
        for _ in range(16):
            if not connection.recv(4096):
                return


class _BoundedHead:
    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = HEAD_BYTES

    def readline(self, _size: int = -1) -> bytes:
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise _HeadTooLarge
        return line


class _HeadTooLarge(Exception):
    pass


class _RequestHandler(BaseHTTPRequestHandler):
    """One connection: request after request, each answered whole."""

    server: Listener
    protocol_version = "HTTP/1.1"
    # A request that cannot be parsed is answered as one of today, with a status line.
    default_request_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        self.request.settimeout(HEAD_SECONDS)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()

    def handle_one_request(self) -> None:
        """Unlike the inherited one it does not look for a function a method: `_answer` knows them all."""
        self.close_connection = True
        body, self.rfile = self.rfile, _BoundedHead(self.rfile)  # type: ignore[assignment]  # `parse_request` reads lines
        try:
            self.raw_requestline = self.rfile.readline()
            if self.raw_requestline and self.parse_request() and not self._refuse_host():
                self.server.note_request(self.connection)
                self.rfile = body
                self._respond()
        except _HeadTooLarge:
            self.request_version, self.requestline, self.command = self.protocol_version, "", "GET"
            self.send_error(431, "the request's head is too large")
        finally:
            self.rfile = body
        self.wfile.flush()
        self.connection.settimeout(IDLE_SECONDS)

    def _respond(self) -> None:
        post = self.server.posts.get(self.path.partition("?")[0])
        has_body = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        if post is not None and self.command == "POST":
            content = self._read_body()
            if content is None:
                message = f"a request has at most {BODY_BYTES // 1024} KiB, and its length"
                answer = answer_error(413, "too_large", message)
            else:
                answer, has_body = post(content), False
        elif post is not None:
            answer = answer_error(405, "method_not_allowed", "requests are posted here", Allow="POST")
        else:
            answer = self._answer()
        # A body that came with the request and was not read could be taken for the next request.
        self.close_connection = self.close_connection or has_body
        self._write(answer)

    def _refuse_host(self) -> bool:
        hosts = [value.encode("latin-1", "replace").strip() for value in self.headers.get_all("Host", [])]
        problem = find_host_problem(hosts, self.request_version.removeprefix("HTTP/"))
        if problem is not None:
            self.send_error(400, problem)
        return problem is not None

    def _answer(self) -> HttpAnswer:
        path, latest = self.path.partition("?")[0], self.server.latest
        if path not in _PATHS:
            return answer_error(404, "not_found", "there is nothing here", f"Ask for {', '.join(_PATHS)}.")
        if self.command not in {"GET", "HEAD"}:
            return answer_error(405, "method_not_allowed", "this is only read", Allow=_METHODS)
        if path == "/healthz":
            return latest.health()
        if not self._may_read():
            self.server.note_refusal(self.client_address[0])
            return _UNAUTHORIZED
        if path == "/metrics":
            return latest.metrics()
        return latest.report(self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", ""))

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0").strip()
        if "Transfer-Encoding" in self.headers or not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > BODY_BYTES:
            return None
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise OSError("the request ends early")
        return body

    def _may_read(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, candidate = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.server.token.is_right(candidate.strip())

    def _write(self, answer: HttpAnswer) -> None:
        self.send_response(answer.status)
        more = {
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**answer.headers, **more}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """An error of parse_request as JSON."""
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
