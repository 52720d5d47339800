"""GET / and GET /HOST: the built page with a first look at the fleet in it, or plain text for curl, wget and HTTPie.

The page's assets are named by their content, so a browser may keep them forever.
"""

import asyncio
import gzip
from pathlib import Path

from litestar import MediaType, Response, get
from litestar.exceptions import NotAuthorizedException, NotFoundException, PermissionDeniedException
from litestar.params import FromPath

from gpudeck.api.access import Policy, ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub
from gpudeck.api.first_look import put_first_look
from gpudeck.api.login import TheAuth, describe
from gpudeck.api.terminals import wants_text, write_error
from gpudeck.api.text import NotUnderstood, answer_wish, read_refresh, read_wish
from gpudeck.auth.parts import Auth
from gpudeck.hub.hub import Hub
from gpudeck.server.headers import PAGE_POLICY, WORKER_POLICY

PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_LONGEST_NAME = 100
_NOT_BUILT = "The page has not been built into this installation. Run `make page`, or install gpudeck again with pip.\n"


@get(["/", "/{host:str}"], opt=access("open"), include_in_schema=False)
async def read_page(
    *,
    hub: TheHub,
    policy: ThePolicy,
    auth: TheAuth,
    request: HubRequest,
    host: FromPath[str | None] = None,
) -> Response[bytes]:
    """The page for browsers, the table for terminals; `term` decides where the client's name does not."""
    if wants_text(request.headers.get("user-agent", ""), request.query_params.get("term")):
        return await _answer_in_text(hub, policy, request, host)
    if host is not None:
        raise NotFoundException("no such page")
    index = PAGE / "index.html"
    if not index.is_file():
        return Response(_NOT_BUILT.encode(), status_code=503, media_type=MediaType.TEXT)
    return await _answer_page(index.read_bytes(), hub, policy, auth, request)


@get("/assets/{name:str}", opt=access("open"), include_in_schema=False)
async def read_asset(request: HubRequest, name: FromPath[str]) -> Response[bytes]:
    file = PAGE / "assets" / name
    media = _TYPES.get(file.suffix)
    # A name holds no slash here, but may be "..", or on a strange route hold one encoded: only direct children count.
    if media is None or len(name) > _LONGEST_NAME or file.parent != PAGE / "assets" or not file.is_file():
        raise NotFoundException("no such file belongs to the page")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if file.suffix == ".js":
        headers["Content-Security-Policy"] = WORKER_POLICY
    packed = file.with_name(f"{name}.gz")
    if packed.is_file() and "gzip" in request.headers.get("accept-encoding", ""):
        file = packed
        headers["Content-Encoding"] = "gzip"
    return Response(file.read_bytes(), media_type=media, headers=headers)


async def _answer_page(html: bytes, hub: Hub, policy: Policy, auth: Auth, request: HubRequest) -> Response[bytes]:
    """What is in it is of this moment and for this caller: nobody keeps it."""
    caller = caller_of(request)
    me = describe(caller, policy, auth)
    html = put_first_look(html, me, hub, policy.sight(caller) if me.may_read else None)
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-store", "Vary": "User-Agent, Cookie"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        html = await asyncio.to_thread(gzip.compress, html, 1)
    return Response(html, media_type=MediaType.HTML, headers=headers)


async def _answer_in_text(hub: Hub, policy: Policy, request: HubRequest, host: str | None) -> Response[bytes]:
    caller = caller_of(request)
    headers = {"Vary": "User-Agent, Term", "Cache-Control": "no-store"}
    try:
        policy.check("read", caller)
    except (NotAuthorizedException, PermissionDeniedException) as error:
        body = write_error(error.status_code, str(error.detail))
        return Response(body, status_code=error.status_code, media_type=MediaType.TEXT, headers=headers)
    parameters = dict(request.query_params.multi_items())
    try:
        wish = read_wish(parameters, request.headers.get("term", ""), host)
        pause = read_refresh(parameters.get("refresh"))
    except NotUnderstood as error:
        return Response(f"{error}\n".encode(), status_code=400, media_type=MediaType.TEXT, headers=headers)
    answer = await hub.stream.answer(policy.sight(caller), answer_wish, wish)
    # For browsers, whose page is live by itself: curl shows it once.
    again = {} if pause is None else {"Refresh": str(pause)}
    return Response(answer.text, status_code=answer.status, media_type=MediaType.TEXT, headers=headers | again)


ROUTES = [read_page, read_asset]
