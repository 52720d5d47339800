"""GET /: the built page, or plain text for curl, wget and HTTPie.

The page's assets are named by their content, so a browser may keep them forever.
"""

from pathlib import Path
from typing import Annotated

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, FromQuery, QueryParameter

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub
from gpudeck.api.headers import PAGE_POLICY
from gpudeck.api.text import TextViews

PAGE = Path(__file__).parent / "page"
_TERMINAL_CLIENTS = ("curl/", "wget/", "httpie/")
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_LONGEST_NAME = 100
_NOT_BUILT = "The page has not been built into this installation. Run `make page`, or install gpudeck again with pip.\n"

_Flag = Annotated[str | None, QueryParameter(max_length=16)]


@get("/", opt=access("open"), include_in_schema=False)
async def read_page(
    *,
    hub: TheHub,
    texts: NamedDependency[TextViews],
    policy: ThePolicy,
    request: HubRequest,
    term: _Flag = None,
    detail: _Flag = None,
    width: FromQuery[int | None] = None,
) -> Response[bytes]:
    """The page for browsers, the table for terminals; `term` decides where the client's name does not."""
    if _wants_text(request.headers.get("user-agent", ""), term):
        caller = caller_of(request)
        policy.check("read", caller)
        columns = None if width is None else min(max(width, 20), 1000)
        text = await texts.render(hub.stream.document(policy.sight(caller)), detail=_is_on(detail), width=columns)
        return Response(text, media_type=MediaType.TEXT, headers={"Vary": "User-Agent"})
    index = PAGE / "index.html"
    if not index.is_file():
        return Response(_NOT_BUILT.encode(), status_code=503, media_type=MediaType.TEXT)
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache", "Vary": "User-Agent"}
    return Response(index.read_bytes(), media_type=MediaType.HTML, headers=headers)


@get("/assets/{name:str}", opt=access("open"), include_in_schema=False)
async def read_asset(request: HubRequest, name: FromPath[str]) -> Response[bytes]:
    file = PAGE / "assets" / name
    media = _TYPES.get(file.suffix)
    # A name holds no slash here, but may be "..", or on a strange route hold one encoded: only direct children count.
    if media is None or len(name) > _LONGEST_NAME or file.parent != PAGE / "assets" or not file.is_file():
        raise NotFoundException("no such file belongs to the page")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    packed = file.with_name(f"{name}.gz")
    if packed.is_file() and "gzip" in request.headers.get("accept-encoding", ""):
        file = packed
        headers["Content-Encoding"] = "gzip"
    return Response(file.read_bytes(), media_type=media, headers=headers)


def _wants_text(agent: str, term: str | None) -> bool:
    return _is_on(term) if term is not None else agent.lower().startswith(_TERMINAL_CLIENTS)


def _is_on(flag: str | None) -> bool:
    return flag is not None and flag.lower() not in {"false", "0", "no", "off"}
