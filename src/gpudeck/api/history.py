"""GET /api/v1/history and /api/v1/history/heat: what happened before, as series and as a map."""

from typing import Annotated, Literal

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, documented
from gpudeck.api.questions import TIME, TIME_SCHEMA, TheQuestions, answer_past, check_names, read_time
from gpudeck.history.base import MOST_POINTS, Answer, Ask, Heat, HeatAsk
from gpudeck.server.asgi import ErrorBody

_ASK = ("metric", "start", "end", "points", "gpu", "host", "user", "run", "fleet", "by")
_HEAT = ("metric", "start", "end", "step")

_Metric = Annotated[str, QueryParameter(max_length=128, description="Such as utilization_percent or host_cpu_percent")]
_Time = Annotated[str, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
_Name = Annotated[str | None, QueryParameter(max_length=256)]


@get(
    "/api/v1/history",
    opt=access("read"),
    responses={
        200: documented(Answer, "Points of time, mean, smallest and largest value; none where nothing was observed"),
        400: documented(ErrorBody, "A question that has no answer: its code says why, its hint what is possible"),
        404: documented(ErrorBody, "No such GPU, host or run, or the hub keeps no history"),
    },
)
async def read_history(
    *,
    request: HubRequest,
    questions: TheQuestions,
    metric: _Metric,
    start: _Time = "-24h",
    end: _Time = "now",
    points: Annotated[
        int,
        QueryParameter(
            description=f"About so many points, at most {MOST_POINTS}: the step is a round one",
            schema_extra={"minimum": 1, "maximum": MOST_POINTS},
        ),
    ] = 500,
    gpu: Annotated[str | None, QueryParameter(max_length=256, description="A GPU's uuid")] = None,
    host: Annotated[str | None, QueryParameter(max_length=256, description="A host's name or id")] = None,
    user: _Name = None,
    run: Annotated[int | None, QueryParameter(description="The id of a run")] = None,
    fleet: Annotated[bool, QueryParameter(description="All hosts together")] = False,
    by: Annotated[
        Literal["gpu", "user"] | None,
        QueryParameter(description="`gpu` splits a host or a run, `user` the memory of one GPU"),
    ] = None,
) -> Response[bytes]:
    """A metric over time of one of: a GPU, a host, a user, a run, the fleet. Without a range, the last 24 hours."""
    check_names(request, _ASK)
    now = questions.now()
    moments = read_time("start", start, now), read_time("end", end, now)
    ask = Ask(metric, *moments, points, gpu=gpu, host=host, user=user, run=run, fleet=fleet, by=by)
    body = await questions.ask(lambda store: msgspec.json.encode(store.series(ask)))
    return await answer_past(request, body, is_over=ask.end <= now)


@get(
    "/api/v1/history/heat",
    opt=access("read"),
    responses={
        200: documented(Heat, "A row a host, a column a step; null where nothing was observed"),
        400: documented(ErrorBody, "A question that has no answer: its code says why, its hint what is possible"),
        404: documented(ErrorBody, "The hub keeps no history"),
    },
)
async def read_heat(
    *,
    request: HubRequest,
    questions: TheQuestions,
    metric: _Metric,
    start: _Time = "-7d",
    end: _Time = "now",
    step: Annotated[
        int,
        QueryParameter(
            description="Seconds a column, a whole number of hours", schema_extra={"minimum": 3600, "multipleOf": 3600}
        ),
    ] = 3600,
) -> Response[bytes]:
    """A metric as a map of hosts × time. Without a range, the last seven days."""
    check_names(request, _HEAT)
    now = questions.now()
    ask = HeatAsk(metric, read_time("start", start, now), read_time("end", end, now), step)
    body = await questions.ask(lambda store: msgspec.json.encode(store.heat(ask)))
    return await answer_past(request, body, is_over=ask.end <= now)


ROUTES = [read_history, read_heat]
