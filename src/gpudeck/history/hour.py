"""A host's hour: what was sampled, as numpy arrays. Everything in this room is made from it.

Time runs along the last axis; an unknown value is NaN. An hour has all samples with `start <= at < start + 3600`, in
order, no two at the same moment.
"""

from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpudeck.history.sample import STATE_NUMBERS

SECONDS: Final = 3600
QUARTER: Final = 900
ABSENT, UNKNOWN, FREE, BUSY, HELD, BOOKED = STATE_NUMBERS.values()

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class RunSlice(Struct):
    """One run on one GPU: `gpu` is the row in the hour's arrays. Where `present` is False it was not there.

    `memory` is in bytes. NaN where it is not known, and where the run was not there.
    """

    run: int
    gpu: int
    present: Flags
    memory: Floats
    utilization: Floats


class Hour(Struct):
    """`gpus` are keys of the store, one a row of `states` and of each of `metrics`.

    `covered` is how many seconds each sample stands for: those since the sample before it, unless there was a gap,
    which nobody observed. `metrics` and `host` are by the catalog's names.
    """

    start: int
    times: Floats
    covered: Floats
    gpus: list[int]
    states: Bytes
    metrics: dict[str, Floats] = field(default_factory=dict)
    host: dict[str, Floats] = field(default_factory=dict)
    runs: list[RunSlice] = field(default_factory=list)

    @property
    def observed(self) -> Floats:
        """The seconds for which each GPU was really seen: a state of its own at a moment that is covered."""
        return np.where(self.states > UNKNOWN, self.covered, 0.0)


def cover(times: Floats, interval: "float | Floats", before: float | None) -> Floats:
    """How many seconds each sample stands for. `before` is the last sample of the hour before, if there was one.

    A sample after a gap of more than three beats stands for one beat: the gap itself was not observed.
    """
    if not len(times):
        return np.empty(0)
    first = times[0] - before if before is not None else np.inf
    steps = np.diff(times, prepend=times[0] - first)
    return np.where((steps > 3 * interval) | (steps <= 0), interval, steps)
