"""GET /badge/free.svg and GET /embed/fleet: how many GPUs are free, for READMEs, wikis and dashboards of other sites.

Both take the words of the search as `q`. Who may read the fleet may see them; on a hub with `read: login` other callers
get a picture or a page that says so, with status 401. No token is taken from the address: it would stand in the source
of every page that shows the badge.
"""

from typing import Annotated

from litestar import MediaType, Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from gpudeck.api.access import Policy, ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, RequestRefused, TheHub
from gpudeck.api.history import HistoryQueries, TheHistory
from gpudeck.history.base import HistoryRefused, SeriesQuery
from gpudeck.model.errors import Temporary
from gpudeck.model.view import Fleet
from gpudeck.views.badge import (
    EMBED_POLICY,
    MAX_LABEL_LENGTH,
    Curve,
    FleetCount,
    count_gpus,
    draw_badge,
    render_badge,
    render_embed,
    render_refusal,
)
from gpudeck.views.filter import choose_words, explain_unclear, parse_query

_SVG = "image/svg+xml"
_DAY = 86_400.0
_POINTS = 96
_REFRESH_SECONDS = 30
_Words = Annotated[str, QueryParameter(max_length=256, description="Words of the search: only GPUs that match count")]
_Model = Annotated[str, QueryParameter(max_length=100, description="Only models that contain this text")]
_PICTURE = ResponseSpec(str, description="A picture", generate_examples=False, media_type=_SVG)
_FRAME = ResponseSpec(str, description="A page", generate_examples=False, media_type=MediaType.HTML)


@get("/badge/free.svg", opt=access("open"), responses={200: _PICTURE})
async def read_badge(
    *,
    hub: TheHub,
    policy: ThePolicy,
    request: HubRequest,
    q: _Words = "",
    model: _Model = "",
    label: Annotated[
        str, QueryParameter(max_length=MAX_LABEL_LENGTH, description="The text on the left")
    ] = "free GPUs",
) -> Response[bytes]:
    """How many GPUs are free, as a badge."""
    try:
        words = _read_words(policy, request, q, model)
    except RequestRefused as error:
        text = "log in to see" if error.status == 401 else error.message
        return _answer(draw_badge(label, text, "problem"), error.status, _SVG)
    count = await hub.stream.answer(policy.visibility(caller_of(request)), count_matching, words)
    return _answer(render_badge(label, count), 200, _SVG)


@get("/embed/fleet", opt=access("open"), responses={200: _FRAME})
async def read_embed(
    *, hub: TheHub, policy: ThePolicy, history: TheHistory, request: HubRequest, q: _Words = "", model: _Model = ""
) -> Response[bytes]:
    """The fleet in a few numbers, as a page that other sites may frame. It loads itself again every 30 seconds. Without
    a filter it has a chart of the last 24 hours."""
    headers = {"Content-Security-Policy": EMBED_POLICY, "Refresh": str(_REFRESH_SECONDS)}
    try:
        words = _read_words(policy, request, q, model)
    except RequestRefused as error:
        return _answer(render_refusal(f"{error.message.rstrip('.')}."), error.status, MediaType.HTML, headers)
    count = await hub.stream.answer(policy.visibility(caller_of(request)), count_matching, words)
    curve = None if words else await _read_curve(history)
    return _answer(render_embed(words, count, curve), 200, MediaType.HTML, headers)


def count_matching(fleet: Fleet, words: str) -> FleetCount:
    return count_gpus(choose_words(fleet, words)[0] if words else fleet)


def _read_words(policy: Policy, request: HubRequest, q: str, model: str) -> str:
    """The filter as search words. Raises RequestRefused."""
    policy.check("read", caller_of(request))
    # A quote would end the word. No model has one.
    model = model.replace('"', " ").strip()
    words = " ".join(filter(None, [q.strip(), f'model:"{model}"' if model else ""]))
    if unclear := parse_query(words).unclear:
        raise RequestRefused(400, "bad_request", explain_unclear(unclear[0]))
    return words


async def _read_curve(history: HistoryQueries) -> Curve | None:
    """None if the hub keeps no history or cannot read it now: the current numbers are shown without it."""
    end = history.now()
    try:
        found = await history.ask(
            lambda store: store.series(SeriesQuery("gpus_free", end - _DAY, end, _POINTS, fleet=True))
        )
    except (HistoryRefused, Temporary):
        return None
    return [(point[0], point[1]) for series in found.series[:1] for point in series.points]


def _answer(body: bytes, status: int, media: str, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(
        body, status_code=status, media_type=media, headers={"Cache-Control": "no-store", **(headers or {})}
    )
