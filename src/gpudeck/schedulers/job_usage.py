"""Allocated time in usage reports (docs/accounting.md), and the rows that only schedulers know: by account, partition,
namespace and label."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudeck.history.base import HistoryRefused, UsageQuery
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import Period
from gpudeck.history.usage import find_groups, price_of
from gpudeck.model.usage import Day, Usage, UsageRow
from gpudeck.schedulers.job_store import AMOUNTS, HOUR, JobStore, UsageSum, add_amounts, read_labels

JOB_NAMES: Final = ("account", "partition", "namespace", "label")
"""What rows can stand for that only schedulers know."""
_COLUMNS: Final = {"group": "user", "label": "labels"}
"""Where a row's name is found, if not in a column of its own."""
_JOULES_A_KWH: Final = 3.6e6

DaySums = list[tuple[int, list[UsageSum]]]
"""The sums of a period by the number of the day, or all at 0."""


class AllocatedSums(NamedTuple):
    """`since` is when the records of jobs begin. What was imported may be older."""

    days: DaySums
    since: float


async def read_sums(store: JobStore, query: UsageQuery, now: float, since: float = 0.0) -> AllocatedSums:
    """What the answer needs of jobs. Raises Temporary, and HistoryRefused for a period that makes no sense."""
    is_daily = query.daily and query.by in JOB_NAMES
    period = Period(query.start, query.end, now, query.zone if is_daily else None)
    begins = [begin for _, begin in period.days] or [query.start]
    by = [_COLUMNS.get(query.by, query.by), "user", "model"]
    only = {name: value for name in ("user", "host") if (value := getattr(query, name)) is not None}
    ends = [*begins[1:], query.end]
    days = [
        (number, await store.sum_usage(max(begin, query.start), min(end, now), now, by, only))
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    return AllocatedSums(days, since)


def check_query(query: UsageQuery, *, has_jobs: bool) -> None:
    """Raises HistoryRefused for what this hub cannot know."""
    if query.by in JOB_NAMES and not has_jobs:
        hint = "Rows are by user, group, host or model where the hub reads no scheduler. See docs/slurm.md."
        raise HistoryRefused("no_jobs", f"no scheduler has given a GPU to a job here, so there is no {query.by}", hint)
    if (query.by == "label") != (query.label is not None):
        hint = "Ask with by=label&label=team, or `--by label:team`."
        raise HistoryRefused("bad_label", "by=label needs the name of a label, and only that has one", hint)


def check_sums(query: UsageQuery, sums: AllocatedSums) -> AllocatedSums | None:
    """None where no job is recorded until the end of the period. Raises HistoryRefused where only jobs could tell."""
    if query.end > sums.since or any(found for _, found in sums.days):
        return sums
    if query.by not in JOB_NAMES:
        return None
    told = f"no job is recorded before {datetime.fromtimestamp(sums.since, UTC):%Y-%m-%d %H:%M} UTC"
    hint = "Ask about a period that ends later, or by user, group, host or model."
    raise HistoryRefused("no_jobs", f"{told}, so the usage by {query.by} is not known in this period", hint)


class AllocatedTime:
    """Adds allocated time to usage. `groups` returns the group of users that are in none of the settings."""

    def __init__(self, settings: UsageSettings, groups: Callable[[str], str | None]) -> None:
        self._settings = settings
        self._find_group = find_groups(settings, groups)

    def add(self, usage: Usage, query: UsageQuery, sums: AllocatedSums, now: float) -> Usage:
        """`usage` is what the history says by user where only schedulers know the rows. May block."""
        usage.allocated_since = sums.since if sums.since > query.start else None
        wanted = [(day, [one for one in found if self._is_wanted(query, one)]) for day, found in sums.days]
        everything = [one for _, found in wanted for one in found]
        if query.by in JOB_NAMES:
            return self._make_rows(usage, query, wanted, everything, now)
        rows = {(row.name_by(query.by), row.unknown): row for row in usage.rows}
        by_row: dict[tuple[str | None, bool], list[UsageSum]] = {}
        for one in everything:
            by_row.setdefault(self._name_row(query, one), []).append(one)
        for key, found in by_row.items():
            if key not in rows:
                # Nobody used what was allocated there.
                rows[key] = UsageRow(0.0, 0.0, None, 0.0, 0.0 if usage.coverage else None, None, None, unknown=key[1])
                setattr(rows[key], query.by, key[0])
                usage.rows.append(rows[key])
            self._set_hours(rows[key], found)
        for key, row in rows.items():
            if key not in by_row:
                self._set_hours(row, [])
        self._set_hours(usage.total, everything)
        return usage

    def _make_rows(
        self, usage: Usage, query: UsageQuery, days: DaySums, everything: Sequence[UsageSum], now: float
    ) -> Usage:
        period = Period(query.start, query.end, now, query.zone if query.daily else None)
        monitored = usage.monitored_gpu_hours * HOUR
        names = {self._name_row(query, one) for one in everything}

        def make(key: tuple[str | None, bool] | None) -> UsageRow:
            def is_wanted(one: UsageSum) -> bool:
                return key is None or self._name_row(query, one) == key

            row = self._row([one for one in everything if is_wanted(one)], monitored)
            for number, found in days if period.days else ():
                used = [one.amounts for one in found if is_wanted(one)]
                hours, active = (sum(one[name] for one in used) / HOUR for name in ("used", "active"))
                if any(one["allocated"] + one["unobserved"] for one in used):
                    is_measured = any(one["measured"] for one in used)
                    row.days.append(Day(*period.days[number], hours, active if is_measured else None))
            return row

        usage.by, usage.rows = query.by, []
        for name, unknown in names:
            row = make((name, unknown))
            row.unknown = unknown
            setattr(row, query.by, name)
            usage.rows.append(row)
        usage.rows.sort(key=lambda row: (-(row.allocated_hours or 0.0), row.unknown, row.name_by(query.by) or ""))
        usage.total = make(None)
        return usage

    def _row(self, found: Sequence[UsageSum], monitored: float) -> UsageRow:
        sums = _add_up(found)
        imported = sum(one.imported for one in found)
        # What another monitor has measured was not monitored here.
        seen = sums["used"] - imported
        row = UsageRow(
            gpu_hours=sums["used"] / HOUR,
            measured_hours=sums["measured"] / HOUR,
            active_hours=sums["active"] / HOUR if sums["measured"] > 0 else None,
            idle_hours=None if imported > 0 else sums["idle"] / HOUR,
            share=min(1.0, seen / monitored) if monitored > 0 and (seen > 0 or not imported) else None,
            peak_memory_bytes=sums["memory_peak"] or None,
            energy_kwh=sums["joules"] / _JOULES_A_KWH if sums["metered"] > 0 else None,
            cost=self._cost(found, _allocated),
            idle_cost=None if imported > 0 else self._cost(found, lambda one: one.amounts["idle"]),
        )
        self._set_hours(row, found)
        return row

    def _cost(self, found: Sequence[UsageSum], seconds: Callable[[UsageSum], float]) -> float | None:
        prices = [(price_of(one.names[-1] or "", self._settings.prices), seconds(one)) for one in found]
        costs = [price * part / HOUR for price, part in prices if price is not None]
        return sum(costs) if costs else None

    def _set_hours(self, row: UsageRow, found: Sequence[UsageSum]) -> None:
        allocated, used = (sum(one.amounts[name] for one in found) for name in ("allocated", "used"))
        total = sum(map(_allocated, found))
        row.allocated_hours = total / HOUR
        row.unmonitored_hours = (total - allocated) / HOUR
        row.unused_hours = max(0.0, allocated - used) / HOUR if allocated or not total else None
        row.unused_cost = None if row.unused_hours is None else self._cost(found, _unused)
        row.never_used_hours = sum(one.never_used for one in found) / HOUR
        row.shared_hours = sum(one.shared for one in found) / HOUR

    def _is_wanted(self, query: UsageQuery, one: UsageSum) -> bool:
        _, user, model = one.names
        return (query.model is None or query.model.lower() in (model or "").lower()) and (
            query.group is None or self._find_group(user) == query.group
        )

    def _name_row(self, query: UsageQuery, one: UsageSum) -> tuple[str | None, bool]:
        name, user, _ = one.names
        if query.by == "group":
            return self._find_group(user), user is None
        if query.by == "label":
            return read_labels(name).get(query.label or ""), False
        return name, name is None and query.by == "user"


def _add_up(found: Iterable[UsageSum]) -> dict[str, float]:
    sums = dict.fromkeys(AMOUNTS, 0.0)
    for one in found:
        sums = add_amounts(sums, one.amounts)
    return sums


def _unused(one: UsageSum) -> float:
    return max(0.0, one.amounts["allocated"] - one.amounts["used"])


def _allocated(one: UsageSum) -> float:
    """Seconds, whether it is known what the GPUs did then or not."""
    return one.amounts["allocated"] + one.amounts["unobserved"]


def base_query(query: UsageQuery) -> UsageQuery:
    """What the history is asked: it knows no names of schedulers, and its rows are not needed then."""
    return replace(query, by="user", daily=False, label=None) if query.by in JOB_NAMES else query
