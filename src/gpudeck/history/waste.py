"""Waste: idle GPUs, GPUs that were allocated and not used, GPUs that were larger than needed, in hours and money.

    usage of the period and of the one before + `find_waste` → `describe_waste` → Waste

docs/accounting.md explains the rules to people.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpudeck.history.base import HistoryRefused, IdleEpisode, IdleQuery, ModelSize, Savings, UsageQuery, WasteFacts
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import HOUR, Period
from gpudeck.history.usage import make_naming, price_of, sum_by_day
from gpudeck.model.view import Usage, UsageRow
from gpudeck.model.waste import SmallerModel, Waste, WastedHours, WasteRow

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

RELEASED_AFTER: Final = 3600.0
"""Seconds after which an idle GPU could have been released."""
_SMALLER: Final = 0.75
"""A model is smaller if it has at most this part of the memory: H100 and A100 with 80 GB are the same size."""
_FITS: Final = 0.9
"""What was needed fits into this part of the memory."""
_OF_JOBS: Final = frozenset(("account", "partition", "namespace", "label"))
_UNKNOWN: Final = WastedHours(None, None)


def find_waste(  # noqa: PLR0917 - as `usage`
    view: "HistoryView",
    query: UsageQuery,
    sizes: Mapping[str, ModelSize],
    settings: UsageSettings,
    groups: Callable[[str], str | None],
    now: float,
) -> WasteFacts:
    """What could have been saved. `sizes` are the models that the fleet has. Blocks. Raises HistoryRefused."""
    # By day: who needed much memory on one day may have needed little on the next.
    period = Period(query.start, query.end, now, "UTC")
    names = {host.host_id: host.name for host in view.hosts().values()}
    name_row, is_wanted = make_naming(query, settings, groups, names)
    found = WasteFacts({}, Savings(), {})
    facts = (fact for begin, end in period.stretches() for fact in view.uses(begin, end, by_host=True))
    for (_, host, user, model), use in sum_by_day(facts, period).items():
        if not is_wanted(host, user, model) or not use.peak or model not in sizes:
            continue
        smaller = find_smaller(model, use.peak, sizes, settings.prices)
        working = 0.0 if smaller is None else use.used - use.idle
        price, cheaper = price_of(model, settings.prices), price_of(smaller or "", settings.prices)
        gain = None if price is None or cheaper is None else price - cheaper
        sums = [found.rows.setdefault(name_row(host, user, model), Savings()), found.total]
        sums += [] if smaller is None else [found.smaller.setdefault((model, smaller), Savings())]
        for one in sums:
            one.add_oversized(use.used, working, gain)

    def add(one: IdleEpisode, user: str | None, seconds: float) -> None:
        if is_wanted(one.host_id, user, one.model):
            price = price_of(one.model, settings.prices)
            for sums in (found.rows.setdefault(name_row(one.host_id, user, one.model), Savings()), found.total):
                sums.add_released(seconds, price)

    try:
        _add_released(view, query, now, add)
    except HistoryRefused as error:
        found.problem = f"{error.message}."
    return found


def find_smaller(model: str, peak: float, sizes: Mapping[str, ModelSize], prices: Mapping[str, float]) -> str | None:
    """The smallest model of the fleet into which that much memory fits, if it is smaller than `model`, of the same
    vendor, and not known to cost as much."""
    own, price = sizes[model], price_of(model, prices)

    def is_cheaper(other: str) -> bool:
        cost = price_of(other, prices)
        return price is None or cost is None or cost < price

    fitting = [
        (size.memory_bytes, name)
        for name, size in sizes.items()
        if size.vendor == own.vendor
        and size.memory_bytes <= _SMALLER * own.memory_bytes
        and peak <= _FITS * size.memory_bytes
        and is_cheaper(name)
    ]
    return min(fitting)[1] if fitting else None


def _add_released(
    view: "HistoryView",
    query: UsageQuery,
    now: float,
    add: Callable[[IdleEpisode, str | None, float], None],
) -> None:
    """Idle time from an hour after an episode's begin on. The users of a GPU share it."""
    from gpudeck.history.idle_episodes import find_idle_episodes, seconds_after  # noqa: PLC0415 - it imports numpy

    before = max(0.0, query.start - RELEASED_AFTER)
    for one in find_idle_episodes(view, IdleQuery(before, max(min(query.end, now), query.start))):
        released = find_moment(one.spans, RELEASED_AFTER)
        seconds = 0.0 if released is None else seconds_after(one, max(released, query.start))
        for user in one.users or (None,) if seconds else ():
            add(one, user, seconds / max(1, len(one.users)))


def find_moment(spans: Sequence[tuple[float, float]], seconds: float) -> float | None:
    """When it had idled for so long."""
    for start, end in spans:
        if end - start >= seconds:
            return start + seconds
        seconds -= end - start
    return None


def before_of(start: float, end: float) -> float:
    """When the period of the same length before begins."""
    return max(0.0, 2 * start - end)


def describe_waste(usage: Usage, before: Usage | None, facts: WasteFacts) -> Waste:
    """`before` is the usage of the period before, if that is known. Rows are in the order of what was wasted."""
    of_jobs = usage.by in _OF_JOBS
    # A period that was not recorded from its beginning on is no measure.
    is_comparable = before is not None and before.coverage is not None and before.known_since is None
    last = before.total if before is not None and is_comparable else None
    earlier = {(row.name_by(usage.by), row.unknown): row for row in before.rows} if before is not None else {}

    def hours(row: UsageRow, then: UsageRow | None, what: str) -> WastedHours:
        amount, cost = getattr(row, f"{what}_hours"), getattr(row, f"{what}_cost")
        if amount is None:
            return _UNKNOWN
        # Who was not there had none, where that is known at all.
        is_known = last is not None and getattr(last, f"{what}_hours") is not None
        known = 0.0 if then is None else getattr(then, f"{what}_hours")
        return WastedHours(amount, cost, known if is_known else None)

    def describe(row: UsageRow, then: UsageRow | None, savings: Savings | None) -> WasteRow:
        return WasteRow(
            name=row.name_by(usage.by),
            unknown=row.unknown,
            gpu_hours=row.gpu_hours,
            idle=hours(row, then, "idle"),
            unused=hours(row, then, "unused"),
            oversized=_UNKNOWN if savings is None or not savings.judged else _savings(savings),
            released=_UNKNOWN if savings is None or facts.problem else _released(savings),
        )

    rows = list[WasteRow]()
    for row in usage.rows:
        key = row.name_by(usage.by), row.unknown
        rows.append(describe(row, earlier.get(key), None if of_jobs else facts.rows.get(key, Savings())))
    rows.sort(key=lambda row: (-_sum(row), row.unknown, row.name or ""))
    total = describe(usage.total, last, None if of_jobs else facts.total)
    return Waste(
        by=usage.by,
        start=usage.start,
        end=usage.end,
        before_start=before_of(usage.start, usage.end),
        currency=usage.currency,
        coverage=usage.coverage,
        coverage_before=None if before is None else before.coverage,
        known_since=usage.known_since,
        allocated_since=usage.allocated_since,
        judged_hours=facts.total.judged / HOUR,
        released_after_seconds=RELEASED_AFTER,
        problem="Of jobs by name, only idle and unused hours are known." if of_jobs else facts.problem,
        rows=rows,
        total=total,
        smaller=[] if of_jobs else _smaller(facts),
    )


def _smaller(facts: WasteFacts) -> list[SmallerModel]:
    found = [(one.oversized, names, one.oversized_cost) for names, one in facts.smaller.items() if one.oversized > 0]
    return [SmallerModel(*names, seconds / HOUR, cost) for seconds, names, cost in sorted(found, reverse=True)]


def _savings(one: Savings) -> WastedHours:
    return WastedHours(one.oversized / HOUR, one.oversized_cost)


def _released(one: Savings) -> WastedHours:
    return WastedHours(one.released / HOUR, one.released_cost)


def _sum(row: WasteRow) -> float:
    return math.fsum(one.hours or 0.0 for one in (row.idle, row.unused, row.oversized))
