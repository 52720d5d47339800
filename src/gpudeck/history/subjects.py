"""The past of one GPU, of a host, of a run and of the fleet."""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history import totals
from gpudeck.history.base import MOST_SERIES, Answer, Ask, HistoryRefused, Point, Resolution, Series
from gpudeck.history.blocks import Mask, read_quarters, read_samples
from gpudeck.history.folds import Steps, Whole, fold, points_of_one, put_together
from gpudeck.history.hour import Hour
from gpudeck.history.measures import Measure, suggest
from gpudeck.history.past import KnownGpu, KnownHost, KnownRun, Past
from gpudeck.history.steps import HOUR, QUARTER, Grid, choose

MOST_READS: Final = 200
"""How many hours of hosts are read to show the fleet in fine steps."""
MOST_VALUES: Final = 100_000
"""Points of all series together: with many series each gets fewer."""


def gpu_series(past: Past, ask: Ask, measure: Measure) -> Answer:
    gpu = find_gpu(past, ask.gpu or "")
    grid = cut_range(past, ask, gpu.first)
    found = _fold_host(past, gpu.host, measure, grid, only={gpu.key})
    points = _together(found, grid, measure, is_one=True)
    return make_answer(ask, measure, grid, [Series(points, gpu=gpu.uuid, label=gpu.label, model=gpu.model)])


def host_series(past: Past, ask: Ask, measure: Measure) -> Answer:
    host = find_host(past, ask.host or "")
    gpus = {key: gpu for key, gpu in past.gpus().items() if gpu.host == host.key}
    grid = cut_range(past, ask, host.first, among=len(gpus) if ask.by == "gpu" else 1)
    found = _fold_host(past, host.key, measure, grid)
    if ask.by == "gpu":
        return make_answer(ask, measure, grid, _each(found, past.gpus(), grid, measure))
    points = _together(found, grid, measure, is_one=measure.is_of_host)
    return make_answer(ask, measure, grid, [Series(points, host=host.host_id, label=host.name)])


def run_series(past: Past, ask: Ask, measure: Measure, now: float) -> Answer:
    """Its GPUs while it was on them; in quarter hours, those that it was there for at least a part of."""
    run = _find_run(past, ask.run or 0)
    grid = cut_range(past, ask, run.first, among=len(run.gpus) if ask.by == "gpu" else 1)
    if grid.step < QUARTER:
        found = fold(read_samples(past, run.host, measure, grid, only=run.gpus, mask=_presence(run.key)), grid)
    else:
        span = (run.first // QUARTER * QUARTER, _last_moment(past, run, now) + 1)
        found = fold(read_quarters(past, run.host, measure, grid, only=run.gpus), grid, span)
    if ask.by == "gpu":
        return make_answer(ask, measure, grid, _each(found, past.gpus(), grid, measure))
    points = _together(found, grid, measure, is_one=len(run.gpus) == 1)
    return make_answer(ask, measure, grid, [Series(points, run=run.key)])


def fleet_series(past: Past, ask: Ask, measure: Measure, now: float) -> Answer:
    hosts = past.hosts().values()
    began = min((host.first for host in hosts), default=ask.start)
    grid = choose(ask.start, ask.end, ask.points)
    inside = [host for host in hosts if host.first < grid.end and host.last + 2 * HOUR >= grid.start]
    reads = len(inside) * (grid.end - max(grid.start, began)) / HOUR
    if grid.step >= QUARTER or max(grid.start, began) < past.raw_since() or reads > MOST_READS:
        grid = choose(ask.start, ask.end, ask.points, QUARTER)
        whole = _fold_fleet(past, measure, grid, now)
    else:
        whole = _fold_hosts(past, inside, measure, grid)
    return make_answer(ask, measure, grid, [Series(whole.points(grid, measure), fleet=True)])


def find_gpu(past: Past, uuid: str) -> KnownGpu:
    found = next((gpu for gpu in past.gpus().values() if gpu.uuid == uuid), None)
    if found is None:
        known = [gpu.uuid for gpu in past.gpus().values()]
        hint = _near(uuid, known, "a GPU's uuid")
        raise HistoryRefused("unknown_gpu", f"the history knows no GPU {uuid[:80]!r}", hint)
    return found


def find_host(past: Past, name: str) -> KnownHost:
    """By id or by name; of several that had the name, the one that was there last."""
    hosts = past.hosts().values()
    named = [host for host in hosts if host.host_id == name] or [host for host in hosts if host.name == name]
    if not named:
        hint = _near(name, [host.name for host in hosts], "a host's name or id")
        raise HistoryRefused("unknown_host", f"the history knows no host {name[:80]!r}", hint)
    return max(named, key=lambda host: host.last)


def cut_range(past: Past, ask: Ask, began: float, *, among: int = 1) -> Grid:
    """The steps of an answer about devices that were first seen at `began`, for `among` series."""
    if among > MOST_SERIES:
        hint = f"At most {MOST_SERIES} can be; ask for one GPU."
        raise HistoryRefused("too_many_series", f"{among:,} GPUs are too many to be told apart", hint)
    points = min(ask.points, max(1, MOST_VALUES // max(1, among)))
    grid = choose(ask.start, ask.end, points)
    if grid.step < QUARTER and max(grid.start, began) < past.raw_since():
        return choose(ask.start, ask.end, points, QUARTER)
    return grid


def make_answer(
    ask: Ask, measure: Measure, grid: Grid, series: list[Series], resolution: Resolution | None = None
) -> Answer:
    made_from: Resolution = resolution or ("raw" if grid.step < QUARTER else "quarter_hour")
    return Answer(measure.name, measure.unit, grid.step, ask.start, ask.end, made_from, series)


def _near(wrong: str, known: Collection[str], what: str) -> str:
    if len(known) <= 20:
        return suggest(wrong, known, "It knows") or "Nothing was recorded yet."
    return suggest(wrong, known, f"Give {what}; it knows")


def _find_run(past: Past, key: int) -> KnownRun:
    run = past.run(key) if 0 < key < 2**63 else None
    if run is None:
        raise HistoryRefused("unknown_run", f"the history knows no run {key}", "/api/v1/runs lists them.")
    return run


def _fold_host(
    past: Past, host: int, measure: Measure, grid: Grid, *, only: Collection[int] | None = None
) -> dict[int, Steps]:
    read = read_samples if grid.step < QUARTER else read_quarters
    return fold(read(past, host, measure, grid, only=only), grid)


def _fold_hosts(past: Past, hosts: Iterable[KnownHost], measure: Measure, grid: Grid) -> Whole:
    """Host by host, so that not all devices are in memory at once."""
    whole = put_together([], grid, measure.rollup)
    for host in hosts:
        found = _fold_host(past, host.key, measure, grid)
        whole = whole.join(put_together(found.values(), grid, measure.rollup), measure.rollup)
    return whole


def _fold_fleet(past: Past, measure: Measure, grid: Grid, now: float) -> Whole:
    stack = past.fleet_quarters(grid.start, grid.end, totals.wanted_for(measure))
    table = totals.read_table(stack, measure, now)
    at = ((table.times - grid.start) // grid.step).astype(np.int64)
    return table.fold(at, grid.count)


def _each(found: dict[int, Steps], gpus: dict[int, KnownGpu], grid: Grid, measure: Measure) -> list[Series]:
    known = sorted((gpus[key].label, key) for key in found if key in gpus)
    return [
        Series(points_of_one(found[key], grid, measure), gpu=gpus[key].uuid, label=label, model=gpus[key].model)
        for label, key in known
    ]


def _together(found: dict[int, Steps], grid: Grid, measure: Measure, *, is_one: bool) -> list[Point]:
    if is_one and len(found) == 1:
        return points_of_one(next(iter(found.values())), grid, measure)
    return put_together(found.values(), grid, measure.rollup).points(grid, measure)


def _presence(run: int) -> Mask:
    def mask(hour: Hour, rows: list[int]) -> NDArray[np.bool_]:
        shown = np.zeros((len(rows), len(hour.times)), dtype=np.bool_)
        for part in hour.runs:
            if part.run == run and part.gpu in rows:
                shown[rows.index(part.gpu)] |= part.present
        return shown

    return mask


def _last_moment(past: Past, run: KnownRun, now: float) -> float:
    """What the table says is behind while the run goes on: the hours since tell."""
    if now - run.last > 2 * HOUR:
        return run.last
    hours = past.hours(run.host, run.last, now, (), runs=True)
    parts = [(hour, part) for hour in hours for part in hour.runs if part.run == run.key and part.present.any()]
    return max([run.last, *(float(hour.times[part.present][-1]) for hour, part in parts)])
