"""GET /api/v1/alerts/test: what an alert rule of the operator's own would have done in the past."""

from functools import partial
from time import monotonic
from typing import Annotated, Final

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from gpudeck.alerts.backtest import HostPast, choose_rule, try_on_host
from gpudeck.api.access import access
from gpudeck.api.alerts import TheAlerts
from gpudeck.api.answers import HubRequest, RequestRefused, TheHub, answer_json, documented
from gpudeck.api.history import HistoryQueries, TheHistory
from gpudeck.api.parameters import HostName, Time, read_time
from gpudeck.history.base import HistoryRefused
from gpudeck.history.time_range import check_range
from gpudeck.model.alert import AlertTest
from gpudeck.model.text import clean

MAX_FIRINGS: Final = 1_000
_SECONDS: Final = 20.0
"""A test of a large fleet ends after so long, and says how many hosts are left."""


@get(
    "/api/v1/alerts/test",
    opt=access("read"),
    responses=documented(AlertTest, "What it would have done"),
)
async def try_alert_rule(
    *,
    request: HubRequest,
    alerts: TheAlerts,
    hub: TheHub,
    history: TheHistory,
    rule: Annotated[str | None, QueryParameter(max_length=64, description="A rule of the operator's own")] = None,
    expr: Annotated[str | None, QueryParameter(max_length=1000, description="An expression in its place")] = None,
    start: Time = "-7d",
    end: Time = "now",
    host: HostName = None,
) -> Response[bytes]:
    """How often a rule would have fired, by default in the last seven days."""
    history.check_kept()
    now, chosen = history.now(), choose_rule(alerts.engine, rule, expr)
    span = read_time("start", start, now), min(read_time("end", end, now), now)
    check_range(*span)
    hosts = [one for one in hub.fleet.ordered() if host is None or host in {one.name, one.id}]
    if host is not None and not hosts:
        raise RequestRefused(404, "unknown_host", f"there is no host {clean(host)}.")
    pasts, tested, until = list[HostPast](), 0, monotonic() + _SECONDS
    for one in hosts:
        if tested and monotonic() >= until:
            break
        limits = chosen.limits_of(one.name, one.facts.labels)
        if limits.is_on:
            place = one.id, one.name
            question = partial(try_on_host, host=place, rule=chosen, limits=limits, span=span)
            pasts += await _ask_known(history, question)
        tested += 1
    firings = sorted((firing for past in pasts for firing in past.firings), key=lambda firing: firing.fired_at)
    total = sum(past.total for past in pasts)
    found = AlertTest(
        rule=rule,
        expr=chosen.expression.text,
        start=span[0],
        end=span[1],
        step=max((past.step for past in pasts), default=None),
        known=round(sum(past.known for past in pasts) / total, 4) if total else None,
        hosts=tested,
        hosts_left=len(hosts) - tested,
        count=len(firings),
        firings=firings[:MAX_FIRINGS],
    )
    return await answer_json(request, msgspec.json.encode(found))


async def _ask_known(history: HistoryQueries, question: "partial[HostPast]") -> list[HostPast]:
    """Nothing of a host that the history does not know yet."""
    try:
        return [await history.ask(question)]
    except HistoryRefused as error:
        if error.code != "unknown_host":
            raise
        return []
