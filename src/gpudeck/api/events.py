"""GET /api/v1/events: what happened, the newest first."""

import re
from typing import Annotated, Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter
from msgspec import Struct

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, answer_json, documented
from gpudeck.api.questions import TIME, TIME_SCHEMA, check_names, read_time
from gpudeck.events.log import Events
from gpudeck.events.store import MOST_EVENTS, EventAsk
from gpudeck.model import clock
from gpudeck.model.errors import Temporary
from gpudeck.model.event import SEVERITIES, Event
from gpudeck.server.asgi import ErrorBody
from gpudeck.views.csv import write_events

_ASK = ("start", "end", "host", "gpu", "user", "kind", "severity", "q", "limit", "before", "format")
_SEVERITY = "|".join(SEVERITIES)
_SEVERITY_LIST = f"^({_SEVERITY})(,({_SEVERITY}))*$"

_Time = Annotated[str | None, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
_Name = Annotated[str | None, QueryParameter(max_length=384)]
_Words = Annotated[
    str | None, QueryParameter(max_length=512, description="One word, or several with commas: any of them fits")
]


class EventList(Struct, frozen=True):
    """The newest first. `next` is the `before` of the next question; null where there are no older ones."""

    events: list[Event]
    next: str | None


class EventDesk:
    """What routes ask for events. `events` is None where a hub keeps none."""

    def __init__(self, events: Events | None) -> None:
        self._events = events

    async def find(self, ask: EventAsk) -> list[Event]:
        """Raises Temporary where they cannot be read now."""
        return await self._kept().find(ask)

    async def count(self) -> int:
        """Raises Temporary."""
        return await self._kept().count()

    def _kept(self) -> Events:
        if self._events is None:
            raise Temporary("events are not kept yet.", "Ask again in a moment.")
        return self._events


@get(
    "/api/v1/events",
    opt=access("read"),
    responses={
        200: documented(EventList, "The newest first; `next` is the `before` of the next page"),
        400: documented(ErrorBody, "A question that makes no sense"),
    },
)
async def list_events(
    *,
    request: HubRequest,
    desk: NamedDependency[EventDesk],
    start: _Time = None,
    end: _Time = None,
    host: Annotated[str | None, QueryParameter(max_length=384, description="A host's name or id")] = None,
    gpu: Annotated[str | None, QueryParameter(max_length=256, description="A GPU's uuid")] = None,
    user: _Name = None,
    kind: _Words = None,
    severity: Annotated[
        str | None,
        QueryParameter(
            max_length=64,
            description="One word, or several with commas: any of them fits",
            schema_extra={"pattern": _SEVERITY_LIST},
        ),
    ] = None,
    q: Annotated[str | None, QueryParameter(max_length=256, description="In title, detail, host or user")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_EVENTS, description="At most so many")] = 100,
    before: Annotated[str | None, QueryParameter(max_length=32, description="Only events older than this id")] = None,
    format: Annotated[Literal["json", "csv"], QueryParameter(description="JSON, or CSV for spreadsheets")] = "json",  # noqa: A002
) -> Response[bytes]:
    """Hosts down and up, GPUs lost and found, faults, bad health, and what the hub itself met."""
    check_names(request, _ASK)
    now = clock.wall()
    found = await desk.find(
        EventAsk(
            start=None if start is None else read_time("start", start, now),
            end=None if end is None else read_time("end", end, now),
            host=host,
            gpu=gpu,
            user=user,
            kinds=_split(kind),
            severities=_read_severities(severity),
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


def _read_severities(text: str | None) -> tuple[str, ...]:
    if text is not None and not re.fullmatch(_SEVERITY_LIST, text):
        raise ValidationException(f"severity: give {', '.join(SEVERITIES)}, or several of them with commas")
    return _split(text)


ROUTES = [list_events]
