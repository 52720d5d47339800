"""Answers queries from the embedded store: series of a GPU, host, run, user or the fleet, heat maps, and the overview.

Short steps are made from samples, steps of a quarter hour and more from quarter hours. If samples are no longer kept,
or are too many to read at once, steps are at least a quarter hour.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudeck.history.aggregation import (
    CAPACITY,
    Block,
    Mask,
    combine,
    device_points,
    fold,
    fold_totals,
    make_block,
    observed_seconds,
    read_quarters,
    read_samples,
    wanted_for,
)
from gpudeck.history.base import (
    MAX_POINTS,
    MAX_SERIES,
    STATE_METRICS,
    Heat,
    HeatQuery,
    HeatRow,
    HistoryRefused,
    KnownGpu,
    KnownHost,
    KnownRun,
    Overview,
    OverviewQuery,
    SeriesQuery,
    UsageQuery,
)
from gpudeck.history.codec import Floats
from gpudeck.history.hour import BUSY, IDLE, UNKNOWN, Hour, or_none
from gpudeck.history.metrics import SUBJECTS, HistoryMetric, Subject, find_metric, suggest
from gpudeck.history.rollup import Roll
from gpudeck.history.settings import UsageSettings
from gpudeck.history.time_range import (
    DAY,
    HOUR,
    MAX_DAYS,
    QUARTER,
    Grid,
    align,
    check_points,
    check_range,
    choose_grid,
)
from gpudeck.history.totals import UTILIZATION
from gpudeck.history.usage import usage
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.history import Answer, Point, Resolution, Series
from gpudeck.model.usage import Usage

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView


MAX_READS: Final = 200
"""The limit of hours of hosts that are read for fine steps of the fleet."""
MAX_VALUES: Final = 100_000
"""The limit of points of all series together."""
MAX_USER_HOURS: Final = 1_000
_MEMORY: Final = "memory_used_bytes"
_AMOUNTS: Final = {
    "gpus_used": ("used", "used"),
    "gpus_active": ("active", "measured"),
    "gpus_idle": ("idle", "used"),
    "power_watts": ("joules", "metered"),
}
"""The fields of UsageAmounts with the amount, and with the time for which it is known."""
MAX_HEAT_HOURS: Final = 1_000_000
MAX_CELLS: Final = 500_000


def answer_series(view: "HistoryView", query: SeriesQuery, now: float) -> Answer:
    """Raises HistoryRefused for an invalid query; the hint has a valid one."""
    check_range(query.start, query.end)
    check_points(query.points)
    subject, metric = check_query(query)
    if subject == "user":
        return user_series(view, query, metric, now)
    if query.by == "user":
        return memory_by_user(view, query, metric, now)
    if subject == "gpu":
        return gpu_series(view, query, metric)
    if subject == "host":
        return host_series(view, query, metric)
    if subject == "run":
        return run_series(view, query, metric, now)
    return fleet_answers(view, [query], now)[0]


def check_query(query: SeriesQuery) -> tuple[Subject, HistoryMetric]:
    """The subject and the metric of a query. Raises HistoryRefused."""
    given = [subject for subject in SUBJECTS if getattr(query, subject) not in {None, False}]
    if len(given) != 1:
        whose = f"{' and '.join(given)} were asked for at once" if given else "no host, GPU or user was named"
        raise HistoryRefused("not_one_subject", whose, "Give exactly one of gpu, host, user, run, or fleet=1.")
    subject = given[0]
    metric = find_metric(query.metric, subject)
    hint = "by=gpu splits a metric of GPUs, of a host or a run; by=user splits memory_used_bytes of one GPU."
    if query.by == "gpu" and (subject not in {"host", "run"} or metric.is_of_host):
        raise HistoryRefused("bad_split", f"{query.metric} of a {subject} cannot be split by GPU", hint)
    if query.by == "user" and (subject != "gpu" or query.metric != "memory_used_bytes"):
        raise HistoryRefused("bad_split", f"{query.metric} of a {subject} cannot be split by user", hint)
    return subject, metric


def gpu_series(view: "HistoryView", query: SeriesQuery, metric: HistoryMetric) -> Answer:
    gpu = find_gpu(view, query.gpu or "")
    grid = series_grid(view, query, gpu.host, gpu.first)
    found = _fold_host(view, gpu.host, metric, grid, only={gpu.key})
    points = _together(found, grid, metric, is_one=True)
    return make_answer(query, metric, grid, [Series(points, gpu=gpu.uuid, label=gpu.label, model=gpu.model)])


def host_series(view: "HistoryView", query: SeriesQuery, metric: HistoryMetric) -> Answer:
    host = find_host(view, query.host or "")
    gpus = {key: gpu for key, gpu in view.gpus().items() if gpu.host == host.key}
    grid = series_grid(view, query, host.key, host.first, among=len(gpus) if query.by == "gpu" else 1)
    found = _fold_host(view, host.key, metric, grid)
    if query.by == "gpu":
        return make_answer(query, metric, grid, _each(found, view.gpus(), grid, metric))
    points = _together(found, grid, metric, is_one=metric.is_of_host)
    return make_answer(query, metric, grid, [Series(points, host=host.host_id, label=host.name)])


def run_series(view: "HistoryView", query: SeriesQuery, metric: HistoryMetric, now: float) -> Answer:
    """The GPUs of a run while it was on them; quarter hours count if it was there for a part of them."""
    run = find_run(view, query.run or 0)
    grid = series_grid(view, query, run.host, run.first, among=len(run.gpus) if query.by == "gpu" else 1)
    if grid.step < QUARTER:
        found = fold(read_samples(view, run.host, metric, grid, only=run.gpus, mask=_presence(run.key)), grid)
    else:
        span = (run.first // QUARTER * QUARTER, _last_moment(view, run, now) + 1)
        found = fold(read_quarters(view, run.host, metric, grid, only=run.gpus), grid, span)
    if query.by == "gpu":
        return make_answer(query, metric, grid, _each(found, view.gpus(), grid, metric))
    points = _together(found, grid, metric, is_one=len(run.gpus) == 1)
    return make_answer(query, metric, grid, [Series(points, run=run.key)])


def fleet_answers(view: "HistoryView", queries: Sequence[SeriesQuery], now: float) -> list[Answer]:
    """Answers queries of the fleet that differ only in their metric, from one pass over the data."""
    query, metrics = queries[0], [check_query(query)[1] for query in queries]
    began = min((host.first for host in view.hosts().values()), default=query.start)
    grid = choose_grid(query.start, query.end, query.points)
    inside = _hosts_within(view, grid.start, grid.end)
    reads = len(inside) * (grid.end - max(grid.start, began)) / HOUR
    is_coarse = grid.step >= QUARTER or reads > MAX_READS
    if is_coarse or max(grid.start, began) < view.raw_since(host.key for host in inside):
        grid = choose_grid(query.start, query.end, query.points, QUARTER)
        wanted = tuple(dict.fromkeys(name for metric in metrics for name in wanted_for(metric)))
        stack = view.fleet_quarters(grid.start, grid.end, wanted)
        at = (stack.starts - grid.start) // grid.step
        wholes = [fold_totals(stack, metric, now, at, grid.count) for metric in checkpointed(metrics)]
    else:
        wholes = []
        for metric in metrics:
            whole = combine([], grid, metric.rollup)
            for host in inside:
                found = _fold_host(view, host.key, metric, grid)
                whole = whole.join(combine(found.values(), grid, metric.rollup), metric.rollup)
            wholes.append(whole)
    return [
        make_answer(query, metric, grid, [Series(whole.points(grid, metric), fleet=True)])
        for metric, whole in zip(metrics, wholes, strict=True)
    ]


def find_gpu(view: "HistoryView", uuid: str) -> KnownGpu:
    known = {gpu.uuid: gpu for gpu in view.gpus().values()}
    if uuid not in known:
        hint = _near(uuid, known, "a GPU's uuid")
        raise HistoryRefused("unknown_gpu", f"the history knows no GPU {uuid[:80]!r}", hint)
    return known[uuid]


def find_run(view: "HistoryView", key: int) -> KnownRun:
    run = view.run(key) if 0 < key < 2**63 else None
    if run is None:
        raise HistoryRefused("unknown_run", f"the history knows no run {key}", "/api/v1/runs lists them.")
    return run


def find_host(view: "HistoryView", name: str) -> KnownHost:
    """By id or name. If several hosts had the name, the latest one."""
    hosts = view.hosts().values()
    named = [host for host in hosts if host.host_id == name] or [host for host in hosts if host.name == name]
    if not named:
        hint = _near(name, [host.name for host in hosts], "a host's name or id")
        raise HistoryRefused("unknown_host", f"the history knows no host {name[:80]!r}", hint)
    return max(named, key=lambda host: host.last)


def series_grid(view: "HistoryView", query: SeriesQuery, host: int, began: float, *, among: int = 1) -> Grid:
    if among > MAX_SERIES:
        hint = f"At most {MAX_SERIES} can be; ask for one GPU."
        raise HistoryRefused("too_many_series", f"{among:,} GPUs are too many for a series each", hint)
    points = min(query.points, max(1, MAX_VALUES // max(1, among)))
    grid = choose_grid(query.start, query.end, points)
    if grid.step < QUARTER and max(grid.start, began) < view.raw_since((host,)):
        return choose_grid(query.start, query.end, points, QUARTER)
    return grid


def make_answer(
    query: SeriesQuery, metric: HistoryMetric, grid: Grid, series: list[Series], resolution: Resolution | None = None
) -> Answer:
    made_from: Resolution = resolution or ("raw" if grid.step < QUARTER else "quarter_hour")
    return Answer(metric.name, metric.unit, grid.step, query.start, query.end, made_from, series)


def _near(wrong: str, known: Collection[str], what: str) -> str:
    if len(known) <= 20:
        return suggest(wrong, known, "It knows") or "Nothing was recorded yet."
    return suggest(wrong, known, f"Give {what}; it knows")


def _fold_host(
    view: "HistoryView", host: int, metric: HistoryMetric, grid: Grid, *, only: Collection[int] | None = None
) -> dict[int, Roll]:
    read = read_samples if grid.step < QUARTER else read_quarters
    return fold(read(view, host, metric, grid, only=only), grid)


def _each(found: dict[int, Roll], gpus: dict[int, KnownGpu], grid: Grid, metric: HistoryMetric) -> list[Series]:
    known = sorted((gpus[key].label, key) for key in found if key in gpus)
    return [
        Series(device_points(found[key], grid, metric), gpu=gpus[key].uuid, label=label, model=gpus[key].model)
        for label, key in known
    ]


def _together(found: dict[int, Roll], grid: Grid, metric: HistoryMetric, *, is_one: bool) -> list[Point]:
    if is_one and len(found) == 1:
        return device_points(next(iter(found.values())), grid, metric)
    return combine(found.values(), grid, metric.rollup).points(grid, metric)


def _presence(run: int) -> Mask:
    def mask(hour: Hour, rows: list[int]) -> NDArray[np.bool_]:
        shown = np.zeros((len(rows), len(hour.times)), dtype=np.bool_)
        for part in hour.runs:
            if part.run == run and part.gpu in rows:
                shown[rows.index(part.gpu)] |= part.present
        return shown

    return mask


def _last_moment(view: "HistoryView", run: KnownRun, now: float) -> float:
    """The table of runs is not current while the run goes on, so later hours are read."""
    if now - run.last > 2 * HOUR:
        return run.last
    hours = view.hours(run.host, run.last, now, (), runs=True)
    parts = [(hour, part) for hour in hours for part in hour.runs if part.run == run.key and part.present.any()]
    return max([run.last, *(float(hour.times[part.present][-1]) for hour, part in parts)])


def user_series(view: "HistoryView", query: SeriesQuery, metric: HistoryMetric, now: float) -> Answer:
    """In hours. A monitored hour without use is zero."""
    grid = choose_grid(query.start, query.end, query.points, HOUR)
    count = (grid.end - grid.start) // HOUR
    amounts, used, known, in_use = np.zeros((4, count))
    what, known_by = _AMOUNTS[metric.name]
    for (hour, _, user, _), use in view.uses(grid.start, grid.end, hourly=True):
        at = (hour - grid.start) // HOUR
        in_use[at] = True
        if user == query.user:
            amounts[at] += getattr(use, what)
            known[at] += getattr(use, known_by)
            used[at] += use.used
    # For how long the fleet was observed in each hour.
    stack = view.fleet_quarters(grid.start, grid.end, (CAPACITY,))
    observed = np.bincount((stack.starts - grid.start) // HOUR, observed_seconds(stack, now), count)
    seconds = np.where((observed == 0) & (in_use > 0), float(HOUR), observed)
    is_seen = ((known > 0) | (used == 0)) & (seconds > 0)
    values = np.divide(amounts, seconds, out=np.full((1, count), np.nan), where=is_seen)
    times = grid.start + HOUR * np.arange(count, dtype=np.float64)
    block = Block([0], times, Roll(amounts[None], seconds, values, values, values))
    points = [device_points(steps, grid, metric) for steps in fold([block], grid).values()]
    return make_answer(query, metric, grid, [Series(points[0] if points else [], user=query.user)], "hour")


def memory_by_user(view: "HistoryView", query: SeriesQuery, metric: HistoryMetric, now: float) -> Answer:
    """From samples, as only these have users. Memory of unknown users has no user."""
    gpu = find_gpu(view, query.gpu or "")
    start = max(query.start, gpu.first)
    since, end = view.raw_since((gpu.host,)), min(query.end, now)
    if start < since:
        kept = "who had which memory is known as long as each sample is kept, and some of that range is older"
        raise HistoryRefused("too_old", kept, f"Ask from start={since:.0f} on.")
    if end - start > MAX_USER_HOURS * HOUR:
        days = MAX_USER_HOURS * HOUR // DAY
        raise HistoryRefused("too_long", "the range is too long for figures per user", f"Ask for at most {days} days.")
    grid = series_grid(view, query, gpu.host, gpu.first)
    block, users = _split(view, gpu, grid)
    found = fold([block], grid)
    points = {row: device_points(steps, grid, metric) for row, steps in found.items()}
    # A step without any memory of a user is no point.
    series = [
        Series([point for point in points[row] if point[3]], gpu=gpu.uuid, label=gpu.label, user=user)
        for row, user in enumerate(users)
        if row in points
    ]
    return make_answer(query, metric, grid, series, "raw")


def _split(view: "HistoryView", gpu: KnownGpu, grid: Grid) -> tuple[Block, list[str | None]]:
    hours = [hour for hour in view.hours(gpu.host, grid.start, grid.end, (_MEMORY,), runs=True) if gpu.key in hour.gpus]
    parts = [_memory_of_users(view, hour, hour.gpus.index(gpu.key)) for hour in hours]
    users = sorted({user for part, _ in parts for user in part}, key=lambda user: (user is None, user or ""))
    rows = [np.concatenate([part.get(user, base) for part, base in parts]) for user in users]
    times = np.concatenate([hour.times for hour in hours]) if hours else np.empty(0)
    seconds = np.concatenate([hour.covered for hour in hours]) if hours else np.empty(0)
    values = np.array(rows).reshape(len(users), len(times))
    return make_block(list(range(len(users))), times, values, seconds, grid.step), users


def _memory_of_users(view: "HistoryView", hour: Hour, row: int) -> tuple[dict[str | None, Floats], Floats]:
    base = np.where(hour.states[row] > UNKNOWN, 0.0, np.nan)
    found: dict[str | None, Floats] = {}
    is_alone = np.isin(hour.states[row], (BUSY, IDLE))
    for part in hour.runs:
        if part.gpu == row:
            user = view.owner(part.run)
            found[user] = found.get(user, base) + np.where(part.present, part.memory, 0.0)
            is_alone &= ~part.present
    table = hour.metrics.get(_MEMORY)
    if is_alone.any() and table is not None:
        found[None] = found.get(None, base) + np.where(is_alone, table[row], 0.0)
    return found, base


def answer_heat(view: "HistoryView", query: HeatQuery, now: float) -> Heat:
    """Rows are sorted by name. Includes hosts that were seen at some time in the range."""
    check_range(query.start, query.end)
    metric = find_metric(query.metric, "host")
    grid = _heat_grid(query)
    hosts = sorted(_hosts_within(view, grid.start, grid.end), key=lambda host: (host.name, host.host_id))
    hours = len(hosts) * max(0.0, min(grid.end, now) - grid.start) / HOUR
    if hours > MAX_HEAT_HOURS or len(hosts) * grid.count > MAX_CELLS:
        size = f"{len(hosts):,} hosts × {grid.count:,} columns are too much for one map"
        raise HistoryRefused("too_long", size, "Ask for a shorter range or a larger step.")
    if metric.name == UTILIZATION:
        stack = view.host_utilization(grid.start, grid.end, grid.step)
    else:
        stack = view.host_hours(grid.start, grid.end, wanted_for(metric))
    rows = {host.key: row for row, host in enumerate(hosts)}
    stack = stack.only(np.isin(stack.hosts, list(rows)))
    places = np.array([rows[host] for host in stack.hosts.tolist()], dtype=np.int64)
    at = places * grid.count + (stack.starts - grid.start) // grid.step
    whole = fold_totals(stack, metric, now, at, len(rows) * grid.count)
    values = or_none(np.round(whole.means(metric), metric.digits))
    shown = [
        HeatRow(host.host_id, host.name, values[row * grid.count : (row + 1) * grid.count])
        for row, host in enumerate(hosts)
    ]
    return Heat(metric.name, metric.unit, grid.step, grid.times(), shown)


def _heat_grid(query: HeatQuery) -> Grid:
    if query.step < HOUR or query.step % HOUR or query.step > 366 * 24 * HOUR:
        hint = "Give a whole number of hours in seconds: 3600, 7200 … up to a year."
        raise HistoryRefused("bad_step", f"a map cannot have columns of {query.step} s", hint)
    grid = align(query.start, query.end, query.step)
    if grid.count > MAX_POINTS:
        hint = f"At most {MAX_POINTS:,} are possible: ask for a shorter range or a larger step."
        raise HistoryRefused("too_many_points", f"{grid.count:,} columns are too many", hint)
    return grid


def _hosts_within(view: "HistoryView", start: float, end: float) -> list[KnownHost]:
    # When a host was last seen may be an hour behind.
    return [host for host in view.hosts().values() if host.first < end and host.last + 2 * HOUR >= start]


OVERVIEW_METRICS: Final = (*STATE_METRICS, "utilization_percent", "power_watts")
_HEAT_HOURS: Final = (1, 2, 3, 6, 12, 24, 168)
_MAX_COLUMNS: Final = 400
_MAX_CELLS: Final = 100_000


def answer_overview(
    view: "HistoryView", query: OverviewQuery, settings: UsageSettings, groups: Callable[[str], str | None], now: float
) -> Overview:
    """Until `now` at most. Raises HistoryRefused for an invalid query."""
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
    return [SeriesQuery(metric, query.start, query.end, query.points, fleet=True) for metric in OVERVIEW_METRICS]


def _usage(
    view: "HistoryView", query: OverviewQuery, settings: UsageSettings, groups: Callable[[str], str | None], now: float
) -> Usage:
    answer = usage(view, UsageQuery(query.by, query.start, query.end, zone=query.zone), settings, groups, now)
    if query.end - query.start >= MAX_DAYS * DAY:
        return answer
    daily = usage(view, UsageQuery("model", query.start, query.end, daily=True, zone=query.zone), settings, groups, now)
    return replace(answer, total=replace(answer.total, days=daily.total.days))


def _heat(view: "HistoryView", query: OverviewQuery, now: float) -> Heat | None:
    """A heat map with columns that are long enough for the number of hosts; None if no columns are."""
    hosts = _hosts_within(view, query.start, query.end)
    columns = min(_MAX_COLUMNS, _MAX_CELLS // max(1, len(hosts)))
    hours = (query.end - query.start) / HOUR
    step = next((step for step in _HEAT_HOURS if hours / step <= columns), _HEAT_HOURS[-1])
    try:
        return answer_heat(view, HeatQuery(UTILIZATION, query.start, query.end, step * HOUR), now)
    except HistoryRefused:
        return None
