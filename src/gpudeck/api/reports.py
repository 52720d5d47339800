"""POST /api/v1/reports: where agents push. A raw ASGI route, the hottest one of the hub."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gpudeck.auth.tokens import Token
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.model.errors import ReportRefused
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.asgi import Receive, Response, Scope, Send, make_error, send_error, send_json
from gpudeck.server.connections import DirectRequest
from gpudeck.wire import MAX_BODY_BYTES, SHORT_VERSION, read_sent_at

log = logging.getLogger(__name__)


FindToken = Callable[[str], Token | None]
"""The agent's token with that secret; None where there is none."""

_LATE_REPORTS = (b"gpudeck-late-reports", b"1")
"""Tells the agent that it may send its newest report before those that wait: this hub takes late ones as such."""
_WIRE_VERSION = (b"gpudeck-wire-version", b"%d" % SHORT_VERSION)
"""Tells the agent which version of reports this hub reads."""
_TAKEN = Response(202, b'{"status":"taken"}', (_LATE_REPORTS, _WIRE_VERSION))
_REPEATED = Response(200, b'{"status":"repeated"}', (_LATE_REPORTS, _WIRE_VERSION))


class ReportsRoute:
    """`take` serves one report whole; the ASGI application reads it first, and sends the response."""

    def __init__(self, hub: Hub, find_token: FindToken) -> None:
        self._hub = hub
        self._find_token = find_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send_error(send, 405, "method_not_allowed", "reports are sent with POST", "", (b"allow", b"POST"))
            return
        headers = dict(scope["headers"])
        try:
            token = self._authorize(headers)
            body = await read_body(receive, headers.get(b"content-length", b"").decode("latin-1"))
        except ReportRefused as refusal:
            response = self._refuse(refusal)
        else:
            if body is None:
                return
            response = self._take(headers, body, token)
            await self.save_backlog()
        await send_json(send, response.status, response.body, *response.headers)

    def take(self, headers: Mapping[bytes, bytes], body: bytes) -> Response:
        """Its sender may be answered when `has_unsaved_backlog` is False."""
        try:
            return self._take(headers, body, self._authorize(headers))
        except ReportRefused as refusal:
            return self._refuse(refusal)
        except Exception as error:  # noqa: BLE001 - logged
            return _log_bug(error)

    @property
    def has_unsaved_backlog(self) -> bool:
        return self._hub.fleet.observers.has_unsaved_backlog

    async def save_backlog(self) -> None:
        await self._hub.fleet.observers.save_backlog()

    def _take(self, headers: Mapping[bytes, bytes], body: bytes, token: Token) -> Response:
        media, encoding = headers.get(b"content-type", b""), headers.get(b"content-encoding", b"")
        try:
            taken = self._hub.ingest.take(
                body,
                media.decode("latin-1"),
                encoding.decode("latin-1"),
                sent_at=read_sent_at(headers.get(b"gpudeck-sent-at", b"")),
                only=token.hosts,
                token=TokenName(token.id, token.name),
            )
        except ReportRefused as refusal:
            return self._refuse(refusal)
        except Exception as error:  # noqa: BLE001 - logged
            return _log_bug(error)
        return _TAKEN if taken else _REPEATED

    def _refuse(self, refusal: ReportRefused) -> Response:
        self._hub.ingest.count(refusal)
        # A refused body may not have been read to its end: this connection cannot be used again.
        close = ((b"connection", b"close"),) if refusal.status in {401, 413} else ()
        return make_error(refusal.status, refusal.code, refusal.message, refusal.hint, *close)

    def _authorize(self, headers: Mapping[bytes, bytes]) -> Token:
        scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = self._find_token(secret.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise ReportRefused(
                401,
                "unauthorized",
                "the agent's token is missing, or is unknown to this hub, expired or revoked",
                "Copy agent.token from the hub's data folder, or run the line that `gpudeck hosts add NAME` prints.",
            )
        return token


def _log_bug(error: Exception) -> Response:
    """The framework catches its own errors; here nothing else would, and the sender needs an answer that it knows."""
    log.error("bug while taking a report", exc_info=error)
    return make_error(500, "bug", "the hub made a mistake with this report", "Its log has the details.")


class DirectReports:
    """Serves agents' reports to connections directly (see server/connections.py), behind the limits of `gate`."""

    def __init__(self, route: ReportsRoute, gate: AdmissionGate, paths: Sequence[str]) -> None:
        self.starts = tuple(f"POST {path} HTTP/1.1\r\n".encode() for path in paths)
        self._route = route
        self._gate = gate

    def is_known(self, request: DirectRequest) -> bool:
        return self._gate.knows_sender(request.peer, request.headers)

    def serve(self, request: DirectRequest) -> Response | Awaitable[Response] | None:
        admitted = self._gate.admit_report(request.peer, request.headers, request.refund)
        if admitted is None:
            return None
        response = self._route.take(request.headers, request.body)
        self._gate.charge_report(admitted, response.status)
        return self._save(response) if self._route.has_unsaved_backlog else response

    async def _save(self, response: Response) -> Response:
        await self._route.save_backlog()
        return response


async def read_body(receive: Receive, length: str) -> bytes | None:
    """The request's body; None when the sender went away in the middle of it."""
    if length.isdigit() and int(length[:15]) > MAX_BODY_BYTES:
        raise _too_large()
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise _too_large()
        body = b"".join(parts)
    return None if message["type"] == "http.disconnect" else body


def _too_large() -> ReportRefused:
    return ReportRefused(413, "too_large", f"the report is larger than {MAX_BODY_BYTES // 1024} KiB")
