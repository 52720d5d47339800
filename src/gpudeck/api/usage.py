"""GET /api/v1/usage and /api/v1/usage.csv: who used how much."""

from typing import Annotated, Literal

import msgspec
from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, documented
from gpudeck.api.questions import TIME, TIME_SCHEMA, Questions, TheQuestions, answer_past, check_names, read_time
from gpudeck.history.base import UsageAsk
from gpudeck.history.time_range import load_zone
from gpudeck.history.usage import to_csv
from gpudeck.model.usage import By, Usage
from gpudeck.server.asgi import ErrorBody

_ASK = ("by", "start", "end", "user", "host", "model", "group", "daily", "zone", "format")

_By = Annotated[By, QueryParameter(description="What a row stands for")]
_Time = Annotated[
    str, QueryParameter(max_length=64, description=f"{TIME}; a date alone begins in the zone", schema_extra=TIME_SCHEMA)
]
_Name = Annotated[str | None, QueryParameter(max_length=256, description="Only this one")]
_Daily = Annotated[bool, QueryParameter(description="Also each day by itself")]
_Zone = Annotated[str, QueryParameter(max_length=64, description="Where days begin and end: an IANA name")]
_SHEET = ResponseSpec(str, description="The rows for spreadsheets", generate_examples=False, media_type="text/csv")
_REFUSED = {
    400: documented(ErrorBody, "A question that has no answer: its code says why, its hint what is possible"),
    404: documented(ErrorBody, "No such host, or the hub keeps no history"),
}


@get(
    "/api/v1/usage",
    opt=access("read"),
    responses={200: documented(Usage, "A row a user, group, host or model, and how much was observed"), **_REFUSED},
)
async def read_usage(
    *,
    request: HubRequest,
    questions: TheQuestions,
    by: _By = "user",
    start: _Time = "-30d",
    end: _Time = "now",
    user: _Name = None,
    host: _Name = None,
    model: _Name = None,
    group: _Name = None,
    daily: _Daily = False,
    zone: _Zone = "UTC",
    format: Annotated[Literal["json", "csv"], QueryParameter(description="JSON, or CSV for spreadsheets")] = "json",  # noqa: A002
) -> Response[bytes]:
    """GPU-hours held, worked and sat on, energy and cost. Without a range, the last 30 days."""
    check_names(request, _ASK)
    questions.check_kept()
    now, where = questions.now(), load_zone(zone)
    moments = read_time("start", start, now, where), read_time("end", end, now, where)
    ask = UsageAsk(by, *moments, user, host, model, group, daily, zone)
    if format == "csv":
        return await _answer_csv(questions, ask)
    body = await questions.ask(lambda store: msgspec.json.encode(store.usage(ask)))
    return await answer_past(request, body, is_over=ask.end <= now)


@get(
    "/api/v1/usage.csv",
    opt=access("read"),
    responses={200: _SHEET, **_REFUSED},
)
async def read_usage_csv(
    *,
    request: HubRequest,
    questions: TheQuestions,
    by: _By = "user",
    start: _Time = "-30d",
    end: _Time = "now",
    user: _Name = None,
    host: _Name = None,
    model: _Name = None,
    group: _Name = None,
    daily: _Daily = False,
    zone: _Zone = "UTC",
) -> Response[bytes]:
    """The same as CSV, with `daily` a line a row and day."""
    check_names(request, _ASK[:-1])
    questions.check_kept()
    now, where = questions.now(), load_zone(zone)
    moments = read_time("start", start, now, where), read_time("end", end, now, where)
    return await _answer_csv(questions, UsageAsk(by, *moments, user, host, model, group, daily, zone))


async def _answer_csv(questions: Questions, ask: UsageAsk) -> Response[bytes]:
    text = await questions.ask(lambda store: to_csv(store.usage(ask), daily=ask.daily))
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="usage-by-{ask.by}.csv"'}
    return Response(text.encode(), media_type="text/csv", headers=headers)


ROUTES = [read_usage, read_usage_csv]
