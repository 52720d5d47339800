"""Waste in hours and money (docs/accounting.md): idle GPUs, GPUs that were allocated and not used, and GPUs that were
larger than needed. Also the idle episodes of GPUs with their users.

    usage of the period and of the one before + `find_waste` → `describe_waste` → Waste
    states + runs (users) → IdleEpisode → waste report, dry run of the idle policy

An episode ends when the GPU is seen in another state, when its users change, and when it was not monitored for a whole
hour. Shorter gaps separate its spans and are not idle time. If samples are no longer kept, quarter hours are used.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.history.base import (
    HistoryRefused,
    IdleEpisode,
    IdleQuery,
    KnownRun,
    ModelSize,
    Savings,
    UsageQuery,
    WasteFacts,
)
from gpudeck.history.codec import Floats
from gpudeck.history.hour import ALLOCATED, IDLE, QUARTER, SECONDS, UNKNOWN, Hour
from gpudeck.history.rollup import COUNT, Quarters
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import HOUR, Period
from gpudeck.history.usage import make_naming, price_of, sum_by_day
from gpudeck.model.usage import SmallerModel, Usage, UsageRow, Waste, WastedHours, WasteRow

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView


RELEASED_AFTER: Final = 3600.0
"""Seconds after which an idle GPU could have been released."""
_SMALLER: Final = 0.75
"""A model is smaller if it has at most this part of the memory: H100 and A100 with 80 GB are the same size."""
_MAX_FILL: Final = 0.9
"""A smaller model is suggested only if the needed memory fills at most this part of its memory."""
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
    """Possible savings. `sizes` are the models in the fleet. Blocks. Raises HistoryRefused."""
    # By day: who needed much memory on one day may have needed little on the next.
    known = min((gpu.first for gpu in view.gpus().values()), default=query.start)
    period = Period(query.start, query.end, now, "UTC", since=known)
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
            one.judged += use.used
            one.add("oversized", working, gain)

    try:
        for idle, user, seconds in _find_released(view, query, now):
            if is_wanted(idle.host_id, user, idle.model):
                price = price_of(idle.model, settings.prices)
                row = found.rows.setdefault(name_row(idle.host_id, user, idle.model), Savings())
                for one in (row, found.total):
                    one.add("released", seconds, price)
    except HistoryRefused as error:
        found.problem = f"{error.message}."
    return found


def find_smaller(model: str, peak: float, sizes: Mapping[str, ModelSize], prices: Mapping[str, float]) -> str | None:
    """The smallest model in the fleet that fits this much memory, if it is smaller than `model`, of the same vendor,
    and not known to cost as much."""
    own, price = sizes[model], price_of(model, prices)

    def is_cheaper(other: str) -> bool:
        cost = price_of(other, prices)
        return price is None or cost is None or cost < price

    fitting = [
        (size.memory_bytes, name)
        for name, size in sizes.items()
        if size.vendor == own.vendor
        and size.memory_bytes <= _SMALLER * own.memory_bytes
        and peak <= _MAX_FILL * size.memory_bytes
        and is_cheaper(name)
    ]
    return min(fitting)[1] if fitting else None


def _find_released(
    view: "HistoryView", query: UsageQuery, now: float
) -> Iterator[tuple[IdleEpisode, str | None, float]]:
    """Idle seconds later than an hour after the begin of an episode, for each user: several users share them."""
    before = max(0.0, query.start - RELEASED_AFTER)
    for one in find_idle_episodes(view, IdleQuery(before, max(min(query.end, now), query.start))):
        if (released := find_moment(one.spans, RELEASED_AFTER)) is None:
            continue
        begin = max(released, query.start)
        seconds = sum(end - max(start, begin) for start, end in one.spans if end > begin)
        for user in one.users or (None,) if seconds else ():
            yield one, user, seconds / max(1, len(one.users))


def find_moment(spans: Sequence[tuple[float, float]], seconds: float) -> float | None:
    for start, end in spans:
        if end - start >= seconds:
            return start + seconds
        seconds -= end - start
    return None


def previous_period_start(start: float, end: float) -> float:
    """The start of the period of the same length that ends at `start`."""
    return max(0.0, 2 * start - end)


def is_comparable(before: Usage | None) -> bool:
    """A period that was not recorded from its beginning on is no measure."""
    return before is not None and before.coverage is not None and before.known_since is None


def describe_waste(
    usage: Usage, before: Usage | None, facts: WasteFacts, facts_before: WasteFacts | None = None
) -> Waste:
    """`before` is the usage of the period before, if known, and `facts_before` what could have been saved then. Rows
    are sorted by wasted hours."""
    of_jobs = usage.by in _OF_JOBS
    last = before.total if before is not None and is_comparable(before) else None
    saved = facts_before if last is not None else None
    earlier = {(row.name_by(usage.by), row.unknown): row for row in before.rows} if before is not None else {}

    def hours(row: UsageRow, then: UsageRow | None, what: str) -> WastedHours:
        amount, cost = getattr(row, f"{what}_hours"), getattr(row, f"{what}_cost")
        if amount is None:
            return _UNKNOWN
        # Who was not there had none, where that is known at all.
        is_known = last is not None and getattr(last, f"{what}_hours") is not None
        known = 0.0 if then is None else getattr(then, f"{what}_hours")
        return WastedHours(amount, cost, known if is_known else None)

    def describe(
        row: UsageRow, then: UsageRow | None, savings: Savings | None, earlier_savings: Savings | None
    ) -> WasteRow:
        oversized = released = None
        if earlier_savings is not None and saved is not None:
            oversized = earlier_savings.oversized / HOUR if saved.total.judged else None
            released = None if saved.problem else earlier_savings.released / HOUR
        return WasteRow(
            name=row.name_by(usage.by),
            unknown=row.unknown,
            gpu_hours=row.gpu_hours,
            idle=hours(row, then, "idle"),
            unused=hours(row, then, "unused"),
            oversized=_UNKNOWN
            if savings is None or not savings.judged
            else WastedHours(savings.oversized / HOUR, savings.oversized_cost, oversized),
            released=_UNKNOWN
            if savings is None or facts.problem
            else WastedHours(savings.released / HOUR, savings.released_cost, released),
        )

    rows = list[WasteRow]()
    for row in usage.rows:
        key = row.name_by(usage.by), row.unknown
        some, some_before = ((None if one is None else one.rows.get(key, Savings())) for one in (facts, saved))
        rows.append(describe(row, earlier.get(key), None if of_jobs else some, some_before))

    def wasted(row: WasteRow) -> float:
        return math.fsum(one.hours or 0.0 for one in (row.idle, row.unused, row.oversized))

    rows.sort(key=lambda row: (-wasted(row), row.unknown, row.name or ""))
    smaller = [(one.oversized, names, one.oversized_cost) for names, one in facts.smaller.items() if one.oversized > 0]
    total = describe(usage.total, last, None if of_jobs else facts.total, None if saved is None else saved.total)
    return Waste(
        by=usage.by,
        start=usage.start,
        end=usage.end,
        before_start=previous_period_start(usage.start, usage.end),
        currency=usage.currency,
        coverage=usage.coverage,
        coverage_before=None if before is None else before.coverage,
        known_since=usage.known_since,
        unpriced_models=usage.unpriced_models,
        allocated_since=usage.allocated_since,
        judged_hours=facts.total.judged / HOUR,
        released_after_seconds=RELEASED_AFTER,
        problem="Of jobs by name, only idle and unused hours are known." if of_jobs else facts.problem,
        rows=rows,
        total=total,
        smaller=[
            SmallerModel(*names, seconds / HOUR, cost)
            for seconds, names, cost in ([] if of_jobs else sorted(smaller, reverse=True))
        ],
    )


MAX_HOURS: Final = 50_000
"""The limit of hours of hosts for one answer."""
_IDLE, _OTHER, _UNSEEN = 1, 0, -1
_MAX_BREAK_SECONDS: Final = 1.0
"""Shorter breaks in another state within a quarter hour are ignored."""
_TIME_TOLERANCE: Final = 0.01
"""Tolerance for comparisons of times, in seconds."""


class _Owners(Struct):
    """The runs on a GPU, with the first and the last sample of each."""

    runs: list[KnownRun] = field(default_factory=list)
    firsts: Floats = field(default_factory=lambda: np.empty(0))
    lasts: Floats = field(default_factory=lambda: np.empty(0))


_Piece = tuple[tuple[float, float], list[KnownRun] | None]
"""A span of a GPU within an hour, with the runs on it if it was idle, and None if it was in another state."""


def find_idle_episodes(view: "HistoryView", query: IdleQuery) -> Iterator[IdleEpisode]:
    """Episodes of one GPU after the other, in order of time, cut at the edges of the period."""
    start, end = query.start, query.end
    states = (IDLE, ALLOCATED) if query.with_allocated else (IDLE,)
    first, last = math.floor(start / SECONDS) * SECONDS, math.ceil(end / SECONDS) * SECONDS
    stack = view.host_hours(first, last, ())
    idle = stack.only(stack.states[:, list(states)].sum(axis=1) > 0)
    if len(idle.starts) > MAX_HOURS:
        days = f"{len(idle.starts):,} hours of hosts with idle GPUs are too many to read at once"
        raise HistoryRefused("too_long", days, "Ask for a shorter period.")
    hours: dict[int, list[int]] = {}
    for host, hour in sorted(zip(idle.hosts.tolist(), idle.starts.tolist(), strict=True)):
        hours.setdefault(host, []).append(hour)
    owners, jobs = _find_owners(view, start, end, hours)
    gpus = view.gpus()
    for host, begins in hours.items():
        known = view.hosts()[host]
        for pieces in _read_host(view, host, begins, (start, end), states, owners):
            for gpu, found in pieces.items():
                one = gpus[gpu]
                blank = IdleEpisode(one.uuid, one.label, one.model, known.host_id, known.name, (), (), [])
                for episode, own in _join(blank, found):
                    ended = episode.spans[-1][1]
                    runs = [*own, *(run for job in episode.jobs for run in jobs[job] if run.first < ended)]
                    for other, until in sorted((other, run.last) for run in runs for other in run.gpus if other != gpu):
                        episode.sharing[gpus[other].uuid] = until
                    yield episode


def _find_owners(
    view: "HistoryView", start: float, end: float, hosts: Collection[int]
) -> tuple[dict[int, _Owners], dict[str, list[KnownRun]]]:
    """Of each GPU of these hosts; and all runs of each job."""
    found: dict[int, _Owners] = {}
    jobs: dict[str, list[KnownRun]] = {}
    for run in view.runs_between(start, end):
        for gpu in run.gpus if run.host in hosts else ():
            found.setdefault(gpu, _Owners()).runs.append(run)
        if run.job is not None:
            jobs.setdefault(run.job, []).append(run)
    for owners in found.values():
        owners.firsts = np.array([run.first for run in owners.runs]) - _TIME_TOLERANCE
        owners.lasts = np.array([run.last for run in owners.runs]) + _TIME_TOLERANCE
    return found, jobs


def _read_host(  # noqa: PLR0917 - what is read of it
    view: "HistoryView",
    host: int,
    begins: Sequence[int],
    period: tuple[float, float],
    states: Sequence[int],
    owners: Mapping[int, _Owners],
) -> Iterator[dict[int, list[_Piece]]]:
    """The pieces of each GPU in consecutive hours, of which many have one row in the file."""
    sampled_since = math.ceil(view.raw_since((host,)) / SECONDS) * SECONDS
    breaks = [at + 1 for at, (one, next_) in enumerate(pairwise(begins)) if next_ != one + SECONDS]
    for at, stop in pairwise([0, *breaks, len(begins)]):
        first, last = max(period[0], begins[at]), min(period[1], begins[stop - 1] + SECONDS)
        rolled_until = min(last, sampled_since)
        pieces: dict[int, list[_Piece]] = defaultdict(list)
        for part in view.quarters(host, first, rolled_until, ()):
            for gpu, *columns in _read_quarters(part, states, first, rolled_until):
                pieces[gpu] += _cut(owners.get(gpu, _Owners()), *columns)
        for hour in view.hours(host, max(first, sampled_since), last, ()):
            for gpu, *columns in _read_hour(hour, states, first, last):
                pieces[gpu] += _cut(owners.get(gpu, _Owners()), *columns)
        yield pieces


_GpuColumns = tuple[int, Floats, Floats, Floats, Floats]
"""A GPU, and its states in order: from when, until when, when its users were seen, and the kind of state."""


def _read_hour(hour: Hour, states: Sequence[int], start: float, end: float) -> Iterator[_GpuColumns]:
    begins, ends = np.maximum(hour.times - hour.covered, start), np.minimum(hour.times, end)
    inside = begins < ends
    idle = np.isin(hour.states, states)
    kinds = np.where(idle, _IDLE, np.where(hour.states > UNKNOWN, _OTHER, _UNSEEN))
    for row, gpu in enumerate(hour.gpus):
        # The runs of a sample are those at its end.
        yield gpu, begins[inside], ends[inside], ends[inside], kinds[row, inside]


def _read_quarters(part: Quarters, states: Sequence[int], start: float, end: float) -> Iterator[_GpuColumns]:
    """The idle part of a quarter hour has no known position. It is placed next to a neighbouring quarter that was all
    idle."""
    idle = part.states[list(states)].sum(axis=0)
    other = np.delete(part.states[UNKNOWN + 1 :], [one - UNKNOWN - 1 for one in states], axis=0).sum(axis=0)
    other[other < _MAX_BREAK_SECONDS] = 0.0
    whole = np.pad((idle > 0) & (other == 0), ((0, 0), (1, 1)))
    is_first = (other == 0) | (whole[:, :-2] & ~whole[:, 2:])
    lengths = np.where(is_first, (idle, other), (other, idle))
    kinds = np.where(is_first, [[[_IDLE]], [[_OTHER]]], [[[_OTHER]], [[_IDLE]]])
    begins = np.broadcast_to(part.start + QUARTER * np.arange(COUNT, dtype=np.float64), idle.shape)
    # Both parts of each quarter hour, one after the other.
    begins = np.stack([begins, begins + lengths[0]], axis=2).reshape(len(idle), -1)
    ends = begins + np.stack(list(lengths), axis=2).reshape(begins.shape)
    kinds = np.stack(list(kinds), axis=2).reshape(begins.shape)
    begins, ends = np.maximum(begins, start), np.minimum(ends, end)
    for row, gpu in enumerate(part.gpus):
        inside = begins[row] < ends[row]
        mine = begins[row, inside], ends[row, inside]
        yield gpu, *mine, (mine[0] + mine[1]) / 2, kinds[row, inside]


def _cut(owners: _Owners, begins: Floats, ends: Floats, times: Floats, kinds: Floats) -> Iterator[_Piece]:
    """Cut where the state changes and where a run begins or ends. Unmonitored time has no piece."""
    if not (kinds == _IDLE).any():
        if (kinds == _OTHER).any():
            yield (float(begins[0]), float(ends[-1])), None
        return
    is_new = np.ones(len(kinds), dtype=np.bool_)
    is_new[1:] = (np.diff(kinds) != 0) | (begins[1:] > ends[:-1] + _TIME_TOLERANCE)
    firsts = np.flatnonzero(is_new).tolist()
    for at, stop in zip(firsts, [*firsts[1:], len(kinds)], strict=True):
        if kinds[at] == _OTHER:
            yield (float(begins[at]), float(ends[stop - 1])), None
        if kinds[at] != _IDLE:
            continue
        own = times[at:stop]
        here = np.flatnonzero((owners.firsts <= own[-1]) & (owners.lasts >= own[0]))
        cuts = {0, *np.searchsorted(own, owners.firsts[here]), *np.searchsorted(own, owners.lasts[here])}
        places = sorted(int(cut) for cut in cuts if cut < len(own))
        for place, next_ in pairwise([*places, len(own)]):
            is_there = (owners.firsts[here] <= own[place]) & (owners.lasts[here] >= own[place])
            runs = [owners.runs[number] for number in here[is_there]]
            yield (float(begins[at + place]), float(ends[at + next_ - 1])), runs


def _join(blank: IdleEpisode, pieces: Iterable[_Piece]) -> Iterator[tuple[IdleEpisode, list[KnownRun]]]:
    """Each episode with its runs."""
    one: tuple[IdleEpisode, list[KnownRun]] | None = None
    for span, runs in pieces:
        users = tuple(sorted({run.user for run in runs or () if run.user is not None}))
        jobs = tuple(sorted({run.job for run in runs or () if run.job is not None}))
        if one is None or runs is None or (users, jobs) != (one[0].users, one[0].jobs):
            if one is not None:
                yield one
            new = replace(blank, users=users, jobs=jobs, spans=[span], sharing={})
            one = None if runs is None else (new, [*runs])
            continue
        one[1].extend(runs)
        spans = one[0].spans
        if span[0] <= spans[-1][1] + _TIME_TOLERANCE:
            spans[-1] = spans[-1][0], span[1]
        else:
            spans.append(span)
    if one is not None:
        yield one
