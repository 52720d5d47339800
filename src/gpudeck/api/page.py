"""GET / and GET /HOST: the built page with the current fleet embedded, or plain text for curl, wget and HTTPie.

The first look stands in the HTML as text in a hidden element. It is no script, and nothing in it can become one. The
page's assets are named by their content, so a browser may keep them forever. The text view takes
?detail=true  ?users  ?free  ?user=NAME  ?q=WORDS  ?at=TIME  ?columns=N  ?color=never|always|auto  ?term=true
?refresh=SECONDS  and answers errors as a line of text; programs get JSON, whatever the client is called.
"""

import asyncio
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from litestar import MediaType, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from msgspec import Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import HubRequest, RequestRefused, TheHub, as_refusal, send_refusal
from gpudeck.api.history import HistoryQueries, TheHistory
from gpudeck.api.login import Me, describe_visitor
from gpudeck.api.past_fleet import read_context, view_past
from gpudeck.api.services import ApiServices, TheServices
from gpudeck.fleet.columns import BUSY, FREE, IDLE, RESERVED
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import HistoryRefused, MomentQuery
from gpudeck.model.errors import Temporary
from gpudeck.model.text import clean
from gpudeck.model.text import propose as propose_parameter
from gpudeck.model.times import parse_time
from gpudeck.model.view import Fleet
from gpudeck.server.asgi import PAGE_POLICY, WORKER_POLICY, Scope, Send, read_headers
from gpudeck.views.filter import (
    choose_hosts,
    choose_user,
    choose_words,
    explain_unclear,
    near_hosts,
    parse_query,
    propose,
)
from gpudeck.views.table import LEAST
from gpudeck.views.text import NO_HOST, render_fleet
from gpudeck.views.users import render_users

MAX_BYTES = 400_000
"""The limit of embedded hosts before compression: about thirty hosts, or the first screens of a larger fleet."""
_PLACE = b"</body>"
_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))
_WIDEST, _USUAL = 1000, 100
"""Columns of a terminal. The hub does not know how wide that of curl is."""
_LONGEST = 256
_MAX_PAUSE = 86_400
_NOTHING_FITS = "Nothing matches."
TEXT_PARAMETERS = ("detail", "users", "free", "user", "q", "at", "columns", "color", "term", "refresh")
_FLAGS = {"detail", "users", "free", "term"}
_OFF = {"false", "0", "no", "off"}
_ON = {"", "true", "1", "yes", "on"}
_PAGE_NAMES = ("view", "sort")
"""In addresses copied from the page. They mean nothing here."""
_CLIENTS = ("curl/", "wget/", "httpie/")
_PROGRAMS = frozenset({"/metrics", "/healthz", "/readyz", "/schema", "/api"})
"""Paths with one part, like that of a host, that are for programs."""
_HOW_TO_ENTER = 'Send a token (curl -H "Authorization: Bearer $TOKEN" …), or use `gpudeck login` and `gpudeck show`.'
PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
    ".ico": "image/x-icon",
}
_MAX_NAME_LENGTH = 100
_NOT_BUILT = "The page has not been built into this installation. Run `make page`, or install gpudeck again with pip.\n"


def embed_initial_state(html: bytes, me: Me, hub: Hub, visibility: Visibility | None) -> bytes:
    """The page with the fleet in it; without the fleet for callers who may not see it (`visibility` is None)."""
    parts = [
        b'{"me":',
        msgspec.json.encode(me),
        b',"fleet":',
        b"null" if visibility is None else _encode_first_hosts(hub, visibility),
        b"}",
    ]
    text = b"".join(parts)
    for letter, escape in _ESCAPES:
        text = text.replace(letter, escape)
    before, place, after = html.rpartition(_PLACE)
    return b"".join((before, b'<template id="first-look">', text, b"</template>\n  ", place, after))


def _encode_first_hosts(hub: Hub, visibility: Visibility) -> bytes:
    """As in `GET /api/v1/fleet`, with as many hosts as there is room for; `is_whole` says whether these are all."""
    fleet, stream = hub.fleet, hub.stream
    hosts, room = [], MAX_BYTES
    for host in _rank(fleet):
        encoded = host.encoded(visibility)
        room -= len(encoded)
        if room < 0:
            break
        hosts.append(encoded)
    facts = fleet.facts(stream.time) | {"is_whole": len(hosts) == len(fleet.hosts), "hosts": []}
    return msgspec.json.encode(facts)[:-2] + b",".join(hosts) + b"]}"


def _rank(fleet: FleetState) -> list[HostState]:
    """In the default order of the page: what may be taken first."""
    fleet.settle()
    gpus, hosts = fleet.table.gpus, fleet.ordered()
    owners, states = gpus.host[: gpus.end], gpus.availability[: gpus.end]
    counts = [
        np.bincount(owners[(states == code) & (owners >= 0)], minlength=fleet.table.hosts.end)
        for code in (BUSY, IDLE, RESERVED, FREE)
    ]
    rows = np.array([host.row for host in hosts], np.int64)
    return [hosts[at] for at in np.lexsort([-count[rows] for count in counts]).tolist()]


class TextOptions(Struct, frozen=True):
    """The parameters of the text view."""

    host: str | None = None
    detail: bool = False
    users: bool = False
    query: str = ""
    user: str | None = None
    width: int | None = None
    colour: bool = False


class TextAnswer(Struct, frozen=True):
    status: Literal[200, 400, 404]
    text: bytes


class NotUnderstood(Exception):
    """A parameter that says nothing, in words for the caller."""


def read_text_options(parameters: Mapping[str, str], terminal: str, host: str | None) -> TextOptions:
    """Parses the parameters; raises NotUnderstood. A mistyped parameter would otherwise show every GPU.

    `terminal` is what the client says of its own: see `_wants_colour`.
    """
    for name, value in parameters.items():
        if name not in TEXT_PARAMETERS and name not in _PAGE_NAMES:
            raise NotUnderstood(
                f"there is no parameter {clean(name[:40])!r}: {propose_parameter(name, TEXT_PARAMETERS)}"
            )
        if len(value) > _LONGEST:
            raise NotUnderstood(f"{name} is longer than {_LONGEST} characters")
        if name in _FLAGS and value.lower() not in _ON | _OFF:
            raise NotUnderstood(f"{name} has to be true or false, not {clean(value[:40])!r}")
    query = f"{'free ' if is_on(parameters.get('free')) else ''}{parameters.get('q', '')}".strip()
    if unclear := parse_query(query).unclear:
        raise NotUnderstood(f"{clean(explain_unclear(unclear[0]))}; `gpudeck show --help` lists the words")
    return TextOptions(
        host=host,
        detail=is_on(parameters.get("detail")),
        users=is_on(parameters.get("users")),
        query=query,
        user=parameters.get("user") or None,
        width=_read_columns(parameters.get("columns")),
        colour=_wants_colour(parameters.get("color", "auto"), terminal),
    )


def read_refresh(text: str | None) -> int | None:
    """Seconds after which a browser is to ask again; None where it is not. Raises NotUnderstood."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_PAUSE:
        raise NotUnderstood(f"refresh has to be 1 to {_MAX_PAUSE} seconds, not {clean(text[:40])!r}")
    return int(text)


def is_on(flag: str | None) -> bool:
    """`?free`, `?free=true` and `?free=1` are one."""
    return flag is not None and flag.lower() not in _OFF


def _read_columns(text: str | None) -> int:
    """Nothing at all, as in `columns=$COLUMNS` where a script has no COLUMNS, means the usual width."""
    if not text:
        return _USUAL
    if not text.isascii() or not text.isdigit():
        raise NotUnderstood(f"columns has to be a number of columns, not {clean(text[:40])!r}")
    return min(max(int(text[:9]), LEAST), _WIDEST)


def _wants_colour(wanted: str, terminal: str) -> bool:
    """Nobody can tell from here whether curl writes to a terminal or into a file. A client that knows says so with its
    $TERM in the header Term, and is believed."""
    if wanted not in {"never", "always", "auto"}:
        raise NotUnderstood(f"color has to be never, always or auto, not {clean(wanted[:40])!r}")
    return wanted == "always" or (wanted == "auto" and terminal not in {"", "dumb"})


def render_text(fleet: Fleet, options: TextOptions) -> TextAnswer:
    """The fleet as text. Slow for a large fleet."""
    part = choose_hosts(fleet, [options.host]) if options.host else fleet
    if options.host and not part.hosts:
        return TextAnswer(404, _no_host(fleet, options.host).encode())
    if options.query:
        part, _ = choose_words(part, options.query)
    if options.user:
        part = choose_user(part, options.user)
    if options.users:
        return TextAnswer(200, render_users(part, width=options.width, colour=options.colour).encode())
    near = propose(fleet, options.query) if fleet.hosts and not part.hosts else []
    hint = f" Did you mean {' or '.join(map(clean, near))}?" if near else ""
    empty = f"{_NOTHING_FITS}{hint}" if fleet.hosts else NO_HOST
    return TextAnswer(
        200, render_fleet(part, detail=options.detail, width=options.width, colour=options.colour, empty=empty).encode()
    )


def _no_host(fleet: Fleet, name: str) -> str:
    near = near_hosts(fleet, name)
    hint = f"Did you mean {' or '.join(map(clean, near))}?" if near else "Without a name all hosts are shown."
    return f"no host is called {clean(name[:80])}. {hint}\n"


def wants_text(agent: str, term: str | None) -> bool:
    """`agent` is the client's name; `term` is the parameter, which decides where it is there."""
    return is_on(term) if term is not None else agent.lower().startswith(_CLIENTS)


def write_error(status: int, message: str, hint: str = "") -> bytes:
    """One line, as the text views tell what is wrong."""
    told = f"{message.rstrip('.')}. {_HOW_TO_ENTER if status == 401 else hint}"
    return f"{told.strip()}\n".encode()


async def answer_refused(scope: Scope, path: str, send: Send, error: RequestRefused | Temporary) -> None:
    """Answer what was refused before any route was asked. `path` is without the prefix of the hub."""
    if not _is_text_view(scope, path):
        await send_refusal(send, error)
        return
    refusal = as_refusal(error)
    body = write_error(refusal.status, refusal.message, refusal.hint)
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_text_view(scope: Scope, path: str) -> bool:
    if path.count("/") != 1 or path in _PROGRAMS or scope["method"] not in {"GET", "HEAD"}:
        return False
    term = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)).get("term")
    return wants_text(read_headers(scope, b"user-agent")[0], term)


@get(["/", "/{host:str}"], opt=access("open"), include_in_schema=False)
async def read_page(
    *,
    hub: TheHub,
    history: TheHistory,
    services: TheServices,
    request: HubRequest,
    host: FromPath[str | None] = None,
) -> Response[bytes]:
    """The page for browsers, the table for terminals; `term` decides where the client's name does not."""
    if wants_text(request.headers.get("user-agent", ""), request.query_params.get("term")):
        return await _answer_in_text(services, history, request, host)
    if host is not None:
        raise NotFoundException("no such page")
    index = PAGE / "index.html"
    if not index.is_file():
        return Response(_NOT_BUILT.encode(), status_code=503, media_type=MediaType.TEXT)
    return await _answer_page(index.read_bytes(), hub, services, request)


@get("/assets/{name:str}", opt=access("open"), include_in_schema=False)
async def read_asset(request: HubRequest, name: FromPath[str]) -> Response[bytes]:
    file = PAGE / "assets" / name
    media = _TYPES.get(file.suffix)
    # A name holds no slash here, but may be "..", or on a strange route hold one encoded: only direct children count.
    if media is None or len(name) > _MAX_NAME_LENGTH or file.parent != PAGE / "assets" or not file.is_file():
        raise NotFoundException("no such file belongs to the page")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if file.suffix == ".js":
        headers["Content-Security-Policy"] = WORKER_POLICY
    packed = file.with_name(f"{name}.gz")
    if packed.is_file() and "gzip" in request.headers.get("accept-encoding", ""):
        file = packed
        headers["Content-Encoding"] = "gzip"
    return Response(file.read_bytes(), media_type=media, headers=headers)


async def _answer_page(html: bytes, hub: Hub, services: ApiServices, request: HubRequest) -> Response[bytes]:
    """The content is for this caller and this moment: it must not be cached."""
    caller = caller_of(request)
    policy = services.policy
    me, cookies = await describe_visitor(request, services.auth, services.jobs)
    html = embed_initial_state(html, me, hub, policy.visibility(caller) if me.may_read else None)
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-store", "Vary": "User-Agent, Cookie"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        html = await asyncio.to_thread(gzip.compress, html, 1)
    return Response(html, media_type=MediaType.HTML, headers=headers, cookies=cookies)


async def _answer_in_text(
    services: ApiServices, history: HistoryQueries, request: HubRequest, host: str | None
) -> Response[bytes]:
    hub, policy, caller = services.hub, services.policy, caller_of(request)
    headers = {"Vary": "User-Agent, Term", "Cache-Control": "no-store"}
    try:
        policy.check("read", caller)
    except RequestRefused as error:
        body = write_error(error.status, error.message, error.hint)
        return Response(body, status_code=error.status, media_type=MediaType.TEXT, headers=headers)
    parameters = dict(request.query_params.multi_items())
    try:
        options = read_text_options(parameters, request.headers.get("term", ""), host)
        pause = read_refresh(parameters.get("refresh"))
        if "at" in parameters:
            answer = await _render_past(services, policy.visibility(caller), history, parameters["at"], options)
        else:
            answer = await hub.stream.answer(policy.visibility(caller), render_text, options)
    except NotUnderstood as error:
        return Response(f"{error}\n".encode(), status_code=400, media_type=MediaType.TEXT, headers=headers)
    # For browsers, whose page is live by itself: curl shows it once.
    again = {} if pause is None else {"Refresh": str(pause)}
    return Response(answer.text, status_code=answer.status, media_type=MediaType.TEXT, headers=headers | again)


async def _render_past(
    services: ApiServices, visibility: Visibility, history: HistoryQueries, at: str, options: TextOptions
) -> TextAnswer:
    """The fleet as it was recorded. Raises NotUnderstood."""
    hub, now = services.hub, history.now()
    try:
        ask = MomentQuery(parse_time(at, now), None, hub.fleet.settings.forget_after)
        context = await read_context(services, ask.at, now)
        return await history.ask(lambda store: render_text(view_past(store, hub, ask, visibility, context), options))
    except ValueError as error:
        raise NotUnderstood(f"at: {clean(str(error))}") from error
    except HistoryRefused as error:
        raise NotUnderstood(f"{error.message}. {error.hint}".strip()) from error
