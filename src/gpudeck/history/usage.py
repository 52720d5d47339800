"""Usage reports: the answer to `UsageQuery`, summed up from hourly usage (docs/accounting.md).

    facts (hours, host, user, model → UsageAmounts) → sums by day → rows by user, group, host or model → Usage

Imports no numpy, because the command line reads usage too.
"""

import grp
import math
import pwd
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from gpudeck.history.base import HistoryRefused, KnownGpu, UsageAmounts, UsageQuery, UseKey
from gpudeck.history.settings import DAY, UsageSettings
from gpudeck.history.time_range import HOUR, Period
from gpudeck.model.usage import Day, Usage, UsageBy, UsageRow
from gpudeck.views.csv import Value, write_csv

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

_GONE_AFTER: Final = 7 * DAY
"""A GPU that was not seen for this long before the end of a period was removed after its last sample."""
MAX_DAYS_IN_ROWS: Final = 200_000
_JOULES_A_KWH: Final = 3.6e6

_SumKey = tuple[int, str, str | None, str]
"""The number of the day, the host's id, the user, the model."""
RowKey = tuple[str | None, bool]
"""A row's name, and whether it is the row of unknown users."""
_KEPT_SECONDS = 600.0
_COLUMNS: Final = (
    *("gpu_hours", "active_hours", "idle_hours", "share", "peak_memory_bytes"),
    *("energy_kwh", "cost", "measured_hours"),
)
_ALLOCATED: Final = ("allocated_hours", "unused_hours", "never_used_hours", "unmonitored_hours", "shared_hours")


class _Sums(Struct):
    """A row while it is summed up. A cost is None if nothing in it has a price."""

    use: UsageAmounts = field(default_factory=UsageAmounts)
    cost: float | None = None
    idle_cost: float | None = None
    days: dict[int, UsageAmounts] = field(default_factory=dict)

    def add(self, day: int, use: UsageAmounts, price: float | None) -> None:
        self.use.add(use)
        self.days.setdefault(day, UsageAmounts()).add(use)
        if price is not None:
            self.cost = (self.cost or 0.0) + use.used / HOUR * price
            self.idle_cost = (self.idle_cost or 0.0) + use.idle / HOUR * price


def usage(
    view: "HistoryView", query: UsageQuery, settings: UsageSettings, groups: Callable[[str], str | None], now: float
) -> Usage:
    """`groups` returns the group of users who are in no group of the settings. Blocks. Raises HistoryRefused."""
    gpus = view.gpus().values()
    known = min((gpu.first for gpu in gpus), default=query.start)
    period = Period(query.start, query.end, now, query.zone if query.daily else None, since=known)
    # A host that was installed anew has a new id and its old name: it stays one row.
    names = {host.host_id: host.name for host in view.hosts().values()}
    if query.host is not None and query.host not in {*names, *names.values()}:
        hint = "`host` is a host's name or id, as in /api/v1/hosts."
        raise HistoryRefused("unknown_host", f"the history knows no host {query.host[:80]!r}", hint)
    by_host = query.by == "host" or query.host is not None
    # The store adds up whole stretches by itself, several times faster than hours are added up here.
    facts = (fact for begin, end in period.stretches() for fact in view.uses(begin, end, by_host=by_host))
    # GPU-seconds that were observed; of the hours at the two ends the part that lies inside.
    first, last = period.first_hour, period.end_hour - HOUR
    observed = sum(view.observed(hour, hour + HOUR) * period.weight(hour) for hour in {first, last})
    observed += view.observed(first + HOUR, last) if last > first + HOUR else 0.0
    answer = sum_usage(
        facts,
        query,
        settings,
        groups,
        now,
        hosts=names,
        observed=observed,
        capacity=capacity_seconds(gpus, query.start, min(query.end, now)),
        since=known,
    )
    answer.known_since = known if query.start < known else None
    return answer


def sum_usage(
    facts: Iterable[tuple[UseKey, UsageAmounts]],
    query: UsageQuery,
    settings: UsageSettings,
    groups: Callable[[str], str | None],
    now: float,
    *,
    hosts: Mapping[str, str],
    observed: float,
    capacity: float,
    since: float = -math.inf,
) -> Usage:
    """Sum up facts of any store: one per hour, host, user and model, or coarser. `hosts` are names by id. `observed`
    are the monitored GPU-seconds of the period, `capacity` those that existed. Nothing was recorded before
    `since`. Facts outside of the period are ignored. Raises HistoryRefused."""
    period = Period(query.start, query.end, now, query.zone if query.daily else None, since=since)
    rows: dict[RowKey, _Sums] = {}
    total, unpriced = _Sums(), set[str]()
    name_row, is_wanted = make_naming(query, settings, groups, hosts)
    for (day, host, user, model), use in sum_by_day(facts, period).items():
        if is_wanted(host, user, model):
            price = price_of(model, settings.prices)
            if price is None and use.used > 0:
                unpriced.add(model)
            rows.setdefault(name_row(host, user, model), _Sums()).add(day, use, price)
            total.add(day, use, price)
    if sum(len(sums.days) for sums in rows.values()) > MAX_DAYS_IN_ROWS:
        days = f"{len(period.days)} days of {len(rows)} rows are too many for one answer"
        raise HistoryRefused("too_long", days, "Ask for fewer days, or without `daily`.")
    found = [_row(sums, period, observed, query.by, key) for key, sums in rows.items()]
    found.sort(key=lambda row: (-row.gpu_hours, row.unknown, row.user or row.group or row.host or row.model or ""))
    return Usage(
        by=query.by,
        start=query.start,
        end=query.end,
        coverage=min(1.0, observed / capacity) if capacity > 0 else None,
        monitored_gpu_hours=observed / HOUR,
        currency=settings.currency,
        rows=found,
        total=_row(total, period, observed),
        unpriced_models=sorted(unpriced),
    )


def capacity_seconds(gpus: Iterable[KnownGpu], start: float, end: float) -> float:
    """The GPU-seconds of these GPUs in a period, each from its first sample on. A GPU that was last seen more than
    seven days before the end counts until then."""
    ends = ((gpu, gpu.last if gpu.last < end - _GONE_AFTER else end) for gpu in gpus)
    return sum(max(0.0, until - max(start, gpu.first)) for gpu, until in ends)


def price_of(model: str, prices: Mapping[str, float]) -> float | None:
    """The price of a GPU-hour: that of the longest configured part of the model's name, case-insensitive."""
    fitting = [part for part in prices if part.lower() in model.lower()]
    return prices[max(fitting, key=len)] if fitting else None


def to_csv(usage: Usage, *, daily: bool = False) -> str:
    """A line per row, or with `daily` per row and day. There is no line for the total."""
    return write_csv(_daily_lines(usage) if daily else _lines(usage))


def sum_by_day(facts: Iterable[tuple[UseKey, UsageAmounts]], period: Period) -> dict[_SumKey, UsageAmounts]:
    sums: dict[_SumKey, UsageAmounts] = defaultdict(UsageAmounts)
    parts_of = lru_cache(maxsize=None)(period.parts)
    for (hour, host, user, model), use in facts:
        for day, share in parts_of(hour):
            sums[day, host, user, model].add(use, share)
    return sums


_Naming = tuple[Callable[[str, str | None, str], RowKey], Callable[[str, str | None, str], bool]]


def make_naming(
    query: UsageQuery, settings: UsageSettings, groups: Callable[[str], str | None], hosts: Mapping[str, str]
) -> _Naming:
    """Returns two functions of a usage record: its row, and whether the query includes it."""
    group_of = find_groups(settings, groups)

    def name_row(host: str, user: str | None, model: str) -> RowKey:
        if query.by in {"host", "model"}:
            return (hosts.get(host, host) if query.by == "host" else model), False
        return (user if query.by == "user" else group_of(user)), user is None

    def is_wanted(host: str, user: str | None, model: str) -> bool:
        return (
            query.user in {None, user}
            and query.host in {None, host, hosts.get(host)}
            and (query.model or "").lower() in model.lower()
            and (query.group is None or group_of(user) == query.group)
        )

    return name_row, is_wanted


def find_groups(settings: UsageSettings, groups: Callable[[str], str | None]) -> Callable[[str | None], str | None]:
    """A function that returns the group of a user: from the settings, else from `groups`."""
    configured = {user: group for group, users in reversed(settings.groups.items()) for user in users}

    def group_of(user: str | None) -> str | None:
        return None if user is None else configured[user] if user in configured else groups(user)

    return group_of


def _row(
    sums: _Sums, period: Period, observed: float, by: UsageBy | None = None, key: RowKey = (None, False)
) -> UsageRow:
    use = sums.use
    row = UsageRow(
        gpu_hours=use.used / HOUR,
        measured_hours=use.measured / HOUR,
        active_hours=_active_hours(use),
        idle_hours=use.idle / HOUR,
        share=use.used / observed if observed > 0 else None,
        peak_memory_bytes=use.peak or None,
        energy_kwh=use.joules / _JOULES_A_KWH if use.metered > 0 else None,
        cost=sums.cost,
        idle_cost=sums.idle_cost,
        unknown=key[1],
    )
    if by is not None:
        setattr(row, by, key[0])
    if period.days:
        row.days = [Day(*period.days[at], use.used / HOUR, _active_hours(use)) for at, use in sorted(sums.days.items())]
    return row


def _active_hours(use: UsageAmounts) -> float | None:
    return use.active / HOUR if use.measured > 0 else None


def _lines(usage: Usage) -> Iterator[list[Value]]:
    columns = [*_COLUMNS, *(_ALLOCATED if usage.total.allocated_hours is not None else ())]
    yield [usage.by, "unknown", *columns]
    for row in usage.rows:
        yield [
            row.name_by(usage.by),
            "yes" if row.unknown else "no",
            *(_round(getattr(row, name), name) for name in columns),
        ]


def _daily_lines(usage: Usage) -> Iterator[list[Value]]:
    yield ["day", usage.by, "unknown", "gpu_hours", "active_hours"]
    for row in usage.rows:
        name: list[Value] = [row.name_by(usage.by), "yes" if row.unknown else "no"]
        for day in row.days:
            yield [day.day, *name, _round(day.gpu_hours), _round(day.active_hours)]


def _round(value: float | None, column: str = "") -> float | None:
    """A ten-thousandth of an hour is less than a second. Bytes are whole numbers."""
    return None if value is None else int(value) if column.endswith("_bytes") else round(value, 4)


def unix_group(login: str) -> str | None:
    """The login's primary group. None for an unknown login, and for a group of its own name, which has only one
    member. Cached for up to ten minutes, as it may ask a directory server. May block."""
    return _look_up(login, int(time.monotonic() / _KEPT_SECONDS))


@lru_cache(maxsize=4096)
def _look_up(login: str, _age: int) -> str | None:
    try:
        name = grp.getgrgid(pwd.getpwnam(login).pw_gid).gr_name
    except (KeyError, ValueError, OSError):
        return None
    return None if name == login else name
