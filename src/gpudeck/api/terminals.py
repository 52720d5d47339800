"""Who reads an answer at a terminal: curl, wget and HTTPie at the addresses of the text views. There errors are a line
of text; where programs ask they are JSON, whatever the client is called."""

from urllib.parse import parse_qsl

from gpudeck.api.callers import Refusal
from gpudeck.api.text import is_on
from gpudeck.server.asgi import Scope, Send, read_headers, send_error

_CLIENTS = ("curl/", "wget/", "httpie/")
_PROGRAMS = frozenset({"/metrics", "/healthz", "/readyz", "/schema", "/api"})
"""What has one part, as a host's address, and is for programs."""
_HOW_TO_ENTER = 'Such as curl -H "Authorization: Bearer $TOKEN" …; `gpudeck show` takes it from $GPUDECK_TOKEN.'


def wants_text(agent: str, term: str | None) -> bool:
    """`agent` is the client's name; `term` is the parameter, which decides where it is there."""
    return is_on(term) if term is not None else agent.lower().startswith(_CLIENTS)


def write_error(status: int, message: str, hint: str = "") -> bytes:
    """One line, as the text views tell what is wrong."""
    told = f"{message.rstrip('.')}. {_HOW_TO_ENTER if status == 401 else hint}"
    return f"{told.strip()}\n".encode()


async def tell_refusal(scope: Scope, path: str, send: Send, refusal: Refusal, *headers: tuple[bytes, bytes]) -> None:
    """Answer what was refused before any route was asked. `path` is without the prefix of the hub."""
    if not _is_text_view(scope, path):
        await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint, *headers)
        return
    body = write_error(refusal.status, refusal.message, refusal.hint)
    own = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": own})
    await send({"type": "http.response.body", "body": body})


def _is_text_view(scope: Scope, path: str) -> bool:
    if path.count("/") != 1 or path in _PROGRAMS or scope["method"] not in {"GET", "HEAD"}:
        return False
    term = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)).get("term")
    return wants_text(read_headers(scope, b"user-agent")[0], term)
