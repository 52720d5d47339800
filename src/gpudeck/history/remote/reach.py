"""How far back a sample reaches: a host that is sampled once a minute tells of all the steps of that minute.

The store has a value where there was a sample, and nothing in the steps between two of them. What each sample stands
for is a series of its own, so it is known what is a gap and what is only a pause. Steps of a quarter hour and more need
none of this, here as in the embedded store.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpudeck.history.hour import Floats
from gpudeck.history.remote.names import OBSERVED
from gpudeck.history.remote.promql import Stats, any_of, over, select
from gpudeck.history.remote.read import Found, Reader
from gpudeck.history.steps import HOUR, QUARTER, Grid, choose

_FARTHEST: Final = 600
"""Seconds: a sample so long after the end of a range may tell of its last steps."""
_ALIKE: Final = 1.2
"""Samples of one host are so far apart at most as they are usually: more is a pause of its own."""


def spread_out(reader: Reader, asked: Stats, grid: Grid, hosts: Sequence[str]) -> list[Found]:
    """As `Reader.stats`, of devices of these hosts, with the steps that a later sample tells of."""
    longer, told_by = find_reach(reader, grid, hosts)
    return [
        Found(one.labels, one.mean[told_by], one.low[told_by], one.high[told_by]) for one in reader.stats(asked, longer)
    ]


def find_reach(reader: Reader, grid: Grid, hosts: Sequence[str]) -> tuple[Grid, NDArray[np.int64]]:
    """A grid that is long enough to be asked for, and for each step of `grid` the one in that whose values it has."""
    if grid.step >= QUARTER or not hosts:
        return grid, np.arange(grid.count)
    longer = Grid(grid.start, grid.step, grid.count + math.ceil(_FARTHEST / grid.step))
    stood_for = over(select(OBSERVED, {}, any_of("host_id", list(hosts))), grid.step)
    found = [values for _, values in reader.values(f"max(max_over_time({stood_for}))", longer)]
    return longer, tellers(found[0], grid.step)[: grid.count] if found else np.arange(grid.count)


def tellers(seconds: Floats, step: int) -> NDArray[np.int64]:
    """For each step the one whose sample tells of it: itself, or a later one. `seconds` are what samples stand for."""
    places = np.arange(len(seconds))
    is_sampled = ~np.isnan(seconds)
    following = np.minimum.accumulate(np.where(is_sampled, places, len(places))[::-1])[::-1]
    back = np.append(np.ceil(np.where(is_sampled, seconds, 0.0) / step) - 1, -1.0)
    return np.where(following - places <= back[following], following, places)


def choose_for_all(reader: Reader, start: float, end: float, points: int) -> Grid:
    """As `steps.choose`, with steps in which every host has a sample: of what is added up over hosts, one that is left
    out of a step would be missing in the sum."""
    grid = choose(start, end, points)
    if grid.step >= QUARTER:
        return grid
    hours = choose(start, end, points, HOUR)
    usual = f"max(quantile_over_time(0.5, {over(select(OBSERVED), hours.step)}))"
    found = [float(np.nanmax(values)) for _, values in reader.values(usual, hours) if not np.isnan(values).all()]
    beat = max(found, default=0.0)
    return grid if beat <= grid.step * _ALIKE else choose(start, end, points, math.ceil(beat / _ALIKE))
