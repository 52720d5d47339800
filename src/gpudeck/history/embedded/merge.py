"""Two pictures of the same hour as one: what was sealed, and what came late."""

import numpy as np

from gpudeck.history.hour import Floats, Hour, RunSlice


def merge(old: Hour, new: Hour) -> Hour:
    """Every moment once; of one that both have, the old. Samples that came between others shorten what these cover."""
    times = np.concatenate([old.times, new.times])
    order: np.ndarray = np.unique(times, return_index=True)[1]
    gpus = list(dict.fromkeys([*old.gpus, *new.gpus]))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    merged = Hour(
        start=old.start,
        times=times[order],
        covered=_cover(times[order], np.concatenate([old.covered, new.covered])[order]),
        gpus=gpus,
        states=_side_by_side(old.states, new.states, old, new, rows, order, 0),
    )
    for name in sorted({*old.metrics, *new.metrics}):
        one, other = _table(old, name), _table(new, name)
        merged.metrics[name] = _side_by_side(one, other, old, new, rows, order, np.nan)
    for name in sorted({*old.host, *new.host}):
        values = [hour.host.get(name, np.full(len(hour.times), np.nan)) for hour in (old, new)]
        merged.host[name] = np.concatenate(values)[order]
    merged.runs = _merge_runs(old, new, rows, order)
    return merged


def _cover(times: Floats, covered: Floats) -> Floats:
    steps = np.diff(times, prepend=-np.inf)
    return np.minimum(steps, covered)


def _table(hour: Hour, name: str) -> Floats:
    table = hour.metrics.get(name)
    return np.full((len(hour.gpus), len(hour.times)), np.nan) if table is None else table


def _side_by_side(  # noqa: PLR0917 - one call for each of an hour's tables
    one: np.ndarray,
    other: np.ndarray,
    old: Hour,
    new: Hour,
    rows: dict[int, int],
    order: np.ndarray,
    blank: float,
) -> np.ndarray:
    """Two tables of different GPUs and moments as one, in order of time."""
    table = np.full((len(rows), len(old.times) + len(new.times)), blank, dtype=one.dtype)
    if old.gpus:
        table[[rows[gpu] for gpu in old.gpus], : len(old.times)] = one
    if new.gpus:
        table[[rows[gpu] for gpu in new.gpus], len(old.times) :] = other
    return table[:, order]


def _merge_runs(old: Hour, new: Hour, rows: dict[int, int], order: np.ndarray) -> list[RunSlice]:
    count = len(old.times) + len(new.times)
    slices: dict[tuple[int, int], RunSlice] = {}
    for hour, begin in ((old, 0), (new, len(old.times))):
        until = begin + len(hour.times)
        for part in hour.runs:
            key = (part.run, rows[hour.gpus[part.gpu]])
            if key not in slices:
                blank = np.zeros(count, dtype=bool), np.full(count, np.nan), np.full(count, np.nan)
                slices[key] = RunSlice(*key, *blank)
            whole = slices[key]
            whole.present[begin:until] = part.present
            whole.memory[begin:until] = part.memory
            whole.utilization[begin:until] = part.utilization
    return [
        RunSlice(part.run, part.gpu, part.present[order], part.memory[order], part.utilization[order])
        for _, part in sorted(slices.items())
    ]
