"""What the History page shows of a period, as one answer: the fleet's curves, its usage, and a map of its hosts.

    HistoryView → `answer_overview` → Overview: curves from quarter hours, usage from hours, the map from hosts' hours

Each of these is read once for all figures that are made from it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpudeck.history.answers import answer_heat, fleet_answers
from gpudeck.history.base import (
    STATE_METRICS,
    Heat,
    HeatQuery,
    HistoryRefused,
    Overview,
    OverviewQuery,
    SeriesQuery,
    UsageQuery,
)
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import DAY, HOUR, MOST_DAYS, check_points, check_range
from gpudeck.history.totals import UTILIZATION
from gpudeck.history.usage import usage
from gpudeck.model.view import Usage

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

OVERVIEW_METRICS: Final = (
    *STATE_METRICS,
    *("utilization_percent", "power_watts"),
)
_HEAT_HOURS: Final = (1, 2, 3, 6, 12, 24, 168)
_MOST_COLUMNS: Final = 400
_MOST_CELLS: Final = 100_000


def answer_overview(
    view: "HistoryView", query: OverviewQuery, settings: UsageSettings, groups: Callable[[str], str | None], now: float
) -> Overview:
    """Until `now` at most. Raises HistoryRefused for what makes no sense."""
    check_range(query.start, query.end)
    check_points(query.points)
    until = min(query.end, max(now, query.start + 1))
    query = replace(query, end=until)
    return Overview(
        until=until,
        series=fleet_answers(view, series_queries(query), now),
        usage=_usage(view, query, settings, groups, now),
        heat=_heat(view, query, now) if query.heat else None,
    )


def series_queries(query: OverviewQuery) -> list[SeriesQuery]:
    """A question for each curve."""
    return [SeriesQuery(metric, query.start, query.end, query.points, fleet=True) for metric in OVERVIEW_METRICS]


def _usage(
    view: "HistoryView", query: OverviewQuery, settings: UsageSettings, groups: Callable[[str], str | None], now: float
) -> Usage:
    """The rows over the whole period; the days of the total alone."""
    answer = usage(view, UsageQuery(query.by, query.start, query.end, zone=query.zone), settings, groups, now)
    if query.end - query.start >= MOST_DAYS * DAY:
        return answer
    daily = usage(view, UsageQuery("model", query.start, query.end, daily=True, zone=query.zone), settings, groups, now)
    return replace(answer, total=replace(answer.total, days=daily.total.days))


def _heat(view: "HistoryView", query: OverviewQuery, now: float) -> Heat | None:
    """In columns that are long enough for the number of hosts. None where no columns are."""
    hosts = sum(host.last + 2 * HOUR >= query.start and host.first < query.end for host in view.hosts().values())
    columns = min(_MOST_COLUMNS, _MOST_CELLS // max(1, hosts))
    hours = (query.end - query.start) / HOUR
    step = next((step for step in _HEAT_HOURS if hours / step <= columns), _HEAT_HOURS[-1])
    try:
        return answer_heat(view, HeatQuery(UTILIZATION, query.start, query.end, step * HOUR), now)
    except HistoryRefused:
        return None
