"""POST /api/v1/reports: where agents push. A raw ASGI route, the hottest one of the hub."""

import logging
import math
from collections.abc import Callable

from msgspec import Struct

from gpudeck.hub.hub import Hub
from gpudeck.hub.token_limit import TokenName
from gpudeck.model.errors import ReportRefused
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error, send_json
from gpudeck.wire import MAX_BODY_BYTES, SHORT_VERSION

log = logging.getLogger(__name__)


class Grant(Struct, frozen=True):
    """What an agent's token lets its bearer do: report as that host, or as hosts with such names; None: as any.
    `token` is which token it is."""

    hosts: str | None = None
    token: TokenName | None = None


FindGrant = Callable[[str], Grant | None]
"""What the bearer token in hand grants; None where it is not known."""

_TAKEN = b'{"status":"taken"}'
_REPEATED = b'{"status":"repeated"}'
_LATE_REPORTS = (b"gpudeck-late-reports", b"1")
"""Tells the agent that it may send its newest report before those that wait: this hub takes late ones as such."""
_WIRE_VERSION = (b"gpudeck-wire-version", b"%d" % SHORT_VERSION)
"""Tells the agent which version of reports this hub reads."""


class ReportsRoute:
    def __init__(self, hub: Hub, find_grant: FindGrant) -> None:
        self._hub = hub
        self._find_grant = find_grant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send_error(send, 405, "method_not_allowed", "reports are sent with POST", "", (b"allow", b"POST"))
            return
        authorization, media, encoding, length, sent_at = read_headers(
            scope, b"authorization", b"content-type", b"content-encoding", b"content-length", b"gpudeck-sent-at"
        )
        try:
            grant = self._authorize(authorization)
            body = await read_body(receive, length)
            if body is None:
                return
            taken = self._hub.ingest.take(
                body, media, encoding, sent_at=_parse_time(sent_at), only=grant.hosts, token=grant.token
            )
            await self._hub.fleet.observers.save_backlog()
        except ReportRefused as refusal:
            self._hub.ingest.count(refusal)
            # A refused body may not have been read to its end: this connection cannot be used again.
            close = ((b"connection", b"close"),) if refusal.status in {401, 413} else ()
            await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint, *close)
            return
        except Exception:
            # The framework catches its own; here nobody else would, and the sender has to hear something it knows.
            log.exception("bug while taking a report")
            await send_error(send, 500, "bug", "the hub made a mistake with this report", "Its log has the details.")
            return
        await send_json(send, 202 if taken else 200, _TAKEN if taken else _REPEATED, _LATE_REPORTS, _WIRE_VERSION)

    def _authorize(self, authorization: str) -> Grant:
        scheme, _, token = authorization.partition(" ")
        grant = self._find_grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            raise ReportRefused(
                401,
                "unauthorized",
                "reports need an agent token that this hub knows",
                "Send 'Authorization: Bearer TOKEN' with the token from the hub's token file.",
            )
        return grant


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


def _parse_time(text: str) -> float | None:
    """The agent's clock in the Gpudeck-Sent-At header; None when absent or rubbish: the report itself is still good."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= 1e11 else None
