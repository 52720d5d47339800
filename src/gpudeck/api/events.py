"""GET /api/v1/events: what happened, the newest first."""

from typing import Annotated, Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Struct

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, answer_json, documented
from gpudeck.api.parameters import TIME, TIME_SCHEMA, read_time, read_words, word_list
from gpudeck.events.log import EventLog
from gpudeck.events.store import MOST_EVENTS, EventQuery
from gpudeck.model import clock
from gpudeck.model.event import SEVERITIES, Event
from gpudeck.views.csv import write_events

_Time = Annotated[str | None, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
_Name = Annotated[str | None, QueryParameter(max_length=384)]
_Words = Annotated[
    str | None, QueryParameter(max_length=512, description="One word, or several with commas: any of them fits")
]


class EventList(Struct, frozen=True):
    """The newest first. `next` is the `before` of the next question; null where there are no older ones."""

    events: list[Event]
    next: str | None


@get(
    "/api/v1/events",
    opt=access("read"),
    responses=documented(EventList, "The newest first; `next` is the `before` of the next page"),
)
async def list_events(
    *,
    request: HubRequest,
    events: NamedDependency[EventLog],
    start: _Time = None,
    end: _Time = None,
    host: Annotated[str | None, QueryParameter(max_length=384, description="A host's name or id")] = None,
    gpu: Annotated[str | None, QueryParameter(max_length=256, description="A GPU's uuid")] = None,
    user: _Name = None,
    kind: _Words = None,
    severity: Annotated[str | None, word_list(SEVERITIES)] = None,
    q: Annotated[str | None, QueryParameter(max_length=256, description="In title, detail, host or user")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_EVENTS, description="At most so many")] = 100,
    before: Annotated[str | None, QueryParameter(max_length=32, description="Only events older than this id")] = None,
    format: Annotated[Literal["json", "csv"], QueryParameter(description="JSON, or CSV for spreadsheets")] = "json",  # noqa: A002
) -> Response[bytes]:
    """Hosts down and up, GPUs lost and found, faults, bad health, and what the hub itself met."""
    now = clock.wall()
    found = await events.find(
        EventQuery(
            start=None if start is None else read_time("start", start, now),
            end=None if end is None else read_time("end", end, now),
            host=host,
            gpu=gpu,
            user=user,
            kinds=_split(kind),
            severities=read_words("severity", severity, SEVERITIES),
            text=q,
            limit=limit,
            before=before,
        )
    )
    if format == "csv":
        headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="events.csv"'}
        return Response(write_events(found).encode(), media_type="text/csv", headers=headers)
    page = EventList(found, found[-1].id if len(found) == limit else None)
    return await answer_json(request, msgspec.json.encode(page))


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
